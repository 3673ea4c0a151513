"""Shared by the tests of gated_scan, delta_scan, dplr_scan and slot_scan: ways to call them, inputs, and the formulas in numpy."""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import torch

B, T, H, K, V = 2, 9, 2, 3, 2  # slot_scan: K slots, V channels
GATES = {"none": None, "head": (B, T, H), "channel": (B, T, H, K), "constant": (H,), "constant channel": (H, K)}


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to call an operator."""

    scan: str
    name: str
    arguments: tuple[str, ...]  # those by position
    make: Callable  # (normal, tokens) -> inputs, without the state
    formula: Callable  # inputs -> o, final state: in numpy
    options: dict

    def __str__(self):
        return f"{self.scan}, {self.name}"

    @property
    def operator(self):
        return getattr(torch.ops.cortado, self.scan)

    def inputs(self, tokens=T, state=True, dtype=torch.float64):
        """Name -> tensor that requires a gradient, or None."""
        generator = torch.Generator().manual_seed(0)

        def normal(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

        made = self.make(normal, tokens)
        made["initial_state"] = normal(B, H, K, V) if state else None
        return {name: x if x is None else x.requires_grad_() for name, x in made.items()}

    def split(self, inputs):
        """The operator's arguments by position and by keyword."""
        named = {name: x for name, x in inputs.items() if name not in self.arguments}
        return tuple(inputs[name] for name in self.arguments), {**self.options, **named}

    def __call__(self, inputs):
        positional, keywords = self.split(inputs)
        return self.operator(*positional, **keywords)


def gate(normal, shape, tokens):
    return None if shape is None else -normal(*[tokens if n == T else n for n in shape]).abs()


def as_arrays(inputs):
    return {name: None if x is None else x.detach().double().numpy() for name, x in inputs.items()}


def wide_gate(g, k):
    """g of any shape for every key channel."""
    if g is None:
        return np.zeros(k.shape)
    if g.ndim == 3:
        g = g[..., None]
    elif g.ndim == 1:
        g = g[:, None]
    return np.broadcast_to(g, k.shape)


def start_of(x, batch):
    return np.zeros((batch, H, K, V)) if x["initial_state"] is None else x["initial_state"]


def make_gated(normal, tokens, shape, read, bonus):
    return {
        "q": normal(B, tokens, H, K if read == "key" else V),
        "k": normal(B, tokens, H, K),
        "v": normal(B, tokens, H, V),
        "g": gate(normal, shape, tokens),
        "bonus": normal(H, K) if bonus else None,
    }


def gated_formula(inputs, read="key", reverse=False):
    """o_t and S_T as explicit sums over pairs of tokens: no recurrence, no chunks."""
    x = as_arrays(inputs)
    q, k, v = x["q"], x["k"], x["v"]
    batch, tokens = k.shape[:2]
    g = wide_gate(x["g"], k)
    if reverse:
        q, k, v, g = (y[:, ::-1] for y in (q, k, v, g))
    start = start_of(x, batch)

    def state(t):
        total = np.exp(g[:, : t + 1].sum(1))[..., None] * start
        for s in range(t + 1):
            decay = np.exp(g[:, s + 1 : t + 1].sum(1))
            total = total + (decay * k[:, s])[..., None] * v[:, s, :, None, :]
        return total

    o = []
    for t in range(tokens):
        if x["bonus"] is None:
            seen = state(t)
        else:
            before = state(t - 1) if t else start
            seen = before + (x["bonus"] * k[:, t])[..., None] * v[:, t, :, None, :]
        o.append(np.einsum("bhkv,bhk->bhv" if read == "key" else "bhkv,bhv->bhk", seen, q[:, t]))
    o = np.stack(o, 1) * (K**-0.5 if read == "key" else 1.0)
    return (o[:, ::-1] if reverse else o), state(tokens - 1)


def make_delta(normal, tokens, shape):
    return {
        "q": normal(B, tokens, H, K),
        "k": torch.nn.functional.normalize(normal(B, tokens, H, K), dim=-1),
        "v": normal(B, tokens, H, V),
        "beta": normal(B, tokens, H).sigmoid() * 2,
        "g": gate(normal, shape, tokens),
    }


def delta_formula(inputs):
    """o_t and S_T as sums of what each token wrote, carried forward by the product of all later tokens' matrices."""
    x = as_arrays(inputs)
    q, k, v, beta = x["q"], x["k"], x["v"], x["beta"]
    batch, tokens = k.shape[:2]
    start = start_of(x, batch)
    keep = np.eye(K) - beta[..., None, None] * k[..., :, None] * k[..., None, :]  # I - beta k k'
    change = keep * np.exp(wide_gate(x["g"], k))[..., None, :]  # ... diag(exp g): [B,T,H,K,K]
    write = beta[..., None, None] * k[..., :, None] * v[..., None, :]

    def state(t):
        product, total = np.eye(K), 0.0
        for s in range(t, -1, -1):
            total = total + product @ write[:, s]
            product = product @ change[:, s]
        return total + product @ start

    o = [np.einsum("bhkv,bhk->bhv", state(t), q[:, t]) for t in range(tokens)]
    return np.stack(o, 1) * K**-0.5, state(tokens - 1)


