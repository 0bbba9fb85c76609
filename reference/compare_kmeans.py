#!/usr/bin/env python3
"""Does our k-means agree with float64, and with Flash-KMeans where there is a GPU?

    pip install numpy                              everywhere
    pip install torch flash-kmeans                 to compare with Flash-KMeans too
    python reference/compare_kmeans.py             against build/release; --build DIR for another, --library FILE for one
                                                   that was linked elsewhere

Every implementation starts from the same rows.  After one iteration labels are judged: a row may have any centre whose
distance is within the rounding of FP32 sums of the nearest one's.  From then on one near tie that falls the other way
moves centres and with them more rows, so after more iterations the labels and the sum of squared distances are compared.
Exits 1 when our labels are beyond the bound, or when our sum ends more than 1 % above another's.

Flash-KMeans keeps centres in the dtype of the rows, as ours do where rows meet them, so that in BF16 both take the same
products.  It multiplies FP32 as TF32, rounds |x|^2 to the dtype of the rows before distances are clamped at zero, and
adds in the order in which atomic additions come; its own labels are reported, not judged.
"""
import argparse
import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np

import native
from mcsa_ref import rounded

ITERATIONS = (1, 2, 10, 50)
U = 2.0**-24  # of FP32


def link(build):
    """tests/reference/kmeans.c with the static libraries of the build folder."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "libkmeans.so")
        subprocess.run([os.environ.get("CC", "cc"), "-std=c11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden",
                        f"-I{native.ROOT}/include", f"-I{native.ROOT}/src",
                        f"{native.ROOT}/tests/reference/kmeans.c", f"{build}/libmcsa_rivals.a",
                        f"{build}/libmcsa_static.a", "-fopenmp", "-lm", "-o", str(path)], check=True)
        return ctypes.CDLL(str(path))


def problem(args):
    """Rows [H, N, D] around centres, exact in BF16, and the rows [H, P, D] that the clusters start from."""
    rng = np.random.default_rng(args.seed)
    H, N, D = args.heads, args.tokens, args.dim
    centres = rng.normal(size=(H, args.centres, D))
    kind = rng.integers(args.centres, size=N)
    x = rounded(centres[:, kind] + args.spread * rng.normal(size=(H, N, D)), "bf16")
    return x, np.ascontiguousarray(x[:, rng.integers(N, size=args.clusters)])


def distances(x, centres):
    """[N, P] squared, of one head, in float64."""
    return (x**2).sum(1)[:, None] + (centres**2).sum(1)[None] - 2 * x @ centres.T


def scatter(x, centres, labels):
    return sum(((x[h] - centres[h][labels[h]]) ** 2).sum() for h in range(len(x)))


def judge(x, start, labels):
    """Labels after one iteration: how many are not of the nearest centre, and the worst percent of the bound."""
    other, worst = 0, 0.0
    for h in range(len(x)):
        d = distances(x[h], start[h])
        own = d[np.arange(len(d)), labels[h]]
        size = (2 * np.abs(x[h]) @ np.abs(start[h]).T + (start[h] ** 2).sum(1)[None]).max(1)  # of both sums
        excess = own - d.min(1)
        other += int((labels[h] != d.argmin(1)).sum())
        worst = max(worst, float((100 * excess / (2 * (x.shape[2] + 2) * U * size)).max()))
    return other, worst


class Numpy:
    """Lloyd in float64."""

    name = "float64"

    def run(self, x, start, iterations, dtype):
        centres = start.copy()
        for _ in range(iterations):
            labels = np.stack([distances(x[h], centres[h]).argmin(1) for h in range(len(x))])
            for h in range(len(x)):
                for c in np.unique(labels[h]):
                    centres[h, c] = x[h][labels[h] == c].mean(0)
        return labels, centres


class Ours:
    name = "mcsa"

    def __init__(self, args):
        self.library = ctypes.CDLL(os.path.abspath(args.library)) if args.library else link(args.build)
        self.threads = args.threads

    def run(self, x, start, iterations, dtype):
        rows = native.encode(x, dtype)
        centres = np.ascontiguousarray(start, np.float32)
        labels = np.full(x.shape[:2], -1, np.int32)
        view = native.view(rows.reshape(x.shape), dtype)
        done = self.library.mcsa_probe_kmeans(ctypes.byref(view), start.shape[1], iterations, self.threads,
                                              centres.ctypes.data_as(ctypes.c_void_p),
                                              labels.ctypes.data_as(ctypes.c_void_p))
        if done < 0:
            raise MemoryError("k-means had no memory")
        return labels, centres.astype(np.float64)


class Flash:
    name = "flash-kmeans"

    def __init__(self, torch, kmeans):
        self.torch, self.kmeans = torch, kmeans

    def tensors(self, x, start, dtype):
        kind = {"f32": self.torch.float32, "bf16": self.torch.bfloat16, "f16": self.torch.float16}[dtype]
        return [self.torch.from_numpy(a).to("cuda", kind).contiguous() for a in (x, start)]

    def run(self, x, start, iterations, dtype):
        rows, centres = self.tensors(x, start, dtype)
        labels, centres, _ = self.kmeans(rows, start.shape[1], max_iters=iterations, tol=0.0, init_centroids=centres)
        return labels.cpu().numpy().astype(np.int64), centres.double().cpu().numpy()

    def seconds(self, shape, iterations):
        """Median of 7, after one that compiles, of shape H x N x P rows of 128 random BF16 numbers."""
        H, N, P = shape
        rows = self.torch.randn(H, N, 128, device="cuda", dtype=self.torch.bfloat16)
        centres = rows[:, :P].contiguous()
        times = []
        for _ in range(8):
            self.torch.cuda.synchronize()
            begin = time.perf_counter()
            self.kmeans(rows, P, max_iters=iterations, tol=0.0, init_centroids=centres)
            self.torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
        return float(np.median(times[1:]))


def find_flash():
    """Flash-KMeans, or None with the reason in words."""
    try:
        import torch
        import flash_kmeans
    except ImportError as missing:
        return None, str(missing)
    if not torch.cuda.is_available():
        return None, "no GPU"
    return Flash(torch, flash_kmeans.batch_kmeans_Euclid), (
        f"flash-kmeans {flash_kmeans.__version__}, torch {torch.__version__}, {torch.cuda.get_device_name()}")


def compare(args, others, ours, dtype):
    x, start = problem(args)
    right = True
    print(f"\n{dtype}: {args.clusters} clusters of {args.tokens} rows, {args.heads} heads, D = {args.dim}")
    for each in [ours] + others:
        other, worst = judge(x, start, each.run(x, start, 1, dtype)[0])
        print(f"  {each.name:13} 1 iteration: {other} labels of another centre than the nearest, {worst:.3g} % of bound")
        right &= each is not ours or worst <= 100
    print(f"  {'iterations':28}" + "".join(f"{n:>12}" for n in ITERATIONS))
    mine = [ours.run(x, start, n, dtype) for n in ITERATIONS]
    for each in others:
        theirs = [each.run(x, start, n, dtype) for n in ITERATIONS]
        same = [np.mean(a[0] == b[0]) for a, b in zip(mine, theirs)]
        ratio = [scatter(x, a[1], a[0]) / scatter(x, b[1], b[0]) for a, b in zip(mine, theirs)]
        print(f"  {'equal labels, ' + each.name:28}" + "".join(f"{100 * s:11.3f}%" for s in same))
        print(f"  {'scatter / that of ' + each.name:28}" + "".join(f"{r:12.6f}" for r in ratio))
        right &= ratio[-1] <= 1.01
    return right


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=native.ROOT / "build/release", type=pathlib.Path)
    parser.add_argument("--library", help="shared library with mcsa_probe_kmeans, instead of linking one")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    for name, default in (("heads", 3), ("tokens", 4096), ("dim", 128), ("clusters", 128), ("centres", 400),
                          ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--spread", type=float, default=2.0, help="of rows about their centre")
    parser.add_argument("--time", nargs="*", default=[], type=lambda text: [int(n) for n in text.split("x")],
                        help="HxNxP ...: also time Flash-KMeans on H heads of N rows in P clusters")
    args = parser.parse_args()
    flash, why = find_flash()
    print(why if flash else f"Flash-KMeans is left out: {why}")
    ours, others = Ours(args), [Numpy()] + ([flash] if flash else [])
    right = all([compare(args, others, ours, dtype) for dtype in ("f32", "bf16")])
    for shape in args.time if flash else []:
        first, following = (1e3 * flash.seconds(shape, n) for n in (50, 2))
        print(f"\n{'x'.join(map(str, shape))}: flash-kmeans, 50 iterations {first:.3f} ms, 2 iterations {following:.3f} ms, "
              f"50 + 39 x 2 over 40 steps {(first + 39 * following) / 40:.3f} ms a step")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
