"""`mode="max-speed"`: alternatives for one graph, tried by timing them; the fastest is kept, and remembered on disk.

    tuned(traced, Options(tune=True))   →   Options(tune=False, convolutions="library", recompute=False)

A choice is a field of `Options` and the values it may take. Choices are gone through in order: each value is compiled
with what was chosen before it, runs on numbers drawn for the purpose, forward and backward, and takes turns with the
best so far. A value that does not win clearly is left. Nothing of the program is touched: its tensors are not used,
random numbers are put back where they were, and a graph that calls anything that is not PyTorch's is not run at all.
Without `tune` nothing is ever timed.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from smelt.base import events
from smelt.base.fast_dataclass import dataclass
from smelt.base.options import Options
from smelt.device import random_state
from smelt.device.host_library import on_host
from smelt.ir.graph import Traced, placeholders
from smelt.ir.serialize import CannotStore
from smelt.ir.tensorspec import TensorSpec, spec_of
from smelt.meta.fake_tensor import without_caller_hooks
from smelt.pipeline.cache.keys import key_of
from smelt.runtime.autograd.differentiable import Flat
from smelt.runtime.cache import CacheFile, CacheStore, open_store

Compile = Callable[[Traced, Options], Flat]

clock = time.perf_counter
_WARM_UP, _ROUNDS = 2, 7
_SECONDS = 4.0  # spent on comparing two alternatives, at most about
_CLEARLY = 0.97  # of the time of the best so far


@dataclass(frozen=True, slots=True)
class Choice:
    """A field of `Options`, what it may be set to besides its default, and whether that matters for a graph."""

    name: str
    values: tuple[Any, ...]
    matters: Callable[[Traced], bool]


def _convolves(traced: Traced) -> bool:
    return any("conv" in str(getattr(node.target, "__name__", node.target)) for node in traced.graph.nodes)


def _multiplies(traced: Traced) -> bool:
    """Whether a graph on the host has products that kernels might compute faster."""
    on_host_alone = all(on_host(spec.device) for spec in _inputs(traced) if isinstance(spec, TensorSpec))
    names = (str(getattr(node.target, "__name__", node.target)) for node in traced.graph.nodes)
    return on_host_alone and any(product in name for name in names for product in _PRODUCTS)


def _trains(traced: Traced) -> bool:
    return any(isinstance(spec, TensorSpec) and spec.requires_grad for spec in _inputs(traced))


def _has_threads(traced: Traced) -> bool:
    return torch.get_num_threads() > 1


_PRODUCTS = ("linear", "mm", "matmul", "einsum", "attention")  # parts of names of functions
CHOICES = (
    Choice("convolutions", ("library", "products", "channels_last"), _convolves),
    Choice("products", ("own",), _multiplies),
    Choice("recompute", (False,), _trains),
    Choice("threads", (1,), _has_threads),
)


def tuned(traced: Traced, options: Options, compile_graph: Compile) -> Options:
    """The options that make a graph fastest, as an earlier process found or as timing says now."""
    options = replace(options, tune=False)
    choices = [choice for choice in CHOICES if _is_open(choice, options) and choice.matters(traced)]
    if not choices:
        return options
    if any(not isinstance(spec, TensorSpec) or spec.varies for spec in _inputs(traced)):
        events.emit("tuning", "a graph whose sizes vary is compiled as by default: no one size speaks for all")
        return options
    try:
        key = f"{key_of(traced, options)}\nchosen on {torch.get_num_threads()} threads"
    except CannotStore as reason:  # what is not PyTorch's own may do more than compute
        events.emit("tuning", f"nothing was tried: {reason}")
        return options
    store = open_store()
    known = None if store is None else _read(store, key)
    if known is not None or events.collecting():  # whoever collects events wants to see one way, not all of them
        return replace(options, **(known or {}))
    try:
        with events.timed("tuning"), random_state.kept(), without_caller_hooks():
            fastest = _search(traced, options, choices, compile_graph)
    except Exception as reason:  # numbers drawn at random are not what the program was made for
        events.emit("tuning", f"nothing was tried: the graph cannot be run on numbers of no meaning ({reason})")
        return options
    chosen = {choice.name: getattr(fastest, choice.name) for choice in choices}
    events.count("tuned_graphs")
    if store is not None:
        store.put(key, CacheFile({"chosen": chosen}))
    return fastest


def _is_open(choice: Choice, options: Options) -> bool:
    """Whether the user has left the choice to us."""
    if choice.name == "recompute" and options.memory_budget is not None:
        return False
    if choice.name in ("convolutions", "products") and options.library == "none":
        return False
    default = next(field.default for field in fields(Options) if field.name == choice.name)
    return bool(getattr(options, choice.name) == default)


def _read(store: CacheStore, key: str) -> Mapping[str, Any] | None:
    """What was chosen before; None if there is nothing, or nothing that could have been chosen."""
    stored = store.get(key)
    if stored is None:
        return None
    allowed = {choice.name: choice for choice in CHOICES}
    try:
        settings = stored.values["chosen"]
        defaults = Options()
        for name, value in settings.items():
            if value not in (getattr(defaults, name), *allowed[name].values):
                return None
    except (ValueError, KeyError, AttributeError, TypeError):
        return None
    return dict(settings)


def _search(traced: Traced, options: Options, choices: Sequence[Choice], compile_graph: Compile) -> Options:
    inputs = [_example(spec) for spec in _inputs(traced)]
    best, run = options, compile_graph(traced, options)
    for choice in choices:
        for value in choice.values:
            trial = replace(best, **{choice.name: value})
            other = compile_graph(traced, trial)
            before, now = _compare(run, other, inputs)
            better = now < before * _CLEARLY
            times = f"{now * 1e3:.3f} ms against {before * 1e3:.3f}"
            events.emit("tuning", f"{choice.name} = {value!r}: {times}, {'taken' if better else 'left'}")
            if better:
                best, run = trial, other
    return best


def _compare(one: Flat, other: Flat, inputs: list[Any]) -> tuple[float, float]:
    """Seconds of a step of each, taken in turns: the shortest, which a busy machine disturbs least."""
    for _ in range(_WARM_UP):
        for run in (one, other):
            _step(run, inputs)
    began = clock()
    shortest = [float("inf"), float("inf")]
    for _ in range(_ROUNDS):
        for number, run in enumerate((one, other)):
            before = clock()
            _step(run, inputs)
            shortest[number] = min(shortest[number], clock() - before)
        if clock() - began > _SECONDS:
            break
    return shortest[0], shortest[1]


def _step(run: Flat, inputs: list[Any]) -> None:
    """The graph, and its backward as a training step would have it: of the losses, if there are any."""
    results = [each for each in run(*inputs) if isinstance(each, torch.Tensor) and each.requires_grad]
    results = [each for each in results if each.dim() == 0] or results
    wanted = [each for each in inputs if isinstance(each, torch.Tensor) and each.requires_grad]
    if results and wanted:
        torch.autograd.grad(results, wanted, [torch.ones_like(each) for each in results], allow_unused=True)


def _inputs(traced: Traced) -> list[Any]:
    return [spec_of(node) for node in placeholders(traced.graph)]


def _example(spec: TensorSpec) -> torch.Tensor:
    """Numbers for an input: small ones round zero, and zero itself for what may be an index."""
    tensor = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=spec.device)
    with torch.no_grad():
        if spec.dtype.is_floating_point or spec.dtype.is_complex:
            tensor.normal_()
        else:
            tensor.zero_()
    return tensor.requires_grad_(spec.requires_grad)
