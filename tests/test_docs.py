"""The documentation: its Python runs, its numbers are as printed, its commands parse, its links lead somewhere."""

import doctest
import functools
import re
import runpy
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import nbformat
import pytest
import timm
from nbclient import NotebookClient

import polynext
from polynext import paper
from polynext.cli import COMMANDS, main
from polynext.cli.commands import Commands

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
WRITTEN = [page for page in sorted(DOCS.rglob("*.md")) if page.parent.name != "reference"]  # that one is generated
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")), *WRITTEN]
NEEDS_SERVICE = DOCS / "serve.md"  # tests/service/test_service.py runs its Python


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if page not in (*TUTORIALS, NEEDS_SERVICE)], ids=name_of)
def test_python_in_the_docs_runs(page: Path, monkeypatch) -> None:
    create = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained=False, **options: create(name, **options))
    names: dict = {}
    for block in blocks(page, "python"):
        exec(block, names)


def test_no_page_marks_python_in_a_way_that_is_not_run() -> None:
    assert not [name_of(page) for page in PAGES if re.search(r"^```(?!python$|pycon$)py", page.read_text(), re.M)]


@pytest.mark.parametrize("page", [page for page in PAGES if ">>> " in page.read_text()], ids=name_of)
def test_numbers_in_the_docs_are_as_printed(page: Path) -> None:
    text = "\n\n".join(blocks(page, "pycon"))
    test = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda p: p.stem)
def test_tutorials_run_as_notebooks(tutorial: Path, tmp_path: Path, monkeypatch) -> None:
    """The notebooks equal the tutorials, run, and save the figure that the tutorial shows."""
    notebooks = runpy.run_path(str(DOCS / "notebooks.py"))
    written = notebooks["notebook_path"](tutorial).read_text()
    assert written == notebooks["notebook"](tutorial), "run `python docs/notebooks.py`"
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin would slow the other tests, and be slowed
    content = nbformat.reads(written, as_version=4)
    NotebookClient(content, timeout=None, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert (tmp_path / f"tutorial_{tutorial.stem}.png").is_file()
    assert (DOCS / "figures" / f"tutorial_{tutorial.stem}.png").is_file()


def test_a_tutorial_runs_as_a_plain_script(tmp_path: Path, monkeypatch) -> None:
    """This one starts processes, which must not run the script again."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "script.py").write_text("\n".join(blocks(DOCS / "tutorials" / "paper.md", "python")))
    ended = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("baseline ") == 1
    assert (tmp_path / "tutorial_paper.png").is_file()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
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


def leaf(arguments: list[str]) -> tuple[Any, Any, str]:
    """The command that arguments name, the module and the attribute it is in."""
    commands: Any = COMMANDS
    for name in arguments:
        module, attribute = commands[name].place.split(":")
        target = getattr(import_module(module), attribute)
        if not isinstance(target, Commands):
            return target, import_module(module), attribute
        commands = target.commands
    raise AssertionError(f"{arguments} name a group of commands")


@pytest.mark.parametrize("arguments", commands(), ids=" ".join)
def test_commands_in_the_docs_parse(arguments: list[str], monkeypatch, capsys) -> None:
    """All options exist and take these values. Training commands are resolved to the config they would run."""
    target, module, attribute = leaf(arguments)
    if hasattr(target, "run"):
        if not any("runs/" in argument for argument in arguments):
            assert main([*arguments, *([] if "--print-config" in arguments else ["--print-config"])]) == 0
            assert "batch_size" in capsys.readouterr().out
    else:
        called = []
        monkeypatch.setattr(module, attribute, functools.wraps(target)(lambda *given, **named: called.append(named)))
        assert main(arguments) == 0
        assert called


def test_model_cards_tell_what_the_weights_and_the_paper_say() -> None:
    for file, text in runpy.run_path(str(DOCS / "cards.py"))["pages"]().items():
        assert (DOCS / "cards" / file).read_text() == text, "run `python docs/cards.py`"


def test_a_release_is_called_the_same_everywhere() -> None:
    (newest,) = re.findall(r"^## ([\d.]+) ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[:1]
    (cited,) = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), flags=re.MULTILINE)
    assert newest == cited == polynext.__version__


def test_published_versions_are_listed_the_newest_first(tmp_path: Path) -> None:
    publish = runpy.run_path(str(DOCS / "publish.py"))["publish"]
    (built := tmp_path / "built").mkdir()
    (pages := tmp_path / "pages").mkdir()
    for ref in ("main", "v0.9.0", "v0.10.0"):
        versions = publish(built, pages, ref)
    assert versions == ["0.10.0", "0.9.0", "latest"]


def test_the_figures_of_the_decision_table_are_those_of_their_sources() -> None:
    """The paper's for accuracy, those of docs/bench.md for cost and speed."""
    rows = r"^\| ([\w-]+|`\w+`) \| (.*) \|$"
    measured: dict[str, list[str]] = {}
    for model, cells in re.findall(rows, (DOCS / "bench.md").read_text(), flags=re.MULTILINE):
        measured.setdefault(str(paper.timm_name(model)), cells.split(" | "))
    found = re.findall(rows, (DOCS / "which.md").read_text().split("## Encrypted")[0], flags=re.MULTILINE)
    table = {model.strip("`"): [cell.strip() for cell in cells.split("|")] for model, cells in found if "`" in model}
    assert len(table) == 10
    for model, (top1, robust, *cost) in table.items():
        published, ours = paper.accuracies()[model], measured[model]
        assert (float(top1), robust) == (published["imagenet"], str(published.get("imagenet-a", "")))
        assert cost == [ours[i] for i in (0, 1, 2, 4, 5, 11)], model


def test_the_figures_in_the_readme_are_the_papers() -> None:
    speed = {row["model"]: row for row in paper.rows("S4")}
    robust = {row["model"]: row for row in paper.rows("2")}
    table = re.findall(r"^\| \**(\w+-S\w*)\** \| (.*) \|$", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert len(table) == 4
    for model, cells in table:
        cost, accuracy = speed[model], robust[model]
        expected = [cost["params"], cost["flops"], accuracy["imagenet"], accuracy["imagenet-a"]]
        assert [float(cell) for cell in cells.split(" | ")] == [*expected, cost["throughput"], cost["memory"]]
