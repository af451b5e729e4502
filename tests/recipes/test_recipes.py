"""What a run is: the recipes' numbers, the optimisers and schedules behind them, configs on the command line."""

import dataclasses
import math
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data.auto_augment import RandAugment
from torch import nn

import polynext
from polynext import paper
from polynext.cli import main
from polynext.config.network import build_model, check_regularisation
from polynext.data import AugmentConfig, Preprocessing, training_transform
from polynext.data.loader import seed_everything
from polynext.errors import PolyNeXtError
from polynext.experiments.reproduction.networks import own_recipe
from polynext.models import ArchitectureChanges, read_weights
from polynext.nn import PolyConv, freeze_statistics
from polynext.recipes import RECIPES, recipe
from polynext.training import EmaConfig, ModelConfig, OptimizerConfig, ScheduleConfig, from_yaml, to_yaml, train
from polynext.training.classification import build_mixup
from polynext.training.conditioning import spread_of_singular_values
from polynext.training.optimizer import build_optimizer
from polynext.training.schedule import averages_from, head_dropout, learning_rate

# Networks whose augmentation on small images is that of the authors' low-resolution scripts.
LOW_RESOLUTION = ("cpolynext_lowres", "monet_tiny", "dttn_tiny", "mixer_s_lowres", "resmlp_12_lowres")


def test_every_recipe_names_a_model_and_survives_yaml() -> None:
    assert len(RECIPES) == 11 + 3 + 3 + 2 + 5 + 10 + 15 + 7
    for name in RECIPES:
        config = recipe(name)
        assert polynext.create_model(config.model.name, device="meta")
        assert from_yaml(to_yaml(config)) == config


@pytest.mark.parametrize("name", ["monet_tiny", "dttn_small_bn", "convformer_s18", "apolynext_tiny_bn"])
def test_networks_of_the_paper_support_all_regularisation(name: str) -> None:
    check_regularisation(ModelConfig(name=name, drop_path=0.2, dropout=0.4))


@pytest.mark.parametrize("augment", dict.fromkeys(recipe(name).augment for name in RECIPES))
def test_every_recipe_can_augment_images(augment: AugmentConfig) -> None:
    """Thousands of them: RandAugment asks for a posterised image of no bits twice in a thousand times."""
    preprocessing = Preprocessing(size=12, resize=12, mean=(0.5,) * 3, std=(0.25,) * 3)
    transform, generator = training_transform(preprocessing, augment), np.random.default_rng(0)
    transform = pickle.loads(pickle.dumps(transform))  # as worker processes get it where they are not forked
    black = 0
    for number in range(5000):
        seed_everything(number)
        height, width = generator.integers(5, 30, 2)
        image = Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8))
        made = np.asarray(transform(image))
        assert made.shape == (3, 12, 12) and np.isfinite(made).all()
        black += bool((made == -2).all())
    # with `inc1`, magnitude 9 leaves no bit of some; without it, or with magnitude 5, at least one of each
    assert bool(black) == ("-m9-" in augment.rand_augment and "inc1" in augment.rand_augment)


def test_recipes_have_the_numbers_of_the_paper() -> None:
    base = recipe("cpolynext_base")
    assert (base.optimizer.name, base.optimizer.lr, base.optimizer.weight_decay) == ("adamw", 0.004, 0.01)
    assert (base.model.drop_path, base.model.dropout, base.schedule.warmup_epochs) == (0.3, 0.6, 5)
    assert (base.epochs, base.batch_size, base.precision, base.compile) == (300, 1024, "bf16", True)
    large = recipe("apolynext_large")
    assert (large.optimizer.name, large.optimizer.lr, large.optimizer.eps) == ("lamb", 0.002, 1e-6)
    assert (large.model.drop_path, large.model.dropout, large.schedule.warmup_epochs) == (0.55, 0.7, 0)
    bn = recipe("apolynext_tiny_bn")
    assert (bn.optimizer.name, bn.optimizer.lr, bn.optimizer.weight_decay, bn.micro_batch) == ("adamw", 1e-3, 0.05, 256)
    assert (bn.model.drop_path, bn.model.dropout) == (0.0, 0.0)
    assert recipe("cpolynext_small_bn").model.drop_path == 0.2
    svhn = recipe("cpolynext_lowres_svhn")
    assert (svhn.augment.hflip, svhn.batch_size, svhn.optimizer.lr, svhn.schedule.min_lr) == (0.0, 96, 1e-3, 0.0)
    assert (svhn.augment.mixup, svhn.augment.erasing, svhn.ema.decay) == (1.0, 0.25, 0.0)


