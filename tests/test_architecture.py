"""Which package may import which, and that no imports form a cycle."""

import ast
import graphlib
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import polynext

ROOT = Path(polynext.__file__).parent

# What each package or file may import, besides BASE and itself. Files at the top of `encrypted` have no compiler.
ALLOWED = {
    "nn": set(),
    "models": {"nn"},
    "acceleration": {"nn", "models"},
    "data": set(),
    "config": {"nn", "models", "acceleration", "data"},
    "runs": {"config", "data", "models"},
    "export": {"models", "acceleration"},
    "training": {"config", "nn", "models", "acceleration", "data"},
    "recipes": {"config", "models", "data"},
    "evaluation": {"models", "acceleration", "data", "runs"},
    "segmentation": {"config", "models", "acceleration", "data", "training"},
    "circuit": set(),
    "encrypted.runtime": set(),
    "encrypted": {"encrypted.runtime"},
    "encrypted.compiler": {"circuit", "encrypted.runtime", "encrypted", "models", "runs"},
    "service": {"encrypted", "encrypted.runtime", "encrypted.compiler"},
    "experiments": {
        "nn", "config", "models", "acceleration", "data", "runs", "export", "training", "recipes", "evaluation",
        "segmentation", "encrypted", "encrypted.runtime", "encrypted.compiler",
    },
}  # fmt: skip
BASE = {
    "arrays", "distributed", "errors", "extras", "files", "memory", "paper", "preprocessing", "schema", "tables",
    "threads",
}  # fmt: skip
FRONT = {"__init__", "__main__", "cli"}  # may import everything
THIRD_PARTY = {
    "nn": {"torch"},
    "models": {"torch", "timm", "safetensors"},
    "encrypted.runtime": {"numpy", "polynext_native", "platformdirs", "tenseal", "compression", "backports"},
    "encrypted": {"numpy", "platformdirs", "httpx", "PIL", "lazy_loader", "annotated_types", "filelock", "pydantic"},
}
# timm asks a model for a method that changes how it runs: the one import against the direction, inside that method.
EXCEPTIONS = {"models/backbone.py": {"acceleration"}}


def package_of(module: str) -> str:
    """`encrypted.compiler` of `polynext.encrypted.compiler.planner`."""
    parts = module.split(".")[1:]
    return ".".join(parts[:2]) if ".".join(parts[:2]) in ALLOWED else parts[0] if parts else "__init__"


def module_of(file: Path) -> str:
    parts = file.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_of(file): file for file in ROOT.rglob("*.py")}


def imports(file: Path, everywhere: bool = True) -> set[str]:
    """The modules that a file imports; without `everywhere`, only those that importing it imports."""
    found = set()
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in FILES else node.module for name in inner}
    return found


def files_of(package: str) -> list[Path]:
    return [file for module, file in FILES.items() if package_of(module) == package]


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_point_one_way(package: str) -> None:
    for file in files_of(package):
        exceptions = EXCEPTIONS.get(str(file.relative_to(ROOT)), set())
        own = {package_of(name) for name in imports(file) if name.startswith("polynext.")}
        assert own <= ALLOWED[package] | BASE | exceptions | {package}, file


@pytest.mark.parametrize("name", sorted(BASE))
def test_base_files_import_only_each_other(name: str) -> None:
    own = {package_of(name) for name in imports(ROOT / f"{name}.py") if name.startswith("polynext.")}
    assert own <= BASE


def test_packages_and_modules_have_no_import_cycles() -> None:
    modules = {name: imports(file, everywhere=False) & FILES.keys() - {name} for name, file in FILES.items()}
    for graph in (ALLOWED, modules):
        try:
            graphlib.TopologicalSorter(graph).prepare()
        except graphlib.CycleError as error:
            raise AssertionError(f"imports form a cycle: {' -> '.join(error.args[1])}") from error


def test_every_package_is_known() -> None:
    assert {package_of(module) for module in FILES} == ALLOWED.keys() | BASE | FRONT - {"__init__"} | {"__init__"}


FORMULAS = [*(ROOT / "nn").glob("*.py"), ROOT / "models" / "network.py", ROOT / "models" / "blocks.py"]


@pytest.mark.parametrize("file", FORMULAS, ids=lambda f: f.name)
def test_formulas_do_not_know_how_they_are_run(file: Path) -> None:
    words = ["torch.jit", "torch.compiler", "tracing", "autocast", "_apply", "logging", "device.type", "grad_enabled"]
    assert not [word for word in words if word in file.read_text()]


@pytest.mark.parametrize("package", THIRD_PARTY)
def test_core_packages_have_few_dependencies(package: str) -> None:
    for file in files_of(package):
        packages = {name.split(".")[0] for name in imports(file)} - set(sys.stdlib_module_names) - {"polynext"}
        assert packages <= THIRD_PARTY[package], file


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_clients_and_servers_need_neither_torch_nor_the_compiler() -> None:
    loads = "import sys; from polynext.encrypted import Client, ClientSpec, RemoteClient, Server, connect"
    heavy = ("torch", "timm", "scipy", "polynext.encrypted.compiler", "polynext.circuit")
    for code in (loads, "import sys, polynext.cli.encrypted.client, polynext.cli.encrypted.server"):
        assert python(f"{code}; print([name for name in {heavy} if name in sys.modules])") == "[]"


WITHOUT_FORK = """
import multiprocessing, multiprocessing.context as context, os
del os.fork, os.sched_getaffinity, context._concrete_contexts["fork"], context.ForkProcess, context.ForkContext
import polynext.encrypted, polynext.encrypted.client, polynext.encrypted.server, polynext.encrypted.remote
import polynext.service, polynext.cli.encrypted.client, polynext.cli.encrypted.server
from polynext.threads import cores
from polynext.service.inference import fork_context
try:
    fork_context()
except polynext.PolyNeXtError as error:
    print(cores() >= 1, error)
"""


def test_clients_servers_and_services_import_on_systems_without_fork() -> None:
    assert python(WITHOUT_FORK).startswith("True this operating system has no fork: ")


def test_an_encryption_library_is_imported_by_its_backend_alone() -> None:
    files = [file for file in ROOT.rglob("*.py") if any(name.split(".")[0] == "tenseal" for name in imports(file))]
    assert files == [ROOT / "encrypted" / "runtime" / "backends" / "seal.py"]


@pytest.mark.parametrize("order", ["polynext, timm", "timm, polynext"])
def test_timm_knows_the_models_in_either_order_of_import(order: str) -> None:
    assert python(f"import {order}; print(timm.is_model('cpolynext_small'), polynext.create_model.__name__)") == (
        "True create_model"
    )


FRONTS = ["polynext", *(f"polynext.{name}" for name in ALLOWED if name not in ("runs", "export"))]


@pytest.mark.parametrize("front", FRONTS)
def test_a_front_shows_what_it_exports_and_says_what_it_is(front: str) -> None:
    module = importlib.import_module(front)
    assert module.__doc__
    orders = (sorted(module.__all__, key=front_order), sorted(module.__all__))  # written by hand, or from a stub
    assert list(module.__all__) in orders
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        member = getattr(module, name)
        if inspect.isclass(member) or inspect.isfunction(member):
            assert inspect.getdoc(member), f"{front}.{name} has no docstring"


def front_order(name: str) -> tuple[int, str]:
    """Constants, classes, functions: as ruff sorts them."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name
