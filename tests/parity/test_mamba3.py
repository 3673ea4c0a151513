"""mamba3 against Mamba-3's equations (Lahoti et al. 2026): outputs, gradients, continuation; and folders of mamba_ssm.

The definition is in float64 and token by token, with the parameter names of mamba_ssm's layer. The complex state is written as
such: two real channels of B and of C are one complex number, the state turns by -angle at each token, and the output is the real
part of the product with conj(C). So the definition accumulates no angles, and its B and C never turn."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from test_import_linear import check_imported
from torch.nn.functional import silu, softplus

pytestmark = pytest.mark.mechanism("mamba3")

DIM, HEADS = 24, 4
RANKS = ("mimo_x", "mimo_z", "mimo_o")
NAMES = {"in.weight": "in_proj.weight", "out.weight": "out_proj.weight", "step_bias": "dt_bias", "skip": "D", "b_norm.weight": "B_norm.weight",
         "c_norm.weight": "C_norm.weight", "norm.weight": "norm.weight"}  # fmt: skip
BY_RANK = {"b_bias": "B_bias", "c_bias": "C_bias", "rank_in": "mimo_x", "rank_gate": "mimo_z", "rank_out": "mimo_o"}
# settings of the mixer, and those of the definition
CASES = {
    "siso": ({"state": 9}, {"head": 12, "state": 9}),
    "groups": ({"state": 8, "groups": 2, "norm": "before_gate"}, {"head": 12, "state": 8, "groups": 2}),
    "all_turn": ({"state": 6, "rotary_fraction": 1, "decay_min": 0.2}, {"head": 12, "state": 6, "rope_fraction": 1, "floor": 0.2}),
    "mimo": ({"state": 8, "rank": 3}, {"head": 12, "state": 8, "rank": 3}),
    "mimo_norm": ({"state": 6, "rank": 2, "groups": 2, "norm": "before_gate", "width": 32}, {"head": 8, "state": 6, "rank": 2, "groups": 2}),
}


def rms(x, weight, eps=1e-5):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def pairs(state, angles, halves):
    """The channels that are real and imaginary parts, and those that do not turn. halves: of MIMO, i and i + state/2."""
    real = torch.arange(angles) if halves else torch.arange(0, 2 * angles, 2)
    imaginary = real + (state // 2 if halves else 1)
    rest = torch.tensor(sorted(set(range(state)) - set(real.tolist()) - set(imaginary.tolist())), dtype=torch.long)
    return real, imaginary, rest


def as_complex(x, where):
    """[..., N] -> [..., S + N - 2S]: the channels that do not turn have no imaginary part."""
    real, imaginary, rest = where
    return torch.cat([torch.complex(x[..., real], x[..., imaginary]), torch.complex(x[..., rest], torch.zeros_like(x[..., rest]))], -1)


def mamba3(p, u, *, head, groups=1, state, rank=1, mimo=False, rope_fraction=0.5, floor=1e-4):
    """u [B, T, D] -> [B, T, D]. p: tensors by name; with "norm.weight" the output has a norm per head."""
    inner = p["out_proj.weight"].shape[1]
    heads, angles = inner // head, int(state * rope_fraction) // 2
    where = pairs(state, angles, mimo)
    sizes = [inner, inner, rank * groups * state, rank * groups * state, heads, heads, heads, angles]
    z, x, b, c, dt, a, trap, theta = (u @ p["in_proj.weight"].T).split(sizes, -1)
    z, x = z.unflatten(-1, (heads, head)), x.unflatten(-1, (heads, head))
    ones = {name: torch.ones(heads, 1, head, dtype=u.dtype) for name in RANKS}
    into, gate, out = (p.get(name, ones[name]) for name in RANKS)
    of_head = torch.arange(heads) // (heads // groups)  # its group

    def selected(v, name):  # [B, T, R, H, N] as complex numbers
        v = rms(v.unflatten(-1, (rank, groups, state)), p[f"{name}_norm.weight"])[..., of_head, :]
        return as_complex(v + p[f"{name}_bias"].transpose(0, 1), where)

    b, c = selected(b, "B"), selected(c, "C")
    dt = softplus(dt + p["dt_bias"])
    alpha = torch.exp(-softplus(a).clamp_min(floor) * dt)
    share = torch.sigmoid(trap)
    turn = math.pi * torch.tanh(theta).unsqueeze(2) * dt.unsqueeze(-1)  # [B, T, H, S]
    turn = torch.cat([turn, turn.new_zeros(*turn.shape[:-1], state - 2 * angles)], -1)
    back = torch.exp(-1j * turn)
    h = torch.zeros(u.shape[0], heads, state - angles, head, dtype=torch.complex128)
    before, outputs = torch.zeros_like(h), []
    for t in range(u.shape[1]):
        v = x[:, t].unsqueeze(2) * into  # [B, H, R, P]
        write = torch.einsum("brhn,bhrp->bhnp", b[:, t], v.to(h.dtype))
        scalar = lambda w: w[:, t, :, None, None]
        h = scalar(alpha) * back[:, t].unsqueeze(-1) * (h + scalar((1 - share) * dt) * before) + scalar(share * dt) * write
        before = write
        y = torch.einsum("brhn,bhnp->bhrp", c[:, t].conj(), h).real + p["D"][:, None, None] * v
        if "norm.weight" in p:
            y = rms(y, p["norm.weight"].view(heads, 1, head))
        outputs.append((y * silu(z[:, t].unsqueeze(2) * gate) * out).sum(2))
    return torch.stack(outputs, 1).flatten(2) @ p["out_proj.weight"].T


def random_parameters(dim, *, head, groups=1, state, rank=1, mimo=False, rope_fraction=0.5, normed=False, expand=2, scale=0.3):
    """Parameters of mamba_ssm's layer, none of them at its initial value."""
    inner = expand * dim
    heads, angles = inner // head, int(state * rope_fraction) // 2
    shapes = {"in_proj.weight": (2 * inner + 2 * rank * groups * state + 3 * heads + angles, dim), "out_proj.weight": (dim, inner)}
    around = {"dt_bias": (heads,), "D": (heads,), "B_norm.weight": (state,), "C_norm.weight": (state,), "B_bias": (heads, rank, state), "C_bias": (heads, rank, state)}
    around |= {name: (heads, rank, head) for name in RANKS if mimo}
    around |= {"norm.weight": (inner,)} if normed else {}
    made = {name: torch.randn(shape, dtype=torch.float64) * scale for name, shape in shapes.items()}
    return made | {name: torch.randn(shape, dtype=torch.float64) * scale + (1 if name != "dt_bias" else -1) for name, shape in around.items()}


