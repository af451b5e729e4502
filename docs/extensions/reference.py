"""Writes docs/reference: a page for each package, with every public name that can be imported from its front."""

import importlib
import inspect
import typing
from pathlib import Path
from types import ModuleType
from typing import Any

from sphinx.application import Sphinx

import polynext

INDEX = """# API reference

Every public name, by the module it is imported from. What begins with an underscore, or is not listed here, may change
from one release to the next.

| module | what lives there |
|---|---|
{rows}

```{{toctree}}
:hidden:

{pages}
```
"""


def fronts() -> list[ModuleType]:
    packages = [name for name in polynext.__all__ if inspect.ismodule(getattr(polynext, name))]
    return [polynext, *(importlib.import_module(f"polynext.{package}") for package in packages)]


def public_names(module: ModuleType) -> dict[str, Any]:
    members = {name: getattr(module, name) for name in module.__all__}
    return {name: member for name, member in members.items() if not inspect.ismodule(member)}


def homes() -> dict[tuple[str, str], str]:
    """The full name by which each name of each front is documented: that of the first package that has it."""
    found: dict[tuple[str, str], str] = {}
    first: dict[int, str] = {}
    for module in sorted(fronts(), key=lambda module: module is polynext):
        for name, member in public_names(module).items():
            found[module.__name__, name] = first.setdefault(id(member), f"{module.__name__}.{name}")
    return found


def write(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "reference"
    folder.mkdir(exist_ok=True)
    modules = fronts()
    rows = "\n".join(f"| [{m.__name__}]({m.__name__}.md) | {first_sentence(m)} |" for m in modules)
    pages = {"index.md": INDEX.format(rows=rows, pages="\n".join(m.__name__ for m in modules))}
    pages |= {f"{module.__name__}.md": page(module) for module in modules}
    for old in {file.name for file in folder.iterdir()} - set(pages):
        (folder / old).unlink()
    for name, text in pages.items():
        if not (folder / name).exists() or (folder / name).read_text() != text:
            (folder / name).write_text(text)


def page(module: ModuleType) -> str:
    """Values such as tables of recipes last: functions and classes are what one looks for."""
    members = public_names(module)
    ordered = sorted(members, key=lambda name: is_value(members[name]))
    full = {name: path for (front, name), path in homes().items() if front == module.__name__}
    summary = [f"| [`{name}`](#{full[name]}) | {summarise(members[name])} |" for name in ordered]
    here = [name for name in ordered if full[name] == f"{module.__name__}.{name}"]
    entries = "\n".join(entry(full[name], members[name]) for name in here)
    return "\n".join(
        [
            f"# {module.__name__}",
            "",
            inspect.getdoc(module) or "",
            "",
            "| name | what |",
            "|---|---|",
            *summary,
            "",
            "```{eval-rst}",
            entries,
            "```",
            "",
        ]
    )


def entry(path: str, member: Any) -> str:
    if is_value(member):
        return f".. py:data:: {path}\n\n   {describe(member)}\n"
    if inspect.isclass(member):
        bases = "" if member.__bases__ == (object,) else "   :show-inheritance:\n"
        return f".. autoclass:: {path}\n   :members:\n{bases}"
    return f".. autofunction:: {path}\n"


def is_value(member: Any) -> bool:
    return not (inspect.isclass(member) or (callable(inspect.unwrap(member)) and not typing.get_origin(member)))


def describe(member: Any) -> str:
    if isinstance(member, dict | tuple | list):
        names = ", ".join(f"``{name}``" for name in member)
        kind = {dict: "A dictionary by name", tuple: "A tuple", list: "A list"}[type(member)]
        return f"{kind}: {names}."
    return f"A type: ``{member!r}``.".replace("typing.", "").replace("collections.abc.", "")


def summarise(member: Any) -> str:
    return first_sentence(member) if not is_value(member) else describe(member).split(":")[0].rstrip(".") + "."


def first_sentence(member: Any) -> str:
    text = " ".join((inspect.getdoc(member) or "").split("\n\n")[0].split()).replace("|", "\\|")
    return text.split(". ")[0].rstrip(".:") + "."


def forget_what_has_no_source(app: Sphinx, env: Any) -> None:
    """viewcode would list them and write no page."""
    env._viewcode_modules = {name: entry for name, entry in env._viewcode_modules.items() if entry}


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", write)
    app.connect("env-check-consistency", forget_what_has_no_source)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
