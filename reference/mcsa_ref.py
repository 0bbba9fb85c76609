"""MC-Sparse in NumPy: METHOD.md as a program.

Written from the paper and METHOD.md alone, to be read beside it: the numbers in parentheses are its equations, the
names are its symbols.  Everything is float64 and nothing is fast: whole [N, N] score matrices are formed.

    q, k, v, o   [H, N, D]      order  [H, N]        mass  [H, G, N]
    lse          [H, N]         label  [H, N]        kept  [H, G, P] of bool; without clusters [H, G, N]

Not here: the dtype of tensors (round inputs before, compare outputs within their rounding; centres and means alone are
rounded to a dtype, when one is given), wrong input, threads.
"""
from dataclasses import dataclass

import numpy as np

DENSE, ANCHOR, REUSE = 0, 1, 2


def to_bf16(x):
    """x rounded to BF16 (nearest, ties to even) as float64; finite x."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(np.float64)


def rounded(x, dtype):
    """x [..] rounded to dtype "f32", "bf16", "f16" or None (not at all), as float64."""
    if dtype == "bf16":
        return to_bf16(x)
    return x.astype({None: np.float64, "f32": np.float32, "f16": np.float16}[dtype]).astype(np.float64)


# 1. Dense attention with row log-sum-exp

def scores(q, k, scale):
    return scale * q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2)  # [..., N, M]


def attend_dense(q, k, v, scale, bias=0.0):
    """(1): the output [H, N, D] and lse [H, N].  bias: [M], added to the scores of each key."""
    s = scores(q, k, scale) + bias
    top = s.max(axis=-1, keepdims=True)
    lse = top + np.log(np.exp(s - top).sum(axis=-1, keepdims=True))
    return np.exp(s - lse) @ v.astype(np.float64), lse[..., 0]


# 2. Groups of queries and clusters of keys

def groups(row, C):
    """The groups [<= C] of one head's order [N]."""
    return [row[first:first + C] for first in range(0, len(row), C)]


def principal_direction(x):
    """Power iteration on the covariance of the rows x [n, D], at most 7 products."""
    mean = x.mean(axis=0)
    centred = x - mean
    u = centred[0]
    if not u.any():
        u = np.where(np.arange(x.shape[1]) % 3 == 0, -1.0, 1.0)
    u = u / np.linalg.norm(u)
    for _ in range(7):
        y = (centred @ u) @ centred
        length = np.linalg.norm(y)
        if length == 0:
            break
        before, u = u, y / length
        if before @ u > 0.9999:
            break
    return u


