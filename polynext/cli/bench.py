"""`polynext bench`."""

import json as jsonlib
from pathlib import Path
from typing import Annotated

import tyro
from tqdm import tqdm

from polynext import paper
from polynext.errors import PolyNeXtError, require_at_least
from polynext.files import require_place, write_atomically

DEFAULT_MODELS = ("cpolynext_tiny", "apolynext_tiny", "monet_tiny", "convformer_s18", "caformer_s18")


def main(
    models: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
    engines: tuple[str, ...] = (),
    paper_table: Annotated[bool, tyro.conf.arg(name="paper")] = False,
    device: str = "",
    batch_size: int | None = None,
    image_size: int | None = None,
    threads: int = 0,
    rounds: int = 7,
    no_memory: bool = False,
    plot: Path | None = None,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Measure the speed and memory of networks, ours and timm's, in one run.

    All networks take turns, round after round. Compare figures within a run, not between runs. The models of the
    paper's table are measured one by one, each in turns with ConvFormer-S18; with --out, the same command resumes an
    interrupted measurement.
    Memory is that of weights and feature maps, measured in a separate process for each network. It is not measured for
    compiled networks on a CPU, where the compiler's memory would be included.

    Args:
        models: names of models, or shipped networks: mnist, digits, cifar10, cifar10-deep; a few small models by
            default.
        engines: eager, compiled, onnxruntime or openvino, optionally after folded+ or bf16+, as in folded+compiled.
            Eager by default; compiled for the paper's table.
        paper_table: measure the throughput of the models of the paper's Table S4, beside its figures.
        device: cpu, or cuda, cuda:1 and so on; by default the GPU if there is one.
        batch_size: images at a time for throughput; 128 on a GPU and 8 on a CPU by default.
        image_size: side of the images; each model's own by default.
        threads: CPU threads; all by default. A single thread is measured in CPU time, which other load disturbs less.
        rounds: number of turns of each network.
        no_memory: do not measure memory.
        plot: draw accuracy against size, cost and measured speed to this file.
        out: write all results, including the seconds of every turn, to this JSON file.
        json: print JSON instead of a table.
    """
    from polynext.experiments.report import require_figure_path, save_figure
    from polynext.experiments.speed.candidates import Candidate, default_device, default_setting
    from polynext.experiments.speed.figures import draw
    from polynext.experiments.speed.paper_table import measure_paper_models, paper_models
    from polynext.experiments.speed.report import comparison, paper_comparison
    from polynext.experiments.speed.timing import measure
    from polynext.models.published import SHIPPED

    require_at_least(1, rounds=rounds, batch_size=1 if batch_size is None else batch_size)
    require_at_least(1, image_size=1 if image_size is None else image_size)
    require_at_least(0, threads=threads)
    device = device or default_device()
    if device not in (here := devices()):
        raise PolyNeXtError(f"there is no device {device!r} here: give {' or '.join(here)}.")
    if out:
        require_place(out)
    if plot:
        require_figure_path(plot)
    if paper_table and models:
        raise PolyNeXtError("--paper has its own list of models: leave the others out.")
    engines = engines or (("compiled",) if paper_table else ("eager",))
    shipped = {short: tagged for tagged, short in SHIPPED.items()}
    names = paper_models() if paper_table else [shipped.get(name, name) for name in models or DEFAULT_MODELS]
    setting = default_setting(device, batch_size, image_size, threads)
    everything = [Candidate(name, engine) for name in names for engine in engines]
    candidates = [c for c in everything if c.obstacle is None]
    if not candidates:
        raise PolyNeXtError(f"no model is left to measure: {everything[0].obstacle}.")
    steps = len(candidates) + (sum(map(setting.can_measure_memory, candidates)) if not no_memory else 0)
    steps += len(names) * (1 + rounds) if paper_table else rounds
    with tqdm(total=steps, leave=False, disable=None) as bar:

        def progress(step: str) -> None:
            bar.set_description(step)
            bar.update()

        if paper_table:
            measured = measure_paper_models(engines, setting, rounds, not no_memory, out, progress)
        else:
            measured = measure(candidates, setting, rounds, () if no_memory else candidates, progress)

    settings = setting.describe()
    content = jsonlib.dumps({"setting": settings, "measurements": [m.to_json() for m in measured]}, indent=2)
    title = ", ".join(f"{key} {value}" for key, value in settings.items() if key != "command")
    if json:
        print(content)
    elif paper_table:
        reports = [paper_comparison(e, [m for m in measured if m.candidate.engine == e]) for e in engines]
        remarks = paper.remarks(row["model"] for row in paper.rows("S4"))
        print("\n\n".join([title, *(report.text() for report in reports), *remarks]))
    else:
        print(comparison(title, measured).text())
    if not json:
        for c in everything:
            if c.obstacle:
                print(f"{c.model} {c.engine}: not measured, {c.obstacle}")
    if out and not paper_table:
        write_atomically(out, content.encode())
    if plot:
        save_figure(draw(measured, where=f", {device}"), plot)


def devices() -> list[str]:
    """The devices of this machine."""
    import torch

    count = torch.cuda.device_count()
    return ["cpu", *(["cuda"] if count else []), *(f"cuda:{i}" for i in range(count))]
