"""A rehearsal: all that a run will do, in minutes, and what it will take, before somebody gives it days.

The real network and optimiser take a few steps of each phase of the real schedule, with the real images; then comes an
evaluation on a sample, a save, and a resume in a new process, which must find the same loss. Nothing is left behind.
"""

import gc
import math
import multiprocessing
import os
import shutil
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polynext.config import LoopConfig, to_yaml
from polynext.data.loader import Labelled
from polynext.distributed import Processes, processes
from polynext.errors import PolyNeXtError
from polynext.memory import available_memory, peak_memory, reset_peak_memory, return_freed_memory
from polynext.models.costs import count_parameters
from polynext.threads import idle_threads_give_way
from polynext.training.folder import STATES_KEPT, RunFolder
from polynext.training.loop import Task, TrainingLoop

STEPS = 2  # of each phase
DECODED = 64  # images of each split that are opened
EVALUATED = 32
PROBES = (2, 4)  # images at once, from which time and memory of more are foretold
SHARE_OF_MEMORY = 0.8  # of what is free, that a run may take
PEAK_TO_KEPT = 1.25  # the most that a step has at once, in units of what it keeps for the backward pass
LOSS_TOLERANCE = 1e-3  # GPUs do not add in the same order twice

MakeTask = Callable[[Processes], Task]


@dataclass
class Rehearsal:
    """What was seen, what the run will take, and each thing that would go wrong as a sentence.

    Attributes:
        tell: gets a line for each thing that is seen, at once.
        seen: of the run's phases, by name.
        takes: memory, time and so on.
        problems: the sentences.
    """

    tell: Callable[[str], None] = lambda line: None
    seen: dict[str, str] = field(default_factory=dict)
    takes: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def see(self, name: str, what: str) -> None:
        self.seen[name] = what
        self.tell(line(name, what))

    def conclusion(self) -> str:
        """What the run will take, and what would go wrong."""
        lines = ["the run will take, on this machine:"] if self.takes else []
        lines += [line(name, what) for name, what in self.takes.items()]
        if not self.problems:
            return "\n".join([*lines, "nothing would go wrong"])
        return "\n".join([*lines, "what would go wrong:", *(f"  - {problem}" for problem in self.problems)])


def line(name: str, what: str) -> str:
    return f"  {name:<16}  {what}"


def rehearse(
    task: Callable[[Any, Processes], Task],
    config: LoopConfig,
    out: Path,
    minutes: float = 6.0,
    tell: Callable[[str], None] = lambda line: None,
) -> Rehearsal:
    """Rehearses a run that is to be in `out`, in about so many minutes: with fewer images at once if it must be."""
    with processes() as group:
        folder = Path(group.same(str(out.with_name(f".rehearsal-{out.name}-{os.getpid()}"))))
        missing = [parent for parent in (folder.parent, *folder.parent.parents) if not parent.exists()]
        report = Rehearsal(tell if group.first else lambda line: None)
        if config.precision == "bf16" and group.device.type == "cpu" and not has_bf16_arithmetic():
            config = replace(config, precision="float32")
            report.problems.append(
                "this processor has no bf16 arithmetic, and emulating it takes many times as long: give `precision` "
                "float32, as was rehearsed."
            )
        try:
            run_through(report, partial(task, config), config, RunFolder(folder), group, 60 * minutes)
        except PolyNeXtError as error:
            report.problems.append(str(error))
        finally:
            if group.first:
                shutil.rmtree(folder, ignore_errors=True)
                for parent in missing:
                    with suppress(OSError):  # it may hold another run by now
                        parent.rmdir()
        report.problems = group.same(report.problems)
        return report


def run_through(
    report: Rehearsal, make_task: MakeTask, config: LoopConfig, folder: RunFolder, group: Processes, seconds: float
) -> None:
    end = time.monotonic() + seconds
    task = make_task(group)
    look_at_data(report, task)
    if group.first:
        folder.create(to_yaml(config))
    loop = TrainingLoop(task, config, folder, group, quiet=True)
    if task.steps <= STEPS:
        raise PolyNeXtError(f"a run of {task.steps} steps is too short to be rehearsed: just start it.")
    report.see("network", f"{count_parameters(loop.model):,} parameters{', compiled' if config.compile else ''}")
    wanted = loop.micro_batch
    loop.accumulate = 1
    end -= foretell(report, loop, wanted, end)
    rates = []
    for number, (name, step) in enumerate(task.phases().items(), 1):
        step_seconds = rehearse_phase(report, loop, name, step)
        rates.append(loop.micro_batch * group.count / step_seconds)
        keep_to_time(report, loop, step_seconds, STEPS * (len(task.phases()) - number) + 2, end)
    evaluation = rehearse_evaluation(report, loop)
    loop.save()
    state = max((f.stat().st_size for f in folder.states.iterdir()), default=0) if group.first else 0
    weights = sum(f.stat().st_size for f in folder.path.glob("*.safetensors")) if group.first else 0
    tell_bill(report, loop, wanted, statistics.median(rates), evaluation, state * (STATES_KEPT + 1) + 2 * weights)
    images = loop.micro_batch
    take_steps(loop, loop.progress.step, 1)
    expected = loop.last_loss
    del loop, task  # so that there is room for the new ones
    rehearse_resume(report, make_task, config, images, folder.path, group, expected)