def made(mixer, name):
    settings, sizes = CASES[name]
    torch.manual_seed(5)
    ours = mixer("mamba3", DIM, HEADS, **settings)
    with torch.no_grad():
        for value in ours.parameters.values():
            value.add_(torch.randn_like(value) * 0.3)
    return ours, sizes


def as_theirs(parameters):
    """Our parameters by mamba_ssm's names. The mixer pairs neighbouring channels whatever the rank, as the definition's SISO."""
    return {NAMES.get(name) or BY_RANK[name]: value.transpose(0, 1) if name in BY_RANK else value for name, value in parameters.items()}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("scale", [0.01, 1.0, 10.0])
def test_equations(mixer, close, same_gradients, name, scale):
    """Also with steps and decays of 0.01 to 10 times the usual."""
    ours, sizes = made(mixer, name)
    with torch.no_grad():
        angles = int(sizes["state"] * sizes.get("rope_fraction", 0.5)) // 2
        ours.parameters["in.weight"][-3 * HEADS - angles : -HEADS - angles] *= scale
    leaves = list(ours.parameters.values())
    for tokens in (1, 2, 45):
        x = torch.randn(2, tokens, DIM, dtype=torch.float64, requires_grad=True)
        y, expected = ours(x), mamba3(as_theirs(ours.parameters), x, **sizes)
        close(y, expected, 1e-10, f"T = {tokens}")
        same_gradients(y, expected, [x, *leaves], [x, *leaves], 1e-7)


@pytest.mark.parametrize("name", CASES)
def test_pieces_and_packed(mixer, close, name):
    ours, sizes = made(mixer, name)
    x = torch.randn(2, 40, DIM, dtype=torch.float64)
    with torch.no_grad():
        expected = mamba3(as_theirs(ours.parameters), x, **sizes)
        parts = [ours.resume(x[:, :13]), ours.resume(x[:, 13:14]), ours.resume(x[:, 14:16]), ours.resume(x[:, 16:])]
        close(torch.cat(parts, 1), expected, 1e-10, "resumed")
        packed = torch.cat([x[:1, :7], x[1:, :33]], 1)
        close(ours(packed, torch.tensor([0, 7, 40])), torch.cat([expected[:1, :7], expected[1:, :33]], 1), 1e-10, "packed")


