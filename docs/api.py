"""Writes docs/api.md: every public name, by the room it is imported from. `python docs/api.py`"""

import importlib
import inspect
from pathlib import Path
from typing import Any

import polynext

HERE = Path(__file__).parent
ROOT = HERE.parent
HEADER = """# Every public name

By the module it is imported from; `help()` tells the rest. Written by `python docs/api.py`.
"""


def fronts() -> list[str]:
    rooms = [name for name in polynext.__all__ if inspect.ismodule(getattr(polynext, name))]
    return ["polynext", *(f"polynext.{room}" for room in rooms)]


def page() -> str:
    return HEADER + "".join(section(importlib.import_module(front)) for front in fronts())


def section(module: Any) -> str:
    lines = [f"\n## {module.__name__}\n", first_sentence(module) + "\n", "| name | what |", "|---|---|"]
    members = [(name, getattr(module, name)) for name in module.__all__]
    return "\n".join([*lines, *(row(name, member) for name, member in members if not inspect.ismodule(member))]) + "\n"


def row(name: str, member: Any) -> str:
    if not (inspect.isclass(member) or inspect.isfunction(member)):
        return f"| `{name}` | a {type(member).__name__} |"
    source = Path(inspect.getsourcefile(inspect.unwrap(member)) or "").relative_to(ROOT)
    return f"| [`{name}`](../{source.as_posix()}) | {first_sentence(member)} |"


def first_sentence(member: Any) -> str:
    text = " ".join((inspect.getdoc(member) or "").split("\n\n")[0].split()).replace("|", "\\|")
    return text.split(". ")[0].rstrip(".:") + "."


if __name__ == "__main__":
    (HERE / "api.md").write_text(page())
