#!/usr/bin/env python3
"""Does libmcsa agree with the reference?

    python reference/check.py [--build build/release]

Prints the worst percent of its bound of every quantity, by instruction set and dtype; exits 1 when one is above 100.

Three steps, two branches that share: an anchor, a reuse of the same q, k, v, a reuse of others.  Grouping has freedom
(where power iteration stops, queries that project alike), so groups are compared by their variance, and everything
after them is computed by the reference for the groups that C made.  Selections are discontinuous: they are compared as
sets, and a key that one side alone keeps must have a mass within the bound of the K-th largest.  Whether a REUSE
finds its anchor, what is counted, and schedules have no freedom: they must be equal over random walks.
"""
import argparse
import pathlib
import sys

import numpy as np

import bounds
import mcsa_ref as ref
import native

# H, N, D, C, density: ragged last groups, an odd D, a group of one query, a last group of one, N below C
SHAPES = [(2, 301, 40, 32, 0.10), (3, 517, 128, 128, 0.15), (1, 97, 64, 64, 0.25), (2, 65, 17, 16, 0.05),
          (1, 50, 12, 128, 0.30), (2, 37, 5, 1, 0.20), (1, 211, 256, 48, 0.10)]

# Where power iteration stops may differ by the 0.8 degrees of its cosine 0.9999, which moves projections by at most
# 1.4 % of a row's length: only rows that near to a median change sides.
VARIANCE_SLACK = 0.02


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
    return [native.quantize(x, dtype) for x in (q, k, rng.normal(size=(H, N, D)))]


def check_kept(report, setting, kept, mass, bound, K):
    """Every group keeps K; keys within the bound of the K-th largest are free."""
    report.add("kept keys per group", setting, kept.sum(axis=-1) - K, 0)
    ours = ref.keep(mass, K)
    kth = np.where(ours, mass, np.inf).min(axis=-1, keepdims=True)
    slack = bound + np.where(mass == kth, bound, 0).max(axis=-1, keepdims=True)
    report.add("kept keys, distance to K-th", setting, np.where(kept != ours, mass - kth, 0), slack)


def check_three_steps(report, lib, rng, isa, dtype, shape, residual):
    H, N, D, C, density = shape
    setting, scale = f"{isa} {dtype}", 1 / np.sqrt(D)
    K = ref.kept_count(N, density)
    run = native.Run(lib, dtype, isa, residual, schedule="list:0", steps=3, layers=1, branches=2, group=C,
                     density=density)
    anchors = [problem(rng, H, N, D, dtype) for _ in range(2)]
    others = [[native.quantize(x + 0.2 * rng.normal(size=x.shape), dtype) for x in qkv] for qkv in anchors]
    first = [run.attend(0, 0, b, *anchors[b]) for b in range(2)]
    order, kept = run.choice(0, 0, H, N)

    q, k, v = anchors[0]
    report.add("order is a permutation", setting, np.sort(order) - np.arange(N), 0)
    variance = ref.within_group_variance(q, ref.pddp(q, C), C)
    report.add("within-group variance", setting, ref.within_group_variance(q, order, C) - variance,
               VARIANCE_SLACK * variance)
    _, lse = ref.attend_dense(q, k, v, scale)
    _, lse_bound = bounds.rows(q, k, v, scale, dtype)
    _, lse_c = run.attend_dense(q, k, v)
    report.add("log-sum-exp", setting, lse_c - lse, lse_bound)
    mass = ref.group_mass(q, k, lse, order, C, scale)
    mass_bound = bounds.masses(q, k, scale, lse, order, mass, C)
    mass_c = run.mass(0, 0, q, k, lse_c)
    sizes = np.minimum(C, N - C * np.arange(mass.shape[1]))
    report.add("mass", setting, mass_c - mass, mass_bound)
    report.add("mass sums to the group's queries", setting, mass_c.sum(axis=-1) - sizes, mass_bound.sum(axis=-1))
    rounded = bounds.U["bf16"] if (isa, dtype) == ("avx512bf16", "bf16") else 0.0  # of probabilities that meet v
    check_kept(report, setting, kept, mass, 2 * mass_bound + rounded * mass, K)

    ours = ref.Run(3, "list:0", density, C, branches=2, residual=residual,
                   choose=lambda *_: ref.Choice(order, kept))
    allowed = bounds.keys_by_query(order, kept, C)
    for b in range(2):
        q, k, v = anchors[b]
        o = ours.attend(0, 0, b, q, k, v)
        o_bound = bounds.stored(bounds.rows(q, k, v, scale, dtype)[0], o, dtype)
        report.add("anchor output", setting, first[b] - o, o_bound)
        missed = o - ref.attend_tokens(q, k, v, order, kept, C, scale)
        known = o_bound + bounds.rows(q, k, v, scale, dtype, allowed)[0][..., None] + bounds.U["f32"] * np.abs(missed)
        r_bound = bounds.cached(missed, known, residual)
        held = run.residual(0, b, q.shape)
        report.add(f"residual {residual}", setting, held - (missed if residual != "off" else 0), r_bound)
        for step, (q, k, v) in ((1, anchors[b]), (2, others[b])):
            # with the residual that C holds: its form would hide more than the arithmetic of the step may err
            expected = ours.attend(step, 0, b, q, k, v) - ours.plans[0, b].residual + held
            row = bounds.rows(q, k, v, scale, dtype, allowed)[0]
            report.add(("reuse output, same q k v", "reuse output, other q k v")[step - 1], setting,
                       run.attend(step, 0, b, q, k, v) - expected,
                       bounds.stored(row, expected, dtype) + bounds.U["f32"] * np.abs(expected))
    stats = run.stats()
    ours.key_multiple = 2 if (isa, dtype) == ("avx512bf16", "bf16") else 1
    executed = ours.executed(ours.plans[0, 0].choice)
    run_density = (2 + (4 if residual == "off" else 6) * executed) / 6
    report.add("densities", setting, [stats.density_executed - executed, stats.density_run - run_density], 1e-12)
    run.close()


def check_walk(report, lib, rng, isa, walk):
    """Random calls, mostly forward: same actions, fallbacks, counts and outputs.  One group, so no freedom in it.
    Returns the calls of each kind."""
    steps, layers, branches, D = int(rng.integers(1, 14)), 2, int(rng.integers(1, 4)), 6
    text = ["ramp", "paper", "every:3", "every:4,3", "list:1,5"][walk % 5]
    if text == "list:1,5" or text == "every:4,3":
        steps += 5
    shared, dense_layers = [None, True, False][walk % 3], walk % 2
    settings = dict(density=0.4, group=64, branches=branches, dense_layers=dense_layers)
    run = native.Run(lib, "f32", isa, "bf16", shared, text, steps=steps, layers=layers, **settings)
    ours = ref.Run(steps, text, shared=shared, **settings)
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
        row = bounds.rows(q, k, v, 1 / np.sqrt(D), "f32")[0][..., None]  # over all keys, so over any kept ones too
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
        for text in ["ramp", "paper", "every:1", "every:7", f"every:4,{S}", f"every:3,{(S + 1) // 2}", "list:0",
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
                for residual in (list(native.RESIDUALS)[i % 4], list(native.RESIDUALS)[(i + 1) % 4]):
                    check_three_steps(report, lib, rng, isa, dtype, shape, residual)
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
