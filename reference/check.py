#!/usr/bin/env python3
"""Does libmcsa agree with the reference?

    python reference/check.py [--build build/release]

Prints the worst percent of its bound of every quantity, by instruction set and dtype; exits 1 when one is above 100.

Three steps, two branches that share: an anchor, a reuse of the same q, k, v, a reuse of others.  Grouping has freedom
(where power iteration stops, queries that project alike), so groups are compared by their variance, and everything
after them is computed by the reference for the groups that C made.  So it is with clusters, whose labels must be those
of some way through k-means in which every near-tie falls one way or the other.  Selections are discontinuous: they are
compared as sets.  A key that one side alone keeps must have a mass within the bound of the K-th largest; kept clusters
must be what the reference keeps for some masses within the bound.  Whether a REUSE finds its anchor, what is counted,
and schedules have no freedom: they must be equal over random walks.
"""
import argparse
import itertools
import pathlib
import sys

import numpy as np

import bounds
import mcsa_ref as ref
import native

# H, N, D, C, density: ragged last groups, an odd D, a group of one query, a last group of one, N below C; 1 to 210
# clusters, with room for none of them, some and all
SHAPES = [(2, 301, 40, 32, 0.10), (3, 517, 128, 128, 0.15), (1, 97, 64, 64, 0.25), (2, 65, 17, 16, 0.05),
          (1, 50, 12, 128, 0.30), (2, 37, 5, 1, 0.20), (1, 211, 256, 48, 0.10), (1, 840, 32, 100, 0.20),
          (1, 120, 9, 32, 1.00), (1, 700, 24, 128, 0.90)]

# Where power iteration stops may differ by the 0.8 degrees of its cosine 0.9999, which moves projections by at most
# 1.4 % of a row's length: only rows that near to a median change sides.
VARIANCE_SLACK = 0.02

MOST_WAYS = 64  # through one assignment of k-means that are tried


class Report:
    """Percent of bound, the worst by (quantity, setting)."""

    def __init__(self):
        self.worst = {}

    def add(self, quantity, setting, error, bound):
        error, bound = np.broadcast_arrays(np.abs(error), bound)
        percent = np.where(error == 0, 0, 100 * error / np.where(bound > 0, bound, 1e-300)).max()
        key = quantity, setting
        self.worst[key] = max(self.worst.get(key, 0), percent if percent == percent else np.inf)

    def print(self):
        settings = list(dict.fromkeys(s for _, s in self.worst))
        quantities = list(dict.fromkeys(q for q, _ in self.worst))
        print("percent of bound".ljust(32) + "".join(s.rjust(16) for s in settings))
        for quantity in quantities:
            cells = [self.worst.get((quantity, s)) for s in settings]
            print(quantity.ljust(32) + "".join(("" if x is None else f"{x:.3g}").rjust(16) for x in cells))
        return all(x <= 100 for x in self.worst.values())


def problem(rng, H, N, D, dtype):
    """q, k, v of tokens in clusters, so that attention is far from uniform; exact in dtype."""
    centres = rng.normal(size=(H, 9, D))
    kind = rng.integers(9, size=N)
    q, k = (1.5 * centres[:, kind] + rng.normal(size=(H, N, D)) for _ in range(2))
    return [ref.rounded(x, dtype) for x in (q, k, rng.normal(size=(H, N, D)))]


def label_excess(x, label, centres, off, rounds, dtype):
    """By how many bounds the labels of the keys x [N, D] are from those of k-means, from centres [P, D] known to `off`.
    Where rounding leaves a key two centres to choose from, every way on is tried, and the best one judges."""
    s, slack = ref.closeness(x, centres), bounds.closenesses(x, centres, off)
    if rounds == 0:
        own = np.arange(len(x)), label
        return ((s.max(axis=1) - s[own]) / (slack[own] + slack[np.arange(len(x)), s.argmax(axis=1)])).max()
    reachable = bounds.reachable(s, slack)
    open_rows = np.flatnonzero(reachable.sum(axis=1) > 1)
    choices = [np.flatnonzero(reachable[row]) for row in open_rows]
    if np.prod([float(len(c)) for c in choices]) > MOST_WAYS:
        raise RuntimeError(f"{len(open_rows)} keys are between centres: too many ways to go on, take other numbers")
    best, each = np.inf, s.argmax(axis=1)
    for picked in itertools.product(*choices):
        each[open_rows] = picked
        new, reach = bounds.moved_centres(x, each, centres, off, dtype)
        best = min(best, label_excess(x, label, new, reach, rounds - 1, dtype))
    return best


