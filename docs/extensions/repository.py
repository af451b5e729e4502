"""Links that leave docs/: to the reference where they point at a public name, else to the file in the repository.

The pages are read in the repository too, where `../polynext/nn/polyconv.py#L10` is the line itself.
"""

import inspect
import re
from pathlib import Path
from typing import Any

from reference import fronts, homes, is_value, public_names
from sphinx.application import Sphinx

LINK = re.compile(r"\[([^]]*)\]\(((?:\.\./)+[^)#\s]+)(?:#L(\d+))?\)")
PAGES = {
    "CONTRIBUTING.md": "contributing",
    "CHANGELOG.md": "changelog",
    "SECURITY.md": "security",
    "README.md": "index",
}


def definitions() -> dict[tuple[Path, str], str]:
    """Where each public class and function is defined, and what it is called."""
    found, full = {}, homes()
    for module in fronts():
        for name, member in public_names(module).items():
            if not is_value(member):
                file = Path(inspect.getsourcefile(inspect.unwrap(member)) or "").resolve()
                found[file, name] = full[module.__name__, name]
    return found


def rewrite(app: Sphinx, page: str, content: list[str]) -> None:
    docs = Path(app.srcdir).resolve()
    root = docs.parent
    here = (docs / page).parent
    up = "../" * page.count("/")

    def target(link: re.Match[str]) -> str:
        text, path, line = link.groups()
        file = (here / path).resolve()
        if file.is_relative_to(docs) or not file.is_relative_to(root):
            return link[0]
        inside = file.relative_to(root).as_posix()
        if inside in PAGES:
            return f"[{text}]({up}{PAGES[inside]}.md)"
        if line:
            defined = re.match(r"(?:class|def) (\w+)", file.read_text().splitlines()[int(line) - 1])
            known = app.definitions.get((file, defined[1])) if defined else None
            if known:
                return f"[{text}](#{known})"
        kind = "tree" if file.is_dir() else "blob"
        anchor = f"#L{line}" if line else ""
        return f"[{text}]({app.config.repository}/{kind}/{app.config.repository_branch}/{inside}{anchor})"

    content[0] = LINK.sub(target, content[0])


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("repository", "", "env")
    app.add_config_value("repository_branch", "main", "env")
    app.connect("builder-inited", lambda app: setattr(app, "definitions", definitions()))
    app.connect("source-read", rewrite)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