def split(x, rows, a, b, C):
    """The rows of the node [a, b) of groups, in the order of its groups."""
    if b - a <= 1:
        return rows
    m = (b - a + 1) // 2
    node = x[rows]
    projection = node @ principal_direction(node[::-(-len(node) // 2048)])
    left = np.lexsort((-rows, projection))[:m * C]  # of equal projections the lower index goes right
    goes_left = np.zeros(len(rows), bool)
    goes_left[left] = True
    return np.concatenate([split(x, rows[goes_left], a, a + m, C), split(x, rows[~goes_left], a + m, b, C)])


def pddp(q, C):
    """order [H, N]"""
    H, N, _ = q.shape
    return np.stack([split(x, np.arange(N), 0, -(-N // C), C) for x in q.astype(np.float64)])


def within_group_variance(q, order, C):
    """Mean squared distance of a query from the mean of its group: what grouping makes small."""
    total = 0.0
    for x, row in zip(q.astype(np.float64), order):
        total += sum(((x[g] - x[g].mean(axis=0)) ** 2).sum() for g in groups(row, C))
    return total / order.size


def cluster_count(K):
    """P: a third of the rows that a group attends to."""
    return min(8192, max(1, K // 3))


def start_centres(x, P):
    """[P, D] of the keys x [N, D] of one head."""
    return x[(2 * np.arange(P) + 1) * len(x) // (2 * P)]


def closeness(x, centres):
    """[N, P]: half the squared distance, negative and without its |x|^2 / 2."""
    return x @ centres.T - (centres ** 2).sum(axis=1) / 2


def means(x, label, before, dtype=None):
    """[P, D]: the mean of the rows x [N, D] of each label, rounded to dtype; where there are none, `before` [P, D]."""
    return np.stack([rounded(x[label == p].mean(axis=0), dtype) if (label == p).any() else before[p]
                     for p in range(len(before))])


def kmeans(k, P, dtype=None):
    """label [H, N]: which of P clusters of its head each key is in."""
    labels = []
    for x in k.astype(np.float64):
        centres = start_centres(x, P)
        for _ in range(3):
            centres = means(x, closeness(x, centres).argmax(axis=1), centres, dtype)  # of equal ones the lower p
        labels.append(closeness(x, centres).argmax(axis=1))
    return np.array(labels)


# 3. What is kept

def group_mass(q, k, lse, order, C, scale):
    """(2): mass [H, G, N]"""
    heads = []
    for h, row in enumerate(order):
        a = np.exp(scores(q[h], k[h], scale) - lse[h][:, None])
        heads.append([a[g].sum(axis=0) for g in groups(row, C)])
    return np.array(heads)


def kept_count(N, density):
    """K.  The density is an FP32 number: 0.7 is a little less than 7/10."""
    return min(N, max(1, int(np.floor(float(np.float32(density)) * N + 0.5))))


def keep(mass, K):
    """The K keys of largest mass of each group, of equal masses those of lower index: kept [H, G, N] of bool."""
    kept = np.zeros(mass.shape, bool)
    best = np.argsort(-mass, axis=-1, kind="stable")[..., :K]
    np.put_along_axis(kept, best, True, axis=-1)
    return kept


@dataclass
class Choice:
    """What an anchor chose: groups and kept clusters.  label None: keys are kept one by one, and nothing stands for
    the others (tail "off")."""
    order: np.ndarray
    kept: np.ndarray
    label: np.ndarray = None

    def sizes(self, h):
        """n [P]; [0] without clusters."""
        return np.bincount(self.label[h], minlength=self.kept.shape[2]) if self.label is not None else np.zeros(0)

    def attended(self, h, g):
        """T and R of group g: the kept keys, and the clusters that take part as their means."""
        kept = self.kept[h, g]
        if self.label is None:
            return np.flatnonzero(kept), np.array([], int)
        return np.flatnonzero(kept[self.label[h]]), np.flatnonzero(~kept & (self.sizes(h) > 0))


def cluster_mass(mass, label, P):
    """[H, G, P] of mass [H, G, N]."""
    return np.stack([np.stack([m[:, row == p].sum(axis=1) for p in range(P)], axis=1) for m, row in zip(mass, label)])


def keep_clusters(worth, sizes, K):
    """kept [P] of one group: clusters of most worth [P] first, while the keys of those kept and the means of the others
    are at most K rows."""
    kept, rows = np.zeros(len(worth), bool), np.count_nonzero(sizes)
    for p in np.argsort(-worth, kind="stable"):
        if sizes[p] and rows + sizes[p] - 1 <= K:
            kept[p] = True
            rows += sizes[p] - 1
    return kept


def choose_clusters(mass, order, label, P, K):
    """The choice for clusters label [H, N], from mass [H, G, N]."""
    choice = Choice(order, np.zeros((*mass.shape[:2], P), bool), label)
    for h, heads in enumerate(cluster_mass(mass, label, P)):
        sizes = choice.sizes(h)
        for g, m in enumerate(heads):
            choice.kept[h, g] = keep_clusters(m / np.maximum(sizes, 1), sizes, K)
    return choice


# 4. Attention to kept keys and means

def with_means(x, choice, dtype=None):
    """[H, N + P, D]: the rows x [H, N, D], then the mean of each cluster; of an empty one 0."""
    if choice.label is None:
        return x
    none = np.zeros((choice.kept.shape[2], x.shape[2]))
    return np.stack([np.concatenate([rows, means(rows, label, none, dtype)]) for rows, label in zip(x, choice.label)])


def attend_tokens(q, k, v, choice, C, scale, dtype=None):
    """(3): [H, N, D]"""
    out, N = np.empty(q.shape), q.shape[1]
    k, v = with_means(k, choice, dtype), with_means(v, choice, dtype)
    for h, row in enumerate(choice.order):
        for g, members in enumerate(groups(row, C)):
            T, R = choice.attended(h, g)
            rows = np.concatenate([T, N + R])
            bias = np.concatenate([np.zeros(len(T)), np.log(choice.sizes(h)[R])])
            out[h, members], _ = attend_dense(q[h, members], k[h, rows], v[h, rows], scale, bias)
    return out


# 5. Residual

def cached(r, form):
    """What comes back of the residual r [H, N, D] from its cached form."""
    if form == "bf16":
        return to_bf16(r)
    if form == "off":
        return np.zeros_like(r)
    top = np.abs(r).max(axis=-1, keepdims=True) / {"int8": 127, "int4": 7}[form]
    return top * np.rint(r / np.where(top > 0, top, 1))


# 6. Actions and schedule

def schedule(text, S):
    """The actions [S] of "ramp", "fast", "paper", "every:N[,W]" or "list:a,b,..."."""
    name, _, rest = text.partition(":")
    numbers = [int(n) for n in rest.split(",")] if rest else []
    idle = []
    if name == "ramp":
        W = max(1, (S + 5) // 10)
        anchors, n = [W - 1], 0
        while True:
            gap = max(1, int((n + 2) * np.sqrt(S / 40) + 0.5))
            if anchors[-1] + gap + (gap + 1) // 2 >= S:
                break
            if gap == 1:
                idle.append(anchors[-1])
            anchors.append(anchors[-1] + gap)
            n += 1
    elif name == "fast":
        W = max(1, (S + 5) // 10)
        anchors = [W - 1]
        for a in (S // 4, S // 2):
            if anchors[-1] + 2 <= a < S - 1:
                anchors.append(a)
    elif name == "paper":
        W = max(1, (2 * S + 5) // 10)
        anchors = [W - 1] + [a for a in [W + (S - W) // 3] if a < S - 1]
    elif name == "every":
        W = numbers[1] if len(numbers) > 1 else 1
        anchors = list(range(W - 1, S, numbers[0]))
    else:
        anchors = numbers
    actions = np.full(S, REUSE)
    actions[:anchors[0]] = DENSE
    actions[anchors] = ANCHOR
    actions[idle] = DENSE
    return actions


# 7 and 8. Branches, and when a REUSE finds its anchor

@dataclass
class Plan:
    """What one (layer, branch) remembers of its anchor."""
    step: int
    shape: tuple
    choice: Choice
    follows: bool
    residual: np.ndarray


class Run:
    """One denoising trajectory.

    tail: "means" or "off".  dtype: what centres and means are rounded to.  choose(q, k, lse, scale) -> Choice, where
    given, replaces what an anchor would choose.  key_multiple: what the number of keys is padded to when pairs are
    counted (2 where BF16 tensors multiply in BF16).
    """

    def __init__(self, steps, schedule_text="ramp", density=0.10, group=128, branches=1, shared=None, residual="bf16",
                 dense_layers=0, tail="means", dtype=None, choose=None, key_multiple=1):
        self.actions = schedule(schedule_text, steps)
        self.density, self.C, self.form, self.key_multiple = density, group, residual, key_multiple
        self.shared = branches == 2 if shared is None else shared
        self.dense_layers, self.tail, self.dtype = dense_layers, tail, dtype
        self.choose = choose or self.choose_exactly
        self.plans = {}
        self.calls = {"dense": 0, "anchor": 0, "reuse": 0}
        self.fallback = {"no_anchor": 0, "shape": 0, "stale": 0, "leader": 0}
        self.pairs_reuse = self.full_reuse = self.pairs_run = self.full_run = 0.0

    def choose_exactly(self, q, k, lse, scale):
        order, K = pddp(q, self.C), kept_count(q.shape[1], self.density)
        mass = group_mass(q, k, lse, order, self.C, scale)
        if self.tail == "off":
            return Choice(order, keep(mass, K))
        P = cluster_count(K)
        return choose_clusters(mass, order, kmeans(k, P, self.dtype), P, K)

    def leader(self, layer, branch):
        """The plan of the branch that chooses for this one, or None."""
        return self.plans.get((layer, 0)) if self.shared and branch > 0 else None

    def missing(self, step, layer, branch, shape):
        """Why the plan of (layer, branch) cannot serve `step`, or None."""
        plan = self.plans.get((layer, branch))
        if plan is None:
            return "no_anchor"
        if plan.shape != shape:
            return "shape"
        due = np.flatnonzero(self.actions[:step + 1] == ANCHOR)
        if plan.step > step or (len(due) and plan.step < due[-1]):
            return "stale"
        if plan.follows and plan.choice is not self.leader(layer, branch).choice:
            return "leader"
        return None

    def attend(self, step, layer, branch, q, k, v):
        scale = 1 / np.sqrt(q.shape[2])
        action = DENSE if layer < self.dense_layers else self.actions[step]
        if action == REUSE:
            why = self.missing(step, layer, branch, q.shape)
            if why is None:
                return self.reuse(self.plans[layer, branch], q, k, v, scale)
            self.fallback[why] += 1
        else:
            self.calls["dense" if action == DENSE else "anchor"] += 1
        o, lse = attend_dense(q, k, v, scale)
        if action == DENSE:
            self.count(q.shape, 1.0)
            return o
        leader = self.leader(layer, branch)
        follows = leader is not None and leader.step == step and leader.shape == q.shape
        choice = leader.choice if follows else self.choose(q, k, lse, scale)
        missed = o - attend_tokens(q, k, v, choice, self.C, scale, self.dtype)
        self.plans[layer, branch] = Plan(step, q.shape, choice, follows, cached(missed, self.form))
        recorded = self.executed(choice) if self.form != "off" else 0.0
        self.count(q.shape, 1.0 + recorded)  # where the scores of an anchor are computed once
        return o

    def reuse(self, plan, q, k, v, scale):
        """(4)"""
        self.calls["reuse"] += 1
        density = self.executed(plan.choice)
        self.count(q.shape, density)
        self.pairs_reuse += density * q.shape[0] * q.shape[1] ** 2
        self.full_reuse += q.shape[0] * q.shape[1] ** 2
        return attend_tokens(q, k, v, plan.choice, self.C, scale, self.dtype) + plan.residual

    # 9. What is reported

    def executed(self, choice):
        """Pairs that sparse attention computes, of H N N: queries padded to 16, keys and means to key_multiple."""
        (H, N), m, pairs = choice.order.shape, self.key_multiple, 0
        for h, row in enumerate(choice.order):
            for g, members in enumerate(groups(row, self.C)):
                padded = sum(-(-len(rows) // m) * m for rows in choice.attended(h, g))
                pairs += -(-len(members) // 16) * 16 * padded
        return pairs / (H * N * N)

    def count(self, shape, density):
        self.pairs_run += density * shape[0] * shape[1] ** 2
        self.full_run += shape[0] * shape[1] ** 2

    def densities(self):
        """Executed density and run density."""
        return (self.pairs_reuse / self.full_reuse if self.full_reuse else 0.0,
                self.pairs_run / self.full_run if self.full_run else 0.0)
