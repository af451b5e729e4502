"""Which rotation keys to make, and how to reach every baby step with them.

A key is many megabytes, so there should be few; a rotation without a key of its own takes several steps.
"""

import math
from collections import Counter
from collections.abc import Collection

from polynext.encrypted.program import Program, giant_steps, wanted_babies

Tree = list[tuple[int, int, int]]  # (new baby step, from, by which rotation)
Tasks = list[tuple[int, int, set[int], set[int], int]]  # (step, source, baby steps there are, those wanted, period)


def choose_rotations(program: Program, most_keys: int) -> None:
    """Sets the program's rotation keys and the baby steps of each of its steps.

    Keys that nothing else can replace come first (giant steps, sums over bits, pairs); then, one at a time, the key
    that saves most rotations, as long as there is one and there is room.
    """
    slots = program.slots
    needed = fixed_rotations(program)
    tasks = baby_tasks(program)
    keys = needed | powers_of_two(tasks)
    candidates = differences(tasks)
    now = cost(tasks, keys)
    fewest = sum(len(want - have) for _, _, have, want, _ in tasks)
    while now > fewest and len(keys) < most_keys:
        tried = [(cost(tasks, keys | {k % slots}), k % slots) for k in candidates if k % slots not in keys]
        if not tried or min(tried)[0] >= now:
            break
        now, best = min(tried)
        keys.add(best)
    for key in sorted(keys - needed):  # one that became useless
        if cost(tasks, keys - {key}) == now:
            keys.discard(key)
    program.rotations = tuple(sorted(keys))
    for number, source, have, want, period in tasks:
        tree = grow(have, want, keys, period)
        assert tree is not None, "powers of two reach everything"
        program.steps[number].babies[source] = tree


def fixed_rotations(program: Program) -> set[int]:
    """Those that only a key of their own can do."""
    steps: set[int] = set()
    for step in program.steps:
        steps |= {step.pair} if step.pair else set()
        for form in step.forms:
            steps |= set(form.summed_bits)
            steps |= {by for by, n in step.stride.rotations(giant_steps(form, step.stride)).items() if n}
    return {by % program.slots for by in steps}


def used_rotations(program: Program) -> set[int]:
    """Every rotation that running the program takes a key for."""
    trees = [tree for step in program.steps for tree in step.babies.values()]
    return fixed_rotations(program) | {by for tree in trees for _, _, by in tree}


def baby_tasks(program: Program) -> Tasks:
    """For each step and source the baby steps wanted, with those left from the steps before."""
    made: dict[int, set[int]] = {}
    tasks = []
    for number, step in enumerate(program.steps):
        for source, wanted in wanted_babies(step, step.stride).items():
            period = program.layouts[source].turn
            have = made.setdefault(source, {0})
            tasks.append((number, source, set(have), wanted, period))
            have |= wanted
    return tasks


def powers_of_two(tasks: Tasks) -> set[int]:
    """Rotations by powers of two: few, and enough to reach everything."""
    reach = max((min(baby, period - baby) for *_, want, period in tasks for baby in want), default=0)
    return {1 << i for i in range(reach.bit_length())}


def differences(tasks: Tasks, most: int = 24) -> list[int]:
    """The steps that lead most often from one baby step to another."""
    counts: Counter[int] = Counter()
    for *_, have, want, period in tasks:
        for new in want - have:
            for start in have | want:
                gap = (new - start + period // 2) % period - period // 2
                if gap:
                    counts[gap] += 1
    return sorted(counts, key=lambda gap: (-counts[gap], abs(gap)))[:most]


def cost(tasks: Tasks, keys: Collection[int]) -> float:
    """How many rotations it takes to make all baby steps; infinite if these keys cannot."""
    total = 0
    for _, _, have, want, period in tasks:
        tree = grow(have, want, keys, period)
        if tree is None:
            return math.inf
        total += len(tree)
    return total


def grow(have: set[int], want: set[int], keys: Collection[int], period: int) -> Tree | None:
    """Reaches the wanted baby steps from those there are, one rotation each where possible; None if one is out of
    reach."""
    reached, missing = set(have), sorted(want - have, key=lambda baby: min(baby, period - baby))
    tree: Tree = []
    while missing:
        near = (
            (baby, (baby - key) % period, key) for baby in missing for key in keys if (baby - key) % period in reached
        )
        found = next(near, None)
        path = [found] if found else shortest_path(reached, set(missing), keys, period)
        if path is None:
            return None
        for step in path:
            tree.append(step)
            reached.add(step[0])
        missing = [baby for baby in missing if baby not in reached]
    return tree


def shortest_path(starts: set[int], goals: set[int], keys: Collection[int], period: int) -> Tree | None:
    """To the nearest goal; None if there is no way."""
    came: dict[int, tuple[int, int]] = {}
    frontier, seen = list(starts), set(starts)
    while frontier:
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
