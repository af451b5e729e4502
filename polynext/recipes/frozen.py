"""Fine-tuning with frozen statistics, the last step for a fully polynomial network that is to be used as a polynomial.

    polynext train cipher --out runs/cipher
    polynext train cipher_frozen --model.initial-weights runs/cipher/best.safetensors

Training normalises by the statistics of each batch, inference by running ones. A polynomial of high degree amplifies
the difference: for a few images in a thousand the logits of a deep network become huge. Fine-tuning with the running
statistics fixed trains the polynomial that inference computes. `docs/train.md` has measurements.
"""

from dataclasses import replace

from polynext.config import EmaConfig, ScheduleConfig, TrainConfig


def with_frozen_statistics(base: TrainConfig) -> TrainConfig:
    """A tenth of a run's epochs at a tenth of its learning rate, with gradients limited to norm 1."""
    return replace(
        base,
        model=replace(base.model, frozen_statistics=True),
        optimizer=replace(base.optimizer, lr=0.1 * base.optimizer.lr, clip_grad=1.0),
        schedule=ScheduleConfig(min_lr=0.0),
        ema=EmaConfig(decay=0.0),
        epochs=max(1, base.epochs // 10),
        evaluate_every=1,
    )
