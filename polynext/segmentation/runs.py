"""Loading a trained segmentation network from its run folder, or from its recipe and a file of weights."""

from pathlib import Path

import timm

from polynext.config import TrainConfig, from_yaml, read_config
from polynext.errors import PolyNeXtError
from polynext.models.checkpoints import read_checkpoint, read_metadata, stored_classes
from polynext.paper import published_figure
from polynext.segmentation.checkpoints import PUBLISHED, is_published_segmentation, load_segmentation_weights
from polynext.segmentation.config import SegmentationConfig, SegmentationModelConfig
from polynext.segmentation.data import class_names
from polynext.segmentation.recipes import RECIPES, segmentation_recipe
from polynext.segmentation.upernet import UPerNet


def load_segmentation_run(
    run: str, checkpoint: Path | None = None
) -> tuple[SegmentationConfig, UPerNet, tuple[str, ...]]:
    """The config, the network in eval mode and the class names of a run, or of a recipe with a file of weights."""
    if run in RECIPES and not Path(run).is_dir():
        if checkpoint is None:
            raise PolyNeXtError(
                f"{run} is a recipe, not the folder of a run: give its weights by `checkpoint`, or `pretrained`."
            )
        config = segmentation_recipe(run)
    elif not (Path(run) / "config.yaml").is_file():
        raise PolyNeXtError(
            f"{run} is neither the folder of a segmentation run nor a recipe with published weights "
            f"({' or '.join(PUBLISHED)}): give one of these."
        )
    else:
        config = read_config(Path(run) / "config.yaml", SegmentationConfig)
    weights = checkpoint or Path(run) / "best.safetensors"
    classes = stored_classes(read_metadata(weights)) or class_names(config.data)
    config.check()
    model = UPerNet(config.model.backbone, len(classes), width=config.model.width, image_size=config.data.crop)
    load_segmentation_weights(model, weights)
    return config, model.eval(), classes


def paper_figure(config: SegmentationConfig, checkpoint: Path | None = None) -> float | None:
    """The paper's mIoU for these weights, or None if they are not comparable.

    Comparable are the authors' weights, and those of a run on ADE20K with a backbone trained as in the paper.

    Args:
        config: of the run or the recipe.
        checkpoint: weights in place of the run's best.
    """
    model, data = config.model, config.data.name
    if data != "ade20k" or model.width != SegmentationModelConfig.width:
        return None
    name = model.backbone.split(".")[0]
    if checkpoint is not None and is_published_segmentation(read_checkpoint(checkpoint)):
        return published_figure(name, data)
    if model.backbone_weights is not None:
        return published_figure(name, data) if learned_as_published(name, model.backbone_weights) else None
    weights = timm.get_pretrained_cfg(model.backbone) if model.pretrained else None
    return published_figure(f"{name}.{weights.tag}", data) if weights is not None else None


def learned_as_published(name: str, weights: Path) -> bool:
    """Whether a file has the weights of this model, trained by this package on ImageNet from scratch."""
    metadata = read_metadata(weights)
    if "config" not in metadata:
        return False
    config = from_yaml(metadata["config"], str(weights), TrainConfig)
    return config.model.name == name and config.model.as_published and config.data.name == "imagenet"
