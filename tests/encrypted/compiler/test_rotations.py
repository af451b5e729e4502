"""Rotation keys: all rotations are reached, within the limit of keys."""

from hypothesis import given
from hypothesis import strategies as st

from polynext.encrypted import Plan
from polynext.encrypted.compiler.program_builder import build_program
from polynext.encrypted.compiler.rotations import RotationGoal, RotationSeconds, choose_rotations, rotation_tree
from polynext.encrypted.runtime.cost import estimate_cost
from tests.encrypted.conftest import SAME_EVERYWHERE


@given(st.sets(st.integers(0, 63), min_size=1), st.sets(st.integers(1, 63), max_size=4))
def test_rotations_are_reached_with_the_given_keys(want: set[int], more: set[int]) -> None:
    keys = {1, 2, 4, 8, 16, 32} | more
    reached = {0}
    tree = rotation_tree({0}, want, keys, 64)
    assert tree is not None
    for new, start, key in tree:
        assert start in reached and key in keys and (start + key) % 64 == new
        reached.add(new)
    assert want <= reached
    assert rotation_tree({0}, want | {1}, {2, 32}, 64) is None


def test_rotations_of_one_value_are_computed_together() -> None:
    """A star with a key for each baby step, which are all rotations of one value, and a chain with one key."""
    each = RotationSeconds(first=10.0, again=1.0)
    goal = RotationGoal(0, "babies", 0, frozenset({0}), frozenset(range(1, 6)), 64)
    star, chain = goal.tree(range(1, 6)), goal.tree([1])
    assert star is not None and {start for _, start, _ in star} == {0}
    assert chain is not None and [start for _, start, _ in chain] == [0, 1, 2, 3, 4]
    assert goal.seconds(star, each) == 14.0 and goal.seconds(chain, each) == 50.0
    giants = RotationGoal(0, "giants", 0, frozenset({0}), frozenset(range(1, 6)), 64)
    assert giants.seconds(star, each) == 50.0  # each giant step rotates another sum


def test_cheap_further_rotations_are_worth_more_keys(plan: Plan) -> None:
    found = []
    for again in (1.0, 0.1):
        program = build_program(plan.circuit, plan.program.slots, plan.images)
        choose_rotations(program, 40, lambda level, again=again: RotationSeconds(1.0, again))
        babies = [tree for step in program.steps for tree in step.babies.values()]
        starts = sum(len({start for _, start, _ in tree}) for tree in babies)
        found.append((len(program.rotations), -starts))
    assert found[1] >= found[0]


def test_fewer_keys_need_more_rotations(plan: Plan) -> None:
    """The key budget is materialised, and only costs time."""
    estimates = []
    for most_keys in (len(plan.program.rotations), 1):
        program = build_program(plan.circuit, plan.program.slots, plan.images)
        choose_rotations(program, most_keys)
        estimates.append(estimate_cost(program, plan.parameters, SAME_EVERYWHERE(2**14)))
    many, few = estimates
    assert few.rotation_keys <= many.rotation_keys and few.rotations >= many.rotations