def test_crops_are_interpolated_as_in_the_authors_scripts() -> None:
    """At random in the low-resolution runs and from Small on, but bicubic for CPolyNeXt-S BN."""
    random = {name for name in RECIPES if recipe(name).augment.interpolation == "random"}
    assert random == {
        *(f"{kind}_{size}" for kind in ("cpolynext", "apolynext") for size in ("small", "base", "large")),
        *(f"{name}_{data}" for name in LOW_RESOLUTION for data in ("cifar10", "svhn", "tiny_imagenet")),
        *("convformer_s18", "caformer_s18"),
    }


@pytest.mark.parametrize("name", [name for name in RECIPES if recipe(name).augment.rand_augment])
@pytest.mark.parametrize("how", ["authors", "timm"])
def test_rand_augment_fills_and_resamples_as_the_authors_or_as_timm(name: str, how: str) -> None:
    """128 grey and either interpolation at random, or the mean colour and the crop's interpolation."""
    config = recipe(name)
    theirs = name in ("convformer_s18", "caformer_s18", "mixer_s16_224", "resmlp_12_224")  # trained by other scripts
    assert config.augment.rand_augment_as == ("timm" if theirs else "authors")
    preprocessing = config.data.preprocessing
    transform = training_transform(preprocessing, replace(config.augment, rand_augment_as=how))
    (policy,) = [part for part in transform.transforms if isinstance(part, RandAugment)]
    either = (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)
    as_crop = {"random": either, "bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
    for operation in policy.ops:
        fill, resample = operation.kwargs["fillcolor"], operation.kwargs["resample"]
        if how == "authors":
            assert fill == (128, 128, 128) and resample == either
        else:
            assert fill == tuple(round(255 * mean) for mean in preprocessing.mean)
            assert resample == as_crop[config.augment.interpolation]
    rotate = next(operation for operation in policy.ops if operation.name == "Rotate")
    rotate.prob = 1.0
    corners = {rotate(Image.new("RGB", (40, 40), "white")).getpixel((0, 0)) for _ in range(20)}
    assert rotate.kwargs["fillcolor"] in corners


def test_the_metaformer_recipe_equals_its_script() -> None:
    """timm 0.6.11: the cosine counts from the first epoch, ten epochs of cooldown, no decay on norms and biases."""
    config = recipe("caformer_s18")
    assert (config.batch_size, config.epochs, config.ema.decay, config.model.dropout) == (4096, 310, 0.0, 0.0)
    cosine = [1e-5 + (8e-3 - 1e-5) * (1 + math.cos(math.pi * epoch / 300)) / 2 for epoch in range(300)]
    rates = [learning_rate(config, epoch) for epoch in range(310)]
    assert rates[:20] == pytest.approx([1e-6 + (8e-3 - 1e-6) * epoch / 20 for epoch in range(20)])
    assert rates[20:300] == pytest.approx(cosine[20:]) and rates[300:] == pytest.approx([1e-5] * 10)
    groups = build_optimizer(nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), config.optimizer).param_groups
    assert [(len(g["params"]), g["weight_decay"]) for g in groups] == [(1, 0.05), (3, 0.0)]
    assert not any(g["decoupled_decay"] or g["always_adapt"] for g in groups)


