"""Operators that compute a layer as a whole, on ghosts of a GPU and compiled where the host has them."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt.base.events import collect
from smelt.ir.tensorspec import TensorSpec
from smelt.meta.ghost import GhostError, GhostMode, GhostTensor
from smelt.symbolic.shapes import contiguous_stride

aten = torch.ops.aten
CUDA = torch.device("cuda", 0)


def ghost(*shape: int, dtype: torch.dtype = torch.float32) -> GhostTensor:
    return GhostTensor(TensorSpec(shape, contiguous_stride(shape), dtype, CUDA))


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("kind", ["gru", "lstm", "rnn_tanh", "rnn_relu"])
def test_cells_on_cuda_are_known_without_data(kind: str, biases: bool) -> None:
    gates = {"gru": 3, "lstm": 4}.get(kind, 1)
    weights = [ghost(6 * gates, 4), ghost(6 * gates, 6), *([ghost(6 * gates), ghost(6 * gates)] if biases else ())]
    state: Any = (ghost(3, 6), ghost(3, 6)) if kind == "lstm" else ghost(3, 6)
    with GhostMode():
        made = getattr(torch, f"{kind}_cell")(ghost(3, 4), state, *weights)
    outputs = list(made) if isinstance(made, tuple) else [made]
    assert all(each.device == CUDA and tuple(each.shape) == (3, 6) for each in outputs)


def test_the_derivative_of_a_cell_on_cuda_is_known_without_data() -> None:
    with GhostMode():
        hidden, kept = aten._thnn_fused_gru_cell(ghost(3, 18), ghost(3, 18), ghost(3, 6), ghost(18), ghost(18))
        made = aten._thnn_fused_gru_cell_backward(hidden, kept, True)
    assert [tuple(each.shape) for each in made] == [(3, 18), (3, 18), (3, 6), (18,), (18,)]


def test_sampling_by_cudnn_is_known_without_data() -> None:
    """PyTorch chooses it for a grid whose corners are the image's."""
    with GhostMode():
        image, grid = ghost(2, 3, 5, 6), ghost(2, 4, 7, 2)
        made = aten.cudnn_grid_sampler(image, grid)
        back = aten.cudnn_grid_sampler_backward(image, grid, made)
    assert made.device == CUDA and tuple(made.shape) == (2, 3, 4, 7)
    assert [tuple(each.shape) for each in back] == [(2, 3, 5, 6), (2, 4, 7, 2)]


def test_a_ctc_loss_on_cuda_is_known_without_data_unless_it_may_be_cudnns() -> None:
    """cuDNN takes targets in one row of 32 bits, and looks at where they are besides."""
    log_probs, lengths = ghost(7, 2, 5), ((7, 6), (3, 2))
    with GhostMode():
        for targets in (ghost(2, 3, dtype=torch.int32), ghost(5, dtype=torch.int64)):
            assert F.ctc_loss(log_probs, targets, *lengths, reduction="none").device == CUDA
        with pytest.raises(GhostError):
            F.ctc_loss(log_probs, ghost(5, dtype=torch.int32), *lengths, reduction="none")
        back = aten._ctc_loss_backward(ghost(2), log_probs, targets, *lengths, ghost(2), ghost(2, 7, 7), 0)
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
