"""The operators that have kernels for GPUs, on a GPU, against the same operators in float64 on the CPU: outputs, states and every
gradient; twice with the same bits; packed as separate sequences."""

import dataclasses

import pytest
import torch

OPS = torch.ops.cortado
BF16, F16 = torch.bfloat16, torch.float16


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    gate: str | None = "head"  # none, head, channel, constant
    delta: bool = False
    batch: int = 2
    tokens: int = 333
    heads: int = 2
    state_heads: int = 2
    keys: int = 64
    values: int = 64
    dtype: torch.dtype = BF16
    read: str = "key"
    reverse: bool = False
    state: bool = True
    gates: float = 0.1  # log gates are the log of a uniform number, times this
    cuts: bool = False
    bounds: tuple = ()

    def inputs(self):
        torch.manual_seed(1)
        normal = lambda heads, width: torch.randn(self.batch, self.tokens, heads, width).to(self.dtype)
        sizes = {"head": (self.batch, self.tokens, self.state_heads), "constant": (self.state_heads,),
                 "channel": (self.batch, self.tokens, self.state_heads, self.keys)}.get(self.gate)  # fmt: skip
        g = None if sizes is None else torch.rand(sizes).log() * self.gates
        if self.cuts:
            g = g.masked_fill(torch.rand_like(g) < 0.02, float("-inf"))
        rows = len(self.bounds) - 1 if self.bounds else self.batch
        start = torch.randn(rows, self.state_heads, self.keys, self.values) if self.state else None
        inputs = {"q": normal(self.heads, self.keys if self.read == "key" else self.values), "k": normal(self.state_heads, self.keys),
                  "v": normal(self.state_heads, self.values), "g": g, "initial_state": start}  # fmt: skip
        if self.delta:
            inputs["k"] = torch.nn.functional.normalize(inputs["k"].float(), dim=-1).to(self.dtype)
            inputs["beta"] = torch.rand(self.batch, self.tokens, self.state_heads)
        return inputs


CASES = [Case("plain"), Case("one token", tokens=1), Case("odd", tokens=65, values=128), Case("wide", keys=128, values=128),
         Case("narrow", keys=32, values=40), Case("long", batch=1, tokens=20000, heads=1, state_heads=1, state=False),
         Case("heads share states", heads=4), Case("float16", dtype=F16), Case("cuts", cuts=True), Case("reverse", reverse=True),
         Case("constant", gate="constant"), Case("none", gate=None), Case("values", values=128, read="value"),
         Case("packed", batch=1, tokens=700, bounds=(0, 3, 3, 260, 700)),
         Case("packed reverse", batch=1, tokens=700, keys=128, reverse=True, bounds=(0, 257, 700))]  # fmt: skip
CASES += [dataclasses.replace(case, name=f"channels, {case.name}", gate="channel") for case in CASES if case.gate == "head"]
CASES += [dataclasses.replace(case, name=f"delta, {case.name}", delta=True) for case in CASES
          if case.gate != "constant" and case.read == "key" and not case.reverse]  # fmt: skip
CASES += [Case("channels, steep", gate="channel", gates=6.0), Case("no multiple of 8", keys=33, values=65),
          Case("channels, no multiple of 8", gate="channel", keys=5, values=7), Case("256 keys", keys=200, values=256)]  # fmt: skip
CASES += [dataclasses.replace(case, name=f"float32, {case.name}", dtype=torch.float32) for case in CASES
          if case.dtype == BF16 and "wide" not in case.name and "narrow" not in case.name]  # fmt: skip


