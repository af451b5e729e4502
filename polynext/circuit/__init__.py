"""A fully polynomial network as what it is: additions, multiplications and linear maps. Start with `degree.py`."""

from polynext.circuit.degree import NotPolynomialError, is_polynomial, polynomial_degree
from polynext.circuit.graph import Circuit
from polynext.circuit.lowering import lower

__all__ = ["Circuit", "NotPolynomialError", "is_polynomial", "lower", "polynomial_degree"]
