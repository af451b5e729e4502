"""The operators: their mathematics, one by one."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from polynext.errors import PolyNeXtError
from polynext.models.substitutes import FusedConv, FusedMLP, addition
from polynext.nn import (
    DepthwiseConv2d,
    LayerNorm2d,
    MultiInputSkip,
    PointwiseConv2d,
    PolyAttention,
    PolyConv,
    PolyHead,
    PolyMLP,
    PositionNorm2d,
    RowSumNorm,
    RunningNorm,
    SigmoidScale,
    estimate_statistics,
)

SIZE = (6, 5)
DOUBLE = torch.float64


def position_norm(channels: int, **dd) -> PositionNorm2d:
    return PositionNorm2d(channels, SIZE, beta=True, **dd)


def randomise(module: nn.Module) -> nn.Module:
    """Norms and scales away from their neutral start, so that leaving one out is noticed."""
    for name, value in [*module.named_parameters(), *module.named_buffers()]:
        value.data += 0.2 * torch.rand_like(value)
        if "running_row_sum" in name:
            value.data.fill_(1.0)
    return module.eval()


def degree_along_a_line(f, shape: tuple[int, ...], most: int) -> int:
    """The degree in t of f(x + t d), from its values at Chebyshev points."""
    x, d = torch.randn(2, *shape, dtype=DOUBLE)
    nodes = np.polynomial.chebyshev.chebpts1(most + 3)
    with torch.no_grad():
        values = np.stack([f((x + t * d)[None]).flatten().numpy() for t in nodes])
    coefficients = np.polynomial.chebyshev.chebfit(nodes, values, most + 2)
    size = np.abs(coefficients).max(axis=1)
    return int(np.flatnonzero(size > 1e-9 * size.max())[-1])


OPERATORS = {
    "PolyMLP": (lambda: PolyMLP(8, norm=position_norm, dtype=DOUBLE), 2),
    "PolyHead": (lambda: PolyHead(8, 5, dtype=DOUBLE), 2),
    "PolyConv": (lambda: PolyConv(8, norm=position_norm, dtype=DOUBLE), 2),
    "PolyMLP, added": (lambda: FusedMLP(8, norm=position_norm, fuse=addition, dtype=DOUBLE), 1),
    "PolyConv, added": (lambda: FusedConv(8, norm=position_norm, fuse=addition, dtype=DOUBLE), 1),
    "PointwiseConv2d": (lambda: PointwiseConv2d(8, 3, dtype=DOUBLE), 1),
    "DepthwiseConv2d": (lambda: DepthwiseConv2d(8, 8, 5, dilation=2, dtype=DOUBLE), 1),
    "PositionNorm2d": (lambda: position_norm(8, dtype=DOUBLE), 1),
} | {
    f"PolyAttention p={p}": (
        lambda p=p: PolyAttention(
            8, heads=2, head_dim=4, p=p, normalisation="row_sum", size=SIZE, norm=position_norm, dtype=DOUBLE
        ),
        2 * p + 1,
    )
    for p in (1, 2, 3, 4, 5)
}


@pytest.mark.parametrize("name", OPERATORS)
def test_stated_degree(name: str) -> None:
    build, degree = OPERATORS[name]
    operator = randomise(build())
    assert getattr(operator, "degree", degree) == degree
    assert degree_along_a_line(operator, (8, *SIZE), most=degree) == degree


def test_scale_and_skip_keep_the_degree() -> None:
    scale, skip = SigmoidScale([0.3, -1.0], dtype=DOUBLE), randomise(MultiInputSkip(8, dtype=DOUBLE))
    assert degree_along_a_line(lambda x: scale(x, x * x, 1), (8, *SIZE), most=2) == 2
    assert degree_along_a_line(lambda x: skip(x, 2 * x), (8, *SIZE), most=1) == 1


def test_polymlp_is_its_formula() -> None:
    mlp = randomise(PolyMLP(6, ratio=3, norm=nn.Identity))
    x = torch.randn(2, 6, *SIZE)
    w_a, w_b = mlp.w_ab.weight.flatten(1).chunk(2)
    a, b = (torch.einsum("dc,bchw->bdhw", w, x) for w in (w_a, w_b))
    expected = torch.einsum("cd,bdhw->bchw", mlp.w_o.weight.flatten(1), a * b)
    torch.testing.assert_close(mlp(x), expected)


def test_polyhead_pools_before_or_after_its_linear_map() -> None:
    head = randomise(PolyHead(6, 4))
    x = torch.randn(3, 6, *SIZE)
    pooled = head(x)
    head.reset(4, "")
    assert head(x).shape == (3, 4, *SIZE)
    head = randomise(PolyHead(6, 4, pool=""))
    per_position = head(x)
    head.pool = "avg"
    torch.testing.assert_close(head(x), per_position.mean(dim=(2, 3)))
    assert pooled.shape == (3, 4)


@pytest.mark.parametrize("ratio", [1.0, 0.75, 7 / 8])  # 7/8 gives an odd width, with a middle channel of its own
def test_polyconv_is_its_formula(ratio: float) -> None:
    conv = randomise(PolyConv(8, ratio=ratio, norm=nn.Identity))
    x = torch.randn(2, 8, 12, 11)
    h = conv.w_in(x)
    m = conv.k_coarse(h) * conv.k_fine(h)[:, list(range(h.shape[1]))[::-1]]
    torch.testing.assert_close(conv(x), conv.w_out(conv.k(m)))
    assert conv.k_coarse.dilation == (2, 2)


def test_layer_norm_is_over_channels() -> None:
    norm = randomise(LayerNorm2d(8))
    x = torch.randn(2, 8, *SIZE)
    mean, var = x.mean(dim=1, keepdim=True), x.var(dim=1, keepdim=True, correction=0)
    torch.testing.assert_close(norm(x), norm.weight[:, None, None] * (x - mean) / (var + 1e-5).sqrt())


def test_position_norm_statistics() -> None:
    norm = PositionNorm2d(8, SIZE)
    x = torch.randn(4, 8, *SIZE) * 3 + 1
    y = norm.train()(x)
    mean, var = x.mean(dim=(0, 1)), x.var(dim=(0, 1), correction=0)
    torch.testing.assert_close(y, (x - mean) / (var + 1e-5).sqrt())
    torch.testing.assert_close(norm.running_mean, 0.1 * mean)
    torch.testing.assert_close(norm.running_var, 0.9 + 0.1 * var)
    y = norm.eval()(x)
    torch.testing.assert_close(y, (x - norm.running_mean) / (norm.running_var + 1e-5).sqrt())


def test_position_norm_keeps_the_type_of_its_input() -> None:
    for dtype in (torch.bfloat16, DOUBLE):
        norm = PositionNorm2d(8, SIZE, dtype=dtype)
        assert norm.train()(torch.randn(4, 8, *SIZE, dtype=dtype)).dtype == dtype


def test_row_sum_norm_statistics() -> None:
    norm = RowSumNorm(2, SIZE)
    norm.gamma.data.copy_(torch.rand(2, 30))
    before = norm.running_row_sum.clone()
    weighted, row_sum = torch.randn(4, *SIZE, 2, 3), torch.rand(4, *SIZE, 2) + 1
    y = norm.train()(weighted, row_sum)
    mean = row_sum.mean(dim=0)  # (H, W, heads)
    gamma = norm.gamma.T.reshape(*SIZE, 2)
    torch.testing.assert_close(y, weighted * (gamma / (mean + 1e-6))[..., None])
    torch.testing.assert_close(norm.running_row_sum, 0.9 * before + 0.1 * mean.flatten(0, 1).T)


def test_another_feature_map_size_is_an_error_that_names_both() -> None:
    with pytest.raises(PolyNeXtError, match="got a 4x4 feature map but holds statistics for 6x5"):
        position_norm(8)(torch.randn(1, 8, 4, 4))
    attention = PolyAttention(8, normalisation="row_sum", size=SIZE)
    with pytest.raises(PolyNeXtError, match="got a 4x4 feature map but holds statistics for 6x5"):
        attention(torch.randn(1, 8, 4, 4))


def attention_by_hand(module: PolyAttention, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """The paper's formula with the whole matrix of weights, `mask` (N, N) zeroing some of them."""
    qk, v = module.w_qkv(module.norm(x)).chunk(2, dim=1)
    q, k, v = (t.flatten(2).unflatten(1, (module.heads, -1)) for t in (module.k_q(qk), module.k_k(qk), module.k_v(v)))
    scores = torch.einsum("bhdi,bhdj->bhij", q, k) * module.scale.scales()[:, None, None]
    mask = torch.ones(scores.shape[-2:]) if mask is None else mask
    if module.normalisation == "softmax":
        weights = scores.masked_fill(mask == 0, -math.inf).softmax(dim=-1)
    else:
        weights = (scores + 1) ** module.p * mask
    if module.normalisation == "l1":
        weights = nn.functional.normalize(weights, p=1, dim=-1)
    if module.row_norm is not None:
        weights = weights * (module.row_norm.gamma / (module.row_norm.running_row_sum + 1e-6))[..., None]
    y = torch.einsum("bhij,bhdj->bhdi", weights, v).flatten(1, 2).unflatten(2, x.shape[2:])
    return module.w_out(module.out_norm(module.k(y)))


