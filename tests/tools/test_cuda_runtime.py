"""primitives/cuda/runtime.h without a GPU, on a fake driver that logs its calls."""

import os
import re
import subprocess

import pytest

pytest.importorskip("nvidia", reason="pip install nvidia-cuda-nvrtc")


@pytest.fixture(name="say", scope="module")
def fixture_say(root, build, tmp_path_factory):
    """say(tests, more environment) returns (the tests' output, the driver's log)."""
    folder = tmp_path_factory.mktemp("driver")
    library = folder / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library, root / "tests/tools/pretended_cuda.c"], check=True)

    def say(tests, **more):
        asked = folder / "asked"
        asked.unlink(missing_ok=True)
        env = {**os.environ, "LD_PRELOAD": str(library), "CORTADO_PRETENDED_CUDA": str(asked), "LD_LIBRARY_PATH": nvrtc_folder(), **more}
        command = [build / "bin/primitives_tests", f"--gtest_filter=CudaRuntime.{tests}"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout, asked.read_text().splitlines() if asked.exists() else []

    return say


@pytest.fixture(name="run", scope="module")
def fixture_run(say):
    """run(cache) returns (what the test says it compiled, the driver's log)."""

    def run(cache):
        said, asked = say("*", CORTADO_CUDA_CACHE=str(cache))
        return re.search(r"compiled (\d) from disk (\d)", said).groups(), asked

    return run


def nvrtc_folder():
    import nvidia

    for place in nvidia.__path__:
        for entry in sorted(os.listdir(place)):
            folder = os.path.join(place, entry, "lib")
            if os.path.isdir(folder) and any(name.startswith("libnvrtc.so") for name in os.listdir(folder)):
                return folder
    pytest.skip("no libnvrtc")
    return None


@pytest.mark.parametrize("capability, chosen", [
    ("80", "sm_80"), ("89", "sm_89"), ("90", "sm_90a"), ("120", "sm_120"), ("129", r"sm_12\d"),  # that the compiler knows
    ("75", r"\[cuda\] the kernels need compute capability 8.0, this GPU has 7.5"),
    ("990", r"\[cuda\] NVRTC 1\d\.\d+ is too old for this GPU's compute capability 99.0")])  # fmt: skip
def test_the_architecture_is_one_that_the_gpu_runs_and_the_compiler_knows(say, capability, chosen):
    said, _ = say("ChoosesTheArchitecture", CORTADO_PRETENDED_CAPABILITY=capability)
    assert re.search(rf"^chosen: {chosen}$", said, re.MULTILINE), said


def test_a_kernel_is_compiled_once_and_launched(run, tmp_path):
    cache = tmp_path / "cache"
    counted, asked = run(cache)
    assert counted == ("1", "0")
    assert asked == ["retain 0", "load ELF", "launch time_softmax_join 3 2 1, 128 1 1, 0 on 0x5: 7",
                     "launch time_softmax_join 4 5 6, 128 1 1, 0 on 0x5: 8", "attribute time_softmax_apply 8 100000",
                     "attribute time_softmax_apply 9 100", "launch time_softmax_apply 1 1 1, 64 1 1, 100000 on 0x5: 8"]  # fmt: skip
    (kept,) = cache.iterdir()
    assert re.fullmatch(r"time_softmax-kernel-[0-9a-f]{16}\.cubin", kept.name)
    assert run(cache) == (("0", "1"), asked)


@pytest.mark.parametrize("damage", [lambda x: x[: len(x) // 2], lambda x: x[:-9] + b"?" + x[-8:], lambda _: b""], ids=["half", "bit", "empty"])
def test_a_damaged_binary_is_compiled_anew(run, tmp_path, damage):
    run(tmp_path)
    (kept,) = tmp_path.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(damage(whole))
    assert run(tmp_path)[0] == ("1", "0")
    assert kept.read_bytes() == whole


def test_nothing_is_kept_where_that_is_switched_off_or_impossible(run, tmp_path):
    assert run("off")[0] == ("1", "0")
    (tmp_path / "a file").write_text("")
    assert run(tmp_path / "a file")[0] == ("1", "0")