def make_dplr(normal, tokens):
    unit = torch.nn.functional.normalize(normal(B, tokens, H, K), dim=-1)
    return {
        "q": normal(B, tokens, H, K),
        "k": normal(B, tokens, H, K),
        "v": normal(B, tokens, H, V),
        "a": -unit,
        "b": unit * normal(B, tokens, H, K).sigmoid(),
        "g": -normal(B, tokens, H, K).abs(),
    }


def dplr_formula(inputs):
    """As delta_formula(), with other matrices."""
    x = as_arrays(inputs)
    k, v = x["k"], x["v"]
    start = start_of(x, k.shape[0])
    change = np.eye(K) * np.exp(x["g"])[..., None] + x["b"][..., :, None] * x["a"][..., None, :]
    write = k[..., :, None] * v[..., None, :]

    def state(t):
        product, total = np.eye(K), 0.0
        for s in range(t, -1, -1):
            total = total + product @ write[:, s]
            product = product @ change[:, s]
        return total + product @ start

    o = [np.einsum("bhkv,bhk->bhv", state(t), x["q"][:, t]) for t in range(k.shape[1])]
    return np.stack(o, 1) * K**-0.5, state(k.shape[1] - 1)


def make_slot(normal, tokens, read, shared):
    slots = (tokens, K) if shared else (B, tokens, H, K)
    inputs = {
        "q": normal(B, tokens, H, K if read == "slot" else V),
        "w": normal(*slots),
        "x": normal(B, tokens, H, V),
        "decay": normal(*slots),  # of both signs, some above 1
    }
    inputs["decay"].transpose(0, 0 if shared else 1)[1::4, ..., 0] = 0
    return inputs


def slot_formula(inputs, read="slot"):
    """o_t and S_T as explicit sums over pairs of tokens, each with the product of the decays between: no recurrence, no chunks."""
    given = as_arrays(inputs)
    q, w, x, decay = (given[name] for name in ("q", "w", "x", "decay"))
    batch, tokens = x.shape[:2]
    w, decay = (y[None, :, None, :] if y.ndim == 2 else y for y in (w, decay))
    w, decay = (np.broadcast_to(y, (batch, tokens, H, K)) for y in (w, decay))
    start = start_of(given, batch)

    def state(t):
        total = decay[:, : t + 1].prod(1)[..., None] * start
        for s in range(t + 1):
            between = decay[:, s + 1 : t + 1].prod(1)
            total = total + (between * w[:, s])[..., None] * x[:, s, :, None, :]
        return total

    subscripts = "bhmx,bhm->bhx" if read == "slot" else "bhmx,bhx->bhm"
    o = np.stack([np.einsum(subscripts, state(t), q[:, t]) for t in range(tokens)], 1)
    return o * (1.0 if read == "slot" else V**-0.5), state(tokens - 1)


def gated_case(name, shape, read, bonus, reverse):
    options = {"read": read, "reverse": reverse}
    make = functools.partial(make_gated, shape=shape, read=read, bonus=bonus)
    return Case("gated_scan", name, ("q", "k", "v", "g"), make, functools.partial(gated_formula, **options), options)


def delta_case(name, shape):
    make = functools.partial(make_delta, shape=shape)
    return Case("delta_scan", name, ("q", "k", "v", "beta", "g"), make, delta_formula, {})


def slot_case(name, read, shared):
    make = functools.partial(make_slot, read=read, shared=shared)
    formula = functools.partial(slot_formula, read=read)
    return Case("slot_scan", name, ("q", "w", "x", "decay"), make, formula, {"read": read})


VARIANTS = {"key": ("key", False, False), "value": ("value", False, False), "bonus": ("key", True, False), "reverse": ("key", False, True)}
REVERSED = {"value, reverse": ("value", False, True), "bonus, reverse": ("key", True, True)}
READS = [(read, shared) for read in ("slot", "channel") for shared in (False, True)]

CASES = [gated_case(f"{name}, {variant}", shape, *how) for name, shape in GATES.items() for variant, how in VARIANTS.items()]
CASES += [delta_case(name, shape) for name, shape in GATES.items()]
CASES += [Case("dplr_scan", "channel", ("q", "k", "v", "a", "b", "g"), make_dplr, dplr_formula, {})]
CASES += [slot_case(f"{read}{', shared' if shared else ''}", read, shared) for read, shared in READS]
# Further combinations, for the cheapest of the tests.
MORE_CASES = [gated_case(f"{name}, {variant}", shape, *how) for name, shape in GATES.items() for variant, how in REVERSED.items()]


def named(*names):
    """Returns the cases of these names."""
    found = [case for case in CASES if str(case) in names]
    assert len(found) == len(names), (names, [str(case) for case in found])
    return found