def check_clusters(report, setting, k, clusters, P, dtype):
    """label [H, N] of C's clusters, which must be a partition in order, and nearest."""
    members, first = clusters
    H, N = members.shape
    report.add("clusters per head", setting, first.shape[1] - 1 - P, 0)
    report.add("clusters fill the keys", setting, np.stack([first[:, 0], first[:, -1] - N], axis=1), 0)
    report.add("clusters do not overlap", setting, np.minimum(np.diff(first), 0), 0)
    report.add("members are a permutation", setting, np.sort(members) - np.arange(N), 0)
    label = np.empty((H, N), int)
    for h in range(H):
        place = np.repeat(np.arange(P), np.maximum(np.diff(first[h]), 0))
        label[h, members[h]] = place
        descends = (np.diff(members[h]) < 0) & (np.diff(place) == 0)
        report.add("members ascend", setting, descends.sum(), 0)
        start = ref.start_centres(k[h], P)
        report.add("labels, distance to nearest", setting,
                   label_excess(k[h], label[h], start, np.zeros(start.shape), 3, dtype), 1)
    return label


def check_kept_clusters(report, setting, choice, mass, bound, K):
    """Worths are free within their bound: with those of kept clusters as high and those of others as low as that lets
    them be, the walk must keep what C kept.  If any worths do, these do: what is kept fits in any order, and what is
    not must find as little room as can be.  Reports the least part of the bound that does."""
    parts = choice.kept.shape[2]
    mass, bound = (ref.cluster_mass(x, choice.label, parts) for x in (mass, bound))
    for h, g in np.ndindex(*choice.kept.shape[:2]):
        sizes, kept = choice.sizes(h), choice.kept[h, g]
        some = np.maximum(sizes, 1)
        worth, slack = mass[h, g] / some, (bound[h, g] + (some + 2) * bounds.U["f32"] * mass[h, g]) / some
        agrees = [part for part in (0, 0.01, 0.03, 0.1, 0.3, 1) if
                  (ref.keep_clusters(worth + np.where(kept, part, -part) * slack, sizes, K) == kept).all()]
        report.add("kept clusters, worths moved", setting, min(agrees, default=np.inf), 1)
        report.add("rows per group", setting, np.maximum(sum(map(len, choice.attended(h, g))) - K, 0), 0)


def check_kept(report, setting, kept, mass, bound, K):
    """Every group keeps K; keys within the bound of the K-th largest are free."""
    report.add("kept keys per group", setting, kept.sum(axis=-1) - K, 0)
    ours = ref.keep(mass, K)
    kth = np.where(ours, mass, np.inf).min(axis=-1, keepdims=True)
    slack = bound + np.where(mass == kth, bound, 0).max(axis=-1, keepdims=True)
    report.add("kept keys, distance to K-th", setting, np.where(kept != ours, mass - kth, 0), slack)


