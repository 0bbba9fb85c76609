#!/usr/bin/env python3
"""The folder captured/ of tests/golden: attention calls as PyTorch writes them, and what `mcsa analyze` is to find there.

    pip install -r requirements.txt
    python make_captured.py

Queries and keys of neighbouring tokens are alike and drift from step to step, as in a video model; attention is far from
uniform.  What is expected is restated here in float64 from the definitions in src/analysis and METHOD.md, with the groups
of reference/mcsa_ref.py.  The script refuses data on which a rounding of float32 could change a choice.
"""

import json
import pathlib
import sys

import numpy as np
import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parents[1] / "examples"), str(HERE.parents[1] / "reference")]
import capture_torch
import mcsa_ref

H, N, D = 2, 150, 16  # ragged: 128 + 22 queries, 64 + 64 + 22 keys
CALLS = [(0, 1), (3, 1), (4, 1), (3, 2)]  # (step, layer); the second layer has one step only
DENSITIES = [0.2, 0.5]
BLOCK, GROUP = 64, 128
GAP = 1e-5  # between a kept score and the next, relative; float32 scores and sums were off by 2e-6 at most


def make_calls(generator):
    """Smooth tracks of tokens plus noise; step t is a mixture that turns with t."""
    def track():
        walk = torch.randn(H, N, D, generator=generator).cumsum(1)
        return walk / walk.std() + 0.6 * torch.randn(H, N, D, generator=generator)

    bases = {layer: [(track(), track()) for _ in range(3)] for _, layer in CALLS}
    calls = {}
    for step, layer in CALLS:
        angle = 0.25 * step
        q, k, v = (np.cos(angle) * a + np.sin(angle) * b for a, b in bases[layer])
        calls[step, layer] = [x.float() for x in (1.6 * q, 1.6 * k, v)]
    return calls


def top(score, count):
    """Indices of the `count` largest; refuses near ties."""
    order = np.argsort(-score, kind="stable")
    if count < len(score):
        last, following = score[order[count - 1]], score[order[count]]
        assert last - following > GAP * abs(last), "a near tie: another seed, please"
    return order[:count]


def budget(row, units, density):
    """What src/rivals/ranking.h gives row `row` of blocks."""
    count = np.floor((row + 1) * density * units + 0.5) - np.floor(row * density * units + 0.5)
    return int(min(max(count, 1), units))


def count_keys(density):
    return min(max(int(np.floor(density * N + 0.5)), 1), N)


class Head:
    """One head of a call in float64."""

    def __init__(self, q, k, v):
        self.q, self.k, self.v = (x.double().numpy() for x in (q, k, v))
        score = self.q @ self.k.T / np.sqrt(D)
        self.a = np.exp(score - score.max(1, keepdims=True))
        self.a /= self.a.sum(1, keepdims=True)
        self.out = self.a @ self.v

    def sparse(self, mask):
        """Output over the keys of mask [N, N], and the attention kept by each query."""
        kept = self.a * mask
        return kept @ self.v / kept.sum(1, keepdims=True), kept.sum(1)


def groups(head, kind, size):
    if kind == "consecutive":
        return [np.arange(i, min(i + size, N)) for i in range(0, N, size)]
    order = mcsa_ref.pddp(head.q[None].astype(np.float32), size)[0]
    return [np.asarray(order[i:i + size]) for i in range(0, N, size)]


def blocks_mask(head, parts, density, pooled):
    blocks = [np.arange(j, min(j + BLOCK, N)) for j in range(0, N, BLOCK)]
    mask = np.zeros((N, N))
    for g, rows in enumerate(parts):
        if pooled:
            score = np.array([head.q[rows].mean(0) @ head.k[b].mean(0) for b in blocks])
        else:
            score = np.array([head.a[np.ix_(rows, b)].sum() for b in blocks])
        for b in top(score, budget(g, len(blocks), density)):
            mask[np.ix_(rows, blocks[b])] = 1
    return mask


def tokens_mask(head, parts, density):
    mask = np.zeros((N, N))
    for rows in parts:
        mask[np.ix_(rows, top(head.a[rows].sum(0), count_keys(density)))] = 1
    return mask


SELECTIONS = {
    "pooled-blocks": lambda h, s: blocks_mask(h, groups(h, "consecutive", GROUP), s, True),
    "exact-blocks": lambda h, s: blocks_mask(h, groups(h, "consecutive", GROUP), s, False),
    "exact-tokens": lambda h, s: tokens_mask(h, groups(h, "consecutive", GROUP), s),
    "pddp-blocks": lambda h, s: blocks_mask(h, groups(h, "pddp", GROUP), s, False),
    "pddp-tokens": lambda h, s: tokens_mask(h, groups(h, "pddp", GROUP), s),
    "pddp64-tokens": lambda h, s: tokens_mask(h, groups(h, "pddp", 64), s),
    "pddp256-tokens": lambda h, s: tokens_mask(h, groups(h, "pddp", 256), s),
    "per-query": lambda h, s: np.stack([np.isin(np.arange(N), top(row, count_keys(s))) for row in h.a]).astype(float),
}
REUSED = {"fresh-pooled-blocks": "pooled-blocks", "old-exact-blocks": "exact-blocks", "old-pddp-tokens": "pddp-tokens"}


