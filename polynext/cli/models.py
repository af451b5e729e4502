"""`polynext models`."""

import dataclasses
import fnmatch
import functools
import json as jsonlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from tqdm import tqdm

from polynext.errors import PolyNeXtError
from polynext.paper import accuracies
from polynext.tables import gigamacs, table

CLEAN_DATA = ("imagenet", "cifar10", "svhn", "tiny-imagenet")


@dataclass(frozen=True)
class ModelSummary:
    """The properties of a model that are known without running it."""

    name: str
    parameters: int
    macs: int
    input_size: tuple[int, int, int]
    weights: list[str]
    license: str | None
    published_top1: dict[str, float]
    kind: str
    fully_polynomial: bool
    layers: int | None
    log2_degree: float | None


def main(pattern: Annotated[str, tyro.conf.Positional] = "*", json: bool = False, plot: Path | None = None) -> None:
    """List the models: parameters, multiply-accumulates, available weights, published accuracy, depth and degree.

    Activation-free models have no activation functions. Fully polynomial models have no LayerNorm either: their
    inference is additions and multiplications only. Models with polynomial mixers keep the activation functions of
    their other parts. The degree is that of the whole network as a polynomial of the image, without norms.

    Args:
        pattern: names of models, such as 'apolynext_*', '*_bn' or 'monet*'.
        json: print JSON.
        plot: also draw the paper's scaling figure, accuracy against parameters and FLOPs, to this file.
    """
    from polynext.models import list_models

    if plot:
        from polynext.experiments.report import save_figure
        from polynext.experiments.speed.figures import draw

        save_figure(draw(), plot)
    names = fnmatch.filter(list_models(), pattern)
    if not names:
        raise PolyNeXtError(f"no model matches {pattern!r}: try '*tiny*' or '*_bn'.")
    summaries = [summarise(name) for name in tqdm(names, unit="model", leave=False, disable=None)]
    if json:
        print(jsonlib.dumps([dataclasses.asdict(s) for s in summaries], indent=2))
        return
    columns = list(table_row(summaries[0]))
    print(table(columns, [list(table_row(s).values()) for s in summaries], left=(0, 4, 5, 6, 7)))


def table_row(s: ModelSummary) -> dict[str, str]:
    """The cells of a model's row by their columns."""
    return {
        "model": s.name,
        "parameters": f"{s.parameters:,}",
        "GMACs": gigamacs(s.macs),
        "input": "x".join(map(str, s.input_size)),
        "weights": ", ".join(s.weights) or "-",
        "licence": (s.weights and s.license) or "-",
        "published top-1 (%)": ", ".join(f"{top1} {data}" for data, top1 in s.published_top1.items()) or "-",
        "kind": s.kind,
        "layers": "-" if s.layers is None else str(s.layers),
        "degree": "-" if s.log2_degree is None else f"2^{s.log2_degree:.4g}",
    }


def summarise(name: str) -> ModelSummary:
    import timm

    from polynext.models.costs import count_parameters
    from polynext.models.registry import KINDS

    model = timm.create_model(name, device="meta")
    input_size = model.pretrained_cfg["input_size"]
    return ModelSummary(
        name=name,
        parameters=count_parameters(model),
        macs=macs_of(name.removesuffix("_bn")),
        input_size=input_size,
        weights=[tagged.partition(".")[2] for tagged in timm.list_pretrained(f"{name}.*")],
        license=model.pretrained_cfg.get("license"),
        published_top1={data: top1 for data, top1 in accuracies().get(name, {}).items() if data in CLEAN_DATA},
        kind=KINDS[name],
        fully_polynomial=KINDS[name] == "fully polynomial",
        layers=getattr(model, "num_layers", None),
        log2_degree=getattr(model, "log2_degree", None),
    )


@functools.cache
def macs_of(name: str) -> int:
    """Cached: a fully polynomial model has the same convolutions and matrix products as the one with LayerNorm."""
    import timm

    from polynext.models.costs import count_macs

    model = timm.create_model(name, device="meta")
    return count_macs(model, model.pretrained_cfg["input_size"])
