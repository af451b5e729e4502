"""`polynext info`: what a bug report should contain."""

import importlib.metadata
import json as jsonlib
import os
import platform
from importlib.util import find_spec
from pathlib import Path

import psutil

from polynext.extras import EXTRAS, install_command
from polynext.tables import table

# Distributions whose versions matter, besides polynext itself.
PACKAGES = ("torch", "torchvision", "timm", "numpy", "tenseal", "polynext-native", "onnxruntime", "openvino", "ray")

Rows = dict[str, str]


def main(json: bool = False) -> None:
    """Show versions, devices, encryption engines and caches. Paste it into a bug report.

    Args:
        json: print JSON.
    """
    sections = {
        "versions": versions(),
        "machine": machine(),
        "extras": extras(),
        "encryption": engines(),
        "caches": caches(),
    }
    if json:
        print(jsonlib.dumps(sections, indent=2))
        return
    print("\n\n".join(table((title, ""), list(rows.items()), left=(0, 1)) for title, rows in sections.items()))


def versions() -> Rows:
    """Versions of Python, this package and those that it builds on."""
    from polynext import __version__

    found = {"polynext": f"{__version__} ({Path(__file__).parents[1]})", "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def machine() -> Rows:
    """The system, its processor and memory, and the devices that PyTorch sees."""
    cores = f"{os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.1f} GiB of memory"
    found = {"system": platform.platform(), "processor": f"{platform.machine()}, {cores}"}
    if find_spec("torch"):
        import torch

        found["instructions"] = torch.backends.cpu.get_cpu_capability()
        found["threads"] = str(torch.get_num_threads())
        gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        if torch.backends.mps.is_available():
            gpus.append("Apple MPS")
        found["GPUs"] = ", ".join(gpus) or "none"
    return found


def extras() -> Rows:
    """The optional features, and the command that installs those that are missing."""
    found = {}
    for extra, modules in EXTRAS.items():
        missing = [module for module in modules if find_spec(module) is None]
        found[extra] = f"missing {', '.join(missing)}: {install_command(extra)}" if missing else "installed"
    return found


def engines() -> Rows:
    """What encrypts and what evaluates."""
    if find_spec("tenseal") is None:
        return {"SEAL": "not installed"}
    from polynext.encrypted.runtime.backends.seal import own_version

    found = {"SEAL": ".".join(map(str, own_version())), "native evaluator": "not installed"}
    if find_spec("polynext_native"):
        import polynext_native

        found["native evaluator"] = ", ".join(polynext_native.instruction_sets())
    return found


def caches() -> Rows:
    """Folders that grow, with their sizes, and whether they may be removed."""
    if find_spec("platformdirs") is None:
        return {}
    import platformdirs

    cache, data = platformdirs.user_cache_path("polynext"), platformdirs.user_data_path("polynext")
    folders = {
        "prepared networks and calibration": (cache, "may be removed: made again when needed"),
        "keys of clients": (data / "keys", "contains secret keys; may be removed when no answer is awaited"),
        "data of the service": (data / "service", "may be removed while no service runs"),
    }
    return {
        name: f"{folder}: {size(folder) / 2**20:,.0f} MiB, {what}" if folder.is_dir() else f"{folder}: empty"
        for name, (folder, what) in folders.items()
    }


def size(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
