"""cortado doctor: what it finds, and how it reports problems."""

import json
import os

import pytest
import torch


def torch_gpus():
    return torch.cuda.device_count()


@pytest.fixture(name="report", scope="module")
def fixture_report(cortado):
    done = cortado("doctor", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_machine_and_libraries_are_described(report, root):
    assert report["problems"] == []
    assert report["machine"]["cores"] >= 1 and report["machine"]["memory_bytes"] > 1e8
    assert report["kernels"]["chosen"] in report["kernels"]["available"]
    assert report["kernels"]["available"][-2:] == ["scalar", "aten"]
    assert report["torch"]["version"].startswith("2.13")
    assert {"onednn", "mkl", "bfloat16_products"} <= set(report["torch"])
    for name in ("libcortado", "libcortado_ops", "libtorch", "sentencepiece"):
        assert os.path.exists(report["files"][name]), name
    assert report["files"]["configs"] == str(root / "configs")


def test_every_operator_is_tried(report):
    assert all(error is not None and error < 1e-3 for error in report["checks"].values())
    tried = {name.split("/")[0] for name in report["checks"]}
    assert {"gated_scan", "slot_scan", "delta_scan", "window_attention", "elementwise_scan", "short_conv", "latte", "abc"} <= tried
    assert {"gated_scan", "short_conv"} <= set(report["kernels"]["primitives"])


def test_kernels_for_gpus_are_listed(cortado, tmp_path):
    """Also without a GPU: lists the devices and the compiled kernels."""
    (tmp_path / "gated_scan-kernel-0123456789abcdef.cubin").write_bytes(b"")
    (tmp_path / "gated_scan-kernel_channels-0123456789abcdef.cubin").write_bytes(b"")
    done = cortado("doctor", "--json", env={**os.environ, "CORTADO_CUDA_CACHE": str(tmp_path)})
    gpu = json.loads(done.stdout)["gpu"]
    assert gpu["CORTADO_CUDA_CACHE"] == str(tmp_path) and gpu["number"] == torch_gpus()
    assert gpu["binaries"]["gated_scan/kernel"] == 1 and gpu["binaries"]["gated_scan/kernel_channels"] == 1
    assert gpu["binaries"]["elementwise_scan/kernel"] == gpu["binaries"]["time_softmax/kernel"] == 0


def test_text_says_all_is_well(cortado, report):
    done = cortado("doctor")
    assert done.returncode == 0
    assert done.stdout.endswith("all is well\n")
    assert report["machine"]["cpu"] in done.stdout and "gated_scan" in done.stdout


def test_kernels_turned_off_are_a_problem(refused):
    line = refused("doctor", code=1, env={**os.environ, "CORTADO_ISA": "aten"})
    assert "CORTADO_ISA=aten" in line and "slower" in line


def test_an_unknown_instruction_set_is_a_problem(refused):
    line = refused("doctor", code=1, env={**os.environ, "CORTADO_ISA": "mmx"})
    assert "mmx" in line and "scalar" in line


def test_missing_files_are_a_problem(cortado, tmp_path):
    (tmp_path / "configs").mkdir()
    done = cortado("doctor", env={**os.environ, "CORTADO_SHARE": str(tmp_path)})
    assert done.returncode == 0  # what CORTADO_SHARE lacks is taken from the source tree
    assert str(tmp_path / "configs") in done.stdout
