"""How a network runs: speed, memory and form, applied from outside. The results stay the same.

| function | purpose |
|---|---|
| `accelerate` | faster training and inference on CPUs |
| `save_memory` | training in less memory |
| `compile` | PyTorch's compiler, once for each kind of stack |
| `fold` | inference with scales and norms absorbed into the weights |
| `linear_form` | 1x1 convolutions as `nn.Linear`, for quantisation libraries |
| `onnx_form` | operations that other engines run fast; `polynext.export` uses it |
| `restore` | back to the plain network |

Start with `fast_module.py`, which replaces a module's implementation. `kernels.py` and `attention.py` implement the
operators, `network.py` stacks, cells and stages, `memory.py` the memory-saving backward pass.
"""

from polynext.acceleration.compilation import compile
from polynext.acceleration.fast_module import restore
from polynext.acceleration.folding import fold
from polynext.acceleration.linear_form import linear_form
from polynext.acceleration.network import accelerate, save_memory
from polynext.acceleration.onnx_form import onnx_form

__all__ = ["accelerate", "compile", "fold", "linear_form", "onnx_form", "restore", "save_memory"]
