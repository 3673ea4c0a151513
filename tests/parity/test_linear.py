"""Linear attention against flash-linear-attention's naive form and maps, the chapter's listing, and softmax (Performer)."""

import math

import pytest
import torch
import torch.nn.functional as F
from fla_naive import naive
from torch import nn

naive_recurrent_linear_attn = naive("linear_attn.naive").naive_recurrent_linear_attn


def package_maps():
    """The package's feature maps, loaded on first use because that takes ten seconds."""
    from fla.modules import feature_map

    return feature_map


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1), (2, 65, 3, 5, 7), (1, 130, 2, 16, 8)])
@pytest.mark.parametrize("size", [0.01, 1.0, 10.0])
def test_the_operator_is_the_naive_recurrence(ops, close, same_gradients, shape, size):
    batch, tokens, heads, keys, values = shape
    torch.manual_seed(1)
    q, k, v = randn(batch, tokens, heads, keys), randn(batch, tokens, heads, keys), randn(batch, tokens, heads, values)
    phi = lambda: (F.elu(q * size) + 1, F.elu(k * size) + 1)
    # The package adds 1e-10 to the denominator and computes in float32.
    theirs, (state, normalizer) = naive_recurrent_linear_attn(
        *phi(), v, scale=1.0, normalize=True, output_final_state=True
    )
    ours, our_state, our_normalizer = ops.normalized_linear(*phi(), v)
    close(ours, theirs, 1e-5)
    close(our_state, state, 1e-5)
    close(our_normalizer, normalizer.squeeze(1), 1e-5)
    if tokens > 1:  # over one token the weights are 1 and have no gradient
        same_gradients(ours, theirs, (q, k, v), (q, k, v), 1e-4)


def test_the_state_goes_on_as_the_package_does(ops, close):
    torch.manual_seed(2)
    q, k, v = (torch.rand(2, 60, 2, 4), torch.rand(2, 60, 2, 4), torch.randn(2, 60, 2, 4))
    _, state = naive_recurrent_linear_attn(q[:, :23], k[:, :23], v[:, :23], 1.0, None, True, True)
    theirs, _ = naive_recurrent_linear_attn(q[:, 23:], k[:, 23:], v[:, 23:], 1.0, state, True, True)
    _, s, z = ops.normalized_linear(q[:, :23], k[:, :23], v[:, :23])
    ours, _, _ = ops.normalized_linear(q[:, 23:], k[:, 23:], v[:, 23:], state=s, normalizer=z)
    close(ours, theirs, 1e-5)


class GatedLinearAttention(nn.Module):
    """The listing of the linear-attention chapter; `causal` cuts its sums at each token."""

    def __init__(self, d_model, num_heads, causal):
        super().__init__()
        self.num_heads, self.d_head, self.causal = num_heads, d_model // num_heads, causal
        self.q_proj, self.k_proj, self.v_proj, self.g_proj, self.out_proj = (
            nn.Linear(d_model, d_model) for _ in range(5))

    def forward(self, x):
        bsz, seq_len, dim = x.shape
        heads = lambda y: y.view(bsz, seq_len, self.num_heads, self.d_head).transpose(1, 2)
        q, k, v = heads(self.q_proj(x)), heads(self.k_proj(x)), heads(self.v_proj(x))
        g = torch.sigmoid(self.g_proj(x))
        q_phi, k_phi = F.elu(q) + 1.0, F.elu(k) + 1.0
        if self.causal:
            kv_state = (k_phi.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(2)
            z_state = k_phi.cumsum(2).unsqueeze(-1)
            numerator = torch.matmul(q_phi.unsqueeze(-2), kv_state).squeeze(-2)
            denominator = torch.matmul(q_phi.unsqueeze(-2), z_state).squeeze(-2) + 1e-6
        else:
            kv_state = torch.matmul(k_phi.transpose(-1, -2), v)
            z_state = k_phi.sum(dim=2, keepdim=True).transpose(-1, -2)
            numerator = torch.matmul(q_phi, kv_state)
            denominator = torch.matmul(q_phi, z_state) + 1e-6
        out = (numerator / denominator).transpose(1, 2).contiguous().view(bsz, seq_len, dim)
        return self.out_proj(out * g)


@pytest.mark.parametrize("causal", [False, True])
def test_the_gated_block_is_the_chapters(mixer, close, same_gradients, causal):
    torch.manual_seed(3)
    theirs = GatedLinearAttention(24, 3, causal).double()
    ours = mixer("linear", 24, 3, causal=causal)
    names = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "g_proj": "g", "out_proj": "o"}
    ours.fill({f"{names[n.split('.')[0]]}.{n.split('.')[1]}": p for n, p in theirs.named_parameters()})
    for tokens in (1, 17, 100):
        x = randn(2, tokens, 24)
        a, b = ours(x), theirs(x)
        close(a, b, 1e-12)
        our_leaves = [x] + [ours.parameters[f"{names[n.split('.')[0]]}.{n.split('.')[1]}"]
                            for n, _ in theirs.named_parameters()]
        if tokens > 1:  # over one token the weights are 1 and have no gradient
            same_gradients(a, b, our_leaves, [x, *theirs.parameters()], 1e-9)


