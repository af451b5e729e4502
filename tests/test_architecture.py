"""Which room may import which."""

import ast
from pathlib import Path

import pytest

import polynext

ROOT = Path(polynext.__file__).parent
ROOMS = {
    "nn": set(),
    "models": {"nn"},
    "circuit": {"models", "nn"},
    "data": set(),
    "training": {"models", "data"},
    "evaluation": {"models", "data"},
    "encrypted": {"circuit"},
    "recipes": {"training", "models", "data"},
}
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


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_one_way(room: str) -> None:
    for file in (ROOT / room).rglob("*.py"):
        rooms = {name.split(".")[1] for name in imports(file) if name.startswith("polynext.")}
        assert rooms <= ROOMS[room] | {room, "errors", "distributed", "__version__"}, file


@pytest.mark.parametrize("room", THIRD_PARTY)
def test_operators_need_torch_alone(room: str) -> None:
    import sys

    for file in (ROOT / room).rglob("*.py"):
        packages = {name.split(".")[0] for name in imports(file)} - set(sys.stdlib_module_names) - {"polynext"}
        assert packages <= THIRD_PARTY[room], file


def test_every_room_is_known() -> None:
    folders = {f.name for f in ROOT.iterdir() if f.is_dir() and f.name != "__pycache__"}
    assert folders == set(ROOMS) | {"cli"}
