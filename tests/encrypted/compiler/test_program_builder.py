"""Programs compute their circuits, with few diagonals."""

import numpy as np
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polynext.circuit import Circuit, lower
from polynext.circuit.graph import Input, Linear, Product
from polynext.circuit.maps import Matrix
from polynext.encrypted import Limits, make_plan
from polynext.encrypted.compiler.program_builder import build_program
from polynext.encrypted.compiler.rotations import choose_rotations
from polynext.encrypted.runtime.cost import estimate_cost
from polynext.encrypted.runtime.parameters import Parameters
from polynext.models import FullyPolynomialBlocks, PolyNeXt, PolyNeXtConfig, StageConfig
from tests.circuit.conftest import with_statistics
from tests.encrypted.conftest import SAME_EVERYWHERE, logits, run_clear, saved_and_loaded


@st.composite
def bilinear(draw: st.DrawFn) -> tuple[Circuit, int, int]:
    """`C ((A x) * (B x))` for random sparse maps of random shapes."""
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    inner = (draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    classes, images = draw(st.integers(1, 5)), draw(st.sampled_from([1, 2, 4]))
    rng = np.random.default_rng(draw(st.integers(0, 999)))

    def random_map(rows: int, columns: int) -> Matrix:
        dense = rng.normal(size=(rows, columns)) * (rng.random((rows, columns)) < 0.5)
        dense[0, 0] = 1.0
        return Matrix(sp.csr_array(dense))

    image = Input(shape=shape)
    size = int(np.prod(inner))
    operands = [Linear(shape=inner, map=random_map(size, image.size), source=image, bias=rng.normal(size=size))]
    operands.append(Linear(shape=inner, map=random_map(size, image.size), source=image))
    product = Product(shape=inner, left=operands[0], right=operands[-draw(st.integers(1, 2))])
    output = Linear(shape=(classes,), map=random_map(classes, size), source=product, bias=rng.normal(size=classes))
    return Circuit(image, output), images, draw(st.sampled_from([0, 1, 2]))


@given(bilinear())
@settings(deadline=None, max_examples=80)
def test_a_program_computes_its_circuit_before_and_after_saving(case: tuple[Circuit, int, int]) -> None:
    circuit, images, spread = case
    program = build_program(circuit, 1024, images, spread=range(spread))
    choose_rotations(program, most_keys=40)
    parameters = Parameters(2048, (30, 50, 40, 50), 30, 26, 34, 32)
    x = np.random.default_rng(0).normal(size=(images, *circuit.input.shape))
    result, _ = run_clear(program, parameters, x)
    np.testing.assert_allclose(result, circuit(x), atol=1e-9)
    loaded = saved_and_loaded(program)
    np.testing.assert_array_equal(run_clear(loaded, parameters, x)[0], result)
    estimates = [estimate_cost(each, parameters, SAME_EVERYWHERE(2**13)) for each in (program, loaded)]
    assert estimates[0] == estimates[1]


def test_halving_the_resolution_takes_few_diagonals() -> None:
    """Positions of one phase lie together, so that the map to half the resolution sees them as channels."""
    torch.manual_seed(0)
    stages = tuple(StageConfig(width=width, cells=1, stacks=1, coarse_kernel=3) for width in (4, 8))
    config = PolyNeXtConfig(stages=stages, scale_logits=(1.0, 0.5) * 2, stem_kernel=1, stem_stride=1)
    model = PolyNeXt(config, in_chans=3, num_classes=3, img_size=16, blocks=FullyPolynomialBlocks())
    with_statistics(model, torch.randn(64, 3, 16, 16))
    images = np.random.default_rng(0).normal(size=(8, 3, 16, 16))
    limits = Limits(memory=4 * 2**30, keys=2**30, error=0.1, flips=1.0)
    plan = make_plan(lower(model), images, limits=limits, backend="clear", costs=SAME_EVERYWHERE)
    result, _ = run_clear(plan.program, plan.parameters, images[:1])
    np.testing.assert_allclose(result, logits(model, images[:1]), atol=1e-9)
    sizes = [layout.codes.shape[1] for layout in plan.program.layouts]
    first = sizes.index(8 * 8 * 8)
    (combination,) = plan.program.steps[first - 1].combinations
    # A channel less for each, or one more: 8 distances. Each tap is one phase, or the same of a neighbour: 4 shifts.
    assert all(len(combination.offsets(source)) <= 8 * 4 for source in combination.sources)
