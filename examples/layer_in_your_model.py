# %% [markdown]
# # A layer of cortado in a PyTorch model of your own
#
# `pip install .` (or a wheel), then this file, cell by cell or as a whole: `python examples/layer_in_your_model.py`.
# A small classifier learns which of two symbols came first in a long sequence: attention through a window cannot.

# %%
import sys

import torch

import cortado

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 300
torch.manual_seed(0)

# %% [markdown]
# Every mechanism is a module. Its settings are keyword arguments; `help(cortado.nn.GLA)` lists them.

# %%
print(cortado.nn.mechanisms())
layer = cortado.nn.Macchiato(64, heads=4, latents=16, window=9)
y, state = layer(torch.randn(2, 10, 64))
print(y.shape, {name: tuple(tensor.shape) for name, tensor in state.items()})

# %% [markdown]
# A state continues a text, token by token or at once: equal numbers, constant size.

# %%
x = torch.randn(1, 12, 64)
whole, _ = layer(x, state=False)
first, state = layer(x[:, :5])
second, state = layer(x[:, 5:], state)
print("in two parts:", (torch.cat([first, second], 1) - whole).abs().max().item())


# %%
class Model(torch.nn.Module):
    def __init__(self, mixer, width=64, **settings):
        super().__init__()
        self.embedding = torch.nn.Embedding(8, width)
        self.norm = torch.nn.RMSNorm(width)
        self.mixer = cortado.nn.mixer(mixer, width, 4, **settings)
        self.head = torch.nn.Linear(width, 2)

    def forward(self, tokens):
        x = self.embedding(tokens)
        x = x + self.mixer(self.norm(x), state=False)[0]
        return self.head(x[:, -1])


def batch(size=64, length=128):
    """Draws noise of six symbols, and two more symbols before the middle: which came first?"""
    tokens = torch.randint(2, 8, (size, length))
    places = torch.rand(size, length // 2).argsort(1)[:, :2].sort(1).values
    first = torch.randint(2, (size,))
    tokens.scatter_(1, places, torch.stack([first, 1 - first], 1))
    return tokens, first


# %%
for mixer, settings in (("gla", {}), ("sliding_window", {"window": 17})):
    model = Model(mixer, **settings)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(STEPS):
        tokens, first = batch()
        loss = torch.nn.functional.cross_entropy(model(tokens), first)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        tokens, first = batch(512)
        right = (model(tokens).argmax(-1) == first).float().mean()
    print(f"{mixer}: loss {loss.item():.3f}, {100 * right:.0f} % right")