def run(case, inputs, gradients, device, dtype=None):
    """Returns o, the last state, and the gradients of all given inputs, by name."""
    move = lambda x: x.to(device=device, dtype=dtype) if dtype else x.to(device)
    leaves = {name: move(x).requires_grad_() if x is not None else None for name, x in inputs.items()}
    bounds = torch.tensor(case.bounds, device=device) if case.bounds else None
    given = {name: x for name, x in leaves.items() if name not in ("q", "k", "v")}
    more = {} if case.delta else {"read": case.read, "reverse": case.reverse}
    scan = OPS.delta_scan if case.delta else OPS.gated_scan
    o, last = scan(leaves["q"], leaves["k"], leaves["v"], **given, cu_seqlens=bounds, **more)
    there = {name: x for name, x in leaves.items() if x is not None}
    found = torch.autograd.grad([o, last], list(there.values()), [move(gradients[0]).to(o), move(gradients[1]).to(last)])
    return {"o": o.detach(), "last": last.detach(), **dict(zip(there, found, strict=True))}


def error(found, right):
    return ((found.double().cpu() - right).norm() / (right.norm() + 1e-30)).item()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gated_scan_is_float64s(case):
    inputs = case.inputs()
    o = OPS.gated_scan(inputs["q"].double(), inputs["k"].double(), inputs["v"].double(), read=case.read)[0]
    rows = len(case.bounds) - 1 if case.bounds else case.batch
    last = torch.randn(rows, case.state_heads, case.keys, case.values) * case.state
    gradients = (torch.randn(o.shape).to(case.dtype), last)
    right = run(case, inputs, gradients, "cpu", torch.float64)
    found, again = run(case, inputs, gradients, "cuda"), run(case, inputs, gradients, "cuda")
    for name, x in right.items():
        # A gate's gradient is a small difference of large sums of rounded products.
        most = (0.2 if case.gates > 1 else 4e-2) if name == "g" else 1.2e-2 if case.delta else 6e-3
        if case.dtype == torch.float32:
            most = 1e-4 if name in ("g", "beta") else 1e-5
        assert error(found[name], x) < most, name
        assert torch.equal(found[name], again[name]), name


def same_as_float64(scan, given, close, dtype):
    """Checks a function's results and gradients on the GPU in `dtype` against float64 on the CPU."""

    def results(device, to):
        leaves = {name: x.to(device=device, dtype=to).requires_grad_() for name, x in given.items()}
        out = scan(**leaves)
        torch.manual_seed(5)
        grads = [torch.randn(x.shape).to(x) for x in out]
        return [*out, *torch.autograd.grad(out, list(leaves.values()), grads)]

    for x, y in zip(results("cpu", torch.float64), results("cuda", dtype), strict=True):
        assert error(y.detach(), x.detach()) < close


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-4), (BF16, 4e-2)])
@pytest.mark.parametrize("gate", ["none", "head", "channel"])
def test_a_bonus_is_float64s(gate, dtype, close):
    torch.manual_seed(3)
    given = {name: torch.randn(2, 333, 2, width) for name, width in (("q", 64), ("k", 64), ("v", 40))}
    given |= {"bonus": torch.randn(2, 64), "initial_state": torch.randn(2, 2, 64, 40)}
    given |= {} if gate == "none" else {"g": torch.rand(2, 333, 2, *[64] * (gate == "channel")).log() * 0.1}
    given = {name: x if name == "initial_state" else x.to(dtype) for name, x in given.items()}
    same_as_float64(OPS.gated_scan, given, close, dtype)


@pytest.mark.parametrize("read", ["slot", "channel"])
def test_decays_of_both_signs_are_float64s(read):
    torch.manual_seed(3)
    given = {"q": torch.randn(2, 333, 2, 33 if read == "slot" else 64), "x": torch.randn(2, 333, 2, 64), "w": torch.randn(333, 33)}
    decay = torch.rand(333, 33) * 1.6 - 0.6
    same_as_float64(lambda **of: OPS.slot_scan(**of, decay=decay.to(of["q"]), read=read), given, 1e-4, torch.float32)


@pytest.mark.mechanism("blurry_window")
@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-4), (BF16, 2e-2)])
@pytest.mark.parametrize(("slots", "period"), [(33, 66), (33, 33), (63, 200)])
@pytest.mark.parametrize("decay", [True, False])
def test_blurry_window_is_float64s(decay, slots, period, dtype, close):
    torch.manual_seed(3)
    given = {name: torch.randn(2, 333, 2, 64).to(dtype) for name in "qkv"}
    same_as_float64(lambda **of: OPS.blurry_window(**of, slots=slots, period=period, decay=decay), given, close, dtype)


