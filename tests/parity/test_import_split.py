"""GGUF models that are split into several files: the first one's name opens all of them."""

import json
import os
import shutil

import gguf
import pytest
import torch
from gguf_files import write_vocabulary
from gguf_linear_files import write_linear_gguf
from linear_models import model_of
from test_import_linear import check_imported

pytestmark = pytest.mark.mechanism("mamba")


@pytest.fixture
def parts(monkeypatch, tmp_path):
    """A model, and its files."""
    torch.manual_seed(3)
    model = model_of("jamba", monkeypatch)
    write_linear_gguf(tmp_path / "model.gguf", model, "jamba", split_max_tensors=16)
    return model, sorted(tmp_path.glob("*.gguf"))


def test_the_first_part_opens_all(parts, cortado, build, tmp_path):
    model, paths = parts
    assert [path.name for path in paths] == [f"model-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    done = cortado("import", paths[0], "--out", tmp_path / "ours")
    assert done.returncode == 0, done.stderr
    check_imported(model, tmp_path, build)


def test_a_command_imports_again_if_any_part_changes(parts, cortado, monkeypatch, tmp_path):
    monkeypatch.setenv("CORTADO_CACHE", str(tmp_path / "cache"))
    stamps = []
    for seconds in (1e9, 2e9):
        os.utime(parts[1][2], (seconds, seconds))
        assert cortado("describe", parts[1][0]).returncode == 0
        (stamp,) = (tmp_path / "cache").glob("**/source.json")
        stamps.append(json.loads(stamp.read_text())["files"])
    names, times = ([[file[place] for file in files] for files in stamps] for place in (0, 2))
    assert names[0] == names[1] == [path.name for path in parts[1]]
    assert times[0][:2] == times[1][:2] and times[0][2] != times[1][2]


def test_what_is_wrong_with_parts(parts, refused, tmp_path):
    paths = parts[1]

    def line(path):
        return refused("import", path, "--out", tmp_path / "ours")

    assert f"is part 2 of 3 of a model; open the first part, {paths[0]}" in line(paths[1])
    shutil.copy(paths[0], tmp_path / "other.gguf")
    assert "is part 1 of 3 of a model, and its name does not end in -00001-of-00003.gguf" in line(tmp_path / "other.gguf")
    paths[2].rename(tmp_path / "away")
    assert f"is part 1 of 3; part 3, {paths[2]}, is missing" in line(paths[0])
    shutil.copy(paths[1], paths[2])
    assert f"{paths[2]} says that it is part 2 of 3, expected 3 of 3" in line(paths[0])
    write_vocabulary(paths[2], {"tokens": ["a"]})
    assert f"{paths[2]} is no part of a split model, expected part 3 of 3" in line(paths[0])


def test_parts_of_another_model(parts, refused, tmp_path):
    """The same tensor twice, and too few tensors."""
    paths = parts[1]
    first = gguf.GGUFReader(paths[0])

    def write_last(name):
        writer = gguf.GGUFWriter(paths[2], "jamba")
        writer.add_uint16("split.no", 2)
        writer.add_uint16("split.count", 3)
        writer.add_tensor(name, first.tensors[0].data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return refused("import", paths[0], "--out", tmp_path / "ours")

    assert f'and another part have the tensor "{first.tensors[0].name}"' in write_last(first.tensors[0].name)
    assert "have 33 tensors, expected 46" in write_last("x")
