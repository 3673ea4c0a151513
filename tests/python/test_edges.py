"""Sizes of zero, tensors that are not dense and states that are not contiguous give a result or one clear line."""

import pytest
import torch

B, T, H, K, V = 2, 5, 2, 4, 3
WITHOUT_HEADS = ("elementwise_scan", "short_conv")


def shapes(b=B, t=T, h=H, k=K, v=V):
    """Operator -> (shapes of its tensors, keywords)."""
    key, value = (b, t, h, k), (b, t, h, v)
    return {
        "gated_scan": ([key, key, value], {}),
        "slot_scan": ([key, key, value, key], {}),
        "delta_scan": ([key, key, value, (b, t, h)], {}),
        "dplr_scan": ([key, key, value, key, key, key], {}),
        "window_attention": ([key, key, value], {"window": 3}),
        "elementwise_scan": ([(b, t, k), (b, t, k)], {}),
        "short_conv": ([(b, t, k), (k, 3)], {}),
        "latte": ([key, key, value], {}),
        "abc": ([key, key, value, (b, t, h, 6)], {}),
    }


def call(ops, name, change=lambda x: x, dtype=torch.float32, **sizes):
    of, keywords = shapes(**sizes)[name]
    inputs = [change(-torch.rand(shape, dtype=dtype)).requires_grad_() for shape in of]
    outputs = getattr(ops, name)(*inputs, **keywords)
    return inputs, [x for x in (outputs if isinstance(outputs, (tuple, list)) else [outputs]) if x is not None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "name, empty", [(name, size) for name in shapes() for size in ("btk" if name in WITHOUT_HEADS else "bt")]
)
def test_no_rows_tokens_or_channels_give_empty_results(ops, name, empty, dtype):
    inputs, outputs = call(ops, name, dtype=dtype, **{empty: 0})
    assert outputs[0].numel() == 0
    sum(x.sum() for x in outputs if x.requires_grad).backward()
    for x in inputs:
        assert x.grad is None or (x.grad.shape == x.shape and bool((x.grad == 0).all()))


EMPTY = [
    (name, size)
    for size in "hkv"
    for name in shapes()
    if name not in WITHOUT_HEADS and shapes(**{size: 0})[name] != shapes()[name]
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name, empty", EMPTY)
def test_other_sizes_of_zero_are_refused_in_one_line(ops, name, empty, dtype):
    with pytest.raises(RuntimeError, match=rf"\[{name}\] \w+ has a size of 0: .*; only batch and time may be empty"):
        call(ops, name, dtype=dtype, **{empty: 0})


@pytest.mark.parametrize("layout, change", [("Sparse", torch.Tensor.to_sparse), ("Mkldnn", torch.Tensor.to_mkldnn)])
@pytest.mark.parametrize("name", shapes())
def test_what_is_not_dense_is_refused_in_one_line(ops, name, layout, change):
    if layout == "Mkldnn" and torch.get_default_device().type != "cpu":
        pytest.skip("a layout of the CPU's")
    with pytest.raises(RuntimeError, match=rf"\[{name}\] \w+ must be a dense tensor, got the layout {layout}"):
        call(ops, name, change)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_packed_convolutions_take_any_strides(ops, dtype):
    x, weight = torch.randn(1, 9, 4, dtype=dtype), torch.randn(4, 3, dtype=dtype)
    state = torch.randn(2, 4, 2, dtype=dtype).transpose(1, 2)
    bounds = torch.tensor([0, 4, 9])
    expected = ops.short_conv(x, weight, None, initial_state=state.contiguous(), cu_seqlens=bounds)
    for actual, wanted in zip(ops.short_conv(x, weight, None, initial_state=state, cu_seqlens=bounds), expected):
        torch.testing.assert_close(actual, wanted, rtol=0, atol=0)
