"""Saves and loads programs. A server must run the program that was planned: planning again may give another one.

The file is an .npz archive. Its `header` is JSON with the program, in which {"array": n} stands for the array n of the
archive.
"""

import json
import zlib
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from polynext.arrays import Indices
from polynext.encrypted.runtime.diagonals import Diagonals, Factor, LinearCombination
from polynext.encrypted.runtime.layout import Layout, within
from polynext.encrypted.runtime.program import Program, used_rotations
from polynext.errors import PolyNeXtError
from polynext.files import UNREADABLE

FORMAT, VERSION = "polynext-encrypted-program", 4


def save_program(program: Program, path: Path) -> None:
    """Writes a program: steps, layouts, weights and rotations."""
    arrays: dict[str, np.ndarray] = {}

    def with_arrays_beside(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return as_json(value)
        arrays[str(len(arrays))] = value
        return {"array": str(len(arrays) - 1)}

    text = json.dumps({"format": FORMAT, "version": VERSION, "program": program}, default=with_arrays_beside)
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, header=np.array(text), **arrays)


def load_program(path: Path) -> Program:
    """Reads a program, and checks that all its references are valid."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:

            def array_or_table(table: dict[str, Any]) -> Any:
                return file[table["array"]] if table.keys() == {"array"} else table

            header = json.loads(str(file["header"]), object_hook=array_or_table)
        if (header["format"], header["version"]) != (FORMAT, VERSION):
            raise ValueError(f"it is version {header['version']} of {header['format']}, not {VERSION} of {FORMAT}")
        program = parse(Program, header["program"])
        check(program)
    except (*UNREADABLE, AttributeError, IndexError, TypeError, zlib.error) as error:
        raise PolyNeXtError(
            f"{path} is not a program that this version of polynext reads ({error}): "
            "run `polynext encrypted prepare` again."
        ) from error
    return program


def parse(kind: Any, value: Any) -> Any:
    """A value of a type, from JSON. In a union, an int or None stands for itself and the first type for the rest."""
    if kind is Layout:
        return Layout.from_json(value)
    if isinstance(kind, type) and is_dataclass(kind):
        types = get_type_hints(kind)
        require(value.keys() == types.keys(), f"it has {', '.join(value)} where {', '.join(types)} are expected")
        return kind(**{name: parse(types[name], each) for name, each in value.items()})
    origin, (first, *others) = get_origin(kind), get_args(kind) or (kind,)
    if origin is UnionType:
        return value if value is None or isinstance(value, int) else parse(first, value)
    if origin is dict:
        return {int(key): parse(others[0], each) for key, each in value.items()}
    if origin in (list, tuple):
        return origin(parse(first, each) for each in value)
    return value


def check(program: Program) -> None:
    slots = program.slots
    require(all(layout.slots == slots for layout in program.layouts), "its layouts have another number of slots")
    require(len(program.layouts) == len(program.steps) + 1 > 1, "it needs one layout for each value")
    for number, step in enumerate(program.steps):
        for operand in step.operands:
            sources = operand.sources if isinstance(operand, LinearCombination) else (operand,)
            require(all(0 <= source <= number for source in sources), "a step uses a value that is not computed yet")
        packed_with = step.outline.packed_with
        require(
            packed_with is None or 0 < packed_with <= number, "a step is packed with a value that is not computed yet"
        )
        for combination in step.combinations:
            require(
                combination.bias is None or combination.bias.shape == (slots,),
                "a bias does not have one number for each slot",
            )
            require(all(stays_within(d, slots) for _, d in combination.diagonals), "diagonals exceed the slots")
    missing = used_rotations(program) - set(program.rotations)
    require(not missing, f"there are no keys to rotate by {sorted(missing)}")


def stays_within(diagonals: Diagonals, slots: int) -> bool:
    blocks, factors = diagonals.blocks, (diagonals.outer, diagonals.inner)
    return (
        diagonals.slots == slots
        and 0 < diagonals.period <= slots
        and 0 < diagonals.wrap <= slots
        and within(diagonals.offsets, diagonals.period)
        and counts_up(diagonals.starts, len(diagonals.offsets), len(blocks))
        and blocks.ndim == 2
        and blocks.shape[1] == 3
        and all(is_sound(factor, slots) for factor in factors)
        and diagonals.outer.values.shape[0] == diagonals.inner.values.shape[0]
        and all(within(blocks[:, i], len(factor.starts) - 1) for i, factor in enumerate(factors))
        and within(blocks[:, 2], slots)
        and all(within(diagonals.repeat, slots - int(diagonals.entries(b)[0].max(initial=0))) for b in blocks)
    )


def is_sound(factor: Factor, slots: int) -> bool:
    return (
        within(factor.where, slots)
        and factor.values.ndim == 2
        and factor.values.shape[1:] == factor.where.shape
        and counts_up(factor.starts, len(factor.starts) - 1, len(factor.where))
    )


def counts_up(starts: Indices, count: int, end: int) -> bool:
    return starts.shape == (count + 1,) and within(starts, end + 1) and bool((np.diff(starts) >= 0).all())


def require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ValueError(otherwise)


def as_json(value: Any) -> Any:
    """Dataclasses as tables of their fields, and arrays as lists."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return {field.name: getattr(value, field.name) for field in fields(value)}
