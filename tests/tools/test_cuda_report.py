"""scripts/cuda_report.py: every kernel for GPUs compiles for every architecture, without a GPU and without spills."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("nvidia", reason="pip install nvidia-cuda-nvrtc")


def report(root, *words):
    command = [sys.executable, root / "scripts/cuda_report.py", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_kernel_compiles(root):
    done = report(root, "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {row["architecture"] for row in rows} == {"sm_80", "sm_90a", "sm_120"}
    assert {row["kernel"] for row in rows} == {
        "gated_scan", "gated_scan_reverse", "gated_scan_states", "gated_scan_states_reverse", "gated_scan_join"}  # fmt: skip
    assert all(row["spilled"] == row["stack"] == 0 and 0 < row["registers"] <= 255 for row in rows)


def test_what_does_not_fit_or_is_wrong_is_said(root, tmp_path):
    spills = tmp_path / "spills.cu"
    sums = "".join(f"float x{i} = in[{i} * blockDim.x + threadIdx.x];" for i in range(200))
    uses = "".join(f"s = s * x{(7 * i) % 200} + x{i};" for i in range(200))
    spills.write_text(f'extern "C" __global__ void __launch_bounds__(1024, 2) many(float* in) {{ {sums} __syncthreads(); '
                      f"float s = 0; for (int k = 0; k < 3; ++k) {{ {uses} }} in[threadIdx.x] = s; }}")  # fmt: skip
    done = report(root, "--arch", "sm_90a", spills)
    assert done.returncode == 1 and "registers do not suffice for many" in done.stderr
    wrong = tmp_path / "wrong.cu"
    wrong.write_text("// Variants: SIZE=2\n__global__ void f() { what; }\n")
    done = report(root, wrong)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "wrong.cu for sm_80, SIZE=2: " in done.stderr, done.stderr


def test_the_bench_hands_over_what_the_kernel_expects(root, tmp_path):
    """bench/cuda/gated_scan.py fills its arguments by ctypes: offsets and sizes are the compiler's, and so is the shared memory."""
    sys.path[:0] = [str(root / "bench/cuda"), str(root / "scripts")]
    try:
        import gated_scan
    finally:
        del sys.path[:2]
    asserts = ""
    for of in (gated_scan.Timed, gated_scan.Scan, gated_scan.Join):
        known = f"cortado::gated::Gpu{of.__name__}"
        for name, offset in gated_scan.layout(of).items():
            place = f"__builtin_offsetof({known}, {name})" if name else f"sizeof({known})"
            asserts += f"static_assert({place} == {offset});"
    for keys in (64, 128):
        asserts += f"static_assert(cortado::gated::gpu_shared_bytes({keys}) == {gated_scan.shared_bytes(keys)});"
    source = tmp_path / "layout.cu"
    source.write_text(f'#include "cortado/primitives/gated_scan/kernel_gpu.h"\n{asserts}\nextern "C" __global__ void f() {{}}\n')
    done = report(root, "--arch", "sm_90a", source)
    assert done.returncode == 0, done.stderr
    source.write_text(source.read_text().replace("== 0)", "== 8)"))
    assert report(root, "--arch", "sm_90a", source).returncode == 1
