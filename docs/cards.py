"""Writes the model cards in docs/cards: intended use, data, accuracy and cost. Run `python docs/cards.py`.

All numbers are counted or come from `polynext/paper.toml` and the metadata of the weight files. The texts are below.
Weights trained on a new data set need a description of it in DATA.
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
from polynext.config import TrainConfig, from_yaml
from polynext.models import PUBLISHED
from polynext.models.checkpoints import read_metadata
from polynext.models.costs import count_macs, count_parameters
from polynext.models.published import HUB, SHIPPED, shipped_weights

HERE = Path(__file__).parent
Rows = list[list[str]]

# Training data of the shipped networks.
DATA = {
    "mnist": """MNIST (LeCun, Cortes and Burges, 1998): 60,000 training and 10,000 test images of 28x28 pixels; and
30,000 digits drawn with strokes by a program (`polynext/data/drawings.py`), for training.""",
    "digits": """scikit-learn's handwritten digits (Alpaydin and Kaynak, 1998): 1,797 grey images of 8x8 pixels, split
into 1,433 for training and 364 for testing.""",
    "cifar10": """CIFAR-10 (Krizhevsky, 2009): 50,000 training and 10,000 test photographs of 32x32 pixels in ten
classes.""",
}

ON_TEST_IMAGES = """The best epoch was selected on the test images, as is usual for these benchmarks. Expect slightly
lower accuracy on new images."""
ON_VALIDATION_IMAGES = """The best epoch was selected on $count training images that were held out. The test images were
used once, at the end."""

EMBEDDED_CARD = Template("""# $title

The weights ship with the package: `polynext.load_run("$tagged", pretrained=True)`.

## Intended use

Tutorials, demonstrations and tests that run encrypted inference from end to end within seconds, and experiments that
need a small network. It is a demonstration, not a product. Do not use it for decisions about people.

## Data

$data

## Results

$figures

$selection Source: the metadata of the weight file, which `polynext train` writes.

## Cost in the clear

$clear

## Cost under encryption

$encrypted

[Encrypted inference](../encrypted.md) has measurements of time and memory.

## Limits

- The network assigns one of its classes to every image, even if the image shows none of them.
- Images unlike the training images may get wrong logits under encryption:
  [what is protected, and what is not](../encrypted.md#what-is-protected-and-what-is-not).
- Robustness against adversarial examples was not studied.
""")

PUBLISHED_CARD = Template("""# $title

$names

## Intended use

$use

## Data

$data

## Results

$figures

$source

## Cost in the clear

$clear

## Cost under encryption

$encrypted

## Limits

$limits
""")

COUNTED = """Costs are for one image, counted by `polynext models`. [Measure and export](../bench.md) has measurements
of this implementation."""
TIMED = " Images per second and memory are the paper's (Table S4: NVIDIA RTX 4090, batch 128, compiled)."
IMAGENET = """ImageNet-1K: 1.28 million training photographs in 1,000 classes and 50,000 for validation. It reflects
what people photographed and labelled before 2012, with known gaps and biases. Places, people and things of North
America and Europe are over-represented, many photographs show people, and some labels are wrong."""
LIMITS = """- The accuracy applies to photographs like those of ImageNet. It is lower on drawings and on corrupted or
  unusual images: see the results.
- The networks were not made for, or tested in, decisions about people, medicine or safety.
- The weights are the authors'; we did not repeat their training. They load strictly. For five of the published files, a
  test compares the logits with those of the authors' code, to 1e-4 (`pytest tests/models/test_published.py`)."""
SOURCE = """Top-1 accuracy (%)$mce. Source: the paper's $tables, as printed.
`polynext evaluate NAME --pretrained --data SET --root FOLDER` repeats the measurement."""
MCE = "; for ImageNet-C the mean corruption error (mCE), lower is better"


@dataclass(frozen=True)
class Family:
    """Published networks that share a card."""

    title: str
    models: tuple[str, ...]  # the paper's names
    use: str
    tables: str
    encrypted: str
    data: str = IMAGENET
    limits: str = LIMITS


BACKBONE = """Backbones for image recognition: classification of photographs, and initial weights for detection,
segmentation and fine-tuning. They are timm models and replace a ConvNeXt or CAFormer of their size."""
NOT_POLYNOMIAL = """Not possible: LayerNorm divides by a function of the image. The
[fully polynomial networks](fully_polynomial.md) are the same networks without LayerNorm."""
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
        """Research on networks that are polynomials of the image, and starting points for smaller networks that run
encrypted. Where LayerNorm is acceptable, the networks that use it are more accurate.""",
        "Table 7",
        """Possible in principle: inference consists of additions and multiplications. In practice these networks are
far too deep for encryption without bootstrapping. Each unit of multiplicative depth takes at least one level, and
SEAL's largest ring has about twenty:

$depths

`polynext circuit NAME` prints more details. Networks made for encryption [ship with the package](index.md).""",
        limits=LIMITS + "\n- They accept only images of 224 pixels, because their norms keep statistics per position.",
    ),
    "lowres": Family(
        "CPolyNeXt-LR",
        ("CPolyNeXt-LR",),
        "Comparison of networks trained from scratch on small images: 32 pixels, or 64 for Tiny ImageNet.",
        "Table S5",
        NOT_POLYNOMIAL,
        """CIFAR-10 (50,000 training photographs of 32 pixels, ten classes), SVHN (73,257 house numbers of 32 pixels,
ten digits) and Tiny ImageNet (100,000 photographs of 64 pixels, 200 classes). One network was trained on each.""",
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
        ["input size", "x".join(map(str, model.pretrained_cfg["input_size"]))],
    ]
    encrypted = [
        ["polynomial degree", f"{circuit.degree():,}"],
        ["multiplicative depth", str(circuit.multiplicative_depth())],
    ]
    held_out = from_yaml(about["config"], tagged, TrainConfig).data.validation
    selection = Template(ON_VALIDATION_IMAGES if held_out else ON_TEST_IMAGES).substitute(count=f"{held_out:,}")
    return EMBEDDED_CARD.substitute(
        title=tagged,
        selection=selection,
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
            depths=table(["", "degree", "multiplicative depth, at least"], depths)
        ),
        limits=family.limits,
    )


INDEX = Template("""# Model cards

The intended use, training data, accuracy, cost and limits of every network with weights.

Shipped with the package, made for encrypted inference:

$embedded

Published by the authors of the paper:

$published

For segmentation networks see [Segment images](../segment.md), for networks without weights [The models](../models.md).

To ship another network, add its weights to `polynext/models/weights`, its name to `SHIPPED`
([`published.py`](../../polynext/models/published.py)) and a description of its data to [`cards.py`](../cards.py). Then
run `python docs/cards.py`.

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
