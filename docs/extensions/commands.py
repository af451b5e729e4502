"""Writes docs/reference/commands.md: the help of each command, as text and tables."""

import contextlib
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from polynext.cli import COMMANDS, PURPOSE, main
from polynext.cli.commands import Command, Commands
from polynext.tables import markdown_table

HEADER = f"""# Commands

{PURPOSE} `polynext COMMAND --help` prints what is below. A mistake in the arguments is one message and exit status 2.

`source <(polynext --completion bash)` completes commands and options in bash; put the line into `~/.bashrc`. Give `zsh`
in `~/.zshrc`. For fish: `polynext --completion fish > ~/.config/fish/completions/polynext.fish`.
"""


def leaves(commands: dict[str, Command], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command that has options."""
    for name, command in commands.items():
        target = command.target()
        if isinstance(target, Commands):
            yield from leaves(dict(target.commands), (*prefix, name))
        else:
            yield (*prefix, name)


def help_of(arguments: tuple[str, ...]) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        main([*arguments, "--help"])
    return text.getvalue()


def section(arguments: tuple[str, ...]) -> str:
    """A command's help as Markdown: its description, and a table for each group of arguments."""
    intro, *groups = re.split(r"^ (\S.*?) *\n -+ *\n", help_of(arguments), flags=re.MULTILINE)
    usage, _, description = intro.strip().partition("\n\n")
    parts = [f"## polynext {' '.join(arguments)}", f"```text\n{usage}\n```", *map(paragraph, description.split("\n\n"))]
    for title, body in zip(groups[::2], groups[1::2], strict=True):
        about, _, listed = body.rpartition("----\n")
        about = escaped(" ".join(re.sub(r"-{5,}", "", about).split()))
        if table := rows(listed):
            parts += [f"**{title[0].upper()}{title[1:]}.** {about}".rstrip(), table]
    return "\n\n".join(parts) + "\n"


def paragraph(text: str) -> str:
    """A paragraph; one such as `Sets: name: what it is; name: what it is; ...` as a list."""
    intro, *items = escaped(" ".join(text.split())).replace(": ", "; ", 1).split("; ")
    if len(items) < 4:
        return escaped(text)
    return "\n".join([f"{intro}:\n", *(f"- {item.removesuffix('.')}" for item in items)])


def rows(text: str) -> str:
    """The table of a group. An argument begins with two spaces, and its description continues with more."""
    found: list[list[str]] = []
    for line in text.splitlines():
        if match := re.match(r"  (\S.*?)(?:  +(\S.*))?$", line.rstrip()):
            found.append([match[1], match[2] or ""])
        elif line.strip() and found:
            found[-1][1] += f" {line.strip()}"
    listed = [(name, " ".join(what.split())) for name, what in found if "--help" not in name]
    return (
        markdown_table(("argument", "meaning", "default"), [row(*each) for each in listed], left=(0, 1, 2))
        if listed
        else ""
    )


def row(name: str, meaning: str) -> tuple[str, str, str]:
    default = re.search(r" ?\((?:default: (.*?)|(required))\)$", meaning)
    value = (default[1] or default[2] or "") if default else ""
    shown = "" if value in ("None", "''") else value if value in ("required", "") else f"`{value}`"
    return f"`{name}`", escaped(meaning[: default.start()] if default else meaning), shown


def escaped(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([|*_<>])", r"\\\1", text)


def page() -> str:
    os.environ["COLUMNS"] = "100"  # in one column
    return "\n".join([HEADER, *map(section, leaves(COMMANDS))])


def setup(app: Sphinx) -> dict[str, Any]:
    def write(app: Sphinx) -> None:
        file = Path(app.srcdir) / "reference" / "commands.md"
        file.parent.mkdir(exist_ok=True)
        text = page()
        if not file.exists() or file.read_text() != text:
            file.write_text(text)

    app.connect("builder-inited", write, priority=600)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