def linear_attention(phi_q, phi_k, v, causal, eps):
    """Quadratic, [B,T,H,*]."""
    weights = torch.einsum("bthf,bshf->bhts", phi_q, phi_k)
    weights = weights.tril() if causal else weights
    o = torch.einsum("bhts,bshv->bthv", weights, v)
    return o / (weights.sum(-1).transpose(1, 2).unsqueeze(-1) + eps)


def fla_map(kind, weight, bias, head_dim):
    """The package's map with one head's weights (it has the same for all heads)."""
    module = package_maps()
    made = module.HedgehogFeatureMap(head_dim) if kind == "hedgehog" else module.T2RFeatureMap(head_dim, weight.shape[0], bias=True)
    made.double()
    with torch.no_grad():
        made.layer.weight.copy_(weight)
        made.layer.bias.copy_(bias)
    return made


def maps_by_hand(kind, x, weight):
    """Feature maps that the package lacks; weight [H, features, d]."""
    y = torch.einsum("bthd,hfd->bthf", x, weight) if weight is not None else x
    if kind == "lolcats":
        return torch.cat([y.softmax(-1), (-y).softmax(-1)], -1).clamp_min(1e-12)
    if kind == "taylor":  # all products, each pair twice
        pairs = (x.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2) / math.sqrt(2 * x.shape[-1])
        return torch.cat([torch.ones_like(x[..., :1]), x / x.shape[-1] ** 0.25, pairs], -1)
    if kind == "hedgehog_exp":
        return torch.cat([y.exp(), (-y).exp()], -1)
    if kind == "performer":
        z = x / x.shape[-1] ** 0.25
        y = torch.einsum("bthd,hfd->bthf", z, weight)
        return (y - z.square().sum(-1, keepdim=True) / 2).exp() / math.sqrt(weight.shape[1])
    return {"exp": torch.exp, "relu": torch.relu}[kind](x)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", ["relu", "taylor", "t2r", "hedgehog", "lolcats", "exp", "hedgehog_exp", "performer"])
