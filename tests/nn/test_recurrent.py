"""Recurrent layers on the CPU: all steps of a direction are one kernel, forward and backward, for any length."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt
from smelt.base.events import collect
from smelt.ir.kernel import Kernel
from smelt.ir.program import Launch, Program
from tests.targets import HOST, chosen

ON_HOST = pytest.mark.skipif(chosen[0] != HOST, reason="recurrent layers are kernels on the host alone")

KINDS: dict[str, Callable[..., Any]] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}
LAYERS: dict[str, dict[str, Any]] = {
    "one layer": {},
    "no biases": {"bias": False},
    "batch first": {"batch_first": True},
    "two layers, both directions": {"num_layers": 2, "bidirectional": True},
    "batch first, both directions": {"num_layers": 2, "bidirectional": True, "batch_first": True},
}


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    smelt.reset()
    torch.manual_seed(0)


def states_of(layer: nn.RNNBase, rows: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    number = 2 if isinstance(layer, nn.LSTM) else 1
    return tuple(torch.randn(count, rows, layer.hidden_size, dtype=dtype) for _ in range(number))


def trained(layer: nn.RNNBase, call: Callable[..., Any], x: Tensor, states: tuple[Tensor, ...]) -> list[Tensor]:
    """The results of a call and all gradients of a loss that depends on each result."""
    x, *states_in = (each.detach().to(layer.weight_ih_l0.dtype).requires_grad_() for each in (x, *states))
    layer.zero_grad()
    output, last = call(x, tuple(states_in) if isinstance(layer, nn.LSTM) else states_in[0])
    results = [output, *(last if isinstance(last, tuple) else (last,))]
    weights = [torch.linspace(-1, 1, each.numel(), dtype=each.dtype).view(each.shape) for each in results]
    torch.autograd.backward(results, weights)
    gradients = [each.grad for each in (x, *states_in, *layer.parameters())]
    return [*(each.detach() for each in results), *(each for each in gradients if each is not None)]


def assert_as_accurate(mine: list[Tensor], eager: list[Tensor], wanted: list[Tensor]) -> None:
    """The error against float64 is at most twice that of eager, plus a few units in the last place."""
    for one, other, exact in zip(mine, eager, wanted, strict=True):
        assert one.stride() == other.stride()
        few = 8 * torch.finfo(torch.float32).eps * float(exact.abs().max())
        assert float((one - exact).abs().max()) <= 2 * float((other - exact).abs().max()) + few


@pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("kind", KINDS)
def test_results_and_gradients(kind: str, options: dict[str, Any]) -> None:
    layer = KINDS[kind](5, 20, **options)
    x = torch.randn(7, 3, 5)
    states = states_of(layer, x.shape[0 if layer.batch_first else 1], x.dtype)
    eager, mine = (trained(layer, call, x, states) for call in (layer, smelt.compile(layer, fullgraph=True)))
    assert_as_accurate(mine, eager, trained(layer.double(), layer, x, states))


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (1, 16), (2, 3), (9, 33), (13, 64), (70, 17), (5, 300)])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_any_sizes(kind: str, rows: int, width: int) -> None:
    """Tiles and blocks that are not full, sums longer than an accumulator's."""
    layer = KINDS[kind](4, width)
    x = torch.randn(4, rows, 4)
    states = states_of(layer, rows, x.dtype)
    eager, mine = (trained(layer, call, x, states) for call in (layer, smelt.compile(layer)))
    assert_as_accurate(mine, eager, trained(layer.double(), layer, x, states))


