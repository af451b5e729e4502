"""What defines a training run, its YAML file, and the network that it trains.

`training.py` has the dataclasses, `files.py` reads and writes them, `network.py` builds the network. Using a trained
network needs this package; training it needs `polynext.training`.
"""

import lazy_loader

# A config needs no torch, which the network imports.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
