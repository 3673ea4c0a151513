"""gated_delta_product against fla-core's layer, with its naive function in place of the kernel, and against gated_delta_net."""

import pytest
import torch
from test_delta import compare_layers, randomise
from test_import_linear import Convolution, GatedRms, Rms, delta_product


@pytest.mark.mechanism("gated_delta_product")
@pytest.mark.parametrize("heads, value_heads, head_dim, expand, steps, options", [
    (2, None, 8, 2.0, 2, {}),
    (2, 4, 6, 1.5, 3, {"allow_neg_eigval": False, "conv_size": 3}),
    (3, None, 5, 1.0, 4, {"use_forget_gate": False, "use_output_gate": False}),
    (2, None, 8, 1.0, 2, {"use_short_conv": False}),
])  # fmt: skip
@pytest.mark.parametrize("strength", [0.01, 1.0, 10.0])
def test_the_mixer_is_their_layer(mixer, close, monkeypatch, heads, value_heads, head_dim, expand, steps, options, strength):
    pytest.importorskip("fla.layers")
    import fla.layers.gated_deltaproduct as theirs

    for name, made in (("chunk_gated_delta_product", delta_product), ("FusedRMSNormGated", GatedRms), ("RMSNorm", Rms),
                       ("ShortConvolution", Convolution)):  # fmt: skip
        monkeypatch.setattr(theirs, name, made)

    class Layer(theirs.GatedDeltaProduct):
        def forward(self, x):
            return super().forward(x)[0]

    layer = randomise(Layer(24, expand, head_dim, heads, value_heads, num_householder=steps, **options))
    if layer.use_forget_gate:
        with torch.no_grad():
            layer.A_log.add_(torch.tensor(strength).log())
    ours = mixer("gated_delta_product", 24, value_heads or heads, key_heads=heads, head_dim=head_dim, value_head_dim=int(head_dim * expand),
                 steps=steps, gated=layer.use_forget_gate, reflect=layer.allow_neg_eigval, output_gate="silu" if layer.use_output_gate else "none",
                 taps=layer.conv_size if layer.use_short_conv else 0)  # fmt: skip

    def arrange(weights):
        names = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "beta": "b_proj", "norm": "o_norm", "o": "o_proj"}
        if layer.use_output_gate:
            names["gate"] = "g_proj"
        if layer.use_short_conv:
            names.update({f"{it}_conv": f"{it}_conv1d" for it in "qkv"})
        given = {f"{name}.weight": weights[f"{their}.weight"] for name, their in names.items()}
        if layer.use_forget_gate:
            given |= {"decay.weight": weights["a_proj.weight"], "a_log": weights["A_log"], "dt_bias": weights["dt_bias"]}
        return given

    compare_layers(close, ours, layer, arrange)


@pytest.mark.mechanism("gated_delta_product", "gated_delta_net")
def test_one_step_gives_gated_delta_net(mixer, close):
    settings = {"key_heads": 2, "head_dim": 5, "value_head_dim": 6, "reflect": True}
    product, net = mixer("gated_delta_product", 24, 4, steps=1, **settings), mixer("gated_delta_net", 24, 4, **settings)
    product.fill(net.parameters)
    x = torch.randn(2, 50, 24, dtype=torch.float64)
    close(product(x), net(x), 1e-12, "o")
