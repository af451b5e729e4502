"""The models of the paper's Table S4, measured in parts, so that an interrupted measurement can resume.

Each part measures one model in turns with a reference. The reference's speed in each part joins the parts: if the
machine was slow for a while, the reference was slow too.
"""

import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from polynext import paper
from polynext.errors import PolyNeXtError
from polynext.experiments.speed.candidates import Candidate, Setting
from polynext.experiments.speed.timing import Measurement, Progress, Timing, measure, no_progress
from polynext.files import read_json, write_atomically

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
    """Measures the throughput of all models of Table S4. Stores every part in `out`, and resumes from there.

    Skips engines that cannot run a model.
    """
    reference = Candidate(str(paper.timm_name(REFERENCE)), "eager" if "eager" in engines else engines[0])
    settings = setting.describe()
    parts = read_parts(out, settings) if out else []
    known = {m.candidate for part in parts for m in part}
    for model in paper_models():
        candidates = [Candidate(model, engine) for engine in engines]
        new = [c for c in candidates if c not in known and c != reference and c.obstacle is None]
        if new or not known:
            of_memory = new if reference in known else [reference, *new]
            part = measure([reference, *new], setting, rounds, of_memory if memory else (), progress, latency=False)
            parts.append(part)
            known |= {reference, *new}
            if out:
                write_parts(out, settings, parts)
    return joined(parts)


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
    record = read_json(path)
    different = [key for key, value in record["setting"].items() if key != "command" and settings.get(key) != value]
    if different or "parts" not in record:
        raise PolyNeXtError(
            f"{path} has measurements with another {different[0] if different else 'list of models'}: "
            "remove it, or write to another file."
        )
    return [[Measurement.from_json(m, settings["batch"]) for m in part] for part in record["parts"]]
