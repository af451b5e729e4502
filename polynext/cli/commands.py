"""Commands that are chosen by their first argument: `polynext` itself, `polynext segment`, `polynext encrypted`."""

import importlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from polynext.errors import suggest

WIDTH = 10
FORMER_TRAINING = {"--rehearse": "--dry-run"}


@dataclass(frozen=True)
class Command:
    """A command, which is imported when it is called. It imports torch and timm in its function: --help needs neither.

    Attributes:
        purpose: its line in the help.
        place: a function as `module:attribute`. Its parameters become options, and an integer that it returns the exit
            status. Or an object whose `run` parses the arguments.
        former: former names of options, which still work, and their names now.
    """

    purpose: str
    place: str
    former: Mapping[str, str] = field(default_factory=dict)

    def target(self) -> Any:
        """What is at its place."""
        module, attribute = self.place.split(":")
        return getattr(importlib.import_module(module), attribute)

    def run(self, name: str, arguments: Sequence[str]) -> int:
        target = self.target()
        for argument in arguments:
            if (option := argument.split("=")[0]) in self.former:
                print(f"{name}: {option} is now {self.former[option]}", file=sys.stderr)
        arguments = renamed(arguments, self.former)
        if hasattr(target, "run"):
            return target.run(arguments)
        import tyro

        status = tyro.cli(target, prog=name, args=arguments, config=(*readable_help(), tyro.conf.FlagCreatePairsOff))
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


def renamed(arguments: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """The arguments with other names of options."""
    split = [argument.partition("=") for argument in arguments]
    return [names.get(option, option) + equals + value for option, equals, value in split]


def readable_help() -> tuple[Any, ...]:
    """tyro's settings for all commands: options without `{None}|`, positional arguments by name instead of type."""
    from tyro.conf import DisallowNone, PositionalMetavarFromFieldName

    return DisallowNone, PositionalMetavarFromFieldName


def with_options(message: str) -> str:
    """A message with its fields, which are in backticks, as command-line options."""
    message = message.replace("`data.root`", "`root`")  # which all commands have
    return re.sub(r"`([a-z_]+(?:\.[a-z_]+)*)`", lambda field: f"--{field[1].replace('_', '-')}", message)
