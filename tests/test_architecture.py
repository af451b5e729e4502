"""Which room may import which."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import polynext

ROOT = Path(polynext.__file__).parent
ROOMS = {
    "nn": set(),
    "models": {"nn"},
    "circuit": {"models", "nn"},
    "data": set(),
    "training": {"nn", "models", "data"},
    "evaluation": {"models", "data"},
    "encrypted": {"circuit"},
    "bench": {"models"},
    "segmentation": {"models", "data", "training"},
    "ablation": {"nn", "models", "data", "training", "recipes"},
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
        assert rooms <= ROOMS[room] | {room, "errors", "distributed", "memory", "paper", "export", "__version__"}, file


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
    loads = "import sys, polynext.encrypted.server, polynext.encrypted.client, polynext.cli.encrypted"
    assert python(f"{loads}; print([name for name in ('torch', 'timm') if name in sys.modules])") == "[]"


@pytest.mark.parametrize("order", ["polynext, timm", "timm, polynext"])
def test_timm_knows_the_models_in_either_order_of_import(order: str) -> None:
    assert python(f"import {order}; print(timm.is_model('cpolynext_small'), polynext.create_model.__name__)") == (
        "True create_model"
    )
