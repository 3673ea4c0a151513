"""Random small models of transformers whose layers are linear in time, or mostly so, and of mixtures of experts."""

import inspect

import torch
import transformers
from transformers.models.kimi_linear import modeling_kimi_linear as kimi_linear
from transformers.models.olmo_hybrid import modeling_olmo_hybrid as olmo_hybrid
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen3_5
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as qwen3_5_moe
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next

SIZES = dict(vocab_size=67, hidden_size=32, num_hidden_layers=3)
QWEN = dict(intermediate_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=16, linear_key_head_dim=8, num_hidden_layers=4,
            linear_value_head_dim=12, linear_num_key_heads=2, linear_num_value_heads=4)  # fmt: skip
MOE = dict(num_attention_heads=4, num_key_value_heads=2, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24)
EXPERTS = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=20)
ROPE = dict(rope_type="default", rope_theta=5e4, partial_rotary_factor=0.5, mrope_section=[2, 1, 1], mrope_interleaved=True)
VISION = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=32, num_position_embeddings=16)
MAMBA2 = dict(num_attention_heads=4, num_key_value_heads=2, intermediate_size=40, mamba_n_heads=8, mamba_n_groups=2, mamba_d_state=6,
              mamba_chunk_size=4)  # fmt: skip
GRANITE = dict(MAMBA2, rms_norm_eps=1e-2, shared_intermediate_size=28, layer_types=["mamba", "attention", "mamba"], num_local_experts=0,
               embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.0625, logits_scaling=6.0)  # fmt: skip
LFM2 = dict(num_attention_heads=4, num_key_value_heads=2, block_auto_adjust_ff_dim=False, intermediate_size=40, pad_token_id=None)
OLMO = dict(num_attention_heads=4, intermediate_size=40, pad_token_id=None)
FALCON = dict(num_attention_heads=4, num_key_value_heads=2, intermediate_size=40, mamba_d_ssm=48, mamba_n_heads=4, mamba_d_state=5, mamba_chunk_size=4)
MULTIPLIERS = dict(embedding_multiplier=5.7, lm_head_multiplier=0.04, key_multiplier=0.39, attention_in_multiplier=0.8, attention_out_multiplier=0.94,
                   ssm_in_multiplier=1.25, ssm_out_multiplier=0.24, ssm_multipliers=[0.35, 0.25, 0.36, 0.5, 0.35], mlp_multipliers=[0.88, 0.59])
NEMOTRON = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=12, mamba_num_heads=4, mamba_head_dim=10, n_groups=2, ssm_state_size=5,
                intermediate_size=40, chunk_size=4)  # fmt: skip
JAMBA = dict(num_attention_heads=4, num_key_value_heads=2, intermediate_size=40, mamba_d_state=5, attn_layer_period=2, attn_layer_offset=1)
NEMOTRON_EXPERTS = dict(n_routed_experts=6, moe_intermediate_size=22, moe_shared_expert_intermediate_size=26, routed_scaling_factor=1.7)
KIMI = dict(num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=12, qk_rope_head_dim=4, qk_nope_head_dim=6, v_head_dim=10, linear_num_heads=2,
            linear_head_dim=8, intermediate_size=40, moe_intermediate_size=20, num_local_experts=6, num_experts_per_tok=2, pad_token_id=None)  # fmt: skip
MINIMAX = dict(num_attention_heads=4, num_key_value_heads=2, intermediate_size=24, num_local_experts=6, num_experts_per_tok=2, block_size=4)
GPT_OSS = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=32, num_local_experts=6, num_experts_per_tok=2,
               sliding_window=5)  # fmt: skip
LLAMA4 = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=24, intermediate_size_mlp=40, num_local_experts=6,
              attention_chunk_size=6, floor_scale=4, attn_scale=0.7, num_hidden_layers=5)  # fmt: skip
