"""scripts/setup.sh: which packages a system gets."""

import subprocess

import pytest


@pytest.mark.parametrize("system, expected", [("debian", ["a", "b"]), ("ubuntu", ["a", "c"])])
def test_packages_of_a_system(root, tmp_path, system, expected):
    (tmp_path / "list.txt").write_text("# for both\na  # a comment\n\nb [debian]\nc [ubuntu]  # another\n")
    done = subprocess.run([root / "scripts/setup.sh", "--packages", tmp_path / "list.txt", system], capture_output=True, text=True, check=True)
    assert done.stdout.split() == expected


@pytest.mark.parametrize("system", ["debian", "ubuntu"])
def test_lists_have_a_compiler_and_no_word_too_many(root, system):
    command = [root / "scripts/setup.sh", "--packages", root / "system-packages.txt", system]
    packages = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "g++" in packages and len(packages) == len(set(packages))
    for name in ("system-packages.txt", "system-packages-test.txt"):
        for line in (root / name).read_text().splitlines():
            assert all(word in ("[debian]", "[ubuntu]") for word in line.partition("#")[0].split()[1:])
