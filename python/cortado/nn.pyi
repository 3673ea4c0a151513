"""Every mechanism as a torch.nn.Module. Written by scripts/settings.py."""

from collections.abc import Sequence
from typing import Any, Literal

import torch

from cortado._mixers import Mixer as Mixer
from cortado._mixers import class_name as class_name
from cortado._mixers import mechanisms as mechanisms
from cortado._mixers import mixer as mixer

__all__: list[str]


class Softmax(Mixer):
    """softmax: softmax attention. Vaswani et al. (2017); Latte-Macchiato eq. 1-3.

        o_t = sum_{s<=t} softmax_s(q_t.k_s / sqrt d) v_s

    Forms: causal and bidirectional. State per layer, in numbers: 2 T Hkv d.

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        kv_heads (int from 1 to 65536): Key and value heads: query head i reads key head i * kv_heads // heads.
            Unless given, heads. Default: set by the sizes: 4 for dim=64 and heads=4.
        head_dim (int from 1 to 65536): Channels per head of queries, keys and values. Unless given, dim / heads.
            Default: set by the sizes: 16 for dim=64 and heads=4.
        bias (bool): Whether the maps to queries, keys and values have a bias. Default: False.
        output_bias (bool): Whether the output map has a bias. Unless given, as bias. Default: False.
        qk_norm (bool): An RMSNorm of queries and keys, before the rotation. Default: False.
        output_gate (bool): Multiplies each head's output by sigmoid(W_g x) before the output map. Default: False.
        rotary (bool): Rotary positions on queries and keys. Unless given, as the model's positions are. Default:
            False.
        rotary_fraction (float from 0 to 1): Share of a head's channels that rotate, the first ones. Default: 1.0.
        rope_theta (float from 1 to 1e+12): Base of the rotary frequencies: channel pair i of K / 2 turns by
            rope_theta^(-2i / K) per token. Unless given, the model's. Default: 10000.0.
        rope_scaling (dict, or None): How rotary frequencies are stretched to a longer context, as in a model's
            config. Unless given, the model's. Default: None.
        scale (float from 1e-09 to 1e+09, or None): Factor of the attention scores. Unless given, 1 /
            sqrt(head_dim). Default: None.
        softcap (float from 1e-06 to 1e+09, or None): Limit of the attention scores: s becomes softcap * tanh(s /
            softcap). Unless given, no limit. Default: None.
        taps (int from 0 to 64, or None): Tokens per short causal convolution after each of q, k and v. 0 or None:
            no convolution. Default: 0.
        taps_start ("normal" or "identity"): How convolutions start: "normal", random with variance 1 / taps, or
            "identity", the current token alone. Default: "normal".
        sinks (bool): A learned score per head that is part of the softmax and has no value (gpt-oss). Default:
            False.
        temperature_period (int from 0 to 2^40): Tokens p after which queries grow: position t has the factor 1 +
            temperature_scale ln(1 + (t + 1) // p) (Llama 4). 0: none. Default: 0.
        temperature_scale (float from 0 to 1000): Factor of that logarithm; only with temperature_period. Default:
            0.1.
        qk_norm_type ("per_head" or "per_layer"): Whether these norms are over each head ("per_head") or over all
            heads together ("per_layer", OLMo-2). Default: "per_head".
        norm_eps (float from 0 to 1): Epsilon of the RMSNorms: those of qk_norm, or the output's. Default: 1e-06.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.Softmax(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = False,
        output_bias: bool = False,
        qk_norm: bool = False,
        output_gate: bool = False,
        rotary: bool = False,
        rotary_fraction: float = 1.0,
        rope_theta: float = 10000.0,
        rope_scaling: dict[str, Any] | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        taps: int | None = 0,
        taps_start: Literal["normal", "identity"] = "normal",
        sinks: bool = False,
        temperature_period: int = 0,
        temperature_scale: float = 0.1,
        qk_norm_type: Literal["per_head", "per_layer"] = "per_head",
        norm_eps: float = 1e-06,
    ) -> None: ...


class SlidingWindow(Mixer):
    """sliding_window: softmax attention. Latte-Macchiato eq. 17.

        o_t = sum_{t-w<s<=t} softmax_s(q_t.k_s / sqrt d) v_s

    Forms: causal and bidirectional. State per layer, in numbers: 2 (w-1) Hkv d.

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        kv_heads (int from 1 to 65536): Key and value heads: query head i reads key head i * kv_heads // heads.
            Unless given, heads. Default: set by the sizes: 4 for dim=64 and heads=4.
        head_dim (int from 1 to 65536): Channels per head of queries, keys and values. Unless given, dim / heads.
            Default: set by the sizes: 16 for dim=64 and heads=4.
        bias (bool): Whether the maps to queries, keys and values have a bias. Default: False.
        output_bias (bool): Whether the output map has a bias. Unless given, as bias. Default: False.
        qk_norm (bool): An RMSNorm of queries and keys, before the rotation. Default: False.
        output_gate (bool): Multiplies each head's output by sigmoid(W_g x) before the output map. Default: False.
        rotary (bool): Rotary positions on queries and keys. Unless given, as the model's positions are. Default:
            False.
        rotary_fraction (float from 0 to 1): Share of a head's channels that rotate, the first ones. Default: 1.0.
        rope_theta (float from 1 to 1e+12): Base of the rotary frequencies: channel pair i of K / 2 turns by
            rope_theta^(-2i / K) per token. Unless given, the model's. Default: 10000.0.
        rope_scaling (dict, or None): How rotary frequencies are stretched to a longer context, as in a model's
            config. Unless given, the model's. Default: None.
        scale (float from 1e-09 to 1e+09, or None): Factor of the attention scores. Unless given, 1 /
            sqrt(head_dim). Default: None.
        softcap (float from 1e-06 to 1e+09, or None): Limit of the attention scores: s becomes softcap * tanh(s /
            softcap). Unless given, no limit. Default: None.
        taps (int from 0 to 64, or None): Tokens per short causal convolution after each of q, k and v. 0 or None:
            no convolution. Default: 0.
        taps_start ("normal" or "identity"): How convolutions start: "normal", random with variance 1 / taps, or
            "identity", the current token alone. Default: "normal".
        sinks (bool): A learned score per head that is part of the softmax and has no value (gpt-oss). Default:
            False.
        temperature_period (int from 0 to 2^40): Tokens p after which queries grow: position t has the factor 1 +
            temperature_scale ln(1 + (t + 1) // p) (Llama 4). 0: none. Default: 0.
        temperature_scale (float from 0 to 1000): Factor of that logarithm; only with temperature_period. Default:
            0.1.
        window (int from 1 to 2^30): Keys per query in the window, its own included. Default: 129.
        aligned (bool): Windows begin at multiples of window tokens: a query sees its own block's keys up to its
            own (Llama 4). Default: False.
        qk_norm_type ("per_head" or "per_layer"): Whether these norms are over each head ("per_head") or over all
            heads together ("per_layer", OLMo-2). Default: "per_head".
        norm_eps (float from 0 to 1): Epsilon of the RMSNorms: those of qk_norm, or the output's. Default: 1e-06.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.SlidingWindow(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = False,
        output_bias: bool = False,
        qk_norm: bool = False,
        output_gate: bool = False,
        rotary: bool = False,
        rotary_fraction: float = 1.0,
        rope_theta: float = 10000.0,
        rope_scaling: dict[str, Any] | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        taps: int | None = 0,
        taps_start: Literal["normal", "identity"] = "normal",
        sinks: bool = False,
        temperature_period: int = 0,
        temperature_scale: float = 0.1,
        window: int = 129,
        aligned: bool = False,
        qk_norm_type: Literal["per_head", "per_layer"] = "per_head",
        norm_eps: float = 1e-06,
    ) -> None: ...


