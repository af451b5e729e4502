"""From a circuit to a program that runs on ciphertexts. Start with `planner.py`."""

__all__: list[str] = []
