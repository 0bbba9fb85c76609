"""libmcsa through ctypes: the structs of include/mcsa.h, a run that takes NumPy arrays, and the probe's views inside.

The static library and tests/reference/probe.c are linked into one shared library in a temporary folder.
"""
import ctypes as c
import os
import pathlib
import subprocess
import tempfile

import numpy as np

from mcsa_ref import rounded

ROOT = pathlib.Path(__file__).resolve().parent.parent
DTYPES = {"f32": 1, "bf16": 2, "f16": 3}
RESIDUALS = {"bf16": 1, "int8": 2, "int4": 3, "off": 4}
TAILS = {"means": 1, "off": 2}
ISAS = {"scalar": 1, "avx2": 2, "avx512bf16": 3}


class Tensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("dtype", c.c_int), ("shape", c.c_int64 * 3), ("stride", c.c_int64 * 3)]


class Site(c.Structure):
    _fields_ = [("step", c.c_int), ("layer", c.c_int), ("branch", c.c_int)]


class Config(c.Structure):
    _fields_ = [("size", c.c_size_t), ("steps", c.c_int), ("layers", c.c_int), ("branches", c.c_int),
                ("density", c.c_float), ("group", c.c_int), ("schedule", c.c_char_p), ("actions", c.c_void_p),
                ("dense_layers", c.c_int), ("sharing", c.c_int), ("residual", c.c_int), ("scale", c.c_float),
                ("threads", c.c_int), ("isa", c.c_int), ("check_finite", c.c_int), ("allocator", c.c_void_p * 3),
                ("device", c.c_int), ("device_index", c.c_int), ("stream", c.c_void_p), ("tail", c.c_int)]


class Stats(c.Structure):
    _fields_ = ([("size", c.c_size_t)] +
                [(n, c.c_int64) for n in ("dense", "anchor", "reuse", "fallback", "fallback_no_anchor",
                                          "fallback_stale", "fallback_shape", "fallback_leader")] +
                [(n, c.c_double) for n in ("density_requested", "density_executed", "density_run", "attention_s",
                                           "dense_s", "grouping_s", "selection_s", "sparse_s")] +
                [(n, c.c_int64) for n in ("selection_bytes", "residual_bytes", "scratch_bytes", "allocations")])


class Machine(c.Structure):
    _fields_ = [("size", c.c_size_t), ("isa", c.c_int), ("threads", c.c_int), ("features", c.c_char_p)]


