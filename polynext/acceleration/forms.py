"""How a module gets another form: its class is replaced by a subclass of the same weights that computes the same.

A form is applied from outside, in place, and can be taken back; the state dict, hooks and `isinstance` do not notice.
"""

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.fx._symbolic_trace import is_fx_symbolic_tracing

from polynext.errors import PolyNeXtError


class Form(nn.Module):
    """Another form of the module class `plain`: `fast` computes what the plain `forward` does.

    Whatever records operations (tracing, exporting, `torch.func`) sees the plain module.
    """

    plain: ClassVar[type[nn.Module]]

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Whether a plain module can have this form."""
        return True

    def fast(self, *inputs: Any) -> Any:
        return self.plain.forward(self, *inputs)

    def forward(self, *inputs: Any) -> Any:
        return self.plain.forward(self, *inputs) if is_recorded() else self.fast(*inputs)

    def __prepare_scriptable__(self) -> nn.Module:
        raise PolyNeXtError(
            f"TorchScript cannot compile {type(self).__name__}: give it the plain network, "
            "polynext.acceleration.restore(model)."
        )


class SavedContiguous(nn.Module):
    """A module whose state dict has contiguous tensors, whatever the order in memory: safetensors takes no others."""

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, value in destination.items():
            if name.startswith(prefix) and not keep_vars:
                destination[name] = value.contiguous()


def is_recorded() -> bool:
    """Whether operations are recorded as PyTorch's own, or transformed by `torch.func` or forward-mode derivatives."""
    if torch.compiler.is_compiling():
        return torch.compiler.is_exporting()
    if torch.jit.is_tracing() or is_fx_symbolic_tracing():
        return True
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def plain_class(module: nn.Module) -> type[nn.Module]:
    return module.plain if isinstance(module, Form) else type(module)


def apply_forms(model: nn.Module, forms: Iterable[type[Form]]) -> None:
    """Gives these forms to all modules of exactly the classes that they are for."""
    by_class = {form.plain: form for form in forms}
    for module in model.modules():
        form = by_class.get(plain_class(module))
        if form is not None and form.fits(module):
            module.__class__ = form


def restore(model: nn.Module) -> nn.Module:
    """Takes every form back, in place: the plain network, which can be scripted, traced and exported."""
    for module in list(model.modules()):
        module.__dict__.pop("_compiled_call_impl", None)  # left by nn.Module.compile
        if isinstance(module, Form):
            for name in vars(type(module)).get("state", ()):
                module.__dict__.pop(name, None)
                module._modules.pop(name, None)
            module.__class__ = module.plain  # type: ignore[assignment]
    return model
