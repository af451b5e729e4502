"""Configs as YAML: of this version, of earlier ones, and wrong ones."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import polynext
from polynext.config import OptimizerConfig, TrainConfig, build_model, from_yaml, to_yaml
from polynext.data import DataConfig
from polynext.models import ArchitectureChanges
from polynext.schema import validate

# A config as polynext 0.2 wrote it.
OLD = """
save_every: 5
model: {name: cpolynext_cipher_bn, variant: position-beta+patch-8+widths-4-6+stacks-1+coarse-5}
data:
  name: cifar10
  root: null
  image_size: 32
  evaluation_resize: 36
  evaluation_interpolation: bilinear
  mean: [0.5, 0.5, 0.5]
  std: [0.25, 0.25, 0.25]
optimizer: {lr: 1e-3}
"""


def test_configs_of_earlier_versions_are_read() -> None:
    config = from_yaml(OLD)
    assert config.model.variant == "position-beta"
    assert config.model.architecture == ArchitectureChanges(widths=(4, 6), stacks=(1,), patch=8, coarse_kernel=5)
    preprocessing = config.data.preprocessing
    assert (preprocessing.size, preprocessing.resize, preprocessing.interpolation) == (32, 36, "bilinear")
    assert (preprocessing.mean, preprocessing.std, config.optimizer.lr) == ((0.5,) * 3, (0.25,) * 3, 1e-3)
    assert from_yaml(to_yaml(config)) == config
    attention = from_yaml("model: {name: apolynext_nano_bn, variant: window-2+heads-3+position-beta}").model
    assert (attention.window, attention.heads, attention.variant) == (2, 3, "position-beta")


def test_weights_of_earlier_versions_are_loaded(tmp_path: Path) -> None:
    model = build_model(from_yaml(OLD), 10).eval()
    metadata = {"model": "cpolynext_cipher_bn", "config": OLD, "classes": str(list(range(10)))}
    save_file(model.state_dict(), tmp_path / "best.safetensors", metadata)
    run = polynext.load_run(tmp_path / "best.safetensors")
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(run.model(images), model(images), rtol=0, atol=0)


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
        ("optimizer: {learning_rate: 1}", r"optimizer\.learning_rate is not a field: the fields are name, lr"),
        ("epoks: 3", "the configuration: epoks is not a field"),
        ("epochs: many", "epochs is 'many': give a valid integer"),
        ("epochs: true", "epochs is True: give a valid integer"),
        ("optimizer: {name: sgd}", "optimizer.name is 'sgd': give 'adamw' or 'lamb'"),
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
