"""Keeps a number in a table on one line with its deviation and unit, as in 98.6 ± 0.7 %."""

import re
from typing import Any

from sphinx.application import Sphinx

SPACE = "\N{NO-BREAK SPACE}"


def keep_together(app: Sphinx, page: str, content: list[str]) -> None:
    def row(line: re.Match[str]) -> str:
        return re.sub(r" (?=± \d|%)|(?<=±) (?=\d)", SPACE, line[0])

    content[0] = re.sub(r"^\|.*$", row, content[0], flags=re.MULTILINE)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", keep_together)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