@pytest.mark.parametrize(("gate", "delta"), [("head", False), ("channel", False), ("head", True), ("channel", True)])
def test_packed_is_separate(gate, delta):
    case = Case("packed", gate=gate, delta=delta, batch=1, tokens=500, state=False)
    scan = OPS.delta_scan if delta else OPS.gated_scan
    inputs = {name: x.cuda() for name, x in case.inputs().items() if x is not None}
    bounds = [0, 130, 131, 500]
    together = scan(**inputs, cu_seqlens=torch.tensor(bounds, device="cuda"))
    for n, (begin, end) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        alone = scan(**{name: x[:, begin:end] for name, x in inputs.items()})
        found, right = (together[0][:, begin:end], together[1][n]), (alone[0], alone[1][0])
        if end - begin > 1:
            assert all(map(torch.equal, found, right))
        else:  # alone it is a step, in float32
            assert all(error(x, y.double().cpu()) < 6e-3 for x, y in zip(found, right, strict=True))


def test_what_lies_otherwise_in_memory():
    case = Case("plain")
    inputs = {name: x.cuda() for name, x in case.inputs().items()}
    right = OPS.gated_scan(**inputs)
    there = {name: x.transpose(0, 1).contiguous().transpose(0, 1) for name, x in inputs.items()}
    wide = torch.cat([inputs["q"], inputs["q"]], -1)[..., 4:68]  # not at a multiple of 16 bytes
    assert torch.equal(OPS.gated_scan(**there)[0], right[0])
    q = dict(inputs, q=wide)
    assert torch.equal(OPS.gated_scan(**q)[0], OPS.gated_scan(**dict(inputs, q=wide.contiguous()))[0])


def test_a_scan_is_captured_in_a_graph():
    inputs = {name: x.cuda() for name, x in Case("plain").inputs().items()}
    right = OPS.gated_scan(**inputs)[0].clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = OPS.gated_scan(**inputs)[0]
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(o, right)


@pytest.mark.parametrize(("batch", "tokens"), [(2, 1), (2, 70), (2, 5000), (30, 100)])  # the last fills the GPU
@pytest.mark.parametrize("reverse", [False, True])
def test_elementwise_scan_is_float64s(batch, tokens, reverse):
    torch.manual_seed(2)
    log_a, b, start = torch.rand(batch, tokens, 300).log() * 0.2, torch.randn(batch, tokens, 300), torch.randn(batch, 300)
    log_a[torch.rand_like(log_a) < 0.02] = float("-inf")
    grads = [torch.randn_like(b), torch.randn_like(start)]

    def results(device, dtype):
        leaves = [x.to(device=device, dtype=dtype).requires_grad_() for x in (log_a, b, start)]
        out = OPS.elementwise_scan(leaves[0], leaves[1], initial_state=leaves[2], reverse=reverse)
        return [*out, *torch.autograd.grad(out, leaves, [x.to(out[0]) for x in grads])]

    right, found, again = results("cpu", torch.float64), results("cuda", torch.float32), results("cuda", torch.float32)
    for x, y, z in zip(right, found, again, strict=True):
        assert error(y.detach(), x.detach()) < 1e-5 and torch.equal(y, z)


@dataclasses.dataclass(frozen=True)
class LatteCase:
    name: str
    dtype: torch.dtype = BF16
    batch: int = 2
    tokens: int = 700
    heads: int = 2
    latents: int = 64
    values: int = 64
    size: float = 1.0  # of the logits
    unseen: float = 0.0  # share of logits that are -inf
    state: bool = False
    bounds: tuple = ()

    def inputs(self):
        torch.manual_seed(3)
        normal = lambda width, size: (torch.randn(self.batch, self.tokens, self.heads, width) * size).to(self.dtype)
        query, keys, v = normal(self.latents, 1), normal(self.latents, self.size), normal(self.values, 1)
        keys = keys.masked_fill(torch.rand(keys.shape) < self.unseen, float("-inf"))
        rows = len(self.bounds) - 1 if self.bounds else self.batch
        start = (torch.randn(rows, self.heads, self.latents, self.values), torch.rand(rows, self.heads, self.latents) + 1,
                 torch.randn(rows, self.heads, self.latents)) if self.state else ()  # fmt: skip
        return [query, keys, v, *start]


