"""The data sets for evaluation: their images, classes and preprocessing."""

import json
import pkgutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from polynext.data import DATA_SETS, DataConfig, Examples, Preprocessing, load_examples
from polynext.data.examples import FolderExamples
from polynext.data.sets import SPLIT_FOLDERS
from polynext.errors import PolyNeXtError
from polynext.evaluation.corruptions import corrupt

# Evaluated as they are or, with -c, corrupted on the fly.
PLAIN = tuple(name for name in DATA_SETS if name != "imagenet")
IMAGENETS = (
    "imagenet", "imagenet-real", "imagenet-v2", "imagenet-a", "imagenet-r", "imagenet-sketch", "imagenet-c",
)  # fmt: skip
ALL_NAMES = (*PLAIN, *IMAGENETS, *(f"{name}-c" for name in PLAIN))


@dataclass(frozen=True)
class EvaluationSet:
    """Images and how they are scored.

    Attributes:
        examples: the images.
        preprocessing: how they become the network's input.
        among: the network's classes that are predicted from, in the order of the labels; None for all.
        answers: the labels that are correct for each image, if these are several or none.
    """

    examples: Examples
    preprocessing: Preprocessing
    among: np.ndarray | None = None
    answers: list[list[int]] | None = None


class CorruptedExamples(Examples):
    """Examples with one corruption at one severity, reproducibly."""

    def __init__(self, examples: Examples, corruption: str, severity: int):
        super().__init__(examples.labels, examples.classes)
        self.examples, self.corruption, self.severity = examples, corruption, severity

    def image(self, index: int) -> Image.Image:
        pixels = np.asarray(self.examples.image(index))
        return Image.fromarray(corrupt(pixels, self.corruption, self.severity, seed=index))


def open_set(name: str, data: DataConfig) -> EvaluationSet:
    """A set by its name. `data` has its root and the network's preprocessing, which some sets change."""
    preprocessing = data.preprocessing
    arrays = name == "imagenet" and data.root is not None and data.root.suffix == ".npz"
    if name not in IMAGENETS or arrays:
        return EvaluationSet(load_examples(replace(data, name=name), "test"), preprocessing)
    root = folder_of(data.root, name)
    if name == "imagenet-v2":
        examples = FolderExamples(root)
        return EvaluationSet(relabelled(examples, root, [str(i) for i in range(1000)]), preprocessing)
    if name in ("imagenet-a", "imagenet-r"):
        examples = relabelled(FolderExamples(root), root, synsets(name))
        everything = synsets("imagenet")
        among = np.array([everything.index(s) for s in synsets(name)])
        if name == "imagenet-r":
            preprocessing = replace(preprocessing, interpolation="bilinear")
        return EvaluationSet(examples, preprocessing, among)
    if name in ("imagenet", "imagenet-sketch", "imagenet-real"):
        examples = relabelled(FolderExamples(root), root, synsets("imagenet"))
        answers = real_answers(examples) if name == "imagenet-real" else None
        return EvaluationSet(examples, preprocessing, answers=answers)
    raise AssertionError(f"{name} is a set of open_corrupted")


def open_corrupted(name: str, data: DataConfig, corruption: str, severity: int) -> EvaluationSet:
    """One corruption at one severity: ImageNet-C's own files, or another set corrupted on the fly."""
    if name != "imagenet-c":
        clean = open_set(name.removesuffix("-c"), data)
        return replace(clean, examples=CorruptedExamples(clean.examples, corruption, severity))
    root = corrupted_folder(data, corruption, severity)
    examples = relabelled(FolderExamples(root), root, synsets("imagenet"))
    return EvaluationSet(examples, replace(data.preprocessing, resize=data.preprocessing.size))


def corrupted_folder(data: DataConfig, corruption: str, severity: int) -> Path:
    """The folder of one corruption at one severity in ImageNet-C."""
    folder = folder_of(data.root, "imagenet-c") / corruption / str(severity)
    if not folder.is_dir():
        raise PolyNeXtError(f"there is no {folder}: the mCE of imagenet-c needs all 15 corruptions at 5 severities.")
    return folder


def folder_of(root: Path | None, name: str) -> Path:
    if root is None or not root.is_dir():
        found = f"{root} is not a folder" if root else "none was given"
        raise PolyNeXtError(f"{name} needs its folder as `root`: {found}.")
    if name in ("imagenet", "imagenet-real"):
        for inner in SPLIT_FOLDERS["test"]:
            if (root / inner).is_dir():
                return root / inner
    return root


def synsets(name: str) -> list[str]:
    """The class names of ImageNet or of its variants with 200 classes, from timm."""
    return timm_list(f"{name.replace('-', '_')}_synsets.txt").split()


def timm_list(file: str) -> str:
    data = pkgutil.get_data("timm.data", f"_info/{file}")
    assert data is not None, file
    return data.decode()


def relabelled(examples: FolderExamples, root: Path, classes: list[str]) -> FolderExamples:
    """Labels by these classes instead of the order of the folders. All classes must be there, and no others."""
    unknown = [name for name in examples.classes if name not in classes]
    if unknown:
        raise PolyNeXtError(f"{root} has folders that are not classes of this data set: {', '.join(unknown[:5])}.")
    missing = [name for name in classes if name not in examples.classes]
    if missing:
        raise PolyNeXtError(
            f"{root} lacks {len(missing)} of {len(classes)} classes, such as {missing[0]}: give the complete data set."
        )
    number = {name: i for i, name in enumerate(classes)}
    examples.labels = np.array([number[examples.classes[label]] for label in examples.labels])
    examples.classes = list(classes)
    return examples


def real_answers(examples: FolderExamples) -> list[list[int]]:
    """The reassessed labels of ImageNet's validation images: several, one or none for each."""
    labels = json.loads(timm_list("imagenet_real_labels.json"))
    answers = {f"ILSVRC2012_val_{i + 1:08d}": accepted for i, accepted in enumerate(labels)}
    paths = [examples.path(i) for i in range(len(examples))]
    unknown = [path.name for path in paths if path.stem not in answers]
    if unknown:
        raise PolyNeXtError(
            f"imagenet-real finds labels by file name, and {unknown[0]} is not one of ILSVRC2012_val_*: rename it."
        )
    return [answers[path.stem] for path in paths]
