"""What the wheel's metadata says of torch: the minor version that it was built with, and no other."""


def dynamic_metadata(field, settings=None):
    import torch

    major, minor = map(int, torch.__version__.split(".")[:2])
    assert field == "dependencies"
    return [f"torch>={major}.{minor},<{major}.{minor + 1}"]


def get_requires_for_dynamic_metadata(settings=None):
    return []
