"""Which values of a circuit are computed for their own sake: what the planner's search goes through."""

import copy
import itertools
from collections.abc import Iterator

from polynext.circuit.graph import Circuit, Input, Linear, Node, Product, Sum
from polynext.circuit.rewrites import inverse, mixes_positions_only, rebase, unbuild_sums
from polynext.circuit.structure import Kronecker

# Why a value may be worth computing for its own sake: as a well-conditioned map of a sum it can stand for the sum, and
# as a less well-conditioned one it can, if noise is small; it mixes positions before channels are mixed; or several
# products need it.
BASIS, SKEWED, POSITIONS, SHARED = "basis", "skewed", "positions", "shared"
SKEWED_CONDITION = 4.0

Kept = frozenset[tuple[Node, str]]  # values that are computed for their own sake, and why


class Choices:
    """The values of a circuit that may be worth computing for their own sake, and the circuits with some of them."""

    def __init__(self, merged: Circuit):
        self.merged = merged
        self.reasons = worth_keeping(merged)
        self.unbuilt: dict[Kept, Circuit] = {}

    @property
    def skewed(self) -> bool:
        return any(SKEWED in reasons for reasons in self.reasons.values())

    def without_skewed(self) -> "Choices":
        less = copy.copy(self)
        less.reasons = {node: tuple(r for r in reasons if r != SKEWED) for node, reasons in self.reasons.items()}
        return less

    def circuit(self, kept: Kept) -> Circuit:
        """The circuit with these values kept and all other sums unbuilt; raises if its maps grow too wide."""
        if kept in self.unbuilt:
            return self.unbuilt[kept]
        made = unbuild_sums(with_kept(self.merged, kept))
        if all(isinstance(node.map, Kronecker) for node in made.order if isinstance(node, Linear)):
            self.unbuilt[kept] = made  # the matrices of others would fill the memory
        return made

    def by_reason(self) -> Iterator[Kept]:
        """All values that there are some reasons for, the most reasons first; any basis is one reason."""
        known = [{BASIS, SKEWED}, {POSITIONS}, {SHARED}]
        for count in reversed(range(len(known) + 1)):
            for groups in itertools.combinations(known, count):
                chosen = set().union(*groups)
                allowed = {node: [r for r in reasons if r in chosen] for node, reasons in self.reasons.items()}
                yield frozenset((node, reasons[0]) for node, reasons in allowed.items() if reasons)

    def near(self, kept: Kept) -> Iterator[Kept]:
        """One value more, one less, or one for another reason."""
        for node, reasons in self.reasons.items():
            others = frozenset(each for each in kept if each[0] is not node)
            for changed in (others, *(others | {(node, reason)} for reason in reasons)):
                if changed != kept:
                    yield changed


def worth_keeping(merged: Circuit) -> dict[Node, tuple[str, ...]]:
    """Values that may be worth computing for their own sake, and why, the best reason first."""
    users = merged.users()
    served: dict[Node, set[Node]] = {merged.output: {merged.output}}  # the products that take a value, through maps
    for node in reversed(merged.order):
        for user in users[node]:
            served.setdefault(node, set()).update({user} if isinstance(user, Product) else served[user])
    found: dict[Node, tuple[str, ...]] = {}
    for node in merged.order:
        if isinstance(node, Input | Product) or node is merged.output:
            continue
        several = len(users[node]) > 1
        shared = (SHARED,) if several and len(served[node]) > 1 else ()
        match node:
            case Linear(source=Product(), map=m) if mixes_positions_only(m):
                found[node] = (POSITIONS,)
            case Linear(source=Sum(), map=m) if several and (back := inverse(m)):
                found[node] = (BASIS,) if back[1] <= SKEWED_CONDITION else (SKEWED, *shared)
            case _ if shared:
                found[node] = shared
    return found


def with_kept(merged: Circuit, kept: Kept) -> Circuit:
    """The circuit with these values kept; a sum that one of them can stand for is not."""
    bases = [node for node, reason in kept if reason in (BASIS, SKEWED) and isinstance(node, Linear)]
    rebased = rebase(merged, *bases, kept={node for node, _ in kept} - {base.source for base in bases})
    assert rebased is not None
    return rebased
