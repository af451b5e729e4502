"""Golden outputs of the published networks.

`<name>.json` lists a published checkpoint's entries and shapes; every entry's value follows from its name, so that a
checkpoint of any size is defined by that list. `<name>.npz` holds what the authors' network answers with it: `logits`
and, per stage, the first 4 channels of the top left 4x4 of the last cell output. `steps_<name>.npz` holds four steps of
their training.
"""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

FOLDER = Path(__file__).parent

# published name: (our name, image size)
NETWORKS = {
    "cpolynext_t": ("cpolynext_tiny", 224),
    "apolynext_s": ("apolynext_small", 224),
    "cpolynext_t_bn": ("cpolynext_tiny_bn", 224),
    "apolynext_t_bn": ("apolynext_tiny_bn", 224),
    "cpolynext_lr_cifar10": ("cpolynext_lowres", 32),
}


def checkpoint(name: str) -> dict[str, torch.Tensor]:
    """A published-layout state dict with the values behind the golden outputs."""
    return filled(shapes(name), name.endswith("_bn"))


def shapes(name: str) -> dict[str, list[int]]:
    return json.loads((FOLDER / f"{name}.json").read_text())


def filled(shapes: dict[str, list[int]], fully_polynomial: bool) -> dict[str, torch.Tensor]:
    """A state dict with these entries and shapes."""
    # Nothing in a fully polynomial network divides by its own magnitude, so smaller kernels keep it from overflowing.
    gain = 0.7 if fully_polynomial else 1.0
    return {key: torch.from_numpy(np.asarray(entry(key, shape, gain))) for key, shape in shapes.items()}


def outputs(name: str) -> dict[str, torch.Tensor]:
    with np.load(FOLDER / f"{name}.npz") as file:
        return {key: torch.from_numpy(file[key]) for key in file}


def steps(name: str) -> dict[str, Any]:
    """Four optimiser steps of the authors' code: settings, `losses`, `grad_norms`, and the first entries of some
    weights `after` them."""
    with np.load(FOLDER / f"steps_{name}.npz") as file:
        return {key: file[key].item() if file[key].ndim == 0 else file[key] for key in file}


def images(size: int, count: int = 2) -> torch.Tensor:
    rng = np.random.Generator(np.random.PCG64(size))
    return torch.from_numpy(rng.standard_normal((count, 3, size, size)).astype(np.float32))


def entry(name: str, shape: list[int], gain: float) -> np.ndarray:
    leaf = name.rsplit(".", 1)[-1]
    if leaf == "num_batches_tracked":
        return np.array(1000, dtype=np.int64)
    if name == "head.2.p":
        return np.array(0.0, dtype=np.float32)
    noise = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode()))).standard_normal(shape)
    attention_scale = leaf == "scale" and "ops" in name
    if leaf == "running_mean":
        value = 0.05 * noise
    elif leaf == "running_var":
        value = (0.8 + 0.4 * np.abs(noise)) * (2.5 if "postprocess" in name else 1.0)
    elif leaf == "running_denom":
        value = shape[2] * (1.0 + 0.2 * np.abs(noise))
    elif leaf == "skip_weight":
        value = -0.5 * np.arange(shape[0]) + 0.1 * noise
    elif attention_scale:
        value = -1.5 + 0.2 * noise
    elif len(shape) >= 2 and leaf == "weight":
        value = gain * noise / np.sqrt(np.prod(shape[1:]))
    elif leaf == "bias":
        value = 0.1 * noise
    else:
        value = 1.0 + 0.1 * noise
    return value.astype(np.float32)