class Mla(Mixer):
    """mla: softmax attention. DeepSeek-V2 (2024) §2.1; Kimi Linear (Moonshot AI 2025).

        o_t = sum_{s<=t} softmax_s(q_t.[W_k c_s, p_s]) W_v c_s, c_s = RMSNorm(W_c x_s)

    Forms: causal and bidirectional. State per layer, in numbers: T (rank + shared_dim).

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        rank (int from 1 to 65536): Channels R of a token's latent, from which all heads' keys and values come.
            Unless given, 4 dim / heads. Default: set by the sizes: 64 for dim=64 and heads=4.
        q_rank (int from 1 to 65536, or None): Channels of a latent for queries. Unless given, queries come from
            the input. Default: None.
        head_dim (int from 1 to 65536): Channels per head of keys that come from the latent. Unless given, dim /
            heads. Default: set by the sizes: 16 for dim=64 and heads=4.
        shared_dim (int from 0 to 65536): Channels of the key that all heads share, the part that is rotated.
            Unless given, about half of dim / heads. Default: set by the sizes: 8 for dim=64 and heads=4.
        value_head_dim (int from 1 to 65536): Channels per head of values. Unless given, head_dim. Default: set by
            the sizes: 16 for dim=64 and heads=4.
        rotary (bool): Rotary positions on queries and keys. Unless given, as the model's positions are. Default:
            False.
        rotary_fraction (float from 0 to 1): Share of a head's channels that rotate, the first ones. Default: 1.0.
        rope_theta (float from 1 to 1e+12): Base of the rotary frequencies: channel pair i of K / 2 turns by
            rope_theta^(-2i / K) per token. Unless given, the model's. Default: 10000.0.
        rope_scaling (dict, or None): How rotary frequencies are stretched to a longer context, as in a model's
            config. Unless given, the model's. Default: None.
        scale (float from 1e-09 to 1e+09, or None): Factor of the attention scores. Unless given, 1 /
            sqrt(head_dim). Default: None.
        softcap (float from 1e-06 to 1e+09, or None): Limit of the attention scores: s becomes softcap * tanh(s /
            softcap). Unless given, no limit. Default: None.
        norm_eps (float from 0 to 1): Epsilon of the latents' RMSNorms. Default: 1e-06.
        bias (bool): Whether the maps to the latents have a bias. Default: False.
        output_bias (bool): Whether the output map has a bias. Unless given, as bias. Default: False.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.Mla(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        rank: int | None = None,
        q_rank: int | None = None,
        head_dim: int | None = None,
        shared_dim: int | None = None,
        value_head_dim: int | None = None,
        rotary: bool = False,
        rotary_fraction: float = 1.0,
        rope_theta: float = 10000.0,
        rope_scaling: dict[str, Any] | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        norm_eps: float = 1e-06,
        bias: bool = False,
        output_bias: bool = False,
    ) -> None: ...


class Linear(Mixer):
    """linear: linear attention. linear-attention chapter; Latte-Macchiato eq. 4-5.

        o_t = S_t' phi(q_t) / (phi(q_t).z_t), S_t = sum phi(k_s) v_s'

    Forms: causal and bidirectional. State per layer, in numbers: H F (d + 1).

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        feature_map ("elu", "relu", "taylor", "t2r", "hedgehog", "lolcats", "exp", "hedgehog_exp" or "performer"):
            Feature map phi of queries and keys: "elu" is elu(x) + 1, "taylor" the exponential to second order,
            "performer" random features; "t2r", "hedgehog", "lolcats" and "hedgehog_exp" are learned. Default:
            "elu".
        normalize (bool): Whether outputs are divided by the sum of their weights. Default: True.
        epsilon (float from 0 to 1): Number added to that sum. Default: 1e-06.
        gate (bool): Multiplies the output by sigmoid(W_g x) before the output map. Default: True.
        bias (bool): Whether the linear maps have a bias. Default: True.
        taps (int from 0 to 64, or None): Tokens per short causal convolution after each of q, k and v. 0 or None:
            no convolution. Default: 0.
        features (int from 1 to 65536): Rows per head of the map's matrix, for the maps that have one. Unless
            given, dim / heads. Default: set by the sizes: 16 for dim=64 and heads=4.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.Linear(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        feature_map: Literal["elu", "relu", "taylor", "t2r", "hedgehog", "lolcats", "exp", "hedgehog_exp", "performer"] = "elu",
        normalize: bool = True,
        epsilon: float = 1e-06,
        gate: bool = True,
        bias: bool = True,
        taps: int | None = 0,
        features: int | None = None,
    ) -> None: ...


class Performer(Mixer):
    """performer: linear attention. Performer (Choromanski et al. 2020); Latte (2024) eq. 30-32.

        o_t = S_t' phi(q_t) / (phi(q_t).z_t), E[phi(q).phi(k)] = exp(q.k / sqrt d)

    Forms: causal and bidirectional. State per layer, in numbers: H F (d + 2).

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        features (int from 1 to 65536): Random features per head; 2 to 4 times the head size estimate better.
            Unless given, dim / heads. Default: set by the sizes: 16 for dim=64 and heads=4.
        normalize (bool): Whether outputs are divided by the sum of their weights. Default: True.
        epsilon (float from 0 to 1): Number added to that sum. Default: 0.0.
        gate (bool): Multiplies the output by sigmoid(W_g x) before the output map. Default: False.
        bias (bool): Whether the linear maps have a bias. Default: True.
        taps (int from 0 to 64, or None): Tokens per short causal convolution after each of q, k and v. 0 or None:
            no convolution. Default: 0.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.Performer(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        features: int | None = None,
        normalize: bool = True,
        epsilon: float = 0.0,
        gate: bool = False,
        bias: bool = True,
        taps: int | None = 0,
    ) -> None: ...


class Latte(Mixer):
    """latte: linear attention. Latte (2024) eq. 6-17; Latte-Macchiato eq. 6-14.

        o_t = sum_l p(l|t) sum_{s<=t} softmax_{s<=t}(theta_sl) v_s

    Forms: causal and bidirectional. State per layer, in numbers: L (d + 2).

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        latents (int from 1 to 2^20): Latent states L per layer, all heads together. Unless given, dim. Default:
            set by the sizes: 64 for dim=64 and heads=4.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.Latte(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        latents: int | None = None,
    ) -> None: ...


class Macchiato(Mixer):
    """macchiato: linear attention + window. Latte-Macchiato (2025) eq. 15-19.

        o_t = p(0|t) window_t + sum_{l>=1} p(l|t) sum_{s<=t} p(s|l,t) v_s

    Forms: causal and bidirectional. State per layer, in numbers: L (d + 2) + 2 (w-1) Hkv d + D.

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        kv_heads (int from 1 to 65536): Key and value heads: query head i reads key head i * kv_heads // heads.
            Unless given, heads. Default: set by the sizes: 4 for dim=64 and heads=4.
        head_dim (int from 1 to 65536): Channels per head of queries, keys and values. Unless given, dim / heads.
            Default: set by the sizes: 16 for dim=64 and heads=4.
        bias (bool): Whether the maps to queries, keys and values have a bias. Default: False.
        output_bias (bool): Whether the output map has a bias. Unless given, as bias. Default: False.
        qk_norm (bool): An RMSNorm of queries and keys, before the rotation. Default: False.
        output_gate (bool): Multiplies each head's output by sigmoid(W_g x) before the output map. Default: False.
        scale (float from 1e-09 to 1e+09, or None): Factor of the attention scores. Unless given, 1 /
            sqrt(head_dim). Default: None.
        softcap (float from 1e-06 to 1e+09, or None): Limit of the attention scores: s becomes softcap * tanh(s /
            softcap). Unless given, no limit. Default: None.
        latents (int from 0 to 2^20): Latent states L per layer, all heads together; 0: window attention alone.
            Unless given, dim. Default: set by the sizes: 64 for dim=64 and heads=4.
        source ("x", "conv" or "rg_lru"): Where the latents' queries and keys come from: "x", the input; "conv", a
            short convolution of it; "rg_lru", an RG-LRU and an RMSNorm of it. Default: "rg_lru".
        taps (int from 1 to 64): Tokens per short convolution of source "conv". Default: 3.
        taps_start ("normal" or "identity"): How convolutions start: "normal", random with variance 1 / taps, or
            "identity", the current token alone. Default: "normal".
        window (int from 1 to 2^30, or None): Keys per query in the window, its own included. None: no window.
            Default: 129.
        rotary (bool): Rotary positions on queries and keys. Default: True.
        rotary_fraction (float from 0 to 1): Share of a head's channels that rotate, the first ones. Default: 1.0.
        rope_theta (float from 1 to 1e+12): Base of the rotary frequencies: channel pair i of K / 2 turns by
            rope_theta^(-2i / K) per token. Unless given, the model's. Default: 10000.0.
        rope_scaling (dict, or None): How rotary frequencies are stretched to a longer context, as in a model's
            config. Unless given, the model's. Default: None.
        window_logit (float from -10000 to 10000, or None): Start of a learned number per head that is added to
            the window's logit. Unless given, there is none. Default: None.
        cache (int from 0 to 2^24, or a list of them, or None): Sparse cache: exact pairs that each key head keeps
            beyond the window, one number for all or one per key head. Unless given, no cache. Default: None.
        score ("surprise" or "learned"): What decides which pairs the cache keeps: "surprise", the error of the
            latents' answer, or "learned", two linear scores per key head. Default: "surprise".
        chunk (int from 1 to 2^24): With a cache: pairs that are judged at a time after they have left the window.
            Default: 64.
        distance (int from 0 to 2^40): With a cache and rotary positions: a cached pair lies at most so many
            tokens before a query's chunk. Default: 512.
        fading (float from 0 to 1): Share of the cached pairs that are chosen by a score that fades with age. The
            others last. Default: 0.0.
        span (int from 0 to 2^20): With learned scores: a lasting pair's score is the mean over so many tokens on
            both sides of it. Default: 0.
        qk_norm_type ("per_head" or "per_layer"): Whether these norms are over each head ("per_head") or over all
            heads together ("per_layer", OLMo-2). Default: "per_head".
        norm_eps (float from 0 to 1): Epsilon of the RMSNorms: those of qk_norm, or the output's. Default: 1e-06.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.Macchiato(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = False,
        output_bias: bool = False,
        qk_norm: bool = False,
        output_gate: bool = False,
        scale: float | None = None,
        softcap: float | None = None,
        latents: int | None = None,
        source: Literal["x", "conv", "rg_lru"] = "rg_lru",
        taps: int = 3,
        taps_start: Literal["normal", "identity"] = "normal",
        window: int | None = 129,
        rotary: bool = True,
        rotary_fraction: float = 1.0,
        rope_theta: float = 10000.0,
        rope_scaling: dict[str, Any] | None = None,
        window_logit: float | None = None,
        cache: int | Sequence[int] | None = None,
        score: Literal["surprise", "learned"] = "surprise",
        chunk: int = 64,
        distance: int = 512,
        fading: float = 0.0,
        span: int = 0,
        qk_norm_type: Literal["per_head", "per_layer"] = "per_head",
        norm_eps: float = 1e-06,
    ) -> None: ...


class RGLRU(Mixer):
    """rg_lru: recurrence. Griffin (De et al. 2024) eq. 1-4; Latte-Macchiato §4.1.

        h_t = a_t h_{t-1} + sqrt(1 - a_t^2) (i_t x_t), log a_t = -8 r_t softplus(Lambda)

    Forms: causal and bidirectional. State per layer, in numbers: D.

    Args:
        dim: Width D of the input and of the output.
        heads: Diagonal blocks of the gates' matrices.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.RGLRU(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None: ...