def test_every_compared_network_has_a_recipe_for_each_of_its_figures() -> None:
    """All figures of MONet, DTTN and the networks of Table S5 can be trained."""
    priors = ("MONet", "DTTN", "ResNet", "MLP-Mixer", "ResMLP")
    tables = {"1": ("imagenet",), "7": ("imagenet",), "S5": ("cifar10", "svhn", "tiny-imagenet")}
    rows = {"1": paper.main_results(), "7": paper.rows("7"), "S5": paper.rows("S5")}
    figures = [(row["model"], data) for table, sets in tables.items() for row in rows[table] for data in sets]
    compared = [(model, data) for model, data in figures if model.startswith(priors)]
    assert len(compared) == 5 + 2 + 15
    for model, data in compared:
        assert own_recipe(str(paper.timm_name(model)), data), (model, data)


def test_compared_networks_are_trained_as_published() -> None:
    resnet = recipe("resnet18_lowres_cifar10")  # He et al.: 64,000 steps of 128 images, drops at 32,000 and 48,000
    steps = 50_000 / resnet.batch_size
    assert resnet.epochs * steps == pytest.approx(64_000, rel=0.01)
    assert [epoch * steps for epoch in resnet.schedule.drop_epochs] == pytest.approx([32_000, 48_000], rel=0.01)
    rates = [learning_rate(resnet, epoch) for epoch in (0, 81, 82, 122, 123, 163)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    optimizer = build_optimizer(nn.Linear(2, 2), resnet.optimizer)
    assert isinstance(optimizer, torch.optim.SGD)
    assert (optimizer.defaults["momentum"], optimizer.defaults["weight_decay"]) == (0.9, 1e-4)
    assert recipe("resnet18_lowres_svhn").augment.hflip == 0.0
    mixer, resmlp, monet = recipe("mixer_s16_224"), recipe("resmlp_12_224"), recipe("monet_small")
    assert (mixer.batch_size, mixer.epochs, mixer.optimizer.lr, mixer.optimizer.clip_grad) == (4096, 300, 1e-3, 1.0)
    assert (mixer.optimizer.weight_decay, mixer.optimizer.decay_all) == (0.1, False)  # of kernels only
    assert (mixer.model.drop_path, mixer.augment.mixup, mixer.schedule.min_lr) == (0.1, 0.5, 1e-5)
    assert mixer.schedule.warmup_epochs * 1_281_167 / 4096 == pytest.approx(10_000, rel=0.01)
    assert mixer.data.preprocessing == Preprocessing(size=224, resize=256, mean=(0.5,) * 3, std=(0.5,) * 3)
    assert (resmlp.optimizer.name, resmlp.optimizer.lr, resmlp.optimizer.weight_decay) == ("lamb", 5e-3, 0.2)
    assert (resmlp.batch_size, resmlp.epochs, resmlp.precision) == (2048, 400, "float32")
    assert (resmlp.model.drop_path, resmlp.data.preprocessing.resize) == (0.05, int(224 / 0.9))
    assert learning_rate(resmlp, 0) == pytest.approx(1e-6) and learning_rate(resmlp, 400) == pytest.approx(1e-5)
    assert (monet.epochs, monet.optimizer.name, monet.optimizer.clip_grad) == (300, "adamw", 1.0)
    assert replace(recipe("dttn_base"), model=recipe("cpolynext_tiny").model) == recipe("cpolynext_tiny")
    small = recipe("resmlp_12_lowres_tiny_imagenet")
    assert (small.optimizer.name, small.optimizer.lr, small.batch_size) == ("lamb", 1e-3, 96)


@pytest.mark.parametrize("name", ["resnet18_lowres", "mixer_s_lowres", "resmlp_12_lowres"])
@pytest.mark.parametrize("size", [32, 64])
def test_compared_networks_resolve_small_images(name: str, size: int) -> None:
    """64 patches, or a first stage at full resolution, instead of four patches of 16 pixels."""
    data = "cifar10" if size == 32 else "tiny_imagenet"
    model = build_model(recipe(f"{name}_{data}"), 7).eval()
    images = torch.randn(1, 3, size, size)
    assert model(images).shape == (1, 7)
    first = model.stem(images) if hasattr(model, "stem") else model.layer1(model.conv1(images))
    assert first.shape[1:] == ((64, size, size) if name.startswith("resnet") else (64, first.shape[-1]))


def test_learning_rate_and_dropout_by_epoch() -> None:
    config = recipe("cpolynext_small")
    rates = [learning_rate(config, epoch) for epoch in range(301)]
    assert rates[0] == pytest.approx(0.1 * 0.004)
    assert rates[5] == pytest.approx(0.004)
    assert np.all(np.diff(rates[:6]) > 0) and np.all(np.diff(rates[5:]) < 0)
    assert rates[300] == pytest.approx(1e-5)
    middle = 5 + 295 / 2
    assert learning_rate(config, middle) == pytest.approx((0.004 + 1e-5) / 2)
    assert [head_dropout(config, e) for e in (0, 150, 299)] == pytest.approx([0.0, 0.2, 0.4 * 299 / 300])
    assert averages_from(config) == 200


def test_lamb_decays_decoupled_and_limits_the_gradient() -> None:
    """Against a LAMB step written out."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    config = OptimizerConfig(name="lamb", lr=0.1, weight_decay=0.3, clip_grad=5.0)
    optimizer = build_optimizer(layer, config)
    assert [len(g["params"]) for g in optimizer.param_groups] == [2]  # the bias is decayed like the weight
    start = {n: p.detach().clone() for n, p in layer.named_parameters()}
    for p in layer.parameters():
        p.grad = 10 * torch.randn_like(p)
    norm = math.sqrt(sum(p.grad.square().sum().item() for p in layer.parameters()))
    expected = {}
    for name, p in layer.named_parameters():
        g = p.grad / max(1.0, norm / 5.0)
        update = g / (g.abs() + 1e-8)  # Adam's first step, moments corrected
        decayed = start[name] * (1 - 0.1 * 0.3)
        trust = decayed.norm() / update.norm()
        expected[name] = decayed - 0.1 * trust * update
    optimizer.step()
    for name, p in layer.named_parameters():
        torch.testing.assert_close(p.detach(), expected[name], rtol=1e-3, atol=1e-4)


def test_muon_orthogonalises_the_updates_of_matrices() -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(16, 32, 1)
    optimizer = build_optimizer(layer, OptimizerConfig(name="muon", lr=0.1, weight_decay=0.0))
    start = [p.detach().clone() for p in layer.parameters()]
    for p in layer.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    weight, bias = (before - p.detach() for before, p in zip(start, layer.parameters(), strict=True))
    sizes = torch.linalg.svdvals(weight.flatten(1)) / (0.1 * 0.2 * math.sqrt(32))  # as large as AdamW's update
    assert sizes.min() > 0.5 and sizes.max() < 1.5  # five steps of Newton-Schulz bring them close to 1
    steps = bias * layer.bias.grad.sign()  # by AdamW with Nesterov momentum: all of one size at first
    assert steps.min() > 0 and steps.max() - steps.min() < 1e-6


def test_mixup_and_cutmix_take_turns_and_smooth_labels() -> None:
    mixup = build_mixup(recipe("cpolynext_tiny"), 10)
    kinds = []
    for seed in range(60):
        np.random.seed(seed)  # noqa: NPY002
        images = torch.stack([torch.full((3, 16, 16), float(i)) for i in range(4)])
        mixed, targets = mixup(images, torch.tensor([0, 1, 2, 3]))
        torch.testing.assert_close(targets.sum(dim=1), torch.ones(4))
        assert targets.min() == pytest.approx(0.1 / 10)
        kinds.append(len(mixed[0].unique()) > 1)  # CutMix pastes a rectangle, Mixup blends evenly
    assert 15 < sum(kinds) < 45


# The command line


def test_fields_are_set_on_the_command_line(capsys) -> None:
    arguments = [
        "train",
        "cifar10",
        "--epochs",
        "20",
        "--optimizer.lr",
        "2e-3",
        "--data.root",
        "x.npz",
        "--print-config",
    ]
    assert main(arguments) == 0
    config = from_yaml(capsys.readouterr().out)
    expected = recipe("cifar10")
    assert config.epochs == 20
    assert config.optimizer == dataclasses.replace(expected.optimizer, lr=2e-3)
    assert config.data.root == Path("x.npz")
    assert config.model == expected.model


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "sifar10"], "there is no recipe 'sifar10'"),
        (["train", "absent.yaml"], "there is no file absent.yaml"),
        (["train", "--resume", "nowhere"], "there is no file nowhere/config.yaml"),
        (["train", "--resume=nowhere"], "there is no file nowhere/config.yaml"),
        (["train", "digits", "--resume", "nowhere"], "both the recipe 'digits' and --resume"),
        (
            ["train", "--batch-size", "100", "--out", "OUT"],
            "a batch of 100 cannot be divided into 64 images for",
        ),
        (["train", "--batch-size", "4096", "--out", "OUT"], "fewer than one batch of 4096"),
        (["train", "--model.name", "cpolynext_nanno", "--out", "OUT"], "did you mean cpolynext_nano"),
        (["train", "cifar10", "--data.root", "absent.npz", "--out", "OUT"], "there is no file absent.npz"),
        (["train", "cpolynext_tiny", "--out", "OUT"], "imagenet needs --root"),
        (["train", "--epochs", "0", "--out", "OUT"], "epochs is 0: give at least 1"),
        (
            ["train", "--epochs", "1", "--schedule.warmup-epochs", "3", "--out", "OUT"],
            "epochs is 1, too few for a warmup of 3: give more, or a shorter",
        ),
        (["train", "--micro-batch", "0", "--out", "OUT"], "micro-batch is 0: give at least 1"),
        (["train", "--seed", "-1", "--out", "OUT"], "seed is -1: give at least 0"),
        (["train", "--optimizer.lr", "-1", "--out", "OUT"], "optimizer.lr is -1.0: give at least 0"),
        (["train", "--optimizer.lr", "nan", "--out", "OUT"], "optimizer.lr is nan: give at least 0"),
        (["train", "--optimizer.betas", "0.9", "1", "--out", "OUT"], "--optimizer.betas is 1.0: give less than 1"),
        (["train", "--ema.decay", "2", "--out", "OUT"], "--ema.decay is 2.0: give less than 1"),
        (["train", "--model.dropout", "1.5", "--out", "OUT"], "--model.dropout is 1.5: give less than 1"),
        (["train", "--augment.hflip", "2", "--out", "OUT"], "--augment.hflip is 2.0: give at most 1"),
        (["train", "--augment.rand-augment", "much", "--out", "OUT"], "timm has no policy 'much'"),
        (["segment", "train", "--optimizer.weight-decay", "-1", "--out", "OUT"], "weight-decay is -1.0: give at"),
        (
            ["train", "cpolynext_small", "--model.name", "resnet18", "--out", "OUT"],
            "resnet18 has no dropout in its head",
        ),
        (
            ["train", "--model.name", "vgg11", "--model.drop-path", "0.1", "--out", "OUT"],
            "no stochastic depth: give --mod",
        ),
    ],
)
def test_mistakes_get_one_message(arguments: list[str], message: str, tmp_path, capsys) -> None:
    assert main([str(tmp_path / "out") if a == "OUT" else a for a in arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_architecture_is_given_by_options(capsys) -> None:
    numbers = ["--model.widths", "32", "64", "--model.stacks", "2", "--model.patch", "2", "--model.coarse-kernel", "5"]
    assert main(["train", "cipher", *numbers, "--print-config"]) == 0
    model = from_yaml(capsys.readouterr().out).model
    assert model.architecture == ArchitectureChanges(widths=(32, 64), stacks=(2,), patch=2, coarse_kernel=5)
    assert main(["train", "digits", "--model.variant", "patch-2+widths-32-64"]) == 2
    assert "there is no variant 'patch-2' of a model" in capsys.readouterr().err


def test_the_penalty_for_encryption_is_zero_for_orthogonal_maps_and_grows_towards_singular_ones() -> None:
    model = polynext.create_model("cpolynext_nano_bn")
    weights = [m.w_in.weight for m in model.modules() if isinstance(m, PolyConv)]
    with torch.no_grad():
        for weight in weights:
            weight.copy_(3 * torch.nn.init.orthogonal_(torch.empty(weight.shape[:2]))[:, :, None, None])
        assert spread_of_singular_values(model).abs() < 1e-5
        spreads = []
        for smallest in (0.5, 0.1, 0.001):
            weights[0].copy_(torch.diag(torch.tensor([smallest] + [1.0] * (len(weights[0]) - 1)))[:, :, None, None])
            spreads.append(spread_of_singular_values(model).item())
    assert 0 < spreads[0] < spreads[1] < spreads[2]


def test_training_with_the_penalty_improves_the_condition_number(tmp_path: Path) -> None:
    def condition(weight: float) -> float:
        config = recipe("digits")
        config = replace(config, model=replace(config.model, conditioning=weight), epochs=2, ema=EmaConfig(decay=0.0))
        weights = read_weights(train(config, tmp_path / str(weight), quiet=True) / "last.safetensors")
        return max(float(torch.linalg.cond(w[:, :, 0, 0])) for name, w in weights.items() if "w_in" in name)

    assert condition(1.0) < 0.5 * condition(0.0)
    with pytest.raises(PolyNeXtError, match="has no PolyConv"):
        spread_of_singular_values(torch.nn.Linear(2, 2))


def test_every_fully_polynomial_recipe_has_a_frozen_step() -> None:
    fully_polynomial = {name for name in RECIPES if "_bn" in recipe(name).model.name}
    steps = {name for name in RECIPES if recipe(name).model.frozen_statistics}
    assert steps == {f"{name}_frozen" for name in fully_polynomial - steps}
    for name in steps - {"mnist_frozen"}:  # has its own length and rate
        step, base = recipe(name), recipe(name.removesuffix("_frozen"))
        assert replace(step.model, frozen_statistics=False) == base.model and step.data == base.data
        assert step.optimizer.lr == pytest.approx(base.optimizer.lr / 10) and step.epochs == max(1, base.epochs // 10)


def test_frozen_statistics_do_not_change_and_the_weights_do(tmp_path: Path) -> None:
    model = ModelConfig(name="cpolynext_nano_bn")
    config = replace(recipe("digits"), model=model, epochs=1, schedule=ScheduleConfig(warmup_epochs=1))
    weights = train(config, tmp_path / "run", quiet=True) / "last.safetensors"
    model = replace(model, frozen_statistics=True, initial_weights=weights)
    frozen = train(replace(config, model=model), tmp_path / "frozen", quiet=True)
    before, after = read_weights(weights), read_weights(frozen / "last.safetensors")
    for name, value in after.items():
        assert torch.equal(value, before[name]) == ("running" in name), name
    with pytest.raises(PolyNeXtError, match="has no running statistics"):
        freeze_statistics(polynext.create_model("cpolynext_nano"))


@pytest.mark.parametrize("name", ["monet_tiny_bn", "dttn_tiny_bn"])
def test_frozen_statistics_of_compared_networks(name: str) -> None:
    model = polynext.create_model(name, num_classes=3)
    freeze_statistics(model)
    before = {key: value.clone() for key, value in model.named_buffers()}
    model.train()
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(model(images), model.eval()(images))
    assert all(torch.equal(value, before[key]) for key, value in model.named_buffers())
