"""Which values of a circuit to materialise, that is, to compute as ciphertexts of their own: the search space.

All other sums are expanded into the linear maps that use them (`rewrites.expand_sums`).
"""

import copy
import itertools
from collections.abc import Iterator

from polynext.circuit.graph import Circuit, Input, Linear, Node, Product, Sum
from polynext.circuit.rewrites import expand_sums, inverse, mixes_positions_only, rebase
from polynext.circuit.structure import Kronecker

# Reasons to materialise a value. BASIS: it is a well-conditioned map of a sum, so that the sum can be recovered from
# it. SKEWED: the same with a worse condition, which amplifies noise. POSITIONS: it mixes positions before channels are
# mixed. SHARED: several products use it.
BASIS, SKEWED, POSITIONS, SHARED = "basis", "skewed", "positions", "shared"
SKEWED_CONDITION = 4.0

Materialised = frozenset[tuple[Node, str]]  # values to materialise, each with the reason


class Candidates:
    """The values of a circuit that may be worth materialising, and the circuits with some of them materialised."""

    def __init__(self, merged: Circuit):
        self.merged = merged
        self.reasons = worth_materialising(merged)
        self.expanded: dict[Materialised, Circuit] = {}

    @property
    def has_skewed(self) -> bool:
        return any(SKEWED in reasons for reasons in self.reasons.values())

    def without_skewed(self) -> "Candidates":
        less = copy.copy(self)
        less.reasons = {node: tuple(r for r in reasons if r != SKEWED) for node, reasons in self.reasons.items()}
        return less

    def circuit(self, chosen: Materialised) -> Circuit:
        """The circuit with these values materialised and all other sums expanded. Raises TooWideError if a map grows
        too wide."""
        if chosen in self.expanded:
            return self.expanded[chosen]
        made = expand_sums(materialise(self.merged, chosen))
        if all(isinstance(node.map, Kronecker) for node in made.order if isinstance(node, Linear)):
            self.expanded[chosen] = made  # circuits with matrices are not cached: they would fill the memory
        return made

    def by_reason(self) -> Iterator[Materialised]:
        """For each set of reasons, all values that have one of them; the largest sets first. BASIS and SKEWED count as
        one reason."""
        known = [{BASIS, SKEWED}, {POSITIONS}, {SHARED}]
        for count in reversed(range(len(known) + 1)):
            for groups in itertools.combinations(known, count):
                allowed = set().union(*groups)
                found = {node: [r for r in reasons if r in allowed] for node, reasons in self.reasons.items()}
                yield frozenset((node, reasons[0]) for node, reasons in found.items() if reasons)

    def neighbours(self, chosen: Materialised) -> Iterator[Materialised]:
        """The choices with one value more, one value less, or another reason for one value."""
        for node, reasons in self.reasons.items():
            others = frozenset(each for each in chosen if each[0] is not node)
            for changed in (others, *(others | {(node, reason)} for reason in reasons)):
                if changed != chosen:
                    yield changed


def worth_materialising(merged: Circuit) -> dict[Node, tuple[str, ...]]:
    """The values that may be worth materialising, each with its reasons, the best one first."""
    users = merged.users()
    served: dict[Node, set[Node]] = {merged.output: {merged.output}}  # the products that use a value, through maps
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


def materialise(merged: Circuit, chosen: Materialised) -> Circuit:
    """The circuit with these values materialised. A sum that can be recovered from one of them is not."""
    bases = [node for node, reason in chosen if reason in (BASIS, SKEWED) and isinstance(node, Linear)]
    rebased = rebase(merged, *bases, materialised={node for node, _ in chosen} - {base.source for base in bases})
    assert rebased is not None
    return rebased
