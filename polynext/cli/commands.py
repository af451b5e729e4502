"""Commands that are chosen by their first argument: `polynext` itself, `polynext segment`, `polynext encrypted`."""

import importlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polynext.errors import suggest

WIDTH = 10


@dataclass(frozen=True)
class Command:
    """A command, which is imported when it is called. It imports torch and timm in its function: --help needs neither.

    Attributes:
        purpose: its line in the help.
        place: a function as `module:attribute`. Its parameters become options, and an integer that it returns the exit
            status. Or an object whose `run` parses the arguments.
    """

    purpose: str
    place: str

    def run(self, name: str, arguments: Sequence[str]) -> int:
        module, attribute = self.place.split(":")
        target: Any = getattr(importlib.import_module(module), attribute)
        if hasattr(target, "run"):
            return target.run(list(arguments))
        import tyro

        status = tyro.cli(
            target, prog=name, args=list(arguments), config=(*readable_help(), tyro.conf.FlagCreatePairsOff)
        )
        return status if isinstance(status, int) else 0


@dataclass(frozen=True)
class Commands:
    """Commands with a common first word."""

    name: str
    purpose: str
    commands: Mapping[str, Command]

    def run(self, arguments: list[str]) -> int:
        """Runs the command of the first argument, and returns its exit status."""
        if not arguments or arguments[0] in ("-h", "--help"):
            print(self.usage())
            return 0
        chosen, *rest = arguments
        if chosen not in self.commands:
            hint = suggest(chosen, self.commands, f"choose one of {', '.join(self.commands)}.")
            print(f"{self.name}: there is no command {chosen!r}: {hint}", file=sys.stderr)
            return 2
        return self.commands[chosen].run(f"{self.name} {chosen}", rest)

    def usage(self) -> str:
        listed = [f"  {name:<{WIDTH}}{command.purpose}" for name, command in self.commands.items()]
        first, last = (
            f"usage: {self.name} COMMAND [OPTIONS]",
            f"{self.name} COMMAND --help lists the options of a command.",
        )
        return "\n".join([first, "", self.purpose, "", *listed, "", last])


def readable_help() -> tuple[Any, ...]:
    """tyro's settings for all commands: options without `{None}|`, positional arguments by name instead of type."""
    from tyro.conf import DisallowNone, PositionalMetavarFromFieldName

    return DisallowNone, PositionalMetavarFromFieldName


def with_options(message: str, by_config: bool = True) -> str:
    """A message with its fields, which are in backticks, as command-line options.

    Commands without a config have --root instead of --data.root.
    """
    if not by_config:
        message = message.replace("`data.root`", "`root`")
    return re.sub(r"`([a-z_]+(?:\.[a-z_]+)*)`", lambda field: f"--{field[1].replace('_', '-')}", message)
