"""The counting evaluator: as strict as a library, and exact about live ciphertexts."""

import pytest

from polynext.encrypted import Plan
from polynext.encrypted.runtime.counting import CountingEvaluator
from polynext.encrypted.runtime.execution import encode_program, execute
from polynext.encrypted.runtime.parameters import Parameters

PARAMETERS = Parameters(2**13, (30, 30, 40, 40), 30, 20, 36, 30)


@pytest.fixture
def evaluator() -> CountingEvaluator:
    return CountingEvaluator(PARAMETERS, rotations=(1,))


def test_only_the_image_and_the_result_live_after_a_program(plan: Plan) -> None:
    evaluator = CountingEvaluator(plan.parameters, plan.program.rotations)
    image = evaluator.image()
    result = execute(plan.program, encode_program(plan.program, evaluator), evaluator, image)
    assert not image.released and not result.released
    assert sum(evaluator.live.values()) == 2 and evaluator.live[0] == evaluator.live[result.level] == 1


def test_live_ciphertexts_are_counted_by_level(evaluator: CountingEvaluator) -> None:
    image = evaluator.image()
    first, second = evaluator.rotate(image, 1), evaluator.rotate(image, 1)
    evaluator.release(first)
    dropped = evaluator.drop(second, 1)
    evaluator.release(second)
    assert evaluator.live == {0: 1, 1: 1} and evaluator.most_live == {0: 3, 1: 1}
    assert evaluator.ciphertext_bytes == 3 * PARAMETERS.ciphertext_bytes(0) + PARAMETERS.ciphertext_bytes(1)
    assert evaluator.drop(dropped, 1) is dropped
    assert evaluator.total("rotate") == 2 and evaluator.total("drop") == 1


def test_a_released_ciphertext_cannot_be_used(evaluator: CountingEvaluator) -> None:
    value = evaluator.rotate(evaluator.image(), 1)
    evaluator.release(value)
    with pytest.raises(AssertionError, match="rotate of a released ciphertext"):
        evaluator.rotate(value, 1)
    with pytest.raises(AssertionError, match="released twice"):
        evaluator.release(value)


def test_levels_scales_and_keys_are_checked(evaluator: CountingEvaluator) -> None:
    image = evaluator.image()
    with pytest.raises(AssertionError, match="levels 0 and 1 differ"):
        evaluator.add(image, evaluator.drop(image, 1))
    with pytest.raises(AssertionError, match=r"scales .* differ"):
        evaluator.add_plain(image, evaluator.encode(None, 0, 2.0**20))
    with pytest.raises(AssertionError, match="no key to rotate by 2"):
        evaluator.rotate(image, 2)
    with pytest.raises(AssertionError, match="no key to conjugate"):
        evaluator.conjugate(image)
    with pytest.raises(AssertionError, match="after rescaling"):
        evaluator.rescale(image, 2.0**30)
