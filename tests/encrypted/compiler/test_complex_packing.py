"""Two values in one ciphertext."""

import numpy as np
import pytest

from polynext.circuit import lower
from polynext.circuit.rewrites import factor_sums, merge_linear_maps, structured
from polynext.encrypted.compiler.complex_packing import pack_complex_values
from polynext.encrypted.compiler.materialised import Candidates
from polynext.encrypted.compiler.outlines import outline_steps
from polynext.encrypted.compiler.parameter_choice import choose_parameters
from polynext.encrypted.compiler.program_builder import build_program, choose_giant_steps
from polynext.encrypted.compiler.rotations import choose_rotations
from polynext.encrypted.runtime.backends.protocol import STANDARD_SECURITY
from polynext.encrypted.runtime.cost import estimate_cost
from tests.circuit.conftest import small_network
from tests.encrypted.conftest import SAME_EVERYWHERE, run_clear, saved_and_loaded


@pytest.mark.parametrize("lazy", [True, False])
def test_packed_values_compute_the_same_with_fewer_products(lazy: bool) -> None:
    """Whether weights are held or encoded when they are needed, and also after a file."""
    choices = Candidates(merge_linear_maps(factor_sums(structured(lower(small_network(stacks=2))))))
    circuit = structured(choices.circuit(next(choices.by_reason())))
    images = np.random.default_rng(0).normal(size=(2, 1, 4, 4))
    parameters = choose_parameters(outline_steps(circuit, lazy), 2**15, 8.0, STANDARD_SECURITY)
    program = build_program(circuit, parameters.slots, images=2, lazy=lazy)
    choose_rotations(program, most_keys=40)
    apart = estimate_cost(program, parameters, SAME_EVERYWHERE(2**15))
    pack_complex_values(program)
    choose_giant_steps(program)
    choose_rotations(program, most_keys=40)
    together = estimate_cost(program, parameters, SAME_EVERYWHERE(2**15))
    assert together.plaintext_products < apart.plaintext_products
    result, counted = run_clear(program, parameters, images)
    np.testing.assert_allclose(result, circuit(images), atol=1e-9)
    assert counted.total("rotate", "rotate_again") == together.rotations
    for step in program.steps[::2]:
        step.keep_encoded = False
    loaded = saved_and_loaded(program)
    np.testing.assert_array_equal(run_clear(loaded, parameters, images)[0], result)
    assert estimate_cost(loaded, parameters, SAME_EVERYWHERE(2**15)).plaintext_bytes < together.plaintext_bytes
