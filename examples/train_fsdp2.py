"""Trains a model of cortado whose parameters, gradients and moments are divided among processes by torch's FSDP2:

    torchrun --nproc-per-node 2 examples/train_fsdp2.py [STEPS] [TEXT]

Each process keeps its part of every block, and gathers a block's weights only while it computes it; the program's own
`--share-optimizer` shares out the moments alone. Learns from bytes of a text, says what each process keeps, and saves the
whole as a run for the program: `cortado generate build/fsdp2 --prompt-tokens 82,79,77,69,79,58`."""

import pathlib
import sys

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

import cortado.models

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 100
TEXT = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "data/tinyshakespeare.txt"
BATCH, CONTEXT = 8, 128
CONFIG = {"vocabulary": 256, "dim": 128, "heads": 4, "layers": 4, "mixer": {"mixer": "macchiato", "latents": 32, "window": 33},
          "positions": "rotary", "context": CONTEXT}  # fmt: skip


class Loss(torch.nn.Module):
    """Makes the loss the forward pass that FSDP2 sees."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        logits, _ = self.model(tokens[:, :-1])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def kept(parameters):
    """Returns the bytes of these tensors in this process."""
    return sum(parameter.to_local().nbytes for parameter in parameters)


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same weights in every process, before they are divided
    model = cortado.models.LanguageModel(CONFIG)
    whole = sum(parameter.nbytes for parameter in model.parameters())
    for layer in model.layers:
        fully_shard(layer)
    loss_of = fully_shard(Loss(model))
    optimizer = torch.optim.AdamW(cortado.parameter_groups(loss_of, weight_decay=0.1), lr=2e-3)
    text = torch.frombuffer(bytearray(TEXT.read_bytes()), dtype=torch.uint8).long()
    for step in range(STEPS):
        torch.manual_seed(step)  # every process draws the whole batch and takes its rows
        places = torch.randint(len(text) - CONTEXT - 1, (BATCH * size,)).chunk(size)[rank]
        loss = loss_of(torch.stack([text[place : place + CONTEXT + 1] for place in places.tolist()]))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(loss_of.parameters(), 1.0)
        optimizer.step()
        if rank == 0 and (step % 10 == 9 or step == STEPS - 1):
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)
    print(f"process {rank} keeps {kept(loss_of.parameters())} of {whole} bytes of weights", flush=True)
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        plain = cortado.models.LanguageModel(CONFIG)
        plain.load_state_dict(weights)
        plain.save(ROOT / "build/fsdp2")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
