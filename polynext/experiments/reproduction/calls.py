"""The functions that experiments call. Each can be interrupted, and resumes when it is called again."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from polynext.config import read_config
from polynext.distributed import alone
from polynext.errors import PolyNeXtError, preview
from polynext.evaluation import evaluate
from polynext.experiments.ablation import AblationSweep
from polynext.experiments.speed.candidates import default_device, default_setting
from polynext.experiments.speed.paper_table import measure_paper_models
from polynext.experiments.sweep import run_sweep
from polynext.recipes import recipe
from polynext.runs import load_run
from polynext.segmentation import evaluate as evaluate_pairs
from polynext.segmentation import load_segmentation_run, segmentation_recipe, train_segmentation
from polynext.segmentation.checkpoints import fetch_segmentation_weights
from polynext.segmentation.data import load_pairs
from polynext.training import train


def evaluate_classifier(
    *,
    network: str,
    data: str,
    root: str,
    batch_size: int,
    workers: int,
    partial: str,
    checkpoint: str = "",
    pretrained: bool = False,
    recipe_name: str = "",
    training_root: str = "",
) -> dict[str, Any]:
    """Evaluates a classifier; with `recipe_name`, trains it in the folder `network` before."""
    if recipe_name:
        config = recipe(recipe_name)
        train_or_resume(train, replace(config, data=replace(config.data, root=Path(training_root))), Path(network))
    run = load_run(network, Path(checkpoint) if checkpoint else None, pretrained, alone().device)
    return evaluate(run, data, Path(root) if root else None, batch_size, workers, Path(partial))


def evaluate_segmentation(
    *,
    network: str,
    root: str,
    checkpoint: str = "",
    pretrained: bool = False,
    recipe_name: str = "",
    training_root: str = "",
    backbone: str = "",
) -> dict[str, Any]:
    """Evaluates a segmentation network; with `recipe_name`, trains it on `backbone` in the folder `network` before."""
    if recipe_name:
        config = segmentation_recipe(recipe_name)
        config = replace(config, model=replace(config.model, backbone=backbone))
        config = replace(config, data=replace(config.data, root=Path(training_root)))
        train_or_resume(train_segmentation, config, Path(network))
    weights = fetch_segmentation_weights(network) if pretrained else Path(checkpoint) if checkpoint else None
    config, model, classes = load_segmentation_run(network, weights)
    config = replace(config, data=replace(config.data, root=Path(root)))
    pairs = load_pairs(config.data, "val")
    if pairs.classes != classes:
        raise PolyNeXtError(
            f"{root} has {len(pairs.classes)} classes ({preview(pairs.classes, 3)}) and the network {len(classes)} "
            f"({preview(classes, 3)}): evaluate it on data of its own classes."
        )
    return evaluate_pairs(model.to(alone().device), pairs, config, alone()).to_json() | {"classes": classes}


def train_or_resume(train: Callable[..., Path], config: Any, folder: Path) -> None:
    """Trains in a folder, or resumes the training that began there."""
    begun = (folder / "config.yaml").is_file()
    train(read_config(folder / "config.yaml", type(config)) if begun else config, folder, resume=begun)


def ablate(*, row: str, scale: str, seeds: int, steps: int, images: int, root: str, out: str) -> dict[str, Any]:
    """Trains one row of an ablation and its baseline."""
    sweep = AblationSweep(scale, steps, images=images, root=root)
    trials = sweep.trials([row], seeds)
    run_sweep(sweep, trials, Path(out), on_result=print)
    results = [trial.result(Path(out)) or {} for trial in trials]
    if errors := [result["error"] for result in results if "error" in result]:
        raise PolyNeXtError(f"{len(errors)} run(s) failed; the first: {errors[0]}")
    return sweep.report(trials, Path(out)).record


def measure_speed(*, parts: str) -> dict[str, Any]:
    """Measures the models of the paper's Table S4; stores what is done in the file `parts`."""
    setting = default_setting(default_device())
    measured = measure_paper_models(("compiled",), setting, out=Path(parts))
    return {"setting": setting.describe(), "measurements": [m.to_json() for m in measured]}
