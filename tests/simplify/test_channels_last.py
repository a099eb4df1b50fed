"""Images channels-last between convolutions: which copies are left, and that nobody outside sees any of it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.base.options import Options
from smelt.base.rewrite_budget import RewriteBudget
from smelt.ir.graph import GraphLevel, Traced, check_graph
from smelt.ir.program import Library, operands_in
from smelt.ir.tensorspec import tensor_spec
from smelt.meta.rules.strides import is_channels_last
from smelt.simplify import lay_images
from smelt.simplify.convolutions import channels_last
from smelt.symbolic.shapes import contiguous_stride
from tests.absent_device.ahead import compile_ahead, spec_like
from tests.simplify.test_matmul_layouts import assert_close
from tests.simplify.test_passes import copied, recorded, targets

aten = torch.ops.aten
X, WIDE, EACH, BACK = torch.randn(2, 3, 6, 5), torch.randn(8, 3, 1, 1), torch.randn(8, 1, 3, 3), torch.randn(3, 8, 1, 1)


def convolution(x: torch.Tensor, weight: torch.Tensor, padding: int = 0, groups: int = 1) -> torch.Tensor:
    found: torch.Tensor = aten.convolution.default(
        x, weight, None, [1, 1], [padding, padding], [1, 1], False, [0, 0], groups
    )
    return found


def block(x: torch.Tensor, wide: torch.Tensor, each: torch.Tensor, back: torch.Tensor) -> Any:
    """As MobileNetV2 has them: widen, each channel by itself, narrow again, add."""
    y = aten.relu.default(convolution(x, wide))
    y = aten.relu.default(convolution(y, each, padding=1, groups=8))
    mean = aten.mean.dim(y, [0, 2, 3], True)
    y = aten.sub.Tensor(y, mean)
    return aten.add.Tensor(x, convolution(y, back)), aten.mean.dim(y, [2, 3])


def laid(function: Callable[..., Any], *inputs: torch.Tensor, how: str, budget: int = -1) -> tuple[Traced, Traced]:
    before = recorded(function, *inputs)
    after = lay_images(copied(before), RewriteBudget(budget), how)
    check_graph(after.graph, GraphLevel.PURE, after="channels last")
    return before, after


@pytest.fixture(autouse=True)
def library_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules of processors whose convolutions are the library's."""
    monkeypatch.setattr(channels_last, "slow_convolutions", lambda: False)


def test_one_copy_in_and_one_out() -> None:
    before, after = laid(block, X, WIDE, EACH, BACK, how="channels_last")
    # In: x. Out: the sum, which was added up channels-last, in eager's layout.
    assert targets(after).count(aten.clone.default) == 2
    convolutions = [node for node in after.graph.nodes if node.target is aten.convolution.default]
    assert all(is_channels_last(tensor_spec(node).shape, tensor_spec(node).stride) for node in convolutions)
    assert_close(before, after, X, WIDE, EACH, BACK)


def test_by_itself_from_the_first_convolution_by_channel_on() -> None:
    before, after = laid(block, X, WIDE, EACH, BACK, how="auto")
    first, *others = [node for node in after.graph.nodes if node.target is aten.convolution.default]
    assert tensor_spec(first).stride == (240, 30, 5, 1)
    assert len(others) == 2 and all(is_channels_last(tensor_spec(o).shape, tensor_spec(o).stride) for o in others)
    assert_close(before, after, X, WIDE, EACH, BACK)


@pytest.mark.parametrize("how", ["library", "products"])
def test_not_where_convolutions_are_to_be_something_else(how: str) -> None:
    before, after = laid(block, X, WIDE, EACH, BACK, how=how)
    assert targets(after) == targets(before)


def test_not_without_a_convolution_by_channel_nor_fuel() -> None:
    plain, same = laid(lambda x, w: aten.relu.default(convolution(x, w)), X, WIDE, how="auto")
    assert targets(same) == targets(plain)
    before, after = laid(block, X, WIDE, EACH, BACK, how="channels_last", budget=0)
    assert targets(after) == targets(before)


def test_parts_of_an_image_are_read_where_it_lies() -> None:
    """Pooling is made of such parts. One that is returned is still the view that eager has."""

    def pooled(x: torch.Tensor, wide: torch.Tensor) -> Any:
        y = aten.constant_pad_nd.default(aten.relu.default(convolution(x, wide)), [1, 1, 1, 1], 0.0)
        left, right = aten.slice.Tensor(y, 3, 0, 6, 2), aten.slice.Tensor(y, 3, 1, 7, 2)
        return aten.mean.dim(aten.maximum.default(left, right), [2, 3]), aten.slice.Tensor(y, 2, 1, 4)

    before, after = laid(pooled, X, WIDE, how="channels_last")
    largest = next(node for node in after.graph.nodes if node.target is aten.maximum.default)
    assert is_channels_last(tensor_spec(largest).shape, tensor_spec(largest).stride)
    assert targets(after).count(aten.clone.default) == 2 and targets(after).count(aten.slice.Tensor) == 3
    assert_close(before, after, X, WIDE)


