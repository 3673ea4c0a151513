"""mla against the attention layers of DeepSeek-V3 and of Kimi Linear in transformers: outputs, gradients, and a text in two calls."""

import pytest
import torch
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek
from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
from transformers.models.kimi_linear import modeling_kimi_linear as kimi
from transformers.models.kimi_linear.configuration_kimi_linear import KimiLinearConfig

pytestmark = pytest.mark.mechanism("mla")
DIM, HEADS, RANK, N, P, V = 32, 4, 20, 10, 6, 14
SIZES = dict(hidden_size=DIM, num_attention_heads=HEADS, num_key_value_heads=HEADS, kv_lora_rank=RANK, qk_nope_head_dim=N,
             qk_rope_head_dim=P, v_head_dim=V, num_hidden_layers=1, attn_implementation="eager")  # fmt: skip


def causal(tokens):
    return torch.full((tokens, tokens), float("-inf")).triu(1)[None, None]


def deepseek_layer(**options):
    config = DeepseekV3Config(**SIZES, **options)
    layer, rotary = deepseek.DeepseekV3Attention(config, 0), deepseek.DeepseekV3RotaryEmbedding(config)

    def forward(x):
        return layer(x, rotary(x, torch.arange(x.shape[1])[None]), causal(x.shape[1]))[0]

    return layer, forward


def kimi_layer(**options):
    layer = kimi.KimiLinearAttention(KimiLinearConfig(**SIZES, layer_types=["full_attention"], mlp_layer_types=["dense"], **options), 0)
    return layer, lambda x: layer(x, causal(x.shape[1]))[0]


LAYERS = {
    "deepseek": (deepseek_layer, {"q_lora_rank": 12}, {"rotary": True, "q_rank": 12}),
    "deepseek_biased": (deepseek_layer, {"q_lora_rank": 12, "attention_bias": True}, {"rotary": True, "q_rank": 12, "bias": True}),
    "deepseek_halves": (deepseek_layer, {"q_lora_rank": None, "rope_interleave": False}, {"rotary": True}),
    "kimi": (kimi_layer, {}, {"rotary": False}),
    "kimi_low_rank": (kimi_layer, {"q_lora_rank": 8}, {"rotary": False, "q_rank": 8}),
}  # fmt: skip


def by_halves(weight, heads, interleaved):
    """Orders the last P of a head's rows as the first channels of all pairs and then the second ones, if they are interleaved."""
    if not interleaved:
        return weight
    rows = weight.view(heads, -1, *weight.shape[1:])
    last = rows[:, -P:]
    return torch.cat([rows[:, :-P], last[:, 0::2], last[:, 1::2]], 1).view(weight.shape)


def copy_weights(theirs, ours, interleaved):
    """Sets our parameters from theirs. Returns pairs of leaves for gradients of weights that have the same layout in both."""
    up = theirs["kv_b_proj.weight"].view(HEADS, N + V, RANK)
    down = {name: by_halves(theirs[f"kv_a_proj_with_mqa.{name}"], 1, interleaved) for name in ("weight", "bias")
            if f"kv_a_proj_with_mqa.{name}" in theirs}  # fmt: skip
    q = theirs.get("q_proj.weight", theirs.get("q_b_proj.weight"))
    values = {"q.weight": by_halves(q, HEADS, interleaved), "norm.weight": theirs["kv_a_layernorm.weight"], "o.weight": theirs["o_proj.weight"],
              "k_up": up[:, :N], "v_up": up[:, N:], "o.bias": theirs.get("o_proj.bias"), "q_down.weight": theirs.get("q_a_proj.weight"),
              "q_down.bias": theirs.get("q_a_proj.bias"), "q_norm.weight": theirs.get("q_a_layernorm.weight"),
              **{f"down.{name}": value for name, value in down.items()}}  # fmt: skip
    values = {name: value for name, value in values.items() if value is not None}
    ours.fill(values)
    return [(ours.parameters["norm.weight"], theirs["kv_a_layernorm.weight"]), (ours.parameters["o.weight"], theirs["o_proj.weight"])]


@pytest.mark.parametrize("name", LAYERS)
def test_is_that_of_transformers(name, mixer, close, same_gradients):
    make, options, settings = LAYERS[name]
    torch.manual_seed(len(name))
    layer, forward = make(**options)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, 1.0 if parameter.dim() == 1 else 0.0, 0.3)
    ours = mixer("mla", DIM, HEADS, rank=RANK, head_dim=N, shared_dim=P, value_head_dim=V, norm_eps=1e-6, float64=False, **settings)
    shared = copy_weights(dict(layer.named_parameters()), ours, name in ("deepseek", "deepseek_biased"))
    for tokens in (1, 9, 70):
        x = torch.randn(2, tokens, DIM)
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        got, expected = ours(a), forward(b)
        close(got, expected, 2e-5, f"{tokens} tokens")
        same_gradients(got, expected, [a, *(pair[0] for pair in shared)], [b, *(pair[1] for pair in shared)], 1e-4)
    with torch.no_grad():
        pieces = torch.cat([ours.resume(x[:, :60]), *(ours.resume(x[:, t : t + 1]) for t in range(60, 70))], 1)
        close(pieces, forward(x), 2e-5, "in pieces")
