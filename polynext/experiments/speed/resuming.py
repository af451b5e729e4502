"""Many networks, a few at a time: what took an hour can be interrupted, and what was measured stays.

Each part is a run of its own in which a reference takes turns with what is measured, so that parts can be joined: a
machine that was slow for a while was slow for the reference too.
"""

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from polynext.errors import PolyNeXtError
from polynext.experiments.speed.candidates import Candidate, Setting
from polynext.experiments.speed.timing import Measurement, Timing, measure
from polynext.files import write_atomically

# The reference comes first.
Part = list[Measurement]


def measure_in_parts(
    reference: Candidate,
    groups: Sequence[Sequence[Candidate]],
    setting: Setting,
    rounds: int,
    memory: bool,
    progress: Callable[[str], None] = lambda step: None,
    done: Sequence[Part] = (),
) -> Iterator[Part]:
    """The throughput of each group beside the reference's, but for what is done."""
    known = {m.candidate for part in done for m in part}
    for group in groups:
        wanted = [candidate for candidate in group if candidate not in known and candidate != reference]
        if wanted or not known:
            fresh = wanted if reference in known else [reference, *wanted]
            yield measure([reference, *wanted], setting, rounds, fresh if memory else (), progress, latency=False)
            known |= {reference, *wanted}


def joined(parts: Sequence[Part]) -> list[Measurement]:
    """All parts as one: seconds as if the reference had been equally fast in each."""
    seconds = [second for part in parts for second in part[0].batch.seconds]
    usual = statistics.median(seconds)
    found = [replace(parts[0][0], batch=Timing(seconds))]
    for part in parts:
        pace = usual / part[0].batch.median
        found += [replace(m, batch=Timing([pace * second for second in m.batch.seconds])) for m in part[1:]]
    return found


def write(path: Path, setting: dict[str, Any], parts: Sequence[Part]) -> None:
    record = {"setting": setting, "parts": [[m.to_json() for m in part] for part in parts]}
    write_atomically(path, json.dumps(record, indent=2).encode())


def read(path: Path, setting: dict[str, Any]) -> list[Part]:
    """What a file has of an interrupted measurement; nothing if there is no file."""
    if not path.exists():
        return []
    record = json.loads(path.read_text())
    different = [key for key, value in record["setting"].items() if key != "command" and setting.get(key) != value]
    if different or "parts" not in record:
        raise PolyNeXtError(
            f"{path} holds measurements with another {different[0] if different else 'list of models'}: "
            "remove it, or write to another file."
        )
    return [[Measurement.from_json(m, setting["batch"]) for m in part] for part in record["parts"]]