def look_at_data(report: Rehearsal, task: Task) -> None:
    """Opens a sample of the images of each split."""
    said = []
    for split, pairs in task.sources().items():
        said.append(f"{len(pairs):,} {split}")
        report.problems += unreadable(pairs)
    report.problems += task.data_problems()
    report.see("data", f"{' and '.join(said)} images, {DECODED} of each opened")


def unreadable(pairs: Labelled) -> list[str]:
    sentences = []
    for index in sorted({round(i * (len(pairs) - 1) / (DECODED - 1)) for i in range(DECODED)}):
        try:
            pairs[index]
        except PolyNeXtError as error:
            sentences.append(str(error))
    return sentences


def foretell(report: Rehearsal, loop: TrainingLoop, wanted: int, end: float) -> float:
    """Measures small steps and chooses how many images at once there are memory and time for.

    Returns the seconds to set aside for what comes after the phases.
    """
    if loop.group.device.type == "cuda":
        return 0.0  # fast enough to try; too little memory is an exception there, not the end of the process
    took = []
    for images in (PROBES[0], *PROBES):  # the first one compiles
        loop.micro_batch = min(images, wanted)
        with counting_kept_bytes(loop.model) as kept:
            took.append(take_steps(loop, 0, 1))
    loop.progress.step = 0
    compiling, fewer, more = took
    an_image = max(more - fewer, 0.2 * more) / (PROBES[1] - PROBES[0])
    bytes_an_image = PEAK_TO_KEPT * sum(kept.values()) / loop.micro_batch
    free = available_memory() // int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # which the others need too
    fits = int(SHARE_OF_MEMORY * free / bytes_an_image)
    if fits < wanted:
        report.problems.append(
            f"{wanted} images at once need about {gigabytes(wanted * bytes_an_image)} in each process and "
            f"{gigabytes(free)} are free for each: give `micro_batch` {power_of_two(fits)}, or less `model.memory`."
        )
    steps = STEPS * len(loop.task.phases()) + 2
    afterwards = 2 * compiling  # for evaluation, and for the new process
    in_time = max(int((end - afterwards - time.monotonic()) / steps / an_image), 1)
    loop.micro_batch = loop.group.same(min(wanted, max(PROBES[0], power_of_two(min(fits, in_time)))))
    if loop.micro_batch < wanted:
        report.see("steps", f"of {loop.micro_batch} images at once, for the sake of time or memory; really {wanted}")
    return afterwards


def keep_to_time(report: Rehearsal, loop: TrainingLoop, step_seconds: float, steps: int, end: float) -> None:
    """Takes fewer images at once for the steps to come, if the machine has become too slow for as many."""
    in_time = max(int(loop.micro_batch * (end - time.monotonic()) / (steps * step_seconds)), 1)
    fewer = loop.group.same(max(PROBES[0], power_of_two(in_time)))
    if fewer < loop.micro_batch and loop.group.device.type != "cuda":
        loop.micro_batch = fewer
        report.see("steps", f"of {fewer} images at once from here on: the machine does other things too")


@contextmanager
def counting_kept_bytes(model: nn.Module) -> Iterator[dict[int, int]]:
    """While inside, bytes kept for the backward pass, parameters aside, of each piece of memory by its place."""
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield kept


def take_steps(loop: TrainingLoop, step: int, count: int) -> float:
    """Takes steps from this one on, as the run will, and returns the seconds of the last."""
    loop.progress.step = step
    loop.task.start_round(step)
    loop.model.train()
    reset_peak_memory()
    batches = loop.batches_left()
    batch = next(batches)  # for which workers had to be started
    taken = 0.0
    for number in range(count):
        loop.skips_in_a_row = 0  # a rehearsal tells of a step that is not finite, and goes on
        start = time.monotonic()
        loop.step([batch if number == 0 else next(batches)])
        taken = time.monotonic() - start
    batches.close()
    return taken


