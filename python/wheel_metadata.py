"""What the wheel says of torch: the minor version that it was built with, and no other; and what it is built with: the
torch that is installed where pip was called, else the newest."""

import importlib.metadata
import sysconfig


def dynamic_metadata(field, settings=None):
    import torch

    major, minor = map(int, torch.__version__.split(".")[:2])
    assert field == "dependencies"
    return [f"torch>={major}.{minor},<{major}.{minor + 1}"]


def get_requires_for_dynamic_metadata(settings=None):
    # pip builds in an environment of its own, which hides what is installed, but not where: without this look the wheel
    # would be for the newest torch, and bring that along in place of the one that is there.
    places = list({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    for found in importlib.metadata.distributions(name="torch", path=places):
        return [f"torch=={found.version.partition('+')[0]}"]
    return ["torch>=2.11"]
