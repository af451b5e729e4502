"""Plans: correct, secure, the same for every backend, and refused with the reason."""

import re
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch

from polynext.circuit import Circuit, lower
from polynext.encrypted import Limits, Plan, make_plan
from polynext.encrypted.compiler.limits import DoesNotFitError
from polynext.encrypted.runtime.backends import get_backend
from polynext.encrypted.runtime.backends.protocol import Costs
from polynext.encrypted.runtime.cost import estimate_cost
from polynext.errors import PolyNeXtError
from polynext.models import FullyPolynomialBlocks, PolyNeXt, PolyNeXtConfig, StageConfig
from tests.circuit.conftest import with_statistics
from tests.encrypted.conftest import SAME_EVERYWHERE, logits, run_clear


def test_a_plan_agrees_with_the_model_and_its_cost_estimate(plan: Plan, trained: Any, examples: np.ndarray) -> None:
    images = examples[: plan.images]
    result, counted = run_clear(plan.program, plan.parameters, images)
    np.testing.assert_allclose(result, logits(trained, images), atol=1e-9)
    assert counted.total("rotate", "rotate_again") == plan.cost.rotations
    assert counted.total("multiply") == plan.cost.ciphertext_products
    assert counted.total("multiply_plain") == plan.cost.plaintext_products
    assert counted.ciphertext_bytes == plan.cost.ciphertext_bytes


def test_a_plan_keeps_to_128_bits(plan: Plan) -> None:
    seal, parameters = get_backend("seal"), plan.parameters
    assert parameters.modulus_bits <= seal.security.longest_modulus[parameters.ring_degree]
    assert plan.cost.levels == parameters.depth == plan.program.depth
    assert seal.ring(parameters).context.parameters_set()  # SEAL checks for itself
    longer = replace(parameters, prime_bits=(60,) * 8)
    with pytest.raises(PolyNeXtError, match="128 bits of security"):
        seal.ring(longer)


def test_a_plan_is_the_same_for_either_backend(circuit: Circuit, examples: np.ndarray) -> None:
    clear = make_plan(circuit, examples, 4, backend="clear")
    seal = make_plan(circuit, examples, 4, backend="seal", costs=SAME_EVERYWHERE)
    assert (clear.backend, seal.backend) == ("clear", "seal")
    assert clear.cost == seal.cost and clear.parameters == seal.parameters


@pytest.mark.parametrize("clients", ["any", "python"])
def test_seconds_are_those_of_the_plans_own_ring(
    circuit: Circuit, examples: np.ndarray, clients: Literal["any", "python"]
) -> None:
    """Operations are faster if all primes are short, and slower with special primes."""

    def costs(ring_degree: int, threads: int, special_primes: int, short_primes: bool) -> Costs:
        seconds = 1e-3 * (1 + special_primes) * (1 if short_primes else 10) / threads
        return Costs(ring_degree, dict.fromkeys(SAME_EVERYWHERE(ring_degree).seconds, (0.0, seconds)))

    plan = make_plan(circuit, examples, limits=Limits(clients=clients), costs=costs)
    made, cost = plan.parameters, plan.cost
    own = estimate_cost(plan.program, made, costs(made.ring_degree, 1, made.special_primes, made.short_primes))
    assert cost.seconds == own.seconds
    assert cost.seconds_on_two_cores == pytest.approx(cost.seconds / 2, abs=1e-3)
    assert made.short_primes == (max(made.prime_bits) <= 50)


def test_a_network_that_does_not_fit_is_refused_with_the_excess(circuit: Circuit, examples: np.ndarray) -> None:
    with pytest.raises(DoesNotFitError, match=r"need a modulus of .* bits where 128-bit security allows 218"):
        make_plan(circuit, examples, limits=Limits(ring_degrees=(2**13,)), costs=SAME_EVERYWHERE)
    with pytest.raises(DoesNotFitError, match=r"rotation keys take .* MB where 20 MB are allowed"):
        make_plan(circuit, examples, limits=Limits(keys=20 * 2**20), costs=SAME_EVERYWHERE)
    with pytest.raises(DoesNotFitError, match=r"of memory where 50 MB are allowed"):
        make_plan(circuit, examples, limits=Limits(memory=50 * 2**20), costs=SAME_EVERYWHERE)
    with pytest.raises(DoesNotFitError, match="does not fit into 8192 slots: put fewer images"):
        make_plan(circuit, examples, images=1024, limits=Limits(ring_degrees=(2**14,)), costs=SAME_EVERYWHERE)
    with pytest.raises(PolyNeXtError, match="no ring degree 65536 for any clients: choose among 8192, 16384"):
        make_plan(circuit, examples, limits=Limits(ring_degrees=(2**16,)), costs=SAME_EVERYWHERE)
    with pytest.raises(PolyNeXtError, match="`error` is -1"):
        Limits(error=-1)


def test_a_refusal_names_limits_that_fit(circuit: Circuit, examples: np.ndarray) -> None:
    """With the options in the message, the same network is planned."""
    tight = Limits(memory=60 * 2**20, keys=20 * 2**20, error=1e-9, ring_degrees=(2**14,))
    with pytest.raises(DoesNotFitError) as refused:
        make_plan(circuit, examples, limits=tight, costs=SAME_EVERYWHERE)
    options = re.search(r"It fits with --memory (\d+) --key-memory (\d+) --error ([\d.e-]+)\.$", str(refused.value))
    assert options is not None, refused.value
    memory, keys, error = options.groups()
    fitting = replace(tight, memory=int(memory) * 2**20, keys=int(keys) * 2**20, error=float(error))
    cost = make_plan(circuit, examples, limits=fitting, costs=SAME_EVERYWHERE).cost
    assert cost.peak_bytes <= fitting.memory and cost.error <= fitting.error


def test_attention_is_planned() -> None:
    stages = (
        StageConfig(width=4, cells=1, stacks=1, coarse_kernel=3),
        StageConfig(width=4, cells=1, stacks=1, mixer="attention"),
    )
    config = PolyNeXtConfig(stages=stages, scale_logits=(1.0, 0.5), stem_kernel=3, stem_stride=1)
    model = PolyNeXt(config, in_chans=1, num_classes=3, img_size=4, blocks=FullyPolynomialBlocks())
    with_statistics(model, torch.randn(64, 1, 4, 4))
    images = np.random.default_rng(0).normal(size=(4, 1, 4, 4))
    limits = Limits(ring_degrees=(2**15,), keys=2**30, error=1.0, flips=1.0)
    plan = make_plan(lower(model), images, limits=limits, backend="clear", costs=SAME_EVERYWHERE)
    result, _ = run_clear(plan.program, plan.parameters, images[:1])
    np.testing.assert_allclose(result, logits(model, images[:1]), atol=1e-8)
