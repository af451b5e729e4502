"""Cost estimates."""

from dataclasses import replace

from polynext.encrypted import Plan
from polynext.encrypted.runtime.cost import LIBRARY_BYTES, MEBIBYTE, CostEstimate, estimate_cost, mebibytes
from tests.encrypted.conftest import SAME_EVERYWHERE, saved_and_loaded


def test_an_estimate_is_exact_where_it_counts(plan: Plan) -> None:
    cost = estimate_cost(plan.program, plan.parameters, SAME_EVERYWHERE(plan.parameters.ring_degree))
    assert cost == replace(
        plan.cost, seconds_on_two_cores=cost.seconds_on_two_cores, largest_logit=cost.largest_logit,
        error=cost.error, flips=cost.flips,
    )  # fmt: skip
    assert cost.key_bytes == (cost.rotation_keys + 1) * plan.parameters.key_bytes
    bytes_of_parts = cost.key_bytes + cost.program_bytes + cost.plaintext_bytes + cost.ciphertext_bytes
    assert cost.peak_bytes == LIBRARY_BYTES + bytes_of_parts
    assert CostEstimate(**plan.cost.to_json()) == plan.cost


def test_plaintexts_that_are_not_kept_take_time_instead_of_memory(plan: Plan) -> None:
    program = saved_and_loaded(plan.program)
    costs = SAME_EVERYWHERE(plan.parameters.ring_degree)
    kept = estimate_cost(program, plan.parameters, costs)
    for step in program.steps:
        step.keep_encoded = False
    encoded_each_time = estimate_cost(program, plan.parameters, costs)
    assert encoded_each_time.plaintext_bytes < kept.plaintext_bytes
    assert encoded_each_time.seconds > kept.seconds
    assert encoded_each_time.plaintext_products == kept.plaintext_products


def test_sizes_are_printed_in_mebibytes() -> None:
    assert mebibytes(1234 * MEBIBYTE) == "1,234 MB"
