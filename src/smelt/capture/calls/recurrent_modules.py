"""What recurrent modules ask of their weights' memory, which no guard sees: answered now, and asked at every call.

    self.lstm.flatten_parameters()     nothing, where the weights are one piece of memory on a GPU already
"""

from collections.abc import Callable
from typing import Any

import torch

from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.values import Constant, Object, Value


def _weights_have_changed(interp: Interpreter, module: Value) -> Value | None:
    """It follows weak references."""
    if not isinstance(module, Object) or module.source is None or interp.externals.has_pending_writes():
        raise Unsupported("B002", "torch.nn.RNNBase._weights_have_changed")
    changed = bool(module.value._weights_have_changed())
    module.source.check(("predicate", _changed_weights if changed else _unchanged_weights))
    return Constant(changed)


def _changed_weights(module: Any) -> bool:
    return bool(module._weights_have_changed())


def _unchanged_weights(module: Any) -> bool:
    return not module._weights_have_changed()


def _flatten_parameters(interp: Interpreter, module: Value) -> Value | None:
    """Copying weights that are in one piece of memory into another changes nothing that a program could tell. Where
    they are not, Python does it, and the next call finds them so."""
    if not isinstance(module, Object) or module.source is None or not are_on_gpu(module.value):
        return None
    if interp.externals.has_pending_writes():
        raise Unsupported("B002", "torch.nn.RNNBase.flatten_parameters")
    whole = are_in_one_piece(module.value)
    module.source.check(("predicate", are_in_one_piece if whole else _are_apart))
    if not whole:
        raise Unsupported("B002", "torch.nn.RNNBase.flatten_parameters")
    return Constant(None)


def are_on_gpu(module: Any) -> bool:
    """Whether all weights of a module are on CUDA; elsewhere nothing is flattened."""
    weights = module._flat_weights
    return bool(weights) and all(isinstance(each, torch.Tensor) and each.is_cuda for each in weights)


def are_in_one_piece(module: Any) -> bool:
    """Whether all weights of a module share their memory."""
    weights = module._flat_weights
    if not all(isinstance(each, torch.Tensor) for each in weights):
        return False
    return len({each.untyped_storage().data_ptr() for each in weights}) == 1


def _are_apart(module: Any) -> bool:
    return not are_in_one_piece(module)


RECURRENT_CALLS: dict[Any, Callable[[Interpreter, Value], Value | None]] = {
    torch.nn.RNNBase._weights_have_changed: _weights_have_changed,
    torch.nn.RNNBase.flatten_parameters: _flatten_parameters,
}
"""Methods of `nn.RNNBase`; None where the call is to be followed as any other."""