LATTES = [LatteCase("bfloat16"), LatteCase("float32", torch.float32), LatteCase("float32 extremes", torch.float32, size=100.0),
          LatteCase("one token", tokens=1, state=True),
          LatteCase("one token in float32", torch.float32, batch=64, tokens=1, state=True), LatteCase("steep", size=40.0, tokens=300), LatteCase("extremes", size=1e4, tokens=200),
          LatteCase("unseen", unseen=0.3), LatteCase("state", state=True), LatteCase("narrow", latents=24, values=40),
          LatteCase("wide", latents=128, values=128), LatteCase("long", batch=1, tokens=20000, heads=1),
          LatteCase("packed", batch=1, state=True, bounds=(0, 3, 3, 260, 700)),
          LatteCase("many", batch=8, tokens=200, heads=16)]  # fmt: skip


def latte(case, inputs, grads, device, dtype):
    leaves = [x.to(device=device, dtype=dtype if i < 3 or dtype == torch.float64 else None) for i, x in enumerate(inputs)]
    learned = [x.requires_grad_() for x in leaves[:5]]
    state = dict(zip(("state", "normalizer", "maximum"), leaves[3:], strict=False))
    bounds = torch.tensor(case.bounds, device=device) if case.bounds else None
    o, last, normalizer, maximum = OPS.latte(*leaves[:3], **state, cu_seqlens=bounds)
    found = torch.autograd.grad([o, last, normalizer], learned, [x.to(y) for x, y in zip(grads, (o, last, normalizer), strict=True)])
    return [x.detach() for x in (maximum, normalizer, o, last, *found)]


@pytest.mark.mechanism("latte")
@pytest.mark.parametrize("case", LATTES, ids=lambda case: case.name)
def test_latte_is_float64s(case):
    inputs = case.inputs()
    rows = len(case.bounds) - 1 if case.bounds else case.batch
    grads = [torch.randn(case.batch, case.tokens, case.heads, case.values), torch.randn(rows, case.heads, case.latents, case.values) * 0.1,
             torch.randn(rows, case.heads, case.latents) * 0.1]  # fmt: skip
    grads = [x.to(case.dtype) for x in grads]
    right = latte(case, inputs, grads, "cpu", torch.float64)
    found, again = (latte(case, inputs, grads, "cuda", case.dtype) for _ in range(2))
    most = 1e-4 if case.dtype == torch.float32 else 1.5e-2
    for i, (x, y, z) in enumerate(zip(right, found, again, strict=True)):
        assert error(y.where(y > float("-inf"), torch.zeros_like(y)), x.where(x > float("-inf"), torch.zeros_like(x))) < most, i
        assert torch.equal(y, z), i


WINDOWS = [{"window": 100}, {"window": 1}, {}, {"causal": False}, {"causal": False, "window": 70}, {"bounds": [0, 3, 3, 290, 400]},
           {"window": 64, "keys": 128, "values": 96}, {"window": 50, "state_heads": 1}]  # fmt: skip
WINDOWS += [{"queries": queries, "tokens": 2048, **case} for queries in (1, 5, 64) for case in ({}, {"window": 500}, {"causal": False})]