def test_double_precision() -> None:
    layer, x = nn.LSTM(4, 9).double(), torch.randn(6, 3, 4, dtype=torch.float64)
    states = states_of(layer, 3, x.dtype)
    eager, mine = (trained(layer, call, x, states) for call in (layer, smelt.compile(layer)))
    for one, other in zip(mine, eager, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def kernels(function: Callable[..., Any], *args: Any) -> list[Kernel]:
    """Those that run step by step, of all programs that a call compiles."""
    with collect() as events:
        function(*args)
    programs = [event.subject for event in events if isinstance(event.subject, Program)]
    steps = [step.kernel for program in programs for step in program.steps if isinstance(step, Launch)]
    return [kernel for kernel in steps if isinstance(kernel, Kernel) and kernel.stepped]


@ON_HOST
def test_all_steps_are_one_kernel_each_way() -> None:
    layer, x = nn.LSTM(4, 8), torch.randn(40, 2, 4)
    found = kernels(lambda: smelt.compile(layer)(x)[0].sum().backward())
    assert {kernel.name.partition("_")[2] for kernel in found} == {"recurrent", "recurrent_gradients"}
    assert len({kernel.name for kernel in found}) == 2


@ON_HOST
@pytest.mark.parametrize(("rows", "width", "count"), [(32, 128, 1), (33, 128, 0), (1, 129, 0)])
def test_wide_lstms_without_gradients_call_the_library(rows: int, width: int, count: int) -> None:
    layer, x = nn.LSTM(4, width).eval(), torch.randn(3, rows, 4)
    compiled = smelt.compile(layer, fullgraph=True)
    with torch.no_grad():
        assert len(kernels(compiled, x)) == count
        for one, other in zip(compiled(x)[1], layer(x)[1], strict=True):
            torch.testing.assert_close(one, other)
    trained_kernels = kernels(lambda: compiled(x)[0].sum().backward())  # with gradients it is a kernel of any width
    assert {kernel.name.partition("_")[2] for kernel in trained_kernels} == {"recurrent", "recurrent_gradients"}


@ON_HOST
def test_only_what_is_used_is_stored() -> None:
    layer, x = nn.LSTM(4, 8).eval(), torch.randn(5, 2, 4)
    compiled = smelt.compile(lambda x: layer(x)[0])
    with torch.no_grad():
        (kernel,) = kernels(compiled, x)
    assert [buffer.name for buffer in kernel.buffers if buffer.role.value == "out"] == ["y"]


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_lengths_that_change_share_one_graph(kind: str) -> None:
    layer = KINDS[kind](4, 8, batch_first=True)
    compiled = smelt.compile(layer, dynamic=True)
    for rows, length in ((3, 5), (2, 9), (6, 2), (4, 31)):
        x = torch.randn(rows, length, 4)
        states = states_of(layer, rows, x.dtype)
        eager, mine = (trained(layer, call, x, states) for call in (layer, compiled))
        for one, other in zip(mine, eager, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert smelt.counters["graphs"] <= 2


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_dropout_between_layers_draws_as_eager(kind: str) -> None:
    layer, x = KINDS[kind](4, 6, 3, dropout=0.4), torch.randn(5, 2, 4)
    compiled, results = smelt.compile(layer), []
    for call in (layer, compiled):
        torch.manual_seed(1)
        results.append(trained(layer, call, x, states_of(layer, 2, x.dtype)))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_the_same_bits_for_any_number_of_threads() -> None:
    layer, x, before = nn.LSTM(16, 64), torch.randn(30, 23, 16), torch.get_num_threads()
    states, results = states_of(layer, 23, x.dtype), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            smelt.reset()
            results.append(trained(layer, smelt.compile(layer), x, states))
    finally:
        torch.set_num_threads(before)
    for others in results[1:]:
        assert all(map(torch.equal, results[0][:3], others[:3]))


def test_the_last_state_is_no_view_of_the_output() -> None:
    layer, x = nn.GRU(4, 6), torch.randn(5, 2, 4)
    with torch.no_grad():
        output, last = smelt.compile(layer)(x)
        wanted = output.clone()
        last.zero_()
    assert torch.equal(output, wanted)


@ON_HOST
def test_second_derivatives_are_eagers() -> None:
    layer, x = nn.GRU(3, 4), torch.randn(4, 2, 3, requires_grad=True)
    second = []
    for call in (layer, smelt.compile(layer)):
        (first,) = torch.autograd.grad(call(x)[0].square().sum(), x, create_graph=True)
        second.append(torch.autograd.grad(first.square().sum(), x)[0])
    torch.testing.assert_close(second[1], second[0], rtol=1e-4, atol=1e-5)


def test_states_of_a_wrong_shape_raise_as_in_eager() -> None:
    def call(x: Tensor, h: Tensor) -> Any:
        return torch.gru(x, h, weights, True, 1, 0.0, False, False, False)

    weights = list(nn.GRU(4, 6).parameters())
    x, h = torch.randn(5, 2, 4), torch.zeros(1, 3, 6)
    with pytest.raises(RuntimeError) as eager:
        call(x, h)
    with pytest.raises(RuntimeError) as mine:
        smelt.compile(call)(x, h)
    assert str(mine.value).splitlines()[0] == str(eager.value).splitlines()[0]


@pytest.mark.parametrize("options", [{"proj_size": 3}, {"dtype": torch.bfloat16}], ids=["projected", "bfloat16"])
def test_others_are_pytorchs(options: dict[str, Any]) -> None:
    layer = nn.LSTM(4, 6, **options).eval()
    x = torch.randn(5, 2, 4, dtype=options.get("dtype"))
    with torch.no_grad():
        torch.testing.assert_close(smelt.compile(layer)(x)[0], layer(x)[0])


@ON_HOST
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_file_is_for_any_length(kind: str) -> None:
    layer = KINDS[kind](4, 20, 2, bidirectional=True, batch_first=True).eval()
    sizes = {"input": {0: ("rows", 1, 40), 1: ("length", 1, 100)}}
    artifact = smelt.export(layer, (torch.randn(2, 5, 4),), dynamic=sizes)
    for rows, length in ((2, 5), (1, 1), (3, 100), (40, 7)):
        x = torch.randn(rows, length, 4)
        with torch.no_grad():
            wanted, last = layer(x)
        mine, mine_last = artifact(x)
        torch.testing.assert_close(mine, wanted)
        torch.testing.assert_close(mine_last, last)
