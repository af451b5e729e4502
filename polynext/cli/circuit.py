"""`polynext circuit`."""

import json as jsonlib
from typing import TYPE_CHECKING, Annotated

import tyro

from polynext.errors import PolyNeXtError
from polynext.tables import table

if TYPE_CHECKING:
    from polynext.circuit.graph import Circuit


def main(network: Annotated[str, tyro.conf.Positional] = "cpolynext_nano_bn", json: bool = False) -> None:
    """Show a fully polynomial model as an arithmetic circuit, and what its rewrites save.

    A level is a rescale on the longest path. CKKS needs a prime for each level, and the cost of every operation grows
    with the number of primes.

    Args:
        network: a fully polynomial model, which `polynext models '*_bn'` lists, the folder of a training run, a weights
            file, or a shipped network: mnist, digits, cifar10, cifar10-deep.
        json: print JSON.
    """
    from polynext.circuit.lowering import lower
    from polynext.circuit.rewrites import expand_sums, factor_sums, merge_linear_maps
    from polynext.models import list_models
    from polynext.runs import bare, load_run

    run = load_run(network)
    if bare(run.name) not in list_models(fully_polynomial=True):
        raise PolyNeXtError(f"{network!r} is not fully polynomial: `polynext models '*_bn'` lists the models that are.")
    lowered = lower(run.model)
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
        record = {"model": run.tagged_name, "degree": degree, "multiplicative_depth": depth, "rewrites": found}
        print(jsonlib.dumps(record, indent=2))
        return
    shown = str(degree) if degree < 10**6 else f"2^{degree.bit_length() - 1}"
    print(f"{run.tagged_name}: a polynomial of degree {shown} and multiplicative depth {depth}\n")
    rows = [[str(stage[column]) for column in COLUMNS] for stage in found]
    print(table(("circuit", "linear maps", "sums", "products", "levels"), rows))


COLUMNS = ("circuit", "linear", "sum", "product", "levels")


def summary(name: str, circuit: "Circuit", shared_rescale: bool) -> dict[str, str | int]:
    count = circuit.count()
    kinds = {kind: count[kind] for kind in ("linear", "sum", "product")}
    return {"circuit": name, **kinds, "levels": circuit.levels(shared_rescale)}