@pytest.mark.parametrize("case", WINDOWS, ids=str)
def test_window_attention_is_float64s(case):
    torch.manual_seed(4)
    case = dict(case)
    keys, values, heads = case.pop("keys", 64), case.pop("values", 64), case.pop("state_heads", 2)
    bounds = case.pop("bounds", None)
    batch, tokens = 1 if bounds else 2, case.pop("tokens", 400)
    queries = case.pop("queries", tokens)
    inputs = [torch.randn(batch, t, n, width).to(BF16)
              for t, n, width in ((queries, 2, keys), (tokens, heads, keys), (tokens, heads, values))]  # fmt: skip
    grads = torch.randn(batch, queries, 2, values).to(BF16), torch.randn(batch, queries, 2)

    def results(device, dtype):
        leaves = [x.to(device=device, dtype=dtype).requires_grad_() for x in inputs]
        packed = torch.tensor(bounds, device=device) if bounds else None
        o, lse, row_max = OPS.window_attention(*leaves, cu_seqlens=packed, **case)
        grad = torch.autograd.grad([o, lse], leaves, [grads[0].to(o), grads[1].to(lse)])
        return [lse.detach(), row_max.detach(), o.detach(), *grad]

    right, found, again = results("cpu", torch.float64), results("cuda", BF16), results("cuda", BF16)
    for i, (x, y, z) in enumerate(zip(right, found, again, strict=True)):
        assert error(y, x) < (1e-5 if i < 2 else 8e-3) and torch.equal(y, z)


@pytest.mark.mechanism("macchiato")
def test_macchiato_is_float64s():
    torch.manual_seed(5)
    widths = (65, 64, 64, 64, 64)  # query logits, key logits, values, the window's queries and keys
    inputs = [torch.randn(2, 500, 2, width).to(BF16) for width in widths]
    grad = torch.randn(2, 500, 2, 64).to(BF16)

    def results(device, dtype):
        leaves = [x.to(device=device, dtype=dtype).requires_grad_() for x in inputs]
        o = OPS.macchiato(*leaves, window=100)[0]
        return [o.detach(), *torch.autograd.grad(o, leaves, grad.to(o))]

    for x, y in zip(results("cpu", torch.float64), results("cuda", BF16), strict=True):
        assert error(y, x) < 2e-2


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (BF16, 6e-3)])
@pytest.mark.parametrize("activation", ["none", "silu"])
def test_short_conv_is_float64s(dtype, most, activation):
    torch.manual_seed(6)
    inputs = [torch.randn(2, 700, 300), torch.randn(300, 4), torch.randn(300), torch.randn(2, 3, 300)]
    inputs = [*(x.to(dtype) for x in inputs[:3]), inputs[3]]
    grads = torch.randn(2, 700, 300).to(dtype), torch.randn(2, 3, 300)

    def results(device, wide):
        leaves = [x.to(device=device, dtype=torch.float64 if wide else x.dtype).requires_grad_() for x in inputs]
        y, last = OPS.short_conv(leaves[0], leaves[1], leaves[2], activation=activation, initial_state=leaves[3])
        found = torch.autograd.grad([y, last], leaves, [grads[0].to(y), grads[1].to(last)])
        return [y.detach(), last.detach(), *found]

    for x, y, z in zip(results("cpu", True), results("cuda", False), results("cuda", False), strict=True):
        assert error(y, x) < most and torch.equal(y, z)


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize("kind", ["gated", "value", "bonus", "delta", "slot"])
def test_a_step_is_float64s(kind, dtype):
    torch.manual_seed(7)
    q, k, v = (torch.randn(5, 1, heads, 64) for heads in (4, 2, 2))
    decay, beta, bonus, start = torch.rand(5, 1, 2, 64), torch.rand(5, 1, 2), torch.randn(4, 64), torch.randn(5, 2, 64, 64)
    short = [x.to(dtype) for x in (q, k * 0.2, v)]

    def results(device, wide):
        move = lambda x: x.to(device=device, dtype=torch.float64 if wide else x.dtype)
        q, k, v = map(move, short)
        if kind == "delta":
            return OPS.delta_scan(q, k, v, move(beta), move(decay[..., 0].log()), initial_state=move(start))
        if kind == "slot":
            return OPS.slot_scan(q, k, v, move(decay), initial_state=move(start))
        more = {"bonus": move(bonus)} if kind == "bonus" else {}
        return OPS.gated_scan(q, k, v, move(decay.log()), read="value" if kind == "value" else "key", initial_state=move(start), **more)

    for x, y in zip(results("cpu", True), results("cuda", False), strict=True):
        assert error(y, x) < (1e-5 if dtype == torch.float32 else 6e-3)


