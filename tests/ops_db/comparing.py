"""One call of an operator, eagerly and compiled: values, gradients, layouts, and what else a caller could notice.

    compare(torch.add, (x, y), {"alpha": 2}).wrong  → [] or ["output 0: strides (1, 3), eager has (3, 1)", ...]

`aot_eager` runs PyTorch's own kernels, so its numbers must be eager's, bit for bit, and so must be all that a caller
could see of the tensors. Generated code rounds otherwise: its numbers are held to the design's rule, against the same
call in float64 at most twice eager's error and a few ulp (`accuracy`).
"""

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

import smelt
from smelt.base import events
from smelt.base.errors import LibraryError
from tests.ops_db.accuracy import RUNS, Change, Mode, Results, eager_errors, off, worst
from tests.targets import random_states, reseed

_DOUBLE = (torch.float64, torch.complex128)
_COMPLEX = {torch.float64: torch.complex128, torch.float32: torch.complex64}


@dataclass(frozen=True)
class Found:
    """What differs from eager, the reasons for which anything was left to PyTorch, and what was refused with
    `library="none"`."""

    wrong: list[str]
    fallbacks: list[str]
    refused: list[str] = field(default_factory=list)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested tuples, lists and dicts, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def rebuilt(
    value: Any, change: Callable[[torch.Tensor], Any], named: Callable[[torch.dtype], torch.dtype] = lambda dtype: dtype
) -> Any:
    """The same nesting with every tensor changed, and every dtype."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, torch.dtype):
        return named(value)
    if isinstance(value, list):
        return [rebuilt(item, change, named) for item in value]
    if isinstance(value, tuple):
        items = [rebuilt(item, change, named) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, dict):
        return {key: rebuilt(item, change, named) for key, item in value.items()}
    return value


def fresh(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the layout and `requires_grad` of a sample's tensor."""
    if tensor.layout is not torch.strided or not tensor.numel() or 0 in tensor.stride():
        made = tensor.detach().clone()
    else:
        room = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        memory = torch.zeros(max(room, 0), dtype=tensor.dtype, device=tensor.device)
        made = memory.as_strided(tensor.shape, tensor.stride()).copy_(tensor.detach())
    return made.requires_grad_(tensor.requires_grad)


