"""Operators on a chip's tensors, each by a kernel that is compiled for its kind of call when that first comes.

    call ── its very layouts known? ──► run                              a look-up, and launches
            its kind known? ──► bind to the sizes, run                   in a thread without the dispatcher's state
            else ──► compile; no kernel for it ──► the host computes     from then on without asking again
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from smelt.base import events
from smelt.base.errors import LibraryError, SmeltError
from smelt.base.fast_dataclass import dataclass
from smelt.chips.apart import calls_under_way, run_apart, run_here
from smelt.chips.decompositions import Circular, Refused, decomposed, decomposition_of
from smelt.chips.host_calls import HostCalls
from smelt.chips.kinds import Operands, graph_of, pattern_of, read
from smelt.chips.runtime import ChipDevice
from smelt.device.host_library import HOST
from smelt.dispatch import tensors
from smelt.dispatch.signatures import Signature
from smelt.ir.graph import GraphCompiler
from smelt.lazy.describe import Undescribed, describe_call
from smelt.lazy.steps import Fresh, Result, View, at
from smelt.meta.devices import tensors_in
from smelt.meta.effects import is_pointwise_op

aten = torch.ops.aten

_MOST = 50_000
"""So many calls are remembered by their layouts; then all are forgotten."""

_EMPTY = frozenset({aten.empty_like, aten.new_empty, aten.new_empty_strided, aten.empty_permuted})

_INDICES = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})


class _Unlike(Exception):
    """A result is not what the operator returns."""


Run = Callable[..., tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of calls with certain layouts: what they return, and what runs them, or why nothing does."""

    results: tuple[Result, ...]
    form: type | None
    run: Run | str
    is_circular: bool = False  # its decomposition says nothing


class OperatorCalls:
    """The operators of one chip."""

    def __init__(self, device: ChipDevice, compiler: GraphCompiler, host: HostCalls) -> None:
        self._device = device
        self._compiler = compiler
        self._host = host
        self._known: dict[Any, Known] = {}
        self._kinds: dict[Any, Run | str] = {}
        self._lock = threading.RLock()

    def forget(self) -> None:
        with self._lock:
            self._known.clear()
            self._kinds.clear()

    def call(self, known: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        operands, call = read(known, args, kwargs)
        layouts = [(each.shape, each.stride(), each.dtype, each.device.type) for each in operands.tensors]
        # Where views begin is part of what is known of them.
        key = (call, *layouts, *[each.storage_offset() for each in operands.tensors if known.is_view])
        kernel = self._known.get(key)
        is_new = kernel is None
        if kernel is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            kernel = self._known[key] = self._described(known, args, kwargs, operands, call)
        if isinstance(kernel.run, str):
            return self._without_kernel(known, args, kwargs, key, kernel)
        running = calls_under_way()
        if call in running:  # its kernels ask for it
            return self._host.fall_back(known, args, kwargs, "an index is out of range, or arguments share memory")
        running.append(call)
        try:
            results = run_apart(kernel.run, operands.inputs()) if is_new else run_here(kernel.run, operands.inputs())
        finally:
            running.pop()
        return _returned(kernel, results, args, kwargs)

    def _without_kernel(
        self, known: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: Any, kind: Known
    ) -> Any:
        """By other operators, or by the host, which is not counted where there is hardly anything to compute."""
        assert isinstance(kind.run, str)
        if _is_tiny(tensors_in((*args, *kwargs.values()))):
            return self._host.call(known, args, kwargs)
        why = kind.run
        is_described = bool(kind.results)
        rule = None
        if not kind.is_circular:
            dtypes = [each.layout[3] for each in kind.results if isinstance(each, Fresh)]
            rule = decomposition_of(known.operator, (*args, *kwargs.values()), dtypes, is_described)
        if rule is not None:
            try:
                results = _unshared(known, decomposed(known.operator, rule, args, kwargs), args, kwargs)
                return _returned(kind, results, args, kwargs) if is_described else _as_returned(known.operator, results)
            except Circular as error:
                if str(error) != str(known.operator):
                    raise  # it is another's, which is in the middle of this one
                self._known[key] = replace(kind, is_circular=True)
            except Refused as error:  # which may be for what the data are
                why = f"{why}; by other operators: {error}"
            except (NotImplementedError, _Unlike):
                self._known[key] = replace(kind, is_circular=True)
        return self._host.fall_back(known, args, kwargs, why)

    def _described(
        self, known: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any], operands: Operands, call: Any
    ) -> Known:
        try:
            results, form = describe_call(known, args, kwargs, HOST)
        except Undescribed as reason:
            return Known((), None, f"nothing describes its results: {reason}")
        if any(isinstance(each, View) for each in results):
            return Known(results, form, lambda *_: ())
        if known.operator.overloadpacket in _EMPTY or _is_nothing(known, operands, results, args, kwargs):
            return Known(results, form, lambda *_: self._empty(results))
        kind = (call, tuple([pattern_of(each) for each in operands.tensors]))
        with self._lock:
            if kind not in self._kinds:
                self._kinds[kind] = self._compiled(known, args, kwargs, operands, results, form)
            return Known(results, form, self._kinds[kind])

    def _compiled(
        self,
        known: Signature,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        operands: Operands,
        results: tuple[Result, ...],
        form: type | None,
    ) -> Run | str:
        why_not = self._why_not(operands, results)
        if why_not is not None:
            return why_not
        fresh = [isinstance(each, Fresh) for each in results]
        traced = graph_of(known, args, kwargs, operands, fresh, form is None, static=False)
        try:
            run: Run = run_apart(self._compiler, [traced])
        except (SmeltError, NotImplementedError) as error:
            if getattr(error, "code", "") == "SM071":
                raise  # the chip itself
            if not isinstance(error, LibraryError):
                return str(error)
            return "; ".join(f"{name} {reason}" for name, reason in error.operators.items())
        events.count("chip_calls")
        return run

    def _empty(self, results: tuple[Result, ...]) -> tuple[torch.Tensor, ...]:
        layouts = [each.layout for each in results if isinstance(each, Fresh)]
        return tuple([self._device.new(shape, stride, dtype) for shape, stride, _, dtype in layouts])

    def _why_not(self, operands: Operands, results: tuple[Result, ...]) -> str | None:
        has = self._device.target.dtypes
        dtypes = {str(each.dtype).removeprefix("torch.") for each in operands.tensors}
        dtypes |= {str(each.layout[3]).removeprefix("torch.") for each in results if isinstance(each, Fresh)}
        missing = sorted(dtypes - set(has)) if has else []
        return f"the chip has no {', '.join(missing)}" if missing else None