class Retention(Mixer):
    """retention: linear attention. RetNet (Sun et al. 2023) eq. 5-8.

        S_t = (1 - 2^(-5-h)) S_{t-1} + k_t v_t', o_t = S_t' q_t, q and k rotated

    Forms: causal. State per layer, in numbers: H K V, K = d, V = 2 d.

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        key_dim (int from 1 to 2^20): Channels of queries and keys, all heads together. Default: set by the sizes:
            64 for dim=64 and heads=4.
        value_dim (int from 1 to 2^20): Channels of values, all heads together. Default: set by the sizes: 128 for
            dim=64 and heads=4.
        taps (int from 0 to 64, or None): Tokens per short causal convolution after each of q, k and v. 0 or None:
            no convolution. Default: 0.
        feature_map ("none", "silu", "relu" or "elu"): Function of queries and keys: "elu" is elu(x) + 1. Default:
            "none".
        norm_eps (float from 0 to 1): Epsilon of the RMSNorms: those of qk_norm, or the output's. Default: 1e-05.
        rotary (bool): Rotary positions on queries and keys. Default: True.
        rotary_fraction (float from 0 to 1): Share of a head's channels that rotate, the first ones. Default: 1.0.
        rope_theta (float from 1 to 1e+12): Base of the rotary frequencies: channel pair i of K / 2 turns by
            rope_theta^(-2i / K) per token. Unless given, the model's. Default: 10000.0.
        rope_scaling (dict, or None): How rotary frequencies are stretched to a longer context, as in a model's
            config. Unless given, the model's. Default: None.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.Retention(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        taps: int | None = 0,
        feature_map: Literal["none", "silu", "relu", "elu"] = "none",
        norm_eps: float = 1e-05,
        rotary: bool = True,
        rotary_fraction: float = 1.0,
        rope_theta: float = 10000.0,
        rope_scaling: dict[str, Any] | None = None,
    ) -> None: ...


class Lightning(Mixer):
    """lightning: linear attention. Lightning Attention-2 (Qin et al. 2024); MiniMax-01 (2025).

        S_t = exp(g_h) S_{t-1} + k_t v_t', o_t = S_t' q_t, g_h fixed by head and layer

    Forms: causal. State per layer, in numbers: H K V, K = V = d.

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        key_dim (int from 1 to 2^20): Channels of queries and keys, all heads together. Default: set by the sizes:
            64 for dim=64 and heads=4.
        value_dim (int from 1 to 2^20): Channels of values, all heads together. Default: set by the sizes: 64 for
            dim=64 and heads=4.
        taps (int from 0 to 64, or None): Tokens per short causal convolution after each of q, k and v. 0 or None:
            no convolution. Default: 0.
        feature_map ("none", "silu", "relu" or "elu"): Function of queries and keys: "elu" is elu(x) + 1. Default:
            "silu".
        norm_eps (float from 0 to 1): Epsilon of the RMSNorms: those of qk_norm, or the output's. Default: 1e-06.
        slopes ("fla" or "minimax"): Fixed decay per head and layer: as MiniMax-01 has it, or as
            flash-linear-attention has it. Default: "minimax".

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.Lightning(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        taps: int | None = 0,
        feature_map: Literal["none", "silu", "relu", "elu"] = "silu",
        norm_eps: float = 1e-06,
        slopes: Literal["fla", "minimax"] = "minimax",
    ) -> None: ...


class GLA(Mixer):
    """gla: linear attention. Gated Linear Attention (Yang et al. 2024) eq. 3-4.

        S_t = diag(a_t) S_{t-1} + k_t v_t', a_t = sigmoid(x W_1 W_2 + b)^(1/16), o_t = S_t' q_t

    Forms: causal. State per layer, in numbers: H K V, K = d/2, V = d.

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        key_dim (int from 1 to 2^20): Channels of queries and keys, all heads together. Default: set by the sizes:
            32 for dim=64 and heads=4.
        value_dim (int from 1 to 2^20): Channels of values, all heads together. Default: set by the sizes: 64 for
            dim=64 and heads=4.
        taps (int from 0 to 64, or None): Tokens per short causal convolution after each of q, k and v. 0 or None:
            no convolution. Default: 0.
        feature_map ("none", "silu", "relu" or "elu"): Function of queries and keys: "elu" is elu(x) + 1. Default:
            "none".
        norm_eps (float from 0 to 1): Epsilon of the RMSNorms: those of qk_norm, or the output's. Default: 1e-05.
        decay_rank (int from 1 to 2^20): Rank of the map from x to the decays. Default: 16.
        decay_temperature (float from 0.001 to 1e+06): Root that keeps decays near 1: the decay is sigmoid(...)^(1
            / decay_temperature). Default: 16.0.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.GLA(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        taps: int | None = 0,
        feature_map: Literal["none", "silu", "relu", "elu"] = "none",
        norm_eps: float = 1e-05,
        decay_rank: int = 16,
        decay_temperature: float = 16.0,
    ) -> None: ...


class HGRN2(Mixer):
    """hgrn2: linear attention. HGRN2 (Qin et al. 2024).

        S_t = diag(f_t) S_{t-1} + (1 - f_t) i_t', f_t = l + (1 - l) sigmoid(W_f x_t), o_t = S_t' silu(W_q x_t)

    Forms: causal. State per layer, in numbers: H K V, K = V = d.

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        key_dim (int from 1 to 2^20): Channels of queries and keys, all heads together. Default: set by the sizes:
            64 for dim=64 and heads=4.
        taps (int from 0 to 64, or None): Tokens per short causal convolution after each of the three maps. 0 or
            None: no convolution. Default: 0.
        lower_bound (float from 0 to 0.999): Least part of each key channel that a step keeps. Default: 0.0.
        learned_bound (bool): A learned lower bound per key channel, which starts at lower_bound, or at 0.01 if
            that is less. Default: False.
        norm_eps (float from 0 to 1): Epsilon of the RMSNorms: those of qk_norm, or the output's. Default: 1e-05.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.HGRN2(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        key_dim: int | None = None,
        taps: int | None = 0,
        lower_bound: float = 0.0,
        learned_bound: bool = False,
        norm_eps: float = 1e-05,
    ) -> None: ...


class Mamba(Mixer):
    """mamba: state space. Mamba (Gu & Dao 2023) eq. 2, algorithm 2.

        h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t, y_t = h_t C_t + D x_t

    Forms: causal. State per layer, in numbers: E (N + taps-1), E = 2 D.

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer. A mechanism without heads ignores it.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        expand (int from 1 to 64): Inner width as a multiple of dim. Default: 2.
        state (int from 1 to 65536): State size N: numbers per inner channel. Default: 16.
        step_rank (int from 1 to 2^20): Rank of the map to the step sizes. Unless given, dim / 16, rounded up.
            Default: set by the sizes: 4 for dim=64 and heads=4.
        taps (int from 0 to 64, or None): Tokens of the short causal convolution. 0 or None: no convolution, silu
            alone. Default: 4.
        conv_bias (bool): Whether the short convolution has a bias. Default: True.
        bias (bool): Whether the input and output maps have a bias. Default: False.
        select_norm (bool): RMSNorms of the step's input, of B and of C. Default: False.
        norm_eps (float from 0 to 1): Epsilon of the RMSNorms of select_norm. Default: 1e-06.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.Mamba(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        expand: int = 2,
        state: int = 16,
        step_rank: int | None = None,
        taps: int | None = 4,
        conv_bias: bool = True,
        bias: bool = False,
        select_norm: bool = False,
        norm_eps: float = 1e-06,
    ) -> None: ...


class Mamba2(Mixer):
    """mamba2: state space. Mamba-2 (Dao & Gu 2024) eq. 1-2, §6-7.

        S_t = exp(-A dt_t) S_{t-1} + dt_t B_t x_t', y_t = S_t' C_t + D x_t

    Forms: causal. State per layer, in numbers: E N + (taps-1) (E + 2 groups N), E = 2 D.

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        expand (int from 1 to 64): Inner width as a multiple of dim. Default: 2.
        width (int from 1 to 2^20): Inner width, summed over the heads, in place of expand. Unless given, expand *
            dim. Default: set by the sizes: 128 for dim=64 and heads=4.
        groups (int from 1 to 65536): Groups of heads that share B and C, as key heads are shared in grouped
            queries. Default: 1.
        state (int from 1 to 65536): State size N: keys per head. Default: 128.
        taps (int from 0 to 64, or None): Tokens of the short causal convolution. 0 or None: no convolution, silu
            alone. Default: 4.
        conv_bias (bool): Whether the short convolution has a bias. Default: True.
        bias (bool): Whether the input and output maps have a bias. Default: False.
        norm ("after_gate", "before_gate" or "none"): Where the output's RMSNorm is: after the gate, before it, or
            nowhere. Default: "after_gate".
        step_min (float from 0 to 1000): Smallest step: the softplus of a step is raised to it. Default: 0.0.
        norm_eps (float from 0 to 1): Epsilon of the output's RMSNorm. Default: 1e-05.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.Mamba2(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        expand: int = 2,
        width: int | None = None,
        groups: int = 1,
        state: int = 128,
        taps: int | None = 4,
        conv_bias: bool = True,
        bias: bool = False,
        norm: Literal["after_gate", "before_gate", "none"] = "after_gate",
        step_min: float = 0.0,
        norm_eps: float = 1e-05,
    ) -> None: ...


