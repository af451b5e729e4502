"""A dry run: all phases of a training run in a few minutes, with its cost and its problems, before the real run.

The real network and optimiser take a few steps of each phase of the schedule on the real images. An evaluation of a
sample, a save, and a resume in a new process follow; the resumed run must find the same loss. No file remains.
"""

import gc
import math
import multiprocessing
import os
import shutil
import socket
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from polynext.config import LoopConfig, to_yaml
from polynext.distributed import Processes, processes
from polynext.errors import PolyNeXtError
from polynext.memory import available_memory, peak_memory, reset_peak_memory, return_freed_memory
from polynext.models.costs import count_parameters
from polynext.threads import idle_threads_give_way
from polynext.training.folder import STATES_KEPT, RunFolder
from polynext.training.loop import STATISTICS_BATCHES, TrainingLoop, stride_warnings_ignored
from polynext.training.task import Task

STEPS = 2  # of each phase
DECODED = 64  # images of each split that are opened
EVALUATED = 32
SMALLEST = 2  # images at once
NORMALISED = 16  # values of a channel that a batch norm needs: with fewer, the gradients of a deep network overflow
SHARE_OF_MEMORY = 0.8  # of the free memory that a run may take
LOSS_TOLERANCE = 1e-3  # GPUs do not add in the same order twice

MakeTask = Callable[[Processes], Task]


@dataclass
class DryRunReport:
    """The result of a dry run.

    Attributes:
        show: is called with a line for each check, as soon as it is done.
        checks: the result of each phase of the run, by name.
        estimates: memory, speed, time and disk space of the real run.
        problems: a message for each problem of the real run.
    """

    show: Callable[[str], None] = lambda line: None
    checks: dict[str, str] = field(default_factory=dict)
    estimates: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, name: str, result: str) -> None:
        self.checks[name] = result
        self.show(line(name, result))

    def conclusion(self) -> str:
        """The estimates and the problems."""
        lines = ["the run takes, on this machine:"] if self.estimates else []
        lines += [line(name, value) for name, value in self.estimates.items()]
        if not self.problems:
            return "\n".join([*lines, "no problems found"])
        return "\n".join([*lines, "problems:", *(f"  - {problem}" for problem in self.problems)])


def line(name: str, value: str) -> str:
    return f"  {name:<18}  {value}"


def dry_run(
    task: Callable[[Any, Processes], Task],
    config: LoopConfig,
    out: Path,
    minutes: float = 6.0,
    show: Callable[[str], None] = lambda line: None,
) -> DryRunReport:
    """Checks a run before it is started.

    Args:
        task: the task of a config and its processes, such as `Classification`.
        config: the run.
        out: the run's folder, which stays as it is.
        minutes: about how long a dry run may take on a CPU, with fewer images at once if necessary.
        show: is called with a line for each check, as soon as it is done.
    """
    nearest = next(parent for parent in out.absolute().parents if parent.exists())
    with processes() as group, TemporaryDirectory(prefix=".dry-run-", dir=nearest) as own:
        folder = RunFolder(Path(group.same(own)))
        report = DryRunReport(show if group.first else lambda line: None)
        if config.precision == "bf16" and group.device.type == "cpu" and not has_bf16_arithmetic():
            config = replace(config, precision="float32")
            report.problems.append(
                "this processor emulates bf16 arithmetic, which is slow: give `precision` float32. The dry run used it."
            )
        try:
            with stride_warnings_ignored():
                check_run(report, partial(task, config), config, folder, group, 60 * minutes)
        except PolyNeXtError as error:
            report.problems.append(str(error))
        report.problems = group.same(report.problems)
        return report


def check_run(
    report: DryRunReport, make_task: MakeTask, config: LoopConfig, folder: RunFolder, group: Processes, seconds: float
) -> None:
    end = time.monotonic() + seconds
    task = make_task(group)
    check_data(report, task)
    if group.first:
        folder.create(to_yaml(config))
    loop = TrainingLoop(task, config, folder, group, quiet=True)
    if task.steps <= STEPS:
        raise PolyNeXtError(f"a run of {task.steps} steps is too short for a dry run: start it.")
    report.add("network", f"{count_parameters(loop.model):,} parameters{', compiled' if config.compile else ''}")
    wanted, loop.accumulate = loop.micro_batch, 1
    more_memory, smallest = 0.0, wanted
    if group.device.type != "cuda":  # which is fast, and where too little memory is an exception
        smallest = min(smallest_batch(loop), wanted)
        more_memory, end = choose_micro_batch(report, loop, smallest, wanted, end)
    rates = []
    for number, (name, step) in enumerate(task.phases().items(), 1):
        step_seconds = check_phase(report, loop, name, step)
        rates.append(loop.micro_batch * group.count / step_seconds)
        keep_to_time(report, loop, smallest, step_seconds, STEPS * (len(task.phases()) - number) + 2, end)
    evaluation = check_evaluation(report, loop)
    loop.save()
    estimate_cost(report, loop, wanted, more_memory, statistics.median(rates), evaluation)
    images = loop.micro_batch
    take_steps(loop, loop.progress.step, 1)
    expected = loop.last_loss
    del loop, task  # to free their memory for the new process
    check_resume(report, make_task, config, images, folder.path, group, expected)


