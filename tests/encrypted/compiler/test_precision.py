"""Predicted noise against measured noise."""

from dataclasses import replace

import numpy as np
import pytest

from polynext.circuit import Circuit
from polynext.encrypted import Limits, make_plan
from polynext.encrypted.compiler.limits import DoesNotFitError
from polynext.encrypted.compiler.precision import NoisyEvaluator, flipped
from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.parameters import Parameters
from polynext.models.network import PolyNeXt
from tests.encrypted.conftest import SAME_EVERYWHERE, decrypted, logits, run_encrypted


def measured_noise(parameters: Parameters, level: int = 0, keys: int = 24) -> np.ndarray:
    """The noise of a rotation in every slot, over several keys."""
    ring = get_backend("seal").ring(parameters)
    found = []
    for _ in range(keys):
        key = ring.generate_key()
        evaluator = ring.evaluator(key.evaluation_keys([1]))
        fresh = evaluator.drop(key.encrypt(np.zeros(parameters.slots)), level)
        found.append(decrypted(evaluator.rotate(fresh, 1), key))
    return np.sqrt(np.mean(np.square(found), axis=0))


def predicted_noise(parameters: Parameters, level: int = 0, centred: bool = False) -> np.ndarray:
    noise = NoisyEvaluator(parameters, (1,), centred=centred).switching(level)
    return noise * np.sqrt(parameters.slots) / parameters.input_scale


def test_the_noise_of_a_rotation_is_predicted_in_every_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of SEAL's rotations, the first slots have a hundred times that of the others."""
    monkeypatch.setenv("POLYNEXT_ENGINE", "seal")
    parameters = Parameters(2**13, (40, 40, 40), 30, 30, 36, 30)
    measured, predicted = measured_noise(parameters), predicted_noise(parameters)
    assert predicted[0] > 50 * np.median(predicted)
    np.testing.assert_allclose(measured[:3], predicted[:3], rtol=0.7)
    np.testing.assert_allclose(np.median(measured), np.median(predicted), rtol=0.1)


# Hybrid keys with digits of two primes and one, longer than the special primes together, and as long.
CENTRED = {
    "SEAL's keys": (Parameters(2**13, (40, 40, 40), 30, 30, 36, 30), 0),
    "two digits": (Parameters(2**13, (40, 40, 42, 40, 40), 30, 30, 36, 30, special_primes=2), 0),
    "one digit": (Parameters(2**13, (40, 40, 42, 40, 40), 30, 30, 36, 30, special_primes=2), 1),
    "one digit of one prime": (Parameters(2**13, (40, 40, 42, 40, 40), 30, 30, 36, 30, special_primes=2), 2),
}


@pytest.mark.parametrize("case", CENTRED)
def test_the_noise_of_centred_digits_is_predicted(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The native evaluator's noise is the same in all slots."""
    pytest.importorskip("polynext_native", reason="polynext-native is not installed: it needs a C++ compiler")
    monkeypatch.setenv("POLYNEXT_ENGINE", "native")
    parameters, level = CENTRED[case]
    measured, predicted = measured_noise(parameters, level, keys=8), predicted_noise(parameters, level, centred=True)
    np.testing.assert_allclose(np.sqrt(np.mean(measured**2)), predicted[0], rtol=0.1)
    assert (predicted == predicted[0]).all()
    assert measured.max() < 5 * predicted[0]


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
