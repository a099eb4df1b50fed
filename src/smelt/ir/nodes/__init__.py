"""Functions that stand as nodes in torch-level graphs: backwards, checkpoints, hooks, derivatives, ambient state."""

import importlib
from typing import Any

_DEFINED_IN = {
    "philox_state": "philox_draws",
    "dropout_mask": "philox_draws",
    "random_words": "random_words",
    "philox_words": "random_words",
}  # others are cuDNN's layers


def defining(operator: str) -> Any:
    """The module that defines an operator of our own, by its name; its `FUNCTIONS` say what computes each."""
    module = _DEFINED_IN.get(operator.removeprefix("smelt::"), "cudnn_recurrent")
    return importlib.import_module(f"smelt.ir.nodes.{module}")
