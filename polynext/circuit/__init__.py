"""Networks as polynomials: their degree, and the arithmetic circuit that computes them.

`lowering.py` makes a circuit of a torch model and `degree.py` tells its degree; everything else needs numpy alone.
"""
