"""One of the processes of test_distributed.py: two ranks train the same small model as one process would.

    python two_processes.py RANK STORE WAY MIXER"""

import copy
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import cortado.models

ROWS = 4


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def spread(model, way):
    if way == "ddp":
        return DistributedDataParallel(model)
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


class Loss(torch.nn.Module):
    """So that the whole of it is a forward pass, which DDP and FSDP2 prepare for."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.layers = model.layers

    def forward(self, tokens):
        logits, _ = self.model(tokens[:, :-1])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def main(rank, store, way, mixer):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(1)
    config = {"vocabulary": 50, "dim": 24, "heads": 4, "layers": 2, "mixer": {"mixer": mixer}, "positions": "rotary"}
    alone = Loss(cortado.models.LanguageModel(config, dtype=torch.float64))
    several = spread(copy.deepcopy(alone), way)
    tokens = torch.randint(50, (3, ROWS, 17))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (alone, several)]
    for step in range(3):
        mine = tokens[step].chunk(2)[rank]
        losses = [alone(tokens[step]), several(mine)]
        for optimizer, loss in zip(optimizers, losses, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for (name, one), other in zip(alone.named_parameters(), several.parameters(), strict=True):
        torch.testing.assert_close(whole(other), one, rtol=1e-9, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")
    dist.barrier()
    # Not by way of DDP's end: it holds Python's lock while it waits for Gloo's thread, which may need that lock to forget
    # the last reduction (torch's issue 56297): one run in fifty hung.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
