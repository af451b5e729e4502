"""The outlines of steps: operands, levels and lazy rescaling."""

import numpy as np
import scipy.sparse as sp

from polynext.circuit import Circuit, lower
from polynext.circuit.graph import Input, Linear, Product
from polynext.circuit.maps import Matrix
from polynext.circuit.rewrites import factor_sums, merge_linear_maps, structured
from polynext.encrypted.compiler.materialised import Candidates
from polynext.encrypted.compiler.outlines import needed_prime_bits, outline_steps
from polynext.encrypted.runtime.levels import Scales
from polynext.encrypted.runtime.parameters import Parameters
from tests.circuit.conftest import small_network


def test_a_square_has_one_operand_and_the_output_follows() -> None:
    image = Input(shape=(2,))
    operand = Linear(shape=(2,), map=Matrix(sp.csr_array(np.eye(2))), source=image)
    square = Product(shape=(2,), left=operand, right=operand)
    output = Linear(shape=(1,), map=Matrix(sp.csr_array(np.ones((1, 2)))), source=square)
    first, last = outline_steps(Circuit(image, output))
    assert (first.operands, first.multiplies, first.level, first.result_level) == (((0,),), True, 0, 1)
    assert (last.operands, last.multiplies, last.level, last.result_level) == (((1,),), False, 1, 2)
    assert first.sources == {0} and last.sources == {1}


def test_lazy_rescaling_saves_levels_and_keeps_the_scale() -> None:
    candidates = Candidates(merge_linear_maps(factor_sums(structured(lower(small_network(stacks=2))))))
    circuit = candidates.circuit(next(candidates.by_reason()))
    eager, lazy = outline_steps(circuit), outline_steps(circuit, lazy=True)
    assert any(outline.lazy for outline in lazy) and not any(outline.lazy for outline in eager)
    assert lazy[-1].result_level < eager[-1].result_level
    depth = lazy[-1].result_level
    parameters = Parameters(2**15, (60,) * (depth + 2), 24, 16, 48, 28)
    bits = needed_prime_bits(lazy, parameters, shortest=24)
    assert len(bits) == depth and min(bits) >= 24
    scales = Scales(lazy, parameters)
    assert all(scale >= parameters.scale for scale in scales.values[:-1])
