"""Writes docs/cards: what each network with weights is for, how good it is, what it costs. `python docs/cards.py`

Every figure comes from `polynext/paper.toml`, from what a file of weights says of itself, or is counted. The words
about
a data set are below; weights of another one need a word about it, in DATA.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import polynext
from polynext import paper
from polynext.circuit import lower
from polynext.models import PUBLISHED
from polynext.models.checkpoints import read_metadata
from polynext.models.costs import count_macs, count_parameters
from polynext.models.published import HUB, SHIPPED, shipped_weights

HERE = Path(__file__).parent
Rows = list[list[str]]

# What a network in the box was trained on.
DATA = {
    "digits": """scikit-learn's handwritten digits (Alpaydin and Kaynak, 1998): 1,797 grey pictures of 8x8 pixels, of
which
1,433 were learned from and 364 tested on.""",
    "cifar10": """CIFAR-10 (Krizhevsky, 2009): 50,000 training and 10,000 test photographs of 32x32 pixels in ten
classes.""",
}

EMBEDDED_CARD = Template("""# $title

Weights that come with the package: `polynext.load_run("$tagged", pretrained=True)`.

## Intended use

To see encrypted inference work from end to end within seconds, in tutorials, demonstrations and tests, and to try
changes on
a network that is small enough. It is a demonstration and no product: do not decide anything about people by it.

## Data

$data

## Figures

$figures

The best epoch was chosen by the test images themselves, as is usual for these benchmarks: expect a little less on new
pictures. Source: what the file of weights says of itself, written by `polynext train` when it was saved.

## Cost in the clear

$clear

## Cost encrypted

$encrypted

What a run takes on a machine, in seconds and memory, is measured on [the page on encrypted images](../encrypted.md).

## Limits

