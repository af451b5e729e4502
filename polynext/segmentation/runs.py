"""A trained segmentation network by the folder of its run, or by its recipe and a file of weights."""

from pathlib import Path

from polynext.errors import PolyNeXtError
from polynext.models.checkpoints import read_metadata, stored_classes
from polynext.segmentation.checkpoints import load_segmentation_weights
from polynext.segmentation.config import SegmentationConfig
from polynext.segmentation.data import class_names
from polynext.segmentation.recipes import RECIPES, segmentation_recipe
from polynext.segmentation.upernet import UPerNet
from polynext.training.config import read_config


def load_segmentation_run(
    run: str, checkpoint: Path | None = None
) -> tuple[SegmentationConfig, UPerNet, tuple[str, ...]]:
    """A run's network with its best weights, or a recipe's with published ones, in eval mode; its classes' names."""
    if run in RECIPES and not Path(run).is_dir():
        if checkpoint is None:
            raise PolyNeXtError(
                f"{run} is a recipe, not the folder of a run: give its weights with `checkpoint`, or `pretrained`."
            )
        config = segmentation_recipe(run)
    else:
        config = read_config(Path(run) / "config.yaml", SegmentationConfig)
    weights = checkpoint or Path(run) / "best.safetensors"
    classes = stored_classes(read_metadata(weights)) or class_names(config.data)
    config.check()
    model = UPerNet(config.model.backbone, len(classes), width=config.model.width, image_size=config.data.crop)
    load_segmentation_weights(model, weights)
    return config, model.eval(), classes
