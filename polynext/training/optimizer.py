"""The optimisers of the paper, of the networks it compares with, and of the networks for encrypted inference."""

from typing import Any

import torch
from timm.optim import Lamb, Muon
from torch import nn

from polynext.config import OptimizerConfig
from polynext.errors import PolyNeXtError


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """AdamW, Muon, SGD with momentum, or LAMB, which clips the gradient norm by itself."""
    trained = [p for p in model.parameters() if p.requires_grad]
    parameters: list[Any] = trained
    if not config.decay_all:
        decayed, others = [p for p in trained if p.ndim > 1], [p for p in trained if p.ndim < 2]
        parameters = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    if config.name == "lamb":
        return Lamb(
            parameters,
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            decoupled_decay=config.decoupled,
            max_grad_norm=config.clip_grad or None,
        )
    if config.name == "muon":
        # The updates of matrices have the size of AdamW's, so one learning rate suits both kinds of parameters.
        return Muon(
            parameters,
            lr=config.lr,
            weight_decay=config.weight_decay,
            momentum=config.betas[0],
            betas=config.betas,
            eps=config.eps,
            nesterov=True,
            adjust_lr_fn="match_rms_adamw",
        )
    if config.name == "sgd":
        return torch.optim.SGD(
            parameters, lr=config.lr, momentum=config.betas[0], weight_decay=config.weight_decay, foreach=True
        )
    return torch.optim.AdamW(
        parameters, lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay, foreach=True
    )


def restore_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Loads the running moments, and keeps the current options, which a resumed run may change."""
    options = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    if any(own.keys() - saved.keys() for own, saved in zip(options, state["param_groups"], strict=False)):
        raise PolyNeXtError("the run was started with another optimiser: keep `optimizer.name` unchanged.")
    optimizer.load_state_dict(state)
    for group, own in zip(optimizer.param_groups, options, strict=True):
        group.update(own)
