"""Programs on ciphertexts: the model's logits, and every ciphertext is released."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from polynext.circuit import Circuit
from polynext.circuit.graph import Input, Linear, Product
from polynext.circuit.maps import Matrix
from polynext.encrypted import ClientSpec, Plan
from polynext.encrypted.compiler.outlines import outline_steps
from polynext.encrypted.compiler.parameter_choice import choose_parameters
from polynext.encrypted.compiler.program_builder import build_program
from polynext.encrypted.compiler.rotations import choose_rotations
from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.backends.seal import SealEvaluator
from polynext.encrypted.runtime.execution import encode_program, execute
from tests.encrypted.conftest import evaluator_for, logits, promised, run_clear, run_encrypted


class CallCounter(SealEvaluator):
    """Counts calls. SEAL computes rotations and products one at a time, also those that programs ask for together."""

    def __init__(self, *given: Any):
        super().__init__(*given)
        self.calls: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> Any:
        if name in ("rotate", "conjugate", "multiply", "accumulate"):
            self.calls[name] += 1
        return super().__getattribute__(name)


def test_the_estimate_counts_what_seal_computes(plan: Plan, examples: np.ndarray) -> None:
    key = get_backend("seal").ring(plan.parameters).generate_key()
    evaluator = CallCounter(key.ring, key.evaluation_keys(plan.program.rotations))
    encoded = encode_program(plan.program, evaluator)
    packed = plan.program.layouts[0].pack(examples[: plan.images].reshape(plan.images, -1))
    execute(plan.program, encoded, evaluator, key.encrypt(packed))
    calls, cost = evaluator.calls, plan.cost
    assert calls["rotate"] + calls["conjugate"] == cost.rotations
    assert calls["multiply"] == cost.ciphertext_products
    assert calls["accumulate"] == cost.plaintext_products


def test_ciphertexts_give_the_models_logits(plan: Plan, spec: ClientSpec, trained: Any, examples: np.ndarray) -> None:
    key = get_backend(spec.backend).ring(plan.parameters).generate_key()
    evaluator = evaluator_for(plan.program, key)
    images = examples[: plan.images]
    encoded = encode_program(plan.program, evaluator)
    answer = execute(plan.program, encoded, evaluator, key.encrypt(spec.pack(images)))
    result = spec.result_layout.unpack(key.decrypt(answer))
    wanted = logits(trained, images)
    # A rescale rounds to about 2^12 of the scale's units in each slot; the levels after it amplify that.
    assert np.abs(result - wanted).max() < 64 * 2**12 / plan.parameters.scale
    assert np.abs(result - wanted).max() < promised(plan.cost)
    assert (answer.level, answer.scale) == (plan.cost.levels, plan.parameters.result_scale)


@pytest.mark.parametrize("tiny", [1e-9, 0.0])
@pytest.mark.parametrize("ordinary", [1.0, 0.0])
def test_weights_that_round_to_zero_are_left_out(backend: str, tiny: float, ordinary: float) -> None:
    """Some of a map's diagonals, or all of them."""
    image = Input(shape=(4,))
    weights = ordinary * np.eye(4) + tiny * np.roll(np.eye(4), 1, axis=1)
    operand = Linear(shape=(4,), map=Matrix(sp.csr_array(weights)), source=image, bias=np.array([1.0, 2.0, 3.0, 0.5]))
    product = Product(shape=(4,), left=operand, right=operand)
    output = Linear(shape=(2,), map=Matrix(sp.csr_array([[1.0, 1, 0, 0], [0, tiny, 1, -1]])), source=product)
    circuit, x = Circuit(image, output), np.array([[0.5, -1.0, 2.0, 1.5]])
    program = build_program(circuit, 4096, images=1)
    choose_rotations(program, most_keys=20)
    chosen = get_backend(backend)
    parameters = choose_parameters(outline_steps(circuit), 2**13, 20.0, chosen.security)
    np.testing.assert_allclose(run_clear(program, parameters, x)[0], circuit(x), atol=1e-9)
    key = chosen.ring(parameters).generate_key()
    np.testing.assert_allclose(run_encrypted(program, key, x), circuit(x), atol=1e-3)
