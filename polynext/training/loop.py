"""The training loop of any task: accumulation, precision, averaging, saving, resuming and stopping.

Random numbers depend on the seed and the step only: a resumed run ends with the weights of an uninterrupted one.
"""

import math
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from polynext.acceleration import compile
from polynext.config import LoopConfig, field_values, to_yaml
from polynext.data.loader import batches, epoch_order, seed_everything
from polynext.distributed import Processes, processes
from polynext.errors import PolyNeXtError
from polynext.nn.norm import estimate_statistics, with_running_statistics
from polynext.training.diagnostics import CellRecord, Diagnostics
from polynext.training.folder import WEIGHTS, RunFolder, read_state
from polynext.training.optimizer import restore_optimizer
from polynext.training.profile import Profile
from polynext.training.report import Reporter
from polynext.training.stopping import StopRequest
from polynext.training.task import Task

SKIPS_IN_A_ROW = 5
STATISTICS_BATCHES = 50  # that running statistics are estimated on
STATE_VERSION = 2


class DivergedError(PolyNeXtError):
    """Loss or gradient is not finite from `step` on."""

    def __init__(self, step: int, message: str):
        super().__init__(step, message)
        self.step = step

    def __str__(self) -> str:
        return self.args[1]


@dataclass
class Progress:
    """How far a run is. `totals` and `counts` are sums over the current round."""

    step: int = 0
    best: float = -1.0
    skipped: int = 0
    totals: dict[str, float] = field(default_factory=lambda: {"loss": 0.0, "steps": 0.0})
    counts: dict[str, float] = field(default_factory=dict)


