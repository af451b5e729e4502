"""Levels and scales of values."""

import numpy as np
import scipy.sparse as sp

from polynext.circuit import Circuit
from polynext.circuit.graph import Input, Linear, Product
from polynext.circuit.maps import Matrix
from polynext.encrypted.compiler.outlines import outline_steps
from polynext.encrypted.compiler.parameter_choice import choose_parameters
from polynext.encrypted.compiler.program_builder import build_program
from polynext.encrypted.compiler.rotations import choose_rotations
from polynext.encrypted.runtime.backends.protocol import STANDARD_SECURITY
from polynext.encrypted.runtime.levels import Scales
from tests.encrypted.conftest import run_clear


def test_products_of_products_return_to_the_scale() -> None:
    """Only they are rescaled by themselves, which makes later scales depend on earlier primes."""
    image = Input(shape=(4,))
    operand = Linear(shape=(4,), map=Matrix(sp.csr_array(np.eye(4))), source=image)
    square = Product(shape=(4,), left=operand, right=operand)
    fourth = Product(shape=(4,), left=square, right=square)
    fifth = Product(shape=(4,), left=fourth, right=operand)
    circuit = Circuit(image, Linear(shape=(1,), map=Matrix(sp.csr_array(np.ones((1, 4)))), source=fifth))
    stages = outline_steps(circuit)
    assert [stage.result_level for stage in stages] == [2, 3, 4, 5]
    parameters = choose_parameters(stages, 2**14, 1.0, STANDARD_SECURITY)
    scales = Scales(stages, parameters).values
    assert all(parameters.scale <= scale <= parameters.scale**2 for scale in scales[1:-1])
    program = build_program(circuit, parameters.slots, images=1)
    choose_rotations(program, most_keys=40)
    x = np.array([[0.5, -1.0, 0.25, 0.75]])
    np.testing.assert_allclose(run_clear(program, parameters, x)[0], circuit(x), atol=1e-9)
