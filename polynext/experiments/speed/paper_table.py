"""The models of the paper's Table S4, measured in parts, so that an interrupted measurement can resume.

Each part measures one model in turns with a reference. The reference's speed in each part joins the parts: if the
machine was slow for a while, the reference was slow too.
"""

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from polynext import paper
from polynext.errors import PolyNeXtError
from polynext.experiments.speed.candidates import Candidate, Setting
from polynext.experiments.speed.timing import Measurement, Progress, Timing, measure, no_progress
from polynext.files import write_atomically

REFERENCE = "ConvFormer-S18"

# The reference comes first.
Part = list[Measurement]


def paper_models() -> list[str]:
    """The models of Table S4 that this package or timm has, by timm name."""
    return [name for row in paper.rows("S4") if (name := paper.timm_name(row["model"]))]


def measure_paper_models(
    engines: Sequence[str],
    setting: Setting,
    rounds: int = 7,
    memory: bool = True,
    out: Path | None = None,
    progress: Progress = no_progress,
) -> list[Measurement]:
    """Measures the throughput of all models of Table S4. Stores every part in `out`, and resumes from there."""
    engine = "eager" if "eager" in engines else engines[0]
    reference = Candidate(str(paper.timm_name(REFERENCE)), engine)
    groups = [[Candidate(model, engine) for engine in engines] for model in paper_models()]
    settings = setting.describe()
    parts = read_parts(out, settings) if out else []
    for part in measure_in_parts(reference, groups, setting, rounds, memory, progress, parts):
        parts.append(part)
        if out:
            write_parts(out, settings, parts)
    return joined(parts)


def measure_in_parts(
    reference: Candidate,
    groups: Sequence[Sequence[Candidate]],
    setting: Setting,
    rounds: int,
    memory: bool,
    progress: Progress = no_progress,
    done: Sequence[Part] = (),
) -> Iterator[Part]:
    """Measures each group beside the reference. Skips candidates that are in `done` or cannot run."""
    known = {m.candidate for part in done for m in part}
    for group in groups:
        wanted = [c for c in group if c not in known and c != reference and c.obstacle is None]
        if wanted or not known:
            new = wanted if reference in known else [reference, *wanted]
            yield measure([reference, *wanted], setting, rounds, new if memory else (), progress, latency=False)
            known |= {reference, *wanted}


def joined(parts: Sequence[Part]) -> list[Measurement]:
    """The measurements of all parts, with seconds scaled as if the reference had the same speed in each."""
    seconds = [second for part in parts for second in part[0].batch.seconds]
    usual = statistics.median(seconds)
    found = [replace(parts[0][0], batch=Timing(seconds))]
    for part in parts:
        scale = usual / part[0].batch.median
        found += [replace(m, batch=Timing([scale * second for second in m.batch.seconds])) for m in part[1:]]
    return found


def write_parts(path: Path, settings: dict[str, Any], parts: Sequence[Part]) -> None:
    """Stores the parts of an unfinished measurement."""
    record = {"setting": settings, "parts": [[m.to_json() for m in part] for part in parts]}
    write_atomically(path, json.dumps(record, indent=2).encode())


def read_parts(path: Path, settings: dict[str, Any]) -> list[Part]:
    """The parts that a file has. Raises if they were measured with other settings."""
    if not path.exists():
        return []
    record = json.loads(path.read_text())
    different = [key for key, value in record["setting"].items() if key != "command" and settings.get(key) != value]
    if different or "parts" not in record:
        raise PolyNeXtError(
            f"{path} has measurements with another {different[0] if different else 'list of models'}: "
            "remove it, or write to another file."
        )
    return [[Measurement.from_json(m, settings["batch"]) for m in part] for part in record["parts"]]
