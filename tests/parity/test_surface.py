"""The Python-callable mixers: they compute, differentiate and resume."""

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
