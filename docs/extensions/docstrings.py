"""Docstrings as they are written here: plain sentences, code in `backticks`, formulas indented by themselves.

autodoc reads reStructuredText, where a star, a bar or a trailing underscore between words would mean something.
"""

import re
from typing import Any

from sphinx.application import Sphinx

QUOTED = re.compile(r"(`+[^`]+`+)")
SPECIAL = re.compile(r"[\\*|]|(?<=\w)_(?!\w)")


def rewrite(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    found: list[str] = []
    formula = False
    for number, line in enumerate(lines):
        indented = line.startswith("    ")
        if indented and not formula and number and not lines[number - 1].strip():
            found += [".. code-block:: text", ""]
            formula = True
        elif line.strip() and not indented:
            formula = False
        found.append(line if formula else plain(line))
    lines[:] = found


def plain(line: str) -> str:
    parts = QUOTED.split(line)
    for i, part in enumerate(parts):
        if i % 2:  # one backtick is code here, as in Markdown
            parts[i] = f"``{part.strip('`').strip()}``" if not re.fullmatch(r"`[\w.]+`", part) else part
        else:
            parts[i] = SPECIAL.sub(r"\\\g<0>", part)
    return "".join(parts)


def setup(app: Sphinx) -> dict[str, Any]:
    app.config.default_role = "py:obj"  # a name in backticks leads to what it names, where that is public
    app.connect("autodoc-process-docstring", rewrite, priority=400)  # before napoleon makes fields of `Args:`
    return {"parallel_read_safe": True, "parallel_write_safe": True}
