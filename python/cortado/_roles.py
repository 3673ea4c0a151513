"""Roles of parameters, and parameter groups for optimisers that follow from them."""

from __future__ import annotations

import typing

import torch

from cortado._parts import Part

_DECAYED = ("matrix", "embedding")
_ROLES = (*_DECAYED, "gain", "dynamics")


def parameter_roles(module: torch.nn.Module) -> dict[str, str]:
    """Returns the role of every parameter by its name: cortado's own as C++ declares them, others by their module."""
    declared = {f"{path}.{name}" if path else name: role for path, part in module.named_modules() if isinstance(part, Part)
                for name, role in part.roles.items()}  # fmt: skip
    roles = {}
    for name, parameter in module.named_parameters():
        # peft wraps an adapted linear map as base_layer of its own module.
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
    """Makes one parameter group per role for an optimiser of torch.optim, as `cortado train` does.

    Weight decay acts on the roles "matrix" and "embedding". It leaves out "gain" (scales and shifts) and "dynamics" (decays,
    step sizes, frequencies, mixes with the token before), which it would pull to values that mean something else.

    Args:
        module: A model. It may hold modules of other packages: their matrices and embeddings are decayed.
        weight_decay: Weight decay of the decayed roles.

    Returns:
        Groups with "params", "weight_decay" and "role"; by the role, learning rates of its own can be set. Parameters
        without requires_grad are left out.

    Example:
        >>> optimizer = torch.optim.AdamW(cortado.parameter_groups(model, 0.1), lr=1e-3)
    """
    groups: dict[str, list[torch.nn.Parameter]] = {role: [] for role in _ROLES}
    parameters = dict(module.named_parameters())
    for name, role in parameter_roles(module).items():
        if parameters[name].requires_grad:
            groups[role].append(parameters[name])
    return [{"params": found, "weight_decay": weight_decay if role in _DECAYED else 0.0, "role": role}
            for role, found in groups.items() if found]  # fmt: skip
