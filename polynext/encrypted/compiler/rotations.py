"""Which rotation keys to make, and how to compute every rotation with them.

A key has many megabytes, so there should be few. A rotation without a key of its own takes several steps. Rotations of
one value can share work (hoisting): with many keys all baby steps are rotations of the value itself, a star, and with
few keys they are rotations of each other, a chain.
"""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from polynext.encrypted.compiler.program_builder import giant_steps, wanted_babies
from polynext.encrypted.runtime.backends.protocol import CONJUGATION
from polynext.encrypted.runtime.program import Program, RotationTree, Step, conjugates

# A key is worth having if it saves this share of the time of all rotations.
WORTH_A_KEY = 0.002
# The longest sequence of keys that is tried for one rotation.
LONGEST_PATH = 16
# The number of frequent differences between rotations that are tried as keys, and of baby steps where rotations of one
# value share work.
FREQUENT_DIFFERENCES = 24
DIRECT_STEPS = 48


class RotationSeconds(NamedTuple):
    """The time of the first rotation of a value, and of each further one that is computed together with it."""

    first: float
    again: float


@dataclass(frozen=True)
class RotationGoal:
    """Rotations modulo a period that a step wants, and those that it starts from.

    `kind` is "babies", "giants" or "paths", and `key` the entry of that attribute of the step.
    """

    step: int
    kind: str
    key: int
    start: frozenset[int]
    wanted: frozenset[int]
    period: int

    def tree(self, keys: Collection[int]) -> RotationTree | None:
        return rotation_tree(set(self.start), set(self.wanted), keys, self.period)

    def seconds(self, tree: RotationTree, each: RotationSeconds) -> float:
        """The time of all rotations of a tree. Giant steps and paths rotate each value once."""
        firsts = sum(1 for _ in groupby(tree, key=itemgetter(1))) if self.kind == "babies" else len(tree)
        return firsts * each.first + (len(tree) - firsts) * each.again


def choose_rotations(
    program: Program,
    most_keys: int,
    seconds: Callable[[int], RotationSeconds] = lambda level: RotationSeconds(1.0, 1.0),
    trial: bool = False,
) -> None:
    """Sets the program's rotation keys, and the trees of baby and giant steps that use them.

    `seconds` is the time of rotations at a level. Starting from all useful keys, the key that saves least is removed
    as long as this costs little or there are too many. A `trial` has all of them.
    """
    goals = rotation_goals(program)
    weights: dict[tuple[bool, frozenset[int], frozenset[int], int], RotationSeconds] = {}
    distinct: dict[tuple[bool, frozenset[int], frozenset[int], int], RotationGoal] = {}
    for goal in goals:
        what = (goal.kind == "babies", goal.start, goal.wanted, goal.period)
        distinct[what] = goal
        each, so_far = seconds(program.steps[goal.step].level), weights.get(what, (0.0, 0.0))
        weights[what] = RotationSeconds(each.first + so_far[0], each.again + so_far[1])
    shares_work = any(each.again < each.first for each in weights.values())
    keys = useful_keys(goals, program.slots, DIRECT_STEPS if shares_work else 0)
    chosen = KeySet([(distinct[what], weight) for what, weight in weights.items()], keys)
    conjugation = {CONJUGATION} if conjugates(program) else set()
    if not trial:
        chosen.reduce(most_keys - len(conjugation), WORTH_A_KEY * chosen.cost)
    program.rotations = tuple(sorted(chosen.keys | conjugation))
    for step in program.steps:
        step.babies, step.paths, step.giants = {}, {}, [[] for _ in step.combinations]
    for goal in goals:
        tree = goal.tree(chosen.keys)
        assert tree is not None, "a key is removed only if all rotations can be reached without it"
        step = program.steps[goal.step]
        if goal.kind == "babies":
            step.babies[goal.key] = tree
        elif goal.kind == "giants":
            step.giants[goal.key] = tree
        else:
            step.paths[goal.key] = [by for _, _, by in tree]


@dataclass(eq=False)
class KeySet:
    """Rotation keys, and the tree of each goal with them. Goals have the seconds of their rotations."""

    goals: list[tuple[RotationGoal, RotationSeconds]]
    keys: set[int]
    trees: list[RotationTree] = field(default_factory=list)

    def __post_init__(self) -> None:
        for goal, _ in self.goals:
            tree = goal.tree(sorted(self.keys))
            assert tree is not None, "powers of two reach every rotation"
            self.trees.append(tree)

    @property
    def cost(self) -> float:
        return sum(goal.seconds(tree, each) for (goal, each), tree in zip(self.goals, self.trees, strict=True))

    def reduce(self, most: int, enough: float) -> None:
        """Removes keys, the one that saves least first, while there are more than `most` or it saves at most `enough`.

        A key saves more the fewer others there are, so that an earlier estimate is a lower bound.
        """
        estimates = [(self.cost_of_removing(key), key) for key in self.keys]
        heapq.heapify(estimates)
        while estimates:
            _, key = heapq.heappop(estimates)
            more = self.cost_of_removing(key)
            if estimates and more > estimates[0][0]:
                heapq.heappush(estimates, (more, key))
            elif math.isinf(more) or (more > enough and len(self.keys) <= most):
                break
            else:
                self.remove(key)

    def users(self, key: int) -> list[int]:
        return [i for i, tree in enumerate(self.trees) if any(by == key for _, _, by in tree)]

    def cost_of_removing(self, key: int) -> float:
        """The additional cost without a key. Only goals that use it need another tree."""
        total = 0.0
        rest = sorted(self.keys - {key})
        for i in self.users(key):
            goal, each = self.goals[i]
            tree = goal.tree(rest)
            if tree is None:
                return math.inf
            total += goal.seconds(tree, each) - goal.seconds(self.trees[i], each)
        return total

    def remove(self, key: int) -> None:
        users = self.users(key)
        self.keys.remove(key)
        for i in users:
            tree = self.goals[i][0].tree(sorted(self.keys))
            assert tree is not None
            self.trees[i] = tree