def changed(value: Any, change: Change, dtype: torch.dtype | None) -> Any:
    """Arguments with other numbers in their tensors and, given a `dtype`, with floats of that one, those that are asked
    for by name included; laid out and requiring gradients as before."""

    def one(tensor: torch.Tensor) -> torch.Tensor:
        numbers = change(tensor.detach())
        if dtype is not None and (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
            numbers = numbers.to(_COMPLEX[dtype] if tensor.dtype.is_complex else dtype)
        if tensor.layout is torch.strided and numbers.dtype is tensor.dtype:
            made = fresh(tensor.detach())
            return made.copy_(numbers).requires_grad_(tensor.requires_grad)
        return numbers.clone().requires_grad_(tensor.requires_grad)

    def named(found: torch.dtype) -> torch.dtype:
        if dtype is None or not (found.is_floating_point or found.is_complex):
            return found
        return _COMPLEX[dtype] if found.is_complex else dtype

    return rebuilt(value, one, named)


LAZY = "lazy"
DEVICES = frozenset({LAZY, "sim", "vk"})
"""Backends that are none: the operator is called on tensors of a device of ours, the lazy one or a chip."""


def on_device(value: Any, name: str) -> Any:
    """Arguments on a device of ours, laid out and requiring gradients as they were."""

    def one(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is not torch.strided:
            return tensor
        room = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        if not tensor.numel() or 0 in tensor.stride():
            made = tensor.detach().to(name)
        else:
            memory = torch.zeros(max(room, 0), dtype=tensor.dtype, device=name)
            made = memory.as_strided(tensor.shape, tensor.stride()).copy_(tensor.detach())
        return made.requires_grad_(tensor.requires_grad)

    def placed(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(*map(placed, value)) if hasattr(value, "_fields") else type(value)(map(placed, value))
        if isinstance(value, dict):
            return {key: placed(item) for key, item in value.items()}
        is_host = isinstance(value, str | torch.device) and str(value) == "cpu"
        return torch.device(name, 0) if is_host else value

    return placed(rebuilt(value, one))


class Outcome:
    """What one call gave: outputs, the inputs after it, gradients of first and, if asked, of second order; or what it
    raised, and when."""

    def __init__(
        self,
        call: Callable[..., Any],
        given: tuple[Any, ...],
        *,
        second: bool = False,
        tangents: Change | None = None,
        mode: Mode | None = None,
    ) -> None:
        self.mode = mode or nullcontext()
        self.change_tangents = tangents or (lambda tensor: tensor)
        self.error: BaseException | None = None
        self.failed = ""
        self.outputs: list[torch.Tensor] = []
        self.inputs: list[torch.Tensor] = []
        self.gradients: list[torch.Tensor | None] = []
        self.seconds: list[torch.Tensor | None] = []
        self.returned: Any = None
        reseed(0)
        try:
            self.failed = "forward"
            with self.mode:
                self.returned = call(*given)
            self.random = random_states()
            self.outputs = list(tensors_in(self.returned))
            self.inputs = list(tensors_in(given))
            self.failed = "backward"
            self._differentiate(second)
            self.failed = ""
        except Exception as error:
            self.error = error

    @property
    def counts(self) -> list[int]:
        """How many outputs, inputs, gradients of first and of second order there are."""
        return [len(self.outputs), len(self.inputs), len(self.gradients), len(self.seconds)]

    @property
    def tensors(self) -> list[torch.Tensor | None]:
        """All of them in a row."""
        return [*self.outputs, *self.inputs, *self.gradients, *self.seconds]

    @property
    def names(self) -> list[str]:
        kinds = zip(("output", "input", "gradient", "second"), self.counts, strict=True)
        return [f"{kind} {number}" for kind, count in kinds for number in range(count)]

    def _differentiate(self, second: bool) -> None:
        chosen = [out for out in self.outputs if out.requires_grad and out.layout is torch.strided]
        wanted = [tensor for tensor in self.inputs if tensor.requires_grad and tensor.is_leaf]
        if not chosen or not wanted:
            return
        generator = torch.Generator().manual_seed(7)
        tangents = [_tangent(out, generator, self.change_tangents).requires_grad_(second) for out in chosen]
        with self.mode:
            self.gradients = list(torch.autograd.grad(chosen, wanted, tangents, allow_unused=True, create_graph=second))
        firsts = [gradient for gradient in self.gradients if gradient is not None and gradient.requires_grad]
        if not second or not firsts:
            return
        self.failed = "second backward"
        tangents_of_firsts = [_tangent(gradient, generator, self.change_tangents) for gradient in firsts]
        wanted += tangents
        with self.mode:
            self.seconds = list(torch.autograd.grad(firsts, wanted, tangents_of_firsts, allow_unused=True))


def _tangent(out: torch.Tensor, generator: torch.Generator, change: Change) -> torch.Tensor:
    dtype = torch.complex128 if out.dtype.is_complex else torch.float64
    # Rounded to bfloat16, so that every dtype is given the same numbers.
    drawn = torch.complex64 if out.dtype.is_complex else torch.float32
    made = torch.randn(out.shape, generator=generator, dtype=drawn, device="cpu")
    if not out.dtype.is_complex:
        made = change(made.to(torch.bfloat16))
    # In the layout of what it belongs to: one that comes otherwise is laid out so, and libraries round by layout.
    return torch.empty_like(out, requires_grad=False).copy_(made.to(dtype))


def compare(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    backend: str = "llvm",
    values: bool = True,
    random: bool = False,
    second: bool = False,
    ulps: int = 0,
    options: Mapping[str, Any] | None = None,
    precise: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
) -> Found:
    """Eager and compiled side by side. Without `values` only metadata is looked at; where numbers must be eager's own,
    they may be off by `ulps` of the tensor's largest. `options` are the compiler's. `precise` computes the result in
    many digits, of the first argument and eager's result, where eager's float64 is not the truth."""

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return function(*args, **kwargs)

    def given() -> tuple[Any, ...]:
        made: tuple[Any, ...] = rebuilt((args, copy.copy(kwargs)), fresh)
        return made

    exact = backend != "llvm" and backend not in DEVICES
    random = random and backend not in DEVICES  # they are drawn as eager draws them
    # Generated code for GPUs draws what eager draws there; on the host it has an order of its own.
    random = random and (exact or not any(tensor.is_cuda for tensor in tensors_in((args, kwargs))))
    eager = Outcome(call, given(), second=second)
    with events.collect() as seen:
        if backend in DEVICES:
            mine = Outcome(call, on_device(given(), backend), second=second)
        else:
            mine = Outcome(smelt.compile(call, backend=backend, options=dict(options or {})), given(), second=second)
    fallbacks = [event.text for event in seen if _tells_of_eager(event)]
    if isinstance(mine.error, LibraryError) and eager.error is None:
        return Found([], fallbacks, [f"{mine.failed}: {name}: {why}" for name, why in mine.error.operators.items()])
    if eager.error is not None or mine.error is not None:
        return Found(_errors(mine, eager, exact=exact), fallbacks)
    found = _calls(mine, eager, exact=exact)
    if exact or not values or random:
        return Found([*found, *_tensors(mine, eager, values=values and not random, exact=exact, ulps=ulps)], fallbacks)

    def run(
        change: Change, dtype: torch.dtype | None, tangents: bool = False, mode: Mode | None = None
    ) -> list[torch.Tensor | None]:
        given = changed((args, copy.copy(kwargs)), change, dtype)
        return Outcome(call, given, second=second, tangents=change if tangents else None, mode=mode).tensors

    double = any(tensor.dtype in _DOUBLE for tensor in (*tensors_in((args, kwargs)), *eager.outputs))
    true = None if double else run(lambda tensor: tensor, torch.float64)
    if precise is not None and true is not None and true[0] is not None:
        true[0] = precise(args[0].detach().double(), true[0])
    beyond = _tensors(mine, eager, true)
    errors: Results = []
    for seeds in itertools.pairwise(RUNS):
        if beyond:
            more = eager_errors(run, double=double, seeds=range(*seeds))
            errors = worst(errors, more) if errors else more
            beyond = _tensors(mine, eager, true, errors)
    return Found([*found, *beyond], fallbacks)


def _tells_of_eager(event: events.Event) -> bool:
    """Texts that are costly to make show a graph or a program, and are not asked for."""
    if event.channel == "fallback":  # of a chip to the host
        return True
    if event.channel == LAZY:
        return isinstance(event.words, str) and " runs immediately: " in event.words
    return event.channel == "breaks" or (isinstance(event.words, str) and "falls back to eager" in event.words)


def _tensors(
    mine: Outcome,
    eager: Outcome,
    true: list[torch.Tensor | None] | None = None,
    errors: list[torch.Tensor | None] | None = None,
    *,
    values: bool = True,
    exact: bool = False,
    ulps: int = 0,
) -> list[str]:
    """What differs in the tensors. `true` are the precise ones and `errors` how far eager is off, where known."""
    if mine.counts != eager.counts:
        return [f"{mine.counts} outputs, inputs and gradients, eager has {eager.counts}"]
    found: list[str] = []
    count = len(eager.tensors)
    known = [given if given is not None and len(given) == count else [None] * count for given in (true, errors)]
    for one, other, precise, error, name in zip(mine.tensors, eager.tensors, *known, eager.names, strict=True):
        own = name.startswith(("output", "input"))
        wrong = difference(one, other, precise, error, values=values, strides=own, exact=exact, ulps=ulps)
        found += [f"{name}: {text}" for text in wrong]
    return found


def _errors(mine: Outcome, eager: Outcome, *, exact: bool) -> list[str]:
    """Both must raise the same, at the same time."""
    same = type(eager.error) is type(mine.error) and eager.failed == mine.failed
    if same and not (exact and str(mine.error) != str(eager.error)):
        return []
    told = [repr(error).partition("\\n")[0][:300] for error in (mine.error, eager.error)]
    return [f"{mine.failed} raises {told[0]}, eager's {eager.failed} {told[1]}"]


def _calls(mine: Outcome, eager: Outcome, *, exact: bool) -> list[str]:
    """What differs beside the tensors themselves."""
    found: list[str] = []
    if type(eager.returned) is not type(mine.returned):
        found.append(f"returns {type(mine.returned)}, eager {type(eager.returned)}")
    if exact and not all(map(torch.equal, mine.random, eager.random)):
        found.append("leaves another state of the random numbers")
    versions = [[tensor._version for tensor in outcome.inputs] for outcome in (mine, eager)]
    if versions[0] != versions[1]:
        found.append(f"leaves inputs at versions {versions[0]}, eager at {versions[1]}")
    if _sharing(mine) != _sharing(eager):
        found.append(f"shares memory as {_sharing(mine)}, eager as {_sharing(eager)}")
    return found


def _sharing(outcome: Outcome) -> list[int]:
    """For every tensor that went in or came out, the first one that lies in the same memory."""
    places = [
        tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided and tensor.numel() else -number
        for number, tensor in enumerate([*outcome.inputs, *outcome.outputs], 1)
    ]
    return [places.index(place) for place in places]


def difference(
    mine: torch.Tensor | None,
    eager: torch.Tensor | None,
    precise: torch.Tensor | None = None,
    error: torch.Tensor | None = None,
    *,
    values: bool = True,
    strides: bool = True,
    exact: bool = False,
    ulps: int = 0,
) -> list[str]:
    """How a tensor differs from eager's, in metadata or by more than the rule allows; with `exact`, at all.

    Strides of gradients are nobody's business: what accumulates them gives them the layout of their parameter.
    """
    if mine is None or eager is None:
        return [] if mine is eager else [f"is {mine}, eager {eager}"]
    if mine.layout is not torch.strided or eager.layout is not torch.strided:
        if mine.layout is not eager.layout:
            return [f"layout {mine.layout}, eager {eager.layout}"]
        return difference(mine.to_dense(), eager.to_dense(), None, values=values, exact=exact, ulps=ulps)
    found = [
        f"{name} {one}, eager has {other}"
        for name, one, other in (
            ("shape", tuple(mine.shape), tuple(eager.shape)),
            ("dtype", mine.dtype, eager.dtype),
            ("device", torch.device("cpu") if mine.device.type in DEVICES else mine.device, eager.device),
            ("requires_grad", mine.requires_grad, eager.requires_grad),
            ("conj", mine.is_conj(), eager.is_conj()),
            ("neg", mine.is_neg(), eager.is_neg()),
            ("is_leaf", mine.is_leaf, eager.is_leaf),
            ("grad_fn", mine.grad_fn is not None, eager.grad_fn is not None),
        )
        if one != other
    ]
    if strides and mine.stride() != eager.stride() and eager.numel():
        found.append(f"strides {mine.stride()}, eager has {eager.stride()} (shape {tuple(eager.shape)})")
    if found or not values:
        return found
    if mine.device.type in DEVICES:
        mine = mine.detach().cpu()
    mine, eager = mine.detach().resolve_conj().resolve_neg(), eager.detach().resolve_conj().resolve_neg()
    if not (eager.dtype.is_floating_point or eager.dtype.is_complex):
        return [] if torch.equal(mine, eager) else [f"is {mine.flatten()[:8]}, eager {eager.flatten()[:8]}"]
    if exact:
        return _bits(mine, eager, ulps)
    return off(mine, eager, precise, error)


def _bits(mine: torch.Tensor, eager: torch.Tensor, ulps: int) -> list[str]:
    """Equal numbers; any NaN is as good as another. Zeros may differ in their sign."""
    if eager.dtype.is_complex:
        mine, eager = torch.view_as_real(mine), torch.view_as_real(eager)
    epsilon = torch.finfo(eager.dtype).eps
    wrong = (mine != eager) & ~(torch.isnan(mine) & torch.isnan(eager))
    if ulps and wrong.any():
        usual = torch.isfinite(mine) & torch.isfinite(eager)
        wrong &= ~usual | ((mine - eager).abs() > ulps * epsilon * eager[usual].abs().max())
    if not wrong.any():
        return []
    off = ((mine - eager).abs() / (eager.abs() * epsilon)).nan_to_num(torch.inf).masked_fill(~wrong, -1)
    pick = [values.flatten()[off.argmax()].item() for values in (mine, eager, off)]
    return [f"{int(wrong.sum())} of {wrong.numel()} differ, worst: {pick[0]!r}, eager {pick[1]!r}, {pick[2]:.2g} eps"]