class Mamba3(Mixer):
    """mamba3: state space. Mamba-3 (Lahoti et al. 2026).

        S_t = a_t S_{t-1} + a_t (1 - l_t) dt_t B_{t-1} x_{t-1}' + l_t dt_t B_t x_t', y_t = S_t' C_t + D x_t, with turned B, C

    Forms: causal. State per layer, in numbers: E (N + 1) + H (rank N + N/4 + 1), E = 2 D.

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        expand (int from 1 to 64): Inner width as a multiple of dim. Default: 2.
        width (int from 1 to 2^20): Inner width, summed over the heads, in place of expand. Unless given, expand *
            dim. Default: set by the sizes: 128 for dim=64 and heads=4.
        groups (int from 1 to 65536): Groups of heads that share B and C; each head has its own biases. Default:
            1.
        state (int from 1 to 65536): State size N: keys per head. Default: 128.
        rotary_fraction (float from 0 to 1): Share of the state's N channels that turn, the first ones, in pairs.
            Default: 0.5.
        rank (int from 1 to 256): Rank R: outer products per token that the state is written with, and reads of
            it. 1: SISO; more: MIMO. Default: 1.
        decay_min (float from 0 to 1000): Smallest decay rate: the softplus that gives -A is raised to it.
            Default: 0.0001.
        norm ("before_gate" or "none"): Whether an RMSNorm of each head is before the output's gate. Default:
            "none".
        norm_eps (float from 0 to 1): Epsilon of that norm. Default: 1e-05.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.Mamba3(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        expand: int = 2,
        width: int | None = None,
        groups: int = 1,
        state: int = 128,
        rotary_fraction: float = 0.5,
        rank: int = 1,
        decay_min: float = 0.0001,
        norm: Literal["before_gate", "none"] = "none",
        norm_eps: float = 1e-05,
    ) -> None: ...


class RWKV4(Mixer):
    """rwkv4: recurrence. RWKV (Peng et al. 2023) eq. 11-16.

        o_t = softmax over s<t of k_s - (t-1-s) w, and k_t + u, of v; times sigmoid(r_t)

    Forms: causal. State per layer, in numbers: 4 D.

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer. A mechanism without heads ignores it.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        width (int from 1 to 2^20): Channels of keys, values and receptances. Unless given, dim. Default: set by
            the sizes: 64 for dim=64 and heads=4.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.RWKV4(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        width: int | None = None,
    ) -> None: ...


class Rwkv4ChannelMix(Mixer):
    """rwkv4_channel_mix: recurrence. RWKV (Peng et al. 2023), channel mixing.

        o_t = sigmoid(r_t) W_v relu(k_t)^2, with r and k of x_t mixed with x_{t-1}

    Forms: causal. State per layer, in numbers: D.

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer. A mechanism without heads ignores it.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        hidden (int from 1 to 2^20): Channels of the hidden layer. Unless given, 4 dim. Default: set by the sizes:
            256 for dim=64 and heads=4.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.Rwkv4ChannelMix(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        hidden: int | None = None,
    ) -> None: ...


class RWKV6(Mixer):
    """rwkv6: linear attention. RWKV-6, Eagle and Finch (Peng et al. 2024) eq. 13-20.

        o_t = (S_{t-1} + diag(u) k_t v_t')' r_t, S_t = diag(exp(-exp(d_t))) S_{t-1} + k_t v_t'

    Forms: causal. State per layer, in numbers: H K V + D, K = V = d.

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        key_dim (int from 1 to 2^20): Channels of queries and keys, all heads together. Default: set by the sizes:
            64 for dim=64 and heads=4.
        value_dim (int from 1 to 2^20): Channels of values, all heads together. Default: set by the sizes: 64 for
            dim=64 and heads=4.
        mix_rank (int from 1 to 2^20): Rank of the maps that mix a token with the token before. Default: 32.
        decay_rank (int from 1 to 2^20): Rank of the map from x to the decays. Default: 64.
        norm_eps (float from 0 to 1): Epsilon of the norm over each head's output. Default: 0.00064.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.RWKV6(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        mix_rank: int = 32,
        decay_rank: int = 64,
        norm_eps: float = 0.00064,
    ) -> None: ...


class RWKV7(Mixer):
    """rwkv7: delta rule. RWKV-7, Goose (Peng et al. 2025) eq. 3-17.

        S_t = (diag(w_t) - (a_t kappa_t) kappa_t') S_{t-1} + k_t v_t', o_t = S_t' r_t

    Forms: causal. State per layer, in numbers: H K V + D, K = V = d.

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        decay_rank (int from 1 to 2^20): Rank of the map from x to the decays. Default: set by the sizes: 32 for
            dim=64 and heads=4.
        rate_rank (int from 1 to 2^20): Rank of the map from x to the rates at which channels are corrected.
            Unless given, a multiple of 32 that grows with sqrt(dim). Default: set by the sizes: 32 for dim=64 and
            heads=4.
        value_rank (int from 0 to 2^20): Rank of the map that mixes a layer's values with those of the model's
            first such layer. 0: each layer has its own values. Default: set by the sizes: 32 for dim=64 and
            heads=4.
        gate_rank (int from 1 to 2^20): Rank of the output gate's map. Unless given, a multiple of 32 that grows
            with sqrt(dim). Default: set by the sizes: 32 for dim=64 and heads=4.
        norm_eps (float from 0 to 1): Epsilon of the norm over each head's output. Default: 0.00064.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.RWKV7(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        decay_rank: int | None = None,
        rate_rank: int | None = None,
        value_rank: int | None = None,
        gate_rank: int | None = None,
        norm_eps: float = 0.00064,
    ) -> None: ...


class Rwkv7ChannelMix(Mixer):
    """rwkv7_channel_mix: recurrence. RWKV-7, Goose (Peng et al. 2025), channel mixing.

        o_t = W_v relu(k_t)^2, with k of x_t mixed with x_{t-1}

    Forms: causal. State per layer, in numbers: D.

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer. A mechanism without heads ignores it.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        hidden (int from 1 to 2^20): Channels of the hidden layer. Unless given, 4 dim. Default: set by the sizes:
            256 for dim=64 and heads=4.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.Rwkv7ChannelMix(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        hidden: int | None = None,
    ) -> None: ...