def rehearse_phase(report: Rehearsal, loop: TrainingLoop, name: str, step: int) -> float:
    skipped = loop.progress.skipped
    step = min(step, loop.task.steps - STEPS - 1)  # with one more left for the resumed run
    try:
        seconds = take_steps(loop, step, STEPS)
    except torch.OutOfMemoryError as error:
        raise PolyNeXtError(
            f"{loop.micro_batch} images at once do not fit into the memory of {loop.group.device}: give a smaller "
            "`micro_batch`, or less `model.memory`."
        ) from error
    rate = loop.optimizer.param_groups[0]["lr"]
    report.see(name, f"loss {loop.last_loss:.4f} at learning rate {rate:.2e} ({loop.task.where(step)})")
    if loop.progress.skipped > skipped:
        report.problems.append(f"loss or gradient is not finite at {name}: lower `optimizer.lr` or add warmup.")
    return seconds


def rehearse_evaluation(report: Rehearsal, loop: TrainingLoop) -> float:
    """Evaluates a sample, and returns the seconds that all images will take."""
    whole = loop.task.sample_evaluation(EVALUATED)
    start = time.monotonic()
    with loop.autocast():
        figures = loop.evaluate()
    taken = time.monotonic() - start
    report.see("evaluation", f"{loop.task.figure(figures[loop.task.score])} of {min(EVALUATED, whole)} images")
    return taken * whole / min(EVALUATED, whole)


def tell_bill(report: Rehearsal, loop: TrainingLoop, wanted: int, rate: float, evaluation: float, disk: int) -> None:
    task, config, group = loop.task, loop.config, loop.group
    held = torch.cuda.max_memory_allocated(group.device) if group.device.type == "cuda" else peak_memory()
    if loop.micro_batch < wanted:
        report.takes["memory"] = f"at least {gigabytes(held)} in each process, seen with {loop.micro_batch} images"
    else:
        report.takes["memory"] = f"{gigabytes(held)} in each process"
    seconds = task.steps * config.batch_size / rate + evaluation * math.ceil(task.steps / task.round_steps)
    report.takes["speed"] = f"{rate:.4g} images/s in {group.count} process(es)"
    report.takes["time"] = f"{duration(seconds)} for {task.steps:,} steps of {config.batch_size} images"
    report.takes["disk"] = gigabytes(group.same(disk))
    free = shutil.disk_usage(loop.folder.path if group.first else Path.cwd()).free
    if group.first and disk > free:
        report.problems.append(f"the run writes {gigabytes(disk)} and {gigabytes(free)} are free: give another `out`.")


def rehearse_resume(
    report: Rehearsal,
    make_task: MakeTask,
    config: LoopConfig,
    images: int,
    folder: Path,
    group: Processes,
    expected: float,
) -> None:
    """Takes the step after the saved state in a new process; its loss must be the one expected."""
    gc.collect()
    return_freed_memory()
    if group.device.type == "cuda":
        torch.cuda.empty_cache()
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    port = group.same(free_port())
    method = multiprocessing.get_start_method()  # of worker processes, which a spawned process would spawn
    child = context.Process(target=resume_one_step, args=(make_task, config, images, folder, port, method, send))
    with idle_threads_give_way():
        child.start()
    send.close()
    try:
        found: float | str = receive.recv()
    except EOFError:
        found = "it ended before its first step"
    except KeyboardInterrupt:
        child.terminate()
        raise
    finally:
        child.join()
    if isinstance(found, str):
        report.problems.append(f"a resumed run does not go on: {found}")
    elif not math.isclose(found, expected, rel_tol=LOSS_TOLERANCE):
        report.problems.append(f"a resumed run does not go on as it was: its loss is {found:.6f}, not {expected:.6f}.")
    else:
        same = "the same" if found == expected else f"{expected:.6f} here"
        report.see("resumed", f"in a new process, with loss {found:.6f}, {same}")


def resume_one_step(
    make_task: MakeTask, config: LoopConfig, images: int, folder: Path, port: int, method: str, send: Any
) -> None:
    """In a process of its own: what `--resume` does, and one step of it."""
    multiprocessing.set_start_method(method, force=True)
    os.environ |= {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "False"}  # not the parents' meeting
    try:
        with processes() as group:
            loop = TrainingLoop(make_task(group), config, RunFolder(folder), group)
            loop.accumulate, loop.micro_batch = 1, images
            state = loop.folder.load_state()
            if state is None:
                raise PolyNeXtError(f"there is no whole state in {folder}.")
            loop.restore(state)
            take_steps(loop, loop.progress.step, 1)
            send.send(loop.last_loss)
    except PolyNeXtError as error:
        send.send(str(error))
    finally:
        send.close()


def has_bf16_arithmetic() -> bool:
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def power_of_two(n: int) -> int:
    return 1 << max(n.bit_length() - 1, 0)


def gigabytes(size: float) -> str:
    return f"{size / 2**30:.3g} GB" if size > 2**29 else f"{size / 2**20:.3g} MB"


def duration(seconds: float) -> str:
    return f"{seconds / 3600:,.1f} hours" if seconds > 3600 else f"{seconds / 60:.1f} minutes"
