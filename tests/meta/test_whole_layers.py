"""Operators that compute a layer as a whole, on fake tensors of a GPU and compiled where the host has them."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt.base.events import collect
from smelt.ir.tensorspec import TensorSpec
from smelt.meta.fake_tensor import FakeMode, FakeTensor, FakeTensorError
from smelt.symbolic.shapes import contiguous_stride

aten = torch.ops.aten
CUDA = torch.device("cuda", 0)


def fake(*shape: int, dtype: torch.dtype = torch.float32) -> FakeTensor:
    return FakeTensor(TensorSpec(shape, contiguous_stride(shape), dtype, CUDA))


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("kind", ["gru", "lstm", "rnn_tanh", "rnn_relu"])
def test_cells_on_cuda_are_known_without_data(kind: str, biases: bool) -> None:
    gates = {"gru": 3, "lstm": 4}.get(kind, 1)
    weights = [fake(6 * gates, 4), fake(6 * gates, 6), *([fake(6 * gates), fake(6 * gates)] if biases else ())]
    state: Any = (fake(3, 6), fake(3, 6)) if kind == "lstm" else fake(3, 6)
    with FakeMode():
        made = getattr(torch, f"{kind}_cell")(fake(3, 4), state, *weights)
    outputs = list(made) if isinstance(made, tuple) else [made]
    assert all(each.device == CUDA and tuple(each.shape) == (3, 6) for each in outputs)


def test_the_derivative_of_a_cell_on_cuda_is_known_without_data() -> None:
    with FakeMode():
        hidden, kept = aten._thnn_fused_gru_cell(fake(3, 18), fake(3, 18), fake(3, 6), fake(18), fake(18))
        made = aten._thnn_fused_gru_cell_backward(hidden, kept, True)
    assert [tuple(each.shape) for each in made] == [(3, 18), (3, 18), (3, 6), (18,), (18,)]


def test_sampling_by_cudnn_is_known_without_data() -> None:
    """PyTorch chooses it for a grid whose corners are the image's."""
    with FakeMode():
        image, grid = fake(2, 3, 5, 6), fake(2, 4, 7, 2)
        made = aten.cudnn_grid_sampler(image, grid)
        back = aten.cudnn_grid_sampler_backward(image, grid, made)
    assert made.device == CUDA and tuple(made.shape) == (2, 3, 4, 7)
    assert [tuple(each.shape) for each in back] == [(2, 3, 5, 6), (2, 4, 7, 2)]


def test_a_ctc_loss_on_cuda_is_known_without_data_unless_it_may_be_cudnns() -> None:
    """cuDNN takes targets in one row of 32 bits, and looks at where they are besides."""
    log_probs, lengths = fake(7, 2, 5), ((7, 6), (3, 2))
    with FakeMode():
        for targets in (fake(2, 3, dtype=torch.int32), fake(5, dtype=torch.int64)):
            assert F.ctc_loss(log_probs, targets, *lengths, reduction="none").device == CUDA
        with pytest.raises(FakeTensorError):
            F.ctc_loss(log_probs, fake(5, dtype=torch.int32), *lengths, reduction="none")
        back = aten._ctc_loss_backward(fake(2), log_probs, targets, *lengths, fake(2), fake(2, 7, 7), 0)
    assert tuple(back.shape) == (7, 2, 5)


def test_attention_without_weights_returns_none_of_them() -> None:
    """It was described as an empty tensor, and the graph run by PyTorch when there was none."""
    torch.manual_seed(0)
    module, x = nn.MultiheadAttention(32, 4, batch_first=True).eval(), torch.randn(3, 9, 32)
    with torch.no_grad(), collect() as events:
        output, weights = smelt.compile(module)(x, x, x, need_weights=False)
    torch.testing.assert_close(output, module(x, x, x, need_weights=False)[0])
    assert weights is None
    assert len([event for event in events if event.channel == "graph"]) == 1
    assert not [event.text for event in events if event.channel in ("breaks", "recompiles")]
