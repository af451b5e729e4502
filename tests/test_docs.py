"""The documentation: its Python runs, its commands parse, its links lead somewhere."""

import re
import runpy
import shlex
from pathlib import Path

import pytest
import timm

from polynext.cli import COMMANDS, main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_in_the_docs_runs(page: Path, monkeypatch) -> None:
    create = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained=False, **options: create(name, **options))
    names: dict = {}
    for block in blocks(page, "python"):
        exec(block, names)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for text, target in re.findall(r"\[([^]]*)\]\(([^)]+)\)", page.read_text()):
        if target.startswith(("http", "#")):
            continue
        path, _, anchor = target.partition("#")
        assert (page.parent / path).exists(), target
        if anchor.startswith("L"):
            line = (page.parent / path).read_text().splitlines()[int(anchor[1:]) - 1]
            name = re.fullmatch(r"`(?:\w+\.)*(\w+)(?:\(.*\))?`", text)
            named = name[1] if name and "/" not in text else r"\w+"
            assert re.match(rf"(class|def) {named}\b|[A-Z_]+ = ", line), f"{target} points at {line!r}"


def commands() -> list[list[str]]:
    """Every `polynext ...` line in the docs."""
    found = []
    for page in PAGES:
        for block in blocks(page, "bash"):
            lines = block.replace("\\\n", " ").splitlines()
            found += [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("polynext ")]
    return found


@pytest.mark.parametrize("arguments", commands(), ids=" ".join)
def test_commands_in_the_docs_exist(arguments: list[str], capsys) -> None:
    """Training commands are resolved to the config they would run; others at least name a command."""
    assert arguments[0] in COMMANDS
    if "train" in arguments[:2] and not any("runs/" in a for a in arguments):
        assert main([*arguments, *([] if "--print-config" in arguments else ["--print-config"])]) == 0
        assert "batch_size" in capsys.readouterr().out


def test_the_api_reference_lists_every_public_name() -> None:
    api = runpy.run_path(str(ROOT / "docs" / "api.py"))
    assert (ROOT / "docs" / "api.md").read_text() == api["page"](), "run `python docs/api.py`"
