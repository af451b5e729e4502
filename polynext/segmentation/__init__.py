"""Semantic segmentation: UPerNet on any backbone (Section 4.5).

Read `upernet.py` for the network, `config.py` for the config of a run, `task.py` for its training.
"""

import lazy_loader

from polynext.extras import require

require("segment")

# The recipes need no torch, so that `polynext segment train --help` is fast.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