class DeltaNet(Mixer):
    """delta_net: delta rule. DeltaNet (Schlag et al. 2021; Yang et al. 2024).

        S_t = S_{t-1} + k_t beta_t (v_t - S_{t-1}' k_t)', o_t = S_t' q_t

    Forms: causal. State per layer, in numbers: H K V + (taps-1) H (2 K + V), K = V = d.

    Args:
        dim: Width D of the input and of the output.
        heads: Heads of values and of the state.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        key_heads (int from 1 to 65536): Heads of queries and keys, which divide heads. Unless given, heads.
            Default: set by the sizes: 4 for dim=64 and heads=4.
        head_dim (int from 1 to 65536): Channels per head of queries and keys. Unless given, dim / heads, rounded
            down. Default: set by the sizes: 16 for dim=64 and heads=4.
        value_head_dim (int from 1 to 65536): Channels per head of values. Unless given, head_dim. Default: set by
            the sizes: 16 for dim=64 and heads=4.
        taps (int from 0 to 64, or None): Tokens per short causal convolution after each of q, k and v. 0 or None:
            no convolution. Default: 4.
        reflect (bool): Write strengths from 0 to 2 instead of 0 to 1, so that transitions may have negative
            eigenvalues. Default: False.
        norm_eps (float from 0 to 1): Epsilon of the RMSNorm over each head's output. Default: 1e-05.
        output_gate ("none", "silu" or "sigmoid"): Function act of the output's gate: the normalised output times
            act(W_g x). "none": no gate. Default: "none".

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.DeltaNet(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        key_heads: int | None = None,
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        taps: int | None = 4,
        reflect: bool = False,
        norm_eps: float = 1e-05,
        output_gate: Literal["none", "silu", "sigmoid"] = "none",
    ) -> None: ...


class GatedDeltaNet(Mixer):
    """gated_delta_net: delta rule. Gated DeltaNet (Yang et al. 2025); Qwen3-Next.

        P = a_t S_{t-1}, S_t = P + k_t beta_t (v_t - P' k_t)', o_t = S_t' q_t

    Forms: causal. State per layer, in numbers: H K V + (taps-1) H (2 K + V), K = 3/4 d, V = 2 K.

    Args:
        dim: Width D of the input and of the output.
        heads: Heads of values and of the state.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        key_heads (int from 1 to 65536): Heads of queries and keys, which divide heads. Unless given, heads.
            Default: set by the sizes: 4 for dim=64 and heads=4.
        head_dim (int from 1 to 65536): Channels per head of queries and keys. Unless given, 3/4 dim / heads,
            rounded down. Default: set by the sizes: 12 for dim=64 and heads=4.
        value_head_dim (int from 1 to 65536): Channels per head of values. Unless given, 2 head_dim. Default: set
            by the sizes: 24 for dim=64 and heads=4.
        taps (int from 0 to 64, or None): Tokens per short causal convolution after each of q, k and v. 0 or None:
            no convolution. Default: 4.
        reflect (bool): Write strengths from 0 to 2 instead of 0 to 1, so that transitions may have negative
            eigenvalues. Default: False.
        norm_eps (float from 0 to 1): Epsilon of the RMSNorm over each head's output. Default: 1e-05.
        output_gate ("none", "silu" or "sigmoid"): Function act of the output's gate: the normalised output times
            act(W_g x). "none": no gate. Default: "silu".

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.GatedDeltaNet(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        key_heads: int | None = None,
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        taps: int | None = 4,
        reflect: bool = False,
        norm_eps: float = 1e-05,
        output_gate: Literal["none", "silu", "sigmoid"] = "silu",
    ) -> None: ...


class KDA(Mixer):
    """kda: delta rule. Kimi Linear (Moonshot AI 2025).

        P = diag(a_t) S_{t-1}, S_t = P + k_t beta_t (v_t - P' k_t)', o_t = S_t' q_t

    Forms: causal. State per layer, in numbers: H K V + (taps-1) H (2 K + V), K = V = d.

    Args:
        dim: Width D of the input and of the output.
        heads: Heads of values and of the state.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        key_heads (int from 1 to 65536): Heads of queries and keys, which divide heads. Unless given, heads.
            Default: set by the sizes: 4 for dim=64 and heads=4.
        head_dim (int from 1 to 65536): Channels per head of queries and keys. Unless given, dim / heads, rounded
            down. Default: set by the sizes: 16 for dim=64 and heads=4.
        value_head_dim (int from 1 to 65536): Channels per head of values. Unless given, head_dim. Default: set by
            the sizes: 16 for dim=64 and heads=4.
        taps (int from 0 to 64, or None): Tokens per short causal convolution after each of q, k and v. 0 or None:
            no convolution. Default: 4.
        reflect (bool): Write strengths from 0 to 2 instead of 0 to 1, so that transitions may have negative
            eigenvalues. Default: False.
        norm_eps (float from 0 to 1): Epsilon of the RMSNorm over each head's output. Default: 1e-05.
        output_gate ("none", "silu" or "sigmoid"): Function act of the output's gate: the normalised output times
            act(W_g x). "none": no gate. Default: "sigmoid".
        gate_rank (int from 1 to 65536): Rank of the maps to the decays and to the output's gate. Unless given,
            value_head_dim. Default: set by the sizes: 16 for dim=64 and heads=4.
        gate_bias (bool): Whether the map to the output's gate has a bias. Default: False.
        lower_bound (float from -1000 to -0.001, or None): Bound of the decays' natural log: it is lower_bound
            times a sigmoid. null: minus a softplus, without a bound. Default: None.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.KDA(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        key_heads: int | None = None,
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        taps: int | None = 4,
        reflect: bool = False,
        norm_eps: float = 1e-05,
        output_gate: Literal["none", "silu", "sigmoid"] = "sigmoid",
        gate_rank: int | None = None,
        gate_bias: bool = False,
        lower_bound: float | None = None,
    ) -> None: ...


class GDN2(Mixer):
    """gdn2: delta rule. Gated DeltaNet-2 (Hatamizadeh et al. 2026).

        P = diag(a_t) S_{t-1}, S_t = P + k_t (w_t v_t - P' (b_t k_t))', o_t = S_t' q_t

    Forms: causal. State per layer, in numbers: H K V + (taps-1) H (2 K + V), K = V = d.

    Args:
        dim: Width D of the input and of the output.
        heads: Heads of values and of the state.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        key_heads (int from 1 to 65536): Heads of queries and keys, which divide heads. Unless given, heads.
            Default: set by the sizes: 4 for dim=64 and heads=4.
        head_dim (int from 1 to 65536): Channels per head of queries and keys. Unless given, dim / heads, rounded
            down. Default: set by the sizes: 16 for dim=64 and heads=4.
        value_head_dim (int from 1 to 65536): Channels per head of values. Unless given, head_dim. Default: set by
            the sizes: 16 for dim=64 and heads=4.
        taps (int from 0 to 64, or None): Tokens per short causal convolution after each of q, k and v. 0 or None:
            no convolution. Default: 4.
        reflect (bool): Erase gates from 0 to 2 instead of 0 to 1, so that transitions may have negative
            eigenvalues. Default: False.
        norm_eps (float from 0 to 1): Epsilon of the RMSNorm over each head's output. Default: 1e-05.
        output_gate ("none", "silu" or "sigmoid"): Function act of the output's gate: the normalised output times
            act(W_g x). "none": no gate. Default: "sigmoid".
        gate_rank (int from 1 to 65536): Rank of the maps to the decays and to the output's gate. Unless given,
            value_head_dim. Default: set by the sizes: 16 for dim=64 and heads=4.
        gate_bias (bool): Whether the map to the output's gate has a bias. Default: True.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.GDN2(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        key_heads: int | None = None,
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        taps: int | None = 4,
        reflect: bool = False,
        norm_eps: float = 1e-05,
        output_gate: Literal["none", "silu", "sigmoid"] = "sigmoid",
        gate_rank: int | None = None,
        gate_bias: bool = True,
    ) -> None: ...


class GatedDeltaProduct(Mixer):
    """gated_delta_product: delta rule. DeltaProduct (Siems et al. 2025).

        S = a_t S_{t-1}, n times: S = S + k_tj beta_tj (v_tj - S' k_tj)', S_t = S, o_t = S_t' q_t

    Forms: causal. State per layer, in numbers: H K V + (taps-1) H (K + steps (K + V)), K = 3/4 d, V = 2 K.

    Args:
        dim: Width D of the input and of the output.
        heads: Heads of values and of the state.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        key_heads (int from 1 to 65536): Heads of queries and keys, which divide heads. Unless given, heads.
            Default: set by the sizes: 4 for dim=64 and heads=4.
        head_dim (int from 1 to 65536): Channels per head of queries and keys. Unless given, 3/4 dim / heads,
            rounded down. Default: set by the sizes: 12 for dim=64 and heads=4.
        value_head_dim (int from 1 to 65536): Channels per head of values. Unless given, 2 head_dim. Default: set
            by the sizes: 24 for dim=64 and heads=4.
        taps (int from 0 to 64, or None): Tokens per short causal convolution after each of q, k and v. 0 or None:
            no convolution. Default: 4.
        steps (int from 1 to 64): Delta steps per token, each with its own key, value and write strength. Default:
            2.
        reflect (bool): Write strengths from 0 to 2 instead of 0 to 1, so that transitions may have negative
            eigenvalues. Default: True.
        norm_eps (float from 0 to 1): Epsilon of the RMSNorm over each head's output. Default: 1e-05.
        output_gate ("none", "silu" or "sigmoid"): Function act of the output's gate: the normalised output times
            act(W_g x). "none": no gate. Default: "silu".
        gated (bool): Whether the state decays once per token, at one rate per head. Default: True.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.GatedDeltaProduct(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        key_heads: int | None = None,
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        taps: int | None = 4,
        steps: int = 2,
        reflect: bool = True,
        norm_eps: float = 1e-05,
        output_gate: Literal["none", "silu", "sigmoid"] = "silu",
        gated: bool = True,
    ) -> None: ...


class ABC(Mixer):
    """abc: slot attention. ABC (2022); Blurry Window Attention §2.2 eq. 2.

        o_t = V_t' softmax(K_t q_t / sqrt d), K_t[m] = sum_{s<=t} softmax_{s<=t}(theta_sm) k_s

    Forms: causal. State per layer, in numbers: 2 H M (d + 1).

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        slots (int from 1 to 2^20): Slots M per head: each holds a weighted mean of keys and of values. Default:
            64.
        rotary (bool): Rotary positions on queries and keys. Unless given, as the model's positions are. Default:
            False.
        rotary_fraction (float from 0 to 1): Share of a head's channels that rotate, the first ones. Default: 1.0.
        rope_theta (float from 1 to 1e+12): Base of the rotary frequencies: channel pair i of K / 2 turns by
            rope_theta^(-2i / K) per token. Unless given, the model's. Default: 10000.0.
        rope_scaling (dict, or None): How rotary frequencies are stretched to a longer context, as in a model's
            config. Unless given, the model's. Default: None.
        gate (bool): Multiplies an RMSNorm of each head's output by silu(W_g x) before the output map. Default:
            True.
        taps (int from 0 to 64, or None): Tokens per short causal convolution after each of q, k and v. 0 or None:
            no convolution. Default: 0.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.ABC(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        slots: int = 64,
        rotary: bool = False,
        rotary_fraction: float = 1.0,
        rope_theta: float = 10000.0,
        rope_scaling: dict[str, Any] | None = None,
        gate: bool = True,
        taps: int | None = 0,
    ) -> None: ...


class GatedSlot(Mixer):
    """gated_slot: slot attention. Gated Slot Attention (2024); Blurry Window Attention §2.2 eq. 3.

        o_t = V_t' softmax(K_t q_t), K_t = diag(a_t) K_{t-1} + (1 - a_t) k_t'

    Forms: causal. State per layer, in numbers: 2 H M d.

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        slots (int from 1 to 2^20): Slots M per head: each holds a weighted mean of keys and of values. Default:
            64.
        temperature (float from 0.001 to 1e+06): Root that keeps gates near 1: a slot keeps sigmoid(...)^(1 /
            temperature) of its content. Default: 8.0.
        taps (int from 0 to 64, or None): Tokens per short causal convolution after each of q, k and v. 0 or None:
            no convolution. Default: 0.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.GatedSlot(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        slots: int = 64,
        temperature: float = 8.0,
        taps: int | None = 0,
    ) -> None: ...


class BlurryWindow(Mixer):
    """blurry_window: slot attention. Blurry Window Attention (2026) eq. 14-17, §3.3.

        o_t = V_t' softmax(K_t q_t / sqrt d), K_t = diag(1 - w_t) K_{t-1} + w_t k_t', w_t[n] = D(t - nP/N)

    Forms: causal. State per layer, in numbers: 2 H M d.

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        slots (int from 1 to 2^20): Slots N per head, an odd number: each holds a blurred key and value of the
            window. Default: 33.
        period (int from 1 to 2^24): Tokens P of the window, at least slots. Unless given, slots. Default: 33.
        decay (bool): Whether a slot forgets what it held before when it is written. Without it, slots add up all
            they are given. Default: True.
        rotary (bool): Rotary positions on queries and keys. Unless given, as the model's positions are. Default:
            False.
        rotary_fraction (float from 0 to 1): Share of a head's channels that rotate, the first ones. Default: 1.0.
        rope_theta (float from 1 to 1e+12): Base of the rotary frequencies: channel pair i of K / 2 turns by
            rope_theta^(-2i / K) per token. Unless given, the model's. Default: 10000.0.
        rope_scaling (dict, or None): How rotary frequencies are stretched to a longer context, as in a model's
            config. Unless given, the model's. Default: None.
        taps (int from 0 to 64, or None): Tokens per short causal convolution after each of q, k and v. 0 or None:
            no convolution. Default: 0.
        taps_start ("normal" or "identity"): How convolutions start: "normal", random with variance 1 / taps, or
            "identity", the current token alone. Default: "normal".

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.BlurryWindow(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        slots: int = 33,
        period: int = 33,
        decay: bool = True,
        rotary: bool = False,
        rotary_fraction: float = 1.0,
        rope_theta: float = 10000.0,
        rope_scaling: dict[str, Any] | None = None,
        taps: int | None = 0,
        taps_start: Literal["normal", "identity"] = "normal",
    ) -> None: ...


class LoLCATs(Mixer):
    """lolcats: linear attention + window. LoLCATs (2024); LoLA (2025) eq. 6-7, 13.

        o_t = [sum_W g e^(s-c) v_j + sum_(j<W) phi(q_t).phi(k_j) v_j] / [the same without v]

    Forms: causal. State per layer, in numbers: 4 w Hkv d + H F (d + 1).

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        kv_heads (int from 1 to 65536): Key and value heads: query head i reads key head i * kv_heads // heads.
            Unless given, heads. Default: set by the sizes: 4 for dim=64 and heads=4.
        head_dim (int from 1 to 65536): Channels per head of queries, keys and values. Unless given, dim / heads.
            Default: set by the sizes: 16 for dim=64 and heads=4.
        bias (bool): Whether the maps to queries, keys and values have a bias. Default: False.
        output_bias (bool): Whether the output map has a bias. Unless given, as bias. Default: False.
        qk_norm (bool): An RMSNorm of queries and keys, before the rotation. Default: False.
        output_gate (bool): Multiplies each head's output by sigmoid(W_g x) before the output map. Default: False.
        rotary (bool): Rotary positions on queries and keys. Unless given, as the model's positions are. Default:
            False.
        rotary_fraction (float from 0 to 1): Share of a head's channels that rotate, the first ones. Default: 1.0.
        rope_theta (float from 1 to 1e+12): Base of the rotary frequencies: channel pair i of K / 2 turns by
            rope_theta^(-2i / K) per token. Unless given, the model's. Default: 10000.0.
        rope_scaling (dict, or None): How rotary frequencies are stretched to a longer context, as in a model's
            config. Unless given, the model's. Default: None.
        feature_map ("lolcats", "hedgehog", "hedgehog_exp" or "t2r"): Learned feature map of queries and keys, one
            matrix per head. Default: "lolcats".
        features (int from 1 to 65536): Columns per head of the feature map's matrix. Unless given, head_dim, at
            most 64. Default: set by the sizes: 16 for dim=64 and heads=4.
        scale (float from 1e-09 to 1e+09, or None): Factor of the attention scores. Unless given, 1 /
            sqrt(head_dim). Default: None.
        softcap (float from 1e-06 to 1e+09, or None): Limit of the attention scores: s becomes softcap * tanh(s /
            softcap). Unless given, no limit. Default: None.
        window (int from 1 to 2^30): Keys w of the softmax part. Default: 64.
        layout ("sliding" or "terrace"): Keys that the softmax part sees: "sliding", the last w, or "terrace", the
            previous block of w tokens and the query's own block up to the query. Default: "terrace".
        mixture ("lolcats", "gated" or "plain"): How softmax part and linear part share a denominator, with s the
            scores and g learned per head: "lolcats", g e^(s - max s) and phi(q).phi(k); "gated", g e^s and (1 -
            g) phi(q).phi(k); "plain", e^s and phi(q).phi(k). Default: "lolcats".
        qk_norm_type ("per_head" or "per_layer"): Whether these norms are over each head ("per_head") or over all
            heads together ("per_layer", OLMo-2). Default: "per_head".
        norm_eps (float from 0 to 1): Epsilon of the RMSNorms: those of qk_norm, or the output's. Default: 1e-06.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.LoLCATs(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = False,
        output_bias: bool = False,
        qk_norm: bool = False,
        output_gate: bool = False,
        rotary: bool = False,
        rotary_fraction: float = 1.0,
        rope_theta: float = 10000.0,
        rope_scaling: dict[str, Any] | None = None,
        feature_map: Literal["lolcats", "hedgehog", "hedgehog_exp", "t2r"] = "lolcats",
        features: int | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        window: int = 64,
        layout: Literal["sliding", "terrace"] = "terrace",
        mixture: Literal["lolcats", "gated", "plain"] = "lolcats",
        qk_norm_type: Literal["per_head", "per_layer"] = "per_head",
        norm_eps: float = 1e-06,
    ) -> None: ...


class LoLA(Mixer):
    """lola: linear attention + window + sparse cache. LoLA (2025) §3, eq. 9, 13.

        o_t = [sum_(G, W) e^s v_j + phi(q_t)^T H] / [the same without v]

    Forms: causal. State per layer, in numbers: 4 chunk Hkv d + 2 cache H d + H F (d + 1).

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        kv_heads (int from 1 to 65536): Key and value heads: query head i reads key head i * kv_heads // heads.
            Unless given, heads. Default: set by the sizes: 4 for dim=64 and heads=4.
        head_dim (int from 1 to 65536): Channels per head of queries, keys and values. Unless given, dim / heads.
            Default: set by the sizes: 16 for dim=64 and heads=4.
        bias (bool): Whether the maps to queries, keys and values have a bias. Default: False.
        output_bias (bool): Whether the output map has a bias. Unless given, as bias. Default: False.
        qk_norm (bool): An RMSNorm of queries and keys, before the rotation. Default: False.
        output_gate (bool): Multiplies each head's output by sigmoid(W_g x) before the output map. Default: False.
        rotary (bool): Rotary positions on queries and keys. Unless given, as the model's positions are. Default:
            False.
        rotary_fraction (float from 0 to 1): Share of a head's channels that rotate, the first ones. Default: 1.0.
        rope_theta (float from 1 to 1e+12): Base of the rotary frequencies: channel pair i of K / 2 turns by
            rope_theta^(-2i / K) per token. Unless given, the model's. Default: 10000.0.
        rope_scaling (dict, or None): How rotary frequencies are stretched to a longer context, as in a model's
            config. Unless given, the model's. Default: None.
        feature_map ("lolcats", "hedgehog", "hedgehog_exp" or "t2r"): Learned feature map of queries and keys, one
            matrix per head. Default: "lolcats".
        features (int from 1 to 65536): Columns per head of the feature map's matrix. Unless given, head_dim, at
            most 64. Default: set by the sizes: 16 for dim=64 and heads=4.
        chunk (int from 1 to 2^24): Pairs C that leave the window at a time. Default: 64.
        cache (int from 0 to 2^24): Pairs per query head in the sparse cache. Default: 64.
        mixture ("lolcats", "gated" or "plain"): How softmax part and linear part share a denominator, with s the
            scores and g learned per head: "lolcats", g e^(s - max s) and phi(q).phi(k); "gated", g e^s and (1 -
            g) phi(q).phi(k); "plain", e^s and phi(q).phi(k). Default: "gated".
        score ("error", "leave_one_out", "squared", "absolute", "ratio", "share" or "recent"): What decides which
            pairs the cache keeps: "error" and "leave_one_out", the error of the linear state's answer; "squared",
            "absolute", "ratio" and "share", how the feature map errs for the queries of the window; "recent",
            age. Default: "error".
        scale (float from 1e-09 to 1e+09, or None): Factor of the attention scores. Unless given, 1 /
            sqrt(head_dim). Default: None.
        softcap (float from 1e-06 to 1e+09, or None): Limit of the attention scores: s becomes softcap * tanh(s /
            softcap). Unless given, no limit. Default: None.
        token_window (int from 1 to 2^24, or None): A window of so many single tokens in place of chunks. Unless
            given, chunks. Default: None.
        qk_norm_type ("per_head" or "per_layer"): Whether these norms are over each head ("per_head") or over all
            heads together ("per_layer", OLMo-2). Default: "per_head".
        norm_eps (float from 0 to 1): Epsilon of the RMSNorms: those of qk_norm, or the output's. Default: 1e-06.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.LoLA(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = False,
        output_bias: bool = False,
        qk_norm: bool = False,
        output_gate: bool = False,
        rotary: bool = False,
        rotary_fraction: float = 1.0,
        rope_theta: float = 10000.0,
        rope_scaling: dict[str, Any] | None = None,
        feature_map: Literal["lolcats", "hedgehog", "hedgehog_exp", "t2r"] = "lolcats",
        features: int | None = None,
        chunk: int = 64,
        cache: int = 64,
        mixture: Literal["lolcats", "gated", "plain"] = "gated",
        score: Literal["error", "leave_one_out", "squared", "absolute", "ratio", "share", "recent"] = "error",
        scale: float | None = None,
        softcap: float | None = None,
        token_window: int | None = None,
        qk_norm_type: Literal["per_head", "per_layer"] = "per_head",
        norm_eps: float = 1e-06,
    ) -> None: ...