def test_long_angles(mixer, close):
    """Angles add up over thousands of tokens; float32 keeps them, as a whole and token by token."""
    torch.manual_seed(6)
    settings = {"state": 8}
    narrow, wide = mixer("mamba3", DIM, HEADS, float64=False, **settings), mixer("mamba3", DIM, HEADS, **settings)
    with torch.no_grad():
        wide.parameters["step_bias"].fill_(3.0)
        wide.parameters["in.weight"][-2:] *= 3
        for key, value in narrow.parameters.items():
            value.copy_(wide.parameters[key])
            wide.parameters[key].copy_(value)
        x = torch.randn(1, 3000, DIM)
        expected = wide(x.double())
        close(narrow(x), expected, 2e-5, "whole")
        pieces = torch.cat([narrow.resume(part) for part in x.split(50, 1)], 1)
        close(pieces, expected, 2e-5, "pieces")


class Model:
    """A language model of mamba_ssm with two layers, computed by the definition."""

    def __init__(self, vocabulary, layers=2, **sizes):
        torch.manual_seed(7)
        self.sizes = {key: value for key, value in sizes.items() if key not in ("normed", "expand")}
        drawn = [random_parameters(DIM, **{key: value for key, value in sizes.items() if key != "floor"}) for _ in range(layers)]
        self.layers = [{name: value.float().double() for name, value in layer.items()} for layer in drawn]
        self.norms = [(torch.rand(DIM) + 0.5).double() for _ in range(layers + 1)]
        self.embedding = torch.randn(vocabulary, DIM).double()

    def double(self):
        return self

    float = double  # whatever the type that is asked for, it computes in float64

    def __call__(self, tokens, use_cache=False):
        x = self.embedding[tokens]
        for norm, layer in zip(self.norms, self.layers):
            x = x + mamba3(layer, rms(x, norm), **self.sizes)
        return SimpleNamespace(logits=rms(x, self.norms[-1]) @ self.embedding.T)

    def save(self, folder, **ssm):
        tensors = {"backbone.embedding.weight": self.embedding, "lm_head.weight": self.embedding.clone(), "backbone.norm_f.weight": self.norms[-1]}
        for number, (norm, layer) in enumerate(zip(self.norms, self.layers)):
            tensors |= {f"backbone.layers.{number}.norm.weight": norm}
            tensors |= {f"backbone.layers.{number}.mixer.{name}": value for name, value in layer.items()}
        folder.mkdir()
        save_file({name: value.float().contiguous() for name, value in tensors.items()}, folder / "model.safetensors")
        config = {"d_model": DIM, "n_layer": len(self.layers), "vocab_size": len(self.embedding), "pad_vocab_size_multiple": 1, "rms_norm": True,
                  "residual_in_fp32": True, "fused_add_norm": True, "tie_embeddings": True, "ssm_cfg": {"layer": "Mamba3", **ssm}}  # fmt: skip
        (folder / "config.json").write_text(json.dumps(config))
        return config


FOLDERS = {
    "siso": (dict(head=12, state=9), dict(headdim=12, d_state=9)),
    "siso_norm": (dict(head=8, state=8, groups=2, normed=True, floor=0.2), dict(headdim=8, d_state=8, ngroups=2, is_outproj_norm=True, A_floor=0.2, chunk_size=64)),
    "mimo": (dict(head=12, state=10, rank=4, mimo=True), dict(headdim=12, d_state=10, is_mimo=True)),
    "mimo_norm": (dict(head=6, state=6, rank=2, mimo=True, rope_fraction=1, groups=2, normed=True, expand=1),
                  dict(headdim=6, d_state=6, is_mimo=True, mimo_rank=2, rope_fraction=1.0, ngroups=2, is_outproj_norm=True, expand=1)),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_of_mamba_ssm(cortado, build, tmp_path, name):
    """Logits, pieces, unequal lengths and 64 greedy tokens are those of the definition."""
    sizes, ssm = FOLDERS[name]
    model = Model(67, **sizes)
    model.save(tmp_path / "theirs", **ssm)
    done = cortado("import", tmp_path / "theirs", "--out", tmp_path / "ours")
    assert done.returncode == 0, done.stderr
    check_imported(model, tmp_path, build)


def test_what_folders_can_and_this_cannot(refused, tmp_path):
    model = Model(67, head=12, state=8)
    config = model.save(tmp_path / "theirs", headdim=12, d_state=8)
    for changes, word in (({"layer": "Mamba4"}, "Mamba4"), ({"is_mimo": True, "mimo_rank": 1}, "mimo_rank"), ({"d_stat": 5}, "d_stat"),
                          ({"headdim": 7}, "headdim"), ({"rope_fraction": 0.1}, "rope_fraction")):  # fmt: skip
        (tmp_path / "theirs" / "config.json").write_text(json.dumps({**config, "ssm_cfg": {**config["ssm_cfg"], **changes}}))
        assert word in refused("import", tmp_path / "theirs", "--out", tmp_path / "ours"), changes
