"""What users call: `compile`, and the few functions round it.

`compile` checks its arguments at once and compiles nothing; the first call does. A compiled function is a plain
function that enters a region (`smelt.capture`); a compiled module is an object of a subclass of the model's own
class that shares its `__dict__`: parameters, `state_dict()`, `train()`/`eval()`, hooks, attributes are all the same.
"""

import contextlib
import copy
import functools
import os
import sys
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, overload

import torch

from smelt import _native
from smelt.base.coexist import opaque
from smelt.base.errors import SmeltError
from smelt.base.events import Event, collect, counters
from smelt.base.options import GRAPHS_OF_MODES, MODES, TUNING_MODES, Options, is_disabled
from smelt.capture import CompiledRegion, mark_entered
from smelt.ir.graph import GraphCompiler
from smelt.lazy import forget as forget_lazy_programs
from smelt.lazy import use_compiler
from smelt.meta import fake_tensor
from smelt.pipeline.backends import CustomBackend, resolve_backend

# A start from the cache needs neither the stages nor what shows them: each is loaded where it is asked for.
if TYPE_CHECKING:
    from smelt.explain.explanation import Explanation
    from smelt.explain.verify import Verification
    from smelt.pipeline.backward.compiled_backward import ModuleCompiler

use_compiler(lambda: resolve_backend("llvm", Options()))

_regions: "weakref.WeakSet[CompiledRegion]" = weakref.WeakSet()
_settings: "weakref.WeakKeyDictionary[CompiledRegion, Compiling]" = weakref.WeakKeyDictionary()
_originals: "weakref.WeakKeyDictionary[Callable[..., Any], Callable[..., Any]]" = weakref.WeakKeyDictionary()


