"""A fully polynomial network as what it is: additions, multiplications and linear maps. Start with `degree.py`."""

from polynext.circuit.degree import NotPolynomialError, is_polynomial, polynomial_degree

__all__ = ["NotPolynomialError", "is_polynomial", "polynomial_degree"]
