"""Every backend behind the interface, and what only one of them has."""

import sys
from pathlib import Path

import pytest

from polynext.encrypted import ClientSpec, Plan
from polynext.encrypted.files import check_fits, header_for
from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.parameters import Parameters
from polynext.errors import PolyNeXtError


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "polynext.encrypted.runtime.backends.seal")
    monkeypatch.setitem(sys.modules, "tenseal", None)
    monkeypatch.setitem(sys.modules, "tenseal.sealapi", None)
    with pytest.raises(PolyNeXtError, match=r"pip install -e '.*\[client\]'\.$"):
        get_backend.__wrapped__("seal")
    with pytest.raises(PolyNeXtError, match=r"there is no backend 'rot13': choose one of seal, clear\."):
        get_backend("rot13")


def test_browsers_get_the_arguments_of_seals_constructors(plan: Plan) -> None:
    assert get_backend("clear").ring(plan.parameters).browser_parameters([1]) is None
    found = get_backend("seal").ring(plan.parameters).browser_parameters([0, 1, 3])
    assert found == {
        "poly_modulus_degree": plan.parameters.ring_degree,
        "coeff_modulus_bits": [*reversed(plan.parameters.prime_bits[:-1]), plan.parameters.prime_bits[-1]],
        "input_scale": plan.parameters.input_scale,
        "galois_elements": {"rotation-0": 2 * plan.parameters.ring_degree - 1, "rotation-1": 3, "rotation-3": 27},
    }


@pytest.mark.parametrize("special_primes", [1, 2])
def test_a_ring_knows_its_levels_without_seals_tables(special_primes: int) -> None:
    """And SEAL has no tables of levels that a server does not need."""
    parameters = Parameters(2**13, (40, 36, 30) + (40,) * special_primes, 30, 20, 30, 30, special_primes=special_primes)
    ring = get_backend("seal").ring(parameters)
    loading = (ring.key_context, ring.image_context)
    assert "context" not in vars(ring)
    data = ring.context.key_context_data()
    assert ring.key_id == data.parms_id() == loading[0].key_parms_id()
    for _ in range(special_primes):
        data = data.next_context_data()
    assert ring.levels[0] == loading[1].first_parms_id() == loading[1].last_parms_id()
    for identity, prime in zip(ring.levels, ring.parameters.primes, strict=True):
        assert (identity, prime) == (data.parms_id(), data.parms().coeff_modulus()[-1].value())
        data = data.next_context_data()


def test_files_of_another_version_of_seal_are_refused(spec: ClientSpec) -> None:
    header = {**header_for(spec, "a key"), "file_format": "SEAL 1.0", "library": "tenseal 0.1"}
    with pytest.raises(PolyNeXtError, match=r"was written by SEAL 1\.0 \(tenseal 0\.1\), and this is "):
        check_fits(Path("keys"), header, spec)
