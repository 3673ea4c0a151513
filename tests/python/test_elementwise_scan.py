"""elementwise_scan against numpy, with gradients, under opcheck, torch.compile and autocast."""

import numpy as np
import pytest
import torch

scan = torch.ops.cortado.elementwise_scan


def numpy_scan(log_a, b, initial, reverse):
    batch, tokens, dim = b.shape
    h = np.zeros((batch, dim), b.dtype) if initial is None else initial.copy()
    out = np.zeros_like(b)
    for t in reversed(range(tokens)) if reverse else range(tokens):
        h = np.exp(log_a[:, t]) * h + b[:, t]
        out[:, t] = h
    return out, h


def inputs(batch, tokens, dim, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    log_a = -torch.rand(batch, tokens, dim, generator=generator, dtype=dtype) * 2
    b = torch.randn(batch, tokens, dim, generator=generator, dtype=dtype)
    initial = torch.randn(batch, dim, generator=generator, dtype=dtype)
    return [x.requires_grad_() for x in (log_a, b, initial)]


@pytest.mark.parametrize("tokens", [1, 2, 17, 100])
@pytest.mark.parametrize("reverse", [False, True])
def test_equals_numpy(tokens, reverse):
    log_a, b, initial = inputs(2, tokens, 3)
    h, last = scan(log_a, b, initial_state=initial, reverse=reverse)
    expected, expected_last = numpy_scan(*(x.detach().numpy() for x in (log_a, b, initial)), reverse)
    np.testing.assert_allclose(h.detach().numpy(), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(last.detach().numpy(), expected_last, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_are_finite_differences(reverse):
    log_a, b, initial = inputs(2, 9, 2)
    assert torch.autograd.gradcheck(lambda *x: scan(x[0], x[1], initial_state=x[2], reverse=reverse), (log_a, b, initial))


def test_complex_gradients():
    generator = torch.Generator().manual_seed(1)
    real = [torch.randn(1, 6, 2, dtype=torch.complex128, generator=generator) * 0.3 for _ in range(2)]
    assert torch.autograd.gradcheck(scan, [x.requires_grad_() for x in real])


def test_packed_gradients():
    log_a, b, _ = inputs(1, 9, 2)
    bounds = torch.tensor([0, 4, 4, 9], dtype=torch.int32)
    initial = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *x: scan(x[0], x[1], initial_state=x[2], cu_seqlens=bounds), (log_a, b, initial))


def test_opcheck():
    log_a, b, initial = inputs(2, 20, 3, torch.float32)
    torch.library.opcheck(scan, (log_a, b), {"initial_state": initial})
    torch.library.opcheck(scan, (log_a[:1], b[:1]), {"cu_seqlens": torch.tensor([0, 5, 20])})


def test_compiles_whole():
    log_a, b, initial = inputs(2, 33, 4, torch.float32)

    def loss(log_a, b, initial):
        h, last = scan(log_a, b, initial_state=initial)
        return (h * h).sum() + last.sum()

    expected = torch.autograd.grad(loss(log_a, b, initial), (log_a, b, initial))
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for got, want in zip(torch.autograd.grad(compiled(log_a, b, initial), (log_a, b, initial)), expected):
        torch.testing.assert_close(got, want)


def test_autocast_mixes_types():
    log_a, b, _ = inputs(2, 40, 3, torch.float32)
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        h, last = scan(log_a, b.bfloat16())
    assert h.dtype == torch.bfloat16 and last.dtype == torch.float32
    (d_log_a,) = torch.autograd.grad(h.float().sum(), log_a)
    assert d_log_a.dtype == torch.float32


def test_twice_differentiated_is_an_error():
    log_a, b, _ = inputs(1, 4, 2)
    (first,) = torch.autograd.grad(scan(log_a, b)[0].pow(2).sum(), log_a, create_graph=True)
    with pytest.raises(RuntimeError, match="twice"):
        first.sum().backward()


def test_shapes_that_do_not_fit():
    with pytest.raises(RuntimeError, match=r"\[elementwise_scan\] expected log_a of shape"):
        scan(torch.zeros(1, 2, 3), torch.zeros(1, 2, 4))


@pytest.mark.parametrize("bounds", [None, torch.tensor([0, 30])])
@pytest.mark.parametrize("state_type", [torch.float64, torch.complex64, torch.complex128])
def test_the_initial_state_has_a_say_in_the_type(state_type, bounds):
    generator = torch.Generator().manual_seed(3)
    log_a = -torch.rand(1, 30, 4, generator=generator)
    b, start = torch.randn(1, 30, 4, generator=generator), torch.randn(1, 4, generator=generator, dtype=state_type)
    h, last = scan(log_a, b, initial_state=start, cu_seqlens=bounds)
    assert last.dtype == state_type
    assert h.dtype == (torch.complex64 if state_type.is_complex else torch.float32)  # b's, complex where it must be
    wide, wide_last = numpy_scan(log_a.double().numpy(), *(x.to(torch.complex128).numpy() for x in (b, start)), False)
    exact = last.dtype in (torch.float64, torch.complex128)
    np.testing.assert_allclose(last.numpy(), wide_last, rtol=1e-12 if exact else 1e-5, atol=1e-14 if exact else 1e-6)
    np.testing.assert_allclose(h.numpy(), wide, rtol=1e-5, atol=1e-6)
    meta = scan(log_a.to("meta"), b.to("meta"), initial_state=start.to("meta"))
    assert [x.dtype for x in meta] == [h.dtype, last.dtype]


def test_gradients_of_real_gates_under_a_complex_state():
    generator = torch.Generator().manual_seed(4)
    log_a, b = (torch.rand(2, 7, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    start = torch.randn(2, 3, generator=generator, dtype=torch.complex128)
    inputs = [x.requires_grad_() for x in (-log_a, b, start)]
    assert torch.autograd.gradcheck(lambda a, b, s: scan(a, b, initial_state=s), inputs)
