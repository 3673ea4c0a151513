"""scripts/cuda_report.py: every GPU kernel compiles for every architecture, without a GPU and without spills. This test
compiles one variant of each and checks its spills on one architecture; `make check-all` takes minutes for all."""

import json
import pathlib
import subprocess
import sys

import pytest
from quick import quick

pytest.importorskip("nvidia", reason="pip install nvidia-cuda-nvrtc")


def report(root, *words):
    command = [sys.executable, root / "scripts/cuda_report.py", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


SOURCES = pathlib.Path(__file__).resolve().parents[2] / "src/cortado"
FILES = {f"{path.parent.name}/{path.name}": path for path in sorted(SOURCES.glob("*/*/kernel*.cu"))}
# Some of their kernels.
KERNELS = {"gated_scan/kernel.cu": {"gated_scan", "gated_scan_dot_reverse", "gated_scan_states", "gated_scan_join"},
           "gated_scan/kernel_channels.cu": {"on_keys", "on_values_reverse", "channel_gradient"},
           "gated_scan/kernel_step.cu": {"scan_step"},
           "gated_scan/kernel_tokens.cu": {"tokens", "tokens_bonus_reverse", "tokens_delta_gradient", "token_gates"},
           "delta_scan/kernel.cu": {"delta_scan", "delta_gradient_dot", "delta_inverse_channels", "delta_channels_gradient", "delta_rest"},
           "elementwise_scan/kernel.cu": {"scan_apply", "scan_gradient_summarize", "scan_stream"},
           "latte_scan/kernel.cu": {"latte_read", "latte_weights", "latte_values", "latte_logits", "latte_join"},
           "latte_scan/kernel_step.cu": {"latte_step"},
           "short_conv/kernel.cu": {"short_conv_backward"}, "time_softmax/kernel.cu": {"time_softmax_join"},
           "window_attention/kernel.cu": {"attention_forward", "attention_forward_part", "attention_dots"}}  # fmt: skip


@pytest.mark.parametrize("path", quick(["short_conv/kernel.cu"], *FILES))
def test_every_kernel_compiles(root, path):
    done = report(root, "--json", "--variants", 1, "--arch", "sm_90a", "--quick", "sm_80,sm_120", FILES[path])
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {row["architecture"] for row in rows} == {"sm_80", "sm_90a", "sm_120"}
    assert KERNELS.get(path, set()) <= {row["kernel"] for row in rows}
    assert all(0 < row["registers"] <= 255 for row in rows)
    assert all(row["spilled"] == row["stack"] == 0 for row in rows if row["architecture"] == "sm_90a")


def test_no_kernel_is_gone():
    assert KERNELS.keys() <= FILES.keys()


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


def test_the_library_has_every_kernel(root, tmp_path):
    """scripts/embed_cuda.py: each file's text has its includes once, and nothing of the emulation."""
    out = tmp_path / "sources.cpp"
    subprocess.run([sys.executable, root / "scripts/embed_cuda.py", out], check=True)
    text = out.read_text()
    assert len(FILES) >= 4
    for name in FILES:
        assert f'{{"{name.removesuffix(".cu")}", ' in text
    assert '#include "cortado/primitives/gated' not in text and "ucontext" not in text
    before = out.stat().st_mtime_ns
    subprocess.run([sys.executable, root / "scripts/embed_cuda.py", out], check=True)
    assert out.stat().st_mtime_ns == before  # nothing is compiled again
