"""A penalty that keeps PolyConv's input matrices well-conditioned, for encrypted inference."""

import torch
from torch import Tensor, nn

from polynext.errors import PolyNeXtError
from polynext.nn import PolyConv


def spread_of_singular_values(model: nn.Module) -> Tensor:
    """log(arithmetic mean / geometric mean) of the squared singular values of W_in, averaged over all PolyConvs.

    Zero for multiples of orthogonal matrices, infinite for singular ones. Encrypted inference computes h = W_in x and
    recovers x as W_in^-1 h, where the condition number multiplies the noise.
    """
    weights = [m.w_in.weight.flatten(1).float() for m in model.modules() if isinstance(m, PolyConv)]
    if not weights:
        raise PolyNeXtError(f"{type(model).__name__} has no PolyConv: give `model.conditioning` 0.")
    with torch.autocast(weights[0].device.type, enabled=False):
        squares = [w @ w.T if len(w) <= w.shape[1] else w.T @ w for w in weights]
        return torch.stack([(g.trace() / len(g)).log() - g.logdet() / len(g) for g in squares]).mean()