ZAMBA2 = dict(num_attention_heads=4, n_mamba_heads=8, mamba_ngroups=2, mamba_d_state=6, chunk_size=4, intermediate_size=40, adapter_rank=5)
STATES = {
    "mamba": (transformers.MambaForCausalLM, dict(state_size=5, initializer_range=0.3)),
    "mamba_wide": (transformers.MambaForCausalLM, dict(state_size=4, time_step_rank=7, conv_kernel=3, use_bias=True,
                                                       use_conv_bias=False, tie_word_embeddings=False, expand=3)),
    "mamba2": (transformers.Mamba2ForCausalLM, dict(state_size=6, num_heads=8, head_dim=8, n_groups=2, chunk_size=4)),
    "mamba2_wide": (transformers.Mamba2ForCausalLM, dict(state_size=4, num_heads=6, head_dim=16, n_groups=1, expand=3, use_bias=True,
                                                         tie_word_embeddings=True, conv_kernel=2, chunk_size=4)),
    "falcon_mamba": (transformers.FalconMambaForCausalLM, dict(state_size=5, expand=16, intermediate_size=64)),
    "falcon_mamba_wide": (transformers.FalconMambaForCausalLM, dict(
        state_size=4, time_step_rank=7, conv_kernel=3, use_bias=True, use_conv_bias=False, tie_word_embeddings=False, mixer_rms_eps=1e-2)),
    "rwkv": (transformers.RwkvForCausalLM, dict(num_hidden_layers=7)),  # more than "rescale_every"
    "rwkv_wide": (transformers.RwkvForCausalLM, dict(attention_hidden_size=48, intermediate_size=40,
                                                     tie_word_embeddings=True)),
    "recurrent_gemma": (transformers.RecurrentGemmaForCausalLM, dict(num_attention_heads=4, intermediate_size=96, num_key_value_heads=1,
                                                                     attention_window_size=5)),
    "recurrent_gemma_wide": (transformers.RecurrentGemmaForCausalLM, dict(
        num_attention_heads=2, lru_width=48, intermediate_size=64, attention_window_size=9, conv1d_width=3, logits_soft_cap=5.0,
        block_types=["attention", "recurrent"], attention_bias=True, num_hidden_layers=5)),
    "qwen3_next": (transformers.Qwen3NextForCausalLM, dict(QWEN, num_experts=0)),
    "qwen3_next_experts": (transformers.Qwen3NextForCausalLM, dict(QWEN, **EXPERTS)),
    "qwen3_next_wide": (transformers.Qwen3NextForCausalLM, dict(
        {**QWEN, "num_hidden_layers": 3}, num_experts=4, num_experts_per_tok=3, norm_topk_prob=False, moe_intermediate_size=12, shared_expert_intermediate_size=8,
        layer_types=["full_attention", "linear_attention", "full_attention"], linear_num_key_heads=4, linear_conv_kernel_dim=2,
        tie_word_embeddings=True, num_key_value_heads=4)),
    "qwen3_moe": (transformers.Qwen3MoeForCausalLM, dict(MOE, head_dim=12, norm_topk_prob=True)),
    "qwen3_moe_wide": (transformers.Qwen3MoeForCausalLM, dict(
        MOE, attention_bias=True, tie_word_embeddings=True, num_experts_per_tok=1, rms_norm_eps=1e-2,
        rope_parameters={"rope_type": "linear", "rope_theta": 3e4, "factor": 4.0})),
    "qwen3_moe_mixed": (transformers.Qwen3MoeForCausalLM, dict(
        MOE, head_dim=12, intermediate_size=40, num_hidden_layers=4, decoder_sparse_step=2, mlp_only_layers=[3])),
    "qwen3_next_mixed": (transformers.Qwen3NextForCausalLM, dict(QWEN, **EXPERTS, mlp_only_layers=[0, 2])),
    "qwen3_5_text": (transformers.Qwen3_5ForCausalLM, dict(QWEN, rope_parameters=ROPE)),
    "qwen3_5": (transformers.Qwen3_5ForConditionalGeneration, dict(
        text_config=dict(SIZES, **{**QWEN, "num_hidden_layers": 5}, rope_parameters=ROPE), vision_config=VISION, tie_word_embeddings=True)),
    "qwen3_5_moe_text": (transformers.Qwen3_5MoeForCausalLM, dict(QWEN, **EXPERTS)),
    "qwen3_5_moe": (transformers.Qwen3_5MoeForConditionalGeneration, dict(
        text_config=dict(SIZES, **QWEN, **{**EXPERTS, "num_experts_per_tok": 3}), vision_config=VISION)),
    "bamba": (transformers.BambaForCausalLM, dict(MAMBA2, attn_layer_indices=[1])),
    "bamba_wide": (transformers.BambaForCausalLM, dict(
        MAMBA2, attn_layer_indices=[0, 3], num_hidden_layers=5, mamba_n_groups=1, mamba_expand=3, mamba_n_heads=6, mamba_d_conv=3,
        mamba_conv_bias=False, mamba_proj_bias=True, attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 3e4})),
    "granitemoehybrid": (transformers.GraniteMoeHybridForCausalLM, dict(GRANITE, tie_word_embeddings=True)),
    "granitemoehybrid_experts": (transformers.GraniteMoeHybridForCausalLM, dict(
        GRANITE, num_local_experts=6, num_experts_per_tok=3, intermediate_size=20, position_embedding_type="rope", attention_bias=True,
        mamba_n_groups=4, num_key_value_heads=None, layer_types=["full_attention", "linear_attention", "full_attention"])),
    "jamba": (transformers.JambaForCausalLM, dict(JAMBA, num_experts=1, rms_norm_eps=1e-3)),
    "jamba_experts": (transformers.JambaForCausalLM, dict(
        JAMBA, num_experts=4, expert_layer_period=1, expert_layer_offset=0, num_hidden_layers=5, attn_layer_period=3, mamba_dt_rank=6,
        mamba_expand=3, mamba_d_conv=3, mamba_conv_bias=False, mamba_proj_bias=True, tie_word_embeddings=True)),
    "jamba_mixed": (transformers.JambaForCausalLM, dict(
        JAMBA, num_experts=4, expert_layer_period=2, expert_layer_offset=1, num_hidden_layers=5, attn_layer_period=3)),
    "kimi_linear": (transformers.KimiLinearForCausalLM, dict(KIMI, layer_types=["linear_attention", "full_attention", "linear_attention"])),
    "kimi_linear_wide": (transformers.KimiLinearForCausalLM, dict(
        KIMI, num_hidden_layers=5, n_group=3, topk_group=2, num_experts_per_tok=3, q_lora_rank=9, attention_bias=True, n_shared_experts=2,
        linear_conv_kernel_dim=3, norm_topk_prob=False, rms_norm_eps=1e-2, mlp_layer_types=["sparse", "dense", "sparse", "sparse", "dense"])),
    "minimax": (transformers.MiniMaxForCausalLM, dict(MINIMAX)),
    "minimax_wide": (transformers.MiniMaxForCausalLM, dict(
        MINIMAX, layer_types=["linear_attention", "linear_attention", "full_attention"], head_dim=12, num_experts_per_tok=3, tie_word_embeddings=True,
        mlp_alpha_factor=3.5, full_attn_alpha_factor=3.5, linear_attn_alpha_factor=3.5, mlp_beta_factor=1.5, full_attn_beta_factor=0.7,
        linear_attn_beta_factor=1.2, rms_norm_eps=1e-2,
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 3e4})),
    "lfm2": (transformers.Lfm2ForCausalLM, dict(LFM2, layer_types=["conv", "full_attention", "conv"])),
    "lfm2_wide": (transformers.Lfm2ForCausalLM, dict(
        {**LFM2, "block_auto_adjust_ff_dim": True}, block_ffn_dim_multiplier=1.3, block_multiple_of=16, full_attn_idxs=[0, 3], num_hidden_layers=5,
        conv_bias=True, conv_L_cache=4, norm_eps=1e-2, tie_word_embeddings=False, num_key_value_heads=4,
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 3e4})),
    "olmo_hybrid": (transformers.OlmoHybridForCausalLM, dict(OLMO, rope_parameters={"rope_type": "default", "rope_theta": None})),
    "olmo_hybrid_wide": (transformers.OlmoHybridForCausalLM, dict(
        OLMO, layer_types=["full_attention", "linear_attention", "full_attention"], num_key_value_heads=2, linear_num_key_heads=2,
        linear_num_value_heads=4, linear_key_head_dim=6, linear_value_head_dim=10, linear_conv_kernel_dim=3, linear_allow_neg_eigval=False,
        rms_norm_eps=1e-2, attention_bias=True, tie_word_embeddings=True,
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 3e4})),
    "olmo2": (transformers.Olmo2ForCausalLM, dict(OLMO, num_key_value_heads=2)),
    "olmo3": (transformers.Olmo3ForCausalLM, dict(OLMO, num_hidden_layers=5, sliding_window=6)),
    "olmo3_stretched": (transformers.Olmo3ForCausalLM, dict(
        OLMO, sliding_window=4, layer_types=["full_attention", "sliding_attention", "full_attention"], rope_parameters={
            "full_attention": {"rope_type": "yarn", "rope_theta": 3e4, "factor": 4.0, "original_max_position_embeddings": 16},
            "sliding_attention": {"rope_type": "default", "rope_theta": 3e4}})),
    "falcon_h1": (transformers.FalconH1ForCausalLM, dict(FALCON, **MULTIPLIERS)),
    "falcon_h1_wide": (transformers.FalconH1ForCausalLM, dict(
        FALCON, **{**MULTIPLIERS, "ssm_multipliers": [0.7, 1.4, 0.5, 2.0, 0.3]}, mamba_rms_norm=True, mamba_n_groups=2, mamba_d_conv=3,
        mamba_conv_bias=False, mamba_proj_bias=True, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, head_dim=12,
        num_key_value_heads=4, rms_norm_eps=1e-2, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 3e4})),
    "falcon_h1_gated": (transformers.FalconH1ForCausalLM, dict(
        FALCON, mamba_d_ssm=None, mamba_rms_norm=True, mamba_norm_before_gate=False, projectors_bias=True, num_key_value_heads=None)),
    "gpt_oss": (transformers.GptOssForCausalLM, dict(GPT_OSS)),
    "gpt_oss_wide": (transformers.GptOssForCausalLM, dict(
        GPT_OSS, layer_types=["full_attention", "sliding_attention", "full_attention"], attention_bias=False, num_experts_per_tok=1, tie_word_embeddings=True,
        swiglu_limit=0.5, swiglu_alpha=1.2, rms_norm_eps=1e-2, num_key_value_heads=4, rope_parameters={
            "rope_type": "yarn", "rope_theta": 3e4, "factor": 4.0, "original_max_position_embeddings": 16, "truncate": True})),
    "llama4": (transformers.Llama4ForCausalLM, dict(LLAMA4)),
    "llama4_wide": (transformers.Llama4ForCausalLM, dict(
        LLAMA4, no_rope_layers=[0, 1, 1, 0, 1], layer_types=["full_attention", "chunked_attention", "full_attention", "chunked_attention", "chunked_attention"],
        moe_layers=[1, 2], num_experts_per_tok=3, use_qk_norm=False, attention_bias=True, tie_word_embeddings=True, rms_norm_eps=1e-2,
        rope_parameters={"rope_type": "llama3", "rope_theta": 3e4, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 16})),
    "llama4_dense": (transformers.Llama4ForCausalLM, dict(LLAMA4, interleave_moe_layer_step=2, attn_temperature_tuning=False, no_rope_layer_interval=2)),
    "zamba2": (transformers.Zamba2ForCausalLM, dict(
        ZAMBA2, num_hidden_layers=5, num_mem_blocks=2, use_shared_attention_adapter=True, use_mem_rope=True, rms_norm_eps=1e-2,
        layers_block_type=["mamba", "hybrid", "hybrid", "mamba", "hybrid"])),
    "zamba2_wide": (transformers.Zamba2ForCausalLM, dict(
        ZAMBA2, layers_block_type=["hybrid", "mamba", "hybrid"], mamba_ngroups=1, mamba_expand=3, n_mamba_heads=6, mamba_d_conv=3, add_bias_linear=True,
        tie_word_embeddings=False, time_step_min=0.5)),
    "nemotron_h": (transformers.NemotronHForCausalLM, dict(NEMOTRON, layers_block_type=["mamba", "mlp", "mamba", "attention", "mlp"])),
    "nemotron_h_experts": (transformers.NemotronHForCausalLM, dict(
        {**NEMOTRON, **NEMOTRON_EXPERTS}, layers_block_type=["mamba", "moe", "attention", "mlp", "mamba"])),
    "nemotron_h_latent": (transformers.NemotronHForCausalLM, dict(
        {**NEMOTRON, **NEMOTRON_EXPERTS}, layers_block_type=["mamba", "moe", "attention", "moe"], n_group=3, topk_group=2, num_experts_per_tok=3,
        moe_latent_size=18, norm_topk_prob=False)),
    "nemotron_h_wide": (transformers.NemotronHForCausalLM, dict(
        NEMOTRON, layers_block_type=["attention", "mlp", "mamba", "mamba"], use_bias=True, mlp_bias=True, use_conv_bias=False,
        conv_kernel=3, n_groups=1, time_step_min=0.5, layer_norm_epsilon=1e-2)),
}  # fmt: skip


