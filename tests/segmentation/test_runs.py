"""Recipes, and the comparison of runs with the paper."""

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from polynext.recipes import recipe
from polynext.segmentation.config import (
    SegmentationConfig,
)
from polynext.segmentation.recipes import RECIPES
from polynext.segmentation.runs import paper_figure
from polynext.training import from_yaml, to_yaml


def test_only_comparable_weights_get_the_papers_figure(tmp_path: Path) -> None:
    paper_run = RECIPES["ade20k"]()
    convformer, other = (
        replace(paper_run.model, backbone=f"convformer_s18.{tag}") for tag in ("sail_in1k", "sail_in22k")
    )
    assert paper_figure(paper_run) == 50.6
    assert paper_figure(RECIPES["ade20k_apolynext"]()) == 49.9
    assert paper_figure(replace(paper_run, model=convformer)) == 48.6
    scratch = replace(paper_run.model, pretrained=False)
    for model in (other, scratch, replace(paper_run.model, width=64)):
        assert paper_figure(replace(paper_run, model=model)) is None
    assert paper_figure(RECIPES["camvid"]()) is None
    save_file({"decode_head.x": torch.zeros(1)}, tmp_path / "uper.safetensors")
    assert paper_figure(replace(paper_run, model=scratch), tmp_path / "uper.safetensors") == 50.6

    learned, file = recipe("cpolynext_small"), tmp_path / "best.safetensors"
    from_a_run = replace(paper_run, model=replace(paper_run.model, backbone_weights=file))
    tuned = replace(learned, model=replace(learned.model, pretrained=True))
    for config, figure in ((learned, 50.6), (tuned, None)):
        save_file({"x": torch.zeros(1)}, file, metadata={"config": to_yaml(config)})
        assert paper_figure(from_a_run) == figure


def test_recipes_survive_yaml() -> None:
    for make in RECIPES.values():
        assert from_yaml(to_yaml(make()), kind=SegmentationConfig) == make()
