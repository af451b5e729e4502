"""`polynext models`.

Counting takes PyTorch and ten seconds, so the counts ship as `models.json`. After a change of the models,
`python -m polynext.cli.models` writes it again.
"""

import fnmatch
import json as jsonlib
from pathlib import Path
from typing import Annotated, Any

import tyro

from polynext.errors import PolyNeXtError
from polynext.tables import table

FILE = Path(__file__).with_name("models.json")
DATA = {"imagenet": "in1k", "cifar10": "cifar10", "svhn": "svhn", "tiny-imagenet": "tiny_imagenet"}  # and their tags


def main(pattern: Annotated[str, tyro.conf.Positional] = "*", json: bool = False, plot: Path | None = None) -> None:
    """List the models: size, cost, kind, depth and degree, and the available weights with accuracy and licence.

    Activation-free models have no activation functions. Fully polynomial models have no LayerNorm either: their
    inference is additions and multiplications only. Models with polynomial mixers keep the activation functions of
    their other parts. The degree is that of the whole network as a polynomial of the image, without norms.

    Weights in1k are trained on ImageNet-1K. The accuracy of weights is the paper's, or for weights that ship with the
    package the one measured after training. Models without weights have the paper's accuracy on ImageNet.

    Args:
        pattern: names of models, such as 'apolynext_*', '*_bn' or 'monet*'.
        json: print JSON, with exact counts and all of the paper's accuracies.
        plot: also draw the paper's scaling figure, accuracy against parameters and FLOPs, to this file.
    """
    if plot:
        from polynext.experiments.report import save_figure
        from polynext.experiments.speed.figures import draw

        save_figure(draw(), plot)
    models = jsonlib.loads(FILE.read_text())
    chosen = [model for model in models if fnmatch.fnmatch(model["name"], pattern)]
    if not chosen:
        raise PolyNeXtError(f"no model matches {pattern!r}: try '*tiny*' or '*_bn'.")
    if json:
        print(jsonlib.dumps(chosen, indent=2))
        return
    header = ("model", "params", "MACs", "pixels", "kind", "layers", "degree", "weights", "top-1", "licence")
    print(table(header, [row for model in chosen for row in rows(model)], left=(0, 4, 7, 9)))


def rows(model: dict[str, Any]) -> list[tuple[str, ...]]:
    """A model's rows, one for each of its weights."""
    channels, side, _ = model["input_size"]
    about = (
        model["name"],
        short(model["parameters"]),
        short(model["macs"]),
        f"{side} grey" if channels == 1 else str(side),
        model["kind"],
        "-" if model["layers"] is None else str(model["layers"]),
        "-" if model["log2_degree"] is None else f"2^{model['log2_degree']:.3g}",
    )
    if not model["weights"]:
        return [(*about, "-", str(model["published_top1"].get("imagenet", "-")), "-")]
    weights = [(tag, f"{top1:.1f}", model["license"]) for tag, top1 in model["weights"].items()]
    return [(*about, *weights[0]), *(("",) * len(about) + more for more in weights[1:])]


def short(count: int) -> str:
    """A number with three digits and a unit, such as 25.7M."""
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= unit:
            return f"{count / unit:.3g}{name}"
    return str(count)


def summarise(name: str) -> dict[str, Any]:
    """The properties of a model that are known without running it, as `models.json` has them."""
    import timm

    from polynext import paper
    from polynext.models.checkpoints import read_metadata
    from polynext.models.costs import count_macs, count_parameters
    from polynext.models.published import SHIPPED, shipped_weights
    from polynext.models.registry import KINDS

    model = timm.create_model(name, device="meta")
    input_size = model.pretrained_cfg["input_size"]
    published = {data: top1 for data, top1 in paper.accuracies().get(name, {}).items() if data in DATA}
    weights = {}
    for tagged in timm.list_pretrained(f"{name}.*"):
        tag = tagged.partition(".")[2]
        if tagged in SHIPPED and (file := shipped_weights(tagged)):
            weights[tag] = float(read_metadata(file)["test_accuracy"])
        else:
            weights[tag] = next(top1 for data, top1 in published.items() if DATA[data] == tag)
    return {
        "name": name,
        "parameters": count_parameters(model),
        "macs": count_macs(model, input_size),
        "input_size": list(input_size),
        "weights": weights,
        "license": model.pretrained_cfg.get("license"),
        "published_top1": published,
        "kind": KINDS[name],
        "fully_polynomial": KINDS[name] == "fully polynomial",
        "layers": getattr(model, "num_layers", None),
        "log2_degree": getattr(model, "log2_degree", None),
    }


if __name__ == "__main__":
    from polynext.models import list_models

    lines = [jsonlib.dumps(summarise(name)) for name in list_models()]
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n")
