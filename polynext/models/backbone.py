"""The interface of a timm model, which PolyNeXt and the prior polynomial networks share."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from polynext.errors import PolyNeXtError


class Backbone(nn.Module, ABC):
    """A stem, stages, a norm, and a classifier `head`. Subclasses define how features are computed."""

    if TYPE_CHECKING:  # TorchScript takes no annotations of modules
        stem: nn.Module
        stages: nn.Sequential
        norm: nn.Module
        head: Any
        stride: int
        num_features: int
        num_layers: int  # as the paper counts depth
        head_hidden_size: int

    def __init__(self, in_chans: int, num_classes: int, drop_rate: float):
        super().__init__()
        self.in_chans, self.num_classes, self.drop_rate = in_chans, num_classes, drop_rate
        self.feature_info: list[dict[str, Any]] = []

    @abstractmethod
    def forward_features(self, x: Tensor) -> Tensor:
        """The feature map before the head."""

    @abstractmethod
    def stage_outputs(self, x: Tensor) -> Iterator[Tensor]:
        """The output of each stage, computed as it is asked for."""

    def check(self, x: Tensor) -> None:
        """Raises an error unless the network can take these images."""
        check_image(x, self.in_chans, self.stride)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return self.head(x, pre_logits=pre_logits)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """The final features and the outputs of the stages in `indices`, all by default.

        Args:
            x: images.
            indices: which stages; an int n means the last n.
            norm: apply the final norm to the last stage's output.
            stop_early: do not compute the stages after the last one in `indices`.
            output_fmt: only "NCHW".
            intermediates_only: return only the list of stage outputs.
        """
        if output_fmt != "NCHW":
            raise PolyNeXtError(f"output_fmt is {output_fmt!r}: these networks support 'NCHW' only.")
        wanted, last = feature_take_indices(len(self.stages), indices)
        intermediates = []
        features = x
        for i, features in enumerate(self.stage_outputs(x)):
            if i in wanted:
                intermediates.append(self.norm(features) if norm and i == len(self.stages) - 1 else features)
            if stop_early and i == last:
                break
        return intermediates if intermediates_only else (self.norm(features), intermediates)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Removes the layers that these intermediates do not need. Returns the indices as positive numbers."""
        wanted, last = feature_take_indices(len(self.stages), indices)
        self.stages = self.stages[: last + 1]
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.num_classes = 0
            self.head = nn.Identity()
        return wanted

    def get_classifier(self) -> nn.Module:
        return self.head.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replaces the classifier by an untrained one, and the pooling if `global_pool` is given."""
        self.num_classes = num_classes
        weight = next(self.stages.parameters())
        self.head.reset(num_classes, global_pool, device=weight.device, dtype=weight.dtype)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """timm's name for `polynext.save_memory(model, "least")`."""
        from polynext.acceleration import save_memory  # the one import upwards: timm expects this method

        save_memory(self, "least" if enable else "plain")

    def no_weight_decay(self) -> set[str]:
        """The parameters that scale features instead of mixing them: norms, biases, all scales."""
        return {name for name, p in self.named_parameters() if p.ndim == 1 or not name.endswith("weight")}

    def set_memory(self, memory: str) -> None:
        raise PolyNeXtError(f"set_memory has moved: call polynext.save_memory(model, {memory!r}).")

    def fold(self) -> nn.Module:
        raise PolyNeXtError("fold has moved: call polynext.fold(model).")

    @property
    @torch.jit.unused
    def log2_degree(self) -> float:
        """Base-2 logarithm of the network's polynomial degree, without norms, as in the paper's Appendix A."""
        degrees: list[Any] = [m.degree for m in self.modules() if hasattr(m, "degree")]
        return sum(map(math.log2, degrees))


def check_image_size(size: tuple[int, int], stride: int) -> None:
    if min(size[0], size[1]) < stride:
        raise PolyNeXtError(
            f"the network reduces images by {stride} but got {size[0]}x{size[1]} pixels: "
            f"give at least {stride}x{stride}, or use a low-resolution model such as cpolynext_lowres."
        )


@torch.fx.wrap
def check_image(x: Tensor, in_chans: int, stride: int) -> None:
    if torch.jit.is_tracing():  # sizes are tensors there
        return
    if x.ndim != 4 or x.shape[1] != in_chans:
        given = ", ".join([str(n) for n in x.shape])
        if x.ndim == 3 and x.shape[0] == in_chans:
            fix = "add the batch axis, x.unsqueeze(0)."
        elif x.ndim == 4 and x.shape[3] == in_chans:
            fix = "the channels come second, x.permute(0, 3, 1, 2)."
        elif x.ndim == 4:
            fix = f"convert the images to {in_chans} channels, or build the network with in_chans={x.shape[1]}."
        else:
            fix = "give a batch of images."
        raise PolyNeXtError(f"the network takes (batch, {in_chans}, height, width) but got ({given}): {fix}")
    check_image_size((x.shape[2], x.shape[3]), stride)
