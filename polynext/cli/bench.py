"""`polynext bench`."""

import json as jsonlib
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import timm
import torch
import tyro
from tqdm import tqdm

import polynext
from polynext import paper
from polynext.errors import PolyNeXtError, require_at_least
from polynext.experiments.speed import resuming
from polynext.experiments.speed.candidates import Candidate, Setting
from polynext.experiments.speed.figures import draw, leaders, require_picture
from polynext.experiments.speed.timing import Measurement, Timing, measure
from polynext.files import require_place
from polynext.tables import gigamacs, table

DEFAULT_MODELS = ("cpolynext_tiny", "apolynext_tiny", "monet_tiny", "convformer_s18", "caformer_s18")
PAPER_REFERENCE = "ConvFormer-S18"


def main(
    models: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
    engines: tuple[str, ...] = (),
    paper_table: Annotated[bool, tyro.conf.arg(name="paper")] = False,
    device: str = "cuda" if torch.cuda.is_available() else "cpu",
    batch_size: int | None = None,
    image_size: int | None = None,
    threads: int = 0,
    rounds: int = 7,
    memory: bool = True,
    plot: Path | None = None,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Measure speed and memory of networks, ours and timm's, in one run.

    All take turns, round after round: compare the figures of a run with each other rather than with another run's. The
    paper's models are measured one by one, each in turns with ConvFormer-S18; with --out, an interrupted measurement
    goes on where it was.
    Memory is that of weights and feature maps, from a process of its own for each network. It is not measured for
    compiled ones on a CPU, where it would be the compiler's.

    Args:
        models: names of models; a few small ones by default.
        engines: how to run them: eager, compiled, onnxruntime or openvino, after folded+ or bf16+ if wanted, as in
            folded+compiled. Eager by default; compiled for the paper's table.
        paper_table: measure throughput of the models of the paper's table, and show its figures beside.
        device: cpu, or cuda, cuda:1 and so on.
        batch_size: images at a time for throughput; 128 on a GPU and 8 on a CPU by default.
        image_size: side of the images; each model's own by default.
        threads: CPU threads; all by default. The seconds of a single one are CPU time, less disturbed by other work.
        rounds: how many turns each network gets.
        memory: measure memory too.
        plot: draw accuracy against size, cost and measured speed to this file.
        out: write everything, with every single time, to this JSON file.
        json: print JSON instead of a table.
    """
    require_at_least(1, rounds=rounds, batch_size=1 if batch_size is None else batch_size)
    require_at_least(1, image_size=1 if image_size is None else image_size)
    require_at_least(0, threads=threads)
    if device not in (here := devices()):
        raise PolyNeXtError(f"there is no device {device!r} here: give {' or '.join(here)}.")
    if out:
        require_place(out)
    if plot:
        require_picture(plot)
    if paper_table and models:
        raise PolyNeXtError("--paper has its own list of models: leave the others out.")
    engines = engines or (("compiled",) if paper_table else ("eager",))
    names = tuple(filter(None, map(paper.timm_name, paper_models()))) if paper_table else models or DEFAULT_MODELS
    setting = Setting(device, batch_size or (128 if device.startswith("cuda") else 8), image_size, threads)

    everything = [Candidate(name, engine) for name in names for engine in engines]
    candidates = [c for c in everything if c.obstacle is None]
    skipped = {c: c.obstacle for c in everything if c.obstacle}
    if not candidates:
        raise PolyNeXtError(f"nothing is left to measure: {next(iter(skipped.values()))}.")
    about = setting_of(setting)
    steps = len(candidates) + (sum(map(setting.tells_memory, candidates)) if memory else 0)
    with tqdm(leave=False, disable=None) as bar:

        def progress(step: str) -> None:
            bar.set_description(step)
            bar.update()

        if paper_table:
            bar.total = steps + len(names) * (1 + rounds)
            engine = "eager" if "eager" in engines else engines[0]
            reference = Candidate(str(paper.timm_name(PAPER_REFERENCE)), engine)
            groups = [[c for c in candidates if c.model == name] for name in names]
            found = resuming.read(out, about) if out else []
            for part in resuming.measure_in_parts(reference, groups, setting, rounds, memory, progress, found):
                found.append(part)
                if out:
                    resuming.write(out, about, found)
            measured = resuming.joined(found)
        else:
            bar.total = steps + rounds
            measured = measure(candidates, setting, rounds, candidates if memory else (), progress)

    record: dict[str, Any] = {"setting": about, "measurements": [m.to_json() for m in measured]}
    if json:
        print(jsonlib.dumps(record, indent=2))
    else:
        print(", ".join(f"{key} {value}" for key, value in record["setting"].items() if key != "command"))
        print()
        for engine in engines if paper_table else ():
            of_engine = [m for m in measured if m.candidate.engine == engine]
            print("\n".join([f"{engine}:", paper_comparison(of_engine), *leaders(of_engine), ""]))
        for remark in paper.remarks(paper_models()) if paper_table else ():
            print(remark)
        if not paper_table:
            print(comparison(measured))
        for candidate, reason in skipped.items():
            print(f"{candidate.model} {candidate.engine}: not measured, {reason}")
    if out and not paper_table:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(jsonlib.dumps(record, indent=2))
    if plot:
        draw(plot, measured, where=f", {device}")


def devices() -> list[str]:
    count = torch.cuda.device_count()
    return ["cpu", *(["cuda"] if count else []), *(f"cuda:{i}" for i in range(count))]


def setting_of(setting: Setting) -> dict[str, Any]:
    device = torch.cuda.get_device_name(setting.device) if setting.device.startswith("cuda") else platform.processor()
    return {
        "device": f"{setting.device} ({device or platform.machine()})",
        "batch": setting.batch_size,
        "image size": setting.image_size or "each model's own",
        "threads": setting.threads or torch.get_num_threads(),
        "torch": torch.__version__,
        "timm": timm.__version__,
        "polynext": polynext.__version__,
        "command": " ".join(["polynext", *sys.argv[1:]]),
    }


def comparison(measured: Sequence[Measurement]) -> str:
    first = measured[0]
    rows = [
        (
            m.candidate.model,
            m.candidate.engine,
            f"{m.parameters / 1e6:.2f}",
            gigamacs(m.macs),
            f"{m.throughput:.4g}",
            percent(m.batch.spread),
            f"{m.throughput / first.throughput:.2f}",
            *latency(m.single),
            megabytes(m),
            figure(paper.published_figure(m.candidate.model, "imagenet")),
        )
        for m in measured
    ]
    header = ("model", "engine", "params (M)", "GMACs", "images/s", "spread", "ratio", "latency (ms)", "spread")
    return table((*header, "memory (MB)", "paper's top-1"), rows, left=(0, 1))


def latency(single: Timing | None) -> tuple[str, str]:
    return ("-", "-") if single is None else (f"{1000 * single.median:.4g}", percent(single.spread))


def paper_models() -> list[str]:
    return [row["model"] for row in paper.rows("S4")]


def paper_comparison(measured: Sequence[Measurement]) -> str:
    """Table S4 with our figures beside it. Ratios to ConvFormer-S18 can be compared, the rest is another machine's."""
    ours = {m.candidate.model: m for m in measured}
    published = {row["model"]: row for row in paper.rows("S4")}
    reference = ours.get(str(paper.timm_name(PAPER_REFERENCE)))
    rows = []
    for model, row in published.items():
        printed = (
            f"{row['throughput']}",
            f"{row['throughput'] / published[PAPER_REFERENCE]['throughput']:.2f}",
            f"{row['memory']}",
        )
        m = ours.get(str(paper.timm_name(model)))
        if m is None:
            rows.append((model, f"{row['params']:g}", f"{row['flops']:g}", *printed, "not measured", "", "", ""))
            continue
        ratio = f"{m.throughput / reference.throughput:.2f}" if reference else "-"
        found = (f"{m.throughput:.4g}", percent(m.batch.spread), ratio)
        rows.append((model, f"{m.parameters / 1e6:.1f}", f"{m.macs / 1e9:.1f}", *printed, *found, megabytes(m)))
    header = ("model", "params (M)", "GMACs", "paper images/s", "ratio", "MB")
    return table((*header, "here images/s", "spread", "ratio", "MB"), rows)


def percent(share: float) -> str:
    return "-" if share != share else f"{100 * share:.0f}%"


def megabytes(m: Measurement) -> str:
    return "-" if m.memory is None else f"{m.memory / 2**20:.0f}"


def figure(value: float | None) -> str:
    return "-" if value is None else f"{value}"
