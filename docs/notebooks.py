"""Writes every tutorial as a notebook without outputs into docs/notebooks: `python docs/notebooks.py`.

`--figures` also runs the tutorials, or only those named after it, and saves their figures in docs/figures.
"""

import contextlib
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
TUTORIALS = sorted((HERE / "tutorials").glob("*.md"))
NEEDS = re.compile(r"`pip\s+install\s+'\.(\[\w+\])'\s*([^`]*)`")
CODE = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
LOCAL = re.compile(r"\]\((?!http|#)([^)]+)\)")
REPOSITORY = "https://github.com/polynext/polynext"
SITE = f"{REPOSITORY}/blob/main/docs/tutorials/"
INSTALL = """import importlib.util

if importlib.util.find_spec("polynext") is None:  # on Colab, for example
    %pip install -q {packages}"""


def notebook(tutorial: Path) -> str:
    """A notebook with the tutorial's Python blocks as code cells, and everything else as text cells.

    The first cell installs what the tutorial needs.
    """
    text = tutorial.read_text()
    needs = NEEDS.search(text)
    assert needs, f"{tutorial} does not say what to install"
    packages = f"'polynext{needs[1]} @ git+{REPOSITORY}' {' '.join(needs[2].split())}".strip()
    parts = CODE.split(text)
    cells = [cell(part.strip(), code=i % 2 == 1, number=i) for i, part in enumerate(parts) if part.strip()]
    cells.insert(0, cell(INSTALL.format(packages=packages), code=True, number=len(parts)))
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def cell(text: str, code: bool, number: int) -> dict:
    about = {"id": f"part-{number}", "metadata": {}}
    if code:
        return {"cell_type": "code", "execution_count": None, **about, "outputs": [], "source": lines(text)}
    return {"cell_type": "markdown", **about, "source": lines(LOCAL.sub(rf"]({SITE}\1)", text))}


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def notebook_path(tutorial: Path) -> Path:
    return HERE / "notebooks" / f"{tutorial.stem}.ipynb"


def save_figures(names: list[str]) -> None:
    for tutorial in [t for t in TUTORIALS if not names or t.stem in names]:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            exec("\n".join(CODE.findall(tutorial.read_text())), {"__name__": "tutorial"})
            for figure in Path(folder).glob("tutorial_*.png"):
                shutil.copy(figure, HERE / "figures")


if __name__ == "__main__":
    for each in TUTORIALS:
        notebook_path(each).parent.mkdir(exist_ok=True)
        notebook_path(each).write_text(notebook(each))
    if sys.argv[1:2] == ["--figures"]:
        save_figures(sys.argv[2:])
