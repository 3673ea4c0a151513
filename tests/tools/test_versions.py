"""The version is equal in three files; the changelog has its promises."""

import re


def test_the_version_is_one(root):
    version = re.search(r"project\(cortado VERSION ([0-9.]+)", (root / "CMakeLists.txt").read_text())[1]
    assert f'kVersion = "{version}"' in (root / "src/cortado/base/version.h").read_text()
    changelog = (root / "CHANGELOG.md").read_text()
    assert re.search(r"^## ([0-9.]+)", changelog, re.MULTILINE)[1] == version and "## What is stable" in changelog