def random_weights(model):
    """Draws weights so large that every part matters, biases and mixes included."""
    torch.manual_seed(1)
    apart = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lower_bounds" in name:
                parameter.normal_(0, 1)
            elif parameter.dim() > 1 and parameter.numel() > parameter.shape[-1] and "A_log" not in name:
                parameter.normal_(0, 0.3)
            elif "norm" in name and parameter.abs().max() > 0:  # those that start at 0 are multiplied by 1 + w
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.add_(torch.randn(parameter.shape, generator=apart) * 0.2)
        for name, buffer in model.named_buffers():
            if "correction_bias" in name:
                buffer.normal_(0, 0.3)
    return model.float().eval()


def model_of(name, monkeypatch):
    """The model of STATES, with random weights. A model of images and texts has its sizes in its text_config."""
    names = {module: "torch_{}_gated_delta_rule" for module in (qwen3_next, qwen3_5, qwen3_5_moe, olmo_hybrid)}
    for module, function in {**names, kimi_linear: "{}_kimi_delta_attention"}.items():
        for rule in ("chunk", "recurrent"):  # transformers' own, where fla is installed as well
            place = function.format(rule)
            monkeypatch.setattr(module, place, inspect.unwrap(getattr(module, place)))
    kind, options = STATES[name]
    model = random_weights(kind(kind.config_class(**(options if "text_config" in options else {**SIZES, **options}))))
    model.set_experts_implementation("eager")  # the others have no float64
    return model
