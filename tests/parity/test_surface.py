"""The Python-callable mixers and models: they compute, differentiate, and mixers resume."""

import json

import pytest
import torch


def test_a_mixer_computes_differentiates_and_resumes(mixer, close):
    latte = mixer("latte", 24, 4, latents=20)
    x = torch.randn(2, 40, 24, dtype=torch.float64)
    y = latte(x)
    grads = torch.autograd.grad(y.square().sum(), list(latte.parameters.values()))
    assert all(g.abs().max() > 0 for g in grads)
    parts = torch.cat([latte.resume(x[:, :17]), latte.resume(x[:, 17:])], 1)
    close(parts, y, 1e-12)
    assert set(latte.state()) == {"latte_state", "latte_normalizer", "latte_maximum"}
    before = latte.parameters["v.weight"].clone()
    latte.fill({name: value * 2 for name, value in latte.parameters.items()})
    assert torch.equal(latte.parameters["v.weight"], before * 2)


CONFIG = {"dim": 24, "heads": 4, "layers": 2, "vocabulary": 11, "mixer": {"mixer": "latte", "latents": 20}}


def test_a_model_computes_and_differentiates(mixer, close):
    model = torch.classes.cortado.LanguageModel(json.dumps({**CONFIG, "dropout": 0.5}))
    tokens = torch.randint(11, (2, 17))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    loss = model.loss(inputs, targets)
    expected = torch.nn.functional.cross_entropy(model.forward(inputs).flatten(0, 1), targets.flatten())
    close(loss.detach(), expected.detach(), 1e-5)
    weights = list(model.parameters().values())
    assert all(g.abs().max() > 0 for g in torch.autograd.grad(loss, weights))
    assert not torch.equal(model.loss(inputs, targets, True), model.loss(inputs, targets, True))  # dropout
    with torch.no_grad():
        for weight in weights:
            weight.zero_()
    close(model.loss(inputs, targets).detach(), torch.tensor(11.0).log(), 1e-6)


def test_a_model_refuses_a_wrong_config(mixer):
    with pytest.raises(RuntimeError, match="vocabulary"):
        torch.classes.cortado.LanguageModel(json.dumps({**CONFIG, "vocabulary": 0}))
    with pytest.raises(RuntimeError, match="latents"):
        torch.classes.cortado.LanguageModel(json.dumps({**CONFIG, "mixer": {"mixer": "latte", "latent": 20}}))