def check_three_steps(report, lib, rng, isa, dtype, shape, residual, tail):
    H, N, D, C, density = shape
    setting, scale = f"{isa} {dtype}", 1 / np.sqrt(D)
    K = ref.kept_count(N, density)
    run = native.Run(lib, dtype, isa, residual, tail=tail, schedule="list:0", steps=3, layers=1, branches=2, group=C,
                     density=density)
    anchors = [problem(rng, H, N, D, dtype) for _ in range(2)]
    others = [[ref.rounded(x + 0.2 * rng.normal(size=x.shape), dtype) for x in qkv] for qkv in anchors]
    first = [run.attend(0, 0, b, *anchors[b]) for b in range(2)]
    choice = check_choice(report, setting, run, anchors[0], K, tail)

    ours = ref.Run(3, "list:0", density, C, branches=2, residual=residual, tail=tail, dtype=dtype,
                   choose=lambda *_: choice)
    for b in range(2):
        q, k, v = anchors[b]
        o = ours.attend(0, 0, b, q, k, v)
        o_bound = bounds.stored(bounds.rows(q, bounds.Rows(k, v), scale, dtype)[0], o, dtype)
        report.add("anchor output", setting, first[b] - o, o_bound)
        missed = o - ref.attend_tokens(q, k, v, choice, C, scale, dtype)
        sparse, _ = bounds.rows(q, bounds.attended_rows(k, v, choice, C, dtype, dtype), scale, dtype)
        known = o_bound + sparse[..., None] + bounds.U["f32"] * np.abs(missed)
        r_bound = bounds.cached(missed, known, residual)
        held = run.residual(0, b, q.shape)
        report.add(f"residual {residual}", setting, held - (missed if residual != "off" else 0), r_bound)
        for step, (q, k, v) in ((1, anchors[b]), (2, others[b])):
            # with the residual that C holds: its form would hide more than the arithmetic of the step may err
            expected = ours.attend(step, 0, b, q, k, v) - ours.plans[0, b].residual + held
            row, _ = bounds.rows(q, bounds.attended_rows(k, v, choice, C, dtype, dtype), scale, dtype)
            what = ("same", "other")[step - 1]
            report.add(f"reuse output, {what} q k v, {tail}", setting, run.attend(step, 0, b, q, k, v) - expected,
                       bounds.stored(row, expected, dtype) + bounds.U["f32"] * np.abs(expected))
    stats = run.stats()
    ours.key_multiple = 2 if (isa, dtype) == ("avx512bf16", "bf16") else 1
    executed = ours.executed(choice)
    run_density = (2 + (4 if residual == "off" else 6) * executed) / 6
    report.add("densities", setting, [stats.density_executed - executed, stats.density_run - run_density], 1e-12)
    run.close()


def check_choice(report, setting, run, qkv, K, tail):
    """What C chose at an anchor of branch 0 for q, k, v, as a Choice, after its groups, its clusters and what it keeps
    were compared."""
    q, k, v = qkv
    (H, N, D), C, dtype = q.shape, run.group, run.dtype
    scale = 1 / np.sqrt(D)
    order, kept, clusters = run.choice(0, 0, H, N)
    report.add("order is a permutation", setting, np.sort(order) - np.arange(N), 0)
    variance = ref.within_group_variance(q, ref.pddp(q, C), C)
    report.add("within-group variance", setting, ref.within_group_variance(q, order, C) - variance,
               VARIANCE_SLACK * variance)
    _, lse = ref.attend_dense(q, k, v, scale)
    _, lse_bound = bounds.rows(q, bounds.Rows(k, v), scale, dtype)
    _, lse_c = run.attend_dense(q, k, v)
    report.add("log-sum-exp", setting, lse_c - lse, lse_bound)
    mass = ref.group_mass(q, k, lse, order, C, scale)
    mass_bound = bounds.masses(q, k, scale, lse, order, mass, C)
    mass_c = run.mass(0, 0, q, k, lse_c)
    sizes = np.minimum(C, N - C * np.arange(mass.shape[1]))
    report.add("mass", setting, mass_c - mass, mass_bound)
    report.add("mass sums to the group's queries", setting, mass_c.sum(axis=-1) - sizes, mass_bound.sum(axis=-1))
    rounded = bounds.U["bf16"] if run.isa == "avx512bf16" and dtype == "bf16" else 0.0  # of probabilities that meet v
    slack = 2 * mass_bound + rounded * mass
    if tail == "off":
        check_kept(report, setting, kept, mass, slack, K)
        return ref.Choice(order, kept)
    choice = ref.Choice(order, kept, check_clusters(report, setting, k, clusters, ref.cluster_count(K), dtype))
    check_kept_clusters(report, setting, choice, mass, slack, K)
    return choice


