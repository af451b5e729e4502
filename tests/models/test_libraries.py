"""Our networks in the hands of other libraries: LoRA, quantisation, Grad-CAM, decoders, checkpoints, and GPUs."""

import numpy as np
import pytest
import segmentation_models_pytorch as smp
import timm
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

import polynext
from polynext.acceleration import linear_form

SHIPPED = "cpolynext_nano_bn.digits"
POINTWISE = r".*\.(w_in|w_out|w_ab|w_o|w_qkv)"


def digits() -> tuple[Tensor, Tensor]:
    images, labels, _ = polynext.load_run(SHIPPED, pretrained=True).images("test", 360)
    return torch.from_numpy(images).float(), torch.from_numpy(labels)


def accuracy(model: nn.Module) -> float:
    images, labels = digits()
    with torch.no_grad():
        return 100 * (model(images).argmax(1) == labels).float().mean().item()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_lora_trains_merges_and_saves(tmp_path) -> None:
    peft = pytest.importorskip("peft")
    model = timm.create_model("apolynext_nano", num_classes=3)
    frozen = {name: value.clone() for name, value in model.state_dict().items()}
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=POINTWISE, modules_to_save=["head.fc"])
    adapted = peft.get_peft_model(model, config)
    wrapped = [name for name, module in adapted.named_modules() if isinstance(module, peft.tuners.lora.Conv2d)]
    assert len(wrapped) == 4 + 4 + 1
    x, labels = torch.randn(6, 1, 8, 8), torch.tensor([0, 1, 2, 0, 1, 2])
    optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], 1e-2)
    losses = []
    for _ in range(8):
        loss = nn.functional.cross_entropy(adapted(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    adapted.save_pretrained(tmp_path)
    again = timm.create_model("apolynext_nano", num_classes=3)
    again.load_state_dict(frozen)
    loaded = peft.PeftModel.from_pretrained(again, tmp_path)
    with torch.no_grad():
        expected = adapted.eval()(x)
        torch.testing.assert_close(loaded.eval()(x), expected)
        merged = adapted.merge_and_unload()
        torch.testing.assert_close(merged(x), expected, rtol=1e-4, atol=1e-5)
    assert type(merged) is type(model) and list(merged.state_dict()) == list(frozen)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("form", ["Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig"])
def test_int8_keeps_the_accuracy(form: str) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    model = timm.create_model(SHIPPED, pretrained=True).eval()
    before = accuracy(model)
    quantised = linear_form(model)
    assert accuracy(quantised) == before
    quantization.quantize_(quantised, getattr(quantization, form)())
    converted = [m for m in quantised.modules() if isinstance(m, nn.Linear) and type(m.weight) is not nn.Parameter]
    pointwise = [m for m in model.modules() if isinstance(m, polynext.nn.PointwiseConv2d)]
    assert len(converted) == len(pointwise) + 1  # and the classifier
    assert abs(accuracy(quantised) - before) <= 0.5


@pytest.mark.parametrize("name", ["cpolynext_nano", "apolynext_nano_bn"])
def test_grad_cam_looks_at_the_last_cell(name: str) -> None:
    cam = pytest.importorskip("pytorch_grad_cam")
    model = timm.create_model(name).eval()
    with cam.GradCAM(model=model, target_layers=[model.stages[-1].cells[-1]]) as explain:
        heat = explain(torch.randn(2, 1, 8, 8), targets=None)
    assert heat.shape == (2, 8, 8) and np.isfinite(heat).all()


@pytest.mark.parametrize("stride", [8, 16])
def test_deeplab_takes_dilated_features(stride: int) -> None:
    model = smp.DeepLabV3Plus("tu-cpolynext_tiny", encoder_weights=None, encoder_output_stride=stride, classes=4)
    with torch.no_grad():
        assert model.eval()(torch.randn(1, 3, 64, 64)).shape == (1, 4, 64, 64)


def test_maximum_pooling() -> None:
    model, x = timm.create_model("cpolynext_nano", global_pool="max").eval(), torch.randn(2, 1, 8, 8)
    with torch.no_grad():
        before = model.forward_head(model.forward_features(x), pre_logits=True)
        model.reset_classifier(0, "")
        torch.testing.assert_close(before, model(x).amax(dim=(2, 3)))


FAMILIES = ["cpolynext_nano", "cpolynext_nano_bn", "apolynext_nano", "apolynext_nano_bn", "monet_tiny", "dttn_tiny_bn"]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("form", ["plain", "accelerated", "lean", "eval"])
def test_a_forward_pass_on_a_simulated_gpu(name: str, form: str) -> None:
    """Shapes, dtypes and devices of a forward pass on a GPU that is not there; nothing is computed."""
    if form == "lean" and "polynext" not in name:
        pytest.skip("has no lean form")
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = timm.create_model(name, device="cuda")
        forms = {"accelerated": polynext.accelerate, "lean": polynext.save_memory}
        model = forms.get(form, nn.Module.eval if form == "eval" else nn.Module.train)(model)
        images = torch.empty(2, *model.pretrained_cfg["input_size"], device="cuda")
        logits = model(images)
        assert logits.device.type == "cuda" and logits.shape == (2, model.num_classes)
        if form == "eval":
            graph = make_fx(model)(images)
            values = tree_leaves([node.meta.get("val") for node in graph.graph.nodes])
            assert {value.device.type for value in values if isinstance(value, Tensor)} == {"cuda"}
