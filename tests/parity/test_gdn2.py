"""gdn2 against fla-core's naive functions and its layer, whose kernel they stand in for."""

import pytest
import torch
from fla_naive import naive
from test_delta import CLOSE, SHAPES, compare_layers, leaves, make, randomise
from test_import_linear import Convolution, GatedRms, unit

gdn2 = naive("gdn2.naive")


@pytest.mark.parametrize("strength", [0.01, 1.0, 10.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_rule_is_a_dplr_scan(ops, close, same_gradients, shape, strength):
    """Theirs with an erase and a write gate, ours with the vectors that the mixer makes of them."""
    B, T, H, K, V = shape
    q, k, v, _, g, initial = make(shape, "channel", strength)
    generator = torch.Generator().manual_seed(9)
    erase = 2 * torch.randn(B, T, H, K, generator=generator).sigmoid()
    values = [q, k, v, g, erase, torch.randn(B, T, H, V, generator=generator).sigmoid(), initial]
    a, b = leaves(values), leaves(values)
    o, last = ops.dplr_scan(a[0], a[1], a[5] * a[2], -a[4] * a[1] * a[3].exp(), a[1], a[3], initial_state=a[6])
    right, right_last = gdn2.naive_recurrent_gdn2(*b[:6], initial_state=b[6], output_final_state=True)
    close(o, right, CLOSE, "o")
    close(last, right_last, CLOSE, "state")
    joined = [torch.cat([x.flatten() for x in pair]) for pair in ((o, last), (right, right_last))]
    same_gradients(*joined, a, b, 5e-5)
    if strength < 10:  # beyond, their chunked form multiplies by exp of positive sums of gates
        by_chunks, state = gdn2.naive_chunk_gdn2(*values[:6], initial_state=initial, output_final_state=True)
        close(o, by_chunks, CLOSE, "by chunks")
        close(last, state, CLOSE, "state by chunks")


@pytest.mark.mechanism("gdn2")
@pytest.mark.parametrize("heads, value_heads, head_dim, expand, options", [
    (4, None, 6, 1.0, {}), (2, 4, 8, 1.5, {"allow_neg_eigval": True, "conv_size": 3}), (3, None, 5, 2.0, {"use_short_conv": False}),
])  # fmt: skip
def test_the_mixer_is_their_layer(mixer, close, monkeypatch, heads, value_heads, head_dim, expand, options):
    pytest.importorskip("fla.layers")
    import fla.layers.gdn2 as theirs

    def rule(q, k, **rest):
        names = {name: rest[name] for name in ("v", "g", "b", "w")}
        return gdn2.naive_recurrent_gdn2(unit(q), unit(k), **names)

    for name, made in (("chunk_gdn2", rule), ("FusedRMSNormGated", GatedRms), ("ShortConvolution", Convolution)):
        monkeypatch.setattr(theirs, name, made)

    class Layer(theirs.GatedDeltaNet2):
        def forward(self, x):
            return super().forward(x)[0]

    layer = randomise(Layer(24, expand, head_dim, heads, value_heads, **options))
    ours = mixer("gdn2", 24, value_heads or heads, key_heads=heads, head_dim=head_dim, value_head_dim=int(head_dim * expand),
                 reflect="allow_neg_eigval" in options, taps=options.get("conv_size", 4) if layer.use_short_conv else 0)  # fmt: skip

    def arrange(weights):
        names = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "erase": "b_proj", "write": "w_proj", "decay_in": "f_proj.0", "decay": "f_proj.1",
                 "gate_in": "g_proj.0", "gate": "g_proj.1", "norm": "o_norm", "o": "o_proj"}  # fmt: skip
        if layer.use_short_conv:
            names.update({f"{it}_conv": f"{it}_conv1d" for it in "qkv"})
        return {**{f"{name}.weight": weights[f"{their}.weight"] for name, their in names.items()},
                "gate.bias": weights["g_proj.1.bias"], "a_log": weights["A_log"], "dt_bias": weights["dt_bias"]}  # fmt: skip

    compare_layers(close, ours, layer, arrange)


@pytest.mark.mechanism("gdn2", "kda")
def test_equal_gates_give_kda(mixer, close):
    """Erase and write gates of one number per head are kda's rate."""
    two, one = mixer("gdn2", 24, 4, gate_bias=False), mixer("kda", 24, 4)
    rate = one.parameters["beta.weight"]
    wide = rate.repeat_interleave(6, 0)
    two.fill({**{name: value for name, value in one.parameters.items() if name != "beta.weight"}, "erase.weight": wide, "write.weight": wide})
    x = torch.randn(2, 50, 24, dtype=torch.float64)
    close(two(x), one(x), 1e-10, "o")
