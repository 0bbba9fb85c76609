"""How far FP32 arithmetic may be from the reference: docs/NUMERICS.md as arrays.

u is 2^-p of a format with p significant bits.  A bound holds for any order of summation, so it is the same for every
instruction set; BF16 tensors get the rounding of probabilities whether or not the machine does it.
"""
import numpy as np

from mcsa_ref import groups

U = {"f32": 2.0 ** -24, "f16": 2.0 ** -11, "bf16": 2.0 ** -8}
U_EXP2 = 2.0 ** -22   # relative, of one exp2
KEY_BLOCK = 192       # keys between two rescalings of the running sums


def keys_by_query(order, kept, C):
    """[H, N, N] of bool: the keys that each query attends to."""
    allowed = np.empty((*order.shape, kept.shape[2]), bool)
    for h, row in enumerate(order):
        for g, members in enumerate(groups(row, C)):
            allowed[h, members] = kept[h, g]
    return allowed


def largest_score(q, k, scale, allowed=None):
    """[H, N]: scale max_j sum_d |q_d k_jd|, what a score's rounding is proportional to."""
    sizes = scale * np.abs(q) @ np.abs(k).swapaxes(-1, -2)
    return (sizes if allowed is None else np.where(allowed, sizes, 0)).max(axis=-1)


def rows(q, k, v, scale, dtype, allowed=None):
    """Bounds [H, N] of an output row before it is rounded to the tensor's dtype, and of its log-sum-exp.

    A weight is off by a factor of at most e^ds: D u for the dot product, 8 u for the scale, the maximum and their
    difference, and one exp2 for the weight and one for each rescaling.  Normalised weights then move by at most
    e^(2 ds) - 1 in sum (2 at the most), and the two sums over n keys add n u each.
    """
    u, D = U["f32"], q.shape[2]
    most = largest_score(q, k, scale, allowed)
    n = np.full(most.shape, k.shape[1]) if allowed is None else allowed.sum(axis=-1)
    sizes = np.abs(v).max(axis=-1)[:, None, :]  # [H, 1, N]
    most_v = (sizes if allowed is None else np.where(allowed, sizes, 0)).max(axis=-1)
    ds = most * (D + 8) * u + (n // KEY_BLOCK + 3) * (U_EXP2 + 2 * u)
    rounded = U["bf16"] if dtype == "bf16" else 0.0
    moved = np.expm1(2 * ds) + 2 * (n + 4) * u + rounded * (1 + 2 * ds)
    return np.minimum(moved, 2) * most_v, ds + (n + 4) * u + 4 * u * (most + np.log(n) + 1)


def stored(bound, value, dtype):
    """The bound [H, N, D] after rounding to the tensor's dtype; 2^-25 is half the smallest FP16 number."""
    return bound[..., None] + U[dtype] * (np.abs(value) + bound[..., None]) + 2.0 ** -25


def masses(q, k, scale, lse, order, mass, C):
    """[H, G, N]: each of a mass's terms A_ij = exp(S_ij - lse_i) is off by the score, the log-sum-exp, their
    difference and one exp2; summing C of them adds C u."""
    u = U["f32"]
    _, lse_bound = rows(q, k, k, scale, "f32")
    off = np.expm1(2 * lse_bound + U_EXP2 + 4 * u * (largest_score(q, k, scale) + np.abs(lse)) + C * u)
    heads = [[off[h][g].max() for g in groups(row, C)] for h, row in enumerate(order)]
    return mass * np.array(heads)[..., None] + 2.0 ** -126


def cached(r, bound, form):
    """The bound [H, N, D] of a residual r known to `bound` [H, N, D] after it was cached in `form`."""
    u = U["f32"]
    if form == "bf16":
        return bound + (U["bf16"] + u) * (np.abs(r) + bound)
    if form == "off":
        return np.zeros_like(r)
    top = (np.abs(r) + bound).max(axis=-1, keepdims=True)
    return bound + top * (0.5 / {"int8": 127, "int4": 7}[form] + 4 * u)