def check_data(report: DryRunReport, task: Task) -> None:
    """Opens a sample of the images of each split."""
    counts = []
    for split, pairs in task.sources().items():
        counts.append(f"{len(pairs):,} {split}")
        for index in sorted({round(i * (len(pairs) - 1) / (DECODED - 1)) for i in range(DECODED)}):
            try:
                pairs[index]
            except PolyNeXtError as error:
                report.problems.append(str(error))
    report.problems += task.data_problems()
    report.add("data", f"{' and '.join(counts)} images, {DECODED} of each opened")


def smallest_batch(loop: TrainingLoop) -> int:
    """The fewest images at once that train as more do. With batch norms, it depends on the smallest feature map."""
    if not any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in loop.model.modules()):
        return SMALLEST
    loop.micro_batch = SMALLEST
    with closing(loop.batches_left()) as batches:
        side = next(batches)[0].shape[-1]
    infos: Any = getattr(loop.model, "feature_info", None) or [{"reduction": 32}]
    return max(SMALLEST, power_of_two(NORMALISED * infos[-1]["reduction"] ** 2 // side**2))


def choose_micro_batch(
    report: DryRunReport, loop: TrainingLoop, smallest: int, wanted: int, end: float
) -> tuple[float, float]:
    """Doubles the images at once until time or memory would run out, and estimates the memory of the real number.

    Returns the bytes that the real number takes more than the chosen one, and the time at which the phases must end.
    """
    group = loop.group
    free = available_memory() // int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # shared with the other processes
    steps = STEPS * len(loop.task.phases()) + 2
    loop.micro_batch = smallest
    end -= 2 * take_steps(loop, 0, 1)  # compiles, as the evaluation and the new process will
    peaks: dict[int, int] = {}
    while True:
        return_freed_memory()  # which the step would reuse without raising the peak
        step_seconds, images = take_steps(loop, 0, 1), loop.micro_batch
        peaks[images] = peak_memory()
        an_image = (peaks[images] - peaks[smallest]) / max(images - smallest, 1)
        larger = min(2 * images, wanted)
        in_time = time.monotonic() + steps * step_seconds * larger / images < end
        fits = larger * an_image < SHARE_OF_MEMORY * free
        if images == wanted or (images > smallest and not group.same(in_time and fits)):
            break
        loop.micro_batch = larger
    loop.progress.step = 0
    if wanted * an_image > SHARE_OF_MEMORY * free:
        fitting = power_of_two(int(SHARE_OF_MEMORY * free / an_image))
        report.problems.append(
            f"{wanted} images at once need about {gigabytes(wanted * an_image)} in each process and {gigabytes(free)} "
            f"are free for each: give `micro_batch` {fitting}, or less `model.memory`."
        )
    if images < wanted:
        report.add("steps", f"of {images} images at once instead of {wanted}, to save time or memory")
    return an_image * (wanted - images), end


def keep_to_time(
    report: DryRunReport, loop: TrainingLoop, smallest: int, step_seconds: float, steps: int, end: float
) -> None:
    """Reduces the images at once if the steps so far were too slow for the time left."""
    in_time = max(int(loop.micro_batch * (end - time.monotonic()) / (steps * step_seconds)), 1)
    fewer = loop.group.same(max(smallest, power_of_two(in_time)))
    if fewer < loop.micro_batch and loop.group.device.type != "cuda":
        loop.micro_batch = fewer
        report.add("steps", f"of {fewer} images at once from here on, because the machine has become slower")


def take_steps(loop: TrainingLoop, step: int, count: int) -> float:
    """Takes optimiser steps from this one on, and returns the seconds of the last."""
    loop.progress.step = step
    loop.task.start_round(step)
    loop.model.train()
    reset_peak_memory()
    batches = loop.batches_left()
    batch = next(batches)  # starts the workers
    taken = 0.0
    for number in range(count):
        loop.skips_in_a_row = 0  # a dry run reports steps that are not finite, and continues
        start = time.monotonic()
        loop.step([batch if number == 0 else next(batches)])
        taken = time.monotonic() - start
    batches.close()
    return taken


def check_phase(report: DryRunReport, loop: TrainingLoop, name: str, step: int) -> float:
    """Takes steps at the beginning of a phase, and returns the seconds of one."""
    skipped = loop.progress.skipped
    step = min(step, loop.task.steps - STEPS - 1)  # leaves one for the resumed run
    try:
        seconds = take_steps(loop, step, STEPS)
    except torch.OutOfMemoryError as error:
        raise PolyNeXtError(
            f"{loop.micro_batch} images at once do not fit into the memory of {loop.group.device}: give a smaller "
            "`micro_batch`, or less `model.memory`."
        ) from error
    rate = loop.optimizer.param_groups[0]["lr"]
    report.add(name, f"loss {loop.last_loss:.4f} at learning rate {rate:.2e} ({loop.task.position(step)})")
    if loop.progress.skipped > skipped:
        report.problems.append(f"loss or gradient is not finite at {name}: lower `optimizer.lr` or add warmup.")
    return seconds


def check_evaluation(report: DryRunReport, loop: TrainingLoop) -> float:
    """Evaluates a sample, and returns the estimated seconds of a whole evaluation."""
    whole = loop.task.sample_evaluation(EVALUATED)
    start = time.monotonic()
    loop.estimate_statistics(STEPS)
    of_statistics = (time.monotonic() - start) * STATISTICS_BATCHES / STEPS
    start = time.monotonic()
    figures = loop.evaluate()
    taken = time.monotonic() - start
    report.add("evaluation", f"{loop.task.figure(figures[loop.task.score])} of {min(EVALUATED, whole)} images")
    return of_statistics + taken * whole / min(EVALUATED, whole)


def estimate_cost(
    report: DryRunReport, loop: TrainingLoop, wanted: int, more_memory: float, rate: float, evaluation: float
) -> None:
    """Estimates the whole run, from images per second in training and seconds of an evaluation."""
    task, group, folder, images = loop.task, loop.group, loop.folder, loop.config.batch_size
    peak = torch.cuda.max_memory_allocated(group.device) if group.device.type == "cuda" else peak_memory()
    estimated = f", estimated from {loop.micro_batch} images at once" if loop.micro_batch < wanted else ""
    report.estimates["memory"] = f"{gigabytes(peak + more_memory)} in each process{estimated}"
    report.estimates["speed"] = f"{rate:.4g} images/s in {group.count} process(es)"
    seconds = task.steps * images / rate + evaluation * math.ceil(task.steps / task.round_steps)
    report.estimates["time"] = f"{duration(seconds)} for {task.steps:,} steps of {images} images"
    if not group.first:
        return
    state = max((file.stat().st_size for file in folder.states.iterdir()), default=0)
    weights = sum(file.stat().st_size for file in folder.path.glob("*.safetensors"))
    disk, free = state * (STATES_KEPT + 1) + 2 * weights, shutil.disk_usage(folder.path).free
    report.estimates["disk"] = gigabytes(disk)
    if disk > free:
        report.problems.append(f"the run writes {gigabytes(disk)} and {gigabytes(free)} are free: give another `out`.")


def check_resume(
    report: DryRunReport,
    make_task: MakeTask,
    config: LoopConfig,
    images: int,
    folder: Path,
    group: Processes,
    expected: float,
) -> None:
    """Takes the step after the saved state in a new process, whose loss must be the expected one."""
    gc.collect()
    return_freed_memory()
    if group.device.type == "cuda":
        torch.cuda.empty_cache()
    environment = {"MASTER_PORT": str(group.same(free_port())), "TORCHELASTIC_USE_AGENT_STORE": "False"}
    method = multiprocessing.get_start_method()  # of the data workers, which a spawned process would spawn too
    spawn = multiprocessing.get_context("spawn")
    try:
        with idle_threads_give_way(), ProcessPoolExecutor(max_workers=1, mp_context=spawn) as pool:
            found = pool.submit(resume_one_step, make_task, config, images, folder, environment, method).result()
    except BrokenProcessPool:
        report.problems.append("the run cannot be resumed: the new process ended before its first step.")
        return
    if not math.isclose(found, expected, rel_tol=LOSS_TOLERANCE):
        report.problems.append(f"the resumed run differs: its loss is {found:.6f} instead of {expected:.6f}.")
    else:
        same = "the same" if found == expected else f"{expected:.6f} here"
        report.add("resumed", f"in a new process, with loss {found:.6f}, {same}")


def resume_one_step(
    make_task: MakeTask, config: LoopConfig, images: int, folder: Path, environment: dict[str, str], method: str
) -> float:
    """In the new process: restores the state as `--resume` does, takes one step, and returns its loss."""
    multiprocessing.set_start_method(method, force=True)
    os.environ |= environment  # for a group of the new processes instead of that of the parents
    with processes() as group, stride_warnings_ignored():
        loop = TrainingLoop(make_task(group), config, RunFolder(folder), group)
        loop.accumulate, loop.micro_batch = 1, images
        state = loop.folder.load_state()
        if state is None:
            raise PolyNeXtError(f"{folder} has no intact state.")
        loop.restore(state)
        take_steps(loop, loop.progress.step, 1)
        return loop.last_loss


def has_bf16_arithmetic() -> bool:
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def power_of_two(n: int) -> int:
    """The largest power of two up to n; at least 1."""
    return 1 << max(n.bit_length() - 1, 0)


def gigabytes(size: float) -> str:
    return f"{size / 2**30:.3g} GB" if size > 2**29 else f"{size / 2**20:.3g} MB"


def duration(seconds: float) -> str:
    return f"{seconds / 3600:,.1f} hours" if seconds > 3600 else f"{seconds / 60:.1f} minutes"
