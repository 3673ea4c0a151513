"""The operators, typed: what torch.ops.cortado has, with its documentation.

What all have in common:

- Gradients reach every floating-point input, states included, through every floating-point output. A second derivative is
  an error. torch.compile and torch.export see each as one operator.
- Any floating type, and each input may have its own: o (y, h) has that of v (x, b). Sums, states, lse and row_max are
  float32, and float64 if any input is. Any device that torch has; the CPU has kernels of its own.
- Heads: Hs is the largest number of heads among the inputs that enter the state; each of these must divide it. q's number
  divides Hs as well, or is a multiple of it (as in grouped queries). Head i of a tensor with h heads serves the
  consecutive heads from i H / h. States have Hs heads.
- cu_seqlens: int32 or int64 [N+1], ascending, from 0 to T: sequences that lie one behind the other, with B = 1. States then
  have N rows, else B. An empty sequence passes its state through.
- States that are not given are zero (maxima -inf); those that belong together are given together or not at all.

What does not fit (shapes, types, a window below 1) is a RuntimeError that says so; an argument of another Python type a
TypeError. Sizes: B sequences, T tokens, H heads, K channels of a key, V of a value, L latents, M slots, D channels."""

from __future__ import annotations

import functools
import inspect
import numbers
import typing

import torch
from torch import Tensor

from cortado import _library

_library.library()
_ops = torch.ops.cortado

__all__ = ["abc", "blurry_window", "delta_scan", "elementwise_scan", "gated_scan", "gated_slot", "latte", "lolcats", "macchiato",
           "normalized_linear", "short_conv", "slot_scan", "window_attention"]


_P = typing.ParamSpec("_P")
_R = typing.TypeVar("_R")
_KINDS: dict[str, type] = {"Tensor": Tensor, "bool": bool, "int": numbers.Integral, "float": numbers.Real, "typing.Literal": str}

_NAMES = {"Tensor": "a tensor", "typing.Literal": "a string"}


def _wrong_type(function: typing.Callable[..., typing.Any], arguments: typing.Any, named: typing.Any) -> str | None:
    """The first argument that is not of the type that the function says, in one line."""
    try:
        given = inspect.signature(function).bind(*arguments, **named).arguments
    except TypeError:  # Python's own line says which is missing or too many
        return None
    for name, value in given.items():
        kind = str(function.__annotations__[name]).partition("[")[0].removesuffix(" | None")
        if not isinstance(value, _KINDS[kind]) and not (value is None and "None" in str(function.__annotations__[name])):
            return f"[{function.__name__}] {name} must be {_NAMES.get(kind, kind)}, got {type(value).__name__}"
    return None


def _typed(function: typing.Callable[_P, _R]) -> typing.Callable[_P, _R]:
    """A wrong type is a TypeError of one line: torch's own prints all numbers of what it was given."""

    @functools.wraps(function)
    def call(*arguments: _P.args, **named: _P.kwargs) -> _R:
        try:
            return function(*arguments, **named)
        except (RuntimeError, TypeError):
            wrong = _wrong_type(function, arguments, named)
            if wrong is None:
                raise
        raise TypeError(wrong)

    return call


@_typed
def gated_scan(q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, *, read: typing.Literal["key", "value"] = "key",
               scale: float | None = None, bonus: Tensor | None = None, initial_state: Tensor | None = None,
               cu_seqlens: Tensor | None = None, reverse: bool = False) -> tuple[Tensor, Tensor]:
    """Gated linear attention: a matrix that decays, is added to and is read.

        S_t = diag(exp g_t) S_{t-1} + k_t (x) v_t        o_t = scale S_t^T q_t        (GLA, Yang et al., 2024, eq. 3)

    k [B, T, H, K], v [B, T, H, V]; g, natural logarithms of the gates, <= 0 and -inf allowed: [B, T, H, K], a head's own
    [B, T, H], constant [H] or [H, K], or none (linear attention; constant: retention). q [B, T, H, K] with read="key",
    and o [B, T, H, V]; read="value" reads the other side, o_t = scale S_t q_t: q [B, T, H, V], o [B, T, H, K].
    scale: K^-0.5 for keys, 1 for values. bonus [H, K] (RWKV-6, keys only): what is read is S_{t-1} + diag(bonus) k_t (x) v_t.
    reverse: time runs backwards, and the state enters behind the last token.

    Returns (o, final_state [B|N, H, K, V])."""
    return _ops.gated_scan(q, k, v, g, read=read, scale=scale, bonus=bonus, initial_state=initial_state,
                           cu_seqlens=cu_seqlens, reverse=reverse)