def sparse_mask(pattern: dict[str, int]) -> Tensor:
    """Which keys a query of a map of `SIZE` attends to, (N, N): those of its window, or its neighbours."""
    rows, columns = (t.flatten() for t in torch.meshgrid(*map(torch.arange, SIZE), indexing="ij"))
    down, right = rows - rows[:, None], columns - columns[:, None]
    if window := pattern.get("window"):
        same = [(t // window)[:, None] == t // window for t in (rows, columns)]
        return (same[0] & same[1]).float()
    if side := pattern.get("neighbourhood"):
        dilation = pattern.get("dilation", 1)
        near = [(t % dilation == 0) & (t.abs() <= side // 2 * dilation) for t in (down, right)]
        return (near[0] & near[1]).float()
    return torch.ones(down.shape)


@pytest.mark.parametrize("normalisation", ["l1", "row_sum", "softmax"])
@pytest.mark.parametrize("p", [1, 3, 4])
@pytest.mark.parametrize(
    "pattern",
    [
        {},
        *({"window": window} for window in (2, 3, 4, 20)),
        *(
            {"neighbourhood": side, "dilation": dilation}
            for side, dilation in ((1, 1), (3, 1), (3, 2), (5, 2), (11, 1))
        ),
    ],
)
def test_attention_is_its_formula(normalisation, p: int, pattern: dict[str, int]) -> None:
    """Sparse attention is dense attention whose weights are 0 outside the pattern."""
    height, width = SIZE
    size = SIZE if normalisation == "row_sum" else None
    module = randomise(PolyAttention(16, heads=2, head_dim=8, p=p, normalisation=normalisation, size=size, **pattern))
    x = torch.randn(2, 16, height, width, requires_grad=True)
    mask = sparse_mask(pattern)
    ours, expected = module(x), attention_by_hand(module, x, mask)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    weights, learning = torch.randn_like(ours), (x, module.w_qkv.weight, module.k_v.weight)
    for a, b in zip(*(torch.autograd.grad((y * weights).sum(), learning) for y in (ours, expected)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * b.abs().max().item())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: PolyAttention(8, p=0), "p=0"),
        (lambda: PolyAttention(8, head_dim=1), "head_dim=1"),
        (lambda: PolyAttention(8, normalisation="l2"), "'l2'"),
        (lambda: PolyAttention(8, normalisation="row_sum"), "needs the size of the feature map"),
        (lambda: PolyAttention(8, size=(4, 4)), "take any size"),
        (lambda: PolyAttention(8, window=0), "window=0"),
        (lambda: PolyAttention(8, neighbourhood=4), "neighbourhood=4: give an odd side"),
        (lambda: PolyAttention(8, dilation=2), "dilation=2 and neighbourhood=None"),
        (lambda: PolyAttention(8, window=2, neighbourhood=3), "window=2 and neighbourhood=3: give one"),
        (lambda: PolyMLP(3, ratio=1.0), "even width"),
        (lambda: PolyHead(3, 2, pool="median"), "'median'"),
    ],
)
def test_wrong_arguments_have_a_message(build, message: str) -> None:
    with pytest.raises(PolyNeXtError, match=message):
        build()


STANDALONE = [PolyMLP, PolyConv, PolyAttention, LayerNorm2d, lambda c, **dd: PositionNorm2d(c, SIZE, **dd)]


@pytest.mark.parametrize("build", STANDALONE)
@pytest.mark.parametrize("channels_last", [False, True])
def test_any_memory_layout_gives_the_same_values(build, channels_last: bool) -> None:
    operator = build(16)
    x = torch.randn(2, 16, *SIZE)
    expected = operator.eval()(x)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    y = operator(x)
    assert y.shape == x.shape
    torch.testing.assert_close(y, expected)
    assert y.is_contiguous(memory_format=torch.channels_last) or not channels_last


@pytest.mark.parametrize("build", [*STANDALONE, SigmoidScale, lambda c, **dd: PolyHead(c, 3, **dd), MultiInputSkip])
def test_device_and_dtype_reach_every_tensor(build) -> None:
    operator = build(16, device="meta", dtype=torch.bfloat16)
    assert all(t.is_meta and t.dtype == torch.bfloat16 for t in [*operator.parameters(), *operator.buffers()])


def test_attention_scale_starts_at_the_usual_one() -> None:
    torch.testing.assert_close(PolyAttention(64).scale.scales(), torch.tensor([32**-0.5]))


def test_kaiming_start() -> None:
    mlp = PolyMLP(256)
    assert mlp.w_ab.weight.std().item() == pytest.approx(math.sqrt(2 / 256), rel=0.02)
    conv = PolyConv(4096 // 4)
    assert conv.k_fine.weight.std().item() == pytest.approx(math.sqrt(2 / 9), rel=0.05)


@settings(max_examples=25, deadline=None)
@given(
    logits=st.lists(st.floats(-20, 20), min_size=1, max_size=6),
    data=st.data(),
)
def test_sigmoid_scale_bounds_the_branch(logits: list[float], data) -> None:
    scale = SigmoidScale(logits)
    index = data.draw(st.integers(0, len(logits) - 1))
    x, f = torch.randn(2, 1, 2, 3, 3)
    added = scale(x, f, index) - x
    assert (added.abs() <= f.abs() + 1e-6).all()
    torch.testing.assert_close(added, f / (1 + math.exp(-logits[index])), rtol=1e-4, atol=1e-5)


def test_estimated_statistics_are_means_over_batches() -> None:
    norm = PositionNorm2d(3, (2, 2))
    batches = [torch.randn(5, 3, 2, 2) + shift for shift in range(4)]
    estimate_statistics(norm, batches)
    means, variances = (
        [f(x) for x in batches] for f in (lambda x: x.mean((0, 1)), lambda x: x.var((0, 1), correction=0))
    )
    torch.testing.assert_close(norm.running_mean, torch.stack(means).mean(0))
    torch.testing.assert_close(norm.running_var, torch.stack(variances).mean(0))
    assert norm.momentum == RunningNorm().momentum
