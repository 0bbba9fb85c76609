#!/usr/bin/env python3
"""Freezes one small problem and what the reference makes of it into tests/golden/method.safetensors, from which
tests/golden/test_method.c judges C without Python.

    input.STEP.B.{q,k,v}   BF16 [H, N, D]   steps 0 (anchor) and 1 (other numbers) of branches B = 0, 1, which share
    order                  F32 [H, N]       the groups of branch 0 at the anchor; a ragged last group
    variance               F32 [1]          within the groups
    lse                    F32 [H, N]
    mass, mass.bound       F32 [H, G, N]
    kept                   BF16 [H, G, N]   0 or 1
    out.STEP.B             F32 [H, N, D]    the dense output; sparse + residual.  The residual is not rounded here
    residual.B             F32 [H, N, D]
    bound.FORMAT.PASS.B    F32 [H, N]       of an output row before it is rounded to its dtype.  PASS is dense (step 0),
                                            sparse0 or sparse1 (steps 0, 1); FORMAT is f32, or bf16, which has room
                                            for rounded probabilities

Inputs are BF16 numbers, so runs in FP32 and BF16 see the same.  Selections are free of ties: the masses on either side
of the K-th place are at least 100 bounds apart, so that every machine must keep the same keys.
"""
import json
import pathlib
import struct
import sys

import numpy as np

import bounds
import mcsa_ref as ref

PATH = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/method.safetensors"
H, N, D, C, DENSITY = 2, 61, 21, 13, 0.21


def problem(seed):
    """(step, branch) -> q, k, v: tokens in clusters; step 1 is near step 0."""
    rng = np.random.default_rng(seed)
    centres, kind = rng.normal(size=(H, 6, D)), rng.integers(6, size=N)
    qkv = {}
    for branch in range(2):
        q, k = (1.2 * centres[:, kind] + rng.normal(size=(H, N, D)) for _ in range(2))
        qkv[0, branch] = [ref.to_bf16(x) for x in (q, k, rng.normal(size=(H, N, D)))]
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


def gap(mass, bound, K):
    """By how many bounds the K-th and the next mass of a group differ, the least over all groups."""
    at = np.argsort(-mass, axis=-1)[..., K - 1:K + 1]
    pair, slack = np.take_along_axis(mass, at, -1), np.take_along_axis(bound, at, -1).sum(axis=-1)
    return ((pair[..., 0] - pair[..., 1]) / slack).min()


def solve(qkv):
    """Every tensor of the file, and how far its selections are from a tie."""
    scale, K, tensors = 1 / np.sqrt(D), ref.kept_count(N, DENSITY), {}
    for (step, branch), arrays in qkv.items():
        for name, x in zip("qkv", arrays):
            tensors[f"input.{step}.{branch}.{name}"] = x, "BF16"
    q, k, v = qkv[0, 0]
    order = ref.pddp(q, C)
    _, lse = ref.attend_dense(q, k, v, scale)
    mass = ref.group_mass(q, k, lse, order, C, scale)
    mass_bound = bounds.masses(q, k, scale, lse, order, mass, C)
    kept = ref.keep(mass, K)
    variance = np.array([ref.within_group_variance(q, order, C)])
    for name, x in dict(order=order, variance=variance, lse=lse, mass=mass).items():
        tensors[name] = x, "F32"
    tensors["mass.bound"] = mass_bound, "F32"
    tensors["kept"] = kept, "BF16"
    allowed = bounds.keys_by_query(order, kept, C)
    for branch in range(2):
        out, _ = ref.attend_dense(*qkv[0, branch], scale)
        sparse = [ref.attend_tokens(*qkv[step, branch], order, kept, C, scale) for step in range(2)]
        tensors[f"out.0.{branch}"] = out, "F32"
        tensors[f"residual.{branch}"] = out - sparse[0], "F32"
        tensors[f"out.1.{branch}"] = sparse[1] + out - sparse[0], "F32"
        for form in ("f32", "bf16"):
            for name, step, keys in (("dense", 0, None), ("sparse0", 0, allowed), ("sparse1", 1, allowed)):
                row, _ = bounds.rows(*qkv[step, branch], scale, form, keys)
                tensors[f"bound.{form}.{name}.{branch}"] = row, "F32"
    return tensors, gap(mass, mass_bound, K)


def main():
    for seed in range(1000):
        tensors, apart = solve(problem(seed))
        if apart >= 100:
            break
    else:
        sys.exit("no problem without near-ties in 1000 seeds")
    PATH.write_bytes(safetensors(tensors))
    print(f"{PATH.name}: seed {seed}, {PATH.stat().st_size} bytes, masses at the K-th place {apart:.0f} bounds apart")


if __name__ == "__main__":
    main()
