"""primitives/cuda/runtime.h without a GPU: a driver that writes down what it is asked stands in its place."""

import os
import re
import subprocess

import pytest

pytest.importorskip("nvidia", reason="pip install nvidia-cuda-nvrtc")


@pytest.fixture(name="run", scope="module")
def fixture_run(root, build, tmp_path_factory):
    """run(cache) -> (what the test says it compiled, what the driver was asked)."""
    folder = tmp_path_factory.mktemp("driver")
    library = folder / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library, root / "tests/tools/pretended_cuda.c"], check=True)

    def run(cache):
        asked = folder / "asked"
        asked.unlink(missing_ok=True)
        env = {**os.environ, "LD_PRELOAD": str(library), "CORTADO_PRETENDED_CUDA": str(asked), "CORTADO_CUDA_CACHE": str(cache),
               "LD_LIBRARY_PATH": nvrtc_folder()}  # fmt: skip
        command = [build / "bin/primitives_tests", "--gtest_filter=CudaRuntime.*"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return re.search(r"compiled (\d) from disk (\d)", done.stdout).groups(), asked.read_text().splitlines()

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