def test_gradients_of_pooling_are_laid_out_as_the_image() -> None:
    def pooled(x: torch.Tensor, wide: torch.Tensor, gradient: torch.Tensor) -> Any:
        y = aten.relu.default(convolution(x, wide))
        largest, places = aten.max_pool2d_with_indices.default(y, [2, 2], [2, 2])
        back = aten.max_pool2d_with_indices_backward.default(
            gradient, y, [2, 2], [2, 2], [0, 0], [1, 1], False, places
        )
        return largest, aten.mul.Tensor(back, y), aten.mean.dim(back, [2, 3])

    before, after = laid(pooled, X, WIDE, torch.randn(2, 8, 3, 2), how="channels_last")
    (back,) = [node for node in after.graph.nodes if node.target is aten.max_pool2d_with_indices_backward.default]
    assert all(is_channels_last(tensor_spec(each).shape, tensor_spec(each).stride) for each in back.all_input_nodes)
    assert is_channels_last(tensor_spec(back).shape, tensor_spec(back).stride)
    assert_close(before, after, X, WIDE, torch.randn(2, 8, 3, 2))


class Block(nn.Module):
    """Training with batch norm, a residual, a view and a dropout of images, whose coins fall in eager's order."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.back = nn.Conv2d(4, 12, 1, bias=False), nn.Conv2d(12, 4, 1)
        self.each = nn.Conv2d(12, 12, 3, padding=1, groups=12)
        self.norm, self.drop = nn.BatchNorm2d(12), nn.Dropout(0.4)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.norm(self.wide(x)).relu()
        y = self.drop(self.each(y))
        return x + self.back(y), y.flatten(1).sum(1), y


@pytest.mark.parametrize("how", ["auto", "channels_last"])
@pytest.mark.parametrize("training", [True, False])
def test_outside_nothing_shows(how: str, training: bool) -> None:
    torch.manual_seed(1)
    model, x = Block().train(training), torch.randn(3, 4, 7, 5)
    compiled = smelt.compile(model, options={"convolutions": how})
    outcomes = []
    for run in (model, compiled):
        torch.manual_seed(2)
        model.zero_grad()
        model.norm.reset_running_stats()
        results = run(x)
        sum(result.square().sum() for result in results).backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        outcomes.append([*results, *gradients, model.norm.running_mean, model.norm.running_var])
    for eager, mine in zip(*outcomes, strict=True):
        assert eager.stride() == mine.stride()
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-4)


def test_a_model_in_channels_last_is_left_as_it_is() -> None:
    x = X.contiguous(memory_format=torch.channels_last)
    before, after = laid(lambda x, w: convolution(x, w), x, WIDE, how="channels_last")
    assert targets(after) == targets(before)


# On GPUs.


def _programs(model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype = torch.bfloat16, **options: Any) -> Any:
    return compile_ahead(model.to(dtype), [spec_like(shape, dtype)], Options(target="sm_90", **options)).programs


def _convolution_strides(programs: Any) -> list[tuple[Any, ...]]:
    """Whether each image and filter of a convolution is channels-last, by call."""
    return [
        tuple(is_channels_last(each.shape, each.stride) for each in operands_in(step.args) if len(each.shape) == 4)
        for program in programs
        for step in program.steps
        if isinstance(step, Library) and "convolution" in str(step.op)
    ]


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one, self.other = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](self.one(x)).relu()
        result: torch.Tensor = (self.norms[1](self.other(y)) + x).relu()
        return result


def _network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), *(_Residual(16) for _ in range(3)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_network_on_a_gpu_is_channels_last(dtype: torch.dtype) -> None:
    calls = _convolution_strides(_programs(_network(), (8, 3, 20, 20), dtype))
    assert len(calls) == 14 and all(all(each) for each in calls)


def test_without_tensor_cores_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert not any(map(all, _convolution_strides(_programs(_network(), (8, 3, 20, 20), torch.float32))))


def test_a_single_convolution_on_a_gpu_stays() -> None:
    """Its image would be copied before, and its result behind: what the library does itself."""
    with torch.no_grad():
        programs = _programs(nn.Conv2d(16, 16, 3), (8, 16, 20, 20))
    assert not any(map(all, _convolution_strides(programs)))


def test_by_channel_on_a_gpu_stays() -> None:
    model = nn.Sequential(*(nn.Conv2d(16, 16, 3, groups=16) for _ in range(3)))
    assert not any(all(each[:1]) for each in _convolution_strides(_programs(model, (8, 16, 20, 20))))


def test_gradients_and_results_on_a_gpu_have_eagers_strides() -> None:
    model = _network()
    forward, backward = _programs(model, (8, 3, 20, 20))
    for output in (forward.outputs[0], *backward.outputs):
        if output is not None:
            assert output.stride == contiguous_stride(output.shape)
