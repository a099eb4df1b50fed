"""Recurrent layers on CUDA: cuDNN's where PyTorch takes those, one call for all layers and steps.

    torch.gru(x, h, weights, …)   →   cudnn_recurrent(x, [h], weights, GRU, …)

PyTorch's own functions look into the memory of the weights, and fake tensors have none. Without cuDNN they are called
as they are: step by step, by the operators of their cells.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch.utils._mode_utils import no_dispatch

from smelt.device.host_library import on_host
from smelt.meta.fake_tensor import FakeTensorError

if TYPE_CHECKING:
    import torch
else:
    from smelt.base.torch_originals import pristine as torch

_OF_CUDNN = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def is_for_cudnn(input: torch.Tensor) -> bool:
    """Whether PyTorch gives a recurrent layer of this input to cuDNN."""
    if on_host(input.device):
        return False
    with no_dispatch():  # in inference mode it would be asked as an operator
        return bool(torch.cudnn_is_acceptable(input))


def would_be_for_cudnn(input: torch.Tensor) -> bool:
    """The same of an input on CUDA where there is no CUDA to ask."""
    return bool(torch._C._get_cudnn_enabled()) and input.dtype in _OF_CUDNN and input.numel() != 0


def _layers(mode: int) -> Callable[..., Any]:
    def called(
        input: Any,
        hx: Any,
        params: Any,
        has_biases: Any = True,
        num_layers: int = 1,
        dropout: float = 0.0,
        train: bool = False,
        bidirectional: bool = False,
        batch_first: bool = False,
    ) -> Any:
        if isinstance(hx, torch.Tensor) and isinstance(has_biases, tuple | list):  # in its place weights: it is packed
            raise FakeTensorError("the sizes of a packed sequence's batches are read from a tensor")
        states = [hx] if isinstance(hx, torch.Tensor) else list(hx)
        operands, flatten = _cast([input, *states, *params])
        input, states, params = operands[0], operands[1 : 1 + len(states)], operands[1 + len(states) :]
        layers = mode, has_biases, num_layers, dropout, train, bidirectional, batch_first, flatten
        return _operator()(input, states, params, *layers)[: 1 + len(states)]

    return called


def _operator() -> Any:
    """Loaded where one is met: defining operators takes ten milliseconds."""
    from smelt.ir.nodes.cudnn_recurrent import CUDNN_RECURRENT

    return CUDNN_RECURRENT


def _cast(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], bool]:
    """As autocast gives tensors to cuDNN, always in float16: then weights are in one piece of memory no longer."""
    if not torch.is_autocast_enabled("cuda"):
        return list(tensors), False
    wide = (torch.float32, torch.bfloat16)
    return [each.to(torch.float16) if each.dtype in wide else each for each in tensors], tensors[-1].dtype in wide


BY_CUDNN: dict[Any, Callable[..., Any]] = {
    function: _layers(mode) for mode, function in enumerate((torch.rnn_relu, torch.rnn_tanh, torch.lstm, torch.gru))
}


def by_cudnn(function: Any, args: Sequence[Any], kwargs: Any, chosen: Callable[[Any], bool] | None = None) -> Any:
    """What a recurrent layer returns by cuDNN; `NotImplemented` of others, and of other functions."""
    layers = BY_CUDNN.get(function)
    if layers is None or not args or not (chosen or is_for_cudnn)(args[0]):
        return NotImplemented
    return layers(*args, **kwargs)
