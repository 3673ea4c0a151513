"""The operators of torch.ops.cortado as typed and documented functions.

What they have in common:

- Gradients reach every floating-point input, states included, through every floating-point output. A second derivative is
  an error. torch.compile and torch.export see each as one operator.
- Any floating type, and each input may have its own: o (y, h) has the type of v (x, b). Sums, states, lse and row_max are
  float32, or float64 if any input is. Any device that torch has; the CPU and CUDA have kernels of their own.
- Heads: Hs is the largest number of heads among the inputs that enter the state; each of these numbers must divide it. q's
  number divides Hs as well, or is a multiple of it (as in grouped queries). Head i of a tensor with h heads serves the
  consecutive heads from i H / h. States have Hs heads.
- cu_seqlens: int32 or int64 [N+1], ascending, from 0 to T: sequences one behind the other, with B = 1. States then have N
  rows, else B. An empty sequence passes its state through.
- States that are not given are zero (maxima -inf). States that belong together are given together or not at all.
- Errors: a RuntimeError for shapes, types and values that do not fit (a window below 1), a TypeError for an argument of
  another Python type.

Sizes: B sequences, T tokens, H heads, K channels of a key, V of a value, L latents, M slots, D channels."""

from __future__ import annotations

import typing

import torch
from torch import Tensor

from cortado import _library
from cortado._typed import typed

_library.library()
_ops = torch.ops.cortado

__all__ = ["abc", "blurry_window", "delta_scan", "dplr_scan", "elementwise_scan", "gated_scan", "gated_slot", "latte", "lolcats", "macchiato",
           "normalized_linear", "short_conv", "slot_scan", "window_attention"]


@typed
def gated_scan(q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, *, read: typing.Literal["key", "value"] = "key",
               scale: float | None = None, bonus: Tensor | None = None, initial_state: Tensor | None = None,
               cu_seqlens: Tensor | None = None, reverse: bool = False) -> tuple[Tensor, Tensor]:
    """Gated linear attention: a matrix state that decays, is added to and is read.

        S_t = diag(exp g_t) S_{t-1} + k_t (x) v_t        o_t = scale S_t^T q_t        (GLA, Yang et al., 2024, eq. 3)

    Args:
        q: Queries: [B, T, H, K] with read="key", [B, T, H, V] with read="value".
        k: Keys [B, T, H, K].
        v: Values [B, T, H, V].
        g: Natural logarithms of the gates, <= 0, -inf allowed: per key channel [B, T, H, K], per head [B, T, H], or constant
            [H] or [H, K]. None: no gates (linear attention). Constant gates are retention.
        read: Side of the state that is read: "key", or "value", o_t = scale S_t q_t.
        scale: Factor of the output. None: K^-0.5 for "key", 1 for "value".
        bonus: [H, K], with read="key" alone: what is read is S_{t-1} + diag(bonus) k_t (x) v_t (RWKV-6).
        initial_state: State before the first token [B|N, Hs, K, V]. None: zero.
        cu_seqlens: Bounds of packed sequences [N+1].
        reverse: Time runs backwards; the state enters behind the last token.

    Returns:
        o [B, T, H, V] (read="value": [B, T, H, K]), and the last state [B|N, Hs, K, V].

    Raises:
        RuntimeError: Shapes, types or values do not fit.

    Example:
        >>> q, k, v = (torch.randn(2, 100, 4, 32) for _ in range(3))
        >>> o, state = cortado.ops.gated_scan(q, k, v, -torch.rand(2, 100, 4))
    """
    return _ops.gated_scan(q, k, v, g, read=read, scale=scale, bonus=bonus, initial_state=initial_state,
                           cu_seqlens=cu_seqlens, reverse=reverse)


