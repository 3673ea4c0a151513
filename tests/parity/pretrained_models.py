"""Random small models of transformers that are descendants of Llama."""

import torch
import transformers

SIZES = dict(
    vocab_size=67,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    initializer_range=0.3,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
    attn_implementation="eager",
)
LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=5e5,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
YARN = dict(
    rope_type="yarn",
    rope_theta=1e4,
    factor=4.0,
    original_max_position_embeddings=64,
    beta_fast=8.0,
    beta_slow=0.5,
)


def longrope(count, **more):
    short, long = [1 + i / 8 for i in range(count)], [2.0 + 3 * i for i in range(count)]
    return dict(rope_type="longrope", rope_theta=1e4, short_factor=short, long_factor=long, **more)


# The class, the GGUF architecture, and what is special.
MODELS = {
    "llama2": (transformers.LlamaForCausalLM, "llama", {"num_key_value_heads": 4, "rms_norm_eps": 1e-5}),
    "llama3": (transformers.LlamaForCausalLM, "llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama_linear": (
        transformers.LlamaForCausalLM,
        "llama",
        {
            "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
            "head_dim": 16,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "mistral": (transformers.MistralForCausalLM, None, {"sliding_window": 9, "head_dim": 20}),
    "mistral_full": (transformers.MistralForCausalLM, "llama", {"sliding_window": None}),
    "qwen2": (transformers.Qwen2ForCausalLM, "qwen2", {"tie_word_embeddings": True}),
    "qwen2_sliding": (
        transformers.Qwen2ForCausalLM,
        None,
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    ),
    "gemma2": (
        transformers.Gemma2ForCausalLM,
        "gemma2",
        {"sliding_window": 9, "head_dim": 16, "query_pre_attn_scalar": 16},
    ),
    "gemma2_scaled": (
        transformers.Gemma2ForCausalLM,
        None,
        {
            "sliding_window": 9,
            "head_dim": 16,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": None,
        },
    ),
    "qwen3": (transformers.Qwen3ForCausalLM, "qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3_sliding": (
        transformers.Qwen3ForCausalLM,
        None,
        {
            "use_sliding_window": True,
            "sliding_window": 7,
            "max_window_layers": 1,
            "attention_bias": True,
            "rms_norm_eps": 1e-2,
        },
    ),
    "qwen3_yarn": (transformers.Qwen3ForCausalLM, "qwen3", {"head_dim": 16, "rope_parameters": YARN}),
    "gemma": (transformers.GemmaForCausalLM, "gemma", {"head_dim": 16}),
    "gemma3_text": (
        transformers.Gemma3ForCausalLM,
        "gemma3",
        {
            "num_hidden_layers": 7,
            "sliding_window": 9,
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
            "initializer_range": 0.2,
        },
    ),
    "gemma3_text_stretched": (
        transformers.Gemma3ForCausalLM,
        None,
        {
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "sliding_window": 9,
            "head_dim": 16,
            "query_pre_attn_scalar": 24,
            "final_logit_softcapping": 5.0,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 7e4, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 3e3},
            },
        },
    ),
    "smollm3": (transformers.SmolLM3ForCausalLM, "smollm3", {"num_hidden_layers": 5, "initializer_range": 0.2}),
    "smollm3_marked": (
        transformers.SmolLM3ForCausalLM,
        None,
        {
            "no_rope_layers": [0, 1, 1],
            "attention_bias": True,
            "mlp_bias": True,
            "use_sliding_window": True,
            "sliding_window": 8,
            "tie_word_embeddings": False,
            "rope_parameters": LLAMA3,
        },
    ),
    "granite": (
        transformers.GraniteForCausalLM,
        "granite",
        {
            "embedding_multiplier": 0.15,
            "logits_scaling": 4.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.15,
            "rms_norm_eps": 1e-2,
            "tie_word_embeddings": True,
        },
    ),
    "granite_biased": (
        transformers.GraniteForCausalLM,
        None,
        {"residual_multiplier": 1.7, "attention_bias": True, "mlp_bias": True},
    ),
    "phi3": (transformers.Phi3ForCausalLM, "phi3", {"sliding_window": 9, "num_key_value_heads": 4}),
    "phi3_partly": (
        transformers.Phi3ForCausalLM,
        "phi3",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 2e4, "partial_rotary_factor": 0.5}},
    ),
    # All texts of the tests are longer than 16 tokens, and shorter than 512.
    "phi3_long": (
        transformers.Phi3ForCausalLM,
        "phi3",
        {"original_max_position_embeddings": 16, "rope_parameters": longrope(6, attention_factor=1.25)},
    ),
    "phi3_short_partly": (
        transformers.Phi3ForCausalLM,
        "phi3",
        {
            "original_max_position_embeddings": 512,
            "rope_parameters": longrope(3, attention_factor=1.5, partial_rotary_factor=0.5),
        },
    ),
    "seed_oss": (transformers.SeedOssForCausalLM, None, {"head_dim": 20}),
    "seed_oss_biased": (
        transformers.SeedOssForCausalLM,
        None,
        {"attention_bias": False, "attention_out_bias": True, "mlp_bias": True, "head_dim": 12},
    ),
}
# Families whose weights are not those of a Llama: imported, and not exported.
OTHERS = {
    "olmo2": (transformers.Olmo2ForCausalLM, None, {"initializer_range": 0.1}),
    "olmo2_biased": (
        transformers.Olmo2ForCausalLM,
        None,
        {
            "head_dim": 16,
            "attention_bias": True,
            "num_key_value_heads": 4,
            "rms_norm_eps": 1e-2,
            "tie_word_embeddings": True,
            "rope_parameters": LLAMA3,
        },
    ),
    "olmo3": (transformers.Olmo3ForCausalLM, None, {"sliding_window": 9, "num_hidden_layers": 5}),
    "olmo3_stretched": (
        transformers.Olmo3ForCausalLM,
        None,
        {
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "sliding_window": 7,
            "rope_parameters": {
                "full_attention": YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 3e3},
            },
        },
    ),
    "qwen3_moe": (
        transformers.Qwen3MoeForCausalLM,
        None,
        {"head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True},
    ),
}


def make_model(name, more=None):
    """The model and its architecture in GGUF files; `more` are settings that differ."""
    kind, architecture, special = {**MODELS, **OTHERS}[name]
    torch.manual_seed(len(name))
    model = kind(kind.config_class(**{**SIZES, **special, **(more or {})})).eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if weight.dim() == 1:  # norms and biases, which start at 0 or 1
                weight.add_(torch.randn_like(weight) * 0.3)
    return model, architecture
