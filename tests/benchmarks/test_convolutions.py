"""Convolutions and attention beside the library: operations are counted right, and every backend is measured."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import convolutions
from benchmarks.convolutions import LAYERS, Attention, Convolution, Layer

SMALL = Convolution("small", 2, 4, 6, 8, 3, 2, 1, 2)


@pytest.mark.parametrize("layer", [*LAYERS, SMALL], ids=lambda layer: layer.name)
def test_operations_are_counted_as_pytorch_counts_them(layer: Layer) -> None:
    counter = FlopCounterMode(display=False)
    inputs = [x.to("meta") for x in layer.inputs()]
    with counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        layer.call(*inputs)
    assert counter.get_total_flops() == layer.flops


def test_layers_have_names_of_their_own() -> None:
    assert len({layer.name for layer in LAYERS}) == len(LAYERS)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("layer", [SMALL, Attention("heads", 1, 2, 8, 4)], ids=lambda layer: layer.name)
def test_a_layer_is_measured_by_every_backend(layer: Layer, backward: bool) -> None:
    figure = convolutions.measured(layer, 1, backward, channels_last=True, rounds=2, per_round=1e-6)
    assert list(figure.seconds) == ["eager", "library", "own"] and min(figure.seconds.values()) > 0
    assert figure.over_library > 0 and figure.over_eager > 0
    assert figure.schedules
    assert layer.name in convolutions.line(figure)
