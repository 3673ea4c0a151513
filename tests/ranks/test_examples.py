"""Example files that start several processes, started as users do."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
import yaml


def environment(root, build):
    return {**os.environ, "PYTHONPATH": str(root / "python"), "CORTADO_BUILD": str(build), "OMP_NUM_THREADS": "1"}


def run(*command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=240, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.slow
def test_torchrun_on_this_machine(root, build, small, lines, tmp_path):
    done = run(root / "examples/torchrun.sh", small(), tmp_path / "run", 2, "--share-optimizer", env=environment(root, build))
    assert "on 2 processes" in done.stdout and [line["step"] for line in lines(tmp_path / "run")][-1] == 12


@pytest.mark.mechanism("macchiato")  # the example's
@pytest.mark.slow
def test_parameters_shared_out_by_fsdp2(root, build, cortado):
    done = run(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, root / "examples/train_fsdp2.py", 12,
               env=environment(root, build))  # fmt: skip
    kept = re.findall(r"process \d keeps (\d+) of (\d+) bytes", done.stdout)
    assert len(kept) == 2 and all(int(part) < 0.52 * int(whole) for part, whole in kept)
    assert cortado("generate", root / "build/fsdp2", "--prompt-tokens", "82,79", "--n-tokens", 4).returncode == 0


@pytest.mark.parametrize("name", ["torchrun_slurm.sh", "torchrun.sh"])
def test_launchers_are_shell(root, name):
    run("bash", "-n", root / "examples" / name)


def test_slurms_launcher_finds_the_first_machine(root, tmp_path):
    """Fake Slurm commands record what would be started."""
    for name, text in (("scontrol", "echo one\necho two"), ("srun", 'shift\nprintf "%s\\n" "$*"')):
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "x", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "7"}
    done = run("bash", root / "examples/torchrun_slurm.sh", "c.json", "run", "--share-optimizer", env={**os.environ, **variables})
    assert "--rdzv-endpoint one:29500" in done.stdout and "--nnodes 2" in done.stdout
    assert done.stdout.rstrip().endswith("-m cortado train c.json --out run --share-optimizer")


def test_the_manifest_says_what_an_operator_needs(root):
    job = yaml.safe_load(pathlib.Path(root / "examples/pytorchjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    spec = job["spec"]
    assert spec["elasticPolicy"]["minReplicas"] <= spec["pytorchReplicaSpecs"]["Worker"]["replicas"] <= spec["elasticPolicy"]["maxReplicas"]
    container, = spec["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert container["name"] == "pytorch"  # the operator looks for that name
    assert container["command"][:4] == ["torchrun", "-m", "cortado", "train"]
