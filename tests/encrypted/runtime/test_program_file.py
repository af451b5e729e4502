"""Program files: invalid ones are refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polynext.encrypted import Plan
from polynext.encrypted.runtime.program_file import load_program, save_program
from polynext.errors import PolyNeXtError
from tests.encrypted.conftest import (
    saved_and_loaded,
)


def change_header(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    with np.load(path) as file:
        arrays = dict(file)
    header = json.loads(str(arrays["header"]))
    change(header)
    np.savez(path, **{**arrays, "header": np.array(json.dumps(header))})


def without_the_last_layout(header: dict[str, Any]) -> None:
    header["program"]["layouts"].pop()


def change_step(header: dict[str, Any], **fields: Any) -> None:
    header["program"]["steps"][-1].update(fields)


BAD_HEADERS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another format": (lambda h: h.update(format="circuit"), "it is version 4 of circuit"),
    "another version": (lambda h: h.update(version=1), "it is version 1"),
    "unknown fields": (lambda h: h["program"].update(refreshes=3), "refreshes"),
    "fewer slots": (lambda h: h["program"].update(slots=64), "another number of slots"),
    "fewer layouts": (without_the_last_layout, "one layout for each value"),
    "fewer keys": (lambda h: h["program"].update(rotations=[]), "no keys to rotate by"),
    "a list for a step": (lambda h: h["program"].update(steps=[[1]]), "keys"),
    "a later value": (lambda h: change_step(h, operands=[99]), "not computed yet"),
    "a missing array": (lambda h: h["program"]["layouts"][0].update(codes={"array": "nowhere"}), "nowhere"),
}


@pytest.mark.parametrize("bad", BAD_HEADERS)
def test_invalid_programs_are_refused(plan: Plan, tmp_path: Path, bad: str) -> None:
    path = tmp_path / "program.npz"
    save_program(plan.program, path)
    change, message = BAD_HEADERS[bad]
    change_header(path, change)
    with pytest.raises(PolyNeXtError, match=rf"{message}.*run `polynext encrypted prepare` again"):
        load_program(path)


@pytest.mark.parametrize("field", ["where", "offsets", "repeat", "starts", "values", "blocks"])
def test_diagonals_that_exceed_the_slots_are_refused(plan: Plan, tmp_path: Path, field: str) -> None:
    loaded = saved_and_loaded(plan.program)
    terms = loaded.steps[0].combinations[0].terms
    source, diagonals = next(iter(terms.items()))
    holder = diagonals.outer if field in ("where", "values") else diagonals
    numbers = getattr(holder, field)
    beyond = numbers[:, :-1] if field == "values" else np.concatenate([numbers[:-1], numbers[-1:] + 2**14])
    changed = replace(holder, **{field: beyond})
    terms[source] = replace(diagonals, outer=changed) if holder is diagonals.outer else changed
    save_program(loaded, tmp_path / "program.npz")
    with pytest.raises(PolyNeXtError, match="diagonals exceed the slots"):
        load_program(tmp_path / "program.npz")


def test_damaged_programs_are_refused(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "program.npz"
    save_program(plan.program, path)
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[len(damaged) // 2] ^= 1
    for data in (bytes(damaged), whole[: len(whole) // 2], b"", b"GIF89a" * 100):
        path.write_bytes(data)
        with pytest.raises(PolyNeXtError, match="is not a program that this version"):
            load_program(path)
