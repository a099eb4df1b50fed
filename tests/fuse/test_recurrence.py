"""Steps of a recurrent layer as a kernel: against the operator itself, by the interpreter and by machine code."""

from typing import Any

import pytest
import torch
from torch import Tensor

from smelt.fuse.target_choice import TargetChoice
from smelt.ir.check_kernel import check_kernel
from smelt.ir.kernel import Kernel
from smelt.ir.nodes.recurrent_modes import GATES, GRU, LSTM, RNN_RELU, RNN_TANH
from smelt.ir.nodes.recurrent_steps import BACKWARD, KEPT, STEPS
from smelt.ir.program import Launch, Library, Program
from smelt.ir.text import format_kernel
from tests.codegen.running import run
from tests.fuse.running import assert_same
from tests.kernel_reference import run_kernel
from tests.kernel_text import parse_kernel

WIDTH = 6
MODES = {"relu": RNN_RELU, "tanh": RNN_TANH, "lstm": LSTM, "gru": GRU}

RNN = """
kernel rnn rows(b:{rows}) cols(j:{width})
  in x: f32[{total}]
  in w: f32[{weights}]
  out y: f32[{total}]
  scratch h: f32[{width}]
  loop:
    c = const 0.5 : f32
    store h[j] = c
  steps(t:{steps}):
    p = contract (k:{width}) h[k], w[{width}*j + k] : f32
    v0 = load x[{width}*b + {apart}*t + j]
    v1 = add v0, p : f32
    v2 = tanh v1 : f32
    store y[{width}*b + {apart}*t + j] = v2
    store h[j] = v2
"""


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


def forward_arguments(mode: int, batch_first: bool, rows: int = 3) -> list[Tensor]:
    gates = torch.randn(rows, 5, GATES[mode] * WIDTH) if batch_first else torch.randn(5, rows, GATES[mode] * WIDTH)
    weight = torch.randn(GATES[mode] * WIDTH, WIDTH) / 4
    return [gates, weight, torch.randn(GATES[mode] * WIDTH), torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)]


def one_kernel(program: Program) -> Kernel:
    assert not [step for step in program.steps if isinstance(step, Library)]
    (kernel,) = (step.kernel for step in program.steps if isinstance(step, Launch))
    assert isinstance(kernel, Kernel) and kernel.stepped
    return kernel


@pytest.mark.parametrize("reverse", [False, True], ids=["onwards", "reverse"])
@pytest.mark.parametrize("batch_first", [False, True], ids=["steps first", "batch first"])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_forward(mode: int, batch_first: bool, reverse: bool) -> None:
    def steps(gates: Tensor, weight: Tensor, bias: Tensor, h: Tensor, c: Tensor) -> Any:
        cell = c if mode == LSTM else None
        gates = gates.transpose(0, 1) if batch_first else gates
        results = STEPS(gates, weight, bias if mode == GRU else None, h, cell, mode, reverse)
        return results if mode == LSTM else results[::2]

    kernel = one_kernel(assert_same(steps, *forward_arguments(mode, batch_first), rtol=1e-5, atol=1e-6))
    assert parse_kernel(format_kernel(kernel)) == kernel


@pytest.mark.parametrize("reverse", [False, True], ids=["onwards", "reverse"])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_backward(mode: int, reverse: bool) -> None:
    def gradients(grad: Tensor, grad_c: Tensor, weight: Tensor, output: Tensor, reserve: Tensor) -> Any:
        cell = grad_c if mode == LSTM else None
        results = BACKWARD(grad, cell, weight, output, reserve, mode, reverse)
        return results if mode == GRU else results[::2] if mode == LSTM else results[0]

    of_steps = [torch.rand(5, 3, count * WIDTH) for count in (1, KEPT[mode])]
    weight = torch.randn(GATES[mode] * WIDTH, WIDTH) / 4
    arguments = torch.randn(5, 3, WIDTH), torch.randn(3, WIDTH), weight, *of_steps
    one_kernel(assert_same(gradients, *arguments, rtol=1e-5, atol=1e-6))


@pytest.mark.parametrize(("rows", "width", "steps"), [(1, 16, 4), (5, 3, 1), (9, 40, 3), (37, 21, 6), (4, 270, 2)])
@pytest.mark.parametrize("threads", [1, 3])
def test_machine_code(rows: int, width: int, steps: int, threads: int) -> None:
    total, apart = rows * width * steps, rows * width
    text = RNN.format(rows=rows, width=width, steps=steps, total=total, apart=apart, weights=width * width)
    kernel = parse_kernel(text)
    check_kernel(kernel)
    x, w = torch.randn(total), torch.randn(width * width) / width
    wanted, mine = torch.full((2, total), torch.nan)
    run_kernel(kernel, [x, w, wanted])
    run(kernel, [x, w, mine], threads)
    torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-6)


def test_grids_do_not_run_step_by_step() -> None:
    text = RNN.format(rows=2, width=4, steps=3, total=24, apart=8, weights=16)
    why = TargetChoice("sm_90").contraction_cycles(torch.device("cuda", 0), parse_kernel(text))
    assert why == "rows of a grid do not run step by step"
