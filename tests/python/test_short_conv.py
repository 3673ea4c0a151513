"""short_conv against an independent formula in numpy, against conv1d, and as a citizen of PyTorch."""

import numpy as np
import pytest
import torch

short_conv = torch.ops.cortado.short_conv


def inputs(batch=2, tokens=9, width=3, taps=4, rows=None, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    shapes = [(batch, tokens, width), (width, taps), (width,), (batch if rows is None else rows, taps - 1, width)]
    return [torch.randn(*s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes]


def call(x, weight, bias, state, **options):
    return short_conv(x, weight, bias, initial_state=state, **options)


def formula(x, weight, bias, state, activation="none"):
    x, weight, bias, state = (y.detach().double().numpy() for y in (x, weight, bias, state))
    taps = weight.shape[1]
    line = np.concatenate([state, x], axis=1)
    y = np.zeros(x.shape)
    for t in range(x.shape[1]):
        y[:, t] = np.einsum("bwd,dw->bd", line[:, t : t + taps], weight) + bias
    if activation == "silu":
        y = y / (1 + np.exp(-y))
    return y, line[:, line.shape[1] - (taps - 1) :]


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("taps", [1, 2, 4])
@pytest.mark.parametrize("tokens", [0, 1, 2, 3, 50])
def test_equals_numpy(tokens, taps, activation):
    given = inputs(tokens=tokens, taps=taps)
    for got, want in zip(call(*given, activation=activation), formula(*given, activation)):
        np.testing.assert_allclose(got.detach().numpy(), want, rtol=1e-12, atol=1e-12)


def test_equals_conv1d():
    x, weight, bias, _ = inputs(tokens=40)
    expected = torch.nn.functional.conv1d(
        torch.nn.functional.pad(x.transpose(1, 2), (3, 0)), weight[:, None], bias, groups=3
    ).transpose(1, 2)
    torch.testing.assert_close(short_conv(x, weight, bias)[0], expected)


def test_packed_equals_separate():
    x, weight, bias, state = inputs(batch=1, tokens=20, rows=4)
    bounds = [0, 2, 2, 3, 20]
    y, last = call(x, weight, bias, state, cu_seqlens=torch.tensor(bounds, dtype=torch.int32), activation="silu")
    for n in range(4):
        own = slice(bounds[n], bounds[n + 1])
        want_y, want_last = formula(x[:, own], weight, bias, state[n : n + 1], "silu")
        np.testing.assert_allclose(y[:, own].detach().numpy(), want_y, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(last[n : n + 1].detach().numpy(), want_last)


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("tokens", [1, 2, 7])
def test_gradients_are_finite_differences(tokens, activation):
    assert torch.autograd.gradcheck(lambda *x: call(*x, activation=activation), inputs(tokens=tokens, width=2))


@pytest.mark.parametrize("width", [3, 8, 21])
def test_the_kernels_gradients(width):
    """float32 uses the kernel, which takes channels by vectors and a rest; float64 does not."""
    bounds = torch.tensor([0, 1, 1, 40])
    given = inputs(batch=1, tokens=40, width=width, rows=3, dtype=torch.float32)
    exact = [x.detach().double().requires_grad_() for x in given]

    def gradients(x):
        y, last = call(*x, activation="silu", cu_seqlens=bounds)
        weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).reshape(y.shape).to(y.dtype)
        return torch.autograd.grad((y * weights).sum() + last.square().sum(), x)

    for got, want in zip(gradients(given), gradients(exact)):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_packed_gradients():
    bounds = torch.tensor([0, 1, 1, 7])
    given = inputs(batch=1, tokens=7, width=2, rows=3)
    assert torch.autograd.gradcheck(lambda *x: call(*x, activation="silu", cu_seqlens=bounds), given)


def test_opcheck():
    x, weight, bias, state = inputs(tokens=20, dtype=torch.float32)
    torch.library.opcheck(short_conv, (x, weight, bias), {"activation": "silu", "initial_state": state})
    torch.library.opcheck(short_conv, (x[:1], weight), {"cu_seqlens": torch.tensor([0, 5, 20])})
    y, last = (y.detach() for y in call(x, weight, bias, state))
    backward = torch.ops.cortado.short_conv_backward
    arguments = [y.detach() for y in (y, last, x, weight, bias)]
    torch.library.opcheck(backward, arguments, {"activation": "silu", "initial_state": state.detach()})


def test_compiles_whole():
    given = inputs(tokens=33, dtype=torch.float32)

    def loss(*x):
        y, last = call(*x, activation="silu")
        return (y * y).sum() + last.sum()

    expected = torch.autograd.grad(loss(*given), given)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=True)
    for got, want in zip(torch.autograd.grad(compiled(*given), given), expected):
        torch.testing.assert_close(got, want)


def test_autocast_mixes_types():
    x, weight, bias, state = inputs(tokens=40, dtype=torch.float32)
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        y, last = call(x.bfloat16(), weight, bias, state)
    assert y.dtype == torch.bfloat16 and last.dtype == torch.float32
    expected, _ = formula(x.bfloat16(), weight, bias, state)
    np.testing.assert_allclose(y.detach().float().numpy(), expected, rtol=2**-8, atol=1e-5)
    d_x, d_weight = torch.autograd.grad(y.float().sum(), (x, weight))
    assert d_x.dtype == d_weight.dtype == torch.float32


def test_twice_differentiated_is_an_error():
    x, weight, bias, state = inputs()
    (first,) = torch.autograd.grad(call(x, weight, bias, state, activation="silu")[0].sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="twice"):
        first.sum().backward()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_does_not_fit(device):
    x, weight = torch.zeros(2, 5, 3, device=device), torch.zeros(3, 4, device=device)
    with pytest.raises(RuntimeError, match=r"\[short_conv\] expected weight of shape \[3, \*\], got \[4, 4\]"):
        short_conv(x, torch.zeros(4, 4, device=device))
    with pytest.raises(RuntimeError, match=r"\[short_conv\] expected bias of shape \[3\]"):
        short_conv(x, weight, torch.zeros(4, device=device))
    with pytest.raises(RuntimeError, match=r"expected initial_state of shape \[2, 3, 3\], got \[2, 4, 3\]"):
        short_conv(x, weight, initial_state=torch.zeros(2, 4, 3, device=device))
    with pytest.raises(RuntimeError, match='"none" or "silu"'):
        short_conv(x, weight, activation="relu")
