"""The option `library="none"`: everything is a kernel, or an error says what cannot be."""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import smelt
from benchmarks.models import MODELS
from smelt.base.errors import LibraryError, SmeltError
from smelt.base.options import Options
from smelt.ops.decompose import without_library
from smelt.ops.decompose.without_library import TABLE
from tests.targets import chosen

aten = torch.ops.aten
NONE = {"library": "none"}

pytestmark = pytest.mark.skipif(chosen != ("cpu", "cpu"), reason="kernels for GPUs hold no products")


def compiled(function: Callable[..., Any], **more: Any) -> Callable[..., Any]:
    return smelt.compile(function, fullgraph=True, options={**NONE, "check_specs": True, **more})


def no_worse_than_eager(mine: Tensor, eager: Tensor, truth: Tensor) -> None:
    """At most twice eager's error, and some roundings of the largest there is."""
    allowed = 2 * (eager.double() - truth).abs().max() + 16 * torch.finfo(eager.dtype).eps * truth.abs().max()
    assert (mine.double() - truth).abs().max() <= allowed


def test_what_is_no_choice_is_refused() -> None:
    with pytest.raises(SmeltError, match=r"SM003: unknown library 'mkl'"):
        smelt.compile(torch.sin, options={"library": "mkl"})


def test_eager_is_no_way_out() -> None:
    assert Options().library == "torch" and Options().fallback
    assert not Options.from_user(NONE).fallback
    assert not Options.from_user({**NONE, "fallback": True}).fallback
    assert Options.from_user(NONE).products == "own"


def test_the_error_names_every_operator_with_its_reason() -> None:
    def several(x: Tensor) -> Tensor:
        return torch.histc(x, 8).exp() + torch.take(x, torch.arange(8)) + torch.histc(x + 1, 8)

    torch.manual_seed(0)
    x = torch.rand(8)
    with pytest.raises(LibraryError, match="SM031") as caught:
        compiled(several)(x)
    assert caught.value.operators == {
        "aten.histc.default": "is left to the library",
        "aten.take.default": "raises for some values, which a kernel cannot",
    }
    assert 'needs libtorch, which library="none" forbids' in str(caught.value)
    where = r"\n    aten\.histc\.default: is left to the library, at .*test_without_library\.py:\d+\n"
    assert re.search(where, str(caught.value))
    torch.testing.assert_close(smelt.compile(several)(x), several(x))


def test_a_graph_that_would_run_in_eager_raises() -> None:
    def complex_numbers(x: Tensor) -> Tensor:
        return torch.view_as_real(torch.complex(x, x) * 2)

    with pytest.raises(LibraryError):
        compiled(complex_numbers)(torch.rand(8))


class CountsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return torch.histc(grad, 8)


def test_a_backward_raises_too() -> None:
    x = torch.rand(8, requires_grad=True)
    with pytest.raises(LibraryError, match=r"aten\.histc"):
        compiled(lambda x: CountsBackward.apply(x).sin())(x).sum().backward()


def test_an_index_out_of_range_raises_as_in_eager() -> None:
    table = torch.randn(5, 3)
    function = compiled(lambda i: F.embedding(i, table) * 2)
    torch.testing.assert_close(function(torch.tensor([4, 0])), table[[4, 0]] * 2)
    with pytest.raises(IndexError, match="out of range"):
        function(torch.tensor([1, 5]))


