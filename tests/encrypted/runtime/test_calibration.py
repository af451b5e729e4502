"""Measured costs."""

from pathlib import Path

import numpy as np
import platformdirs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from polynext.encrypted.runtime.backends import calibration, get_backend
from polynext.encrypted.runtime.backends.calibration import fit_nonnegative, machine_costs, measured_parameters
from polynext.encrypted.runtime.backends.protocol import STANDARD_SECURITY, Costs


@given(st.lists(st.floats(1e-6, 1.0), min_size=3, max_size=3), st.sampled_from([1, 2]))
@settings(deadline=None)
def test_the_fit_is_that_of_scipy(times: list[float], degree: int) -> None:
    primes = np.array([2.0, 7.0, 12.0])
    terms = np.stack([primes**power for power in range(1, degree + 1)], axis=1) / np.array(times)[:, None]
    wanted, _ = nnls(terms, np.ones(3))
    np.testing.assert_allclose(fit_nonnegative(primes, np.array(times), degree), wanted, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("short", [False, True], ids=["long", "short"])
@pytest.mark.parametrize("special", [1, 2, 3, 4])
def test_the_measured_rings_are_secure_and_have_the_right_primes(special: int, short: bool) -> None:
    for ring_degree in STANDARD_SECURITY.limits(special > 1):
        made = measured_parameters(STANDARD_SECURITY, ring_degree, special, short)
        STANDARD_SECURITY.check(made)
        assert made.special_primes == special and made.input_bits < min(made.prime_bits)
        assert made.short_primes or not short
        assert not made.short_primes or short or ring_degree == 2**13  # which is too small for several long primes


def test_costs_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def calibrate(backend: object, ring_degree: int, *more: object) -> Costs:
        measured.append(ring_degree)
        return Costs(ring_degree, {"add": (0.0, 1e-3)})

    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: tmp_path / name)
    monkeypatch.setattr(calibration, "calibrate", calibrate)
    first, second = (machine_costs(get_backend("clear"), 2**13).seconds["add"] for _ in range(2))
    assert list(first) == list(second) and measured == [2**13]
