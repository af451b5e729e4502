"""The claims in the paper's text, computed from its own tables, and from our networks where the tables do not say."""

from collections.abc import Callable, Iterable

from polynext import paper
from polynext.experiments.reproduction.entries import Entries, Entry
from polynext.experiments.reproduction.setup import Setup
from polynext.models import create_model

METAFORMERS = {"S": "S18", "B": "S36", "L": "M36"}  # by the size of ours
PRIORS = {"T": ("MONet-T", "DTTN-T"), "S": ("MONet-S", "DTTN-S"), "B": ("DTTN-B",)}


def claims(setup: Setup) -> Entries:
    for row in paper.rows("claims"):
        yield Entry(row=row["claim"], column="figure", printed=row["figure"], found=CLAIMS[row["claim"]]())


def figure(table: str, column: str, model: str) -> float:
    listed = paper.main_results() + paper.rows("1", "text") if table == "1" else paper.rows(table)
    return float(next(row[column] for row in listed if row["model"] == model))


def ratio(column: str, ours: str, theirs: str, table: str = "1") -> float:
    return figure(table, column, ours) / figure(table, column, theirs)


def share(column: str, ours: str, theirs: str) -> Callable[[], str]:
    return lambda: f"{100 * ratio(column, ours, theirs):.0f}%"


def fewer(column: str, ours: str, theirs: str) -> Callable[[], str]:
    return lambda: f"{100 * (1 - ratio(column, ours, theirs)):.0f}% fewer"


def points(table: str, column: str, ours: str, theirs: str) -> Callable[[], str]:
    return lambda: f"{figure(table, column, ours) - figure(table, column, theirs):+.1f}"


def between(values: Iterable[float], form: str = ".0f") -> str:
    found = list(values)
    return f"{min(found):{form}} to {max(found):{form}}"


def ahead_of_priors() -> str:
    pairs = [("T", "DTTN-T"), ("S", "DTTN-S"), ("B", "DTTN-B"), ("B", "MONet-S"), ("T", "MONet-T")]
    return between((figure("1", "top1", f"CPolyNeXt-{size}") - figure("1", "top1", one) for size, one in pairs), ".1f")


def memory_saved() -> str:
    pairs = [
        (f"{kind[0]}PolyNeXt-{size}", f"{kind}-{theirs}")
        for kind in ("ConvFormer", "CAFormer")
        for size, theirs in METAFORMERS.items()
    ]
    return f"{between(100 * (1 - ratio('memory', *pair, table='S4')) for pair in pairs)}% less"


def memory_of_priors() -> str:
    pairs = [(f"CPolyNeXt-{size}", prior) for size, priors in PRIORS.items() for prior in priors]
    return f"{between(100 * ratio('memory', *pair, table='S4') for pair in pairs)}%"


def tiny_throughput() -> str:
    return between(figure("S4", "throughput", f"{kind}PolyNeXt-T") for kind in "CA")


def layers() -> str:
    return str(create_model("cpolynext_large", device="meta").num_layers)


CLAIMS: dict[str, Callable[[], str]] = {
    "top-1 ahead of prior polynomial networks of the same group": ahead_of_priors,
    "CPolyNeXt-S and DTTN-B: top-1": points("1", "top1", "CPolyNeXt-S", "DTTN-B"),
    "CPolyNeXt-S and DTTN-B: parameters": fewer("params", "CPolyNeXt-S", "DTTN-B"),
    "CPolyNeXt-S and DTTN-B: FLOPs": fewer("flops", "CPolyNeXt-S", "DTTN-B"),
    "CPolyNeXt-B and UniConvNet-S: parameters": share("params", "CPolyNeXt-B", "UniConvNet-S"),
    "CPolyNeXt-L and MogaNet-L: parameters": share("params", "CPolyNeXt-L", "MogaNet-L"),
    "CPolyNeXt-L and ConvFormer-B36: parameters": share("params", "CPolyNeXt-L", "ConvFormer-B36"),
    "APolyNeXt-B and TransNeXt-Small: parameters": share("params", "APolyNeXt-B", "TransNeXt-Small"),
    "CPolyNeXt-S BN and MONet-T BN: top-1": points("7", "imagenet", "CPolyNeXt-S BN", "MONet-T BN"),
    "CPolyNeXt-S and ConvFormer-S18: mIoU": points("6", "miou", "CPolyNeXt-S", "ConvFormer-S18"),
    "CPolyNeXt-S and CAFormer-S18: mIoU": points("6", "miou", "CPolyNeXt-S", "CAFormer-S18"),
    "CPolyNeXt-LR and DTTN: Tiny ImageNet": points("S5", "tiny-imagenet", "CPolyNeXt-LR", "DTTN"),
    "memory, compared with MetaFormers of the same size": memory_saved,
    "memory, compared with prior polynomial networks": memory_of_priors,
    "images per second at the Tiny scale": tiny_throughput,
    "layers of the deepest network": layers,
}
