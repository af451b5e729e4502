"""Packing, plans and programs: exact in the clear, and the same after a file."""

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from polynext.circuit import Circuit, lower
from polynext.circuit.graph import Input, Linear, Product
from polynext.circuit.maps import Matrix
from polynext.circuit.rewrites import factor_sums, merge_linear_maps, structured
from polynext.encrypted import Limits, Plan, make_plan
from polynext.encrypted.compiler.complex_packing import pack_complex_values
from polynext.encrypted.compiler.materialised import Candidates
from polynext.encrypted.compiler.outlines import outline_steps
from polynext.encrypted.compiler.packing import make_layout
from polynext.encrypted.compiler.planner import DoesNotFitError, choose_parameters
from polynext.encrypted.compiler.program_builder import build_program, choose_giant_steps
from polynext.encrypted.compiler.rotations import choose_rotations, rotation_tree
from polynext.encrypted.runtime.backends.protocol import STANDARD_SECURITY
from polynext.encrypted.runtime.cost import estimate_cost
from polynext.encrypted.runtime.levels import Scales
from polynext.encrypted.runtime.parameters import Parameters
from polynext.encrypted.runtime.program import Program, Stride
from polynext.encrypted.runtime.program_file import load_program, save_program
from polynext.errors import PolyNeXtError
from polynext.models.network import FullyPolynomialBlocks, PolyNeXt, PolyNeXtConfig, StageConfig
from tests.circuit.test_circuit import settled, small_network
from tests.encrypted.conftest import SAME_EVERYWHERE, logits, run_clear


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
    st.sampled_from([1, 2]),
)
@settings(deadline=None, max_examples=50)
def test_what_is_packed_can_be_unpacked(shape: list[int], images: int, mirrored: bool, groups: int) -> None:
    layout = make_layout(shape, range(len(shape)), images, 256, mirrored)
    assert layout is not None
    if groups > 1:
        assume(1 < layout.period <= 64)
        layout = layout.spread(groups, 64)
    values = np.random.default_rng(0).normal(size=(images, int(np.prod(shape))))
    vector = layout.pack(values)
    np.testing.assert_array_equal(layout.unpack(vector), values)
    for g, codes in enumerate(layout.copies()):
        np.testing.assert_array_equal(vector[codes], values)
        assert ((codes // layout.block == g) if groups > 1 else (codes >= 0)).all()


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


def after_a_file(program: Program) -> Program:
    with tempfile.TemporaryDirectory() as folder:
        save_program(program, Path(folder) / "program.npz")
        return load_program(Path(folder) / "program.npz")


@given(bilinear())
@settings(deadline=None, max_examples=80)
def test_a_program_computes_its_circuit_also_after_a_file(case: tuple[Circuit, int, int]) -> None:
    circuit, images, spread = case
    program = build_program(circuit, 1024, images, spread=range(spread))
    choose_rotations(program, most_keys=40)
    parameters = Parameters(2048, (30, 50, 40, 50), 30, 26, 34, 32)
    x = np.random.default_rng(0).normal(size=(images, *circuit.input.shape))
    result, _ = run_clear(program, parameters, x)
    np.testing.assert_allclose(result, circuit(x), atol=1e-9)
    loaded = after_a_file(program)
    np.testing.assert_array_equal(run_clear(loaded, parameters, x)[0], result)
    estimates = [estimate_cost(each, parameters, SAME_EVERYWHERE(2**13)) for each in (program, loaded)]
    assert estimates[0] == estimates[1]


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_giant_and_baby_steps_make_up_the_offset(data: st.DataObject) -> None:
    period = 2 ** data.draw(st.integers(1, 10))
    stride = Stride(2 ** data.draw(st.integers(0, 10)))
    offsets = np.arange(period)
    giants, babies = stride.decompose(offsets, period)
    np.testing.assert_array_equal((giants + babies) % period, offsets)


@given(st.sets(st.integers(0, 63), min_size=1), st.sets(st.integers(1, 63), max_size=4))
def test_baby_steps_are_reached_with_the_keys_there_are(want: set[int], more: set[int]) -> None:
    keys = {1, 2, 4, 8, 16, 32} | more
    reached = {0}
    tree = rotation_tree({0}, want, keys, 64)
    assert tree is not None
    for new, start, key in tree:
        assert start in reached and key in keys and (start + key) % 64 == new
        reached.add(new)
    assert want <= reached
    assert rotation_tree({0}, want | {1}, {2, 32}, 64) is None


def test_products_of_products_come_back_to_the_scale() -> None:
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


@pytest.mark.parametrize("lazy", [True, False])
def test_two_values_in_one_ciphertext_are_what_they_were_apart(lazy: bool) -> None:
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
    assert counted.total("rotate") == together.rotations
    for step in program.steps[::2]:
        step.keep_encoded = False
    loaded = after_a_file(program)
    np.testing.assert_array_equal(run_clear(loaded, parameters, images)[0], result)
    assert estimate_cost(loaded, parameters, SAME_EVERYWHERE(2**15)).plaintext_bytes < together.plaintext_bytes


def test_a_plan_agrees_with_the_model_and_the_bill(plan: Plan, trained: Any, examples: np.ndarray) -> None:
    images = examples[: plan.images]
    result, counted = run_clear(plan.program, plan.parameters, images)
    np.testing.assert_allclose(result, logits(trained, images), atol=1e-9)
    assert counted.total("rotate") == plan.cost.rotations
    assert counted.total("multiply") == plan.cost.ciphertext_products
    assert counted.total("multiply_plain") == plan.cost.plaintext_products
    assert counted.ciphertext_bytes == plan.cost.ciphertext_bytes


def test_what_does_not_fit_says_how_far_it_is(circuit: Circuit, examples: np.ndarray) -> None:
    with pytest.raises(DoesNotFitError, match=r"need a modulus of .* bits where 128-bit security allows 218"):
        make_plan(circuit, examples, limits=Limits(ring_degrees=(2**13,)), costs=SAME_EVERYWHERE)
    with pytest.raises(DoesNotFitError, match=r"rotation keys take .* MB where 20 MB are allowed"):
        make_plan(circuit, examples, limits=Limits(keys=20 * 2**20), costs=SAME_EVERYWHERE)
    with pytest.raises(DoesNotFitError, match=r"of memory where 50 MB are allowed"):
        make_plan(circuit, examples, limits=Limits(memory=50 * 2**20), costs=SAME_EVERYWHERE)
    with pytest.raises(DoesNotFitError, match="does not fit into 8192 slots: put fewer images"):
        make_plan(circuit, examples, images=1024, limits=Limits(ring_degrees=(2**14,)), costs=SAME_EVERYWHERE)
    with pytest.raises(PolyNeXtError, match="the seal backend has no ring degree 65536: choose among 8192, 16384"):
        make_plan(circuit, examples, limits=Limits(ring_degrees=(2**16,)), costs=SAME_EVERYWHERE)
    with pytest.raises(PolyNeXtError, match="`error` is -1"):
        Limits(error=-1)


def test_fewer_keys_take_more_rotations(plan: Plan) -> None:
    """The key budget is materialised, and only costs time."""
    estimates = []
    for most_keys in (len(plan.program.rotations), 1):
        program = build_program(plan.circuit, plan.program.slots, plan.images)
        choose_rotations(program, most_keys)
        estimates.append(estimate_cost(program, plan.parameters, SAME_EVERYWHERE(2**14)))
    many, few = estimates
    assert few.rotation_keys <= many.rotation_keys and few.rotations >= many.rotations


def test_attention_is_planned() -> None:
    stages = (
        StageConfig(width=4, cells=1, stacks=1, coarse_kernel=3),
        StageConfig(width=4, cells=1, stacks=1, mixer="attention"),
    )
    config = PolyNeXtConfig(stages=stages, scale_logits=(1.0, 0.5), stem_kernel=3, stem_stride=1)
    model = PolyNeXt(config, in_chans=1, num_classes=3, img_size=4, blocks=FullyPolynomialBlocks())
    settled(model, torch.randn(64, 1, 4, 4))
    images = np.random.default_rng(0).normal(size=(4, 1, 4, 4))
    limits = Limits(ring_degrees=(2**15,), keys=2**30, error=1.0, flips=1.0)
    plan = make_plan(lower(model), images, limits=limits, backend="clear", costs=SAME_EVERYWHERE)
    result, _ = run_clear(plan.program, plan.parameters, images[:1])
    np.testing.assert_allclose(result, logits(model, images[:1]), atol=1e-8)


def change_header(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    with np.load(path) as file:
        arrays = dict(file)
    header = json.loads(str(arrays["header"]))
    change(header)
    np.savez(path, **{**arrays, "header": np.array(json.dumps(header))})


def without_the_last_layout(header: dict[str, Any]) -> None:
    header["program"]["layouts"].pop()


def change_step(header: dict[str, Any], **fields: Any) -> None:
    header["program"]["steps"][-1].update(fields)


BAD_HEADERS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another format": (lambda h: h.update(format="circuit"), "it is version 4 of circuit"),
    "another version": (lambda h: h.update(version=1), "it is version 1"),
    "unknown fields": (lambda h: h["program"].update(refreshes=3), "refreshes"),
    "fewer slots": (lambda h: h["program"].update(slots=64), "another number of slots"),
    "fewer layouts": (without_the_last_layout, "one layout for each value"),
    "fewer keys": (lambda h: h["program"].update(rotations=[]), "no keys to rotate by"),
    "a later value": (lambda h: change_step(h, operands=[99]), "not computed yet"),
    "a missing array": (lambda h: h["program"]["layouts"][0].update(codes={"array": "nowhere"}), "nowhere"),
}


@pytest.mark.parametrize("bad", BAD_HEADERS)
def test_programs_that_cannot_be_run_are_refused(plan: Plan, tmp_path: Path, bad: str) -> None:
    path = tmp_path / "program.npz"
    save_program(plan.program, path)
    change, sentence = BAD_HEADERS[bad]
    change_header(path, change)
    with pytest.raises(PolyNeXtError, match=rf"{sentence}.*run `polynext encrypted prepare` again"):
        load_program(path)


@pytest.mark.parametrize("field", ["where", "offsets", "repeat", "starts", "values", "blocks"])
def test_diagonals_that_reach_beyond_the_slots_are_refused(plan: Plan, tmp_path: Path, field: str) -> None:
    loaded = after_a_file(plan.program)
    terms = loaded.steps[0].combinations[0].terms
    source, diagonals = next(iter(terms.items()))
    holder = diagonals.outer if field in ("where", "values") else diagonals
    numbers = getattr(holder, field)
    beyond = numbers[:, :-1] if field == "values" else np.concatenate([numbers[:-1], numbers[-1:] + 2**14])
    changed = replace(holder, **{field: beyond})
    terms[source] = replace(diagonals, outer=changed) if holder is diagonals.outer else changed
    save_program(loaded, tmp_path / "program.npz")
    with pytest.raises(PolyNeXtError, match="diagonals exceed the slots"):
        load_program(tmp_path / "program.npz")


def test_damaged_programs_are_refused(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "program.npz"
    save_program(plan.program, path)
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[len(damaged) // 2] ^= 1
    for data in (bytes(damaged), whole[: len(whole) // 2], b"", b"GIF89a" * 100):
        path.write_bytes(data)
        with pytest.raises(PolyNeXtError, match="is not a program that this version"):
            load_program(path)
