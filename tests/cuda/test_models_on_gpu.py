"""Whole models on a GPU: a token recorded as a graph, and the error for a bad token without a graph."""

import pytest
import torch

MIXERS = [{"mixer": "macchiato", "latents": 64, "source": "rg_lru", "window": 17}, {"mixer": "macchiato", "latents": 64, "source": "conv", "window": 17},
          {"mixer": "latte", "latents": 64}, {"mixer": "gla"}, {"mixer": "sliding_window", "window": 16}, {"mixer": "mamba2"},
          {"mixer": "gated_delta_net"}, {"mixer": "kda"}, {"mixer": "blurry_window", "slots": 7, "period": 14}]  # fmt: skip


def tensors(state):
    return [x for part in state for x in part.values()]


def model_of(settings, dtype, vocabulary=50):
    models = pytest.importorskip("cortado.models")
    torch.manual_seed(3)
    config = {"name": "small", "dim": 64, "heads": 2, "layers": 2, "context": 128, "vocabulary": vocabulary, "norm": "rms",
              "mixer": settings, "feed_forward": {"type": "swiglu", "dim": 128}}  # fmt: skip
    return models.LanguageModel(config, device="cuda", dtype=dtype).eval()


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("settings", MIXERS, ids=lambda settings: "-".join(map(str, settings.values())))
def test_a_token_is_captured_in_a_graph(settings, dtype):
    model = model_of(settings, dtype)
    text = torch.randint(50, (3, 40), device="cuda")
    _, start = model(text, model.state(3))
    token = torch.randint(50, (3, 1), device="cuda")
    state = [{name: x.clone() for name, x in part.items()} for part in start]
    model(token, state)  # warms up
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits, after = model(token, state)
        for x, y in zip(tensors(state), tensors(after), strict=True):
            x.copy_(y)
    for _ in range(3):
        token.copy_(torch.randint(50, (3, 1), device="cuda"))
        right, start = model(token.clone(), start)
        graph.replay()
        assert torch.equal(logits, right)
        assert all(map(torch.equal, tensors(state), tensors(start)))


@torch.no_grad()
@pytest.mark.parametrize("settings", [*MIXERS, {"mixer": "softmax"}], ids=lambda settings: "-".join(map(str, settings.values())))
@pytest.mark.parametrize("read", [3, 40])  # a window that fills up, and a full one
def test_generated_tokens_are_those_of_calls(settings, read):
    model = model_of(settings, torch.bfloat16)
    text = torch.randint(50, (3, read), device="cuda")
    found = model.generate(text, 30)
    logits, state = model(text, model.state(3))
    for n in range(30):
        token = logits[:, -1:].argmax(-1)
        assert torch.equal(token, found[:, n : n + 1]), n
        logits, state = model(token, state)


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 3, 16, 20])  # rows of one token: a kernel takes up to sixteen
@pytest.mark.parametrize("settings", MIXERS, ids=lambda settings: "-".join(map(str, settings.values())))
def test_tokens_are_those_of_the_cpu(settings, rows):
    """Single tokens on the GPU, which few kernels compute, agree with whole sequences in float32 on the CPU."""
    model = model_of(settings, torch.bfloat16)
    right = type(model)(model.config).eval()
    right.load_state_dict({name: x.float().cpu() for name, x in model.state_dict().items()})
    text = torch.randint(50, (rows, 46))
    _, state = model(text[:, :40].cuda(), model.state(rows))
    wanted = right(text)[0]
    for n in range(40, 46):
        logits, state = model(text[:, n : n + 1].cuda(), state)
        off = (logits[:, 0].float().cpu() - wanted[:, n]).norm() / wanted[:, n].norm()
        assert off < 0.05, (n, off)


@pytest.mark.parametrize("settings", MIXERS, ids=lambda settings: "-".join(map(str, settings.values())))
def test_a_training_step_is_that_of_the_cpu(settings):
    """Compares autocast, whose loss and norms are kernels, with float32."""
    model = model_of(settings, torch.float32, vocabulary=56)
    right = type(model)(model.config)
    right.load_state_dict({name: x.cpu() for name, x in model.state_dict().items()})
    model.train(), right.train()
    text = torch.randint(56, (3, 71))
    with torch.autocast("cuda", torch.bfloat16):
        loss = model.loss(text[:, :-1].cuda(), text[:, 1:].cuda())
    wanted = right.loss(text[:, :-1], text[:, 1:])
    assert abs(loss.item() - wanted.item()) < 0.01
    loss.backward()
    wanted.backward()
    parts = dict(right.named_parameters())
    total = sum(x.grad.square().sum() for x in parts.values()).sqrt()
    for name, x in model.named_parameters():
        off = (x.grad.cpu() - parts[name].grad).norm()
        assert off < 0.05 * parts[name].grad.norm() + 0.003 * total, (name, off / parts[name].grad.norm())


def test_a_bad_token_is_refused():
    model = model_of(MIXERS[2], torch.bfloat16)
    with pytest.raises(RuntimeError, match="token 50 is outside the vocabulary"):
        model(torch.full((1, 2), 50, device="cuda"))
