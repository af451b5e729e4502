"""The paper's tables, reproduced from the data and weights that are available. Start with `tables.py`.

`tables.py` lists the tables and writes them. `networks.py`, `ablations.py` and `hyperparameters.py` list their figures;
`calls.py` has the functions that measure them, and `experiments.py` runs those and stores their results.
"""

import lazy_loader

# The settings need no torch, so that `polynext reproduce --help` is fast.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
