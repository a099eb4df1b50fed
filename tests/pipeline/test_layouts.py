"""How results lie in memory, and gradients: as eager's do, of inputs that are turned, channels-last or repeated."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.base.errors import UnexpectedResult


def _seen(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> list[tuple[object, ...]]:
    """Shape, strides, offset and dtype of what comes, and of the gradients."""
    given = [tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in inputs]
    made = function(*given)
    shown = [made]
    if made.requires_grad:
        found = torch.autograd.grad(made, [each for each in given if each.requires_grad], torch.ones_like(made))
        shown += found
    return [(tuple(each.shape), each.stride(), each.storage_offset(), each.dtype) for each in shown]


def _image(*shape: int) -> torch.Tensor:
    return torch.rand(shape).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x: F.pad(x, (1, 2, 0, 1), mode="replicate"), (_image(2, 3, 4, 5),)),
        (lambda x: F.channel_shuffle(x, 2), (_image(2, 4, 3, 5),)),
        (lambda x, y: torch.ldexp(x, y), (torch.rand(3, 4).t(), torch.rand(4, 3))),
        (lambda x, y: torch.logaddexp2(x, y), (torch.rand(4, 3), torch.rand(3, 4).t())),
        (lambda x, y: torch.special.xlog1py(x, y), (torch.rand(4).expand(3, 4), torch.rand(4, 3).t())),
        (lambda x, m: torch.ops.aten.native_dropout_backward(x, m, 2.0), (torch.rand(3, 4).t(), torch.ones(4, 3) > 0)),
        (lambda x, w: F.conv2d(x, w), (_image(1, 3, 4, 4), torch.rand(5, 3, 2, 2))),
        (lambda x, w: F.conv2d(x, w), (_image(2, 3, 1, 1), torch.rand(5, 3, 1, 1))),
        (lambda x, w: F.conv_transpose1d(x, w), (torch.rand(2, 6, 3).transpose(1, 2), torch.rand(3, 4, 2))),
    ],
)
@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
def test_results_lie_as_in_eager(
    function: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...], backend: str
) -> None:
    compiled = smelt.compile(function, backend=backend, fullgraph=True)
    wanted = _seen(function, *inputs)
    for _ in range(2):
        assert _seen(compiled, *inputs) == wanted


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("last", [False, True])
def test_bags_are_looked_up_once(mode: str, last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Described wrongly, they came in other shapes than was planned, and PyTorch ran the graph once more."""
    unexpected: list[str] = []
    monkeypatch.setattr(UnexpectedResult, "__init__", lambda self, code, text: unexpected.append(text))
    bags = torch.nn.EmbeddingBag(9, 4, mode=mode, include_last_offset=last)
    indices, offsets = torch.tensor([1, 2, 3, 4]), torch.tensor([0, 2, 4])
    compiled = smelt.compile(lambda i, o: bags(i, o).sin().sum())
    for _ in range(2):
        bags.zero_grad()
        compiled(indices, offsets if last else offsets[:2]).backward()
        made = bags.weight.grad
        bags.zero_grad()
        bags(indices, offsets if last else offsets[:2]).sin().sum().backward()
        torch.testing.assert_close(made, bags.weight.grad)
    assert not unexpected


def _through_a_view(x: torch.Tensor) -> torch.Tensor:
    made = x.sin()
    made.t().cumsum_(0)
    return made


def _seen_as_a_row(x: torch.Tensor) -> torch.Tensor:
    made = x.sin().masked_fill_(x > 0.5, 0)
    return made.t().view(-1) if made.stride() == x.stride() else made


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sin().masked_fill_(x > 0.5, 0),
        lambda x: x.sin().cumsum_(0),
        lambda x: x.sin().scatter_add_(0, torch.zeros(4, 5, dtype=torch.int64), x),
        lambda x: x.sin().index_add_(0, torch.zeros(4, dtype=torch.int64), x),
        lambda x: x.sin().triu_(),
        lambda x: x.sin().addmm_(torch.ones(4, 3), torch.ones(3, 5)),
        lambda x: x.sin().renorm_(2, 0, 1.0),
        _through_a_view,
        _seen_as_a_row,
    ],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_is_written_stays_as_it_lies(function: Callable[[torch.Tensor], torch.Tensor], dynamic: bool) -> None:
    """The operators that do the same without writing yield it row by row."""
    x = torch.rand(5, 4).t()
    compiled = smelt.compile(function, dynamic=dynamic, fullgraph=True)
    assert _seen(compiled, x) == _seen(function, x)
    torch.testing.assert_close(compiled(x), function(x))
