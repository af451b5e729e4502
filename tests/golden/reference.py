"""The published networks as functions of a published state dict: a second implementation, to compare ours with.

`manifest` gives the names and shapes of a published checkpoint, by the inverse of the converter.
"""

import math
import re

import torch.nn.functional as F
from torch import Tensor, nn

from polynext.models.published import ATTENTION_STACK, CELL, CONV_STACK, OUTSIDE

Weights = dict[str, Tensor]


def inverse(table: dict[str, str]) -> dict[str, str]:
    return {ours: theirs for theirs, ours in table.items()}


def manifest(model: nn.Module) -> dict[str, list[int]]:
    """The entries and shapes of the published checkpoint of a model."""
    weights = model.state_dict()
    cells = list(dict.fromkeys(m[0] for key in weights if (m := re.match(r"stages\.\d+\.cells\.\d+", key))))
    found: dict[str, list[int]] = {"head.2.p": []}
    for key, value in weights.items():
        owner, leaf = key.rsplit(".", 1)
        shape = list(value.shape)
        if owner in OUTSIDE.values():
            name = f"{inverse(OUTSIDE)[owner]}.{leaf}"
        elif match := re.fullmatch(r"stages\.(\d+)\.downsampling\.(older|newer)(\.[01])?", owner):
            name = f"reductions.{2 * int(match[1]) - 2 + (match[2] == 'newer')}{match[3] or ''}.{leaf}"
        else:
            match = re.fullmatch(r"(stages\.\d+\.cells\.\d+)\.(.+)", key)
            assert match is not None, key
            cell, inside = f"cells.{cells.index(match[1])}", match[2]
            if inside in CELL.values():
                name = f"{cell}.{inverse(CELL)[inside]}"
                shape = shape if inside == "scale.logits" else [1, *shape, 1, 1]
            elif inside.startswith("norm."):
                name = f"{cell}.postprocess.{leaf}"
            else:
                match = re.fullmatch(r"stacks\.(\d+)\.(.+)\.\w+", inside)
                assert match is not None, key
                attention = f"{key.split('.stacks.')[0]}.stacks.0.mixer.w_qkv.weight" in weights
                table, operators = (ATTENTION_STACK, 3) if attention else (CONV_STACK, 6)
                part = match[2]
                if part == "mixer.scale":
                    part, leaf, shape = "mixer", "scale", [1, *shape, 1, 1]
                number, _, rest = inverse(table)[part].partition(".")
                number = str(operators * int(match[1]) + int(number))
                name = ".".join(filter(None, (cell, "ops", number, rest, leaf)))
        if leaf in ("gamma_hw", "running_mean", "running_var"):
            shape = [1, 1, *shape]
        if leaf in ("gamma", "running_row_sum"):
            shape = [1, *shape, 1]
            name = name.replace("running_row_sum", "running_denom")
        found[name] = shape
        if leaf in ("running_var", "running_row_sum"):
            found[f"{name.rsplit('.', 1)[0]}.num_batches_tracked"] = []
    return found


def norm(x: Tensor, w: Weights, name: str) -> Tensor:
    if f"{name}.weight" in w:
        return F.layer_norm(x.permute(0, 2, 3, 1), x.shape[1:2], w[f"{name}.weight"]).permute(0, 3, 1, 2)
    gamma = w[f"{name}.gamma_c"].view(1, -1, 1, 1) * w[f"{name}.gamma_hw"]
    return gamma * (x - w[f"{name}.running_mean"]) / (w[f"{name}.running_var"] + 1e-5).sqrt()


