"""Networks as polynomials: their degree, and the arithmetic circuit that computes them.

`lowering.py` turns a torch model into a circuit and `degree.py` computes its degree. Other modules do not need torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from polynext.extras import require

require("encrypted", "scipy")

from polynext.circuit.graph import Circuit

if TYPE_CHECKING:
    from polynext.circuit.degree import NotPolynomialError, is_polynomial, polynomial_degree
    from polynext.circuit.lowering import lower

__all__ = ["Circuit", "NotPolynomialError", "is_polynomial", "lower", "polynomial_degree"]


# The compiler works on circuits without torch: modules that need torch are imported at their first use.
def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'polynext.circuit' has no attribute {name!r}")
    module = "lowering" if name == "lower" else "degree"
    return getattr(importlib.import_module(f"polynext.circuit.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
