"""MC-Sparse in NumPy: METHOD.md as a program.

Written from the paper and METHOD.md alone, to be read beside it: the numbers in parentheses are its equations, the
names are its symbols.  Everything is float64 and nothing is fast: whole [N, N] score matrices are formed.

    q, k, v, o   [H, N, D]      order  [H, N]        mass  [H, G, N]
    lse          [H, N]         kept   [H, G, N] of bool

Not here: the dtype of tensors (round inputs before, compare outputs within their rounding), wrong input, threads.
"""
from dataclasses import dataclass

import numpy as np

DENSE, ANCHOR, REUSE = 0, 1, 2


# 1. Dense attention with row log-sum-exp

def scores(q, k, scale):
    return scale * q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2)  # [..., N, M]


def attend_dense(q, k, v, scale):
    """(1): the output [H, N, D] and lse [H, N]."""
    s = scores(q, k, scale)
    top = s.max(axis=-1, keepdims=True)
    lse = top + np.log(np.exp(s - top).sum(axis=-1, keepdims=True))
    return np.exp(s - lse) @ v.astype(np.float64), lse[..., 0]


# 2. Groups: Fast PDDP

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


# 3. Kept keys

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


# 4. Token-sparse attention

def attend_tokens(q, k, v, order, kept, C, scale):
    """(3): [H, N, D]"""
    out = np.empty(q.shape)
    for h, row in enumerate(order):
        for g, members in enumerate(groups(row, C)):
            T = kept[h, g]
            out[h, members], _ = attend_dense(q[h, members], k[h, T], v[h, T], scale)
    return out


# 5. Residual

def to_bf16(x):
    """x rounded to BF16 (nearest, ties to even) as float64; finite x."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(np.float64)


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
    """The actions [S] of "ramp", "paper", "every:N[,W]" or "list:a,b,..."."""
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
class Choice:
    """What an anchor chose: groups and kept keys."""
    order: np.ndarray
    kept: np.ndarray


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

    choose(q, k, lse, scale) -> Choice, where given, replaces what an anchor would choose.  key_multiple: what the
    number of keys is padded to when pairs are counted (2 where BF16 tensors multiply in BF16).
    """

    def __init__(self, steps, schedule_text="ramp", density=0.10, group=128, branches=1, shared=None, residual="bf16",
                 dense_layers=0, choose=None, key_multiple=1):
        self.actions = schedule(schedule_text, steps)
        self.density, self.C, self.form, self.key_multiple = density, group, residual, key_multiple
        self.shared = branches == 2 if shared is None else shared
        self.dense_layers = dense_layers
        self.choose = choose or self.choose_exactly
        self.plans = {}
        self.calls = {"dense": 0, "anchor": 0, "reuse": 0}
        self.fallback = {"no_anchor": 0, "shape": 0, "stale": 0, "leader": 0}
        self.pairs_reuse = self.full_reuse = self.pairs_run = self.full_run = 0.0

    def choose_exactly(self, q, k, lse, scale):
        order = pddp(q, self.C)
        mass = group_mass(q, k, lse, order, self.C, scale)
        return Choice(order, keep(mass, kept_count(q.shape[1], self.density)))

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
        missed = o - attend_tokens(q, k, v, choice.order, choice.kept, self.C, scale)
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
        return attend_tokens(q, k, v, plan.choice.order, plan.choice.kept, self.C, scale) + plan.residual

    # 9. What is reported

    def executed(self, choice):
        """Pairs that sparse attention computes, of N N: queries padded to 16, keys to key_multiple."""
        N, K, m = choice.order.shape[1], int(choice.kept[0, 0].sum()), self.key_multiple
        lanes = sum(-(-len(g) // 16) * 16 for g in groups(choice.order[0], self.C))
        return lanes * (-(-K // m) * m) / N ** 2

    def count(self, shape, density):
        self.pairs_run += density * shape[0] * shape[1] ** 2
        self.full_run += shape[0] * shape[1] ** 2

    def densities(self):
        """Executed density and run density."""
        return (self.pairs_reuse / self.full_reuse if self.full_reuse else 0.0,
                self.pairs_run / self.full_run if self.full_run else 0.0)