class ExactChunked(Mixer):
    """exact_chunked: softmax attention. Rabe and Staats (2021).

        o_t = sum_{s<=t} softmax_s(q_t.k_s / sqrt d) v_s, in chunks with a running maximum

    Forms: causal and bidirectional. State per layer, in numbers: 2 T Hkv d.

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        kv_heads (int from 1 to 65536): Key and value heads: query head i reads key head i * kv_heads // heads.
            Unless given, heads. Default: set by the sizes: 4 for dim=64 and heads=4.
        head_dim (int from 1 to 65536): Channels per head of queries, keys and values. Unless given, dim / heads.
            Default: set by the sizes: 16 for dim=64 and heads=4.
        bias (bool): Whether the maps to queries, keys and values have a bias. Default: False.
        output_bias (bool): Whether the output map has a bias. Unless given, as bias. Default: False.
        qk_norm (bool): An RMSNorm of queries and keys, before the rotation. Default: False.
        output_gate (bool): Multiplies each head's output by sigmoid(W_g x) before the output map. Default: False.
        rotary (bool): Rotary positions on queries and keys. Unless given, as the model's positions are. Default:
            False.
        rotary_fraction (float from 0 to 1): Share of a head's channels that rotate, the first ones. Default: 1.0.
        rope_theta (float from 1 to 1e+12): Base of the rotary frequencies: channel pair i of K / 2 turns by
            rope_theta^(-2i / K) per token. Unless given, the model's. Default: 10000.0.
        rope_scaling (dict, or None): How rotary frequencies are stretched to a longer context, as in a model's
            config. Unless given, the model's. Default: None.
        scale (float from 1e-09 to 1e+09, or None): Factor of the attention scores. Unless given, 1 /
            sqrt(head_dim). Default: None.
        softcap (float from 1e-06 to 1e+09, or None): Limit of the attention scores: s becomes softcap * tanh(s /
            softcap). Unless given, no limit. Default: None.
        taps (int from 0 to 64, or None): Tokens per short causal convolution after each of q, k and v. 0 or None:
            no convolution. Default: 0.
        taps_start ("normal" or "identity"): How convolutions start: "normal", random with variance 1 / taps, or
            "identity", the current token alone. Default: "normal".
        sinks (bool): A learned score per head that is part of the softmax and has no value (gpt-oss). Default:
            False.
        temperature_period (int from 0 to 2^40): Tokens p after which queries grow: position t has the factor 1 +
            temperature_scale ln(1 + (t + 1) // p) (Llama 4). 0: none. Default: 0.
        temperature_scale (float from 0 to 1000): Factor of that logarithm; only with temperature_period. Default:
            0.1.
        chunk (int from 1 to 2^20): Tokens per chunk. Default: 64.
        qk_norm_type ("per_head" or "per_layer"): Whether these norms are over each head ("per_head") or over all
            heads together ("per_layer", OLMo-2). Default: "per_head".
        norm_eps (float from 0 to 1): Epsilon of the RMSNorms: those of qk_norm, or the output's. Default: 1e-06.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.ExactChunked(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = False,
        output_bias: bool = False,
        qk_norm: bool = False,
        output_gate: bool = False,
        rotary: bool = False,
        rotary_fraction: float = 1.0,
        rope_theta: float = 10000.0,
        rope_scaling: dict[str, Any] | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        taps: int | None = 0,
        taps_start: Literal["normal", "identity"] = "normal",
        sinks: bool = False,
        temperature_period: int = 0,
        temperature_scale: float = 0.1,
        chunk: int = 64,
        qk_norm_type: Literal["per_head", "per_layer"] = "per_head",
        norm_eps: float = 1e-06,
    ) -> None: ...


class Longformer(Mixer):
    """longformer: softmax attention. Longformer (Beltagy et al. 2020) §3.1 eq. 1.

        o_t = sum_s softmax_s(q_t.k_s / sqrt d) v_s over t-w < s <= t and s < G

    Forms: causal and bidirectional. State per layer, in numbers: 2 (w-1 + globals) Hkv d.

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        kv_heads (int from 1 to 65536): Key and value heads: query head i reads key head i * kv_heads // heads.
            Unless given, heads. Default: set by the sizes: 4 for dim=64 and heads=4.
        head_dim (int from 1 to 65536): Channels per head of queries, keys and values. Unless given, dim / heads.
            Default: set by the sizes: 16 for dim=64 and heads=4.
        bias (bool): Whether the maps to queries, keys and values have a bias. Default: False.
        output_bias (bool): Whether the output map has a bias. Unless given, as bias. Default: False.
        qk_norm (bool): An RMSNorm of queries and keys, before the rotation. Default: False.
        output_gate (bool): Multiplies each head's output by sigmoid(W_g x) before the output map. Default: False.
        rotary (bool): Rotary positions on queries and keys. Unless given, as the model's positions are. Default:
            False.
        rotary_fraction (float from 0 to 1): Share of a head's channels that rotate, the first ones. Default: 1.0.
        rope_theta (float from 1 to 1e+12): Base of the rotary frequencies: channel pair i of K / 2 turns by
            rope_theta^(-2i / K) per token. Unless given, the model's. Default: 10000.0.
        rope_scaling (dict, or None): How rotary frequencies are stretched to a longer context, as in a model's
            config. Unless given, the model's. Default: None.
        scale (float from 1e-09 to 1e+09, or None): Factor of the attention scores. Unless given, 1 /
            sqrt(head_dim). Default: None.
        softcap (float from 1e-06 to 1e+09, or None): Limit of the attention scores: s becomes softcap * tanh(s /
            softcap). Unless given, no limit. Default: None.
        window (int from 1 to 2^30): Keys per query in the window, its own included; bidirectional, so many on
            each side. Default: 129.
        globals (int from 0 to 65536): First tokens that every query sees, and that, bidirectional, see every
            token. Default: 1.
        qk_norm_type ("per_head" or "per_layer"): Whether these norms are over each head ("per_head") or over all
            heads together ("per_layer", OLMo-2). Default: "per_head".
        norm_eps (float from 0 to 1): Epsilon of the RMSNorms: those of qk_norm, or the output's. Default: 1e-06.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.Longformer(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = False,
        output_bias: bool = False,
        qk_norm: bool = False,
        output_gate: bool = False,
        rotary: bool = False,
        rotary_fraction: float = 1.0,
        rope_theta: float = 10000.0,
        rope_scaling: dict[str, Any] | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        window: int = 129,
        globals: int = 1,
        qk_norm_type: Literal["per_head", "per_layer"] = "per_head",
        norm_eps: float = 1e-06,
    ) -> None: ...


