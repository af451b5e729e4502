"""Everything that changes how a network runs and not what it computes."""

from polynext.acceleration.compilation import compile
from polynext.acceleration.folding import fold

__all__ = ["compile", "fold"]
