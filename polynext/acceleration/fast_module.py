"""Replacing a module's implementation: its class becomes a subclass with the same weights and the same results.

The replacement is applied from outside, in place, and can be undone. The state dict, hooks and `isinstance` checks do
not change.
"""

import copy
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.fx._symbolic_trace import is_fx_symbolic_tracing

from polynext.errors import PolyNeXtError


class FastModule(nn.Module):
    """Another implementation of the module class `plain`: `fast` returns what the plain `forward` does.

    Tracing, exporting and `torch.func` use the plain `forward`.
    """

    plain: ClassVar[type[nn.Module]]

    @classmethod
    def supports(cls, module: nn.Module) -> bool:
        """Whether this class can implement a plain module."""
        return True

    def fast(self, *inputs: Any) -> Any:
        return self.plain.forward(self, *inputs)

    def forward(self, *inputs: Any) -> Any:
        return self.plain.forward(self, *inputs) if needs_plain_operations() else self.fast(*inputs)

    def __prepare_scriptable__(self) -> nn.Module:
        raise PolyNeXtError(
            f"TorchScript cannot compile {type(self).__name__}: give it the plain network, "
            "polynext.acceleration.restore(model)."
        )


class SavedContiguous(nn.Module):
    """A module whose state dict has contiguous tensors, as safetensors requires, whatever their order in memory."""

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, value in destination.items():
            if name.startswith(prefix) and not keep_vars:
                destination[name] = value.contiguous()


def needs_plain_operations() -> bool:
    """True while tracing, exporting, or differentiating by `torch.func` or in forward mode."""
    if torch.compiler.is_compiling():
        return torch.compiler.is_exporting()
    if torch.jit.is_tracing() or is_fx_symbolic_tracing():
        return True
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def replace_implementations(model: nn.Module, classes: Iterable[type[FastModule]]) -> None:
    """Gives these classes to all modules of exactly the plain classes that they implement."""
    by_plain = {fast.plain: fast for fast in classes}
    for module in model.modules():
        fast = by_plain.get(module.plain if isinstance(module, FastModule) else type(module))
        if fast is not None and fast.supports(module):
            module.__class__ = fast


def restore(model: nn.Module) -> nn.Module:
    """Undoes `accelerate`, `save_memory` and `compile`, in place: the plain network can be scripted and exported."""
    for module in list(model.modules()):
        module.__dict__.pop("_compiled_call_impl", None)  # set by nn.Module.compile
        if isinstance(module, FastModule):
            for name in vars(type(module)).get("state", ()):
                module.__dict__.pop(name, None)
                module._modules.pop(name, None)
            module.__class__ = module.plain  # type: ignore[assignment]
    return model


def replace_modules(model: nn.Module, replacement: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """A plain copy of a network with other modules: `replacement` returns the one for each, or the module itself."""
    model = restore(copy.deepcopy(model))
    for module in list(model.modules()):
        for name, child in module.named_children():
            setattr(module, name, replacement(child))
    return model
