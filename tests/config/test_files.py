"""Configs as YAML: written, read, and wrong ones refused."""

from pathlib import Path

import pytest

import polynext
from polynext.config import OptimizerConfig, TrainConfig, from_yaml
from polynext.data import DataConfig
from polynext.schema import validate


def test_a_config_that_was_made_in_python_is_checked_too() -> None:
    with pytest.raises(polynext.PolyNeXtError, match=r"`data\.workers` is -1: give at least 0"):
        TrainConfig(data=DataConfig(workers=-1)).check()
    assert validate(TrainConfig, {}) == TrainConfig()


def test_ranges_and_types_are_those_of_the_fields() -> None:
    assert from_yaml("{epochs: 3, data: {root: a/b}, optimizer: {betas: [0.1, 0]}}") == TrainConfig(
        epochs=3, data=DataConfig(root=Path("a/b")), optimizer=OptimizerConfig(betas=(0.1, 0.0))
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "optimizer: {learning_rate: 1}",
            r"optimizer\.learning_rate is not a field in this version: the fields are name, lr",
        ),
        ("epoks: 3", "the configuration: epoks is not a field"),
        ("data: {image_size: 32}", r"data\.image_size is not a field in this version"),  # a run of polynext 0.2
        ("epochs: many", "epochs is 'many': give a valid integer"),
        ("epochs: true", "epochs is True: give a valid integer"),
        ("optimizer: {name: adam}", "optimizer.name is 'adam': give 'adamw', 'lamb', 'sgd' or 'muon'"),
        ("optimizer: 3", "optimizer is 3: give an object"),
        ("optimizer: {lr: -1}", "the configuration: optimizer.lr is -1: give at least 0"),
        ("data: {preprocessing: {size: 9}}", "images of 9 pixels cannot be cropped from 8"),
        ("[1, 2]", "has no fields"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_wrong_yaml_is_reported_in_a_message(text: str, message: str) -> None:
    with pytest.raises(polynext.PolyNeXtError, match=message):
        from_yaml(text)
