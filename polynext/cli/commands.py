"""Commands that are chosen by their first argument: `polynext` itself, `polynext segment`, `polynext encrypted`."""

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polynext.errors import suggest

WIDTH = 10


@dataclass(frozen=True)
class Command:
    """What it is for, and where it lives, as `module:attribute`; imported only when it is called.

    The attribute is a function, whose parameters become options and whose result, if it is a number, the exit status;
    or something with a `run` that takes the arguments itself.
    """

    purpose: str
    place: str

    def run(self, name: str, arguments: Sequence[str]) -> int:
        module, attribute = self.place.split(":")
        target: Any = getattr(importlib.import_module(module), attribute)
        if hasattr(target, "run"):
            return target.run(list(arguments))
        import tyro

        status = tyro.cli(target, prog=name, args=list(arguments))
        return status if isinstance(status, int) else 0


@dataclass(frozen=True)
class Commands:
    """Commands under a common name."""

    name: str
    purpose: str
    commands: Mapping[str, Command]

    def run(self, arguments: list[str]) -> int:
        """Runs the one that the first argument names, and returns its exit status."""
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
        first, last = f"usage: {self.name} COMMAND [OPTIONS]", f"{self.name} COMMAND --help tells what a command takes."
        return "\n".join([first, "", self.purpose, "", *listed, "", last])