def _is_nothing(
    known: Signature, operands: Operands, results: tuple[Result, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bool:
    """Whether no element is computed or written. Indices are checked even so, if there are any."""
    fresh_layouts = [each.layout for each in results if isinstance(each, Fresh)]
    named = (*zip(known.names, args, strict=False), *kwargs.items())
    written = [value for name, value in named if name in known.written]
    if not (fresh_layouts or written) or any(0 not in shape for shape, *_ in fresh_layouts):
        return False
    # The first is what is looked up in.
    read = [each for each in operands.tensors[1:] if not any(each is one for one in written)]
    if not is_pointwise_op(known.operator) and any(each.dtype in _INDICES and each.numel() for each in read):
        return False
    return all(isinstance(each, torch.Tensor) and not each.numel() for each in written)


def _is_tiny(tensors: list[torch.Tensor]) -> bool:
    """Whether none has more than one element. Such calls are worth no kernel, and copy next to nothing."""
    return bool(tensors) and all(each.numel() <= 1 for each in tensors)


def _unshared(
    known: Signature, results: tuple[Any, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Results with memory of their own, where the operator is no view: what computes them may return a view."""
    if known.written:
        return results
    storages = {each.untyped_storage()._cdata for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)}
    return tuple([
        each.clone() if isinstance(each, torch.Tensor) and each.untyped_storage()._cdata in storages else each
        for each in results
    ])  # fmt: skip


def _returned(known: Known, computed: tuple[Any, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    fresh = iter(computed)
    results: list[Any] = []
    for result in known.results:
        if isinstance(result, Fresh):
            results.append(_fitting(next(fresh), result))
        elif isinstance(result, View):
            results.append(_view(result, at(result.path, args, dict(kwargs))))
        else:
            results.append(None if result is None else at(result.path, args, dict(kwargs)))
    if known.form is None:
        return results[0] if results else None
    return known.form(results)


def _as_returned(operator: torch._ops.OpOverload, results: tuple[Any, ...]) -> Any:
    """Results of which nothing was known before, in the form that the operator's schema says."""
    returns = operator._schema.returns
    if len(returns) == 1 and str(returns[0].type) == "List[Tensor]":
        return list(results)
    return results[0] if len(returns) == 1 else results


def _fitting(computed: torch.Tensor, result: Fresh) -> torch.Tensor:
    """A result with the strides that PyTorch gives it."""
    shape, stride, _, dtype = result.layout
    if computed.stride() == stride and computed.shape == shape and computed.dtype == dtype:
        return computed
    if computed.shape != shape or computed.dtype != dtype:
        raise _Unlike
    if all(size < 2 or one == other for size, one, other in zip(shape, computed.stride(), stride, strict=True)):
        return tensors.view(computed, shape, stride, int(computed.storage_offset()))
    return torch.empty_strided(shape, stride, dtype=dtype, device=computed.device).copy_(computed)


def _view(result: View, base: torch.Tensor) -> torch.Tensor:
    shape, stride, offset, dtype = result.layout
    if dtype == base.dtype:
        return tensors.view(base, shape, stride, offset)
    seen: torch.Tensor = tensors.view_as(base, dtype, shape, stride, offset)
    return seen
