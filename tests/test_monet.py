"""MONet: the published counts, the shift, and the interface of a timm model."""

import pytest
import timm
import torch
from timm.models import group_parameters

import polynext
from polynext.models.costs import count_macs, count_parameters
from polynext.models.monet import shift


@pytest.mark.parametrize("name, parameters, macs", [("monet_tiny", 10.34e6, 2.70e9), ("monet_small", 32.88e6, 6.71e9)])
def test_monet_has_the_published_size(name: str, parameters: float, macs: float) -> None:
    model = timm.create_model(name, device="meta")
    assert count_parameters(model) == pytest.approx(parameters, abs=5e3)
    assert count_macs(model, (3, 224, 224)) == pytest.approx(macs, abs=5e6)


def test_the_shift_moves_each_quarter_its_way() -> None:
    rows = torch.arange(4.0)[None, :, None, None].expand(1, 4, 4, 4)
    columns = rows.transpose(1, 2)
    assert shift(rows)[0, :, 0].T.tolist() == [[0, 0, 1, 2], [1, 2, 3, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert shift(columns)[0, 0].T.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 0, 1, 2], [1, 2, 3, 3]]


def test_monet_is_a_timm_model() -> None:
    model = timm.create_model("monet_tiny", num_classes=5).eval()
    images = torch.randn(2, 3, 64, 64)
    features, stages = model.forward_intermediates(images)
    assert torch.equal(features, stages[-1]) and torch.equal(features, model.forward_features(images))
    assert [s.shape[1] for s in stages] == [i["num_chs"] for i in model.feature_info]
    logits = model(images)
    assert logits.shape == (2, 5) and torch.equal(model.forward_head(features), logits)
    assert model.forward_head(features, pre_logits=True).shape == (2, model.num_features)
    maps = timm.create_model("monet_tiny", features_only=True)(images)
    assert [m.shape[-1] for m in maps] == [16, 8, 4, 2]
    model.reset_classifier(7)
    assert model(images).shape == (2, 7) and model.get_classifier().out_features == 7
    model.reset_classifier(7, "")
    assert model(images).shape == (2, 7, 2, 2)
    model.reset_classifier(0)
    torch.testing.assert_close(model(images), features)
    model.reset_classifier(0, "avg")
    torch.testing.assert_close(model(images), features.mean(dim=(2, 3)))
    groups = group_parameters(model, model.group_matcher(coarse=False))
    assert sum(map(len, groups.values())) == len(list(model.parameters()))


def test_mistakes() -> None:
    model = timm.create_model("monet_tiny", device="meta")
    with pytest.raises(polynext.PolyNeXtError, match="'NCHW' only"):
        model.forward_intermediates(torch.empty(1, 3, 64, 64, device="meta"), output_fmt="NLC")
    with pytest.raises(polynext.PolyNeXtError, match="global_pool='max'"):
        model.reset_classifier(5, "max")


def test_checkpointing_changes_no_gradient() -> None:
    model = timm.create_model("monet_tiny", num_classes=3)
    images = torch.randn(1, 3, 64, 64)
    gradients = []
    for enable in (False, True):
        model.zero_grad()
        model.set_grad_checkpointing(enable)
        model(images).sum().backward()
        gradients.append(model.stem[0].weight.grad.clone())
    assert torch.equal(*gradients)
