"""Which values may be materialised."""

import numpy as np

from polynext.circuit import Circuit
from polynext.circuit.graph import Linear
from polynext.circuit.rewrites import expand_sums, factor_sums, merge_linear_maps, patches_first, rebase, structured
from polynext.circuit.structure import Kronecker
from polynext.encrypted.compiler.materialised import BASIS, Candidates, worth_materialising
from polynext.models.network import PolyNeXt
from tests.encrypted.conftest import logits


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


def test_candidates_are_grouped_by_reason_and_changed_one_at_a_time(lowered: Circuit) -> None:
    candidates = Candidates(merge_linear_maps(factor_sums(structured(patches_first(lowered)))))
    groups = list(dict.fromkeys(candidates.by_reason()))
    assert groups[0] and groups[-1] == frozenset() and {node for node, _ in groups[0]} == set(candidates.reasons)
    for changed in candidates.neighbours(groups[0]):
        assert len({node for node, _ in changed ^ groups[0]}) == 1
    images = np.random.default_rng(0).normal(size=(2, 3, 8, 8))
    for chosen in groups:
        circuit = candidates.circuit(chosen)
        recovered = {node.source for node, reason in chosen if reason == BASIS and isinstance(node, Linear)}
        assert sum(node.materialised for node in circuit.order) == len({node for node, _ in chosen} - recovered)
        np.testing.assert_allclose(circuit(images), lowered(images), atol=1e-9)