@pytest.mark.mechanism("gated_slot", "abc")
@pytest.mark.parametrize("name", ["gated_slot", "abc"])
@pytest.mark.parametrize("state", [False, True])
def test_two_passes_over_slots_are_float64s(name, state):
    torch.manual_seed(8)
    q, k, v, s = (torch.randn(2, 300, 2, 64).to(BF16) for _ in range(4))
    g = torch.rand(2, 300, 2, 64).log() * 0.1
    first = [q, k, v, *([(1 - g.exp()).to(BF16), g] if name == "gated_slot" else [s])]
    sizes = {"key_state": (2, 2, 64, 64), "value_state": (2, 2, 64, 64)}
    start = {key: torch.randn(size) * 0.1 for key, size in sizes.items()} if state else {}
    if state and name == "abc":
        start |= {"normalizer": torch.rand(2, 2, 64) + 1, "maximum": torch.randn(2, 2, 64)}
    grad = torch.randn(2, 300, 2, 64).to(BF16)

    def results(device, wide):
        move = lambda x: x.to(device=device, dtype=torch.float64 if wide else x.dtype)
        leaves = [move(x).requires_grad_() for x in first]
        o, *last = getattr(OPS, name)(*leaves, **{key: move(x) for key, x in start.items()})
        return [o.detach(), *(x.detach() for x in last), *torch.autograd.grad(o, leaves, move(grad))]

    for i, (x, y) in enumerate(zip(results("cpu", True), results("cuda", False), strict=True)):
        assert error(y, x) < (6e-2 if name == "gated_slot" and i == 7 else 2.5e-2), i  # the last: the gates, small differences


def of_many_rows():
    """Returns operators whose grids have a batch's rows as y or z: (operator, widths of its inputs, their type)."""
    window = lambda q, k, v: OPS.window_attention(q, k, v, window=2)
    macchiato = lambda *inputs: OPS.macchiato(*inputs, window=2)
    delta = lambda q, k, v, beta: OPS.delta_scan(q, k, v, beta[..., 0].float().sigmoid().to(q.device))
    return {"gated_scan": (OPS.gated_scan, (8, 8, 8), BF16), "delta_scan": (delta, (8, 8, 8, 1), BF16), "latte": (OPS.latte, (8, 8, 8), BF16),
            "window_attention": (window, (8, 8, 8), BF16), "macchiato": (macchiato, (9, 8, 8, 8, 8), BF16), "float32": (OPS.gated_scan, (8, 8, 8), torch.float32),
            "elementwise_scan": (lambda a, b: OPS.elementwise_scan(-a[:, :, 0].square(), b[:, :, 0]), (8, 8), torch.float32)}  # fmt: skip


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.mechanism(name)) if name in ("latte", "macchiato") else name for name in of_many_rows()])
def test_more_rows_than_a_grid_has(name, tokens):
    operator, widths, dtype = of_many_rows()[name]
    torch.manual_seed(9)
    inputs = [torch.randn(66000, tokens, 1, width).to(dtype) for width in widths]

    def results(device, dtype):
        leaves = [x.to(device=device, dtype=dtype).requires_grad_() for x in inputs]
        out = operator(*leaves)
        out = out[0] if isinstance(out, (list, tuple)) else out
        return [out, *torch.autograd.grad(out.sum(), leaves)]

    most = 1e-5 if dtype == torch.float32 else 2e-2
    for x, y in zip(results("cpu", torch.float64), results("cuda", dtype), strict=True):
        assert (y.detach().double().cpu() - x.detach()).norm() < most * x.norm() + 1e-4  # of one token some gradients are 0
