#!/usr/bin/env python3
"""Freezes two small problems and what the reference makes of them, from which tests/golden/test_method.c judges C
without Python: tests/golden/method.safetensors with tail "off", means.safetensors with tail "means".

    input.STEP.B.{q,k,v}   BF16 [H, N, D]   steps 0 (anchor) and 1 (other numbers) of branches B = 0, 1, which share
    order                  F32 [H, N]       the groups of branch 0 at the anchor; a ragged last group
    variance               F32 [1]          within the groups
    lse                    F32 [H, N]
    mass, mass.bound       F32 [H, G, N]
    label                  F32 [H, N]       the cluster of each key; with means only
    kept                   BF16 [H, G, N]   0 or 1; with means [H, G, P]
    out.STEP.B             F32 [H, N, D]    the dense output; sparse + residual.  The residual is not rounded here
    residual.B             F32 [H, N, D]
    bf16.out.1.B, bf16.residual.B           the same with means rounded to BF16; with means only
    bound.FORMAT.PASS.B    F32 [H, N]       of an output row before it is rounded to its dtype.  PASS is dense (step 0),
                                            sparse0 or sparse1 (steps 0, 1); FORMAT is f32, or bf16, which has room
                                            for rounded probabilities

Inputs are BF16 numbers, so runs in FP32 and BF16 see the same.  Choices are free of ties, so that every machine must
make the same: no key is between two centres in any round of k-means, whether centres are rounded to FP32 or BF16, one
round less or more would end with other labels, and what is kept is at least 100 bounds of its mass from what is not.
"""
import json
import pathlib
import struct
import sys
from dataclasses import dataclass

import numpy as np

import bounds
import mcsa_ref as ref

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests/golden"
FORMATS = "f32", "bf16"


@dataclass
class Problem:
    name: str
    tail: str
    H: int
    N: int
    D: int
    C: int
    density: float


PROBLEMS = [Problem("method", "off", 2, 61, 21, 13, 0.21), Problem("means", "means", 2, 131, 11, 48, 0.30)]


def inputs(size, seed):
    """(step, branch) -> q, k, v: tokens in clusters; step 1 is near step 0."""
    rng = np.random.default_rng(seed)
    shape = size.H, size.N, size.D
    centres, kind = rng.normal(size=(size.H, 6, size.D)), rng.integers(6, size=size.N)
    qkv = {}
    for branch in range(2):
        q, k = (1.2 * centres[:, kind] + rng.normal(size=shape) for _ in range(2))
        qkv[0, branch] = [ref.to_bf16(x) for x in (q, k, rng.normal(size=shape))]
        qkv[1, branch] = [ref.to_bf16(x + 0.2 * rng.normal(size=x.shape)) for x in qkv[0, branch]]
    return qkv


