"""Everything that changes how a network runs and not what it computes, applied from outside.

| function | what it is for |
|---|---|
| `accelerate` | faster training and inference on CPUs |
| `save_memory` | training in less memory |
| `compile` | PyTorch's compiler, once for each kind of stack |
| `fold` | inference with constants absorbed into the weights |
| `linear_form` | 1x1 convolutions as `nn.Linear`, for libraries that quantise those |
| `onnx_form` | the network in operations that other engines do well; `polynext.export` uses it |
| `restore` | the plain network again |

Start with `forms.py`, which says how a module gets another form. `kernels.py` and `attention.py` have those of the
operators, `network.py` those of stacks, cells and stages, `memory.py` the memory-saving backward pass.
"""

from polynext.acceleration.compilation import compile
from polynext.acceleration.folding import fold
from polynext.acceleration.forms import restore
from polynext.acceleration.linear_form import linear_form
from polynext.acceleration.network import Memory, accelerate, save_memory
from polynext.acceleration.onnx_form import onnx_form

__all__ = ["Memory", "accelerate", "compile", "fold", "linear_form", "onnx_form", "restore", "save_memory"]
