"""A training step of a plain PyTorch GPT (nanoGPT's: 6 layers, width 384, 6 heads, SDPA) against our softmax and Macchiato models of its size.

    build/bench-venv/bin/python bench/peers/gpt.py [--tokens 256 1024 4096] [--threads 2] [--rounds 3]

Each step is 4096 tokens: forward, backward, clipping, AdamW; no dropout. The same Python drives all three: ours is the whole model behind
torch.classes.cortado.LanguageModel. The softmax model gets the GPT's weights and must give its loss and gradients; Macchiato must give
those of its own ATen form.
"""

import json
import math

from common import BUILD, ROOT, Bench, relative_error

VOCABULARY, TOKENS_A_STEP = 65, 4096

bench = Bench("gpt", __doc__, rounds=3, tokens=(256, 1024, 4096))
torch, ops = bench.torch, bench.ops
torch.classes.load_library(str(BUILD / "lib/libcortado.so"))
nn, F = torch.nn, torch.nn.functional


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim, bias=False), nn.LayerNorm(dim, bias=False)
        self.attention, self.projection = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.up, self.down = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.attention(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.projection(y)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, context, dim=384, heads=6, layers=6):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(VOCABULARY, dim), nn.Embedding(context, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim, bias=False)

    def loss(self, tokens, targets):
        x = self.embedding(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x) @ self.embedding.weight.T
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    def named(self, ours):
        """Returns our name -> the matching part of this model's parameter, or of its gradient."""
        parts = {"embedding.weight": (self.embedding.weight,), "positions.weight": (self.positions.weight,), "norm.weight": (self.norm.weight,)}
        for i, block in enumerate(self.blocks):
            place = f"layers.{i}."
            parts |= {place + f"mixer.{name}.weight": (block.attention.weight, n) for n, name in enumerate("qkv")}
            parts |= {
                place + "mixer.o.weight": (block.projection.weight,),
                place + "mixer_norm.weight": (block.norm1.weight,),
                place + "feed_forward_norm.weight": (block.norm2.weight,),
                place + "feed_forward.up.weight": (block.up.weight,),
                place + "feed_forward.down.weight": (block.down.weight,),
            }
        assert set(parts) == set(ours), sorted(set(parts) ^ set(ours))
        return parts


def part(tensor, number=None):
    return tensor if number is None else tensor.chunk(3)[number]


def our_model(config, context):
    settings = json.loads((ROOT / f"configs/{config}.json").read_text())
    settings |= {"vocabulary": VOCABULARY, "context": context, "dropout": 0.0}
    return torch.classes.cortado.LanguageModel(json.dumps(settings))


def gradients(loss, parameters):
    return [loss.detach(), *torch.autograd.grad(loss, parameters)]


def gradient_error(found, wanted):
    """Returns the errors of the loss and of each gradient; a tiny one's is relative to a hundredth of the largest."""
    floor = 1e-2 * max(g.abs().max().item() for g in wanted[1:])
    errors = [((a - b).abs().max() / b.abs().max().clamp_min(floor)).item() for a, b in zip(found[1:], wanted[1:])]
    return max(relative_error(found[0], wanted[0]), *errors)


def check_softmax(gpt, ours, batch):
    weights = ours.parameters()
    parts = gpt.named(weights)
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(part(*parts[name]))
    theirs = gpt.loss(*batch)
    theirs.backward()
    wanted = [theirs.detach()] + [part(tensor.grad, *rest) for tensor, *rest in (parts[name] for name in weights)]
    gpt.zero_grad()
    return gradient_error(gradients(ours.loss(*batch), list(weights.values())), wanted)


def check_macchiato(ours, batch):
    parameters = list(ours.parameters().values())
    found = gradients(ours.loss(*batch), parameters)
    chosen = ops._select_isa("aten") and ops._available_isas()[0]
    wanted = gradients(ours.loss(*batch), parameters)
    ops._select_isa(chosen)
    return gradient_error(found, wanted)


def training_step(loss, parameters, batch, dtype):
    optimizer = torch.optim.AdamW(parameters, lr=0.0, betas=(0.9, 0.99), weight_decay=0.1, fused=True)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            value = loss(*batch)
        value.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    return step


# Without bfloat16 products a CPU emulates them: minutes per step, so nobody would use it.
TYPES = ("float32", "bfloat16") if torch.ops.mkldnn._is_mkldnn_bf16_supported() else ("float32",)

for tokens in bench.tokens:
    batch = [torch.randint(VOCABULARY, (max(1, TOKENS_A_STEP // tokens), tokens)) for _ in range(2)]
    short = [x[:1, :256] for x in batch]
    gpt, softmax, macchiato = Gpt(tokens), our_model("nanogpt-gpu", tokens), our_model("macchiato-gpu", tokens)
    nn.init.normal_(gpt.embedding.weight, std=0.02)
    lines = [("softmax model", softmax, check_softmax(gpt, softmax, short)), ("macchiato model", macchiato, check_macchiato(macchiato, short))]
    for what, model, error in lines:
        near = abs(model.loss(*short).item() - math.log(VOCABULARY)) < 1
        if not bench.expect(f"{what} T {tokens}", error if near else math.inf, 2e-3):
            continue
        for dtype in TYPES:
            mine = training_step(model.loss, list(model.parameters().values()), batch, dtype)
            other = training_step(gpt.loss, list(gpt.parameters()), batch, dtype)
            bench.measure(f"{what}, {dtype}", "PyTorch GPT", "training step", tokens, mine, other)
bench.finish()