class TrainingLoop:
    """One run of a task in its folder."""

    def __init__(
        self,
        task: Task,
        config: LoopConfig,
        folder: RunFolder,
        group: Processes,
        profile: bool = False,
        quiet: bool = False,
    ):
        self.task, self.config, self.folder, self.group = task, config, folder, group
        self.model, self.optimizer = task.model, task.optimizer
        self.micro_batch, self.accumulate = config.share(group.count)
        if task.images < config.batch_size:
            raise PolyNeXtError(
                f"there are {task.images} training images, fewer than one batch of {config.batch_size}: "
                "give a smaller `batch_size`."
            )
        if config.ema.decay and config.ema.statistics == "estimated":
            with_running_statistics(self.model)  # raises if there are none
        self.steps_in_an_epoch = task.images // config.batch_size
        self.average: AveragedModel | None = None
        if config.compile:
            compile(self.model)
        self.wrapped: Any = DistributedDataParallel(self.model) if group.count > 1 else self.model
        self.progress = Progress()
        self.skips_in_a_row = 0
        self.diagnostics = Diagnostics(self.model) if config.diagnostics else None
        self.last_cells: dict[str, CellRecord] | None = None
        self.profile = Profile(profile)
        self.stop = StopRequest(group, task.command, folder.path)
        self.saved_at = time.monotonic()
        self.quiet = quiet

    def run(self) -> None:
        reporter = Reporter(self.config, self.folder, self.task, self.group.first, self.quiet)
        # Closed explicitly: worker processes block SIGTERM and would keep this process from ending.
        with self.stop.listening(), reporter, closing(self.batches_left()) as left:
            batches = self.profile.iterate("loader", left)
            if self.progress.step == 0:
                self.save()  # a run has a state from its start: if it has none later, the folder is damaged
            self.replace_lost_weights()
            while self.progress.step < self.task.steps:
                self.run_round(batches, reporter)
                self.stop.asked()
                self.stop.raise_if_asked()

    def run_round(self, batches: Iterator[tuple[Tensor, Tensor]], reporter: Reporter) -> None:
        task, progress = self.task, self.progress
        task.start_round(progress.step)
        self.model.train()
        while True:
            self.step([next(batches) for _ in range(self.accumulate)])
            reporter.step(self)
            if progress.step % task.round_steps == 0 or progress.step == task.steps:
                break
            if self.stop.asked() or self.time_to_save():
                self.save()
                self.stop.raise_if_asked()
        reporter.round(self, self.finish_round(reporter))

    def batches_left(self) -> Generator[tuple[Tensor, Tensor], None, None]:
        """The batches of this process for the rest of the run; each epoch drops the images of an incomplete step."""
        config, group, step, in_an_epoch = self.config, self.group, self.progress.step, self.steps_in_an_epoch
        while step < self.task.steps:
            epoch, first = divmod(step, in_an_epoch)
            last = min(in_an_epoch, first + self.task.steps - step)
            yield from batches(
                self.task.examples(epoch),
                self.micro_batch * group.count,
                range(first * self.accumulate, last * self.accumulate),
                epoch_order(self.task.images, config.seed, epoch),
                (group.rank, group.count),
                self.task.workers,
            )
            step += last - first

    def step(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        """One optimiser step over the accumulated batches; skipped if its loss or gradient is not finite."""
        task, progress = self.task, self.progress
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = parameters.get("factor", 1.0) * task.learning_rate(progress.step)
        if self.average is None and self.config.ema.decay and progress.step >= task.average_from:
            self.average = averaged(self.model, self.config.ema.decay)
        statistics = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        self.last_cells = None
        if self.diagnostics is not None and self.logs(progress.step + 1):
            with self.diagnostics.watching() as self.last_cells, torch.compiler.set_stance("force_eager"):
                loss = self.forward_and_backward(batches)  # hooks do not run in compiled code
        else:
            loss = self.forward_and_backward(batches)
        loss = self.group.total(loss)[0] / self.group.count  # equal in all processes, like the gradient
        with self.profile("optimiser"):
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), task.clip_grad or math.inf).item()
            progress.step += 1
            if math.isfinite(loss) and math.isfinite(norm):
                self.optimizer.step()
                if self.average is not None:
                    self.average.update_parameters(self.model)
                progress.totals["loss"] += loss
                progress.totals["steps"] += 1
                self.skips_in_a_row = 0
            else:
                for buffer, before in statistics:
                    buffer.copy_(before)
                self.skip()
            self.optimizer.zero_grad()
        self.last_loss, self.last_norm = loss, norm

    def forward_and_backward(self, batches: list[tuple[Tensor, Tensor]]) -> float:
        """Accumulates the gradient of this process's batches, and returns their mean loss."""
        device, counts, loss_sum = self.group.device, self.progress.counts, 0.0
        for i, (images, targets) in enumerate(batches):
            seed_everything(self.config.seed, self.progress.step, i, self.group.rank)
            images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
            targets = targets.to(device, non_blocking=True)
            alone = i == len(batches) - 1 or self.group.count == 1
            with nullcontext() if alone else self.wrapped.no_sync():
                with self.profile("forward"), self.autocast(), enough_for_batch_norm():
                    loss, seen = self.task.loss(self.wrapped, images, targets)
                with self.profile("backward"):
                    (loss / len(batches)).backward()
            loss_sum += loss.item() / len(batches)
            for name, count in seen.items():
                counts[name] = counts.get(name, 0.0) + count
        return loss_sum

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.group.device.type, torch.bfloat16, enabled=self.config.precision == "bf16")

    def logs(self, step: int) -> bool:
        """Whether the metrics of this step are logged."""
        return bool(self.config.log_steps) and step % self.config.log_steps == 0

    def skip(self) -> None:
        self.progress.skipped += 1
        self.skips_in_a_row += 1
        if self.skips_in_a_row >= SKIPS_IN_A_ROW:
            states = self.folder.saved_states()
            raise DivergedError(
                self.progress.step - SKIPS_IN_A_ROW + 1,
                f"loss or gradient was not finite {SKIPS_IN_A_ROW} steps in a row, up to step {self.progress.step} at "
                f"learning rate {self.optimizer.param_groups[0]['lr']:.3g}: lower it, add warmup or clip gradients. "
                f"The last saved state: {states[0] if states else 'none'}.",
            )

    def finish_round(self, reporter: Reporter) -> dict[str, Any]:
        """Evaluates, logs and saves; returns the metrics of the round."""
        progress = self.progress
        loss, steps, *counts = self.group.total(*progress.totals.values(), *progress.counts.values())
        record: dict[str, Any] = {
            "step": progress.step,
            "lr": self.optimizer.param_groups[0]["lr"],
            "train_loss": loss / max(steps, 1),
            "skipped_steps": progress.skipped,
            **self.task.record(progress.step, dict(zip(progress.counts, counts, strict=True))),
        }
        progress.totals, progress.counts = Progress().totals, {}
        if progress.step == self.task.steps or self.task.evaluates(progress.step):
            with reporter.pause(), self.profile("evaluation"):
                self.estimate_statistics()
                record |= self.evaluate()
        if self.group.first:
            self.folder.log(record)
        self.save()
        return record

    def evaluate(self) -> dict[str, Any]:
        """Evaluates the weights and their average, and saves the better ones if they are the best so far."""
        self.group.agree(self.model.buffers())  # statistics that each process has for itself
        score, figures = self.task.score, self.task.evaluate(self.model)
        last = best = figures[score]
        better = self.model
        if self.average is not None:
            of_average = self.task.evaluate(self.average.module)
            figures |= {f"ema_{name}": figure for name, figure in of_average.items()}
            if of_average[score] > last:
                best, better = of_average[score], self.average.module
        if best > self.progress.best:
            self.save_weights("best", better, best)
        self.save_weights("last", self.model, last)
        self.progress.best = max(best, self.progress.best)
        return figures

    def estimate_statistics(self, most_batches: int = STATISTICS_BATCHES) -> None:
        """Sets the running statistics of the averaged weights, if the config asks for it.

        They are estimated on the first training images of the last epoch.
        """
        if self.average is None or self.config.ema.statistics != "estimated":
            return
        epoch, group = (self.progress.step - 1) // self.steps_in_an_epoch, self.group
        loader = batches(
            self.task.examples(epoch),
            self.micro_batch * group.count,
            range(min(most_batches, self.steps_in_an_epoch * self.accumulate)),
            epoch_order(self.task.images, self.config.seed, epoch),
            (group.rank, group.count),
            self.task.workers,
        )
        model = self.average.module
        # Compiling another program, for these norms in train mode without gradients, would take longer.
        with self.autocast(), torch.compiler.set_stance("force_eager"):
            estimate_statistics(model, (images.to(group.device) for images, _ in loader))
        group.agree(model.buffers())

    def replace_lost_weights(self) -> None:
        """Evaluates the weights of a resumed run, and so saves them, if best.safetensors or last.safetensors is lost.

        The best score is that of the file: the run may have been killed between saving the weights and its state.
        """
        scores = [self.folder.score_of(name, self.task.score) for name in WEIGHTS] if self.group.first else []
        best, last = self.group.same(scores)
        evaluated, self.progress.best = self.progress.best >= 0, -1.0 if best is None else best
        if evaluated and (best is None or last is None):
            lost = self.folder.weights("last" if last is None else "best")
            warnings.warn(f"{lost} was lost: the weights of step {self.progress.step} take its place.", stacklevel=2)
            self.evaluate()

    def save_weights(self, name: str, model: nn.Module, score: float) -> None:
        if self.group.first:
            about = self.task.description() | {self.task.score: str(score), "step": str(self.progress.step)}
            self.folder.save_weights(name, model.state_dict(), **about)

    def time_to_save(self) -> bool:
        minutes = self.config.checkpoint_minutes
        due = bool(minutes) and time.monotonic() - self.saved_at > 60 * minutes
        return bool(self.group.total(float(due and self.group.first))[0])

    def save(self) -> None:
        self.saved_at = time.monotonic()
        if not self.group.first:
            return
        self.folder.save_state(
            self.progress.step,
            {
                "version": STATE_VERSION,
                "model": self.model.state_dict(),
                "average": self.average.state_dict() if self.average is not None else None,
                "optimizer": self.optimizer.state_dict(),
                "progress": asdict(self.progress),
                "steps_in_an_epoch": self.steps_in_an_epoch,
                "config": field_values(self.config),
            },
        )

    def restore(self, state: dict[str, Any]) -> None:
        if not isinstance(state, dict) or state.get("version") != STATE_VERSION:
            raise PolyNeXtError(
                f"the run in {self.folder.path} was saved by another version of polynext: resume it with that version, "
                "or start a new run from its weights with `model.initial_weights`."
            )
        now = self.steps_in_an_epoch
        before = state.get("steps_in_an_epoch", now)  # missing in states of earlier versions
        if before != now:
            raise PolyNeXtError(
                f"the run in {self.folder.path} had {before} steps in an epoch and now has {now}: keep `batch_size` "
                "and the images unchanged."
            )
        try:
            self.model.load_state_dict(state["model"])
            if state["average"] is not None and self.config.ema.decay:
                self.average = averaged(self.model, self.config.ema.decay)
                self.average.load_state_dict(state["average"])
            restore_optimizer(self.optimizer, state["optimizer"])
        except PolyNeXtError:
            raise
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise PolyNeXtError(
                f"the run in {self.folder.path} is of another network: keep --model unchanged."
            ) from error
        self.progress = Progress(**state["progress"])
        if self.group.first:
            self.folder.forget_after(self.progress.step, state.get("metrics"))
            self.print_changes(state.get("config", {}))

    def print_changes(self, saved: dict[str, str]) -> None:
        """Prints the fields of the config that the saved state had otherwise."""
        now = field_values(self.config)
        changed = [
            f"{name} from {saved[name]} to {now[name]}" for name in now if saved.get(name, now[name]) != now[name]
        ]
        if changed and not self.quiet:
            print(f"resumed at step {self.progress.step} with changes: {', '.join(changed)}", flush=True)


