"""Predicted noise against measured noise."""

from dataclasses import replace

import numpy as np
import pytest

from polynext.circuit import Circuit
from polynext.encrypted import Limits, make_plan
from polynext.encrypted.compiler.planner import DoesNotFitError
from polynext.encrypted.compiler.precision import NoisyEvaluator, flipped
from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.parameters import Parameters
from polynext.models.network import PolyNeXt
from tests.encrypted.conftest import SAME_EVERYWHERE, logits, run_encrypted


@pytest.mark.parametrize("backend", ["seal", "native"], indirect=True)
def test_the_noise_of_a_rotation_is_predicted_in_every_slot(backend: str) -> None:
    """The first slots have a hundred times that of the others, unless digits are centred."""
    parameters = Parameters(2**13, (40, 40, 40), 30, 30, 36, 30)
    ring, centred = get_backend(backend).ring(parameters), get_backend(backend).engine.centred
    found = []
    for _ in range(24):
        key = ring.generate_key()
        rotated = ring.evaluator(key.evaluation_keys([1])).rotate(key.encrypt(np.zeros(parameters.slots)), 1)
        found.append(key.decrypt(rotated))
    measured = np.sqrt(np.mean(np.square(found), axis=0))
    deviation = NoisyEvaluator(parameters, (1,), centred=centred).switching(0)
    predicted = deviation * np.sqrt(parameters.slots) / parameters.input_scale
    assert centred or predicted[0] > 50 * np.median(predicted)
    np.testing.assert_allclose(measured[:3], predicted[:3], rtol=0.7)
    np.testing.assert_allclose(np.median(measured), np.median(predicted), rtol=0.1)


def test_the_error_of_the_logits_is_predicted(patches: PolyNeXt, lowered: Circuit) -> None:
    images = np.random.default_rng(0).normal(size=(8, 3, 8, 8))
    limits = Limits(memory=4 * 2**30, keys=2**30, error=1.0, flips=1.0)
    plan = make_plan(lowered, images, limits=limits, costs=SAME_EVERYWHERE)
    key = get_backend("seal").ring(plan.parameters).generate_key()
    wanted = logits(patches, images)
    errors = [np.abs(run_encrypted(plan.program, key, images[i : i + 1]) - wanted[i]).max() for i in range(4)]
    measured = max(errors) / np.abs(wanted).max()
    assert plan.cost.error / 20 < measured < plan.cost.error * 1.5
    with pytest.raises(DoesNotFitError, match=r"logits would be off by .* of the largest where 1e-12 is allowed"):
        make_plan(lowered, images, limits=replace(limits, error=1e-12), costs=SAME_EVERYWHERE)


def test_predictions_change_where_classes_are_close() -> None:
    close, apart = np.array([[1.0, 1.0, 0.0]]), np.array([[9.0, 1.0, 0.0]])
    assert flipped(close, 1e-3) == 0.5
    assert flipped(apart, 1e-3) == 0.0
    assert flipped(np.concatenate([close, apart]), 1e-3) == 0.25