def check_walk(report, lib, rng, isa, walk):
    """Random calls, mostly forward: same actions, fallbacks, counts and outputs.  One group and, where there are means,
    one cluster, so no freedom in either.  Returns the calls of each kind."""
    steps, layers, branches, D = int(rng.integers(1, 14)), 2, int(rng.integers(1, 4)), 6
    text = ["ramp", "paper", "every:3", "every:4,3", "list:1,5"][walk % 5]
    if text == "list:1,5" or text == "every:4,3":
        steps += 5
    shared, dense_layers = [None, True, False][walk % 3], walk % 2
    tail = ("means", "off")[walk // 5 % 2]
    density = {"off": 0.4, "means": 0.15}[tail]
    settings = dict(density=density, group=64, branches=branches, dense_layers=dense_layers, tail=tail)
    run = native.Run(lib, "f32", isa, "bf16", shared, text, steps=steps, layers=layers, **settings)
    ours = ref.Run(steps, text, shared=shared, dtype="f32", **settings)
    setting, caches = f"{isa} f32", {}  # (layer, branch) -> how far the residual may be
    step, N = 0, 21
    for _ in range(60):
        if rng.random() < 0.25:
            step = min(step + 1, steps - 1) if rng.random() < 0.75 else int(rng.integers(steps))
        if rng.random() < 0.04:
            N = 55 - N  # 21 or 34
        site = [step, int(rng.integers(layers)), int(rng.integers(branches))]
        q, k, v = problem(rng, 1, N, D, "f32")
        layer_branch = tuple(site[1:])
        plan, calls = ours.plans.get(layer_branch), ours.calls["reuse"]
        expected = ours.attend(*site, q, k, v)
        all_keys = bounds.Rows(k, v)  # so any kept ones, too; the mean of all, alone in its softmax, errs less
        row = bounds.rows(q, all_keys, 1 / np.sqrt(D), "f32")[0][..., None]
        bound = bounds.stored(row[..., 0], expected, "f32")
        if ours.calls["reuse"] > calls:
            bound = bound + caches[layer_branch]
        elif ours.plans.get(layer_branch) is not plan:  # an anchor; both sides round the residual to BF16
            r = np.abs(ours.plans[layer_branch].residual)
            caches[layer_branch] = bounds.cached(r, bound + row, "bf16") + 2 * bounds.U["bf16"] * r
        report.add("walk: outputs", setting, run.attend(*site, q, k, v) - expected, bound)
        stats = run.stats()
        report.add("walk: calls by action", setting,
                   [getattr(stats, name) - ours.calls[name] for name in ours.calls], 0)
        report.add("walk: fallbacks by reason", setting,
                   [getattr(stats, "fallback_" + name) - ours.fallback[name] for name in ours.fallback], 0)
        executed, total = ours.densities()
        report.add("walk: densities", setting, [stats.density_executed - executed, stats.density_run - total], 1e-12)
    run.close()
    return {**ours.calls, **ours.fallback}


def check_schedules(report, lib):
    for S in range(1, 260):
        for text in ["ramp", "fast", "paper", "every:1", "every:7", f"every:4,{S}", f"every:3,{(S + 1) // 2}", "list:0",
                     f"list:{S // 3},{S - 1}" if S > 1 else "list:0"]:
            report.add("schedules", "all", native.schedule(lib, text, S) - ref.schedule(text, S), 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=native.ROOT / "build/release", type=pathlib.Path,
                        help="folder of libmcsa_static.a")
    lib, report = native.load(parser.parse_args().build), Report()
    check_schedules(report, lib)
    met = {}
    for isa in native.isas(lib):
        for dtype in native.DTYPES:
            rng = np.random.default_rng(7)
            for i, shape in enumerate(SHAPES):
                forms = list(native.RESIDUALS)
                for residual, tail in itertools.product((forms[i % 4], forms[(i + 1) % 4]), native.TAILS):
                    check_three_steps(report, lib, rng, isa, dtype, shape, residual, tail)
        rng = np.random.default_rng(11)
        for walk in range(30):
            for kind, count in check_walk(report, lib, rng, isa, walk).items():
                met[kind] = met.get(kind, 0) + count
    agrees = report.print()
    print("calls of the walks: " + ", ".join(f"{count} {kind}" for kind, count in met.items()))
    if min(met.values()) == 0:
        sys.exit("the walks missed a kind of call")
    sys.exit(0 if agrees else 1)


if __name__ == "__main__":
    main()
