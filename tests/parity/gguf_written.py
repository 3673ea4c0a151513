"""The models that `cortado export --gguf` writes, for tests/parity/test_export_gguf.py and bench/peers/written_gguf.py."""

import linear_models
from pretrained_models import MODELS

# The models of pretrained_models.MODELS, with their files' architecture.
WRITTEN = {name: architecture for name, (_, architecture, _) in MODELS.items() if architecture and not name.startswith("phi3")} | {
    "phi3_long": "llama", "granite_biased": "granite", "seed_oss": "llama", "seed_oss_biased": "llama",
}  # fmt: skip
# Those of linear_models.STATES, with the settings without which llama.cpp does not have them.
LINEAR = {
    "mamba": ("mamba", {}),
    "mamba2": ("mamba2", {"tie_word_embeddings": True}),
    "falcon_mamba": ("mamba", {}),
    "jamba": ("jamba", {}),
    "jamba_experts": ("jamba", {"mamba_expand": 2, "mamba_conv_bias": True, "mamba_proj_bias": False}),
    "granitemoehybrid": ("granitehybrid", {}),
    "granitemoehybrid_experts": ("granitehybrid", {}),
    "bamba": ("granitehybrid", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}}),
    "qwen3_moe": ("qwen3moe", {}),
    "lfm2": ("lfm2", {}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo2", {}),
    "olmo3_stretched": ("olmo2", {}),
    "falcon_h1": ("falcon-h1", {}),
    "falcon_h1_wide": ("falcon-h1", {"mamba_norm_before_gate": False, "mamba_proj_bias": False, "attention_bias": False, "mlp_bias": False,
                                     "mamba_conv_bias": True, "rope_parameters": {"rope_type": "default", "rope_theta": 3e4}}),
    "nemotron_h": ("nemotron_h", {"time_step_min": 1e-9}),
    "nemotron_h_wide": ("nemotron_h", {"use_bias": False, "mlp_bias": False, "time_step_min": 1e-9, "use_conv_bias": True}),
    "nemotron_h_experts": ("nemotron_h_moe", {"layers_block_type": ["mamba", "moe", "attention", "mamba", "moe"], "time_step_min": 1e-9}),
    "nemotron_h_latent": ("nemotron_h_moe", {"time_step_min": 1e-9}),
    "kimi_linear": ("kimi-linear", {"linear_num_heads": 4}),
    "minimax": ("minimax-01", {"rms_norm_eps": 1e-6}),
    "minimax_wide": ("minimax-01", {"rms_norm_eps": 1e-6, "rope_parameters": {"rope_type": "default", "rope_theta": 3e4}}),
    "gpt_oss": ("gpt-oss", {"rope_parameters": {"rope_type": "default", "rope_theta": 3e4}}),
    "qwen3_next": ("qwen35", {"linear_value_head_dim": 8}),
    "qwen3_next_experts": ("qwen35moe", {"linear_value_head_dim": 8}),
    "qwen3_5_text": ("qwen35", {"linear_value_head_dim": 8}),
    "qwen3_5_moe_text": ("qwen35moe", {"linear_value_head_dim": 8}),
}  # fmt: skip


def linear_model(name, more=None):
    """The model, with random weights."""
    kind, options = linear_models.STATES[name]
    config = kind.config_class(**{**linear_models.SIZES, **options, **LINEAR[name][1], **(more or {})})
    model = linear_models.random_weights(kind(config))
    model.set_experts_implementation("eager")
    return model