def load(build):
    """The library of the build folder with the probe; CC names the compiler (default cc)."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "libprobe.so")
        subprocess.run([os.environ.get("CC", "cc"), "-std=c11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden",
                        f"-I{ROOT}/include", f"-I{ROOT}/src", f"{ROOT}/tests/reference/probe.c",
                        "-Wl,--whole-archive", str(pathlib.Path(build, "libmcsa_static.a")),
                        "-Wl,--no-whole-archive", "-fopenmp", "-lm", "-o", str(path)], check=True)
        lib = c.CDLL(str(path))
    lib.mcsa_run_error.restype = c.c_char_p
    lib.mcsa_run_free.restype = None
    return lib


def isas(lib):
    """The instruction sets of this machine."""
    machine = Machine(size=c.sizeof(Machine))
    lib.mcsa_machine_read(c.byref(machine))
    return [name for name, number in ISAS.items() if number <= machine.isa]


def schedule(lib, text, steps):
    actions = (c.c_int * steps)()
    error = c.create_string_buffer(512)
    if lib.mcsa_schedule_fill(text.encode(), steps, actions, error, c.c_size_t(len(error))):
        raise ValueError(error.value.decode())
    return np.array(actions)


def encode(x, dtype):
    """The bits of an x that dtype holds exactly, rows one after the other."""
    x = np.ascontiguousarray(x)
    if dtype == "bf16":
        return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return x.astype({"f32": np.float32, "f16": np.float16}[dtype])


def decode(bits, dtype):
    if dtype == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return bits.astype(np.float64)


def view(array, dtype):
    H, N, D = array.shape
    return Tensor(array.ctypes.data, DTYPES[dtype], (H, N, D), (N * D, D, 1))


class Run:
    """mcsa_run with float64 arrays at its wall, of numbers that dtype holds."""

    def __init__(self, lib, dtype, isa, residual="bf16", shared=None, schedule="ramp", tail="means", **config):
        self.lib, self.dtype, self.isa, self.group = lib, dtype, isa, config.get("group", 128)
        self.pointer = c.c_void_p()
        sharing = {None: 0, True: 1, False: 2}[shared]
        config = Config(size=c.sizeof(Config), schedule=schedule.encode(), residual=RESIDUALS[residual],
                        sharing=sharing, isa=ISAS[isa], tail=TAILS[tail], **config)
        error = c.create_string_buffer(512)
        if lib.mcsa_run_create(c.byref(self.pointer), c.byref(config), error, c.c_size_t(len(error))):
            raise RuntimeError(error.value.decode())

    def close(self):
        self.lib.mcsa_run_free(self.pointer)

    def must(self, status):
        if status:
            raise RuntimeError(self.lib.mcsa_run_error(self.pointer).decode())

    def attend(self, step, layer, branch, q, k, v):
        arrays = [encode(x, self.dtype) for x in (q, k, v)] + [encode(np.zeros(q.shape), self.dtype)]
        views = [c.byref(view(a, self.dtype)) for a in arrays]
        self.must(self.lib.mcsa_attend(self.pointer, Site(step, layer, branch), *views))
        return decode(arrays[3], self.dtype)

    def attend_dense(self, q, k, v):
        arrays = [encode(x, self.dtype) for x in (q, k, v)] + [encode(np.zeros(q.shape), self.dtype)]
        lse = np.empty(q.shape[:2], np.float32)
        views = [c.byref(view(a, self.dtype)) for a in arrays]
        self.must(self.lib.mcsa_attend_dense(self.pointer, *views, lse.ctypes.data_as(c.c_void_p)))
        return decode(arrays[3], self.dtype), lse

    def stats(self):
        stats = Stats(size=c.sizeof(Stats))
        self.must(self.lib.mcsa_run_stats(self.pointer, c.byref(stats)))
        return stats

    def choice(self, layer, branch, H, N):
        """order [H, N], kept [H, G, N or P] of bool, and members [H, N] and first [H, P + 1], or None without
        clusters."""
        P = self.lib.mcsa_probe_clusters(self.pointer, layer, branch, None, None)
        columns = P or N
        order, words = np.empty((H, N), np.int32), np.empty((H, -(-N // self.group), -(-columns // 64)), np.uint64)
        members, first = np.empty((H, N), np.int32), np.empty((H, P + 1), np.int32)
        pointers = [a.ctypes.data_as(c.c_void_p) for a in (order, words, members, first)]
        self.lib.mcsa_probe_choice(self.pointer, layer, branch, *pointers[:2])
        if P:
            self.lib.mcsa_probe_clusters(self.pointer, layer, branch, *pointers[2:])
        bits = np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")
        if bits[..., columns:].any():
            raise RuntimeError("a bit beyond the last key or cluster is set")
        return order, bits[..., :columns].astype(bool), (members, first) if P else None

    def mass(self, layer, branch, q, k, lse):
        """mass [H, G, N] of the run's own groups."""
        H, N, _ = q.shape
        mass = np.empty((H, -(-N // self.group), N), np.float32)
        arrays = [encode(x, self.dtype) for x in (q, k)]
        self.lib.mcsa_probe_mass(self.pointer, layer, branch, *[c.byref(view(a, self.dtype)) for a in arrays],
                                 lse.ctypes.data_as(c.c_void_p), mass.ctypes.data_as(c.c_void_p))
        return mass.astype(np.float64)

    def residual(self, layer, branch, shape):
        rows = np.empty(shape, np.float32)
        self.lib.mcsa_probe_residual(self.pointer, layer, branch, rows.ctypes.data_as(c.c_void_p))
        return rows.astype(np.float64)