@typed
def slot_scan(q: Tensor, w: Tensor, x: Tensor, decay: Tensor, *, read: typing.Literal["slot", "channel"] = "slot",
              scale: float | None = None, initial_state: Tensor | None = None,
              cu_seqlens: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A few slots that decay and are written to: the recurrence of ABC, GSA and Blurry Window Attention.

        S_t = diag(decay_t) S_{t-1} + w_t (x) x_t        o_t = scale S_t^T q_t

    Args:
        q: Queries: [B, T, H, M] with read="slot", [B, T, H, X] with read="channel".
        w: Weights of writing [B, T, H, M] or [T, M].
        x: What is written [B, T, H, X].
        decay: Factors, not logarithms, of any finite value: [B, T, H, M] or [T, M].
        read: Side of the state that is read: "slot", or "channel", o_t = scale S_t q_t.
        scale: Factor of the output. None: 1 for "slot", X^-0.5 for "channel".
        initial_state: State before the first token [B|N, Hs, M, X]. None: zero.
        cu_seqlens: Bounds of packed sequences [N+1].

    Returns:
        o [B, T, H, X] (read="channel": [B, T, H, M]), and the last state [B|N, Hs, M, X].

    Raises:
        RuntimeError: Shapes, types or values do not fit.

    Example:
        >>> w, decay = torch.rand(2, 100, 4, 8), torch.rand(2, 100, 4, 8)
        >>> o, state = cortado.ops.slot_scan(torch.randn(2, 100, 4, 8), w, torch.randn(2, 100, 4, 32), decay)
    """
    return _ops.slot_scan(q, w, x, decay, read=read, scale=scale, initial_state=initial_state,
                          cu_seqlens=cu_seqlens)


@typed
def delta_scan(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor | None = None, *, scale: float | None = None,
               initial_state: Tensor | None = None, cu_seqlens: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The delta rule, with gates: a step writes what the state does not know yet (DeltaNet, Gated DeltaNet, KDA).

        S' = diag(exp g_t) S_{t-1}     S_t = S' + k_t (x) beta_t (v_t - S'^T k_t)     o_t = scale S_t^T q_t
                                                                        (Yang, Kautz, Hatamizadeh, 2025, eq. 10)

    Args:
        q: Queries [B, T, H, K].
        k: Keys [B, T, H, K]. They are not normalised here: normalise them before.
        v: Values [B, T, H, V].
        beta: Write strengths [B, T, H].
        g: Natural logarithms of the gates, <= 0, as in gated_scan. None: no gates.
        scale: Factor of the output. None: K^-0.5.
        initial_state: State before the first token [B|N, Hs, K, V]. None: zero.
        cu_seqlens: Bounds of packed sequences [N+1].

    Returns:
        o [B, T, H, V], and the last state [B|N, Hs, K, V].

    Raises:
        RuntimeError: Shapes, types or values do not fit.

    Example:
        >>> q, k, v = (torch.randn(2, 100, 4, 32) for _ in range(3))
        >>> k = torch.nn.functional.normalize(k, dim=-1)
        >>> o, state = cortado.ops.delta_scan(q, k, v, torch.rand(2, 100, 4))
    """
    return _ops.delta_scan(q, k, v, beta, g, scale=scale, initial_state=initial_state,
                           cu_seqlens=cu_seqlens)


@typed
def dplr_scan(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, g: Tensor, *, scale: float | None = None,
              initial_state: Tensor | None = None, cu_seqlens: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A state whose transition is diagonal plus low rank: what is read by a is written again by b (RWKV-7).

        S_t = diag(exp g_t) S_{t-1} + b_t (x) S_{t-1}^T a_t + k_t (x) v_t        o_t = scale S_t^T q_t
                                                                                 (Peng et al., 2025, eq. 16)

    Args:
        q: Queries [B, T, H, K].
        k: Keys [B, T, H, K].
        v: Values [B, T, H, V].
        a: Keys by which the state is read before it decays [B, T, H, K].
        b: Keys by which what was read is written [B, T, H, K]. RWKV-7 has |a| = 1 and b = -a r with r from 0 to 1.
        g: Natural logarithms of the decays, <= 0 [B, T, H, K].
        scale: Factor of the output. None: K^-0.5.
        initial_state: State before the first token [B|N, Hs, K, V]. None: zero.
        cu_seqlens: Bounds of packed sequences [N+1].

    Returns:
        o [B, T, H, V], and the last state [B|N, Hs, K, V].

    Raises:
        RuntimeError: Shapes, types or values do not fit.

    Example:
        >>> q, k, v, a = (torch.randn(2, 100, 4, 32) for _ in range(4))
        >>> a = torch.nn.functional.normalize(a, dim=-1)
        >>> o, state = cortado.ops.dplr_scan(q, k, v, -a, a * torch.rand(2, 100, 4, 32), -torch.rand(2, 100, 4, 32))
    """
    return _ops.dplr_scan(q, k, v, a, b, g, scale=scale, initial_state=initial_state, cu_seqlens=cu_seqlens)


@typed
def window_attention(q: Tensor, k: Tensor, v: Tensor, *, window: int | None = None, causal: bool = True,
                     scale: float | None = None, softcap: float | None = None, extra_k: Tensor | None = None,
                     extra_v: Tensor | None = None, extra_mask: Tensor | None = None, cu_seqlens: Tensor | None = None,
                     cu_seqlens_k: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Softmax attention over a window, or over all keys, in memory that grows with T alone.

        o_i = sum_j softmax_j(scale q_i . k_j) v_j        over max(0, i - window + 1) <= j <= i

    Queries stand at the end of the keys: the last query sees the last key.

    Args:
        q: Queries [B, Tq, H, K].
        k: Keys [B, Tk, H, K].
        v: Values [B, Tk, H, V].
        window: Keys per query, its own included. None: all.
        causal: False: all keys, or those with |i - j| < window.
        scale: Factor of the scores. None: K^-0.5.
        softcap: Limit c of the scores, which become c tanh(s / c). None: no limit.
        extra_k: Keys [B|N, E, H, K] that every query sees besides.
        extra_v: Their values [B|N, E, H, V].
        extra_mask: bool [B|N, E] or [B|N, H, E]: false hides a key of extra_k.
        cu_seqlens: Bounds of packed sequences among the queries [N+1].
        cu_seqlens_k: Their bounds among the keys. None: those of cu_seqlens.

    Returns:
        o [B, Tq, H, V]; lse [B, Tq, H], the natural logarithm of the sum of exp(score); row_max [B, Tq, H], the largest
        score. A query that sees nothing has o = 0, and -inf for both others.

    Raises:
        RuntimeError: Shapes, types or values do not fit.

    Example:
        >>> q, k, v = (torch.randn(2, 100, 4, 32) for _ in range(3))
        >>> o, lse, row_max = cortado.ops.window_attention(q, k, v, window=16)
    """
    return _ops.window_attention(q, k, v, window=window, causal=causal, scale=scale, softcap=softcap, extra_k=extra_k,
                                 extra_v=extra_v, extra_mask=extra_mask, cu_seqlens=cu_seqlens,
                                 cu_seqlens_k=cu_seqlens_k)


@typed
def elementwise_scan(log_a: Tensor, b: Tensor, *, initial_state: Tensor | None = None, cu_seqlens: Tensor | None = None,
                     reverse: bool = False) -> tuple[Tensor, Tensor]:
    """A linear recurrence per channel: RG-LRU, S5, HGRN.

        h_t = exp(log_a_t) h_{t-1} + b_t

    Args:
        log_a: Natural logarithms of the factors [B, T, D]. They may be complex.
        b: Inputs [B, T, D]. They may be complex.
        initial_state: State before the first token [B|N, D]. None: zero.
        cu_seqlens: Bounds of packed sequences [N+1].
        reverse: From the last token to the first.

    Returns:
        h [B, T, D], and the last state [B|N, D].

    Raises:
        RuntimeError: Shapes, types or values do not fit.

    Example:
        >>> h, state = cortado.ops.elementwise_scan(-torch.rand(2, 100, 64), torch.randn(2, 100, 64))
    """
    return _ops.elementwise_scan(log_a, b, initial_state=initial_state, cu_seqlens=cu_seqlens,
                                 reverse=reverse)


@typed
def short_conv(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: typing.Literal["none", "silu"] = "none",
               initial_state: Tensor | None = None, cu_seqlens: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A causal convolution per channel over its last W inputs, as Mamba and the delta-rule models have before their scans.

        y_t = act(sum_i weight[:, W-1-i] x_{t-i} + bias)

    Args:
        x: Inputs [B, T, D].
        weight: Taps [D, W].
        bias: [D]. None: no bias.
        activation: Function act: "silu" or "none".
        initial_state: The inputs before the first [B|N, W-1, D], oldest first. None: zero.
        cu_seqlens: Bounds of packed sequences [N+1].

    Returns:
        y [B, T, D], and the inputs that the next call needs [B|N, W-1, D], oldest first.

    Raises:
        RuntimeError: Shapes, types or values do not fit.

    Example:
        >>> y, tail = cortado.ops.short_conv(torch.randn(2, 100, 64), torch.randn(64, 4), activation="silu")
    """
    return _ops.short_conv(x, weight, bias, activation=activation, initial_state=initial_state,
                           cu_seqlens=cu_seqlens)


@typed
def latte(query_logits: Tensor, key_logits: Tensor, v: Tensor, *, causal: bool = True, state: Tensor | None = None,
          normalizer: Tensor | None = None, maximum: Tensor | None = None,
          cu_seqlens: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Latte: attention through L latent tokens, in time linear in T (Latte, 2024, eq. 6-17).

        o_t = sum_l p(l | t) sum_{s <= t} p(s | l, t) v_s,    p(l | t) = softmax_l(query_logits_t),
                                                               p(s | l, t) = softmax_{s <= t}(key_logits_s)

    The three tensors of the state are given together or not at all. No gradient flows through the maximum, which is right
    for whatever goes on from the three.

    Args:
        query_logits: [B, T, H, L].
        key_logits: [B, T, H, L].
        v: Values [B, T, H, V].
        causal: False: over all s. It then takes no state and returns zeros for it.
        state: Sums of exp(key_logits - maximum) v [B|N, H, L, V].
        normalizer: Sums of exp(key_logits - maximum) [B|N, H, L].
        maximum: Largest key_logits so far [B|N, H, L].
        cu_seqlens: Bounds of packed sequences [N+1].

    Returns:
        o [B, T, H, V], and the last state, normalizer and maximum.

    Raises:
        RuntimeError: Shapes, types or values do not fit.

    Example:
        >>> queries, keys, v = torch.randn(2, 100, 4, 8), torch.randn(2, 100, 4, 8), torch.randn(2, 100, 4, 32)
        >>> o, state, normalizer, maximum = cortado.ops.latte(queries, keys, v)
    """
    return _ops.latte(query_logits, key_logits, v, causal=causal, state=state, normalizer=normalizer, maximum=maximum,
                      cu_seqlens=cu_seqlens)


@typed
def macchiato(query_logits: Tensor, key_logits: Tensor, v: Tensor, window_q: Tensor, window_k: Tensor, *, window: int,
              scale: float | None = None, causal: bool = True, past_k: Tensor | None = None, past_v: Tensor | None = None,
              past_length: Tensor | None = None, state: Tensor | None = None, normalizer: Tensor | None = None,
              maximum: Tensor | None = None,
              cu_seqlens: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Latte-Macchiato: Latte whose latent token 0 is softmax attention over a window (Latte-Macchiato, 2025, eq. 15-19).

        o_t = p(0 | t) window_attention(window_q, window_k, v)_t + sum_{l >= 1} p(l | t) sum_{s <= t} p(s | l, t) v_s

    Args:
        query_logits: [B, T, H, L+1]; column 0 is the window's.
        key_logits: [B, T, H, L].
        v: Values [B, T, H, V] of both parts.
        window_q: Queries of the window [B, T, H, K].
        window_k: Keys of the window [B, T, H, K].
        window: Keys per query, its own included.
        scale: Factor of the window's scores. None: K^-0.5.
        causal: False: both parts see all tokens (the window on both sides), without states.
        past_k: Keys before this call [B|N, P, H, K], right-aligned. The last window - 1 matter.
        past_v: Their values [B|N, P, H, V].
        past_length: How many of them are valid, [B|N]. None: all.
        state: As in latte, for the latents.
        normalizer: As in latte.
        maximum: As in latte.
        cu_seqlens: Bounds of packed sequences [N+1].

    Returns:
        o [B, T, H, V], and the last state, normalizer and maximum, as in latte.

    Raises:
        RuntimeError: Shapes, types or values do not fit.

    Example:
        >>> q, k, v = (torch.randn(2, 100, 4, 32) for _ in range(3))
        >>> queries, keys = torch.randn(2, 100, 4, 9), torch.randn(2, 100, 4, 8)
        >>> o, *state = cortado.ops.macchiato(queries, keys, v, q, k, window=16)
    """
    return _ops.macchiato(query_logits, key_logits, v, window_q, window_k, window=window, scale=scale, causal=causal,
                          past_k=past_k, past_v=past_v, past_length=past_length, state=state, normalizer=normalizer,
                          maximum=maximum, cu_seqlens=cu_seqlens)


@typed
def blurry_window(q: Tensor, k: Tensor, v: Tensor, *, slots: int, period: int, decay: bool = True, scale: float | None = None,
                  key_state: Tensor | None = None, value_state: Tensor | None = None, position: Tensor | None = None,
                  cu_seqlens: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Blurry Window Attention: keys and values of a long window in a few slots, each a smooth bump over time.

        K_t = diag(1 - w_t) K_{t-1} + w_t (x) k_t,    V_t likewise,    o_t = V_t^T softmax(scale K_t q_t),
        w_t[n] = D(t - n P / N), the periodic bump of width P / N

    Softmax attention reads the slots (Blurry Window Attention, 2026, eq. 14-17).

    Args:
        q: Queries [B, T, H, K].
        k: Keys [B, T, H, K].
        v: Values [B, T, H, V].
        slots: N, an odd number.
        period: P >= N: tokens after which a slot is written again.
        decay: False: without the factor 1 - w_t.
        scale: Factor of the scores. None: K^-0.5.
        key_state: K before the first token [B|N, Hs, slots, K]. None: zero.
        value_state: V before the first token [B|N, Hs, slots, V]. None: zero.
        position: int64 [B|N], tokens read before this call.
        cu_seqlens: Bounds of packed sequences [N+1].

    Returns:
        o [B, T, H, V], and the last key_state and value_state.

    Raises:
        RuntimeError: Shapes, types or values do not fit.

    Example:
        >>> q, k, v = (torch.randn(2, 100, 4, 32) for _ in range(3))
        >>> o, keys, values = cortado.ops.blurry_window(q, k, v, slots=9, period=33)
    """
    return _ops.blurry_window(q, k, v, slots=slots, period=period, decay=decay, scale=scale, key_state=key_state,
                              value_state=value_state, position=position,
                              cu_seqlens=cu_seqlens)


@typed
def gated_slot(q: Tensor, k: Tensor, v: Tensor, s: Tensor, g: Tensor, *, scale: float | None = None,
               key_state: Tensor | None = None, value_state: Tensor | None = None,
               cu_seqlens: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Gated Slot Attention: two gated scans with a softmax over M slots between them.

        K_t = diag(exp g_t) K_{t-1} + s_t (x) k_t,    V_t likewise,    o_t = V_t^T softmax(scale K_t q_t)

    (GSA, 2024; Blurry Window Attention §2.2, eq. 3)

    Args:
        q: Queries [B, T, H, K].
        k: Keys [B, T, H, K].
        v: Values [B, T, H, V].
        s: Weights of writing [B, T, H, M]. GSA has 1 - exp g.
        g: Natural logarithms of the gates, <= 0, [B, T, H, M].
        scale: Factor of the scores. None: K^-0.5.
        key_state: K before the first token [B|N, Hs, M, K]. None: zero.
        value_state: V before the first token [B|N, Hs, M, V]. None: zero.
        cu_seqlens: Bounds of packed sequences [N+1].

    Returns:
        o [B, T, H, V], and the last key_state and value_state.

    Raises:
        RuntimeError: Shapes, types or values do not fit.

    Example:
        >>> q, k, v = (torch.randn(2, 100, 4, 32) for _ in range(3))
        >>> g = -torch.rand(2, 100, 4, 16)
        >>> o, keys, values = cortado.ops.gated_slot(q, k, v, 1 - g.exp(), g)
    """
    return _ops.gated_slot(q, k, v, s, g, scale=scale, key_state=key_state, value_state=value_state,
                           cu_seqlens=cu_seqlens)


@typed
def abc(q: Tensor, k: Tensor, v: Tensor, s: Tensor, *, scale: float | None = None, key_state: Tensor | None = None,
        value_state: Tensor | None = None, normalizer: Tensor | None = None, maximum: Tensor | None = None,
        cu_seqlens: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Attention with bounded memory: M slots, each an average over the past with weights softmax_{s <= t}.

        K_t = sum_{i <= t} softmax_{i <= t}(s_i) (x) k_i,    V_t likewise,    o_t = V_t^T softmax(scale K_t q_t)

    (ABC, 2022; Blurry Window Attention §2.2, eq. 2)

    Args:
        q: Queries [B, T, H, K].
        k: Keys [B, T, H, K].
        v: Values [B, T, H, V].
        s: Logits of writing [B, T, H, M].
        scale: Factor of the scores. None: K^-0.5.
        key_state: normalizer times K before the first token [B|N, Hs, M, K]. None: zero.
        value_state: normalizer times V before the first token [B|N, Hs, M, V]. None: zero.
        normalizer: Sums of exp(s - maximum) [B|N, Hs, M].
        maximum: Largest s so far [B|N, Hs, M].
        cu_seqlens: Bounds of packed sequences [N+1].

    Returns:
        o [B, T, H, V], and the last key_state, value_state, normalizer and maximum.

    Raises:
        RuntimeError: Shapes, types or values do not fit.

    Example:
        >>> q, k, v = (torch.randn(2, 100, 4, 32) for _ in range(3))
        >>> o, *state = cortado.ops.abc(q, k, v, torch.randn(2, 100, 4, 16))
    """
    return _ops.abc(q, k, v, s, scale=scale, key_state=key_state, value_state=value_state, normalizer=normalizer,
                    maximum=maximum, cu_seqlens=cu_seqlens)


@typed
def normalized_linear(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = True, eps: float = 0.0, state: Tensor | None = None,
                      normalizer: Tensor | None = None,
                      cu_seqlens: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Linear attention with its denominator, for queries and keys that a feature map has made non-negative.

        o_t = sum_{s <= t} (q_t . k_s) v_s / (sum_{s <= t} q_t . k_s + eps);    0 where the denominator is 0

    (Latte-Macchiato eq. 4)

    Args:
        q: Queries [B, T, H, K].
        k: Keys [B, T, H, K].
        v: Values [B, T, H, V].
        causal: False: over all s, without a state.
        eps: Added to the denominator.
        state: Sums of k (x) v before the first token [B|N, Hs, K, V]. None: zero.
        normalizer: Sums of k before the first token [B|N, Hs, K]. None: zero.
        cu_seqlens: Bounds of packed sequences [N+1].

    Returns:
        o [B, T, H, V], and the last state and normalizer.

    Raises:
        RuntimeError: Shapes, types or values do not fit.

    Example:
        >>> q, k, v = (torch.rand(2, 100, 4, 32) for _ in range(3))
        >>> o, state, normalizer = cortado.ops.normalized_linear(q, k, v)
    """
    return _ops.normalized_linear(q, k, v, causal=causal, eps=eps, state=state, normalizer=normalizer,
                                  cu_seqlens=cu_seqlens)


@typed
def lolcats(q: Tensor, k: Tensor, v: Tensor, phi_q: Tensor, phi_k: Tensor, window_factor: Tensor, *, window: int,
            layout: typing.Literal["sliding", "terrace"] = "sliding",
            mixture: typing.Literal["lolcats", "gated", "plain"] = "lolcats", scale: float | None = None,
            cu_seqlens: Tensor | None = None, softcap: float | None = None) -> Tensor:
    """LoLCATs: softmax attention over a window W and linear attention over the tokens before it, in one denominator.

        o_t = (sum_{W} gamma exp(s_tj - c_t) v_j + sum_{j < W} (phi_q . phi_k) v_j) / (the same without v)

    Whole sequences, from zero (LoLA, 2025, eq. 6-7).

    Args:
        q: Queries [B, T, H, K].
        k: Keys [B, T, H, K].
        v: Values [B, T, H, V].
        phi_q: Feature map of the queries [B, T, H, F].
        phi_k: Feature map of the keys [B, T, H, F].
        window_factor: [H], gamma before its sigmoid.
        window: Keys of the window, or tokens of a terrace.
        layout: "sliding", the last `window` keys, or "terrace", the previous block of `window` tokens and the query's own.
        mixture: How the two parts are weighed: as LoLCATs does, by window_factor alone ("gated"), or not at all ("plain").
        scale: Factor of the scores. None: K^-0.5.
        cu_seqlens: Bounds of packed sequences [N+1].
        softcap: Limit c of the scores, which become c tanh(s / c). None: no limit.

    Returns:
        o [B, T, H, V].

    Raises:
        RuntimeError: Shapes, types or values do not fit.

    Example:
        >>> q, k, v = (torch.randn(2, 100, 4, 32) for _ in range(3))
        >>> phi_q, phi_k = q.softmax(-1), k.softmax(-1)
        >>> o = cortado.ops.lolcats(q, k, v, phi_q, phi_k, torch.zeros(4), window=16)
    """
    return _ops.lolcats(q, k, v, phi_q, phi_k, window_factor, window=window, layout=layout, mixture=mixture, scale=scale,
                        cu_seqlens=cu_seqlens, softcap=softcap)
