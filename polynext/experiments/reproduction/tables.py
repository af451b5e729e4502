"""Every table of the paper: for each figure in it a count, a command to run, or why there is none."""

from collections.abc import Callable
from dataclasses import dataclass

from polynext.experiments.reproduction.ablations import ablation
from polynext.experiments.reproduction.cells import Cells, Setup
from polynext.experiments.reproduction.networks import (
    fully_polynomial,
    main_results,
    robustness,
    segmentation,
    small_data_sets,
    throughput,
)
from polynext.experiments.reproduction.settings import architectures, low_resolution, training_details


@dataclass(frozen=True)
class Table:
    """A table of the paper, or what is at another `place` in it; `scaled` if its runs can be at another scale."""

    title: str
    cells: Callable[[Setup], Cells]
    scaled: bool = False
    place: str = ""


TABLES = {
    "1": Table("ImageNet-1K classification", main_results),
    "2": Table("Robustness", robustness),
    "3": Table("Polynomial modules or activations", ablation("3", "modules"), scaled=True),
    "4": Table("Stabilisation and architecture", ablation("4", "stabilisation"), scaled=True),
    "5": Table("Recipes crossed", ablation("5", "recipes"), scaled=True),
    "dropin": Table("Modules in CAFormer-S18", ablation("dropin", "dropin"), scaled=True, place="Section 4.3"),
    "6": Table("ADE20K segmentation", segmentation),
    "7": Table("Fully polynomial variants", fully_polynomial),
    "S1": Table("Training hyperparameters", training_details),
    "S2": Table("Architectures", architectures),
    "S3": Table("Low-resolution setup", low_resolution),
    "S4": Table("Throughput and memory", throughput),
    "S5": Table("Smaller data sets", small_data_sets),
    "figure-1": Table("Accuracy against size and cost", main_results, place="Figure 1"),
}