class ParallelHybrid(Mixer):
    """parallel_hybrid: hybrid. Falcon-H1 (Zuo et al. 2025).

        o_t = a attention(x)_t + b recurrence(x)_t

    Forms: causal. State per layer, in numbers: those of both mixers.

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer. A mechanism without heads ignores it.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        attention (dict, or None): The first mixer: {"mixer": NAME, ...settings of the mechanism...}. Unless
            given, softmax. Default: None.
        attention_scale (float from -1e+06 to 1e+06): Factor of the first mixer's output. Default: 1.0.
        recurrence (dict, or None): The second mixer. Unless given, mamba2. Default: None.
        recurrence_scale (float from -1e+06 to 1e+06): Factor of the second mixer's output. Default: 1.0.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.ParallelHybrid(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        attention: dict[str, Any] | None = None,
        attention_scale: float = 1.0,
        recurrence: dict[str, Any] | None = None,
        recurrence_scale: float = 1.0,
    ) -> None: ...


class SerialHybrid(Mixer):
    """serial_hybrid: hybrid. Zamba2 (Glorioso et al. 2024).

        o_t = recurrence(x + W f(attention([x, e])))_t

    Forms: causal. State per layer, in numbers: those of both mixers.

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer. A mechanism without heads ignores it.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        norm_eps (float from 0 to 1): Epsilon of the norms of the attention's, the geglu's and the recurrence's
            input. Default: 1e-05.
        recall (bool): Whether there is attention. Without it the layer is the recurrence after a norm, and hands
            its input to later layers. Default: True.
        attention (dict, or None): Settings of softmax, for an input twice as wide as the layer's: its own and the
            model's embedding. Default: None.
        feed_forward (int from 1 to 2^20): Hidden width of the geglu after the attention. Unless given, 4 dim.
            Default: set by the sizes: 256 for dim=64 and heads=4.
        bias (bool): Whether the geglu's maps have biases. Default: False.
        recurrence (dict, or None): The mixer that follows: {"mixer": NAME, ...settings of the mechanism...}.
            Unless given, mamba2. Default: None.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.SerialHybrid(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        norm_eps: float = 1e-05,
        recall: bool = True,
        attention: dict[str, Any] | None = None,
        feed_forward: int | None = None,
        bias: bool = False,
        recurrence: dict[str, Any] | None = None,
    ) -> None: ...


