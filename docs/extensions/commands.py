"""Writes docs/reference/commands.md: what each command says of itself when asked for --help."""

import contextlib
import io
import os
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from polynext.cli import COMMANDS, PURPOSE, main
from polynext.cli.commands import Command, Commands

HEADER = """# Commands

`polynext COMMAND --help` prints what is below. A mistake in what was asked is one sentence and exit status 2.
"""

WIDTH = 92


def leaves(commands: dict[str, Command], prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every command that takes options, with what it is for."""
    for name, command in commands.items():
        module, attribute = command.place.split(":")
        target = getattr(import_module(module), attribute)
        if isinstance(target, Commands):
            yield from leaves(dict(target.commands), (*prefix, name))
        else:
            yield (*prefix, name), command.purpose


def help_of(arguments: tuple[str, ...]) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        main([*arguments, "--help"])
    lines = [wrapped for line in text.getvalue().strip().splitlines() for wrapped in textwrap.wrap(line, WIDTH) or [""]]
    return "\n".join(lines)


def page() -> str:
    os.environ["COLUMNS"] = str(WIDTH)
    sections = [
        f"## polynext {' '.join(name)}\n\n{purpose[0].upper()}{purpose[1:]}.\n\n```text\n{help_of(name)}\n```\n"
        for name, purpose in leaves(COMMANDS)
    ]
    return "\n".join([HEADER, PURPOSE + "\n", *sections])


def setup(app: Sphinx) -> dict[str, Any]:
    def write(app: Sphinx) -> None:
        file = Path(app.srcdir) / "reference" / "commands.md"
        file.parent.mkdir(exist_ok=True)
        text = page()
        if not file.exists() or file.read_text() != text:
            file.write_text(text)

    app.connect("builder-inited", write, priority=600)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
