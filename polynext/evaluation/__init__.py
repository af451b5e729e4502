"""How good a trained network is: one file per question. Start with `evaluate.py`."""
