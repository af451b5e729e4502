"""The segmentation run: by iterations, not epochs, else as training a classifier.

Random numbers follow from the seed and the iteration, so that a resumed run ends like one that was never interrupted.
"""

import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import convert_sync_batchnorm
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset
from tqdm import tqdm

from polynext.data.loader import epoch_order, load, seed_everything
from polynext.distributed import Processes, processes
from polynext.errors import PolyNeXtError, require_at_least
from polynext.models import read_weights, set_memory
from polynext.models.published import check_same_entries
from polynext.segmentation.config import SegmentationConfig
from polynext.segmentation.data import IGNORED, Pairs, load_pairs
from polynext.segmentation.gradients import limit_cell_gradients
from polynext.segmentation.scores import SegmentationScores, score
from polynext.segmentation.sliding import predict
from polynext.segmentation.transforms import TestTransform, TrainingTransform
from polynext.segmentation.upernet import UPerNet
from polynext.training import DivergedError
from polynext.training.config import to_yaml
from polynext.training.folder import RunFolder
from polynext.training.optimizer import restore_optimizer
from polynext.training.stopping import StopRequest

SKIPS_IN_A_ROW = 5


class PreparedPairs(Dataset):
    """Pairs through a transform, each with its own random numbers if there is a seed."""

    def __init__(self, pairs: Pairs, transform: Any, seed: tuple[int, int] | None = None):
        self.pairs, self.transform, self.seed = pairs, transform, seed

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self.seed is not None:
            seed_everything(*self.seed, index)
        return self.transform(*self.pairs[index])


