"""Programs on ciphertexts: their definition, execution and cost, and the encryption libraries.

Start with `program.py` and `execution.py`. `backends/` contains the encryption libraries behind one interface.
"""

__all__: list[str] = []
