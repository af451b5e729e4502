"""Programs on ciphertexts: what they are, how they are executed and counted, and the libraries that encrypt.

`program.py` and `execution.py` are the computation itself, `backends/` the encryption libraries behind one protocol.
"""

__all__: list[str] = []
