"""Maps that keep their structure: the same as their matrices, and the same diagonals in the slots."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polynext.circuit import Circuit, lower
from polynext.circuit.graph import Linear
from polynext.circuit.maps import Convolution, Gather, LinearMap, Scale, chain
from polynext.circuit.rewrites import expand_sums, factor_sums, merge_linear_maps, patches_first, rebase, structured
from polynext.circuit.structure import Kronecker, kronecker
from polynext.encrypted import ClientSpec, Limits, make_plan
from polynext.encrypted.compiler.materialised import BASIS, worth_materialising
from polynext.encrypted.compiler.packing import make_diagonals, make_layout, make_target, matrix_diagonals
from polynext.encrypted.compiler.planner import DoesNotFitError
from polynext.encrypted.compiler.precision import NoisyEvaluator, flipped
from polynext.encrypted.compiler.prepare import client_spec_for
from polynext.encrypted.files import check_fits, header_for
from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.parameters import Parameters
from polynext.errors import PolyNeXtError
from polynext.models.network import FullyPolynomialBlocks, PolyNeXt, PolyNeXtConfig, StageConfig
from polynext.preprocessing import Preprocessing
from tests.circuit.test_circuit import settled
from tests.encrypted.conftest import SAME_EVERYWHERE, logits, run_clear, run_encrypted

SIZE = 4


@st.composite
def pieces(draw: st.DrawFn) -> tuple[list[LinearMap], int]:
    """Layers of a network on 4x4 feature maps, the last of them maybe to 2x2, and the channels they begin with."""
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    first = channels = draw(st.sampled_from([1, 2, 4]))
    made: list[LinearMap] = []
    for kind in draw(st.lists(st.sampled_from(["mix", "depthwise", "norm", "flip"]), min_size=1, max_size=4)):
        if kind == "mix":
            more = draw(st.sampled_from([2, 4]))
            made.append(Convolution(rng.normal(size=(more, channels, 1, 1)), (SIZE, SIZE)))
            channels = more
        elif kind == "depthwise":
            dilation = draw(st.sampled_from([1, 2]))
            both = (dilation, dilation)
            weight = rng.normal(size=(channels, 1, 3, 3))
            made.append(Convolution(weight, (SIZE, SIZE), padding=both, dilation=both, groups=channels))
        elif kind == "norm":
            made.append(Scale(np.outer(rng.normal(size=channels), rng.normal(size=SIZE * SIZE)).ravel()))
        else:
            entries = np.arange(channels * SIZE * SIZE).reshape(channels, -1)
            made.append(Gather(entries[::-1].ravel(), entries.size))
    if draw(st.booleans()):
        weight = rng.normal(size=(2 * channels, channels, 3, 3))
        made.append(Convolution(weight, (SIZE, SIZE), stride=(2, 2), padding=(1, 1)))
    return made, first


@given(pieces())
@settings(deadline=None, max_examples=60)
def test_a_structure_is_the_matrix(case: tuple[list[LinearMap], int]) -> None:
    made, _ = case
    whole = chain(made)
    found = kronecker(whole, SIZE * SIZE)
    assert found is not None
    np.testing.assert_allclose(found.matrix().toarray(), whole.matrix().toarray(), atol=1e-9)
    x = np.random.default_rng(0).normal(size=(3, whole.n_in))
    np.testing.assert_allclose(found(x), whole(x), atol=1e-9)


@given(pieces(), st.sampled_from([1, 2]), st.booleans(), st.sampled_from([1, 2]))
@settings(deadline=None, max_examples=60)
def test_diagonals_by_structure_are_those_written_out(
    case: tuple[list[LinearMap], int], images: int, mirrored: bool, phases: int
) -> None:
    made, channels = case
    found = kronecker(chain(made), SIZE * SIZE)
    assert found is not None
    side = math.isqrt(found.shape_out[1])
    source = make_layout((channels, SIZE, SIZE), range(3), images, 1024, mirrored, phases=phases)
    layout = make_layout(
        (found.shape_out[0], side, side), range(3), images, 1024, mirrored, phases=min(phases, side // 2)
    )
    assert source is not None and layout is not None
    target, _ = make_target(layout, 2)
    repeated = 1023 & ~target.used & ~source.used
    by_structure = make_diagonals([found, found], source, target, repeated, images)
    below = sp.vstack([found.matrix(), found.matrix()])
    written = matrix_diagonals(below, source, target, repeated, images)
    np.testing.assert_array_equal(by_structure.offsets, written.offsets)
    for i in range(len(written.offsets)):
        np.testing.assert_allclose(by_structure.vector(i), written.vector(i), atol=1e-9)


def patch_network(stem_kernel: int = 2) -> PolyNeXt:
    torch.manual_seed(0)
    stage = StageConfig(width=4, cells=1, stacks=1, coarse_kernel=3)
    config = PolyNeXtConfig(stages=(stage,), scale_logits=(1.0, 0.5), stem_kernel=stem_kernel, stem_stride=2)
    model = PolyNeXt(config, in_chans=3, num_classes=3, img_size=8, blocks=FullyPolynomialBlocks())
    return settled(model, torch.randn(64, 3, 8, 8))


@pytest.fixture(scope="module")
def patches() -> PolyNeXt:
    return patch_network()


@pytest.fixture(scope="module")
def lowered(patches: PolyNeXt) -> Circuit:
    return lower(patches)


def test_every_map_of_a_network_keeps_its_structure(patches: PolyNeXt, lowered: Circuit) -> None:
    circuit = merge_linear_maps(factor_sums(structured(patches_first(lowered))))
    assert circuit.input.shape == (12, 4, 4)
    assert all(isinstance(node.map, Kronecker) for node in circuit.order if isinstance(node, Linear))
    bases = [node for node, why in worth_materialising(circuit).items() if BASIS in why and isinstance(node, Linear)]
    rebased = rebase(circuit, *bases)
    assert bases and rebased is not None
    images = np.random.default_rng(0).normal(size=(2, 3, 8, 8))
    for rewritten in (circuit, expand_sums(circuit), expand_sums(rebased)):
        np.testing.assert_allclose(rewritten(images), logits(patches, images), atol=1e-9)


@pytest.mark.parametrize("kernel", [2, 3])
def test_clients_pack_pictures_in_patches(kernel: int) -> None:
    """The offer says where each pixel goes, several places if patches overlap; a server that takes patches has few
    diagonals."""
    patches = patch_network(kernel)
    lowered = lower(patches)
    images = np.random.default_rng(0).normal(size=(8, 3, 8, 8))
    limits = Limits(memory=4 * 2**30, keys=2**30, error=0.1, flips=1.0)
    plan = make_plan(lowered, images, limits=limits, backend="clear", costs=SAME_EVERYWHERE)
    spec = ClientSpec.from_json(client_spec_for(plan, Preprocessing(size=8, resize=8), ("a", "b", "c")).to_json())
    assert spec.image_shape == (3, 8, 8)
    layout = spec.image_layout
    np.testing.assert_array_equal(layout.unpack(spec.pack(images[:1])), images[:1].reshape(1, -1))
    result, counted = run_clear(plan.program, plan.parameters, images[:1])
    np.testing.assert_allclose(result, logits(patches, images[:1]), atol=1e-9)
    assert counted.total("multiply_plain") == plan.cost.plaintext_products
    # The image's own map has one diagonal for each distance between channels and not one for each between pixels.
    assert len(plan.program.steps[0].combinations[0].terms[0].offsets) <= 9 * 16


def test_halving_the_resolution_takes_few_diagonals() -> None:
    """Positions of one phase lie together, so that the map to half the resolution sees them as channels."""
    torch.manual_seed(0)
    stages = tuple(StageConfig(width=width, cells=1, stacks=1, coarse_kernel=3) for width in (4, 8))
    config = PolyNeXtConfig(stages=stages, scale_logits=(1.0, 0.5) * 2, stem_kernel=1, stem_stride=1)
    model = PolyNeXt(config, in_chans=3, num_classes=3, img_size=16, blocks=FullyPolynomialBlocks())
    settled(model, torch.randn(64, 3, 16, 16))
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


def test_the_noise_of_a_rotation_is_known_slot_by_slot() -> None:
    """The first slots have a hundred times that of the others."""
    parameters = Parameters(2**13, (40, 40, 40), 30, 30, 36, 30)
    ring = get_backend("seal").ring(parameters)
    found = []
    for _ in range(24):
        key = ring.generate_key()
        rotated = ring.evaluator(key.evaluation_keys([1])).rotate(key.encrypt(np.zeros(parameters.slots)), 1)
        found.append(key.decrypt(rotated))
    measured = np.sqrt(np.mean(np.square(found), axis=0))
    predicted = NoisyEvaluator(parameters, (1,)).switching(0) * np.sqrt(parameters.slots) / parameters.input_scale
    assert predicted[0] > 50 * np.median(predicted)
    np.testing.assert_allclose(measured[:3], predicted[:3], rtol=0.7)
    np.testing.assert_allclose(np.median(measured), np.median(predicted), rtol=0.1)


def test_the_error_of_the_logits_is_told_beforehand(patches: PolyNeXt, lowered: Circuit) -> None:
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


def test_files_of_another_seal_are_refused_with_a_sentence(spec: ClientSpec) -> None:
    header = {**header_for(spec, "a key"), "file_format": "SEAL 1.0", "library": "tenseal 0.1"}
    with pytest.raises(PolyNeXtError, match=r"was written by SEAL 1\.0 \(tenseal 0\.1\), and this is "):
        check_fits(Path("keys"), header, spec)
