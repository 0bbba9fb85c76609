"""How far FP32 arithmetic may be from the reference: docs/NUMERICS.md as arrays.

u is 2^-p of a format with p significant bits.  A bound holds for any order of summation, so it is the same for every
instruction set; BF16 tensors get the rounding of probabilities whether or not the machine does it.
"""
from dataclasses import dataclass

import numpy as np

from mcsa_ref import groups, means, rounded, with_means

U = {"f32": 2.0 ** -24, "f16": 2.0 ** -11, "bf16": 2.0 ** -8}
U_EXP2 = 2.0 ** -22   # relative, of one exp2
KEY_BLOCK = 192       # keys between two rescalings of the running sums


def largest_score(q, k, scale):
    """[H, N]: scale max_j sum_d |q_d k_jd|, what a score's rounding is proportional to."""
    return scale * (np.abs(q) @ np.abs(k).swapaxes(-1, -2)).max(axis=-1)


@dataclass
class Rows:
    """What queries attend to, over all M rows of a head: keys, then means.  allowed [H, N, M] says which query meets
    which row; bias [H, M] is added to scores; k and v are known to off_k and off_v [H, M, D]."""
    k: np.ndarray
    v: np.ndarray
    allowed: np.ndarray = True
    bias: np.ndarray = 0.0
    off_k: np.ndarray = 0.0
    off_v: np.ndarray = 0.0


def mean_error(x, label, P):
    """[P, D]: how far FP32 means may be from exact ones before they are rounded to a dtype.  A sum of n numbers moves
    by n u of the sum of their sizes, the division by u of the mean."""
    sizes = np.array([np.abs(x[label == p]).mean(axis=0) if (label == p).any() else 0 * x[0] for p in range(P)])
    return (np.bincount(label, minlength=P)[:, None] + 1) * U["f32"] * sizes


def rounding_reach(x, error, dtype, to):
    """How far from x rounded to `to` a number may land that is within `error` of x and then rounded to dtype: rounding
    is monotone, so no farther than the ends of the interval.  With to = dtype mostly 0, and one unit where a boundary
    lies within."""
    ends = [np.abs(rounded(x + e, dtype) - rounded(x, to)) for e in (-error, error)]
    return np.maximum(*ends)


def mean_bounds(x, choice, dtype, to):
    """[H, N + P, D]: how far means in dtype may be from the rows of with_means(x, choice, to); 0 for keys."""
    P = choice.kept.shape[2]
    exact = with_means(x, choice)[:, x.shape[1]:]
    error = np.stack([mean_error(rows, label, P) for rows, label in zip(x, choice.label)])
    return np.concatenate([np.zeros(x.shape), rounding_reach(exact, error, dtype, to)], axis=1)


def attended_rows(k, v, choice, C, dtype, to):
    """The Rows of sparse attention by this choice in dtype, whose means the reference rounds to `to`."""
    H, N, _ = k.shape
    parts = 0 if choice.label is None else choice.kept.shape[2]
    allowed = np.zeros((H, N, N + parts), bool)
    for h, row in enumerate(choice.order):
        for g, members in enumerate(groups(row, C)):
            T, R = choice.attended(h, g)
            allowed[np.ix_([h], members, np.concatenate([T, N + R]))] = True
    if not parts:
        return Rows(k, v, allowed)
    sizes = np.stack([choice.sizes(h) for h in range(H)])
    bias = np.concatenate([np.zeros((H, N)), np.log(np.maximum(sizes, 1))], axis=1)
    return Rows(with_means(k, choice, to), with_means(v, choice, to), allowed, bias,
                mean_bounds(k, choice, dtype, to), mean_bounds(v, choice, dtype, to))