def test_every_feature_map(mixer, close, same_gradients, kind, causal):
    torch.manual_seed(4)
    dim, heads, d = 24, 3, 8
    epsilon = 0.0 if kind in ("exp", "hedgehog_exp", "performer") else 1e-3
    ours = mixer("linear", dim, heads, causal=causal, feature_map=kind, epsilon=epsilon, gate=False, bias=False)
    p = ours.parameters
    with torch.no_grad():
        for name, value in p.items():
            if "map" in name and kind != "performer":
                value.add_(torch.randn_like(value) * 0.3)
                if kind in ("t2r", "hedgehog"):  # the package has one map for all heads
                    value.copy_(value[:1].expand_as(value).clone())
    for tokens in (1, 40, 100):
        x = randn(2, tokens, dim)
        q, k, v = ((x @ p[f"{n}.weight"].T).unflatten(-1, (heads, d)) for n in "qkv")
        if kind in ("t2r", "hedgehog"):
            maps = [fla_map(kind, p.get(f"{n}_map.weight", [None])[0], p.get(f"{n}_map.bias", [None])[0], d)
                    for n in "qk"]
            phi_q, phi_k = maps[0](q), maps[1](k)
        else:
            weight = p.get("map.weight")
            phi_q = maps_by_hand(kind, q, p.get("q_map.weight", weight))
            phi_k = maps_by_hand(kind, k, p.get("k_map.weight", weight))
        expected = linear_attention(phi_q, phi_k, v, causal, epsilon).flatten(2) @ p["o.weight"].T
        got = ours(x)
        close(got, expected, 1e-9)
        if kind == "taylor":  # the package's map is a reentrant checkpoint, which torch.autograd.grad refuses
            with torch.no_grad():
                phi = package_maps().TaylorFeatureMap(d)
                theirs = linear_attention(phi(q), phi(k), v, causal, epsilon).flatten(2) @ p["o.weight"].T
            close(got, theirs, 1e-9)
        if tokens == 1:  # the weights are 1 and have no gradient
            continue
        leaves = [x] + [p[f"{n}.weight"] for n in "qkvo"]
        same_gradients(got, expected, leaves, leaves, 1e-8)


def test_performer_estimates_softmax_without_bias(mixer, close):
    """Over many draws of the features the kernel's mean is exp(q.k/sqrt d); without sign(diag R) it is not."""
    torch.manual_seed(5)
    d, draws = 4, 4000
    q, k = torch.randn(d, dtype=torch.float64) * 0.7, torch.randn(d, dtype=torch.float64) * 0.7
    ours = mixer("performer", d, 1, features=d * draws)
    omega = ours.parameters["map.weight"].reshape(draws, d, d)  # blocks of d orthogonal rows
    features = lambda x: ((omega @ (x / d**0.25)) - x.square().sum() / (2 * d**0.5)).exp() / d**0.5
    estimate = (features(q) * features(k)).sum(-1)
    error = estimate.std() / math.sqrt(draws)
    assert (estimate.mean() - (q @ k / d**0.5).exp()).abs() < 4 * error
    gram = omega @ omega.transpose(1, 2)  # rows of one block are orthogonal
    off = gram - torch.diag_embed(gram.diagonal(dim1=1, dim2=2))
    assert off.abs().max() < 1e-4
    # Uniform on the sphere: no direction is preferred, neither sign.
    assert (omega / omega.norm(dim=-1, keepdim=True)).mean((0, 1)).abs().max() < 4 / math.sqrt(draws * d * d)


def test_performer_with_many_features_nears_softmax_attention(mixer):
    torch.manual_seed(6)
    ours = mixer("performer", 8, 1, features=4096, bias=False)
    x = torch.randn(1, 50, 8, dtype=torch.float64) * 0.4
    q, k, v = (x @ ours.parameters[f"{n}.weight"].T for n in "qkv")
    scores = (q @ k.transpose(1, 2) / 8**0.5).masked_fill(torch.ones(50, 50).triu(1).bool(), -math.inf)
    exact = scores.softmax(-1) @ v @ ours.parameters["o.weight"].T
    assert (ours(x) - exact).norm() / exact.norm() < 0.1


def test_exponential_maps_stay_right_where_exp_overflows(mixer, close):
    torch.manual_seed(7)
    ours = mixer("linear", 8, 2, feature_map="exp", gate=False, bias=False, float64=False)
    x = torch.randn(1, 60, 8) * 500
    q, k, v = ((x.double() @ ours.parameters[f"{n}.weight"].double().T).unflatten(-1, (2, 4)) for n in "qkv")
    log_weights = (q.unsqueeze(2) + k.unsqueeze(1)).logsumexp(-1)  # [B,T,S,H]
    hidden = torch.ones(60, 60).triu(1).bool().unsqueeze(-1)
    p = log_weights.masked_fill(hidden, -math.inf).softmax(2)
    expected = torch.einsum("btsh,bshv->bthv", p, v).flatten(2) @ ours.parameters["o.weight"].double().T
    close(ours(x), expected, 2e-3)  # logits near 1000 in float32 are good to 1e-4