def conv(x: Tensor, w: Weights, name: str, dilation: int = 1, stride: int = 1) -> Tensor:
    """A depthwise convolution if its kernels have one channel."""
    kernel = w[f"{name}.weight"]
    groups = x.shape[1] if kernel.shape[1] == 1 else 1
    padding = dilation * (kernel.shape[-1] // 2)
    return F.conv2d(x, kernel, None, stride, padding, dilation, groups)


def poly_conv(x: Tensor, w: Weights, cell: str, first: int) -> Tensor:
    h = conv(x, w, f"{cell}.ops.{first}")
    product = conv(h, w, f"{cell}.ops.{first + 1}", dilation=2) * conv(h, w, f"{cell}.ops.{first + 2}").flip(1)
    out = f"{cell}.ops.{first + 3}"
    return norm(conv(conv(product, w, f"{out}.0"), w, f"{out}.1"), w, f"{out}.2")


def poly_attention(x: Tensor, w: Weights, cell: str, first: int) -> Tensor:
    name = f"{cell}.ops.{first}"
    qk, v = conv(norm(x, w, f"{name}.0"), w, f"{name}.1.qkv").chunk(2, dim=1)
    scale = w[f"{name}.1.scale"]

    def tokens(t: Tensor) -> Tensor:  # (B, h, N, d)
        return t.flatten(2).unflatten(1, (scale.numel(), -1)).transpose(2, 3)

    q, k, v = (tokens(conv(t, w, f"{name}.1.{i}_conv")) for t, i in ((qk, "q"), (qk, "k"), (v, "v")))
    weights = (scale.sigmoid() * q @ k.transpose(2, 3) + 1) ** 4
    if f"{name}.1.norm.gamma" in w:
        weights = w[f"{name}.1.norm.gamma"] * weights / (w[f"{name}.1.norm.running_denom"] + 1e-6)
    else:
        weights = F.normalize(weights, p=1, dim=-1)
    y = (weights @ v).transpose(2, 3).flatten(1, 2).unflatten(2, x.shape[2:])
    y = conv(y, w, f"{name}.1.final_conv")
    if f"{name}.1.norm2.gamma_c" in w:
        y = norm(y, w, f"{name}.1.norm2")
    return conv(y, w, f"{name}.1.proj")


def poly_mlp(x: Tensor, w: Weights, cell: str, first: int) -> Tensor:
    a, b = conv(x, w, f"{cell}.ops.{first}").chunk(2, dim=1)
    return conv(norm(a * b, w, f"{cell}.ops.{first + 1}.0"), w, f"{cell}.ops.{first + 1}.1")


def run_cell(older: Tensor, newer: Tensor, w: Weights, cell: str, shared: bool) -> Tensor:
    x = w[f"{cell}.preprocess0.scale"] * older + w[f"{cell}.preprocess1.scale"] * newer
    x = norm(x, w, f"{cell}.postprocess")
    scales = w[f"{cell}.skip_weight"].sigmoid()
    attention = f"{cell}.ops.0.1.qkv.weight" in w
    operators = 3 if attention else 6
    for j in range((1 + max(int(k.split(".")[3]) for k in w if k.startswith(f"{cell}.ops."))) // operators):
        mixer, mlp = (j, j + 1) if shared else (2 * j, 2 * j + 1)
        x = x + scales[mixer] * (poly_attention if attention else poly_conv)(x, w, cell, operators * j)
        x = x + scales[mlp] * poly_mlp(x, w, cell, operators * j + operators - 2)
    return x


def downsample(x: Tensor, w: Weights, name: str) -> Tensor:
    if f"{name}.weight" in w:
        return conv(x, w, name, stride=2)
    return conv(conv(x, w, f"{name}.0", stride=2), w, f"{name}.1")


def published_logits(images: Tensor, w: Weights, shared: bool) -> Tensor:
    """Logits of a published network; `shared` for Tiny, whose neighbouring sublayers share a scale."""
    kernel = w["stem.weight"]
    older = newer = F.conv2d(images, kernel, None, 4 if kernel.shape[-1] == 7 else 1, kernel.shape[-1] // 2)
    reduction = 0
    for i in range(sum(key.endswith("skip_weight") for key in w)):
        width = w[f"cells.{i}.preprocess0.scale"].shape[1]
        if newer.shape[1] != width:
            older = downsample(older, w, f"reductions.{reduction}")
            newer = downsample(newer, w, f"reductions.{reduction + 1}")
            reduction += 2
        older, newer = newer, run_cell(older, newer, w, f"cells.{i}", shared)
    left, right = conv(norm(newer, w, "norm"), w, "proj").chunk(2, dim=1)
    pooled = (left + left * right).mean(dim=(2, 3))
    return F.linear(pooled, w["head.3.weight"], w["head.3.bias"])


def initial_scales(size: str) -> list[float]:
    """The initial Sigmoid-Scale logits (Appendix C.4, and the checkpoints for Tiny and low resolution)."""
    halves = [1 / 2, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32]
    return {
        "tiny": [math.log(p / (1 - p)) for p in halves],
        "lowres": halves,
        "small": [-i / 2 for i in range(8)],
        "base": [-i / 2 for i in range(8)],
        "large": [-i / 2 - 0.5 for i in range(8)],
    }[size]