def rows(q, to, scale, dtype):
    """Bounds [H, N] of an output row before it is rounded to the tensor's dtype, and of its log-sum-exp.

    A weight is off by a factor of at most e^ds: D u for the dot product, 8 u for the scale, the bias, the maximum and
    their difference, what the key itself is off, and one exp2 for the weight and one for each rescaling.  Normalised
    weights then move by at most e^(2 ds) - 1 in sum (2 at the most), and the two sums over n rows add n u each.  A
    value that is off counts by its weight.
    """
    u, D = U["f32"], q.shape[2]
    allowed = np.broadcast_to(to.allowed, (*q.shape[:2], to.k.shape[1]))
    bias = np.broadcast_to(to.bias, to.k.shape[:2])[:, None, :]
    sizes = scale * np.abs(q) @ (np.abs(to.k) + to.off_k).swapaxes(-1, -2)
    strayed = scale * np.abs(q) @ np.broadcast_to(to.off_k, to.k.shape).swapaxes(-1, -2)
    most = np.where(allowed, sizes + bias, 0).max(axis=-1)
    n = allowed.sum(axis=-1)
    most_v = np.where(allowed, np.abs(to.v).max(axis=-1)[:, None, :], 0).max(axis=-1)
    blocks = n // KEY_BLOCK + (3 if np.isscalar(to.bias) else 4)  # keys and means end in a block each
    ds = np.where(allowed, sizes * D * u + (sizes + bias) * 8 * u + strayed, 0).max(axis=-1) + blocks * (U_EXP2 + 2 * u)
    moved = np.expm1(2 * ds) + 2 * (n + 4) * u + (U["bf16"] if dtype == "bf16" else 0.0) * (1 + 2 * ds)
    out = np.minimum(moved, 2) * most_v
    if not np.isscalar(to.off_v):
        s = np.where(allowed, scale * q @ to.k.swapaxes(-1, -2) + bias, -np.inf)
        weight = np.exp(s - s.max(axis=-1, keepdims=True))
        weight /= weight.sum(axis=-1, keepdims=True)
        out = out + (1 + moved) * (weight @ to.off_v).max(axis=-1)
    return out, ds + (n + 4) * u + 4 * u * (most + np.log(n) + 1)


def stored(bound, value, dtype):
    """The bound [H, N, D] after rounding to the tensor's dtype; 2^-25 is half the smallest FP16 number."""
    return bound[..., None] + U[dtype] * (np.abs(value) + bound[..., None]) + 2.0 ** -25


def masses(q, k, scale, lse, order, mass, C):
    """[H, G, N]: each of a mass's terms A_ij = exp(S_ij - lse_i) is off by the score, the log-sum-exp, their
    difference and one exp2; summing C of them adds C u."""
    u = U["f32"]
    _, lse_bound = rows(q, Rows(k, k), scale, "f32")
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


def closenesses(x, centres, off):
    """[N, P]: of closeness(x, centres) of x [N, D] to centres [P, D] known to off [P, D].  Both sums over D round D
    times, their difference once; a centre that is d away moves its closeness by (x - c) d - d^2 / 2."""
    u, D = U["f32"], x.shape[1]
    sizes = np.abs(x) @ np.abs(centres).T + (centres ** 2).sum(axis=1) / 2
    away = (np.abs(x[:, None] - centres) * off).sum(axis=-1) + (off ** 2).sum(axis=1) / 2
    return (D + 3) * u * sizes + away


def reachable(closeness, slack):
    """[N, P] of bool: the centres that may come out as the nearest."""
    return closeness + slack >= (closeness - slack).max(axis=1, keepdims=True)


def moved_centres(x, label, centres, off, dtype):
    """The next centres [P, D] of k-means, and how far they may be.  That of an empty cluster stays."""
    sizes = np.bincount(label, minlength=len(centres))[:, None]
    exact, error = means(x, label, centres), mean_error(x, label, len(centres))
    return (np.where(sizes > 0, rounded(exact, dtype), centres),
            np.where(sizes > 0, rounding_reach(exact, error, dtype, dtype), off))
