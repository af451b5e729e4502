"""The paper's optimisers."""

from typing import Any

import torch
from timm.optim import Lamb
from torch import nn

from polynext.training.config import OptimizerConfig


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """AdamW, or LAMB with decoupled weight decay and its own limit of the gradient norm; decay on all parameters."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if config.name == "lamb":
        return Lamb(
            parameters,
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            decoupled_decay=True,
            max_grad_norm=config.clip_grad or None,
        )
    return torch.optim.AdamW(
        parameters, lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay, foreach=True
    )


def restore_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Loads the running moments and keeps the options as they are now: a resumed run may be given others."""
    options = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, own in zip(optimizer.param_groups, options, strict=True):
        group.update(own)
