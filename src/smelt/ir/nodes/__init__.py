"""Functions that stand as nodes in torch-level graphs: backwards, checkpoints, hooks, derivatives, ambient state."""

import importlib
from collections.abc import Callable
from typing import Any

import torch

LIBRARY = torch.library.Library("smelt", "FRAGMENT")  # type: ignore[no-untyped-call]

_DEFINED_IN = {
    "philox_state": "philox_draws",
    "dropout_mask": "philox_draws",
    "random_words": "random_words",
    "philox_words": "random_words",
    "recurrent_steps": "recurrent_steps",
    "recurrent_steps_backward": "recurrent_steps",
}  # others are cuDNN's layers


def defining(operator: str) -> Any:
    """The module that defines an operator of our own, by its name; its `FUNCTIONS` say what computes each."""
    module = _DEFINED_IN.get(operator.removeprefix("smelt::"), "cudnn_recurrent")
    return importlib.import_module(f"smelt.ir.nodes.{module}")


def define(schema: str, compute: Callable[..., Any], spec: Callable[..., Any], *tags: torch.Tag) -> Any:
    """An operator of our own: what computes it, and what its results look like on meta tensors."""
    name = schema.partition("(")[0]
    LIBRARY.define(schema, tags=tags)  # type: ignore[no-untyped-call]
    LIBRARY.impl(name, compute, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    LIBRARY.impl(name, spec, "Meta")  # type: ignore[no-untyped-call]
    return getattr(torch.ops.smelt, name).default
