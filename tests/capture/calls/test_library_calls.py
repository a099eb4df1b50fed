"""Calls of PyTorch's that change nothing a graph depends on, or call modules made elsewhere: they break no graph."""

from typing import Any

import pytest
import torch
from torch import fx, nn

from tests.capture.programs import Captured, compare

X = torch.arange(8.0).reshape(2, 4)


class Weighted(nn.Module):
    weight: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("weight", torch.ones(4))
        self.register_buffer("count", torch.tensor(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.weight


# module.to


@pytest.mark.parametrize(
    "given", [("cpu",), (torch.device("cpu"),), (torch.float32,), ("cpu", torch.float32), (X,), ("cpu", X.dtype, True)]
)
def test_moving_a_module_to_where_it_is_breaks_no_graph(given: tuple[Any, ...]) -> None:
    module = Weighted()

    def program(x: torch.Tensor) -> Any:
        return module.to(*given)(x) * 2, module.to(device=x.device) is module

    runner = compare(program, X)
    assert runner.breaks == [] and len(runner.graphs) == 1


def test_a_loss_made_inside_and_moved_breaks_no_graph() -> None:
    class Loss(nn.Module):
        scale: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.full((4,), 0.5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.scale).sum()

    def program(x: torch.Tensor) -> torch.Tensor:
        loss = Loss()
        loss.to(x.device)
        return loss(x)

    assert compare(program, X).breaks == []


def test_moving_a_module_elsewhere_is_done_by_python() -> None:
    for given in (torch.float64, "meta", torch.bfloat16):
        eager, mine = Weighted(), Weighted()
        mine.load_state_dict(eager.state_dict())
        runner = Captured()
        found = runner(lambda x, module, given: (x + 1, module.to(given)), X, mine, given)
        eager.to(given)
        assert found[1] is mine
        for one, other in zip(mine.state_dict().values(), eager.state_dict().values(), strict=True):
            assert (one.dtype, one.device) == (other.dtype, other.device)


def test_a_module_that_was_moved_meanwhile_is_moved_back() -> None:
    module, runner = Weighted(), Captured()

    def program(x: torch.Tensor) -> torch.Tensor:
        return module.to(x.dtype)(x)

    expected = program(X)
    torch.testing.assert_close(runner(program, X), expected)
    module.double()
    torch.testing.assert_close(runner(program, X), expected)
    assert module.weight.dtype is torch.float32


# fx.GraphModule


class Calling(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).relu() + 1


def test_graph_modules_called_inside_are_part_of_the_graph() -> None:
    traced = fx.symbolic_trace(Weighted())
    nested = fx.symbolic_trace(Calling(traced), concrete_args=None)
    for module in (Calling(traced), Calling(nested)):
        x = X.clone().requires_grad_()
        module.zero_grad()
        runner = Captured()
        result = runner(module, x)
        result.sum().backward()
        mine = [result.detach(), x.grad, *(p.grad.clone() for p in module.parameters())]
        module.zero_grad()
        x.grad = None
        expected = module(x)
        expected.sum().backward()
        torch.testing.assert_close(mine, [expected.detach(), x.grad, *(p.grad for p in module.parameters())])
        assert runner.breaks == [] and len(runner.graphs) == 1


def test_a_graph_module_that_was_changed_is_compiled_again() -> None:
    traced = fx.symbolic_trace(Weighted())
    module, runner = Calling(traced), Captured()
    torch.testing.assert_close(runner(module, X), module(X))
    for node in traced.graph.nodes:
        if node.target == torch.mul or getattr(node.target, "__name__", "") == "mul":
            node.target = torch.sub
    traced.recompile()
    torch.testing.assert_close(runner(module, X), module(X))
    traced.weight = torch.full((4,), 3.0)
    torch.testing.assert_close(runner(module, X), module(X))
    assert runner.breaks == []


def test_an_error_inside_a_graph_module_is_eagers() -> None:
    module = Calling(fx.symbolic_trace(Weighted()))
    with pytest.raises(RuntimeError) as expected:
        module(torch.randn(2, 3))
    with pytest.raises(RuntimeError) as raised:
        Captured()(module, torch.randn(2, 3))
    assert str(raised.value) == str(expected.value)


# torch.backends.cudnn.flags


def _without_cudnn(x: torch.Tensor) -> torch.Tensor:
    with torch.backends.cudnn.flags(enabled=False):
        y = x * 2
    return y + 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="operators on a GPU depend on the flags")
def test_cudnn_flags_break_no_graph_where_there_is_no_gpu() -> None:
    before = torch.backends.cudnn.enabled
    assert compare(_without_cudnn, X).breaks == []
    assert torch.backends.cudnn.enabled is before


def test_cudnn_flags_that_are_read_inside_are_those_that_were_set() -> None:
    def program(x: torch.Tensor) -> Any:
        with torch.backends.cudnn.flags(enabled=False, deterministic=True):
            return x + 1, torch.backends.cudnn.enabled, torch.backends.cudnn.deterministic

    compare(program, X)


def test_cudnn_flags_round_a_break_are_set_for_python() -> None:
    def program(x: torch.Tensor) -> Any:
        with torch.backends.cudnn.flags(enabled=False):
            y = x + 1
            print(torch._C._get_cudnn_enabled())
            y = y * 2
        print(torch._C._get_cudnn_enabled())
        return y

    compare(program, X)


# tolist of constants


def _listed(x: torch.Tensor) -> Any:
    sizes = (torch.tensor([1, 2]) * 2).tolist()
    table = torch.arange(6).reshape(2, 3).tolist()
    scale = torch.as_tensor([0.5, 1.5]).tolist()[1] if sizes[0] == 2 else 0.0
    return x.repeat(*sizes) * scale, table, torch.tensor(3).tolist(), torch.zeros(0).tolist()


def test_tolist_of_constants_breaks_no_graph() -> None:
    runner = compare(_listed, X)
    assert runner.breaks == [] and len(runner.graphs) == 1


def test_tolist_of_written_or_random_tensors_is_left_to_python() -> None:
    def program(x: torch.Tensor) -> Any:
        written = torch.tensor([1, 2])
        written[0] = 5
        return x * written.tolist()[0], torch.randint(0, 9, (3,)).tolist()

    assert "B004" in compare(program, X).break_codes