@_typed
def slot_scan(q: Tensor, w: Tensor, x: Tensor, decay: Tensor, *, read: typing.Literal["slot", "channel"] = "slot",
              scale: float | None = None, initial_state: Tensor | None = None,
              cu_seqlens: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A few slots that decay and are written to: the recurrence of ABC, GSA and Blurry Window Attention.

        S_t = diag(decay_t) S_{t-1} + w_t (x) x_t        o_t = scale S_t^T q_t

    w [B, T, H, M] or [T, M]; decay likewise, factors and not logarithms, of any finite value; x [B, T, H, X].
    read="slot": q [B, T, H, M], o [B, T, H, X], scale 1 unless given; read="channel": o_t = scale S_t q_t, q [B, T, H, X],
    o [B, T, H, M], scale X^-0.5 unless given.

    Returns (o, final_state [B|N, H, M, X])."""
    return _ops.slot_scan(q, w, x, decay, read=read, scale=scale, initial_state=initial_state,
                          cu_seqlens=cu_seqlens)


@_typed
def delta_scan(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor | None = None, *, scale: float | None = None,
               initial_state: Tensor | None = None, cu_seqlens: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The delta rule, with gates: what is written is what the state does not know yet (DeltaNet, Gated DeltaNet, KDA).

        S' = diag(exp g_t) S_{t-1}     S_t = S' + k_t (x) beta_t (v_t - S'^T k_t)     o_t = scale S_t^T q_t
                                                                        (Yang, Kautz, Hatamizadeh, 2025, eq. 10)

    q, k [B, T, H, K], v [B, T, H, V], beta [B, T, H], g as in gated_scan. Keys are taken as they are: normalise them
    before. scale: K^-0.5 unless given.

    Returns (o [B, T, H, V], final_state [B|N, H, K, V])."""
    return _ops.delta_scan(q, k, v, beta, g, scale=scale, initial_state=initial_state,
                           cu_seqlens=cu_seqlens)


@_typed
def window_attention(q: Tensor, k: Tensor, v: Tensor, *, window: int | None = None, causal: bool = True,
                     scale: float | None = None, softcap: float | None = None, extra_k: Tensor | None = None,
                     extra_v: Tensor | None = None, extra_mask: Tensor | None = None, cu_seqlens: Tensor | None = None,
                     cu_seqlens_k: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Softmax attention over a window, or over all keys, in memory that grows with T alone.

        o_i = sum_j softmax_j(scale q_i . k_j) v_j        over max(0, i - window + 1) <= j <= i

    q [B, Tq, H, K], k [B, Tk, H, K], v [B, Tk, H, V]; queries stand at the end of the keys: the last query sees the last
    key. window: how many keys a query sees, its own included; None: all. causal=False: all keys, or those with
    |i - j| < window. softcap c: scores become c tanh(s / c). extra_k, extra_v [B|N, E, H, .]: keys that every query sees
    besides, where extra_mask ([B|N, E] or [B|N, H, E], bool) is true. cu_seqlens_k: the sequences' bounds among the keys
    (those of cu_seqlens unless given). scale: K^-0.5 unless given.

    Returns (o [B, Tq, H, V], lse [B, Tq, H], row_max [B, Tq, H]): lse is the natural logarithm of the sum of exp(score),
    row_max the largest score. A query that sees nothing has o = 0 and -inf for both."""
    return _ops.window_attention(q, k, v, window=window, causal=causal, scale=scale, softcap=softcap, extra_k=extra_k,
                                 extra_v=extra_v, extra_mask=extra_mask, cu_seqlens=cu_seqlens,
                                 cu_seqlens_k=cu_seqlens_k)


@_typed
def elementwise_scan(log_a: Tensor, b: Tensor, *, initial_state: Tensor | None = None, cu_seqlens: Tensor | None = None,
                     reverse: bool = False) -> tuple[Tensor, Tensor]:
    """A linear recurrence of every channel by itself: RG-LRU, S5, HGRN.

        h_t = exp(log_a_t) h_{t-1} + b_t

    log_a, b [B, T, D], natural logarithms and inputs; both may be complex. reverse: from the last token to the first.

    Returns (h [B, T, D], final_state [B|N, D])."""
    return _ops.elementwise_scan(log_a, b, initial_state=initial_state, cu_seqlens=cu_seqlens,
                                 reverse=reverse)


@_typed
def short_conv(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: typing.Literal["none", "silu"] = "none",
               initial_state: Tensor | None = None, cu_seqlens: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A causal convolution of every channel over its last W inputs, as Mamba and the delta-rule models have before their
    scans.

        y_t = act(sum_i weight[:, W-1-i] x_{t-i} + bias)

    x [B, T, D], weight [D, W], bias [D]; activation: act, "silu" or "none".

    Returns (y [B, T, D], final_state [B|N, W-1, D]): the inputs that the next call needs, oldest first."""
    return _ops.short_conv(x, weight, bias, activation=activation, initial_state=initial_state,
                           cu_seqlens=cu_seqlens)


@_typed
def latte(query_logits: Tensor, key_logits: Tensor, v: Tensor, *, causal: bool = True, state: Tensor | None = None,
          normalizer: Tensor | None = None, maximum: Tensor | None = None,
          cu_seqlens: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Latte: attention through L latent tokens, in time linear in T (Latte, 2024, eq. 6-17).

        o_t = sum_l p(l | t) sum_{s <= t} p(s | l, t) v_s,    p(l | t) = softmax_l(query_logits_t),
                                                               p(s | l, t) = softmax_{s <= t}(key_logits_s)

    query_logits, key_logits [B, T, H, L], v [B, T, H, V]. causal=False: over all s; it takes no state and returns zeros.

    Returns (o [B, T, H, V], state [B|N, H, L, V], normalizer [B|N, H, L], maximum [B|N, H, L]): sums of
    exp(key_logits - maximum) v and of exp(key_logits - maximum). The three are given together; through the maximum there
    is no gradient, which is right for whatever goes on from the three."""
    return _ops.latte(query_logits, key_logits, v, causal=causal, state=state, normalizer=normalizer, maximum=maximum,
                      cu_seqlens=cu_seqlens)


@_typed
def macchiato(query_logits: Tensor, key_logits: Tensor, v: Tensor, window_q: Tensor, window_k: Tensor, *, window: int,
              scale: float | None = None, causal: bool = True, past_k: Tensor | None = None, past_v: Tensor | None = None,
              past_length: Tensor | None = None, state: Tensor | None = None, normalizer: Tensor | None = None,
              maximum: Tensor | None = None,
              cu_seqlens: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Latte-Macchiato: Latte whose latent token 0 is softmax attention over a window (Latte-Macchiato, 2025, eq. 15-19).

        o_t = p(0 | t) window_attention(window_q, window_k, v)_t + sum_{l >= 1} p(l | t) sum_{s <= t} p(s | l, t) v_s

    query_logits [B, T, H, L+1], column 0 the window's; key_logits [B, T, H, L]; v [B, T, H, V]; window_q, window_k
    [B, T, H, K]; window: keys that a query sees there, its own included; scale: K^-0.5 unless given. past_k, past_v
    [B|N, P, H, .]: keys and values before this call, to the right, of which past_length ([B|N], all unless given) are valid;
    the last window-1 matter. causal=False: both parts over all tokens (the window to both sides), without states. state, normalizer, maximum: as in latte, whose results these are, too."""
    return _ops.macchiato(query_logits, key_logits, v, window_q, window_k, window=window, scale=scale, causal=causal,
                          past_k=past_k, past_v=past_v, past_length=past_length, state=state, normalizer=normalizer,
                          maximum=maximum, cu_seqlens=cu_seqlens)


@_typed
def blurry_window(q: Tensor, k: Tensor, v: Tensor, *, slots: int, period: int, decay: bool = True, scale: float | None = None,
                  key_state: Tensor | None = None, value_state: Tensor | None = None, position: Tensor | None = None,
                  cu_seqlens: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Blurry Window Attention: keys and values of a long window in a few slots, each a smooth bump over time; softmax
    attention reads the slots (Blurry Window Attention, 2026, eq. 14-17).

        K_t = diag(1 - w_t) K_{t-1} + w_t (x) k_t,    V_t likewise,    o_t = V_t^T softmax(scale K_t q_t),
        w_t[n] = D(t - n P / N), the periodic bump of width P / N

    q, k [B, T, H, K], v [B, T, H, V]. slots N: odd; period P >= N: tokens after which a slot comes round; decay=False: without
    the factor 1 - w_t. scale: K^-0.5 unless given. position: int64 [B|N], tokens read before this call.

    Returns (o [B, T, H, V], key_state [B|N, Hs, slots, K], value_state [B|N, Hs, slots, V])."""
    return _ops.blurry_window(q, k, v, slots=slots, period=period, decay=decay, scale=scale, key_state=key_state,
                              value_state=value_state, position=position,
                              cu_seqlens=cu_seqlens)


@_typed
def gated_slot(q: Tensor, k: Tensor, v: Tensor, s: Tensor, g: Tensor, *, scale: float | None = None,
               key_state: Tensor | None = None, value_state: Tensor | None = None,
               cu_seqlens: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Gated Slot Attention: two gated scans with a softmax over M slots between them (GSA, 2024; Blurry Window Attention §2.2, eq. 3).

        K_t = diag(exp g_t) K_{t-1} + s_t (x) k_t,    V_t likewise,    o_t = V_t^T softmax(scale K_t q_t)

    q, k [B, T, H, K], v [B, T, H, V]; s [B, T, H, M] what is written to the slots (GSA: 1 - exp g); g [B, T, H, M] natural
    logarithms, <= 0. scale: K^-0.5 unless given.

    Returns (o [B, T, H, V], key_state [B|N, Hs, M, K], value_state [B|N, Hs, M, V])."""
    return _ops.gated_slot(q, k, v, s, g, scale=scale, key_state=key_state, value_state=value_state,
                           cu_seqlens=cu_seqlens)


@_typed
def abc(q: Tensor, k: Tensor, v: Tensor, s: Tensor, *, scale: float | None = None, key_state: Tensor | None = None,
        value_state: Tensor | None = None, normalizer: Tensor | None = None, maximum: Tensor | None = None,
        cu_seqlens: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Attention with bounded memory: M slots, each an average over the past with weights softmax_{s <= t} (ABC, 2022;
    Blurry Window Attention §2.2, eq. 2).

        K_t = sum_{i <= t} softmax_{i <= t}(s_i) (x) k_i,    V_t likewise,    o_t = V_t^T softmax(scale K_t q_t)

    q, k [B, T, H, K], v [B, T, H, V], s [B, T, H, M] logits of writing. scale: K^-0.5 unless given.

    Returns (o, key_state [B|N, Hs, M, K], value_state [B|N, Hs, M, V], normalizer [B|N, Hs, M], maximum [B|N, Hs, M])."""
    return _ops.abc(q, k, v, s, scale=scale, key_state=key_state, value_state=value_state, normalizer=normalizer,
                    maximum=maximum, cu_seqlens=cu_seqlens)


@_typed
def normalized_linear(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = True, eps: float = 0.0, state: Tensor | None = None,
                      normalizer: Tensor | None = None,
                      cu_seqlens: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Linear attention with its denominator (Latte-Macchiato eq. 4), for queries and keys that a feature map has
    made non-negative.

        o_t = sum_{s <= t} (q_t . k_s) v_s / (sum_{s <= t} q_t . k_s + eps);    0 where the denominator is 0

    q, k [B, T, H, K], v [B, T, H, V]. causal=False: over all s; without a state.

    Returns (o [B, T, H, V], state [B|N, Hs, K, V], normalizer [B|N, Hs, K])."""
    return _ops.normalized_linear(q, k, v, causal=causal, eps=eps, state=state, normalizer=normalizer,
                                  cu_seqlens=cu_seqlens)


@_typed
def lolcats(q: Tensor, k: Tensor, v: Tensor, phi_q: Tensor, phi_k: Tensor, window_factor: Tensor, *, window: int,
            layout: typing.Literal["sliding", "terrace"] = "sliding",
            mixture: typing.Literal["lolcats", "gated", "plain"] = "lolcats", scale: float | None = None,
            cu_seqlens: Tensor | None = None, softcap: float | None = None) -> Tensor:
    """LoLCATs: softmax attention over a window and linear attention over what lies before it, under one denominator
    (LoLA, 2025, eq. 6-7), of whole sequences.

        o_t = (sum_{W} gamma exp(s_tj - c_t) v_j + sum_{j < W} (phi_q . phi_k) v_j) / (the same without v)

    q, k [B, T, H, K], v [B, T, H, V], phi_q, phi_k [B, T, H, F] feature maps of both; window_factor [H], before its sigmoid.
    layout: a window that slides, or terraces of `window` tokens. mixture: how the two are weighed: LoLCATs' own, by
    window_factor alone ("gated"), or not at all ("plain"). scale: K^-0.5 unless given; softcap as in window_attention.

    Returns o [B, T, H, V]."""
    return _ops.lolcats(q, k, v, phi_q, phi_k, window_factor, window=window, layout=layout, mixture=mixture, scale=scale,
                        cu_seqlens=cu_seqlens, softcap=softcap)
