"""What parameters are for, and the groups of an optimiser that follow."""

from __future__ import annotations

import typing

import torch

from cortado._parts import Part

_DECAYED = ("matrix", "embedding")
_ROLES = (*_DECAYED, "gain", "dynamics")


def parameter_roles(module: torch.nn.Module) -> dict[str, str]:
    """The role of every parameter by its name: of cortado's own as C++ declares them, of others' by what they lie in."""
    declared = {f"{path}.{name}" if path else name: role for path, part in module.named_modules() if isinstance(part, Part)
                for name, role in part.roles.items()}  # fmt: skip
    roles = {}
    for name, parameter in module.named_parameters():
        # Adapters of peft put the map that they are for into one of their own.
        role = declared.get(name.replace(".base_layer.", "."))
        roles[name] = role or _guess(module.get_submodule(name.rpartition(".")[0]), parameter)
    return roles


def _guess(owner: torch.nn.Module, parameter: torch.nn.Parameter) -> str:
    if getattr(parameter, "_no_weight_decay", False):  # as mamba_ssm and flash-linear-attention mark them
        return "dynamics"
    if isinstance(owner, torch.nn.Embedding):
        return "embedding"
    return "matrix" if parameter.dim() >= 2 else "gain"


def parameter_groups(module: torch.nn.Module, weight_decay: float = 0.1) -> list[dict[str, typing.Any]]:
    """Groups for an optimiser of torch.optim: torch.optim.AdamW(cortado.parameter_groups(model, 0.1), lr=1e-3).

    One a role, as cortado train has them: "matrix" and "embedding" are decayed; "gain" (scales and shifts) and "dynamics"
    (decays, step sizes, frequencies, mixes with the token before) are not, which weight decay would pull to values that
    mean something else. A group's "role" is its name: rates of its own are set by it. `module` may hold other modules,
    whose matrices and embeddings are decayed. Parameters without requires_grad are left out."""
    groups: dict[str, list[torch.nn.Parameter]] = {role: [] for role in _ROLES}
    parameters = dict(module.named_parameters())
    for name, role in parameter_roles(module).items():
        if parameters[name].requires_grad:
            groups[role].append(parameters[name])
    return [{"params": found, "weight_decay": weight_decay if role in _DECAYED else 0.0, "role": role}
            for role, found in groups.items() if found]  # fmt: skip
