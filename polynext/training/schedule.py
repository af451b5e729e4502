"""Learning rate, dropout and averaging by epoch."""

import math

from polynext.config import TrainConfig


def learning_rate(config: TrainConfig, epoch: int) -> float:
    """Linear warmup from `warmup_factor` of the peak, then half a cosine to `min_lr`, then the cooldown.

    With `drop_epochs`, steps by a factor of ten instead of the cosine.
    """
    peak, schedule = config.optimizer.lr, config.schedule
    if epoch < schedule.warmup_epochs:
        return peak * (schedule.warmup_factor + (1 - schedule.warmup_factor) * epoch / schedule.warmup_epochs)
    if schedule.drop_epochs:
        return peak * 0.1 ** sum(epoch >= drop for drop in schedule.drop_epochs)
    begin, end = 0 if schedule.cosine_from_start else schedule.warmup_epochs, config.epochs - schedule.cooldown_epochs
    progress = min(1.0, (epoch - begin) / max(end - begin, 1))
    return schedule.min_lr + (peak - schedule.min_lr) * (1 + math.cos(math.pi * progress)) / 2


def head_dropout(config: TrainConfig, epoch: int) -> float:
    """Rises linearly from 0 at the first epoch towards its final value (Appendix C.3), or is constant."""
    if not config.model.dropout_rises:
        return config.model.dropout
    return config.model.dropout * epoch / config.epochs


def averages_from(config: TrainConfig) -> int:
    """The first epoch of the moving average."""
    return math.floor(config.ema.start * config.epochs + 1e-9)
