"""Chooses which of a test's parameters `make test` runs."""

import pytest


def quick(those, *parameters):
    """Marks all parameters but `those` as slow, so that only `make test-all` runs them."""
    assert set(those) <= set(parameters), "what is quick is not among them"
    return [it if it in those else pytest.param(it, marks=pytest.mark.slow) for it in parameters]