- It answers any picture with one of its classes, also one that shows none of them.
- Pictures unlike its training pictures may get wrong logits when encrypted:
  [what is protected, and what is not](../encrypted.md#what-is-protected-and-what-is-not).
- Robustness against adversarial changes was not studied.
""")

PUBLISHED_CARD = Template("""# $title

$names

## Intended use

$use

## Data

$data

## Figures

$figures

$source

## Cost in the clear

$clear
## Cost encrypted

$encrypted

## Limits

$limits
""")

COUNTED = """Of one image, counted by `polynext models`; [Measure and export](../bench.md) has measurements of this
implementation."""
TIMED = " Images per second and memory are the paper's (Table S4: NVIDIA RTX 4090, batch 128, compiled)."
IMAGENET = """ImageNet-1K: 1.28 million training photographs in 1,000 classes, 50,000 for validation. It is a picture
of what people
photographed and labelled before 2012, with the gaps and biases that are known of it: places, people and things of North
America and Europe are over-represented, many photographs show people, and some labels are wrong."""
LIMITS = """- Accuracies are of photographs like ImageNet's. On drawings, corrupted or unusual pictures they are
lower: see the figures.
- Not made for, and not tested in, decisions about people, medicine or safety.
- The weights are the authors'; their training was not repeated here. They load strictly, and for five of the
published files
  a test compares the logits with those of the authors' code, to 1e-4 (`pytest tests/models/test_published.py`)."""
SOURCE = """Per cent of right first answers$mce. Source: the paper's $tables, as printed;
`polynext evaluate NAME --pretrained --data SET --root FOLDER` measures them again."""
MCE = ", but of ImageNet-C the mean corruption error, of which less is better"


@dataclass(frozen=True)
class Family:
    """Published networks that share a card."""

    title: str
    models: tuple[str, ...]  # as the paper calls them
    use: str
    tables: str
    encrypted: str
    data: str = IMAGENET
    limits: str = LIMITS


BACKBONE = """Backbones for recognition: to classify photographs, and to start from in detection, segmentation and
fine-tuning. As
timm models they take the place of a ConvNeXt or CAFormer of their size."""
NOT_POLYNOMIAL = """Not possible: their LayerNorms divide by a function of the image. The [fully polynomial
networks](fully_polynomial.md) are the same without."""
FAMILIES = {
    "cpolynext": Family(
        "CPolyNeXt",
        ("CPolyNeXt-T", "CPolyNeXt-S", "CPolyNeXt-B", "CPolyNeXt-L"),
        BACKBONE,
        "Tables 1 and 2",
        NOT_POLYNOMIAL,
    ),
    "apolynext": Family(
        "APolyNeXt",
        ("APolyNeXt-T", "APolyNeXt-S", "APolyNeXt-B", "APolyNeXt-L"),
        BACKBONE,
        "Tables 1 and 2",
        NOT_POLYNOMIAL,
    ),
    "fully_polynomial": Family(
        "Fully polynomial networks",
        ("CPolyNeXt-T BN", "APolyNeXt-T BN", "CPolyNeXt-S BN"),
        """To study networks that are polynomials of the image, and as starting points for smaller ones that run
encrypted.
Where a LayerNorm does no harm, the networks with it are more accurate.""",
        "Table 7",
        """Possible in principle: inference is additions and multiplications. In practice they are far too deep for
encryption
without bootstrapping, which takes at least a level for each product in a row, and SEAL's largest ring has about twenty:

$depths

`polynext circuit NAME` counts further. Networks made for encryption are [in the box](index.md).""",
        limits=LIMITS + "\n- They take images of 224 pixels and no others: their norms keep statistics per position.",
    ),
    "lowres": Family(
        "CPolyNeXt-LR",
        ("CPolyNeXt-LR",),
        "To compare networks on small pictures, trained from scratch: 32 pixels, 64 for Tiny ImageNet.",
        "Table S5",
        NOT_POLYNOMIAL,
        """CIFAR-10 (50,000 training photographs of 32 pixels, ten classes), SVHN (73,257 house numbers of 32 pixels,
ten
digits), Tiny ImageNet (100,000 photographs of 64 pixels, 200 classes). One network was trained on each.""",
    ),
}
SETS = {
    "imagenet": "ImageNet",
    "imagenet-c": "-C (mCE)",
    "imagenet-a": "-A",
    "imagenet-r": "-R",
    "imagenet-sketch": "-Sketch",
    "cifar10": "CIFAR-10",
    "svhn": "SVHN",
    "tiny-imagenet": "Tiny ImageNet",
}


def table(header: list[str], rows: Rows) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def macs(model: Any) -> str:
    count = count_macs(model, model.pretrained_cfg["input_size"])
    return f"{count / 1e9:.1f} G" if count >= 1e8 else f"{count / 1e6:.2f} M"


def embedded_card(tagged: str) -> str:
    about = read_metadata(shipped_weights(tagged))
    data, classes = tagged.split(".")[1], json.loads(about["classes"])
    model = polynext.create_model(tagged, pretrained=True).eval()
    circuit = lower(model)
    config = polynext.load_run(tagged, pretrained=True).config
    figures = [
        ["test accuracy", f"{float(about['test_accuracy']):.2f}%"],
        ["classes", ", ".join(classes)],
        ["trained by", f"`{about['command']}`, seed {config.seed}"],
    ]
    clear = [
        ["parameters", f"{count_parameters(model):,}"],
        ["multiply-accumulates", macs(model)],
        ["pictures", "x".join(map(str, model.pretrained_cfg["input_size"]))],
    ]
    encrypted = [
        ["polynomial degree", f"{circuit.degree():,}"],
        ["products in a row", str(circuit.multiplicative_depth())],
    ]
    return EMBEDDED_CARD.substitute(
        title=tagged,
        tagged=tagged,
        data=DATA[data],
        figures=table(["", ""], figures),
        clear=table(["", ""], clear),
        encrypted=table(["", ""], encrypted),
    )


def published_card(family: Family) -> str:
    names = {model: str(paper.timm_name(model)) for model in family.models}
    figures = {model: paper.accuracies()[name] for model, name in names.items()}
    sets = [data for data in SETS if any(data in found for found in figures.values())]
    rows = [[model, *(f"{found[d]:.1f}" if d in found else "" for d in sets)] for model, found in figures.items()]
    networks = {name: polynext.create_model(name, device="meta") for name in names.values()}
    costs = [[f"`{n}`", f"{count_parameters(m) / 1e6:.1f} M", macs(m)] for n, m in networks.items()]
    header, remark = ["", "parameters", "multiply-accumulates"], COUNTED
    speed = {row["model"]: row for row in paper.rows("S4")}
    if all(model in speed for model in names):
        header, remark = [*header, "images/s", "MB"], COUNTED + TIMED
        costs = [
            [*c, *(f"{speed[m][k]:,}" for k in ("throughput", "memory"))] for c, m in zip(costs, names, strict=True)
        ]
    clear = table(header, costs) + "\n\n" + remark
    degrees = {name: network.log2_degree for name, network in networks.items()}
    depths = [[f"`{name}`", f"2^{degree:.0f}", f"{math.ceil(degree)}"] for name, degree in degrees.items()]
    tags = [tagged for tagged in PUBLISHED if tagged.split(".")[0] in names.values()]
    return PUBLISHED_CARD.substitute(
        title=family.title,
        names=f"The authors' weights, from `{HUB}` on the Hugging Face hub: "
        + ", ".join(f"`{tag}`" for tag in tags)
        + ".",
        use=family.use,
        data=family.data,
        figures=table(["", *(SETS[data] for data in sets)], rows),
        source=Template(SOURCE).substitute(tables=family.tables, mce=MCE if "imagenet-c" in sets else ""),
        clear=clear,
        encrypted=Template(family.encrypted).safe_substitute(
            depths=table(["", "degree", "products in a row, at least"], depths)
        ),
        limits=family.limits,
    )


INDEX = Template("""# Model cards

What each network with weights is for, what it learned from, how good it is and by whose word, what it costs in the
clear and
encrypted, and where it ends.

In the box, made to run encrypted:

$embedded

Published by the authors of the paper:

$published

Segmentation networks: [Segment images](../segment.md). Networks without weights: [The models](../models.md).

A network gets into the box as a file of weights in `polynext/models/weights`, its name in `SHIPPED`
([`published.py`](../../polynext/models/published.py)), and a sentence about its data in [`cards.py`](../cards.py);
`python docs/cards.py` then writes its card.

```{toctree}
:hidden:

$pages
```
""")


def pages() -> dict[str, str]:
    """The text of each file."""
    embedded = {tagged.replace(".", "_"): tagged for tagged in SHIPPED}
    texts = {f"{file}.md": embedded_card(tagged) for file, tagged in embedded.items()}
    texts |= {f"{file}.md": published_card(family) for file, family in FAMILIES.items()}
    texts["index.md"] = INDEX.substitute(
        embedded="\n".join(f"- [{tagged}]({file}.md)" for file, tagged in embedded.items()),
        published="\n".join(
            f"- [{family.title}]({file}.md): {', '.join(family.models)}" for file, family in FAMILIES.items()
        ),
        pages="\n".join([*embedded, *FAMILIES]),
    )
    return texts


if __name__ == "__main__":
    for file, text in pages().items():
        (HERE / "cards" / file).write_text(text)
