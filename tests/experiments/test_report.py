"""The report of an experiment: the same rows as text, Markdown and JSON, and a figure."""

import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from polynext.errors import PolyNeXtError
from polynext.experiments.report import Report, bullets, save_figure
from polynext.tables import markdown_table, table

ROWS = [("a", "1"), ("bcd", "22")]


def test_tables_align_their_columns() -> None:
    assert table(("name", "n"), ROWS).splitlines() == ["name   n", "----  --", "a      1", "bcd   22"]
    assert markdown_table(("name", "n"), ROWS).splitlines()[1:3] == ["| --- | ---: |", "| a | 1 |"]


def test_all_forms_have_title_rows_and_notes(tmp_path: Path) -> None:
    notes = bullets("Failed", ["b: too large"]) + bullets("Not run", [])
    record = {"rows": [1, 22]}
    report = Report(title="Sizes", columns=("name", "n"), rows=ROWS, notes=notes, record=record, draw=Figure)
    assert report.text() == f"Sizes\n\n{table(('name', 'n'), ROWS)}\n\nFailed:\n\n- b: too large"
    files = report.write(tmp_path / "new", "sizes")
    assert [file.name for file in files] == ["sizes.md", "sizes.json", "sizes.png"]
    page = files[0].read_text()
    assert page.startswith("# Sizes\n\n| name | n |\n") and "![Sizes](sizes.png)" in page
    assert page.endswith("Failed:\n\n- b: too large\n")
    assert json.loads(files[1].read_text()) == record
    assert files[2].read_bytes().startswith(b"\x89PNG")


def test_a_report_without_a_figure_writes_none(tmp_path: Path) -> None:
    files = Report(title="Sizes", columns=("name", "n"), rows=ROWS).write(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(files) == [tmp_path / "report.json", tmp_path / "report.md"]


def test_a_figure_needs_the_name_of_an_image(tmp_path: Path) -> None:
    with pytest.raises(PolyNeXtError, match="has an unknown image format: use a name"):
        save_figure(Figure(), tmp_path / "figure.text")