def run(
    make_task: Callable[[Processes], Task],
    config: LoopConfig,
    out: Path,
    resume: bool = False,
    profile: bool = False,
    quiet: bool = False,
) -> Path:
    """Runs a task and returns its folder. With `resume` it continues from the newest state in the folder."""
    folder = RunFolder(out)
    with processes() as group:
        if not resume and (found := folder.results()):
            raise PolyNeXtError(
                f"{out} already has a run ({', '.join(found)}): resume it with --resume {out}, or give another --out."
            )
        loop = TrainingLoop(make_task(group), config, folder, group, profile, quiet)
        with folder.alone() if group.first else nullcontext(), stride_warnings_ignored():
            state = group.same(folder.newest_state() if group.first else None)
            if state is not None:
                loop.restore(read_state(state))
            elif found := folder.results():
                raise PolyNeXtError(
                    f"{out} has no intact state to resume from, only {', '.join(found)}, which stay as they are: start "
                    "a new run in another folder. `model.initial_weights` can start it from these weights."
                )
            elif group.first:  # killed before its first state
                folder.forget_after(0)
            if group.first:
                folder.create(to_yaml(config))
            loop.run()
        if group.first and not quiet:
            print(f"best {loop.task.figure(loop.progress.best)}: {out / 'best.safetensors'}")
        if profile and group.first:
            print(loop.profile.summary())
    return out


@contextmanager
def enough_for_batch_norm() -> Iterator[None]:
    """Explains PyTorch's error if a batch norm has a single value for each channel, whose variance would be 0."""
    try:
        yield
    except (ValueError, RuntimeError) as error:  # compiled code raises the latter
        if "Expected more than 1 value per channel" not in str(error):
            raise
        raise PolyNeXtError(
            "a batch norm gets one value of each channel, for one image at once with a map of 1x1: give a "
            "`micro_batch` of at least 2, or larger images."
        ) from error


@contextmanager
def stride_warnings_ignored() -> Iterator[None]:
    """While inside, DDP does not warn of 1x1 kernels, which have two notations of strides for the same memory order."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        yield


def averaged(model: nn.Module, decay: float) -> AveragedModel:
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)
