"""smelt behind somebody else's capture: `torch.compile(model, backend="smelt")`.

A backend there is a callable of a `GraphModule` and example inputs. Its graph is what ours is after capture, so it goes
the same way from there; nothing of torch.compile is imported. Each combination of sizes and numbers is compiled when it
comes.

    backend(gm, examples)  →  a callable of the same inputs, differentiable like the module
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from smelt import _native
from smelt.base import locks
from smelt.base.events import count, fell_back
from smelt.base.options import Options, is_disabled
from smelt.ir.graph import GraphLevel, Traced
from smelt.ir.tensorspec import TensorSpec, set_spec
from smelt.pipeline.backends import compile_llvm

LIMIT = 64


def backend(
    module: fx.GraphModule, examples: Sequence[Any], *, options: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """The backend. What it cannot take is left to the module itself, with a warning."""
    if is_disabled():
        return module.forward
    reason = why_not_taken(module)
    if reason is not None:
        fell_back("a graph of torch.compile", reason)
        return module.forward
    return _BackendAdapter(module, Options(**(options or {})))


def why_not_taken(module: fx.GraphModule) -> str | None:
    """Why a graph is not one that capture could have made."""
    for node in module.graph.nodes:
        if node.op == "call_module":
            return f"it calls the module {node.target}"
        if node.op == "get_attr" and not isinstance(_attribute(module, str(node.target)), torch.Tensor):
            return f"it holds {node.target}, which is no tensor"
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            return f"it calls {node.target}, which takes functions"
    return None


def _attribute(module: torch.nn.Module, path: str) -> Any:
    value: Any = module
    for name in path.split("."):
        value = getattr(value, name)
    return value


class _BackendAdapter:
    """A foreign graph, compiled for each kind of inputs it is called with."""

    def __init__(self, module: fx.GraphModule, options: Options) -> None:
        self._module = module
        self._options = options
        self._versions: dict[Any, Callable[..., Any]] = {}
        self._lock = locks.lock()

    def __call__(self, *inputs: Any) -> Any:
        key = (torch.is_grad_enabled(), *[_kind(each) for each in inputs])
        run = self._versions.get(key)
        if run is None:
            run = _native.preserving_state(self._made_once, key, inputs)
        return run(*[each for each in inputs if isinstance(each, torch.Tensor)])

    def _made_once(self, key: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        with _native.Held(self._lock):
            run = self._versions.get(key) or self._make(inputs)
            if len(self._versions) < LIMIT:
                self._versions[key] = run
        return run

    def _make(self, inputs: Sequence[Any]) -> Callable[..., Any]:
        graph, copies = fx.Graph(), dict[fx.Node, Any]()
        constants: dict[str, torch.Tensor] = {}
        remaining = iter(inputs)
        for node in self._module.graph.nodes:
            value = next(remaining) if node.op == "placeholder" else None
            if node.op == "placeholder" and not isinstance(value, torch.Tensor):
                copies[node] = value  # a number: it is part of the key
                continue
            copy = copies[node] = graph.node_copy(node, copies.__getitem__)
            if isinstance(value, torch.Tensor):
                set_spec(copy, TensorSpec.of(value))
            if node.op == "get_attr":
                copy.target = str(node.target).replace(".", "_")
                constants[copy.target] = _attribute(self._module, str(node.target)).detach()
        count("graphs")
        run = compile_llvm(Traced(graph, GraphLevel.TORCH, constants), self._options)
        (returned,) = self._module.graph.output_node().args
        if isinstance(returned, tuple | list):
            return run
        return lambda *tensors: run(*tensors)[0]


def _kind(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (type(value), value.dtype, value.device, value.requires_grad, tuple(value.shape), value.stride())
    return (type(value), repr(value))
