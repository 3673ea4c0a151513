"""The wheel, made of the libraries that were just built, is installed next to torch alone."""

import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys
import venv

import pytest

pytestmark = pytest.mark.slow  # it is built and installed

# The system's libraries that a wheel may use (manylinux's list), besides its own and torch's.
SYSTEM = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1", "libstdc++.so.6",
          "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}  # fmt: skip


def run(*command, ok=True, **options):
    done = subprocess.run([str(it) for it in command], capture_output=True, text=True, check=False, **options)
    assert (done.returncode == 0) == ok, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def with_dependencies(name, found):
    """Returns a package and all its requirements, without extras."""
    if name in found:
        return found
    try:
        package = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:  # of another system or version
        return found
    found[name] = package
    for need in package.requires or ():
        if "extra ==" not in need:
            with_dependencies(re.match(r"[A-Za-z0-9._-]+", need)[0].lower().replace("_", "-"), found)
    return found


def link(name, site):
    """Links the tests' packages into a clean Python: downloading torch again takes minutes."""
    for package in with_dependencies(name, {}).values():
        tops = {pathlib.Path(str(file)).parts[0] for file in package.files or () if ".." not in str(file)}
        for top in tops - {"__pycache__"}:
            place = site / top
            if not place.exists():
                place.symlink_to(package.locate_file(top))


@pytest.fixture(scope="session", name="clean")
def fixture_clean(once, root, build):
    """The Python of a new environment with torch and the wheel."""

    def make(folder):
        run(sys.executable, "-m", "pip", "wheel", root, "--no-build-isolation", "--no-deps", "-w", folder,
            "-C", f"cmake.define.CORTADO_BUILT={build}")  # fmt: skip
        venv.create(folder / "venv", symlinks=True, with_pip=False)
        site = next((folder / "venv" / "lib").glob("python*/site-packages"))
        for name in ("torch", "numpy"):
            link(name, site)
        # By the pip of the tests, into the new place; no index is asked.
        python = folder / "venv" / "bin" / "python"
        run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", next(folder.glob("*.whl")))

    return once("wheel", make) / "venv" / "bin" / "python"


