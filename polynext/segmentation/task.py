"""Training of UPerNet by iterations."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import convert_sync_batchnorm
from torch import Tensor, nn
from tqdm import tqdm

from polynext.acceleration import save_memory
from polynext.data.loader import Labelled, Prepared, load, seed_everything
from polynext.distributed import Processes
from polynext.errors import PolyNeXtError
from polynext.models import read_weights
from polynext.models.network import Cell
from polynext.models.published import check_same_entries
from polynext.segmentation.config import SegmentationConfig
from polynext.segmentation.data import IGNORED, Pairs, load_pairs
from polynext.segmentation.scores import SegmentationScores, score
from polynext.segmentation.sliding import predict
from polynext.segmentation.transforms import TestTransform, TrainingTransform
from polynext.segmentation.upernet import UPerNet
from polynext.training.folder import RunFolder
from polynext.training.loop import run
from polynext.training.report import draw_lines
from polynext.training.task import Forward, Task


class Segmentation(Task):
    """Training UPerNet for a number of iterations."""

    command, score = "polynext segment train", "miou"

    def __init__(self, config: SegmentationConfig, group: Processes):
        config.check()
        self.config, self.group = config, group
        self.train_pairs, self.val_pairs = load_pairs(config.data, "train"), load_pairs(config.data, "val")
        synchronised = group.count > 1 and group.device.type == "cuda"
        if config.share(group.count)[0] < 2 and not synchronised:
            raise PolyNeXtError("batch norm needs at least two images in each process: give a larger `batch_size`.")
        self.images, self.workers = len(self.train_pairs), config.data.workers
        self.steps, self.round_steps = config.iterations, config.evaluate_every
        self.average_from = int(config.ema.start * config.iterations)
        self.transform, self.evaluated = TrainingTransform(config.data), len(self.val_pairs)
        seed_everything(config.seed)
        model = self.build_model().to(group.device)
        model.to(memory_format=torch.channels_last)
        if config.optimizer.clip_cells:
            limit_cell_gradients(model, config.optimizer.clip_cells)
        # timm's function also converts its own norms with activations
        self.model: nn.Module = convert_sync_batchnorm(model) if synchronised else model
        self.optimizer = build_optimizer(self.model, config)
        self.clip_grad = config.optimizer.clip_grad

    def build_model(self) -> nn.Module:
        return build_model(self.config, len(self.train_pairs.classes))

    def examples(self, epoch: int) -> Prepared:
        return Prepared(self.train_pairs, self.transform, (self.config.seed, epoch))

    def learning_rate(self, step: int) -> float:
        return learning_rate(self.config, step)

    def loss(self, forward: Forward, images: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, float]]:
        logits, auxiliary = forward(images)
        return pixel_loss(logits, targets) + self.config.auxiliary_weight * pixel_loss(auxiliary, targets), {}

    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        shown = self.group.first
        return evaluate(model, self.val_pairs, self.config, self.group, shown, self.evaluated).to_json()

    def sources(self) -> dict[str, Labelled]:
        return {"training": self.train_pairs, "validation": self.val_pairs}

    def sample_evaluation(self, images: int) -> int:
        self.evaluated = min(images, len(self.val_pairs))
        return len(self.val_pairs)

    def phases(self) -> dict[str, int]:
        found = {"first steps": 0, "end of warmup": self.config.optimizer.warmup}
        if self.config.ema.decay:
            found["averaging begins"] = self.average_from
        return found | {"last steps": self.steps}

    def description(self) -> dict[str, str]:
        return {"backbone": self.config.model.backbone, "classes": json.dumps(self.val_pairs.classes)}

    def position(self, step: int) -> str:
        return f"iteration {step + 1}/{self.steps}"

    def figure(self, score: float) -> str:
        return f"mIoU {score:.2f}"

    def summary(self, record: dict[str, Any]) -> str:
        averaged = f", averaged mIoU {record['ema_miou']:.2f}" if "ema_miou" in record else ""
        return (
            f"iteration {record['step']}: mIoU {record['miou']:.2f}{averaged}, pixels {record['pixel_accuracy']:.2f}%, "
            f"loss {record['train_loss']:.3f}"
        )

    def draw_curves(self, folder: RunFolder) -> None:
        records = [{**record, "iteration": record["step"]} for record in folder.records()]
        scores = {"weights": "miou", "averaged weights": "ema_miou"}
        draw_lines(records, "iteration", {"loss": {"": "loss"}, "mIoU (%)": scores}, folder.path / "curves.png")


def train_segmentation(
    config: SegmentationConfig, out: Path, resume: bool = False, profile: bool = False, quiet: bool = False
) -> Path:
    """Trains UPerNet and returns its run folder. `resume` continues from the folder's newest state."""
    return run(partial(Segmentation, config), config, out, resume, profile, quiet)


