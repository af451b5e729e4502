"""Limits on what a server publishes. Clients check a client spec before they allocate anything for it.

The limits are far beyond the networks of this package. They bound the memory and time of a client, and they ensure
that every image can be encrypted: a server must not learn from a refusal which pixels an image has.
"""

from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Le, Len
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from polynext.encrypted.runtime.layout import Layout
from polynext.encrypted.runtime.parameters import Parameters

# Normalised pixels are at most this large, by the limits of mean and std. Every value up to it can be encrypted.
LARGEST_VALUE = 2.0**10

Bits = Annotated[int, Ge(2), Le(60)]
Count = Annotated[int, Ge(0), Le(2**60)]
Seconds = Annotated[float, Ge(0), Le(1e9)]
Slot = Annotated[int, Ge(0), Le(2**15)]
Entry = Annotated[int, Ge(-1), Le(2**20)]
Pixels = Annotated[int, Ge(1), Le(1024)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]


class Table(BaseModel):
    """A JSON object. No value is converted to another type, and NaN and infinity are refused."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class ParametersTable(Table):
    ring_degree: Annotated[int, Ge(2**10), Le(2**16)]
    prime_bits: Annotated[list[Bits], Len(2, 64)]
    scale_bits: Bits
    plain_bits: Bits
    input_bits: Bits
    result_bits: Bits
    primes: Annotated[list[Annotated[int, Ge(2), Le(2**60)]], Len(0, 64)]
    special_primes: Annotated[int, Ge(1), Le(16)] = 1


class LayoutTable(Table):
    codes: Annotated[list[Annotated[list[Slot], Len(1, 2**15)]], Len(1, 2**15)]
    slots: Annotated[int, Ge(2**9), Le(2**15)]
    strides: Annotated[list[Slot], Len(0, 8)]
    order: Annotated[list[Entry], Len(1, 2**15)] | None
    groups: Annotated[int, Ge(1), Le(2**15)]
    block: Slot


class PreprocessingTable(Table):
    size: Pixels
    resize: Pixels
    crop: Literal["centre", "squash", "drawing"]
    interpolation: Literal["bicubic", "bilinear"]
    mean: Annotated[list[Annotated[float, Ge(0), Le(1)]], Len(1, 3)]
    std: Annotated[list[Annotated[float, Ge(1 / LARGEST_VALUE), Le(LARGEST_VALUE)]], Len(1, 3)]


class CostTable(Table):
    levels: Count
    ciphertext_products: Count
    plaintext_products: Count
    rotations: Count
    rotation_keys: Count
    key_bytes: Count
    program_bytes: Count
    plaintext_bytes: Count
    ciphertext_bytes: Count
    seconds: Seconds
    seconds_on_two_cores: Seconds
    largest_logit: Annotated[float, Gt(0), Le(1e9)]
    error: Annotated[float, Ge(0), Le(1e9)]
    flips: Annotated[float, Ge(0), Le(1)]


class SpecTable(Table):
    backend: Text
    library: Text
    parameters: ParametersTable
    rotations: Annotated[list[Slot], Len(0, 4096)]
    image_shape: Annotated[list[Pixels], Len(1, 4)]
    image_layout: LayoutTable
    result_layout: LayoutTable
    preprocessing: PreprocessingTable
    classes: Annotated[list[Text], Len(1, 2**15)]
    cost: CostTable


def check_table(table: Any) -> None:
    """Raises ValueError unless every number and text of a client spec is within its limits."""
    try:
        SpecTable.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise ValueError(f"{where}: {first['msg'].lower()}") from error


def check_parameters(parameters: Parameters, rotations: tuple[int, ...]) -> None:
    """Raises ValueError unless every image can be encrypted and every answer decrypted with these parameters."""
    bits, depth, degree = parameters.prime_bits, parameters.depth, parameters.ring_degree
    require(degree & (degree - 1) == 0, "its ring degree is not a power of two")
    require(depth >= 0, "it has only special primes")
    room = sum(bits[: depth + 1]) - parameters.input_bits
    require(room > np.log2(LARGEST_VALUE) + 1, "its modulus has no room for an image")
    require(parameters.result_bits < bits[depth], "its last prime has no room for an answer")
    lengths = tuple(prime.bit_length() for prime in parameters.primes)
    require(lengths in ((), bits[: depth + 1]), "its primes have other lengths than it says")
    require(len(set(rotations)) == len(rotations), "it has a rotation twice")
    require(all(0 <= step < parameters.slots for step in rotations), "a rotation exceeds the slots")


def check_layout(layout: Layout, parameters: Parameters, entries: int) -> None:
    """Raises ValueError unless a layout has different slots for all of at most `entries` entries of each image."""
    require(layout.slots == parameters.slots, "its layouts have another ring degree")
    require(len(np.unique(layout.codes)) == layout.codes.size, "two entries have the same slot")
    require(layout.order is None or layout.order.max() < entries, "its layout has more entries than a value")
    if layout.order is None:
        require(layout.codes.shape[1] == entries, "its layout has another number of entries than a value")
    groups, block = layout.groups, layout.block
    require(groups & (groups - 1) == 0 and block & (block - 1) == 0, "its groups are not powers of two")
    require(groups == 1 or layout.period <= block <= layout.slots // groups, "its groups exceed the slots")
    require(groups <= layout.period, "it has more groups than slots to rotate by")


def require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ValueError(otherwise)
