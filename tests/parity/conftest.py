"""Shared by the parity tests: our mixers in Python, and comparisons within a tolerance."""

import json
import pathlib
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "python"))  # the package, as it lies in the sources


class Mixer:
    """One of our mixers: `parameters` are its own tensors, to be filled in place with another implementation's weights."""

    def __init__(self, name, dim, heads, *, layer=0, layers=1, causal=True, rotary=False, float64=True, **settings):
        text = json.dumps({"mixer": name, **settings})
        self._mixer = torch.classes.cortado.Mixer(text, dim, heads, layer, layers, causal, rotary, float64)
        self.parameters = self._mixer.parameters()

    def fill(self, values):
        """values: name -> tensor of the parameter's number of elements. Every parameter must be given."""
        assert set(values) == set(self.parameters), (sorted(values), sorted(self.parameters))
        with torch.no_grad():
            for name, value in values.items():
                self.parameters[name].copy_(value.detach().reshape(self.parameters[name].shape))

    def __call__(self, x, cu_seqlens=None):
        return self._mixer.forward(x, cu_seqlens)

    def resume(self, x, cu_seqlens=None):
        """Continues from the last call's state; the first call begins at zero."""
        return self._mixer.resume(x, cu_seqlens)

    def state(self):
        return self._mixer.state()


@pytest.fixture(scope="session")
def mixer(ops, build):
    """mixer("latte", dim, heads, latents=32) -> Mixer."""
    torch.classes.load_library(str(build / "lib" / "libcortado.so"))
    return Mixer


def assert_close(actual, expected, tolerance, what=""):
    """Returns the largest difference over the largest magnitude of `expected`."""
    assert actual.shape == expected.shape, (what, actual.shape, expected.shape)
    error = (actual.double() - expected.double()).abs().max() / expected.double().abs().max().clamp_min(1e-30)
    assert error <= tolerance, f"{what}: {error:.2e} > {tolerance:.0e}"


@pytest.fixture(scope="session")
def close():
    """close(actual, expected, tolerance, what)."""
    return assert_close


@pytest.fixture(scope="session")
def same_gradients(close):
    """same_gradients(ours, theirs, our_leaves, their_leaves, tolerance) differentiates one random weighting of both
    outputs."""

    def check(ours, theirs, our_leaves, their_leaves, tolerance):
        weight = torch.randn_like(theirs)
        got = torch.autograd.grad((ours * weight.to(ours.dtype)).sum(), our_leaves)
        wanted = torch.autograd.grad((theirs * weight).sum(), their_leaves)
        for number, (a, b) in enumerate(zip(got, wanted)):
            close(a, b.reshape(a.shape), tolerance, f"gradient {number}")

    return check
