"""The paper's optimisers."""

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
