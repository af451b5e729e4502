"""The report of an experiment: a table with a title and notes, as plain text, Markdown and JSON, and a figure."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polynext.errors import PolyNeXtError
from polynext.files import require_place, write_atomically
from polynext.tables import markdown_table, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Report:
    """The results of an experiment.

    Attributes:
        title: one line.
        columns: headings of the table.
        rows: cells of the table.
        left: indices of the left-aligned columns.
        notes: paragraphs below the table.
        record: the same results as numbers, for JSON.
        draw: returns the figure, if there is one.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Sequence[int] = (0,)
    notes: Sequence[str] = ()
    record: dict[str, Any] = field(default_factory=dict)
    draw: "Callable[[], Figure] | None" = None

    def text(self) -> str:
        """The report for a terminal."""
        return "\n\n".join([self.title, table(self.columns, self.rows, self.left), *self.notes])

    def markdown(self, figure: str = "") -> str:
        """The report as a Markdown page; `figure` is the file name of its figure."""
        parts = [f"# {self.title}", markdown_table(self.columns, self.rows, self.left)]
        return "\n\n".join([*parts, *([f"![{self.title}]({figure})"] if figure else []), *self.notes]) + "\n"

    def json(self) -> str:
        """The record as JSON."""
        return json.dumps(self.record, indent=2)

    def write(self, folder: Path, name: str = "report") -> list[Path]:
        """Writes NAME.md, NAME.json and, if there is a figure, NAME.png; returns their paths."""
        figure = f"{name}.png" if self.draw else ""
        files = {f"{name}.md": self.markdown(figure), f"{name}.json": self.json()}
        for file, content in files.items():
            write_atomically(folder / file, content.encode())
        if self.draw:
            save_figure(self.draw(), folder / figure)
        return [folder / file for file in (*files, figure) if file]


def bullets(heading: str, lines: Sequence[str]) -> list[str]:
    """A note with a heading and a list; no note if there are no lines."""
    return [f"{heading}:\n\n" + "\n".join(f"- {line}" for line in lines)] if lines else []


def save_figure(figure: "Figure", path: Path) -> None:
    """Writes a figure to a file whose ending names the format."""
    require_figure_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def require_figure_path(path: Path) -> None:
    """Raises if a figure cannot be written to a path."""
    from matplotlib.figure import Figure

    require_place(path)
    if path.suffix[1:] not in Figure().canvas.get_supported_filetypes():
        raise PolyNeXtError(f"{path} has an unknown image format: use a name that ends in .png, .svg or .pdf.")
