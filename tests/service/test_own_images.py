"""From a folder of images to encrypted predictions: the commands of the tutorial on a small folder."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import polynext
from polynext.cli import main
from polynext.data import DataConfig, load_examples
from polynext.encrypted.runtime.cost import CostEstimate
from polynext.errors import PolyNeXtError
from polynext.experiments.fitting import SIZES, Budget, Proposal, choose, config_for, folder_data
from tests.service.conftest import Start

TUTORIAL = Path(__file__).parents[2] / "docs" / "own_images.md"
BUDGET = Budget(seconds=20.0, key_memory=1024, memory=8192, error=1e-2)  # the command's


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bright cats and dark dogs, 20 grey images each."""
    root, random = tmp_path_factory.mktemp("own") / "pictures", np.random.default_rng(0)
    for name, brightness in (("cat", 180), ("dog", 80)):
        (root / name).mkdir(parents=True)
        for number in range(1, 21):
            pixels = random.normal(brightness, 20, (36, 40)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.jpg", quality=95)
    return root


def commands() -> list[list[str]]:
    blocks = re.findall(r"```bash\n(.*?)```", TUTORIAL.read_text(), flags=re.DOTALL)
    return [shlex.split(line)[1:] for block in blocks for line in block.splitlines()]


def test_the_tutorial(
    pictures: Path, start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(pictures.parent)
    fit, serve, ask = commands()
    small = ["--network", "32x1", "--epochs", "4"]
    assert main([*fit, *small]) == 0
    printed = capsys.readouterr().out
    assert f"polynext {shlex.join(serve)}" in printed and "100.0% of 8 test images" in printed
    assert main([*fit, "--network", "64x1"]) == 2
    assert "has a run with other settings" in capsys.readouterr().err
    running = start(Path(serve[-1]))
    url = next(word for word in ask if word.startswith("http"))
    assert main([running.url if word == url else word for word in ask] + ["--keys", "keys"]) == 0
    assert re.findall(r" (cat|dog) +-?\d", capsys.readouterr().out) == ["cat", "dog"]
    run = polynext.load_run("runs/pictures/run")
    assert run.config is not None and run.config.encryption == BUDGET.encryption(SIZES[0])


def test_a_folder_of_class_folders_is_split(pictures: Path) -> None:
    data = DataConfig(name="folder", root=pictures)
    train, test = load_examples(data, "train"), load_examples(data, "test")
    assert (len(train), len(test)) == (32, 8) and np.bincount(test.labels).tolist() == [4, 4]
    seen = {train.image(i).tobytes() for i in range(32)} | {test.image(i).tobytes() for i in range(8)}
    assert len(seen) == 40


def test_data_and_training_suit_the_images(pictures: Path, tmp_path: Path) -> None:
    grey = folder_data(pictures).preprocessing
    assert grey.channels == 1 and abs(grey.mean[0] - 130 / 255) < 0.02
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(5):
            Image.new("RGB", (40, 50), (200, 100, 10 * number)).save(tmp_path / name / f"{number}.png")
    data = folder_data(tmp_path)
    assert data.preprocessing.channels == 3 and abs(data.preprocessing.mean[0] - 200 / 255) < 0.01
    config = config_for(data, SIZES[2], replace(BUDGET, memory=3000))
    config.check()
    assert (config.epochs, config.batch_size, config.encryption.memory) == (100, 4, 3000)
    assert (config.model.widths, config.model.stacks) == ((64,), (2,))


def test_the_largest_network_within_the_budget_is_chosen() -> None:
    cost = CostEstimate(*[1] * 10)
    small, large = Proposal(SIZES[0], cost), Proposal(SIZES[1], cost, "more than 3 s")
    assert choose([small, large]) is SIZES[0] and choose([], "64x2") is SIZES[2]
    with pytest.raises(PolyNeXtError, match="no network fits: more than 3 s"):
        choose([large])
    with pytest.raises(PolyNeXtError, match="there is no network '7x7': choose one of 32x1"):
        choose([], "7x7")
