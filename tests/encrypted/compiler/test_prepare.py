"""From a trained network to a server's folder."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from polynext.circuit import lower
from polynext.encrypted import ClientSpec, Limits, make_plan
from polynext.encrypted.compiler.prepare import client_spec_for, plan_run, prepare, save_samples
from polynext.errors import PolyNeXtError
from polynext.preprocessing import Preprocessing
from tests.circuit.conftest import patch_network
from tests.encrypted.conftest import SAME_EVERYWHERE, logits, promised, run_clear


@pytest.mark.parametrize("kernel", [2, 3])
def test_clients_pack_images_in_patches(kernel: int) -> None:
    """The client spec says where each pixel goes, several slots if patches overlap. Patches need few diagonals."""
    patches = patch_network(kernel)
    lowered = lower(patches)
    images = np.random.default_rng(0).normal(size=(8, 3, 8, 8))
    limits = Limits(memory=4 * 2**30, keys=2**30, error=0.1, flips=1.0)
    plan = make_plan(lowered, images, limits=limits, backend="clear", costs=SAME_EVERYWHERE)
    preprocessing = Preprocessing(size=8, resize=8, mean=(0.0,) * 3, std=(1.0,) * 3)
    spec = ClientSpec.from_json(client_spec_for(plan, preprocessing, ("a", "b", "c")).to_json())
    assert spec.image_shape == (3, 8, 8)
    layout = spec.image_layout
    np.testing.assert_array_equal(layout.unpack(spec.pack(images[:1])), images[:1].reshape(1, -1))
    result, counted = run_clear(plan.program, plan.parameters, images[:1])
    np.testing.assert_allclose(result, logits(patches, images[:1]), atol=1e-9)
    assert counted.total("multiply_plain") == plan.cost.plaintext_products
    # The map of the image has one diagonal per distance between channels, not one per distance between pixels.
    assert len(plan.program.steps[0].combinations[0].terms[0].offsets) <= 9 * 16


def test_three_verbs(trained: Any, examples: np.ndarray, tmp_path: Path) -> None:
    """Prepare, serve and ask: the client's logits are those in the clear, and only the client has the secret key."""
    run: Any = SimpleNamespace(
        model=trained,
        config=None,
        preprocessing=Preprocessing(size=4, resize=4, mean=(0.0,), std=(1.0,)),
        class_names=["a", "b", "c"],
    )
    steps: list[str] = []
    private = prepare(run, examples, progress=steps.append)
    assert any("ring degree" in step for step in steps) and steps[-1] == ""
    client = private.server().client()
    prediction = client.predict(examples[:2])
    wanted = logits(trained, examples[:2])
    assert np.abs(prediction.logits - wanted).max() < promised(private.cost)
    assert prediction.labels == tuple("abc"[i] for i in wanted.argmax(axis=1))
    assert not any(isinstance(value, type(client.client.secret)) for value in vars(client.server).values())
    image = Image.fromarray(np.arange(16, dtype=np.uint8).reshape(4, 4))
    assert client.predict([image]).logits.shape == (1, 3)
    private.save(tmp_path / "server")
    assert ClientSpec.load(tmp_path / "server" / "client_spec.json").fingerprint == private.spec.fingerprint
    with pytest.raises(PolyNeXtError, match=r"`prepare\(run\)\.save\(folder\)` writes a server folder"):
        prepare(run, tmp_path)  # type: ignore[arg-type]


def test_planning_needs_the_training_data() -> None:
    run: Any = SimpleNamespace(name="weights.pt", config=None)
    with pytest.raises(PolyNeXtError, match=r"weights\.pt does not record its training data.*give the folder"):
        plan_run(run)
    with pytest.raises(PolyNeXtError, match="`images` is 0: give at least 1"):
        plan_run(run, images=0)


def test_samples_are_named_by_number_and_class(tmp_path: Path) -> None:
    images = np.zeros((2, 4, 4, 3), np.uint8)
    run: Any = SimpleNamespace(class_names=["a cat", "dog/hound"], images=lambda split, count: (None, [1, 0], images))
    save_samples(run, tmp_path / "samples", 0)
    assert not (tmp_path / "samples").exists()
    save_samples(run, tmp_path / "samples", 2)
    assert sorted(path.name for path in (tmp_path / "samples").iterdir()) == ["01-dog-hound.png", "02-a-cat.png"]
