"""Devices named without a number, where there are two GPUs: graphs say which, and hold for it alone.

There is no GPU here, so what PyTorch says of them is made up, and the graphs are read instead of run.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.meta.devices import current_devices, current_index
from tests.absent_device.stand_in import is_here
from tests.capture.fake_gpus import Gpus

GPU = [torch.device("cuda", number) for number in range(2)]

pytestmark = pytest.mark.skipif(is_here(GPU[0]), reason="there is a GPU")


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    smelt.reset()
    return Gpus(monkeypatch, 2)


class Recorder:
    """A backend whose graphs return tensors of the host, whatever they say."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        self.graphs.append(graph)
        count = len(next(node for node in graph.graph.nodes if node.op == "output").args[0])
        return lambda *args: [torch.zeros(3) for _ in range(count)]

    def devices(self, number: int) -> set[torch.device]:
        """All devices that a graph names."""
        found: set[torch.device] = set()
        for node in self.graphs[number].graph.nodes:
            values = (*node.args, *node.kwargs.values())
            found |= {torch.device(value) for value in values if isinstance(value, torch.device | str)}
        return found


def in_block(x: torch.Tensor) -> torch.Tensor:
    with torch.device("cuda"):
        return torch.ones(3)


DEPEND: dict[str, Callable[[torch.Tensor], Any]] = {
    "to": lambda x: (x * 2).to("cuda") + 1,
    "to a device": lambda x: x.to(torch.device("cuda"), torch.float64),
    "to by name": lambda x: x.to(device="cuda", non_blocking=True) + 1,
    "cuda": lambda x: (x * 2).cuda() + 1,
    "cuda, not waited for": lambda x: x.cuda(non_blocking=True) + 1,
    "cuda, none": lambda x: x.cuda(None) + 1,
    "cuda, by name": lambda x: x.cuda(device="cuda") + 1,
    "there and back": lambda x: (x * 2).cuda().sin().cpu() + 1,
    "zeros": lambda x: torch.zeros(3, device="cuda") + 1,
    "arange": lambda x: torch.arange(3, device=torch.device("cuda")),
    "like": lambda x: torch.full_like(x, 3, device="cuda"),
    "new": lambda x: x.new_ones(3, device="cuda"),
    "drawn": lambda x: torch.rand(3, device="cuda"),
    "default device": in_block,
}


@pytest.mark.parametrize("name", DEPEND)
def test_the_current_gpu_is_written_down_and_guarded(name: str, gpus: Gpus) -> None:
    seen = Recorder()
    compiled = smelt.compile(DEPEND[name], backend=seen, fullgraph=True)
    for gpus.current, graphs in ((1, 1), (1, 1), (0, 2), (1, 2), (0, 2)):
        compiled(torch.ones(3))
        assert len(seen.graphs) == graphs
    assert seen.devices(0) == {GPU[1]} and seen.devices(1) == {GPU[0]}


def test_the_number_itself(gpus: Gpus) -> None:
    compiled = smelt.compile(lambda x: (x + torch.cuda.current_device(), torch.cuda.device_count()), fullgraph=True)
    for gpus.current in (1, 0, 1):
        found, count = compiled(torch.ones(3))
        assert found.tolist() == [1 + gpus.current] * 3 and count == 2


INDEPENDENT: dict[str, Callable[[torch.Tensor], Any]] = {
    "to": lambda x: x.to("cuda:1") + 1,
    "cuda": lambda x: x.cuda(torch.device("cuda", 1)) + 1,
    "zeros": lambda x: torch.zeros(3, device="cuda:1") + 1,
    "host": lambda x: x.cpu().to("cpu") + 1,
    "a device that is not used": lambda x: x + (x.device == torch.device("cuda")),
}


@pytest.mark.parametrize("name", INDEPENDENT)
def test_what_names_its_gpu_depends_on_none(name: str, gpus: Gpus) -> None:
    seen = Recorder()
    compiled = smelt.compile(INDEPENDENT[name], backend=seen, fullgraph=True)
    for gpus.current in (1, 0, 1):
        compiled(torch.ones(3))
    assert len(seen.graphs) == 1


def test_a_name_from_outside(gpus: Gpus) -> None:
    seen = Recorder()
    compiled = smelt.compile(lambda x, where: x.to(where) + 1, backend=seen, fullgraph=True)
    for gpus.current, where in ((1, "cuda"), (0, "cuda"), (0, "cuda:1"), (1, "cuda"), (0, "cuda:1")):
        compiled(torch.ones(3), where)
    assert [seen.devices(number) for number in range(len(seen.graphs))] == [{GPU[1]}, {GPU[0]}, {GPU[1]}]


def test_sizes_that_change_are_not_looked_at(gpus: Gpus) -> None:
    seen = Recorder()
    compiled = smelt.compile(lambda x, scale: torch.arange(x.shape[0]) * x * scale, backend=seen, fullgraph=True)
    for size in (3, 4, 5, 6):
        compiled(torch.ones(size), float(size))
    assert len(seen.graphs) == 2


def _positive(x: torch.Tensor) -> torch.Tensor:
    x = x.to("cuda:1")
    if not (x > 0).all():
        raise ValueError("not positive")
    return x + 1


def test_the_host_asks_what_a_branch_depends_on(gpus: Gpus) -> None:
    """A device that finds out is lost to the process, where eager raises an error that the program may catch."""
    seen = Recorder()
    smelt.compile(_positive, backend=seen, fullgraph=True)(torch.ones(3))
    check = next(node for node in seen.graphs[0].graph.nodes if node.target is torch.ops.aten._assert_async.msg)
    assert isinstance(check.args[0], torch.fx.Node) and check.args[0].args[1] == torch.device("cpu")


def _told(x: torch.Tensor) -> torch.Tensor:
    x = x.to("cuda:1")
    torch._assert_async((x > 0).all())
    return x + 1


def test_what_is_not_to_wait_does_not(gpus: Gpus) -> None:
    seen = Recorder()
    smelt.compile(_told, backend=seen, fullgraph=True)(torch.ones(3))
    assert seen.devices(0) == {GPU[1]}


def test_with_one_gpu_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    smelt.reset()
    gpus, seen = Gpus(monkeypatch, 1), Recorder()
    compiled = smelt.compile(lambda x: x.cuda() + torch.cuda.current_device(), backend=seen, fullgraph=True)
    compiled(torch.ones(3))
    assert seen.devices(0) == {GPU[0]}
    asked = gpus.asked
    for _ in range(3):
        compiled(torch.ones(3))
    assert gpus.asked == asked and current_index("cuda") is None and current_devices() == ()


class Later(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad + torch.zeros(3, device="cuda").sum()


def test_a_backward_may_run_where_another_gpu_is_current(gpus: Gpus) -> None:
    """The engine has a thread for each GPU, whose own that is current there."""
    seen = Recorder()
    x = torch.ones(3, requires_grad=True)
    smelt.compile(lambda x: Later.apply(x) + 1, backend=seen)(x)
    assert all(not seen.devices(number) for number in range(len(seen.graphs)))


def test_traced_programs_depend_on_it(gpus: Gpus) -> None:
    from smelt.autograd.aot_inputs import ambient_key

    keys = set()
    for gpus.current in (0, 1, 0):
        keys.add(ambient_key())
    assert len(keys) == 2 and current_devices() == (GPU[0],)