def compile(
    model: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | CustomBackend = "llvm",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """Compile `model`, a function or an `nn.Module`; also a decorator, with or without arguments.

    Nothing is compiled until the first call. A compiled module is the model itself for all other purposes: the same
    parameters, `state_dict()`, `train()`, hooks and attributes.

    - `fullgraph=True` makes a graph break an error.
    - `dynamic`: `None` makes a size a symbol once it has changed, `True` makes all sizes symbols from the start,
      `False` compiles a version for each.
    - `backend` is a name of `smelt.list_backends()`, or a callable `(fx.GraphModule, example_inputs) -> callable`.
    - `mode="max-speed"` tries alternatives for each graph by timing them at its first call, and remembers on disk
      which was fastest; `None` and `"default"` never time anything. `torch.compile`'s modes are accepted:
      `"max-autotune"` means `"max-speed"`, `"reduce-overhead"` means `"default"` with CUDA graphs always.
    - `options` are the fields of `smelt.Options`, by name.
    - `disable=True` returns the model unchanged. So does every call if the environment has `SMELT_DISABLE=1`.
    """
    settings: dict[str, Any] = {
        "fullgraph": fullgraph,
        "dynamic": dynamic,
        "backend": backend,
        "mode": mode,
        "options": options,
        "disable": disable,
    }
    if model is None:
        return Compiling(**settings)
    if not callable(model):
        raise SmeltError(
            "SM001",
            f"smelt.compile takes a function or an nn.Module, not {type(model).__name__}",
            hint="pass the function itself, not the result of calling it",
        )
    _check_flags(fullgraph, dynamic, mode, disable)
    checked = _chosen(options, mode)
    compiler = resolve_backend(backend, checked)
    if disable or is_disabled():
        return model
    # A compiled function that calls another one captures it; whether CUDA graphs are recorded is decided outside.
    alike = Compiling(**{**settings, "fullgraph": False, "mode": "max-speed" if mode in TUNING_MODES else None})
    region = CompiledRegion(compiler, fullgraph=fullgraph, dynamic=dynamic, fallback=checked.fallback, settings=alike)
    _regions.add(region)
    _settings[region] = Compiling(**settings)
    model = _original(model)
    if isinstance(model, torch.nn.Module):
        return _compiled_module(model, region, settings)
    return _compiled_function(model, region)


class Compiling:
    """`smelt.compile` without a model: a decorator. Equal settings make equal ones."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        options = settings.get("options")
        mode = settings.get("mode")
        settings = {**settings, "mode": (mode in TUNING_MODES, GRAPHS_OF_MODES.get(mode or ""))}  # what differs in code
        plain = ((name, value) for name, value in settings.items() if name != "options" and value is not None)
        known = frozenset((name, value if isinstance(value, Hashable) else id(value)) for name, value in plain)
        self._key = known, repr(sorted(options.items())) if options else ""

    def __call__(self, decorated: Callable[..., Any]) -> Any:
        return compile(decorated, **self.settings)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Compiling) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def backward_compilers(
    compiler: Any,
) -> "tuple[GraphCompiler | None, ModuleCompiler, ModuleCompiler]":
    """What `smelt.compiled_autograd.enable` is given, as what compiles graphs, modules, and modules for any size."""
    if isinstance(compiler, str):
        compiler = Compiling(backend=compiler)
    if not callable(compiler):
        raise SmeltError(
            "SM002",
            f"compiled autograd takes smelt.compile(…), the name of a backend or a function, not {compiler!r}",
            hint="for instance smelt.compile(fullgraph=True)",
        )
    if not isinstance(compiler, Compiling) or compiler.settings.get("disable"):
        return None, compiler, compiler
    settings = compiler.settings
    options = replace(_chosen(settings.get("options"), settings.get("mode")), compile="blocking")
    sized = Compiling(**{**settings, "dynamic": True})
    return resolve_backend(settings.get("backend", "llvm"), options), compiler, sized


def settings_of_region(native: object) -> Compiling | None:
    """The settings of the compiled function whose region this is."""
    return next((_settings[region] for region in list(_regions) if region.native is native), None) if native else None


def _chosen(options: Mapping[str, Any] | None, mode: str | None) -> Options:
    checked = Options.from_user(options)
    if mode in GRAPHS_OF_MODES:
        checked = replace(checked, cuda_graphs=GRAPHS_OF_MODES[mode])
    return replace(checked, tune=True) if mode in TUNING_MODES else checked


def _original(model: Callable[..., Any]) -> Callable[..., Any]:
    """What a compiled function or module was made from, so that compiling it again starts afresh; else itself.

    Looked up by identity: a wrapper that copied a compiled function's attributes is a function of its own.
    """
    if isinstance(model, torch.nn.Module):
        known: Any = getattr(type(model), "_smelt_model", None)
        return model if known is None else known.fget(model)
    if isinstance(model, MethodType):
        return MethodType(_original(model.__func__), model.__self__)
    return _originals.get(model, model) if isinstance(model, FunctionType) else model


def _check_flags(fullgraph: object, dynamic: object, mode: object, disable: object) -> None:
    for name, value in (("fullgraph", fullgraph), ("disable", disable)):
        if not isinstance(value, bool):
            raise SmeltError("SM003", f"{name} must be True or False, not {value!r}")
    if dynamic is not None and not isinstance(dynamic, bool):
        raise SmeltError("SM003", f"dynamic must be None, True or False, not {dynamic!r}")
    if mode is not None and mode not in MODES:
        raise SmeltError("SM003", f"unknown mode {mode!r}", hint="choose from " + ", ".join(map(repr, MODES)))


def _compiled_function(function: Callable[..., Any], region: CompiledRegion) -> Callable[..., Any]:
    """A function that enters the region; of a bound method a bound method, so that a copy of its object has its own."""
    if isinstance(function, MethodType):
        bound: Callable[..., Any] = MethodType(_compiled_function(function.__func__, region), function.__self__)
        return bound
    compiled = region.entering(function)
    functools.update_wrapper(compiled, function, updated=("__dict__",) if hasattr(function, "__dict__") else ())
    compiled._smelt_region = region  # type: ignore[attr-defined]
    _originals[compiled] = function
    return compiled


def _compiled_module(model: torch.nn.Module, region: CompiledRegion, settings: dict[str, Any]) -> torch.nn.Module:
    """An object that is the model, but whose `forward` enters the region.

    Hooks stay where they are: `nn.Module.__call__` runs them round `forward` as ever. The original object is what the
    user's `forward` sees as `self`, so that `type(self)` and identity hold inside.

    Classes live until they are collected, a model is to go when nobody has it: so the class has it in a list, which is
    emptied when the compiled one goes.
    """
    original: list[Any] = [model]
    compiled: torch.nn.Module = object.__new__(_compiled_class(type(model), original, region, settings))
    object.__setattr__(compiled, "__dict__", model.__dict__)
    original.append(weakref.ref(compiled, lambda gone: original.clear()))
    return compiled


def _compiled_class(cls: Any, original: list[Any], region: CompiledRegion, settings: dict[str, Any]) -> type:
    """The class of what `original` begins with, of class `cls`, is compiled to.

    Other objects may come to be of it, or of classes made of it: copies, replicas, parametrizations. Each is its own
    model.
    """

    def model_of(self: torch.nn.Module) -> torch.nn.Module:
        return original[0] if original and original[0].__dict__ is self.__dict__ else self

    known: tuple[Any, Callable[..., Any]] = (None, model_of)

    def compiled_forward(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal known
        model = model_of(self)
        forward: Any = _forward_behind(compiled, type(model)) if isinstance(model, compiled) else type(model).forward
        seen, enter = known
        if seen is not forward:  # the first call, or the class has been given another
            enter = _entering(_forward_behind(compiled, type(model)), region)
            known = forward, enter
        return enter(model, *args, **kwargs)

    functools.update_wrapper(compiled_forward, cls.forward)
    mark_entered(compiled_forward, model_of, region.settings, region.fullgraph, of_method=True)
    opaque(compiled_forward)

    def reduce(self: torch.nn.Module, protocol: Any) -> Any:
        model = model_of(self)
        return cls.__reduce_ex__(self, protocol) if model is self else (_rebuild_module, (model, settings))

    def copied(self: torch.nn.Module) -> Any:
        model = model_of(self)
        if model is not self:
            return _rebuild_module(copy.copy(model), settings)
        alike = object.__new__(type(self))
        alike.__dict__.update(self.__dict__)
        return alike

    def set_attribute(self: torch.nn.Module, name: str, value: Any) -> None:
        model = model_of(self)
        if name == "__class__" and model is not self:  # a lazy module has its sizes, a parametrization came or went
            object.__setattr__(model, "__class__", value.__base__ if "_smelt_model" in vars(value) else value)
            if not hasattr(value, "_smelt_model"):
                value = _compiled_class(value, original, region, settings)
        if name == "forward":
            follow_own_forward()
        cls.__setattr__(self, name, value)

    members = {
        "forward": compiled_forward,
        "__setattr__": set_attribute,
        "__reduce_ex__": reduce,
        "__copy__": copied,
        "__prepare_scriptable__": model_of,  # `torch.jit.script` compiles the model, not what enters the region
        "__jit_unused_properties__": [*getattr(cls, "__jit_unused_properties__", ()), "_smelt_model"],
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "_smelt_region": region,
        "_smelt_model": property(model_of),
    }
    compiled: Any = type(cls.__name__, (cls,), members)

    def follow_own_forward() -> None:
        if "__call__" not in vars(compiled):
            compiled.__call__ = _compiled_call(cls.__call__, model_of, region)

    if original and "forward" in original[0].__dict__:
        follow_own_forward()
    return compiled  # type: ignore[no-any-return]


def _compiled_call(call: Callable[..., Any], model_of: Callable[..., Any], region: CompiledRegion) -> Any:
    """The `__call__` of a compiled model that has a `forward` of its own, as accelerate's mixed precision and placement
    and TRL's trainers give it one, before or after it is compiled: that hides any of its class, so the region is
    entered one step earlier, hooks included."""
    enter = region.entering(call)

    def compiled_call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return enter(model_of(self), *args, **kwargs)

    functools.update_wrapper(compiled_call, call)
    mark_entered(compiled_call, model_of, region.settings, region.fullgraph, of_method=True)
    return opaque(compiled_call)


def _forward_behind(compiled: type, kind: type) -> Any:
    """The `forward` of a class as it is written there, and not that of a compiled class it may be made of."""
    classes = kind.__mro__[kind.__mro__.index(compiled) + 1 :] if compiled in kind.__mro__ else kind.__mro__
    return next(vars(base)["forward"] for base in classes if "forward" in vars(base))


def _entering(forward: Any, region: CompiledRegion) -> Callable[..., Any]:
    """What calls a `forward`, as it is written in a class, with an object and its arguments."""
    if isinstance(forward, FunctionType):
        return region.entering(forward)
    bind = getattr(forward, "__get__", lambda model, kind: forward)
    return lambda model, *args, **kwargs: region.call(bind(model, type(model)), *args, **kwargs)


def _rebuild_module(model: torch.nn.Module, settings: dict[str, Any]) -> Any:
    return compile(model, **settings)


class _Disabled:
    """What `smelt.disable()` yields: a block in plain Python, or a decorator."""

    def __enter__(self) -> None:
        _native.Region.hold()

    def __exit__(self, *error: object) -> None:
        _native.Region.release()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return disable(function)


@overload
def disable() -> _Disabled: ...
@overload
def disable(function: Callable[..., Any]) -> Callable[..., Any]: ...
def disable(function: Callable[..., Any] | None = None) -> Callable[..., Any] | _Disabled:
    """Run `function` and everything it calls in plain Python, also when compiled code calls it. Usable as a decorator.

    `with smelt.disable():` does so for a block. If the block is inside a compiled function, the rest of that function
    runs in Python too; its callers stay compiled.
    """
    if function is None:
        return _Disabled()
    if not callable(function):
        raise SmeltError("SM001", f"smelt.disable takes a callable, not {type(function).__name__}")
    if isinstance(function, MethodType):  # a copy of its object has its own
        return MethodType(disable(function.__func__), function.__self__)

    @functools.wraps(function)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        return _native.suspended(function, *args, **kwargs)

    disabled._smelt_disable = True  # type: ignore[attr-defined]
    return disabled


def record(
    path: str | os.PathLike[str], title: str = "", *, profile: bool = False
) -> contextlib.AbstractContextManager[None]:
    """`with smelt.record("report.html"):` writes a page about everything this thread compiles inside the block.

    The page is written to `path` when the block ends, with the title `title`. With `profile=True` it also has the mean
    time of each kernel and library call in the block.
    """
    from smelt.explain.report import record as recording

    return recording(path, title, profile=profile)


def explain(function: Callable[..., Any], **settings: Any) -> "Callable[..., Explanation]":
    """`explain(function)(*args)` compiles a function again, runs it once, and returns an `Explanation`.

    `settings` are those of `smelt.compile`. `print()` of the explanation is a summary with suggestions; its
    `text(full=True)` has all details, `text(guards=True)` the guards, and `to_html(path)` writes a page. If a compiled
    function runs in eager because that is faster, the explanation has the reason.
    Call the result of `explain(function)` several times, with other arguments, to explain all calls together, with the
    causes of recompiles.
    """
    from smelt.explain.explanation import from_events

    compiled = compile(function, **settings)
    region = getattr(function, "_smelt_region", None)
    events: list[Event] = [Event("breaks", reason) for reason in region.why_left()] if region is not None else []

    def run(*args: Any, **kwargs: Any) -> "Explanation":
        with collect() as seen:
            compiled(*args, **kwargs)
        events.extend(seen)
        return from_events(events)

    return run


def verify(
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    backends: Sequence[str] = ("eager", "aot_eager", "llvm"),
    options: Mapping[str, Any] | None = None,
) -> "Verification":
    """Run `model(*args, **kwargs)` and its gradients in eager, in float64 and with each backend, and compare them.

    Results, gradients of parameters and arguments, and values that the program writes are compared. The model and the
    arguments do not change. `backends` are names, and `options` are the options of `smelt.compile`.
    """
    from smelt.explain.verify import Judge, check_callable
    from smelt.explain.verify import verify as run_verification

    check_callable(model)
    options = {**(options or {}), "compile": "blocking"}  # else eager would be compared with itself
    return run_verification(Judge(_original(model), args, kwargs or {}, compile), backends, options)


_FORGETTING = (
    ("smelt.pipeline.backward.compiled_backward", "forget_backwards"),
    ("smelt.pipeline.cache.pending_reuse", "forget"),
    ("smelt.codegen.build", "forget"),
    ("smelt.chips.registration", "forget"),
)


def reset() -> None:
    """Delete all compiled code and clear `smelt.counters`."""
    for region in list(_regions):
        region.reset()
    background = sys.modules.get("smelt.pipeline.background")
    if background is not None:
        background.wait()
    fake_tensor.forget()
    forget_lazy_programs()
    for name, forget in _FORGETTING:
        module = sys.modules.get(name)  # not loaded: it has nothing to forget
        if module is not None:
            getattr(module, forget)()
    counters.clear()
