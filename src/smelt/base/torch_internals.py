"""PyTorch's internals that another version may lack: `internal("_fused_adam_")` is `torch._fused_adam_` if it exists.

For keys of tables that say how a function is captured. Without the key such a call breaks the graph, and nothing more.
Names that the compiler cannot do without are used directly. If one is missing, importing the compiler fails, or
`require_all` does, and `smelt` falls back to `smelt.eager_api`.
"""

from importlib import import_module
from typing import Any

MISSING: list[str] = []
"""Full names that this PyTorch lacks."""

USED_BY_CALLS = (
    "Tensor._make_wrapper_subclass",
    "_C.DisableTorchFunctionSubclass",
    "_C.DispatchKey",
    "_C._AutoDispatchBelowAutograd",
    "_C._DisableAutocast",
    "_C._FunctionBase",
    "_C._FunctionBase._register_hook_dict",
    "_C._InferenceMode",
    "_C._are_functorch_transforms_active",
    "_C._autograd",
    "_C._autograd._get_creation_meta",
    "_C._autograd._get_current_graph_task_keep_graph",
    "_C._autograd._get_sequence_nr",
    "_C._autograd._profiler_enabled",
    "_C._autograd._set_creation_meta",
    "_C._autograd._top_saved_tensors_default_hooks",
    "_C._autograd._unsafe_set_version_counter",
    "_C._current_autograd_node",
    "_C._current_graph_task_id",
    "_C._disabled_torch_dispatch_impl",
    "_C._dispatch_tls_local_exclude_set",
    "_C._functorch",
    "_C._get_deterministic_fill_uninitialized_memory",
    "_C._get_dispatch_stack_at",
    "_C._get_function_stack_at",
    "_C._has_storage",
    "_C._is_any_autocast_enabled",
    "_C._is_fwd_grad_enabled",
    "_C._is_multithreading_enabled",
    "_C._is_torch_function_enabled",
    "_C._is_tracing",
    "_C._len_torch_dispatch_stack",
    "_C._len_torch_function_stack",
    "_C._pop_torch_dispatch_stack",
    "_C._pop_torch_function_stack",
    "_C._push_on_torch_dispatch_stack",
    "_C._push_on_torch_function_stack",
    "_C._set_deterministic_fill_uninitialized_memory",
    "_C._set_fwd_grad_enabled",
    "_C._set_grad_enabled",
    "_C._set_multithreading_enabled",
    "_C.is_grad_enabled",
    "_foreach_copy_",
    "_ops",
    "autograd.Variable._execution_engine",
    "autograd.graph._engine_run_backward",
)
"""What running compiled code uses: without one of these a call would fail long after it was compiled."""


class MissingInternal:
    """Equal to nothing but itself, so that a table never finds it. Its attributes and results are itself."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self


def internal(path: str, module: str = "torch") -> Any:
    """`<module>.<path>`, or a `MissingInternal`."""
    try:
        value: Any = import_module(module)
        for name in path.split("."):
            value = getattr(value, name)
    except (ImportError, AttributeError):
        MISSING.append(f"{module}.{path}")
        return MissingInternal()
    return value


def require_all() -> None:
    """Raise if this PyTorch lacks something that running compiled code uses."""
    lacking = [path for path in USED_BY_CALLS if type(internal(path)) is MissingInternal]
    if lacking:
        raise ImportError("PyTorch lacks " + ", ".join(f"torch.{path}" for path in lacking))
