"""Which room may import which."""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import polynext

ROOT = Path(polynext.__file__).parent
ROOMS = {
    "nn": set(),
    "models": {"nn"},
    "acceleration": {"nn", "models"},
    "circuit": {"models", "nn"},
    "data": set(),
    "training": {"nn", "models", "acceleration", "data"},
    "evaluation": {"models", "acceleration", "data", "runs"},
    "encrypted": {"circuit", "runs"},
    "service": {"encrypted"},
    "segmentation": {"models", "acceleration", "data", "training"},
    "recipes": {"training", "models", "data"},
    "experiments": {
        "models", "acceleration", "export", "data", "training", "recipes", "evaluation", "segmentation", "encrypted",
        "runs",
    },
}  # fmt: skip
# Single files above the rooms or below them; those below may be imported by all.
ABOVE = {
    "runs": {"data", "models", "training"},
    "export": {"models", "acceleration"},
    "__main__": {"cli"},
    "__init__": {"models"} | set(ROOMS),
}
BELOW = {"distributed", "errors", "extras", "files", "memory", "paper", "preprocessing", "threads"}
THIRD_PARTY = {"nn": {"torch"}, "models": {"torch", "timm", "safetensors"}}


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if node.module == "polynext":
                found |= {f"polynext.{alias.name}" for alias in node.names}
    return found


def rooms_of(file: Path) -> set[str]:
    return {name.split(".")[1] for name in imports(file) if name.startswith("polynext.")} - BELOW - {"__version__"}


# timm asks a model for a method that changes how it runs: the one import against the direction, inside that method.
AGAINST = {"models/backbone.py": {"acceleration"}}


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_one_way(room: str) -> None:
    for file in (ROOT / room).rglob("*.py"):
        allowed = ROOMS[room] | {room} | AGAINST.get(str(file.relative_to(ROOT)), set())
        assert rooms_of(file) <= allowed, file


@pytest.mark.parametrize("file", [*(ROOT / "nn").glob("*.py"), ROOT / "models" / "network.py"], ids=lambda f: f.name)
def test_formulas_do_not_know_how_they_are_run(file: Path) -> None:
    words = ["torch.jit", "torch.compiler", "tracing", "autocast", "_apply", "logging", "device.type", "grad_enabled"]
    assert not [word for word in words if word in file.read_text()]


def test_files_outside_the_rooms_know_their_place() -> None:
    for file in ROOT.glob("*.py"):
        assert rooms_of(file) <= ({"runs"} if file.stem == "__init__" else set()) | ABOVE.get(file.stem, set()), file
        assert file.stem in BELOW | ABOVE.keys(), file


@pytest.mark.parametrize("room", THIRD_PARTY)
def test_operators_need_torch_alone(room: str) -> None:
    for file in (ROOT / room).rglob("*.py"):
        packages = {name.split(".")[0] for name in imports(file)} - set(sys.stdlib_module_names) - {"polynext"}
        assert packages <= THIRD_PARTY[room], file


def test_every_room_is_known() -> None:
    folders = {f.name for f in ROOT.iterdir() if f.is_dir() and f.name != "__pycache__"}
    assert folders == set(ROOMS) | {"cli"}


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_a_server_needs_no_torch() -> None:
    loads = "import sys, polynext.circuit, polynext.encrypted, polynext.cli.encrypted"
    heavy = ("torch", "timm", "tenseal")
    assert python(f"{loads}; print([name for name in {heavy} if name in sys.modules])") == "[]"


def test_an_encryption_library_is_imported_by_its_backend_alone() -> None:
    files = [file for file in ROOT.rglob("*.py") if any(name.split(".")[0] == "tenseal" for name in imports(file))]
    assert files == [ROOT / "encrypted" / "runtime" / "backends" / "seal.py"]


@pytest.mark.parametrize("order", ["polynext, timm", "timm, polynext"])
def test_timm_knows_the_models_in_either_order_of_import(order: str) -> None:
    assert python(f"import {order}; print(timm.is_model('cpolynext_small'), polynext.create_model.__name__)") == (
        "True create_model"
    )


FRONTS = ["polynext", *(f"polynext.{room}" for room in ROOMS)]


@pytest.mark.parametrize("front", FRONTS)
def test_a_front_shows_what_it_exports_and_says_what_it_is(front: str) -> None:
    module = importlib.import_module(front)
    assert module.__doc__ and list(module.__all__) == sorted(module.__all__, key=front_order)
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        member = getattr(module, name)
        if inspect.isclass(member) or inspect.isfunction(member):
            assert inspect.getdoc(member), f"{front}.{name} has no docstring"


def front_order(name: str) -> tuple[int, str]:
    """Constants, classes, functions: as ruff sorts them."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name
