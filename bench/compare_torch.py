#!/usr/bin/env python3
"""Times PyTorch's scaled_dot_product_attention on the CPU against libmcsa, side by side in one process.

The same q, k, v (no copy: libmcsa reads PyTorch's memory), the same number of threads, rounds in turn so that
whatever else the machine does hits all alike, medians.  Before a time is taken, libmcsa's dense output is compared
with PyTorch's, and so is a reuse step of the anchor's own q, k, v, which gives the dense output back; what
token-sparse attention computes is checked by `mcsa bench attend` and by the tests.  A reuse step is timed whole: key
lists, attention, residual.

    pip install -r bench/requirements.txt
    python3 bench/compare_torch.py --library build/release/libmcsa.so --name zen5-2-cores

prints a Markdown table and writes bench/results/NAME.json.
"""
import argparse
import ctypes
import datetime
import json
import pathlib
import statistics
import sys
import time

import torch
import torch.nn.functional as F

DTYPES = {"bf16": (torch.bfloat16, 2), "f32": (torch.float32, 1)}  # and mcsa_dtype
# Relative L2 between two right answers: both round probabilities and output to BF16, each by at most 2^-8 relative.
AGREE = {"bf16": 2**-7, "f32": 1e-5}
RESIDUAL = 2**-8  # a reuse step adds a residual that was rounded to BF16
IDLE_S = 0.05  # PyTorch and libmcsa each have an OpenMP runtime, whose threads spin on after a parallel region


class Tensor(ctypes.Structure):
    """mcsa_tensor"""

    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_int),
                ("shape", ctypes.c_int64 * 3), ("stride", ctypes.c_int64 * 3)]

    @classmethod
    def of(cls, x, dtype):
        return cls(x.data_ptr(), dtype, tuple(x.shape), tuple(x.stride()))


class Site(ctypes.Structure):
    """mcsa_site"""

    _fields_ = [("step", ctypes.c_int), ("layer", ctypes.c_int), ("branch", ctypes.c_int)]


class Config(ctypes.Structure):
    """mcsa_config"""

    _fields_ = [("size", ctypes.c_size_t), ("steps", ctypes.c_int), ("layers", ctypes.c_int),
                ("branches", ctypes.c_int), ("density", ctypes.c_float), ("group", ctypes.c_int),
                ("schedule", ctypes.c_char_p), ("actions", ctypes.c_void_p), ("dense_layers", ctypes.c_int),
                ("sharing", ctypes.c_int), ("residual", ctypes.c_int), ("scale", ctypes.c_float),
                ("threads", ctypes.c_int), ("isa", ctypes.c_int), ("check_finite", ctypes.c_int),
                ("alloc", ctypes.c_void_p), ("free", ctypes.c_void_p), ("user", ctypes.c_void_p)]


class Run:
    """A run of two steps: an anchor and a reuse."""

    def __init__(self, library, density, threads):
        self.lib = ctypes.CDLL(str(library))
        self.lib.mcsa_run_error.restype = ctypes.c_char_p
        self.lib.mcsa_run_error.argtypes = [ctypes.c_void_p]
        self.lib.mcsa_run_free.argtypes = [ctypes.c_void_p]
        tensors = [ctypes.POINTER(Tensor)] * 4
        self.lib.mcsa_attend.argtypes = [ctypes.c_void_p, Site, *tensors]
        self.lib.mcsa_attend_dense.argtypes = [ctypes.c_void_p, *tensors, ctypes.c_void_p]
        self.lib.mcsa_version.restype = ctypes.c_char_p
        self.handle = ctypes.c_void_p()
        config = Config(size=ctypes.sizeof(Config), steps=2, layers=1, density=density, schedule=b"list:0",
                        threads=threads)
        error = ctypes.create_string_buffer(512)
        if self.lib.mcsa_run_create(ctypes.byref(self.handle), ctypes.byref(config), error, ctypes.c_size_t(512)):
            sys.exit(error.value.decode())

    def check(self, status):
        if status:
            sys.exit(self.lib.mcsa_run_error(self.handle).decode())

    def dense(self, tensors):
        self.check(self.lib.mcsa_attend_dense(self.handle, *tensors, None))

    def step(self, step, tensors):
        self.check(self.lib.mcsa_attend(self.handle, Site(step, 0, 0), *tensors))

    def close(self):
        self.lib.mcsa_run_free(self.handle)


