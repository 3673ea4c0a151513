"""Trains a layer made of cortado's operators in plain PyTorch, on a task that needs memory.

    python examples/train_layer.py PREFIX/lib/libcortado_ops.so [STEPS]

Each sequence shows pairs of a key and a value; then a key comes again, and the layer must return its value."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

KEYS, VALUES, PAIRS, HEADS, WIDTH = 16, 16, 8, 2, 64


class GatedLinearAttention(nn.Module):
    """S_t = diag(a_t) S_{t-1} + k_t v_tᵀ, o_t = S_tᵀ q_t, with gates a_t that depend on the input."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.mix = nn.Linear(width, 4 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        q, k, v, g = (part.unflatten(-1, (self.heads, -1)) for part in self.mix(x).chunk(4, dim=-1))
        o, _ = torch.ops.cortado.gated_scan(q, k.softmax(-1), v, F.logsigmoid(g + 4))
        return x + self.out(o.flatten(-2))


def recall_batch(size):
    """Tokens [size, 2 PAIRS + 1]: key, value, key, value, ..., then one of the keys; and that key's value."""
    keys = torch.rand(size, KEYS).argsort(1)[:, :PAIRS]
    values = torch.randint(VALUES, (size, PAIRS))
    asked = torch.randint(PAIRS, (size, 1))
    pairs = torch.stack([keys, KEYS + values], dim=2).flatten(1)
    return torch.cat([pairs, keys.gather(1, asked)], 1), values.gather(1, asked).squeeze(1)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    torch.ops.load_library(sys.argv[1])
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 600
    torch.manual_seed(1)
    # The embedding sees a token and the one before it, so that a value can be stored under its key.
    embedding = nn.Embedding(KEYS + VALUES, WIDTH)
    before = nn.Linear(WIDTH, WIDTH)
    layer = GatedLinearAttention(WIDTH, HEADS)
    head = nn.Linear(WIDTH, VALUES)
    model = nn.ModuleList([embedding, before, layer, head])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(1, steps + 1):
        tokens, answers = recall_batch(64)
        x = embedding(tokens)
        x = x + before(F.pad(x, (0, 0, 1, 0))[:, :-1])
        logits = head(layer(x)[:, -1])
        loss = F.cross_entropy(logits, answers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or step == steps:
            right = (logits.argmax(1) == answers).float().mean()
            print(f"step {step:4d}  loss {loss.item():.3f}  right {right.item():.0%}")


if __name__ == "__main__":
    main()
