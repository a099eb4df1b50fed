"""Recurrent layers compiled for a GPU that is not here: cuDNN's where PyTorch takes them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from smelt.base.options import Options
from smelt.ir import serialize
from smelt.ir.program import Library
from smelt.ir.tensorspec import TensorSpec
from smelt.meta.fake_tensor import FakeMode, FakeTensor
from smelt.meta.recurrent_layers import is_for_cudnn
from smelt.symbolic.shapes import contiguous_stride
from tests.absent_device.ahead import Ahead, compile_ahead, spec_like
from tests.absent_device.stand_in import is_here

CUDA = torch.device("cuda", 0)
BY_CUDNN = ["smelt::cudnn_recurrent", "smelt::cudnn_recurrent_backward"]

pytestmark = [
    pytest.mark.skipif(is_here(CUDA), reason="the device is here, and nothing stands for it"),
    pytest.mark.filterwarnings("error"),  # modules that flatten new weights are warned that there is no cuDNN
]


def called(found: Ahead) -> list[str]:
    return [step.op.name() for program in found.programs for step in program.steps if isinstance(step, Library)]


def ahead(module: nn.Module, *shapes: tuple[int, ...]) -> Ahead:
    dtype = next(module.parameters()).dtype
    return compile_ahead(
        module, [spec_like(shape, dtype) for shape in shapes], Options(target="sm_90", check_specs=True)
    )


MODULES: dict[str, tuple[Callable[[], nn.Module], list[tuple[int, ...]]]] = {
    "rnn": (lambda: nn.RNN(4, 6, nonlinearity="relu", bias=False), [(5, 2, 4)]),
    "gru": (lambda: nn.GRU(4, 6, 2, bidirectional=True), [(5, 2, 4), (4, 2, 6)]),
    "lstm": (lambda: nn.LSTM(4, 6, 2, batch_first=True), [(2, 5, 4)]),
    "dropped out": (lambda: nn.LSTM(4, 6, 2, dropout=0.3), [(5, 2, 4)]),
    "projected": (lambda: nn.LSTM(4, 6, proj_size=3), [(5, 2, 4)]),
    "unbatched": (lambda: nn.GRU(4, 6), [(5, 4)]),
    "half": (lambda: nn.GRU(4, 6).half(), [(5, 2, 4)]),
    "bfloat16": (lambda: nn.GRU(4, 6).bfloat16(), [(5, 2, 4)]),
}


@pytest.mark.parametrize("name", MODULES)
def test_layers_are_one_call_each_way(name: str) -> None:
    make, shapes = MODULES[name]
    found = ahead(make(), *shapes)
    assert called(found) == BY_CUDNN
    assert found.plan.random == (("cuda:0",) if name == "dropped out" else ())


def test_a_module_lists_its_own_weights_afterwards() -> None:
    module = nn.LSTM(4, 6)
    ahead(module, (5, 2, 4))
    assert all(one is other for one, other in zip(module._flat_weights, module.parameters(), strict=True))
    assert not module._weights_have_changed()


def test_nothing_is_drawn_in_evaluation() -> None:
    make, shapes = MODULES["dropped out"]
    assert ahead(make().eval(), *shapes).plan.random == ()


def test_what_cudnn_does_not_take_is_computed_step_by_step() -> None:
    with torch.backends.cudnn.flags(enabled=False):
        assert called(ahead(nn.GRU(4, 6), (5, 2, 4))).count("aten::mm.out") > 5


@contextmanager
def autocast(dtype: torch.dtype) -> Iterator[None]:
    """Autocast of CUDA where there is none, which `torch.autocast` refuses."""
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", torch.float16)
        torch.clear_autocast_cache()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_gives_cudnn_halves(dtype: torch.dtype) -> None:
    with autocast(dtype):
        found = ahead(nn.LSTM(4, 6), (5, 2, 4))
    assert [name for name in called(found) if name.startswith("smelt")] == BY_CUDNN
    (layer,) = (each for each in found.forward.steps if isinstance(each, Library) and each.op.name() == BY_CUDNN[0])
    assert layer.args[-1] is True  # weights are laid out anew
    assert {found.forward.buffer(each.buffer).spec.dtype for each in layer.args[2]} == {torch.float16}


def test_operators_of_our_own_are_stored_by_name() -> None:
    op = torch.ops.smelt.cudnn_recurrent.default
    assert serialize.parse(serialize.dump(op)) is op


def fake(*shape: int) -> FakeTensor:
    return FakeTensor(TensorSpec(shape, contiguous_stride(shape), torch.float32, CUDA))


@pytest.mark.parametrize("inference", [False, True])
def test_whether_cudnn_is_taken_is_asked_on_fake_tensors(inference: bool) -> None:
    with torch.inference_mode(inference), FakeMode():
        assert not is_for_cudnn(fake(5, 2, 4))  # there is none here