def disagreement(got, want):
    return ((got.float() - want.float()).norm() / want.float().norm()).item()


def timed(call):
    time.sleep(IDLE_S)
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def compare(args, dtype, tokens):
    """One row of the table: medians in milliseconds."""
    kind, code = DTYPES[dtype]
    torch.manual_seed(tokens)
    q, k, v = (torch.randn(args.heads, tokens, args.dim).to(kind) for _ in range(3))
    out = torch.empty_like(q)
    tensors = [Tensor.of(x, code) for x in (q, k, v, out)]
    run = Run(args.library, args.density, args.threads)
    calls = {
        "torch": lambda: F.scaled_dot_product_attention(q[None], k[None], v[None]),
        "dense": lambda: run.dense(tensors),
        "sparse": lambda: run.step(1, tensors),
    }
    want = calls["torch"]()[0]
    run.dense(tensors)
    errors = {"dense": disagreement(out, want)}
    run.step(0, tensors)
    out.zero_()
    run.step(1, tensors)
    errors["sparse"] = disagreement(out, want)
    for name, error in errors.items():
        if not error <= AGREE[dtype] + (RESIDUAL if name == "sparse" else 0):
            sys.exit(f"{name} {dtype} N = {tokens}: relative L2 to PyTorch is {error:.2e}")
    seconds = {name: [] for name in calls}
    for _ in range(args.rounds):
        for name, call in calls.items():
            seconds[name].append(timed(call))
    run.close()
    row = {"dtype": dtype, "tokens": tokens, "relative_l2": errors}
    for name, values in seconds.items():
        row[name + "_ms"] = 1e3 * statistics.median(values)
        row[name + "_range_ms"] = [1e3 * min(values), 1e3 * max(values)]
    return row


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def table(result):
    lines = [f"| dtype | N | PyTorch, ms | dense, ms | against PyTorch | s = {result['density']:g}, ms "
             "| against PyTorch | against dense | x s |",
             "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for r in result["rows"]:
        gain = r["dense_ms"] / r["sparse_ms"]
        lines.append(f"| {r['dtype']} | {r['tokens']} | {r['torch_ms']:.1f} | {r['dense_ms']:.1f} "
                     f"| {r['torch_ms'] / r['dense_ms']:.2f}x | {r['sparse_ms']:.1f} "
                     f"| {r['torch_ms'] / r['sparse_ms']:.2f}x | {gain:.2f}x | {gain * result['density']:.3f} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", type=pathlib.Path, default="build/release/libmcsa.so")
    parser.add_argument("--name", help="of bench/results/NAME.json; without it nothing is written")
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 8192, 32768])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--heads", type=int, default=3)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--density", type=float, default=0.15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    result = {"date": datetime.date.today().isoformat(), "processor": processor(), "threads": args.threads,
              "torch": torch.__version__, "heads": args.heads, "dim": args.dim, "density": args.density,
              "rounds": args.rounds, "rows": []}
    for dtype in args.dtypes:
        for tokens in args.tokens:
            result["rows"].append(compare(args, dtype, tokens))
            print(f"{dtype} N = {tokens} done", file=sys.stderr)
    print(f"{result['processor']}, {args.threads} threads, PyTorch {torch.__version__}, H = {args.heads}, "
          f"D = {args.dim}, medians of {args.rounds} rounds, {result['date']}\n")
    print(table(result))
    if args.name:
        path = pathlib.Path(__file__).parent / "results" / f"{args.name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