def elsewhere(tmp_path, **more):
    """Returns an environment without the sources and their build."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("CORTADO_", "PYTHON", "LD_"))}
    return {"cwd": tmp_path, "env": {**kept, "OMP_NUM_THREADS": "1", **more}}


def test_types_and_documentation_come_along(clean):
    package = next((clean.parent.parent / "lib").glob("python*/site-packages/cortado"))
    assert {"py.typed", "nn.pyi", "settings.json"} <= {path.name for path in package.iterdir()}


def test_layers_operators_and_the_program(clean, tmp_path, trained, mechanisms):
    layer = "Macchiato" if "macchiato" in mechanisms else "GLA"
    line = f"import cortado; print(cortado.nn.{layer}(64, heads=4)(__import__('torch').randn(1, 8, 64))[0].shape)"
    assert run(clean, "-c", line, **elsewhere(tmp_path)).stdout == "torch.Size([1, 8, 64])\n"
    for command in ([clean, "-m", "cortado"], [clean.parent / "cortado"]):
        assert run(*command, "--version", **elsewhere(tmp_path)).stdout.startswith("cortado ")
    state = run(clean.parent / "cortado", "doctor", "--json", **elsewhere(tmp_path)).stdout
    assert "site-packages/cortado/share" in state, state
    bad = run(clean.parent / "cortado", "train", "no.json", ok=False, **elsewhere(tmp_path))
    assert bad.returncode == 2 and bad.stderr.count("\n") == 1
    model = trained(mixer={"mixer": "gla"})
    script = f"import cortado; model = cortado.load({str(model)!r}); print(model.generate('The king', 5))"
    assert len(run(clean, "-c", script, **elsewhere(tmp_path)).stdout.rstrip("\n")) >= 1


def test_importing_it_loads_nothing_else(clean, tmp_path):
    script = "import sys, cortado; print(cortado.__version__, 'torch' in sys.modules)"
    version, torch = run(clean, "-c", script, **elsewhere(tmp_path)).stdout.split()
    assert torch == "False" and re.fullmatch(r"\d+\.\d+\.\d+", version)


def test_nothing_else_is_needed(clean):
    """Every library that a file of the wheel names is in the wheel, in torch, or one that every Linux has."""
    site = next((clean.parent.parent / "lib").glob("python*/site-packages"))
    package = site / "cortado"
    there = {path.name for path in (package / "lib").iterdir()} | {path.name for path in (site / "torch" / "lib").iterdir()}
    for file in [*(package / "lib").iterdir(), package / "bin" / "cortado"]:
        told = run("readelf", "-d", file).stdout
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", told))
        assert needed <= there | SYSTEM, (file.name, needed - there - SYSTEM)
        paths = re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", told)
        assert len(paths) == 1 and all(path.startswith("$ORIGIN") for path in paths[0].split(":")), (file.name, paths)


def test_another_torch_is_refused_in_one_line(clean, tmp_path):
    site = next((clean.parent.parent / "lib").glob("python*/site-packages"))
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in (site / "cortado").iterdir():
        (copy / "cortado").mkdir(exist_ok=True)
        if path.name != "_built.py":
            (copy / "cortado" / path.name).symlink_to(path)
    (copy / "cortado" / "_built.py").write_text('TORCH = "2.1"\n')
    done = run(clean, "-c", "import cortado", ok=False, **elsewhere(tmp_path, PYTHONPATH=str(copy)))
    assert done.stderr.splitlines()[-1].startswith("ImportError: this cortado was built for torch 2.1, and torch 2.")
    requires = importlib.metadata.Distribution.at(next(site.glob("cortado-*.dist-info"))).requires
    minor = ".".join(importlib.metadata.version("torch").split(".")[:2])
    assert any(need.startswith("torch") and f">={minor}" in need and f"<2.{int(minor[2:]) + 1}" in need for need in requires), requires


@pytest.mark.mechanism("macchiato")
def test_the_three_ways_in(clean, root, tmp_path, trained):
    """Runs docs/python.md's examples on another run; only this test links transformers."""
    extra = tmp_path / "extra"
    extra.mkdir()
    for name in ("transformers", "accelerate"):
        link(name, extra)
    section = (root / "docs/python.md").read_text().partition("## Three ways in")[2].partition("\n## ")[0]
    ways = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(ways) == 3 and all(way.count("\n") == 3 for way in ways)
    assert ways[0] in (root / "README.md").read_text()
    model = str(trained(mixer={"mixer": "macchiato", "latents": 8, "window": 9}))
    told = []
    for number, way in enumerate(ways):
        path = {"PYTHONPATH": str(extra)} if number == 2 else {}
        told.append(run(clean, "-c", way.replace("build/demo/run", model), **elsewhere(tmp_path, **path)).stdout)
    assert told[2].startswith("ROMEO:") and told[1].strip() == told[2].removeprefix("ROMEO:").strip()


def test_it_is_built_for_the_torch_that_is_there(root, tmp_path, monkeypatch):
    """pip's build environment hides installed packages; the newest torch would replace the user's."""
    monkeypatch.syspath_prepend(str(root / "python"))
    import wheel_metadata

    monkeypatch.setattr(wheel_metadata.sysconfig, "get_path", lambda _: str(tmp_path))
    assert wheel_metadata.get_requires_for_dynamic_metadata() == ["torch>=2.11"]
    (tmp_path / "torch-2.12.1+cpu.dist-info").mkdir()
    (tmp_path / "torch-2.12.1+cpu.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.12.1+cpu\n")
    assert wheel_metadata.get_requires_for_dynamic_metadata() == ["torch==2.12.1"]
