"""Convolutions as contractions: each rule evaluated point by point against PyTorch in float64, then whole programs."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from smelt.base.options import Options
from smelt.device import host_library
from smelt.fuse import build_program
from smelt.fuse.lowering.convolutions import Contraction, ConvolutionSteps, to_coarse, to_fine, to_weight
from smelt.fuse.lowering.rules import FactorRead
from smelt.ir.kernel import Contract, Gather
from smelt.ir.program import Launch, Library, Program
from smelt.ops.decompose import convolutions as decomposed_convolutions
from smelt.ops.decompositions import decompositions
from smelt.ops.record import OperandLayout
from smelt.symbolic.shapes import Shape, is_dense
from tests.fuse.running import compare, fused, traced
from tests.kernel_reference import run_program

aten = torch.ops.aten
WHOLE = {op: each for op, each in decompositions(Options(products="own")).items() if "convolution" not in str(op)}


def evaluated(made: Contraction, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """What a contraction leaves where its result is. The operands are given as the memory they are in."""
    left, right = (second, first) if made.swapped else (first, second)
    every = (*made.shape, *made.rule.axes)
    terms = _factor(left, made.rule.left, every) * _factor(right, made.rule.right, every)
    sums = terms.sum(dim=tuple(range(len(made.shape), len(every)))) if made.rule.axes else terms
    assert is_dense(made.shape, made.stride) or 0 in made.shape
    memory = torch.full((sums.numel(),), torch.nan, dtype=sums.dtype)
    memory.as_strided(made.shape, made.stride).copy_(sums)
    return memory.as_strided(made.layout.shape, made.layout.stride, made.layout.offset)


def _factor(memory: torch.Tensor, read: FactorRead, every: Shape) -> torch.Tensor:
    inside = torch.ones(every, dtype=torch.bool)
    for bound in read.bounds:
        position = _positions((*bound.stride, *bound.along), bound.offset, every)
        inside &= (position >= 0) & (position < bound.extent)
    place = _positions((*read.stride, *read.along), read.offset, every)
    assert not inside.any() or (place[inside].min() >= 0 and place[inside].max() < memory.numel())
    return torch.where(inside, memory[torch.where(inside, place, 0)], 0.0) if memory.numel() else torch.zeros(every)


def _positions(stride: Shape, offset: int, every: Shape) -> torch.Tensor:
    total = torch.full(every, offset)
    for dim, (step, size) in enumerate(zip(stride, every, strict=True)):
        total += (step * torch.arange(size)).reshape(-1, *[1] * (len(every) - dim - 1))
    return total


def _laid(tensor: torch.Tensor, rng: random.Random) -> tuple[torch.Tensor, OperandLayout]:
    """Some memory that holds a tensor, and where: rows first, channels last, or a part of something larger."""
    how = rng.choice(["contiguous", "channels last", "part"])
    order = list(range(tensor.dim()))
    if how == "channels last":
        order = [0, *order[2:], 1]
    held = tensor.permute(order)
    if how == "part":
        held = torch.nn.functional.pad(held, (1, 2), value=torch.nan)
    memory = held.contiguous()
    view = memory.narrow(-1, 1, tensor.shape[-1]) if how == "part" else memory
    view = view.permute(sorted(range(len(order)), key=order.__getitem__))
    assert torch.equal(view, tensor)
    return memory.flatten(), OperandLayout(tuple(view.shape), view.stride(), int(view.storage_offset()))


def _empty(shape: Shape, rng: random.Random) -> OperandLayout:
    """Memory for a result, rows first or channels last."""
    if rng.random() < 0.5:
        return OperandLayout(shape, torch.empty(shape).stride())
    order = [0, *range(2, len(shape)), 1]
    last = torch.empty([shape[dim] for dim in order]).permute(sorted(range(len(order)), key=order.__getitem__))
    return OperandLayout(shape, last.stride())


class Case:
    """A convolution with random sizes, and its gradients by PyTorch."""

    def __init__(self, seed: int, *, transposed: bool) -> None:
        self.rng = rng = random.Random(seed)
        torch.manual_seed(seed)
        rank = rng.choice([1, 2, 2, 3])
        groups, fine, coarse = rng.choice([(1, 3, 4), (1, 1, 2), (2, 2, 3), (3, 1, 1), (4, 1, 2), (2, 3, 1)])
        low = 1 if rank == 3 else 0
        kernel = [rng.randint(1, 4 - low) for _ in range(rank)]
        stride = [rng.choice([1, 1, 2, 3]) for _ in range(rank)]
        dilation = [rng.choice([1, 1, 2, 3]) for _ in range(rank)]
        padding = [rng.choice([0, 1, 2, 5 - low]) for _ in range(rank)]
        output = [rng.randint(0, max(step, apart) - 1) for step, apart in zip(stride, dilation, strict=True)]
        self.steps = ConvolutionSteps.of(rank, stride, padding, dilation, groups)
        reach = [apart * (size - 1) + 1 for apart, size in zip(dilation, kernel, strict=True)]
        size = [max(1, far - 2 * pad) + rng.randint(0, 5 - low) for far, pad in zip(reach, padding, strict=True)]
        self.weight = torch.randn(groups * coarse, fine, *kernel, dtype=torch.float64, requires_grad=True)
        batch = rng.choice([1, 2, 3])
        if transposed:
            size = [extent + 2 * pad for extent, pad in zip(size, padding, strict=True)]  # or nothing would be left
            self.x = torch.randn(batch, groups * coarse, *size, dtype=torch.float64, requires_grad=True)
        else:
            self.x = torch.randn(batch, groups * fine, *size, dtype=torch.float64, requires_grad=True)
            output = [0] * rank
        rest = (stride, padding, dilation, transposed, output, groups)
        self.y = torch.ops.aten.convolution.default(self.x, self.weight, None, *rest)
        self.grad = torch.randn_like(self.y)
        self.to_x, self.to_weight = torch.autograd.grad(self.y, (self.x, self.weight), self.grad)
        self.x, self.weight, self.y = self.x.detach(), self.weight.detach(), self.y.detach()

    def check(self, made: Contraction, first: torch.Tensor, second: torch.Tensor, expected: torch.Tensor) -> None:
        found = evaluated(made, first, second)
        assert found.shape == expected.shape
        assert float((found - expected).abs().max()) <= 1e-12 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("first", range(0, 150, 25))
def test_convolutions_and_gradients_are_contractions(first: int) -> None:
    for seed in range(first, first + 25):
        case = Case(seed, transposed=False)
        x, x_layout = _laid(case.x, case.rng)
        weight, weight_layout = _laid(case.weight, case.rng)
        grad, grad_layout = _laid(case.grad, case.rng)
        forward = to_coarse(x_layout, weight_layout, case.steps, _empty(tuple(case.y.shape), case.rng))
        case.check(forward, x, weight, case.y)
        backward = to_fine(grad_layout, weight_layout, case.steps, _empty(tuple(case.x.shape), case.rng))
        case.check(backward, grad, weight, case.to_x)
        of_weight = to_weight(grad_layout, x_layout, case.steps, _empty(tuple(case.weight.shape), case.rng))
        case.check(of_weight, grad, x, case.to_weight)


@pytest.mark.parametrize("first", range(0, 150, 25))
def test_transposed_convolutions_and_gradients_are_contractions(first: int) -> None:
    for seed in range(first, first + 25):
        case = Case(seed, transposed=True)
        x, x_layout = _laid(case.x, case.rng)
        weight, weight_layout = _laid(case.weight, case.rng)
        grad, grad_layout = _laid(case.grad, case.rng)
        forward = to_fine(x_layout, weight_layout, case.steps, _empty(tuple(case.y.shape), case.rng))
        case.check(forward, x, weight, case.y)
        backward = to_coarse(grad_layout, weight_layout, case.steps, _empty(tuple(case.x.shape), case.rng))
        case.check(backward, grad, weight, case.to_x)
        of_weight = to_weight(x_layout, grad_layout, case.steps, _empty(tuple(case.weight.shape), case.rng))
        case.check(of_weight, x, grad, case.to_weight)


def own(fn: Callable[..., Any], *args: torch.Tensor, count: int, **tolerance: Any) -> Program:
    """A program that computes what eager does, with so many kernels that multiply and no call of the library."""
    program = fused(fn, *args, products="own", decompositions=WHOLE)
    kernels = [step.kernel for step in program.steps if isinstance(step, Launch)]
    assert sum(isinstance(i, Contract) for kernel in kernels for i in kernel.instructions()) == count
    assert not [step for step in program.steps if isinstance(step, Library)]
    expected = fn(*args)
    compare(run_program(program, args), expected if isinstance(expected, tuple) else (expected,), **tolerance)
    return program


def _x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


FORMS: dict[str, tuple[list[int], list[int], dict[str, Any]]] = {
    "plain": ([2, 4, 7, 6], [6, 4, 3, 3], {}),
    "padded, by two": ([2, 4, 7, 6], [6, 4, 3, 3], {"stride": 2, "padding": 1}),
    "by two, even": ([2, 4, 8, 8], [6, 4, 3, 3], {"stride": 2, "padding": 1}),
    "one by one": ([2, 4, 7, 6], [6, 4, 1, 1], {}),
    "one by one, by two": ([2, 4, 7, 6], [6, 4, 1, 1], {"stride": 2}),
    "dilated": ([1, 4, 9, 8], [6, 4, 3, 3], {"dilation": 2, "padding": 2}),
    "dilated, by three": ([1, 4, 9, 8], [6, 4, 3, 3], {"dilation": 2, "padding": 2, "stride": 3}),
    "groups": ([2, 4, 7, 6], [6, 2, 3, 3], {"groups": 2, "padding": 1}),
    "by channel": ([2, 4, 7, 6], [4, 1, 3, 3], {"groups": 4, "padding": 1}),
    "by channel, several": ([2, 4, 7, 6], [8, 1, 3, 3], {"groups": 4, "padding": 1, "stride": 2}),
    "wide padding": ([2, 4, 4, 3], [6, 4, 2, 2], {"padding": 5}),
    "patches": ([2, 3, 8, 12], [6, 3, 4, 4], {"stride": 4}),
    "signal": ([2, 4, 9], [6, 4, 3], {"stride": 2, "padding": 1}),
    "volume": ([1, 2, 5, 4, 6], [3, 2, 3, 2, 3], {"padding": 1}),
    "one pixel": ([1, 4, 1, 1], [6, 4, 1, 1], {}),
}
CONVOLVE = {3: functional.conv1d, 4: functional.conv2d, 5: functional.conv3d}
TRANSPOSED = {3: functional.conv_transpose1d, 4: functional.conv_transpose2d, 5: functional.conv_transpose3d}


@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("form", FORMS)
def test_convolutions_in_programs(form: str, biased: bool) -> None:
    shape, kernel, options = FORMS[form]

    def fn(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return CONVOLVE[len(shape)](x, weight, bias if biased else None, **options)

    program = own(fn, _x(*shape), _x(*kernel), _x(kernel[0]), count=1, rtol=1e-4, atol=1e-4)
    assert len(program.steps) == 1


@pytest.mark.parametrize("form", FORMS)
def test_transposed_convolutions_in_programs(form: str) -> None:
    shape, kernel, options = FORMS[form]
    groups = options.get("groups", 1)
    channels = kernel[0] if groups == 1 else kernel[1] * groups
    weight = [channels, kernel[0] // groups, *kernel[2:]]
    options = {**options, "padding": 1 if form == "wide padding" else options.get("padding", 0)}

    def fn(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return TRANSPOSED[len(shape)](x, weight, bias, **options)

    x = _x(shape[0], channels, *shape[2:])
    own(fn, x, _x(*weight), _x(weight[1] * groups), count=1, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("form", FORMS)
def test_gradients_in_programs(form: str, transposed: bool) -> None:
    shape, kernel, options = FORMS[form]
    rank, groups = len(shape) - 2, options.get("groups", 1)
    if transposed:
        channels = kernel[0] if groups == 1 else kernel[1] * groups
        shape, kernel = [shape[0], channels, *shape[2:]], [channels, kernel[0] // groups, *kernel[2:]]
    padding = 1 if transposed and form == "wide padding" else options.get("padding", 0)
    every = [[each] * rank for each in (options.get("stride", 1), padding, options.get("dilation", 1))]
    rest = (*every, transposed, [0] * rank, groups)
    like = aten.convolution.default(_x(*shape), _x(*kernel), None, *rest)

    def fn(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Any:
        sizes = [grad.shape[1]]
        return tuple(aten.convolution_backward.default(grad, x, weight, sizes, *rest, [True, True, True]))

    own(fn, _x(*like.shape), _x(*shape), _x(*kernel), count=2, rtol=1e-4, atol=1e-4)


def test_gradient_of_the_bias_of_one_pixel_is_a_copy() -> None:
    def fn(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rest = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, False, True])
        found: torch.Tensor = aten.convolution_backward.default(grad, x, weight, [6], *rest)[2]
        return found

    own(fn, _x(1, 6, 1, 1), _x(1, 4, 1, 1), _x(6, 4, 1, 1), count=0)


@pytest.mark.parametrize("which", [0, 1])
def test_gradients_that_nobody_reads_are_not_computed(which: int) -> None:
    def fn(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rest = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])
        found: torch.Tensor = aten.convolution_backward.default(grad, x, weight, None, *rest)[which]
        return torch.relu(found)

    program = own(fn, _x(2, 6, 5, 5), _x(2, 4, 5, 5), _x(6, 4, 3, 3), count=1, rtol=1e-4, atol=1e-4)
    assert len(program.steps) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    """Sums are rounded once, after the bias."""

    def fn(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(x, weight, bias, padding=1)

    x, weight, bias = _x(2, 4, 7, 6, dtype=dtype), _x(6, 4, 3, 3, dtype=dtype), _x(6, dtype=dtype)
    program = fused(fn, x, weight, bias, products="own", decompositions=decompositions(Options(products="own")))
    (found,) = run_program(program, (x, weight, bias))
    exact = fn(x.double(), weight.double(), bias.double())
    assert isinstance(found, torch.Tensor) and found.dtype is dtype and len(program.steps) == 1
    assert (found - exact).abs().max() <= 2 * (exact.to(dtype) - exact).abs().max() + 1e-6 * exact.abs().max()


@pytest.mark.parametrize("last", [(True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize("form", ["plain", "padded, by two", "by two, even", "groups", "by channel"])
def test_channels_last(form: str, last: tuple[bool, bool]) -> None:
    """Results have the strides that eager gives them."""
    shape, kernel, options = FORMS[form]

    def fn(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.relu(functional.conv2d(x, weight, **options))

    formats = [torch.channels_last if each else torch.contiguous_format for each in last]
    given = [_x(*size).to(memory_format=how) for size, how in zip((shape, kernel), formats, strict=True)]
    program = own(fn, *given, count=1, rtol=1e-4, atol=1e-4)
    assert len(program.steps) == 1


def test_views_of_images() -> None:
    """Each is a stride of the kernel's: nothing is copied."""

    def fn(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(x[:, 1:5, ::2].transpose(2, 3), weight[::2], padding=1).contiguous()

    own(fn, _x(2, 6, 10, 6), _x(8, 4, 3, 3), count=1, rtol=1e-4, atol=1e-4)


def test_what_follows_a_convolution_is_its_epilogue() -> None:
    """The bias, batch norm with its running statistics, the sum with what went before, the activation."""

    def fn(x: torch.Tensor, weight: torch.Tensor, before: torch.Tensor, *channels: torch.Tensor) -> torch.Tensor:
        bias, mean, var, scale, shift = channels
        y = functional.conv2d(x, weight, bias, padding=1)
        return torch.relu(functional.batch_norm(y, mean, var.abs() + 1, scale, shift) + before)

    args = (_x(2, 4, 7, 7), _x(6, 4, 3, 3), _x(2, 6, 7, 7), *(_x(6) + number for number in range(5)))
    program = own(fn, *args, count=1, rtol=1e-4, atol=1e-4)
    last = program.steps[-1]
    assert isinstance(last, Launch) and any(isinstance(i, Contract) for i in last.kernel.instructions())
    assert len(program.steps) == 2  # the variance's root, once for each channel, is before it


@pytest.mark.parametrize("shape", [(0, 4, 7, 7), (2, 0, 7, 7)], ids=str)
def test_nothing_to_convolve(shape: tuple[int, ...]) -> None:
    def fn(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(x, weight, padding=1) + 1

    args = (_x(*shape), _x(6, shape[1], 3, 3))
    program = fused(fn, *args, products="own", decompositions=decompositions(Options(products="own")))
    compare(run_program(program, args), (fn(*args),))


@pytest.fixture
def slow_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on processors where the library has no good convolutions."""
    for module in (host_library, decomposed_convolutions):
        monkeypatch.setattr(module, "slow_convolutions", lambda: True)


def chosen(fn: Callable[..., Any], *args: torch.Tensor, **options: Any) -> tuple[int, int]:
    """How many kernels convolve, and how many convolutions the library computes, when the compiler chooses."""
    given = Options(check_specs=True, **options)
    program = build_program(traced(fn, *args, decompositions=decompositions(given)), "program", given)
    expected = fn(*args)
    compare(run_program(program, args), expected if isinstance(expected, tuple) else (expected,), rtol=1e-4, atol=1e-4)
    kernels = [step.kernel for step in program.steps if isinstance(step, Launch)]
    calls = [step for step in program.steps if isinstance(step, Library) and "convolution" in str(step)]
    return sum(isinstance(i, Contract) for kernel in kernels for i in kernel.instructions()), len(calls)


@pytest.mark.usefixtures("slow_library")
@pytest.mark.parametrize("kernel", [(3, 3), (7, 7), (1, 5)], ids=str)
@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"dilation": 2, "padding": 3}], ids=str)
def test_kernels_convolve_channels_by_themselves(kernel: tuple[int, int], options: dict[str, Any]) -> None:
    """With the bias and what follows, and nobody has to ask for it."""

    def fn(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.relu(functional.conv2d(x, weight, bias, groups=6, **options))

    args = (_x(2, 6, 15, 16), _x(6, 1, *kernel), _x(6))
    assert chosen(fn, *args) == (1, 0)
    assert chosen(fn, *args, products="library")[0] == 0
    assert chosen(fn, *args, convolutions="library") == (0, 1)


@pytest.mark.usefixtures("slow_library")
@pytest.mark.parametrize("size", [3, 7])
def test_kernels_compute_gradients_of_images_by_channel(size: int) -> None:
    """Where every point was visited; the weight's by sums, or the library."""
    rest = ([1, 1], [size // 2] * 2, [1, 1], False, [0, 0], 6)

    def fn(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Any:
        return tuple(aten.convolution_backward.default(grad, x, weight, [6], *rest, [True, True, True]))

    args = (_x(2, 6, 9, 8), _x(2, 6, 9, 8) + 1, _x(6, 1, size, size))
    assert chosen(fn, *args, convolutions="auto")[0] == 1


@pytest.mark.usefixtures("slow_library")
@pytest.mark.parametrize("case", ["float64", "one channel", "groups", "several for each"])
def test_other_convolutions_are_not_left_for_kernels(case: str) -> None:
    groups, each = {"one channel": (1, 1), "groups": (3, 2), "several for each": (6, 1)}.get(case, (6, 1))
    x, weight = _x(2, groups * each, 9, 8), _x(12 if case == "several for each" else groups * each, each, 3, 3)
    if case == "float64":
        x, weight = x.double(), weight.double()
    assert chosen(lambda x, weight: functional.conv2d(x, weight, groups=groups), x, weight)[0] == 0


@pytest.mark.usefixtures("slow_library")
def test_channels_last_are_convolved_one_by_one_as_contiguous_images() -> None:
    x, weight = (each.to(memory_format=torch.channels_last) for each in (_x(2, 6, 9, 8), _x(6, 1, 3, 3)))
    assert chosen(lambda x, w, b: functional.conv2d(x, w, b, padding=1, groups=6), x, weight, _x(6)) == (1, 0)


@pytest.fixture
def packing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on processors where the library copies filters at every call."""
    monkeypatch.setattr(host_library, "packs_filters", lambda: True)
    for module in (host_library, decomposed_convolutions):
        monkeypatch.setattr(module, "slow_convolutions", lambda: False)


def _normalized(x: torch.Tensor, weight: torch.Tensor, **options: Any) -> torch.Tensor:
    """A convolution and the batch norm of inference."""
    sums = functional.conv2d(x, weight, **options)
    channels = [torch.linspace(low, 2.0, len(weight)) for low in (-1.0, 0.5, 0.25, -0.5)]
    return functional.batch_norm(sums, *channels)


FOLLOWED: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "3x3": ((64, 64, 3, 3), {"padding": 1}),
    "3x3 by two, dilated": ((80, 64, 3, 3), {"padding": 2, "stride": 2, "dilation": 2}),
    "1x1 of many filters": ((256, 64, 1, 1), {}),
    "1x1 by two": ((32, 5, 1, 1), {"stride": 2}),
    "patches": ((16, 3, 4, 4), {"stride": 4}),
}


@pytest.mark.usefixtures("packing_library")
@pytest.mark.parametrize("form", FOLLOWED)
def test_kernels_convolve_and_compute_what_follows(form: str) -> None:
    shape, options = FOLLOWED[form]

    def fn(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.relu(_normalized(x, weight, **options))

    assert chosen(fn, _x(2, shape[1], 9, 8), _x(*shape)) == (1, 0)


@pytest.mark.usefixtures("packing_library")
@pytest.mark.parametrize("case", ["nothing follows", "two readers", "groups", "1x1", "few channels", "channels last"])
def test_the_library_computes_other_convolutions(case: str) -> None:
    groups = 2 if case == "groups" else 1
    channels, size = 16 if case == "few channels" else 64, 1 if case == "1x1" else 3
    x, weight = _x(2, channels, 9, 8), _x(64, channels // groups, size, size)
    if case == "channels last":
        x = x.to(memory_format=torch.channels_last)

    def fn(x: torch.Tensor, weight: torch.Tensor) -> Any:
        sums = functional.conv2d(x, weight, groups=groups)
        if case == "nothing follows":
            return sums
        return (torch.relu(sums), sums.sum()) if case == "two readers" else torch.relu(sums)

    assert chosen(fn, x, weight) == (0, 1)


def test_windows_of_a_padded_image_read_it_from_memory() -> None:
    """The image that each element of a kernel meets, beside what computes the gradient: padded anew for each of them,
    it is code of its own twenty-five times."""

    def taps(grad: torch.Tensor, scale: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = grad * scale
        wider = aten.constant_pad_nd.default(x, [2, 2, 2, 2], 0.0)
        met = [wider[:, :, row : row + 8, col : col + 8] for row in range(5) for col in range(5)]
        return given, *(torch.sum(given * each, [0, 2, 3]) for each in met)

    program = fused(taps, torch.randn(2, 6, 8, 8), torch.randn(2, 6, 8, 8), torch.randn(2, 6, 8, 8))
    gathers = [sum(isinstance(i, Gather) for i in kernel.instructions()) for kernel in program.kernels]
    assert max(gathers) == 1, gathers
