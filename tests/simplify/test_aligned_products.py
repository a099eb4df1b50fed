"""Products with rows of any length, padded to multiples of eight: the same numbers, and only where it pays."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt.base import events
from smelt.base.options import Options
from smelt.ir.program import Library
from smelt.simplify import aligned_products
from tests.absent_device.ahead import compile_ahead, spec_like

HALF = torch.bfloat16


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, however little there is to multiply, and of numbers that this processor's library multiplies."""
    monkeypatch.setattr(aligned_products, "on_host", lambda device: False)
    monkeypatch.setattr(aligned_products, "_LEAST_WORK", 0)
    monkeypatch.setattr(aligned_products, "_NARROW", (torch.float32,))


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("turned", ["", "left", "right", "left right"])
@pytest.mark.parametrize("sizes", [(16, 8, 24), (16, 8, 13), (16, 11, 24), (13, 8, 24), (5, 7, 9), (1, 9, 8)], ids=str)
def test_products(sizes: tuple[int, int, int], turned: str) -> None:
    rows, sums, columns = sizes

    def multiply(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = a.t() if "left" in turned else a, b.t() if "right" in turned else b
        return (a @ b) * 2, torch.addmm(bias, a, b)

    shapes = [(rows, sums), (sums, columns), (columns,)]
    # Integers, whose products and sums are exact.
    inputs = [torch.randint(-2, 3, shape).float().requires_grad_() for shape in shapes]
    for number, side in enumerate(("left", "right")):
        if side in turned:
            inputs[number] = inputs[number].detach().t().contiguous().requires_grad_()
    results = []
    with events.collect() as seen:
        compiled = smelt.compile(multiply, options={"products": "library"})
        compiled(*inputs)
    padded = any("constant_pad_nd" in event.text for event in seen)
    along = (columns, rows if "left" in turned else sums, sums if "right" in turned else columns)
    assert padded == any(size % 8 for size in along)
    for run in (multiply, compiled):
        made = run(*inputs)
        weights = [torch.arange(part.numel()).view(part.shape) % 3 - 1 for part in made]
        loss = torch.stack([(part * each).sum() for part, each in zip(made, weights, strict=True)]).sum()
        results.append([*made, *torch.autograd.grad(loss, inputs)])
    for mine, eager in zip(*reversed(results), strict=True):
        assert (mine.shape, mine.stride(), mine.dtype) == (eager.shape, eager.stride(), eager.dtype)
        assert torch.equal(mine, eager)


@pytest.mark.usefixtures("everywhere")
def test_what_is_in_the_padding_does_not_come_out() -> None:
    """Infinite and undefined numbers times the zeros that were added stay where they are."""
    a, b = torch.randn(6, 5), torch.randn(5, 7)
    a[0, 0], b[4, 6] = float("inf"), float("nan")
    compiled = smelt.compile(lambda a, b: a @ b, options={"products": "library"})
    torch.testing.assert_close(compiled(a, b), a @ b, equal_nan=True)


class _Vocabulary(nn.Module):
    def __init__(self, words: int) -> None:
        super().__init__()
        self.out = nn.Linear(256, words, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.out(x).float(), y)


def _widths(words: int, dtype: torch.dtype) -> set[int]:
    """The longest side of each product of a model for a GPU."""
    specs = [spec_like((512, 256), dtype), spec_like((512,), torch.int64)]
    found = compile_ahead(_Vocabulary(words).to(dtype), specs, Options(target="sm_90"))
    products = [
        step
        for program in found.programs
        for step in program.steps
        if isinstance(step, Library) and "mm" in str(step.op)
    ]
    assert products
    return {max(size for arg in step.args if hasattr(arg, "shape") for size in arg.shape) for step in products}


def test_a_vocabulary_on_a_gpu() -> None:
    assert _widths(10_007, HALF) == {10_008}


@pytest.mark.parametrize(("words", "dtype"), [(10_008, HALF), (10_007, torch.float32), (107, HALF)])
def test_what_is_left_alone(words: int, dtype: torch.dtype) -> None:
    """Aligned rows, numbers in 32 bits, and products that take less time than a copy."""
    assert all(width in (words, 512) for width in _widths(words, dtype))


def test_one_copy_serves_two_products() -> None:
    with events.collect() as seen:
        _widths(10_007, HALF)
    padded = [event.text for event in seen if event.channel == "fusion" and "constant_pad_nd}" in event.text]
    assert len([text for text in padded if "computes" in text]) <= 2


@pytest.mark.parametrize("dynamic", [None, {"input": {0: "rows"}}], ids=["static", "dynamic"])
def test_a_vocabulary_in_an_artifact_for_gpus(dynamic: dict[str, Any] | None) -> None:
    """Its tensors were on the host when it was traced."""
    model = nn.Linear(256, 10_007, bias=False).to(HALF)
    artifact = smelt.export(model, (torch.randn(512, 256, dtype=HALF),), dynamic=dynamic, targets=("sm_90",))
    programs = [variant.program for variant in artifact.machine.states[0].variants if variant.program is not None]
    widths = [{buffer.spec.shape[1] for buffer in program.buffers} for program in programs]
    assert {256, 10_008, 10_007} in widths  # one row alone is too little work
