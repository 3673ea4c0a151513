"""cortado.ops: a function for every operator, with its arguments, types and documentation."""

import inspect

import pytest
import torch

import cortado.ops

# Operators of models and tests, which users call through cortado.nn and cortado.models.
OTHERS = {"asked_settings", "config", "inner", "mechanisms", "part", "part_calling", "part_places", "part_width", "part_zero_state", "save_weights"}


def schemas():
    names = {name.partition("::")[2] for name in torch._C._dispatch_get_all_op_names() if name.startswith("cortado::")}
    return {name: torch._C._get_schema(f"cortado::{name}", "") for name in names
            if not name.startswith("_") and not name.endswith("_backward") and name not in OTHERS}  # fmt: skip


@pytest.mark.parametrize("name", cortado.ops.__all__)
def test_examples_run(name):
    lines = inspect.getdoc(getattr(cortado.ops, name)).partition("Example:\n")[2].splitlines()
    found = {"cortado": cortado, "torch": torch}
    exec("\n".join(line.strip().removeprefix(">>> ") for line in lines), found)
    results = [value for key, value in found.items() if key in ("o", "h", "y")]
    assert len(results) == 1 and results[0].isfinite().all()


def test_every_operator_has_its_function():
    assert set(schemas()) == set(cortado.ops.__all__)


@pytest.mark.parametrize("name", cortado.ops.__all__)
def test_arguments_are_the_schemas(name):
    schema = schemas()[name]
    signature = inspect.signature(getattr(cortado.ops, name))
    assert [it.name for it in schema.arguments] == list(signature.parameters)
    for argument, parameter in zip(schema.arguments, signature.parameters.values(), strict=True):
        assert argument.kwarg_only == (parameter.kind is inspect.Parameter.KEYWORD_ONLY), argument.name
        assert argument.has_default_value() == (parameter.default is not inspect.Parameter.empty), argument.name
        if argument.has_default_value():
            assert argument.default_value == parameter.default, argument.name
    results = signature.return_annotation.count("Tensor")
    assert results == len(schema.returns)
    text = inspect.getdoc(getattr(cortado.ops, name))
    assert "Returns" in text or "whose results these are" in text
    assert all(argument.name in text for argument in schema.arguments if argument.name not in COMMON), name


COMMON = {"cu_seqlens", "initial_state", "key_state", "value_state", "normalizer", "maximum", "state", "q"}


def tensors(*shapes):
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("name", cortado.ops.__all__)
def test_they_are_the_operators(name):
    """All arguments are distinct, so a dropped or exchanged one shows."""
    schema = schemas()[name]
    seen = {}

    class Recorder:
        def __getattr__(self, called):
            def call(*given, **named):
                seen["name"], seen["arguments"] = called, dict(zip([it.name for it in schema.arguments], given, strict=False)) | named

            return call

    given = {argument.name: object() for argument in schema.arguments}
    positional = [value for argument, value in zip(schema.arguments, given.values(), strict=True) if not argument.kwarg_only]
    named = {argument.name: given[argument.name] for argument in schema.arguments if argument.kwarg_only}
    real, cortado.ops._ops = cortado.ops._ops, Recorder()
    try:
        getattr(cortado.ops, name)(*positional, **named)
    finally:
        cortado.ops._ops = real
    assert seen == {"name": name, "arguments": given}


def test_gradients_and_a_state():
    q, k, v, g = tensors((2, 9, 3, 4), (2, 9, 3, 4), (2, 9, 3, 5), (2, 9, 3))
    gate = -g.exp()
    o, state = cortado.ops.gated_scan(q, k, v, gate)
    first, middle = cortado.ops.gated_scan(q[:, :4], k[:, :4], v[:, :4], gate[:, :4])
    second, last = cortado.ops.gated_scan(q[:, 4:], k[:, 4:], v[:, 4:], gate[:, 4:], initial_state=middle)
    torch.testing.assert_close(torch.cat([first, second], 1), o)
    torch.testing.assert_close(last, state)
    slopes = [torch.autograd.grad(it.square().sum(), [q, k, v, g], retain_graph=True, allow_unused=True) for it in (state, last)]
    for one, other in zip(slopes[0][1:], slopes[1][1:], strict=True):  # the state does not depend on q
        torch.testing.assert_close(one, other)


def test_what_is_wrong_is_said():
    q, k, v = tensors((1, 5, 2, 4), (1, 5, 2, 4), (1, 5, 2, 3))
    with pytest.raises(RuntimeError, match="window"):
        cortado.ops.window_attention(q, k, v, window=0)
    with pytest.raises(RuntimeError, match="read"):
        cortado.ops.gated_scan(q, k, v, read="values")
    with pytest.raises(RuntimeError):
        cortado.ops.gated_scan(q, k[:, :3], v)
    with pytest.raises((TypeError, RuntimeError), match="window|Expected"):
        cortado.ops.window_attention(q, k, v, window="two")
    with pytest.raises(TypeError):
        cortado.ops.latte(q, k)


WRONG = [
    (lambda x: cortado.ops.gated_scan(x.numpy(), x, x), "q must be a tensor, got ndarray"),
    (lambda x: cortado.ops.gated_scan(x, x, x, x.tolist()), "g must be a tensor, got list"),
    (lambda x: cortado.ops.gated_scan(x, x, x, read=3), "read must be a string, got int"),
    (lambda x: cortado.ops.gated_scan(x, x, x, scale="one"), "scale must be float, got str"),
    (lambda x: cortado.ops.window_attention(x, x, x, window=2.5), "window must be int, got float"),
    (lambda x: cortado.ops.short_conv(x[0], x[0, 0], initial_state=x.numpy()), "initial_state must be a tensor, got ndarray"),
    (lambda x: cortado.ops.abc(x, x, x, [x]), "s must be a tensor, got list"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_a_wrong_type_is_one_line(number):
    call, word = WRONG[number]
    with pytest.raises(TypeError, match=word) as caught:
        call(torch.ones(1, 50, 4, 8))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 100
