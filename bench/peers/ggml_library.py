"""ggml through ctypes: the libraries that llama-cpp-python installs, its own threads, 64-byte aligned buffers.

CORTADO_GGML names another folder with libggml-base.so and libggml-cpu.so.
"""

import ctypes
import importlib.machinery
import os
import sys
from ctypes import POINTER, byref, c_bool, c_float, c_int, c_int64, c_size_t, c_uint32, c_void_p
from pathlib import Path

import numpy as np

FLOAT32, INT32 = 0, 26  # enum ggml_type
ALIGNMENT = 64


class InitParameters(ctypes.Structure):
    _fields_ = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


class ThreadpoolParameters(ctypes.Structure):
    _fields_ = [
        ("cpumask", c_bool * 512),
        ("n_threads", c_int),
        ("prio", c_int),
        ("poll", c_uint32),
        ("strict_cpu", c_bool),
        ("paused", c_bool),
    ]


class Plan(ctypes.Structure):
    _fields_ = [
        ("work_size", c_size_t),
        ("work_data", c_void_p),
        ("n_threads", c_int),
        ("threadpool", c_void_p),
        ("abort_callback", c_void_p),
        ("abort_callback_data", c_void_p),
        ("use_ref", c_bool),
    ]


def package_spec():
    """Returns llama-cpp-python's folder. This folder is not searched, because a script in it has the same name."""
    here = Path(__file__).resolve().parent
    return importlib.machinery.PathFinder.find_spec("llama_cpp", [p for p in sys.path if Path(p or ".").resolve() != here])


def library_folder():
    if "CORTADO_GGML" in os.environ:
        return Path(os.environ["CORTADO_GGML"])
    package = package_spec()
    if package is None:
        raise SystemExit("ggml: llama-cpp-python is not installed; `make bench-peers` installs it, or set CORTADO_GGML")
    return Path(next(iter(package.submodule_search_locations))) / "lib"


def load():
    folder = library_folder()
    base = ctypes.CDLL(str(folder / "libggml-base.so"), ctypes.RTLD_GLOBAL)
    cpu = ctypes.CDLL(str(folder / "libggml-cpu.so"), ctypes.RTLD_GLOBAL)
    pointer_of = {
        base: "ggml_init ggml_new_tensor ggml_new_graph ggml_backend_cpu_buffer_from_ptr ggml_gated_linear_attn ggml_gated_delta_net "
        "ggml_ssm_scan ggml_rwkv_wkv6",
        cpu: "ggml_threadpool_new",
    }
    for library, names in pointer_of.items():
        for name in names.split():
            getattr(library, name).restype = c_void_p
    base.ggml_init.argtypes = [InitParameters]
    base.ggml_new_tensor.argtypes = [c_void_p, c_int, c_int, POINTER(c_int64)]
    base.ggml_new_graph.argtypes = [c_void_p]
    base.ggml_build_forward_expand.argtypes = [c_void_p, c_void_p]
    base.ggml_nbytes.argtypes, base.ggml_nbytes.restype = [c_void_p], c_size_t
    base.ggml_backend_cpu_buffer_from_ptr.argtypes = [c_void_p, c_size_t]
    base.ggml_backend_tensor_alloc.argtypes = [c_void_p, c_void_p, c_void_p]
    base.ggml_gated_linear_attn.argtypes = [c_void_p] * 6 + [c_float]
    base.ggml_gated_delta_net.argtypes = [c_void_p] * 7 + [c_int64]
    base.ggml_ssm_scan.argtypes = [c_void_p] * 8 + [c_int64]
    base.ggml_rwkv_wkv6.argtypes = [c_void_p] * 7
    base.ggml_threadpool_params_init.argtypes = [POINTER(ThreadpoolParameters), c_int]
    cpu.ggml_threadpool_new.argtypes = [POINTER(ThreadpoolParameters)]
    cpu.ggml_graph_plan.argtypes, cpu.ggml_graph_plan.restype = [c_void_p, c_int, c_void_p], Plan
    cpu.ggml_graph_compute.argtypes = [c_void_p, POINTER(Plan)]
    cpu.ggml_cpu_init()
    return base, cpu


class Ggml:
    """Makes graphs of one operator each. Their memory is freed when the process ends."""

    def __init__(self, threads):
        self.base, self.cpu = load()
        self.context = self.base.ggml_init(InitParameters(64 << 20, None, True))
        parameters = ThreadpoolParameters()
        self.base.ggml_threadpool_params_init(byref(parameters), threads)
        parameters.poll = 0  # waiting threads sleep: if they spun, they would slow down the next measurement
        self.pool, self.threads, self.kept = self.cpu.ggml_threadpool_new(byref(parameters)), threads, []

    def memory(self, tensor):
        """Gives a tensor its aligned memory; returns it as bytes."""
        size = self.base.ggml_nbytes(tensor)
        room = np.zeros(size + 2 * ALIGNMENT, np.uint8)
        start = -room.ctypes.data % ALIGNMENT
        buffer = self.base.ggml_backend_cpu_buffer_from_ptr(room.ctypes.data + start, size + ALIGNMENT)
        if self.base.ggml_backend_tensor_alloc(buffer, tensor, room.ctypes.data + start) != 0:
            raise RuntimeError("ggml refused a buffer")
        self.kept.append(room)
        return room[start : start + size]

    def tensor(self, array, *shape):
        """Returns a tensor with the array's numbers, in ggml's order of dimensions: the fastest first."""
        array = np.ascontiguousarray(array)
        kind = INT32 if array.dtype == np.int32 else FLOAT32
        tensor = self.base.ggml_new_tensor(self.context, kind, len(shape), (c_int64 * len(shape))(*shape))
        memory = self.memory(tensor)
        assert memory.nbytes == array.nbytes, (shape, array.shape)
        memory.view(array.dtype)[:] = array.reshape(-1)
        return tensor

    def call(self, name, *arguments):
        """Returns (function that computes it, its result as a flat array)."""
        result = getattr(self.base, name)(self.context, *arguments)
        memory = self.memory(result).view(np.float32)
        graph = self.base.ggml_new_graph(self.context)
        self.base.ggml_build_forward_expand(graph, result)
        plan = self.cpu.ggml_graph_plan(graph, self.threads, self.pool)
        work = np.zeros(plan.work_size + ALIGNMENT, np.uint8)
        plan.work_data = work.ctypes.data + -work.ctypes.data % ALIGNMENT
        self.kept += [work, plan]

        def compute():
            if self.cpu.ggml_graph_compute(graph, byref(plan)) != 0:
                raise RuntimeError(f"{name} failed")

        return compute, memory
