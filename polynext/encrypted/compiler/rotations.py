"""Which rotation keys to make, and how to reach every rotation with them.

A key is many megabytes, so there should be few; a rotation without a key of its own takes several steps.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from polynext.encrypted.compiler.program_builder import giant_steps, wanted_babies
from polynext.encrypted.runtime.backends.protocol import CONJUGATION
from polynext.encrypted.runtime.program import Program, Step, Tree, conjugates

# A key is worth having if it saves this share of the time that all rotations take.
WORTH_A_KEY = 0.002
# Longer ways than this are not looked for.
LONGEST_PATH = 16


@dataclass(frozen=True)
class Task:
    """Rotations to reach from those there are, modulo a period; `at` says which of its trees a step gets."""

    step: int
    kind: str
    at: int
    have: frozenset[int]
    want: frozenset[int]
    period: int

    def grow(self, keys: Collection[int]) -> Tree | None:
        return grow(set(self.have), set(self.want), keys, self.period)


def choose_rotations(
    program: Program,
    most_keys: int,
    seconds: Callable[[int], float] = lambda level: 1.0,
    draft: bool = False,
) -> None:
    """Sets the program's rotation keys, and the trees of baby and giant steps that reach everything with them.

    `seconds` is what a rotation takes at a level. From all keys that may be of use, the one that saves least is left
    out, as long as that costs little or there are too many. A `draft` has all of them.
    """
    tasks = tasks_of(program)
    weights: dict[tuple[frozenset[int], frozenset[int], int], float] = {}
    alike: dict[tuple[frozenset[int], frozenset[int], int], Task] = {}
    for task in tasks:
        what = (task.have, task.want, task.period)
        alike[what] = task
        weights[what] = weights.get(what, 0.0) + seconds(program.steps[task.step].level)
    choice = Choice([(alike[what], weight) for what, weight in weights.items()], useful_keys(tasks, program.slots))
    enough = WORTH_A_KEY * choice.cost
    others = {CONJUGATION} if conjugates(program) else set()
    most_keys -= len(others)
    while choice.keys and not draft:
        more, key = min((choice.without(key), key) for key in choice.keys)
        if math.isinf(more) or (more > enough and len(choice.keys) <= most_keys):
            break
        choice.leave_out(key)
    program.rotations = tuple(sorted(choice.keys | others))
    for step in program.steps:
        step.babies, step.paths, step.giants = {}, {}, [[] for _ in step.forms]
    for task in tasks:
        tree = task.grow(choice.keys)
        assert tree is not None, "keys are left out only if everything is in reach without"
        step = program.steps[task.step]
        if task.kind == "babies":
            step.babies[task.at] = tree
        elif task.kind == "giants":
            step.giants[task.at] = tree
        else:
            step.paths[task.at] = [by for _, _, by in tree]


@dataclass(eq=False)
class Choice:
    """Keys, and the tree that each task has with them."""

    tasks: list[tuple[Task, float]]
    keys: set[int]
    trees: list[Tree] = field(default_factory=list)

    def __post_init__(self) -> None:
        for task, _ in self.tasks:
            tree = task.grow(sorted(self.keys))
            assert tree is not None, "powers of two reach everything"
            self.trees.append(tree)

    @property
    def cost(self) -> float:
        return sum(weight * len(tree) for (_, weight), tree in zip(self.tasks, self.trees, strict=True))

    def users(self, key: int) -> list[int]:
        return [i for i, tree in enumerate(self.trees) if any(by == key for _, _, by in tree)]

    def without(self, key: int) -> float:
        """What leaving out a key costs more: only those who use it need another tree."""
        total = 0.0
        rest = sorted(self.keys - {key})
        for i in self.users(key):
            task, weight = self.tasks[i]
            tree = task.grow(rest)
            if tree is None:
                return math.inf
            total += weight * (len(tree) - len(self.trees[i]))
        return total

    def leave_out(self, key: int) -> None:
        users = self.users(key)
        self.keys.remove(key)
        for i in users:
            tree = self.tasks[i][0].grow(sorted(self.keys))
            assert tree is not None
            self.trees[i] = tree


def tasks_of(program: Program) -> list[Task]:
    """All that takes rotations. Baby steps are there for later steps too."""
    made: dict[int, set[int]] = {}
    tasks = []
    nothing = frozenset({0})
    for number, step in enumerate(program.steps):
        for source, wanted in wanted_babies(step, step.stride).items():
            have = made.setdefault(source, {0})
            period = program.layouts[source].turn
            tasks.append(Task(number, "babies", source, frozenset(have), frozenset(wanted), period))
            have |= wanted
        for i, form in enumerate(step.forms):
            period = max(d.period for _, d in form.diagonals)
            tasks.append(Task(number, "giants", i, nothing, frozenset(giant_steps(form, step.stride)), period))
        for by in whole_rotations(step):
            tasks.append(Task(number, "paths", by, nothing, frozenset({by % program.slots}), program.slots))
    return tasks


def whole_rotations(step: Step) -> set[int]:
    """Those of a value for its own sake: to its other operand, and to sum over bits."""
    return ({step.pair} if step.pair else set()) | {bit for form in step.forms for bit in form.summed_bits}


def useful_keys(tasks: list[Task], slots: int) -> set[int]:
    """Powers of two both ways, which reach everything, and the steps that lead most often from one to another."""
    reach = max((min(by, task.period - by) for task in tasks for by in task.want), default=0)
    powers = [1 << i for i in range(reach.bit_length())]
    return {step % slots for power in powers for step in (power, -power)} | {d % slots for d in differences(tasks)}


def differences(tasks: list[Task], most: int = 24) -> list[int]:
    counts: Counter[int] = Counter()
    for task in tasks:
        for new in task.want - task.have:
            for start in task.have | task.want:
                gap = (new - start + task.period // 2) % task.period - task.period // 2
                if gap:
                    counts[gap] += 1
    return sorted(counts, key=lambda gap: (-counts[gap], abs(gap)))[:most]


def grow(have: set[int], want: set[int], keys: Collection[int], period: int) -> Tree | None:
    """Reaches the wanted rotations from those there are, one key each where possible; None if one is out of reach."""
    reached, missing = set(have), sorted(want - have, key=lambda by: min(by, period - by))
    tree: Tree = []
    while missing:
        near = ((by, (by - key) % period, key) for by in missing for key in keys if (by - key) % period in reached)
        found = next(near, None)
        path = [found] if found else shortest_path(reached, set(missing), keys, period)
        if path is None:
            return None
        for step in path:
            tree.append(step)
            reached.add(step[0])
        missing = [by for by in missing if by not in reached]
    return tree


def shortest_path(starts: set[int], goals: set[int], keys: Collection[int], period: int) -> Tree | None:
    """To the nearest goal; None if there is no way."""
    came: dict[int, tuple[int, int]] = {}
    frontier, seen = list(starts), set(starts)
    for _ in range(LONGEST_PATH):
        following = []
        for place in frontier:
            for key in keys:
                code = (place + key) % period
                if code in seen:
                    continue
                seen.add(code)
                came[code] = (place, key)
                if code in goals:
                    path: Tree = []
                    while code in came:
                        start, by = came[code]
                        path.append((code, start, by))
                        code = start
                    return path[::-1]
                following.append(code)
        frontier = following
    return None
