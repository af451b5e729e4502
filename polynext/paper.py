"""The paper's figures, to stand beside what is measured. They live in `paper.toml`, table by table."""

import functools
import math
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# The tables that give accuracies alone, by data set.
ACCURACY_TABLES = ("2", "S5")


@functools.cache
def paper() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text())


def rows(table: str, part: str = "rows") -> list[dict[str, Any]]:
    """The rows of a table, "1" to "7" or "S4" and so on, each from column to figure; nan where the paper has none.

    `part` "text" are figures that the paper gives in the text beside the table.
    """
    content = paper()[f"table_{table}"]
    return [dict(zip(content["columns"], row, strict=True)) for row in content.get(part, [])]


def main_results() -> list[dict[str, Any]]:
    """Table 1: every model with its size, cost and ImageNet accuracy."""
    return rows("1", "conv") + rows("1", "attention")


def weights_name(model: str, data: str = "imagenet") -> str | None:
    """What timm calls a model of the paper, with the tag of the weights that its figure on a data set is of.

    Without a tag where no such weights are published; None if timm does not have the model.
    """
    name = paper()["names"].get(model)
    return name and name.replace("*", data.replace("-", "_"))


def timm_name(model: str) -> str | None:
    """What timm calls a model of the paper; None if it does not have it."""
    name = weights_name(model)
    return name and name.split(".")[0]


def remarks(models: Iterable[str]) -> list[str]:
    """What has to be said where figures of these models, as the paper calls them, stand beside ours."""
    families = dict.fromkeys(model.split("-")[0] for model in models)
    return [paper()["remarks"][family] for family in families if family in paper()["remarks"]]


@functools.cache
def accuracies() -> dict[str, dict[str, float]]:
    """For each model, by timm's name, its figure on each data set.

    Per cent right, but of imagenet-c the mCE, and of ade20k the mIoU of UPerNet on it.
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
    """What the paper reports for a model, by timm's name, on a data set, and the weights that this is of."""
    bare = model.split(".")[0]
    figure = accuracies().get(bare, {}).get(data)
    if figure is None:
        return None
    known = next(printed for printed in paper()["names"] if timm_name(printed) == bare)
    return figure, str(weights_name(known, data))


def published_figure(model: str, data: str) -> float | None:
    """What the paper reports for a model on a data set; None if it does not, or for weights of another tag."""
    found = figure_of(model, data)
    return found[0] if found and model in (found[1], found[1].split(".")[0]) else None