def safetensors(tensors):
    """The bytes of a file of (array, "F32" or "BF16") by name; BF16 arrays hold BF16 numbers."""
    header, data = {}, b""
    for name, (x, dtype) in tensors.items():
        bits = np.ascontiguousarray(x, np.float32)
        raw = bits.tobytes() if dtype == "F32" else (bits.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        header[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def key_gap(mass, bound, K):
    """By how many bounds the K-th and the next mass of a group differ, the least over all groups."""
    at = np.argsort(-mass, axis=-1)[..., K - 1:K + 1]
    pair, slack = np.take_along_axis(mass, at, -1), np.take_along_axis(bound, at, -1).sum(axis=-1)
    return ((pair[..., 0] - pair[..., 1]) / slack).min()


def cluster_gap(choice, mass, bound):
    """By how many bounds the worths of a kept and of another cluster differ, the least over all such pairs: what is
    kept depends on the order of such pairs alone."""
    least = np.inf
    mass, bound = (ref.cluster_mass(x, choice.label, choice.kept.shape[2]) for x in (mass, bound))
    for h, g in np.ndindex(*choice.kept.shape[:2]):
        sizes, kept = choice.sizes(h), choice.kept[h, g]
        other = ~kept & (sizes > 0)
        if not kept.any() or not other.any():
            return 0.0  # nothing to tell apart
        worth, slack = (x[h, g] / np.maximum(sizes, 1) for x in (mass, bound))
        apart = np.abs(worth[kept][:, None] - worth[other]) / (slack[kept][:, None] + slack[other])
        least = min(least, apart.min())
    return least


def labels_by_round(x, P, dtype):
    """[5, N]: labels of every round of k-means and of one more, or None where rounding leaves a key between centres."""
    rounds, centres = [], ref.start_centres(x, P)
    off = np.zeros(centres.shape)
    for _ in range(5):
        s = ref.closeness(x, centres)
        if (bounds.reachable(s, bounds.closenesses(x, centres, off)).sum(axis=1) > 1).any():
            return None
        rounds.append(s.argmax(axis=1))
        centres, off = bounds.moved_centres(x, rounds[-1], centres, off, dtype)
    return np.array(rounds)


def sure_labels(k, P):
    """label [H, N], or None where they could be others."""
    labels = []
    for x in k:
        f32, bf16 = (labels_by_round(x, P, dtype) for dtype in FORMATS)
        if f32 is None or bf16 is None or (f32[3] != bf16[3]).any():
            return None
        if any((f32[3] == other).all() for other in (f32[2], f32[4], bf16[2], bf16[4])):
            return None
        labels.append(f32[3])
    return np.array(labels)


def choose(size, q, k, order, mass, bound):
    """The choice, and by how many bounds it is from another; None where its clusters are not sure."""
    K = ref.kept_count(size.N, size.density)
    if size.tail == "off":
        return ref.Choice(order, ref.keep(mass, K)), key_gap(mass, bound, K)
    P = ref.cluster_count(K)
    label = sure_labels(k, P)
    if label is None:
        return None, 0.0
    choice = ref.choose_clusters(mass, order, label, P, K)
    return choice, cluster_gap(choice, mass, bound)


def solve(size, qkv):
    """Every tensor of the file, and how far its choice is from another."""
    scale, tensors = 1 / np.sqrt(size.D), {}
    q, k, v = qkv[0, 0]
    order = ref.pddp(q, size.C)
    _, lse = ref.attend_dense(q, k, v, scale)
    mass = ref.group_mass(q, k, lse, order, size.C, scale)
    mass_bound = bounds.masses(q, k, scale, lse, order, mass, size.C)
    choice, apart = choose(size, q, k, order, mass, mass_bound)
    if apart < 100:
        return None, apart
    for (step, branch), arrays in qkv.items():
        for name, x in zip("qkv", arrays):
            tensors[f"input.{step}.{branch}.{name}"] = x, "BF16"
    variance = np.array([ref.within_group_variance(q, order, size.C)])
    for name, x in dict(order=order, variance=variance, lse=lse, mass=mass).items():
        tensors[name] = x, "F32"
    tensors["mass.bound"] = mass_bound, "F32"
    if choice.label is not None:
        tensors["label"] = choice.label, "F32"
    tensors["kept"] = choice.kept, "BF16"
    for branch in range(2):
        out, _ = ref.attend_dense(*qkv[0, branch], scale)
        tensors[f"out.0.{branch}"] = out, "F32"
        for prefix, dtype in {"": None, "bf16.": "bf16"}.items():
            if dtype and choice.label is None:
                continue
            sparse = [ref.attend_tokens(*qkv[step, branch], choice, size.C, scale, dtype) for step in range(2)]
            tensors[f"{prefix}residual.{branch}"] = out - sparse[0], "F32"
            tensors[f"{prefix}out.1.{branch}"] = sparse[1] + out - sparse[0], "F32"
        for form in FORMATS:
            for name, step in (("dense", 0), ("sparse0", 0), ("sparse1", 1)):
                q, k, v = qkv[step, branch]
                rows = bounds.Rows(k, v)
                if name != "dense":
                    rows = bounds.attended_rows(k, v, choice, size.C, form, None if form == "f32" else form)
                tensors[f"bound.{form}.{name}.{branch}"] = bounds.rows(q, rows, scale, form)[0], "F32"
    return tensors, apart


def main():
    for size in PROBLEMS:
        for seed in range(1000):
            tensors, apart = solve(size, inputs(size, seed))
            if apart >= 100:
                break
        else:
            sys.exit(f"{size.name}: no problem without near-ties in 1000 seeds")
        path = FOLDER / f"{size.name}.safetensors"
        path.write_bytes(safetensors(tensors))
        print(f"{path.name}: seed {seed}, {path.stat().st_size} bytes, "
              f"what is kept {apart:.0f} bounds from what is not")


if __name__ == "__main__":
    main()
