"""Weights in files of this package and of other training scripts."""

import pytest
import timm
import torch
from safetensors.torch import save_file

import polynext
from polynext.models import read_weights
from tests.models.test_published import small_checkpoint

WRAPPED = {
    "DistributedDataParallel": lambda w: {f"module.{k}": v for k, v in w.items()},
    "torch.compile": lambda w: {"state_dict": {f"_orig_mod.{k}": v for k, v in w.items()}, "epoch": 3},
    "both": lambda w: {"model": {f"module._orig_mod.{k}": v for k, v in w.items()}, "optimizer": {"lr": 0.1}},
    "timm": lambda w: {"state_dict": {k: 0 * v for k, v in w.items()}, "state_dict_ema": w, "epoch": 3},
    "Lightning": lambda w: {
        "pytorch-lightning_version": "2.5.0",
        "epoch": 3,
        "state_dict": {f"net.{k}": v for k, v in w.items()} | {"metric.total": torch.zeros(1)},
    },
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_weights_saved_by_other_training_scripts(wrap, tmp_path) -> None:
    weights, file = timm.create_model("cpolynext_nano").state_dict(), tmp_path / "weights.pt"
    torch.save(wrap(weights), file)
    torch.testing.assert_close(read_weights(file), dict(weights))
    model = timm.create_model("cpolynext_nano")
    polynext.load_weights(model, file)
    torch.testing.assert_close(model.state_dict(), weights)
    torch.testing.assert_close(polynext.load_run("cpolynext_nano", checkpoint=file).model.state_dict(), weights)


def test_other_files_are_named(tmp_path) -> None:
    torch.save({"epoch": 3, "args": "x"}, tmp_path / "state.pt")
    with pytest.raises(polynext.PolyNeXtError, match="has epoch, args besides weights: give a state dict"):
        read_weights(tmp_path / "state.pt")
    save_file({"module.stem.weight": torch.zeros(1)}, tmp_path / "weights.safetensors")
    with pytest.raises(polynext.PolyNeXtError, match=r"missing head.*misshapen stem.weight \(1,\)"):
        polynext.load_weights(timm.create_model("cpolynext_nano"), tmp_path / "weights.safetensors")


def test_a_local_file_can_be_the_pretrained_weights(tmp_path) -> None:
    model = polynext.create_model("cpolynext_nano")
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    overlay = {"file": str(tmp_path / "weights.safetensors")}
    again = polynext.create_model("cpolynext_nano", pretrained=True, pretrained_cfg_overlay=overlay, in_chans=1)
    assert torch.equal(again.head.fc.weight, model.head.fc.weight)


def test_each_kind_of_unreadable_file_has_a_message(tmp_path) -> None:
    torch.save(small_checkpoint(), tmp_path / "whole.pt")
    (tmp_path / "torn.pt").write_bytes((tmp_path / "whole.pt").read_bytes()[:100_000])
    (tmp_path / "torn.safetensors").write_bytes(b"\x08\x00\x00\x00")
    (tmp_path / "text.pt").write_text("not a checkpoint")
    torch.save(torch.nn.Linear(2, 2), tmp_path / "code.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({1: 2, "state_dict": 3}, tmp_path / "foreign.pt")
    with pytest.raises(polynext.PolyNeXtError, match="not a published PolyNeXt checkpoint, it has 1, state_dict"):
        polynext.from_published(torch.load(tmp_path / "foreign.pt"))
    for name in ("torn.pt", "torn.safetensors", "text.pt", "code.pt"):
        with pytest.raises(polynext.PolyNeXtError, match="truncated or has another format"):
            read_weights(tmp_path / name)
    with pytest.raises(polynext.PolyNeXtError, match="contains a list"):
        read_weights(tmp_path / "list.pt")
    with pytest.raises(polynext.PolyNeXtError, match="there is no file"):
        read_weights(tmp_path / "absent.pt")


def test_weights_of_another_model_are_refused(tmp_path) -> None:
    torch.save(small_checkpoint(), tmp_path / "lowres.pt")
    with pytest.raises(polynext.PolyNeXtError, match=r"unexpected stages.* misshapen head.fc.weight"):
        polynext.load_weights(polynext.create_model("cpolynext_nano"), tmp_path / "lowres.pt")
