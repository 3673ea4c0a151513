#!/usr/bin/env python3
"""The gated scan's kernel on the GPU that is here, before any operator calls it: compiled, compared with float64, timed.

    python bench/cuda/gated_scan.py [--out FOLDER] [--quick]

Needs torch with CUDA and nothing else: NVRTC comes with it, the driver is called by ctypes. Every case is compared with the
definition in float64 and run twice for the same bits; then the forward and a backward (three more calls of the same
kernel) are timed by CUDA events over rotating inputs, medians, beside the floor (bytes in and out once at 3.0 TB/s) and,
where it is installed, fla's chunk_simple_gla. A table, and gated_scan.json in FOLDER. Ends with 1 where something is
wrong."""

import argparse
import ctypes
import functools
import json
import pathlib
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import cuda_report  # noqa: E402  compiles by NVRTC

SOURCE = ROOT / "src/cortado/primitives/gated_scan/kernel.cu"
THREADS, PIECE, CHUNK, STAGES, TOLERANCE, FLOOR = 128, 32, 64, 3, 6e-3, 3.0e12


class Timed(ctypes.Structure):
    """GpuTimed of kernel_gpu.h; tests/tools/test_cuda_report.py holds the offsets of both to the compiler's."""

    _fields_ = [("data", ctypes.c_void_p), ("batch", ctypes.c_longlong), ("token", ctypes.c_longlong), ("head", ctypes.c_longlong),
                ("heads", ctypes.c_int)]  # fmt: skip

    def __init__(self, x=None):
        super().__init__(*((x.data_ptr(), *x.stride()[:3], x.shape[2]) if x is not None else (None, 0, 0, 0, 1)))


class Scan(ctypes.Structure):
    _fields_ = [*((name, Timed) for name in ("q", "k", "v", "o", "g")),
                *((name, ctypes.c_void_p) for name in ("initial", "last", "kept", "bounds")),
                *((name, ctypes.c_int) for name in ("tokens", "heads", "values", "parts", "part_tokens", "shift")),
                ("scale", ctypes.c_float)]  # fmt: skip


class Join(ctypes.Structure):
    _fields_ = [*((name, ctypes.c_void_p) for name in ("states", "kept", "initial", "last")),
                *((name, ctypes.c_int) for name in ("rows", "parts", "heads", "numbers"))]  # fmt: skip


def layout(structure):
    """Offsets in bytes, by name, and the size: what the compiler must have as well."""
    return {name: getattr(structure, name).offset for name, _ in structure._fields_} | {"": ctypes.sizeof(structure)}


def pointer(x):
    return x.data_ptr() if x is not None else None