def rel_l2(heads, outs):
    error = sum(np.sum((o - h.out) ** 2) for h, o in zip(heads, outs))
    return float(np.sqrt(error / sum(np.sum(h.out ** 2) for h in heads)))


def judge(heads, masks):
    """recall, rel_l2, psnr_db of one call."""
    outs, kept = zip(*(h.sparse(m) for h, m in zip(heads, masks)))
    dense = np.stack([h.out for h in heads])
    mse = np.mean((np.stack(outs) - dense) ** 2)
    return np.mean(kept), rel_l2(heads, outs), 10 * np.log10((dense.max() - dense.min()) ** 2 / mse)


def oracles(calls):
    points = []
    for name, choose in SELECTIONS.items():
        for s in DENSITIES:
            values = np.mean([judge(heads, [choose(h, s) for h in heads]) for heads in calls.values()], 0)
            points.append(dict(selection=name, density=s, recall=values[0], rel_l2=values[1], psnr_db=values[2]))
    return points


def splits(points):
    found = {(p["selection"], p["density"]): p for p in points}

    def parts(s, loss):
        pooled, blocks, tokens, own = (loss(found[name, s]) for name in
                                       ("pooled-blocks", "exact-blocks", "exact-tokens", "per-query"))
        return dict(selection=pooled - blocks, key_binding=blocks - tokens, query_binding=tokens - own,
                    discarded_tail=own)

    return [dict(density=s, mass=parts(s, lambda p: 1 - p["recall"]), rel_l2=parts(s, lambda p: p["rel_l2"]))
            for s in DENSITIES]


def waste(calls):
    rows = []
    heads = [h for call in calls.values() for h in call]
    for s in DENSITIES:
        masks = {name: [choose(h, s) for h in heads] for name, choose in SELECTIONS.items()}

        def unwanted(name, wanted):
            kept = sum(m.sum() for m in masks[name])
            return float(1 - sum((m * w).sum() for m, w in zip(masks[name], masks[wanted])) / kept)

        # Keys of blocks are counted once for each group, not for each query.
        firsts = [rows_[0] for rows_ in groups(heads[0], "consecutive", GROUP)]
        kept = sum(m[firsts].sum() for m in masks["exact-blocks"])
        both = sum((m[firsts] * w[firsts]).sum() for m, w in zip(masks["exact-blocks"], masks["exact-tokens"]))
        rows.append(dict(density=s, keys_in_blocks=float(1 - both / kept),
                         pairs={name: unwanted(name, "per-query")
                                for name in ("exact-blocks", "exact-tokens", "pddp-tokens")}))
    return rows


def reuse(series):
    """series: step -> heads.  Residuals are stored in bfloat16."""
    points, drift = [], []
    steps = sorted(series)
    for i, anchor in enumerate(steps):
        for step in steps[i + 1:]:
            then, now = series[anchor], series[step]
            drift.append(dict(anchor=anchor, step=step, rel_l2=rel_l2(now, [h.out for h in then])))
            for s in DENSITIES:
                for name, selection in REUSED.items():
                    old = [SELECTIONS[selection](h, s) for h in then]
                    residual = [torch.tensor(h.out - h.sparse(m)[0]).float().bfloat16().double().numpy()
                                for h, m in zip(then, old)]
                    used = [SELECTIONS[selection](h, s) for h in now] if name.startswith("fresh") else old
                    outs, kept = zip(*(h.sparse(m) for h, m in zip(now, used)))
                    points.append(dict(anchor=anchor, step=step, density=s, selection=name, recall=np.mean(kept),
                                       rel_l2=rel_l2(now, outs),
                                       rel_l2_with_residual=rel_l2(now, [o + r for o, r in zip(outs, residual)])))
    return points, drift


def main():
    folder = HERE / "captured"
    calls = make_calls(torch.Generator().manual_seed(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
    heads = {at: [Head(q[h], k[h], v[h]) for h in range(H)] for at, (q, k, v) in calls.items()}
    points = oracles(heads)
    reused, drift = reuse({step: heads[step, 1] for step, layer in CALLS if layer == 1})
    for (step, layer), (q, k, v) in calls.items():
        capture_torch.save(folder, step, layer, 0, q, k, v)
    expected = dict(oracles=points, split=splits(points), waste=waste(heads), reuse=reused, output_drift=drift)
    (folder / "expected.json").write_text(json.dumps(expected, indent=1, default=float) + "\n")
    for p in points:
        print(f"{p['selection']:16s} {p['density']:.2f}  recall {p['recall']:.4f}  rel L2 {p['rel_l2']:.4f}")


if __name__ == "__main__":
    main()