class SegmentationTrainer:
    """One run, from its config to its folder."""

    def __init__(self, config: SegmentationConfig, folder: RunFolder, group: Processes):
        check(config)
        self.config, self.folder, self.group = config, folder, group
        self.train_pairs, self.val_pairs = load_pairs(config.data, "train"), load_pairs(config.data, "val")
        if len(self.train_pairs) < config.batch_size or config.batch_size % group.count:
            raise PolyNeXtError(
                f"{len(self.train_pairs)} training images on {group.count} process(es) cannot make batches of "
                f"{config.batch_size}: give another --batch-size."
            )
        synchronised = group.count > 1 and group.device.type == "cuda"
        if config.batch_size // group.count < 2 and not synchronised:
            raise PolyNeXtError("batch norm needs at least two images in each process: give a larger --batch-size.")
        seed_everything(config.seed)
        self.model = build_model(config, len(self.train_pairs.classes)).to(group.device)
        self.model.to(memory_format=torch.channels_last)
        if config.optimizer.clip_cells:
            limit_cell_gradients(self.model, config.optimizer.clip_cells)
        self.optimizer = build_optimizer(self.model, config)
        self.wrapped: nn.Module = self.model
        if group.count > 1:
            if synchronised:
                self.wrapped = convert_sync_batchnorm(self.model)  # timm's, which keeps its norms' activations
            self.wrapped = DistributedDataParallel(self.wrapped)
        self.step, self.best, self.skips = 0, -1.0, 0
        self.stop = StopRequest(group, "polynext segment train", folder.path)
        self.tensorboard: Any = None

    def run(self, quiet: bool = False) -> None:
        config = self.config
        if self.group.first:
            from torch.utils.tensorboard import SummaryWriter

            self.tensorboard = SummaryWriter(str(self.folder.path / "tensorboard"))
        shown = self.group.first and not quiet
        with tqdm(total=config.iterations, initial=self.step, disable=None if shown else True) as bar:
            start, logged = time.perf_counter(), self.step
            for images, labels in self.batches():
                loss = self.train_step(images, labels)
                bar.set_postfix_str(f"loss {loss:.3f}")
                bar.update()
                if config.log_steps and self.step % config.log_steps == 0:
                    rate = (self.step - logged) * config.batch_size / (time.perf_counter() - start)
                    self.log({"loss": loss, "lr": learning_rate(config, self.step - 1), "images_per_second": rate})
                    start, logged = time.perf_counter(), self.step
                last = self.step == config.iterations
                if last or self.step % config.evaluate_every == 0:
                    paused = time.perf_counter()
                    self.finish_round(shown)
                    start += time.perf_counter() - paused
                asked = self.stop.asked()
                if asked or last or self.step % config.save_every == 0:
                    self.save()
                self.stop.raise_if_asked()

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """What is left of the run, epoch after epoch."""
        config, group = self.config, self.group
        mine = config.batch_size // group.count
        in_an_epoch = len(self.train_pairs) // config.batch_size
        transform = TrainingTransform(config.data)
        while self.step < config.iterations:
            epoch, start = divmod(self.step, in_an_epoch)
            order = epoch_order(len(self.train_pairs), config.seed, epoch)
            wanted = range(start, min(in_an_epoch, start + config.iterations - self.step))
            firsts = [b * config.batch_size + group.rank * mine for b in wanted]
            chosen = [order[first : first + mine].tolist() for first in firsts]
            yield from load(
                PreparedPairs(self.train_pairs, transform, (config.seed, epoch)), chosen, config.data.workers
            )

    def train_step(self, images: Tensor, labels: Tensor) -> float:
        """One optimiser step; left out if its loss or gradient is not finite."""
        config, device = self.config, self.group.device
        seed_everything(config.seed, self.step, self.group.rank)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = parameters["factor"] * learning_rate(config, self.step)
        self.wrapped.train()
        statistics = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
        labels = labels.to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16"):
            logits, auxiliary = self.wrapped(images)
            loss = pixel_loss(logits, labels) + config.auxiliary_weight * pixel_loss(auxiliary, labels)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), config.optimizer.clip_grad or math.inf).item()
        mean = self.group.total(loss.item())[0] / self.group.count
        self.step += 1
        if math.isfinite(mean) and math.isfinite(norm):
            self.optimizer.step()
            self.skips = 0
        else:
            for buffer, before in statistics:
                buffer.copy_(before)
            self.skips += 1
        self.optimizer.zero_grad()
        if self.skips >= SKIPS_IN_A_ROW:
            raise DivergedError(
                self.step - SKIPS_IN_A_ROW + 1,
                f"loss or gradient was not finite {SKIPS_IN_A_ROW} times in a row, up to iteration {self.step}: "
                "lower the rate, or limit gradients with --optimizer.clip-grad and --optimizer.clip-cells.",
            )
        return mean

    def finish_round(self, shown: bool) -> None:
        self.group.agree(self.model.buffers())  # batch norm's statistics, where they are each process's own
        scores = evaluate(self.model, self.val_pairs, self.config, self.group, shown)
        self.log(scores.to_json())
        if not self.group.first:
            return
        metadata = {"backbone": self.config.model.backbone, "classes": json.dumps(self.val_pairs.classes)}
        self.folder.save_weights("last", self.model.state_dict(), **metadata)
        if scores.miou > self.best:
            self.folder.save_weights("best", self.model.state_dict(), **metadata)
        self.best = max(self.best, scores.miou)
        draw_curves(self.folder)
        if shown:
            tqdm.write(
                f"iteration {self.step}: mIoU {scores.miou:.2f}, pixels {scores.accuracy:.2f}%, best {self.best:.2f}",
                file=sys.stdout,
            )

    def log(self, values: dict[str, Any]) -> None:
        if not self.group.first:
            return
        self.folder.log({"step": self.step, **values})
        for name, value in values.items():
            if isinstance(value, float):
                self.tensorboard.add_scalar(name, value, self.step)

    def save(self) -> None:
        if self.group.first:
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            self.folder.save_state(self.step, state | {"step": self.step, "best": self.best})

    def restore(self, state: dict[str, Any]) -> None:
        try:
            self.model.load_state_dict(state["model"])
            restore_optimizer(self.optimizer, state["optimizer"])
        except (RuntimeError, ValueError) as error:
            raise PolyNeXtError(
                f"the run in {self.folder.path} is of another network: leave --model as it was."
            ) from error
        self.step, self.best = state["step"], state["best"]
        if self.group.first:
            self.folder.forget_after(self.step)


def train_segmentation(config: SegmentationConfig, out: Path, resume: bool = False, quiet: bool = False) -> Path:
    """Runs a training and returns its folder. With `resume` it goes on from the folder's newest state."""
    folder = RunFolder(out)
    with processes() as group:
        if not resume and any(folder.states.glob("*.pt")):
            raise PolyNeXtError(f"{out} already holds a run: go on with --resume {out}, or give another --out.")
        trainer = SegmentationTrainer(config, folder, group)
        state = folder.load_state() if resume else None
        if state is not None:
            trainer.restore(state)
        elif resume and group.first:  # killed before its first state: from the beginning
            folder.forget_after(0)
        if group.first:
            folder.create(to_yaml(config))
        try:
            with trainer.stop.listening():
                trainer.run(quiet)
        finally:
            if trainer.tensorboard is not None:
                trainer.tensorboard.close()
        if group.first and not quiet:
            print(f"best mIoU {trainer.best:.2f}: {out / 'best.safetensors'}")
    return out


