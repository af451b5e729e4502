"""The figures that the paper prints, from `paper.toml`, where they are listed table by table."""

import functools
import math
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ACCURACY_TABLES = ("2", "S5")  # their columns are data sets
ABLATION_TABLES = ("3", "4", "5", "dropin", "dropout")


@functools.cache
def paper() -> dict[str, Any]:
    """The content of paper.toml."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text())


def rows(table: str, part: str = "rows") -> list[dict[str, Any]]:
    """The rows of a table such as "1" or "S4", each as column: figure. Figures that the paper omits are nan.

    With `part` "text", the figures that the text beside the table gives.
    """
    content = paper()[f"table_{table}"]
    return [dict(zip(content["columns"], row, strict=True)) for row in content.get(part, [])]


def main_results() -> list[dict[str, Any]]:
    """Table 1: every model with its size, cost and ImageNet accuracy."""
    return rows("1", "conv") + rows("1", "attention")


def ablation_difference(row: str) -> str:
    """The difference that the paper prints for a row of `polynext.experiments.ablation.ROWS`; "-" if it prints none."""
    printed = {entry["row"]: entry["difference"] for table in ABLATION_TABLES for entry in rows(table)}
    return printed.get(row, "-")


def weights_name(model: str, data: str = "imagenet") -> str | None:
    """The timm name of a model of the paper, with the tag of the weights behind its figure on a data set.

    The name has no tag if these weights are not published; None if timm does not have the model.
    """
    name = paper()["names"].get(model)
    return name and name.replace("*", data.replace("-", "_"))


def timm_name(model: str) -> str | None:
    """The timm name of a model of the paper; None if timm does not have it."""
    name = weights_name(model)
    return name and name.split(".")[0]


def remarks(models: Iterable[str]) -> list[str]:
    """Remarks to print wherever figures of these models, by the paper's names, are compared with ours."""
    families = dict.fromkeys(model.split("-")[0] for model in models)
    return [paper()["remarks"][family] for family in families if family in paper()["remarks"]]


@functools.cache
def accuracies() -> dict[str, dict[str, float]]:
    """The figures of each model, by timm name, on each data set.

    Top-1 accuracy in percent; mCE for imagenet-c; mIoU of UPerNet for ade20k.
    """
    found: dict[str, dict[str, float]] = {}
    listed = [{"model": row["model"], "imagenet": row["top1"]} for row in main_results() + rows("1", "text")]
    listed += [{"model": row["model"], "imagenet": row["imagenet"]} for row in rows("7")]
    listed += [{"model": row["model"], "ade20k": row["miou"]} for row in rows("6") + rows("6", "text")]
    for row in listed + [row for table in ACCURACY_TABLES for row in rows(table) + rows(table, "text")]:
        name = timm_name(row["model"])
        if name is not None:
            figures = {data: figure for data, figure in row.items() if data != "model" and not math.isnan(figure)}
            found.setdefault(name, {}).update(figures)
    return found


def figure_of(model: str, data: str) -> tuple[float, str] | None:
    """The paper's figure for a model, by timm name, on a data set, and the name of the weights behind it."""
    bare = model.split(".")[0]
    figure = accuracies().get(bare, {}).get(data)
    if figure is None:
        return None
    known = next(printed for printed in paper()["names"] if timm_name(printed) == bare)
    return figure, str(weights_name(known, data))


def published_figure(model: str, data: str) -> float | None:
    """The paper's figure for a model on a data set; None if there is none, or if it is of weights with another tag."""
    found = figure_of(model, data)
    return found[0] if found and model in (found[1], found[1].split(".")[0]) else None