def rotation_goals(program: Program) -> list[RotationGoal]:
    """All rotations of a program. Baby steps are available to later steps too."""
    made: dict[int, set[int]] = {}
    goals = []
    unrotated = frozenset({0})
    for number, step in enumerate(program.steps):
        for source, wanted in wanted_babies(step, step.stride).items():
            available = made.setdefault(source, {0})
            period = program.layouts[source].turn
            goals.append(RotationGoal(number, "babies", source, frozenset(available), frozenset(wanted), period))
            available |= wanted
        for i, combination in enumerate(step.combinations):
            period = max(d.period for _, d in combination.diagonals)
            giants = frozenset(giant_steps(combination, step.stride))
            goals.append(RotationGoal(number, "giants", i, unrotated, giants, period))
        for by in path_rotations(step):
            goals.append(RotationGoal(number, "paths", by, unrotated, frozenset({by % program.slots}), program.slots))
    return goals


def path_rotations(step: Step) -> set[int]:
    """The rotations to the second operand of a pair, and for sums over bits."""
    return ({step.pair} if step.pair else set()) | {bit for each in step.combinations for bit in each.summed_bits}


def useful_keys(goals: list[RotationGoal], slots: int, direct: int) -> set[int]:
    """Powers of two in both directions, which reach every rotation, the most frequent differences, and the `direct`
    most frequent baby steps."""
    reach = max((min(by, goal.period - by) for goal in goals for by in goal.wanted), default=0)
    powers = [1 << i for i in range(reach.bit_length())]
    return {step % slots for power in powers for step in (power, -power)} | {
        step % slots for step in [*differences(goals), *frequent_babies(goals, direct)]
    }


def frequent_babies(goals: list[RotationGoal], count: int) -> list[int]:
    wanted = [(by, goal.period) for goal in goals if goal.kind == "babies" for by in goal.wanted if by]
    babies = Counter(by if 2 * by <= period else by - period for by, period in wanted)
    return sorted(babies, key=lambda by: (-babies[by], abs(by)))[:count]


def differences(goals: list[RotationGoal]) -> list[int]:
    """The most frequent differences between rotations of one goal."""
    counts: Counter[int] = Counter()
    for goal in goals:
        for new in goal.wanted - goal.start:
            for start in goal.start | goal.wanted:
                gap = (new - start + goal.period // 2) % goal.period - goal.period // 2
                if gap:
                    counts[gap] += 1
    return sorted(counts, key=lambda gap: (-counts[gap], abs(gap)))[:FREQUENT_DIFFERENCES]


def rotation_tree(start: set[int], wanted: set[int], keys: Collection[int], period: int) -> RotationTree | None:
    """Computes the wanted rotations from those at the start, with one key each where possible; None if one cannot be
    reached.

    Breadth first: from each rotation all others that it reaches, which are then next to each other in the tree.
    """
    reached, missing = set(start), wanted - start
    starts = sorted(start, key=lambda by: min(by, period - by))
    tree: RotationTree = []
    while missing:
        for place in starts:  # which grows
            for key in keys:
                new = (place + key) % period
                if new in missing:
                    tree.append((new, place, key))
                    missing.remove(new)
                    starts.append(new)
        reached.update(starts)
        if missing:
            path = shortest_path(reached, missing, keys, period)
            if path is None:
                return None
            tree += path
            starts = [new for new, _, _ in path]
            reached.update(starts)
            missing = missing - reached
    return tree


def shortest_path(starts: set[int], goals: set[int], keys: Collection[int], period: int) -> RotationTree | None:
    """The path to the nearest goal, by breadth-first search; None if there is none."""
    came_from: dict[int, tuple[int, int]] = {}
    frontier, seen = list(starts), set(starts)
    for _ in range(LONGEST_PATH):
        following = []
        for place in frontier:
            for key in keys:
                reached = (place + key) % period
                if reached in seen:
                    continue
                seen.add(reached)
                came_from[reached] = (place, key)
                if reached in goals:
                    path: RotationTree = []
                    while reached in came_from:
                        start, by = came_from[reached]
                        path.append((reached, start, by))
                        reached = start
                    return path[::-1]
                following.append(reached)
        frontier = following
    return None
