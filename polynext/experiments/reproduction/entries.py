"""The entries of a table: the figure that the paper prints, and where ours comes from."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from polynext.experiments.reproduction.experiments import Experiment


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One figure of a table: counted, measured by an experiment, computed from its row, or missing.

    Attributes:
        row: heading of its row.
        column: heading of its column.
        printed: the paper's figure; empty if it prints none.
        found: our figure, if it can be counted.
        experiment: the experiment that measures our figure.
        read: reads our figure from the experiment's result.
        unmeasured: why the experiment may not measure this figure.
        from_row: computes our figure from our other figures in the row, by column, if it has all that it needs.
        missing: why there is no figure of ours.
    """

    row: str
    column: str
    printed: str
    found: str = ""
    experiment: Experiment | None = None
    read: Callable[[dict[str, Any]], str] = str
    unmeasured: str = ""
    from_row: Callable[[Mapping[str, str]], str] | None = None
    missing: str = ""


Entries = Iterator[Entry]


def printed(value: Any) -> str:
    """A figure as the paper prints it; empty for nan."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if isinstance(value, float) and math.isnan(value) else str(value)
