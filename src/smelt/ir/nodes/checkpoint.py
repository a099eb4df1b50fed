"""A part of a torch-level graph whose values are to be recomputed in the backward: `torch.utils.checkpoint`.

    y = checkpoint(block, x)        checkpoint = Checkpoint(x, weight); y = checkpoint[0]
                                    body(x, weight): linear = …; gelu = …; return (gelu,)

Who runs the graph runs PyTorch's checkpoint on the body. A recorder runs the body itself, and notes for each value
whether to recompute it (`ir.call_contract.RecomputePolicy`).
"""

from collections.abc import Callable
from dataclasses import field
from typing import Any, Protocol, runtime_checkable

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.checkpoint import checkpoint, noop_context_fn

from smelt.base.fast_dataclass import dataclass
from smelt.ir.graph import Traced

Policy = Callable[..., Any]
"""`policy(context, operator, *args, **kwargs)` says whether an operator's result is saved, as PyTorch defines it."""


@runtime_checkable
class RecordsRegions(Protocol):
    """A recorder that tells the values of a checkpointed region from others."""

    def region(self, checkpoint: "Checkpoint", inputs: tuple[Any, ...]) -> tuple[Any, ...]: ...


@dataclass(eq=False)
class Checkpoint:
    """`checkpoint(*inputs)` is what the body returns; its other values are not kept, but for those the policy names."""

    body: Traced
    policy: Policy | None = None
    contexts: Callable[[], Any] = noop_context_fn
    preserves_random_state: bool = True
    _run: Any = field(default=None, init=False)

    @property
    def __name__(self) -> str:
        return "checkpoint"

    @property
    def inner_graphs(self) -> dict[str, Traced]:
        return {"body": self.body}

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        recorder = _get_current_dispatch_mode()
        if isinstance(recorder, RecordsRegions):
            return recorder.region(self, inputs)
        if self._run is None:
            self._run = self.body.to_module().forward
        if not torch.is_grad_enabled():
            plainly: tuple[Any, ...] = self._run(*inputs)
            return plainly
        results: tuple[Any, ...] = checkpoint(
            self._run,
            *inputs,
            use_reentrant=False,
            context_fn=self.contexts,
            preserve_rng_state=self.preserves_random_state,
        )
        return results