def parts_of(blocks, tokens):
    """As many parts of time as give every multiprocessor four blocks, of 512 tokens at least."""
    wanted = -(-4 * torch.cuda.get_device_properties(0).multi_processor_count // blocks)
    return max(1, min(wanted, tokens // 512))


def shared_bytes(keys):
    return STAGES * CHUNK * (4 * keys + 2 * PIECE + 4) + keys * PIECE * 2 + 3 * CHUNK * 4


class Kernels:
    """The entry points, for one K and type, loaded into torch's context."""

    def __init__(self, keys, half=False):
        self.driver = ctypes.CDLL("libcuda.so.1")
        major, minor = torch.cuda.get_device_capability()
        architecture = "sm_90a" if (major, minor) == (9, 0) else f"sm_{major}{minor}"
        variant = f"KEYS={keys}" + (" CORTADO_HALF" if half else "")
        text = cuda_report.whole_text(SOURCE, set())
        code = cuda_report.compile_text(cuda_report.nvrtc(), SOURCE.name, text, architecture, variant)[0]
        torch.cuda.current_stream()  # the context is there from here on
        module = ctypes.c_void_p()
        self.check(self.driver.cuModuleLoadData(ctypes.byref(module), code))
        self.shared = shared_bytes(keys)
        self.functions = {}
        for name in ("gated_scan", "gated_scan_reverse", "gated_scan_states", "gated_scan_states_reverse", "gated_scan_join"):
            function = ctypes.c_void_p()
            self.check(self.driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
            if not name.endswith("join"):
                self.check(self.driver.cuFuncSetAttribute(function, 8, self.shared))  # MAX_DYNAMIC_SHARED_SIZE_BYTES
            self.functions[name] = function

    def check(self, error):
        if error:
            text = ctypes.c_char_p()
            self.driver.cuGetErrorString(error, ctypes.byref(text))
            sys.exit(f"[cuda] {(text.value or b'?').decode()}")

    def launch(self, name, structure, blocks, shared):
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(structure))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.check(self.driver.cuLaunchKernel(self.functions[name], *blocks, 1, THREADS, 1, 1, shared, stream, parameters, None))

    def __call__(self, q, k, v, g, initial, reverse, shift, scale, want_last=True, parts=None):
        rows, tokens, heads = q.shape[:3]
        o = torch.full((*q.shape[:2], heads, v.shape[3]), float("nan"), dtype=q.dtype, device=q.device)
        last = torch.full((rows, heads, k.shape[3], v.shape[3]), float("nan"), device=q.device) if want_last else None
        blocks, behind = rows * heads * v.shape[3] // PIECE, "_reverse" if reverse else ""
        parts = parts or parts_of(blocks, tokens)
        each = -(-tokens // (parts * CHUNK)) * CHUNK
        scan = Scan(Timed(q), Timed(k), Timed(v), Timed(o), Timed(g), pointer(initial), pointer(last), None, None,
                    tokens, heads, v.shape[3], parts, each, shift, scale)  # fmt: skip
        if parts > 1:
            states = torch.empty(rows, parts, heads, k.shape[3], v.shape[3], device=q.device)
            kept = torch.empty(rows, parts, heads, device=q.device)
            scan.initial, scan.last, scan.kept = None, states.data_ptr(), kept.data_ptr()
            self.launch("gated_scan_states" + behind, scan, (blocks, parts), self.shared)
            numbers = k.shape[3] * v.shape[3]
            join = Join(states.data_ptr(), kept.data_ptr(), pointer(initial), pointer(last), rows, parts, heads, numbers)
            self.launch("gated_scan_join", join, (-(-numbers // THREADS), rows * heads), 0)
            scan.initial, scan.last = states.data_ptr(), None
        self.launch("gated_scan" + behind, scan, (blocks, parts), self.shared)
        return o, last


# A variant is compiled once, however many cases use it: a GPU is lent for minutes.
kernels_of = functools.cache(Kernels)


def definition(q, k, v, g, initial, scale):
    """Token by token, any type: S = exp(g) S + k v^T, o = scale S^T q."""
    state, out = initial, []
    for t in range(q.shape[1]):
        state = state * g[:, t].exp()[..., None, None] + k[:, t][..., None] * v[:, t][..., None, :]
        out.append(scale * (state * q[:, t][..., None]).sum(-2))
    return torch.stack(out, 1), state


def inputs(rows, tokens, heads, keys, values, dtype=torch.bfloat16, cuts=False):
    numbers = lambda *sizes: torch.randn(*sizes, device="cuda")
    g = torch.rand(rows, tokens, heads, device="cuda").log() * 0.1
    if cuts:
        g[torch.rand_like(g) < 0.02] = float("-inf")
    like = lambda width: numbers(rows, tokens, heads, width).to(dtype)
    return like(keys), like(keys), like(values), g, numbers(rows, heads, keys, values)


def backward(kernels, q, k, v, g, initial, grad_o, grad_last, scale):
    """(dq, dk, dv): kernel_gpu.h says which tensor stands where."""
    across = lambda state: state.transpose(2, 3).contiguous() if state is not None else None
    narrow = grad_o * scale
    dq, _ = kernels["values"](grad_o, v, k, g, across(initial), False, 0, scale, want_last=False)
    dk, _ = kernels["values"](v, narrow, q, g, across(grad_last), True, 1, 1.0, want_last=False)
    dv, _ = kernels["keys"](k, q * scale, grad_o, g, grad_last, True, 1, 1.0, want_last=False)
    return dq, dk, dv


def error_of(found, right):
    return ((found.double() - right).norm() / right.norm()).item()


def check(case):
    rows, tokens, heads, keys, values, dtype, cuts = case
    half = dtype == torch.float16
    kernels = {"keys": kernels_of(keys, half), "values": kernels_of(values, half)}
    q, k, v, g, initial = inputs(rows, tokens, heads, keys, values, dtype, cuts)
    scale = keys**-0.5
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    o, last = definition(*leaves, g.double(), initial.double(), scale)
    grad_o, grad_last = torch.randn_like(o).to(dtype), torch.randn_like(last).float()
    right = [o.detach(), last.detach(), *torch.autograd.grad([o, last], leaves, [grad_o.double(), grad_last.double()])]
    run = lambda: [*kernels["keys"](q, k, v, g, initial, False, 0, scale), *backward(kernels, q, k, v, g, initial, grad_o, grad_last, scale)]
    found, again = run(), run()
    errors = {name: error_of(x, y) for name, x, y in zip(("o", "last", "dq", "dk", "dv"), found, right, strict=True)}
    same = all(torch.equal(x, y) for x, y in zip(found, again, strict=True))
    return {"case": [*case[:5], str(dtype), cuts], "errors": errors, "same_bits": same,
            "good": same and all(error < TOLERANCE for error in errors.values())}  # fmt: skip


def median_ms(work, sets, rounds=30):
    for each in sets:
        work(*each)
    torch.cuda.synchronize()
    events = []
    for i in range(rounds):
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
        begin.record()
        work(*sets[i % len(sets)])
        end.record()
        events.append((begin, end))
    torch.cuda.synchronize()
    return sorted(begin.elapsed_time(end) for begin, end in events)[rounds // 2]


def peer():
    try:
        from fla.ops.simple_gla import chunk_simple_gla
    except Exception:
        return None
    return lambda q, k, v, g: chunk_simple_gla(q, k, v, g)[0]


def time(rows, tokens, heads, width):
    own = kernels_of(width, False)
    kernels = {"keys": own, "values": own}
    sets = []
    for _ in range(3):
        q, k, v, g, _ = inputs(rows, tokens, heads, width, width)
        sets.append((q, k, v, g, torch.randn_like(v)))
    scale = width**-0.5
    forward = lambda q, k, v, g, _: own(q, k, v, g, None, False, 0, scale, want_last=False)
    both = lambda q, k, v, g, grad: (forward(q, k, v, g, grad), backward(kernels, q, k, v, g, None, grad, None, scale))
    numbers = rows * tokens * heads
    floor = 1e3 * numbers * (4 * width * 2 + 4) / FLOOR
    row = {"rows": rows, "tokens": tokens, "heads": heads, "width": width, "floor_ms": floor, "forward_ms": median_ms(forward, sets),
           "both_ms": median_ms(both, sets), "floor_both_ms": floor + 1e3 * numbers * (7 * width * 2 + 8) / FLOOR}  # fmt: skip
    fla = peer()
    if fla:
        row["fla_forward_ms"] = median_ms(lambda q, k, v, g, _: fla(q, k, v, g), sets)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true", help="no times")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("[cuda] there is no GPU here")
    b16, f16 = torch.bfloat16, torch.float16
    cases = [(2, 512, 3, 64, 64, b16, False), (1, 1, 1, 64, 64, b16, False), (1, 65, 2, 64, 128, b16, True), (1, 333, 2, 128, 64, b16, False),
             (2, 200, 2, 128, 128, b16, True), (2, 300, 2, 64, 64, f16, False), (1, 4096, 1, 64, 64, b16, True)]  # fmt: skip
    found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "checks": [check(case) for case in cases]}
    for it in found["checks"]:
        print(it["case"], " ".join(f"{name} {error:.1e}" for name, error in it["errors"].items()), "" if it["good"] else "WRONG")
    if not chosen.quick:
        sizes = [(8, 2048, 16, 64), (8, 16384, 16, 64), (8, 16384, 16, 128), (1, 65536, 4, 64), (1, 65536, 16, 64)]
        found["times"] = [time(*size) for size in sizes]
        for row in found["times"]:
            print({key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()},
                  f"forward {row['forward_ms'] / row['floor_ms']:.2f}, both {row['both_ms'] / row['floor_both_ms']:.2f} times the floor")  # fmt: skip
    if chosen.out:
        chosen.out.mkdir(parents=True, exist_ok=True)
        (chosen.out / "gated_scan.json").write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(0 if all(it["good"] for it in found["checks"]) else 1)


if __name__ == "__main__":
    main()
