"""The cost of running a program, known before any key is made."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from polynext.encrypted.runtime.backends.protocol import Costs
from polynext.encrypted.runtime.counting import CountingEvaluator
from polynext.encrypted.runtime.execution import encode_program, execute
from polynext.encrypted.runtime.parameters import Parameters
from polynext.encrypted.runtime.program import Program

MEBIBYTE = 2**20
# Python with numpy, scipy and SEAL, as `polynext encrypted run` loads them before it reads any file.
LIBRARY_BYTES = 64 * MEBIBYTE


@dataclass(frozen=True)
class CostEstimate:
    """The cost of a run. Counts are exact; bytes and seconds are predictions for this machine.

    `error` is the predicted error of the logits, relative to the examples' largest logit, and `flips` the share of
    predictions that it changes.
    """

    levels: int
    ciphertext_products: int
    plaintext_products: int
    rotations: int
    rotation_keys: int
    key_bytes: int
    program_bytes: int
    plaintext_bytes: int
    ciphertext_bytes: int
    seconds: float
    seconds_on_two_cores: float = math.nan
    largest_logit: float = math.nan
    error: float = math.nan
    flips: float = math.nan

    @property
    def peak_bytes(self) -> int:
        """The peak memory of the server's process."""
        return LIBRARY_BYTES + self.key_bytes + self.program_bytes + self.plaintext_bytes + self.ciphertext_bytes

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def estimate_cost(program: Program, parameters: Parameters, costs: Costs) -> CostEstimate:
    """Executes the program with a counting evaluator."""
    native = costs.has_compact_plaintexts
    counter = CountingEvaluator(parameters, program.rotations, compacts=native)
    encoded = encode_program(program, counter)
    plaintext_bytes = counter.plaintext_bytes
    counter.operations.clear()
    execute(program, encoded, counter, counter.image())
    combinations = [combination for step in program.steps for combination in step.combinations]
    return CostEstimate(
        levels=program.depth,
        ciphertext_products=counter.total("multiply"),
        plaintext_products=counter.total("multiply_plain"),
        rotations=counter.total("rotate", "rotate_again"),
        rotation_keys=len(program.rotations),
        key_bytes=parameters.key_bytes * (len(program.rotations) + 1),
        program_bytes=parameters.ring_bytes(native)
        + sum(d.nbytes for combination in combinations for _, d in combination.diagonals),
        plaintext_bytes=plaintext_bytes,
        ciphertext_bytes=counter.ciphertext_bytes,
        seconds=round(costs(counter.operations), 3),
    )


def mebibytes(count: float) -> str:
    return f"{count / MEBIBYTE:,.0f} MB"