class Griffin(Mixer):
    """griffin: recurrence. Griffin (De et al. 2024) §2.3-2.4 eq. 1-4.

        o_t = W_o (gelu(W_y x_t) * RGLRU(conv(W_x x))_t)

    Forms: causal. State per layer, in numbers: E taps, E = D.

    Args:
        dim: Width D of the input and of the output.
        heads: Diagonal blocks of the gates' matrices.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        width (int from 1 to 2^20): Channels of the recurrence. Unless given, dim. Default: set by the sizes: 64
            for dim=64 and heads=4.
        taps (int from 1 to 64): Tokens of the short causal convolution before the recurrence. Default: 4.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.Griffin(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        width: int | None = None,
        taps: int = 4,
    ) -> None: ...


class GatedShortConv(Mixer):
    """gated_short_conv: convolution. LFM2 (Liquid AI 2025).

        o_t = W_o (c_t * conv(b * u)_t), with b, c and u linear in x

    Forms: causal. State per layer, in numbers: (taps-1) D.

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer. A mechanism without heads ignores it.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        taps (int from 1 to 64): Tokens that the convolution sees. Default: 3.
        bias (bool): Whether the convolution and both maps have a bias. Default: False.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.GatedShortConv(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        taps: int = 3,
        bias: bool = False,
    ) -> None: ...


class H3(Mixer):
    """h3: state space. H3 (Fu et al. 2023) §3.1, algorithm 1.

        o = q * SSM_diagonal(SSM_shift(k) * v)

    Forms: causal. State per layer, in numbers: D (2 N + taps-1).

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer. A mechanism without heads ignores it.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        states (int from 1 to 4096): Complex states N per channel of the diagonal system. Default: 32.
        taps (int from 1 to 4096): Tokens that the shift system sees. Default: 64.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.H3(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        states: int = 32,
        taps: int = 64,
    ) -> None: ...


class S5(Mixer):
    """s5: state space. S5 (Smith et al. 2023).

        h_t = exp(Delta Lambda) h_{t-1} + B u_t, y_t = 2 Re(C h_t) + D u_t, o = gelu(y) sigmoid(W gelu(y))

    Forms: causal and bidirectional. State per layer, in numbers: 2 N.

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer. A mechanism without heads ignores it.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        states (int from 1 to 65536): Complex states N of the layer. Unless given, dim / 2. Default: set by the
            sizes: 32 for dim=64 and heads=4.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.S5(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        states: int | None = None,
    ) -> None: ...


class Mega(Mixer):
    """mega: softmax attention. Mega (Ma et al. 2023).

        o_t = phi_t (h_t - x_t), h = silu(W_h x' + U_h (gamma * attention in chunks)), x' = EMA(x)

    Forms: causal and bidirectional. State per layer, in numbers: D average + (chunk-1) (2 shared + values).

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer. A mechanism without heads ignores it.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        shared (int from 1 to 65536): Channels z of queries and keys. Unless given, dim / 4, rounded down to an
            even number. Default: set by the sizes: 16 for dim=64 and heads=4.
        values (int from 1 to 2^20): Channels of values. Unless given, 2 dim. Default: set by the sizes: 128 for
            dim=64 and heads=4.
        average (int from 1 to 4096): Moving averages per channel. Default: 16.
        chunk (int from 1 to 2^20): Tokens per chunk; attention stays within chunks. Default: 128.
        bias (bool): A learned relative bias of the scores, by rotary positions. Default: True.
        rope_theta (float from 1 to 1e+12): Base of the rotary frequencies: channel pair i of K / 2 turns by
            rope_theta^(-2i / K) per token. Unless given, the model's. Default: 10000.0.
        rope_scaling (dict, or None): How rotary frequencies are stretched to a longer context, as in a model's
            config. Unless given, the model's. Default: None.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.Mega(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        shared: int | None = None,
        values: int | None = None,
        average: int = 16,
        chunk: int = 128,
        bias: bool = True,
        rope_theta: float = 10000.0,
        rope_scaling: dict[str, Any] | None = None,
    ) -> None: ...


class Luna(Mixer):
    """luna: linear attention. Luna (Ma et al. 2021); Latte (2024) eq. 22-26.

        x_t = 1/t sum_l B_tl sum_{s<=t} A_ls v_s, A = softplus(elu(P K') + 1)

    Forms: causal and bidirectional. State per layer, in numbers: 2 L D.

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        latents (int from 1 to 65536): Latents L of the layer, a parameter. Default: 16.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.Luna(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        latents: int = 16,
    ) -> None: ...


class Linformer(Mixer):
    """linformer: linear attention. Linformer (Wang et al. 2020); Latte (2024) eq. 27-28.

        o = softmax(Q (E K)' / sqrt d) F V

    Forms: bidirectional. State per layer, in numbers: none (whole sequences).

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        latents (int from 1 to 65536): Rows L of the projections over time. Default: 128.
        length (int from 1 to 2^24): Longest sequence that the projections are made for. Default: 4096.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.Linformer(64, heads=4, causal=False)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        latents: int = 128,
        length: int = 4096,
    ) -> None: ...


class Perceiver(Mixer):
    """perceiver: linear attention. Perceiver (Jaegle et al. 2021); Latte (2024) eq. 29.

        Z = blocks(softmax(Q K' / sqrt d) V), o = softmax(W_q x (W_k Z)' / sqrt d) W_v Z

    Forms: bidirectional. State per layer, in numbers: none (whole sequences).

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        device: Device of the weights.
        dtype: Type of the weights.
        latents (int from 1 to 65536): Latents L of the layer, a parameter. Default: 64.
        blocks (int from 0 to 64): Transformer blocks over the latents. Default: 1.

    Raises:
        ValueError: A setting is wrong, or is not this mechanism's.

    Example:
        >>> layer = cortado.nn.Perceiver(64, heads=4, causal=False)
        >>> y, state = layer(torch.randn(2, 16, 64))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        layer: int = 0,
        layers: int = 1,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        latents: int = 64,
        blocks: int = 1,
    ) -> None: ...