def check(config: SegmentationConfig) -> None:
    data = config.data
    require_at_least(1, iterations=config.iterations, batch_size=config.batch_size)
    require_at_least(1, evaluate_every=config.evaluate_every, save_every=config.save_every)
    require_at_least(1, **{"data.crop": data.crop, "data.stride": data.stride, "model.width": config.model.width})
    require_at_least(0, seed=config.seed, log_steps=config.log_steps, **{"data.workers": data.workers})
    if data.stride > data.crop:
        raise PolyNeXtError(f"a stride of {data.stride} leaves gaps between windows of {data.crop}: give at most that.")


def build_model(config: SegmentationConfig, classes: int) -> UPerNet:
    chosen = config.model
    pretrained = chosen.pretrained and chosen.backbone_weights is None
    model = UPerNet(chosen.backbone, classes, pretrained, chosen.drop_path, chosen.width, config.data.crop)
    if chosen.backbone_weights is not None:
        load_backbone(model, chosen.backbone_weights)
    set_memory(model.backbone, chosen.memory)
    return model


def load_backbone(model: UPerNet, path: Path) -> None:
    """A classifier's weights, of which the classifier itself has no place here."""

    def name(key: str) -> str:  # timm's feature extractors flatten some names
        return key.removeprefix("model.").replace(".", "_")

    given = {name(key): value for key, value in read_weights(path).items()}
    expected = model.backbone.state_dict()
    found = {key: given[name(key)] for key in expected if name(key) in given}
    check_same_entries(found, expected, "the backbone")
    model.backbone.load_state_dict(found)


def build_optimizer(model: UPerNet, config: SegmentationConfig) -> torch.optim.Optimizer:
    """AdamW; norms and scales do not decay, the heads learn faster."""
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
    """Linear warmup, then linearly to zero at the last iteration."""
    chosen = config.optimizer
    if step < chosen.warmup:
        return chosen.lr * (chosen.warmup_factor + (1 - chosen.warmup_factor) * step / chosen.warmup)
    return chosen.lr * (1 - (step - chosen.warmup) / max(config.iterations - chosen.warmup, 1))


def pixel_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy over the pixels that count; 0 if none does."""
    total = F.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum")
    return total / (labels != IGNORED).sum().clamp_min(1)


def evaluate(
    model: nn.Module, pairs: Pairs, config: SegmentationConfig, group: Processes, shown: bool = False
) -> SegmentationScores:
    """Sliding windows over each image once, compared at the mask's own size."""
    model.eval()
    data = config.data
    mine = [[i] for i in range(group.rank, len(pairs), group.count)]

    def predictions() -> Iterator[tuple[Tensor, Tensor]]:
        loader = load(PreparedPairs(pairs, TestTransform(data)), mine, data.workers)
        hidden = None if shown else True
        for images, masks in tqdm(loader, "evaluating", len(mine), leave=False, unit="image", disable=hidden):
            image, mask = images[0].to(group.device), masks[0]
            with torch.autocast(group.device.type, torch.bfloat16, enabled=config.precision == "bf16"):
                yield predict(model, image, (mask.shape[0], mask.shape[1]), data.crop, data.stride), mask

    return score(predictions(), len(pairs.classes), group)


def draw_curves(folder: RunFolder) -> None:
    """Loss and mIoU by iteration, as a picture in the run's folder."""
    from matplotlib.figure import Figure

    records = folder.records()
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    for axes, key, title in zip(figure.subplots(1, 2), ("loss", "miou"), ("loss", "mIoU (%)"), strict=True):
        known = [record for record in records if key in record]
        axes.plot([r["step"] for r in known], [r[key] for r in known], marker="." if key == "miou" else "")
        axes.set_title(title)
        axes.set_xlabel("iteration")
        axes.grid(alpha=0.3)
    figure.savefig(folder.path / "curves.png", dpi=110)
