"""`polynext circuit`."""

import json as jsonlib
from typing import Annotated

import tyro

from polynext.circuit.graph import Circuit
from polynext.circuit.lowering import lower
from polynext.circuit.rewrites import factor_sums, merge_linear_maps, unbuild_sums
from polynext.errors import PolyNeXtError
from polynext.models import create_model, list_models
from polynext.tables import table


def main(model: Annotated[str, tyro.conf.Positional] = "cpolynext_nano_bn", json: bool = False) -> None:
    """Show a fully polynomial model as an arithmetic circuit, and what rewriting it saves.

    A level is a rescale: encryption needs one prime for each on the longest path, and the number of primes is what it
    charges for.

    Args:
        model: a fully polynomial model, as `polynext models '*_bn'` lists them.
        json: print JSON for programs.
    """
    if model not in list_models(fully_polynomial=True):
        raise PolyNeXtError(
            f"{model!r} is not a fully polynomial model: choose one that `polynext models '*_bn'` lists."
        )
    lowered = lower(create_model(model).eval())
    factored = factor_sums(lowered)
    merged = merge_linear_maps(factored)
    unbuilt = unbuild_sums(merged)
    stages = [
        ("as lowered", lowered, False),
        ("x + x y as x (1 + y)", factored, False),
        ("neighbouring linear maps merged", merged, False),
        ("residual stream unbuilt", unbuilt, False),
        ("a product and the next map share a rescale", unbuilt, True),
    ]
    found = [summary(name, circuit, shared) for name, circuit, shared in stages]
    degree, depth = lowered.degree(), lowered.multiplicative_depth()
    if json:
        print(
            jsonlib.dumps(
                {"model": model, "degree": degree, "multiplicative_depth": depth, "rewrites": found}, indent=2
            )
        )
        return
    shown = str(degree) if degree < 10**6 else f"2^{degree.bit_length() - 1}"
    print(f"{model}: a polynomial of degree {shown} and multiplicative depth {depth}\n")
    rows = [[str(stage[column]) for column in COLUMNS] for stage in found]
    print(table(("circuit", "linear maps", "sums", "products", "levels"), rows))


COLUMNS = ("circuit", "linear", "sum", "product", "levels")


def summary(name: str, circuit: Circuit, shared_rescale: bool) -> dict[str, str | int]:
    count = circuit.count()
    kinds = {kind: count[kind] for kind in ("linear", "sum", "product")}
    return {"circuit": name, **kinds, "levels": circuit.levels(shared_rescale)}