def build_model(config: SegmentationConfig, classes: int) -> UPerNet:
    chosen = config.model
    pretrained = chosen.pretrained and chosen.backbone_weights is None
    model = UPerNet(chosen.backbone, classes, pretrained, chosen.drop_path, chosen.width, config.data.crop)
    if chosen.backbone_weights is not None:
        load_backbone(model, chosen.backbone_weights)
    save_memory(model.backbone, chosen.memory)
    return model


def load_backbone(model: UPerNet, path: Path) -> None:
    """Loads the weights of a classification model, except its head."""

    def name(key: str) -> str:  # timm's feature extractors rename some parameters
        return key.removeprefix("model.").replace(".", "_")

    given = {name(key): value for key, value in read_weights(path).items()}
    expected = model.backbone.state_dict()
    found = {key: given[name(key)] for key in expected if name(key) in given}
    check_same_entries(found, expected, "the backbone")
    model.backbone.load_state_dict(found)


def limit_cell_gradients(model: nn.Module, limit: float) -> None:
    """Scales the gradient at each cell's output down to this norm, if it is larger."""
    cells = [module for module in model.modules() if isinstance(module, Cell)]
    if not cells:
        raise PolyNeXtError("`optimizer.clip_cells` needs a PolyNeXt backbone: this one has no cells.")

    def limited(gradient: Tensor) -> Tensor:
        return gradient * (limit / gradient.norm().clamp_min(limit))

    def limit_output(module: nn.Module, inputs: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(limited)

    for cell in cells:
        cell.register_forward_hook(limit_output)


def build_optimizer(model: nn.Module, config: SegmentationConfig) -> torch.optim.Optimizer:
    """AdamW. Norms and scales have no weight decay, the heads a higher learning rate."""
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        decays = parameter.ndim > 1 and name.endswith("weight")
        groups.setdefault((name.startswith(("head.", "auxiliary.")), decays), []).append(parameter)
    chosen = config.optimizer
    return torch.optim.AdamW(
        [
            {
                "params": parameters,
                "factor": chosen.head_factor if in_head else 1.0,
                "weight_decay": chosen.weight_decay if decays else 0.0,
            }
            for (in_head, decays), parameters in groups.items()
        ],
        lr=chosen.lr,
        betas=chosen.betas,
    )


def learning_rate(config: SegmentationConfig, step: int) -> float:
    """Falls linearly from the first iteration to zero at the last, times a linear warmup."""
    chosen = config.optimizer
    warmed = min(step / chosen.warmup, 1.0) if chosen.warmup else 1.0
    factor = chosen.warmup_factor + (1 - chosen.warmup_factor) * warmed
    return chosen.lr * (1 - step / config.iterations) * factor


def pixel_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy over all pixels; ignored ones count as 0, as in the authors' pipeline."""
    return F.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum") / labels.numel()


def evaluate(
    model: nn.Module,
    pairs: Pairs,
    config: SegmentationConfig,
    group: Processes,
    shown: bool = False,
    images: int | None = None,
) -> SegmentationScores:
    """Scores of sliding-window predictions at the masks' size, for all images or the first `images`."""
    model.eval()
    data = config.data
    mine = [[i] for i in range(group.rank, len(pairs) if images is None else images, group.count)]

    def predictions() -> Iterator[tuple[Tensor, Tensor]]:
        loader = load(Prepared(pairs, TestTransform(data)), mine, data.workers)
        hidden = None if shown else True
        for images, masks in tqdm(loader, "evaluating", len(mine), leave=False, unit="image", disable=hidden):
            image, mask = images[0].to(group.device), masks[0]
            yield predict(model, image, (mask.shape[0], mask.shape[1]), data.crop, data.stride), mask

    return score(predictions(), len(pairs.classes), group)
