"""`polynext circuit`."""

import json as jsonlib
from typing import TYPE_CHECKING, Annotated

import tyro

from polynext.errors import PolyNeXtError
from polynext.tables import table

if TYPE_CHECKING:
    from polynext.circuit.graph import Circuit


def main(model: Annotated[str, tyro.conf.Positional] = "cpolynext_nano_bn", json: bool = False) -> None:
    """Show a fully polynomial model as an arithmetic circuit, and what its rewrites save.

    A level is a rescale on the longest path. CKKS needs a prime for each level, and the cost of every operation grows
    with the number of primes.

    Args:
        model: a fully polynomial model; `polynext models '*_bn'` lists them.
        json: print JSON for programs.
    """
    from polynext.circuit.lowering import lower
    from polynext.circuit.rewrites import expand_sums, factor_sums, merge_linear_maps
    from polynext.models import create_model, list_models

    if model not in list_models(fully_polynomial=True):
        raise PolyNeXtError(f"{model!r} is not a fully polynomial model: `polynext models '*_bn'` lists them.")
    lowered = lower(create_model(model).eval())
    factored = factor_sums(lowered)
    merged = merge_linear_maps(factored)
    expanded = expand_sums(merged)
    stages = [
        ("as lowered", lowered, False),
        ("x + x y as x (1 + y)", factored, False),
        ("neighbouring linear maps merged", merged, False),
        ("residual stream expanded", expanded, False),
        ("a product and the next map share a rescale", expanded, True),
    ]
    found = [summary(name, circuit, shared) for name, circuit, shared in stages]
    degree, depth = lowered.degree(), lowered.multiplicative_depth()
    if json:
        record = {"model": model, "degree": degree, "multiplicative_depth": depth, "rewrites": found}
        print(jsonlib.dumps(record, indent=2))
        return
    shown = str(degree) if degree < 10**6 else f"2^{degree.bit_length() - 1}"
    print(f"{model}: a polynomial of degree {shown} and multiplicative depth {depth}\n")
    rows = [[str(stage[column]) for column in COLUMNS] for stage in found]
    print(table(("circuit", "linear maps", "sums", "products", "levels"), rows))


COLUMNS = ("circuit", "linear", "sum", "product", "levels")


def summary(name: str, circuit: "Circuit", shared_rescale: bool) -> dict[str, str | int]:
    count = circuit.count()
    kinds = {kind: count[kind] for kind in ("linear", "sum", "product")}
    return {"circuit": name, **kinds, "levels": circuit.levels(shared_rescale)}