# Products.


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: x @ w.t(),
        lambda x, w: F.gelu(F.linear(x, w, w[:, 0])),
        lambda x, w: torch.addmm(w[:, 0], x, w.t(), beta=0.5, alpha=2),
        lambda x, w: torch.einsum("ij,kj->ki", x, w).softmax(-1),
        lambda x, w: (x.view(2, 4, 16) @ w.t()).relu() + 1,
        lambda x, w: x @ w[0],
    ],
)
def test_products_are_kernels(function: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(8, 16, requires_grad=True), torch.randn(12, 16, requires_grad=True)
    truth = function(x.double(), w.double())
    mine, eager = compiled(function)(x, w), function(x, w)
    no_worse_than_eager(mine.detach(), eager.detach(), truth.detach())
    wide = torch.autograd.grad(truth.sum(), (x, w))
    for of_mine, of_eager, of_truth in zip(
        torch.autograd.grad(mine.sum(), (x, w)), torch.autograd.grad(eager.sum(), (x, w)), wide, strict=True
    ):
        no_worse_than_eager(of_mine, of_eager, of_truth.double())


def test_less_precision_is_allowed_not_wanted() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        x = torch.randn(8, 8)
        torch.testing.assert_close(compiled(lambda x: x @ x)(x), x @ x)
    finally:
        torch.set_float32_matmul_precision(before)


def test_products_of_any_length_are_compiled_for_each() -> None:
    function = smelt.compile(lambda x, w: (x @ w).relu(), dynamic=True, options=NONE)
    w = torch.randn(16, 12)
    for length in (3, 5, 8):
        x = torch.randn(length, 16)
        torch.testing.assert_close(function(x, w), (x @ w).relu())


# What is taken apart only here.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("across", [False, True], ids=["contiguous", "transposed"])
@pytest.mark.parametrize("how", ["plain", "causal", "masked", "scaled"])
def test_attention(how: str, across: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where sizes vary: otherwise it is a kernel as it is."""
    monkeypatch.setattr(without_library, "_is_kernel", lambda *_: False)
    torch.manual_seed(0)
    shapes = ((2, 3, 9, 8), (2, 3, 11, 8), (2, 3, 11, 8))
    given = [torch.randn(shape).to(dtype) for shape in shapes]
    if across:
        given = [each.transpose(1, 2).contiguous().transpose(1, 2) for each in given]
    mask = torch.randn(2, 1, 9, 11).to(dtype) if how == "masked" else None
    if mask is not None:
        mask[0, 0, 2] = -math.inf  # a query that may look at nothing
    options: dict[str, Any] = {"attn_mask": mask, "scale": 0.3 if how == "scaled" else None}
    forward, backward = (
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    )
    causal = how == "causal"
    wide = {**options, "attn_mask": None if mask is None else mask.double()}
    truth = forward(*(each.double() for each in given), 0.0, causal, **wide)
    eager, mine = forward(*given, 0.0, causal, **options), TABLE[forward](*given, 0.0, causal, **options)
    for each, theirs, exact in zip(mine, eager, truth, strict=True):
        assert each.stride() == theirs.stride() and each.dtype is theirs.dtype
        no_worse_than_eager(each, theirs, exact.double())
    grad = torch.randn(2, 3, 9, 8).to(dtype)
    rest = (0.0, causal)
    truth = backward(grad.double(), *(each.double() for each in given), *truth, *rest, **wide)
    eager = backward(grad, *given, *eager, *rest, **options)
    mine = TABLE[backward](grad, *given, *mine, *rest, **options)
    for each, theirs, exact in zip(mine, eager, truth, strict=True):
        assert each.stride() == theirs.stride() and each.dtype is theirs.dtype
        no_worse_than_eager(each, theirs, exact.double())


@pytest.mark.parametrize(
    ("shapes", "dim"), [(((2, 3), (2, 5), (2, 1)), 1), (((2, 3), (4, 3)), -2), (((3,), (1,)), 0), (((2, 3, 4),) * 6, 1)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16], ids=str)
def test_tensors_side_by_side(shapes: Any, dim: int, dtype: torch.dtype) -> None:
    parts = [torch.randn(shape).to(dtype) for shape in shapes]
    parts[0] = parts[0].to(torch.promote_types(dtype, torch.float32)) if dtype is torch.int64 else parts[0]

    def joined(parts: list[Tensor]) -> Tensor:
        return torch.cat(parts, dim)

    mine, eager = compiled(joined)(parts), joined(parts)
    assert torch.equal(mine, eager) and mine.dtype is eager.dtype and mine.stride() == eager.stride()


def test_images_side_by_side_keep_their_layout() -> None:
    parts = [torch.randn(2, size, 4, 5).contiguous(memory_format=torch.channels_last) for size in (3, 6)]
    mine, eager = compiled(torch.cat)(parts, 1), torch.cat(parts, 1)
    assert torch.equal(mine, eager) and mine.stride() == eager.stride()


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: torch.slice_scatter(x, y[:, 1:4], 1, 2, 5),
        lambda x, y: torch.slice_scatter(x, y[:, 1:4], 1, -6, None, 2),  # 1, 3, 5
        lambda x, y: torch.select_scatter(x, y[1], 0, -1),
        lambda x, y: x[:, 1:4] @ y[:3, :2],
        lambda x, y: x[1::2, ::3] @ y[:3, :2],
        lambda x, y: x[1] @ y[:, 2],
        lambda x, y: x[:, 3:] @ y[:4] + x * 2,
    ],
)
def test_parts_of_tensors_and_their_gradients(function: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(7, 7, requires_grad=True), torch.randn(7, 7, requires_grad=True)
    mine, eager = compiled(function)(x, y), function(x, y)
    torch.testing.assert_close(mine, eager)
    gradients = (torch.autograd.grad(each.square().sum(), (x, y)) for each in (mine, eager))
    torch.testing.assert_close(*gradients)


# Whole models.


class Small(nn.Module):
    """An image cut into patches, a token of its own before them, attention, and a convolution of each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, stride=4)
        self.each = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.first = nn.Parameter(torch.randn(1, 1, 32))
        self.block = nn.TransformerEncoderLayer(32, 2, 48, dropout=0.0, batch_first=True, activation="gelu")
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x)
        x = (x + self.each(x)).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1)
        result: Tensor = self.head(self.block(x)[:, 0])
        return result


def test_a_small_model_is_trained() -> None:
    torch.manual_seed(0)
    model, x = Small(), torch.randn(2, 3, 16, 16)
    wide = Small().double()
    wide.load_state_dict(model.state_dict())
    results = []
    for each, given in ((model, x), (wide, x.double())):
        each(given).square().sum().backward()
        results.append([parameter.grad.clone() for parameter in each.parameters() if parameter.grad is not None])
        each.zero_grad()
    compiled(model)(x).square().sum().backward()
    for mine, eager, truth in zip(model.parameters(), *results, strict=True):
        assert mine.grad is not None
        no_worse_than_eager(mine.grad, eager, truth)


# Dropout draws PyTorch's own numbers: models are run as for inference.
WHOLE = ["gpt2", "bert", "llama", "distilbert", "vit", "resnet", "mobilenet"]


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.slow] if each != "distilbert" else []) for each in WHOLE]
)
def test_models_of_the_benchmarks_are_kernels_alone(name: str) -> None:
    torch.manual_seed(0)
    case = MODELS[name].build().inferring()
    with torch.no_grad():
        eager = case.call(case.module)
        mine = case.call(compiled(case.module))
        wide = MODELS[name].build(torch.float64).inferring()
        wide.module.load_state_dict(case.module.state_dict())
        inputs = [each.double() if each.is_floating_point() else each for each in case.inputs]
        named = {key: each.double() if each.is_floating_point() else each for key, each in case.kwargs.items()}
        truth = wide.module(*inputs, **named)
    no_worse_than_eager(mine.logits, eager.logits, truth.logits)
