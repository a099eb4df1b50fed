"""Library functions written in C, once more in Python, so that capture can interpret them.

Calls of the keys of `POLYFILLS` are interpreted as calls of their values; what is lazy there is a generator here, and
what is taken at once there is taken at once here. Where the graph ends while such a generator runs, capture begins
again and lets Python call the original.

    itertools.chain(a, b)   →   chain(a, b), whose `yield from` the interpreter follows
"""

import bisect
import collections
import functools
import inspect
import itertools
import operator
import traceback
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from smelt import _native
from smelt.base.torch_internals import internal
from smelt.capture.model.marks import DISABLED, unsupported
from smelt.capture.polyfills.optimizers import STAND_INS
from smelt.device.host_library import HOST

_MISSING: Any = object()


class CompletedWork:
    """What a collective with `async_op=True` returns, of one that the graph itself waits for."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None


def chain(*iterables: Iterable[Any]) -> Iterator[Any]:
    for each in iterables:
        yield from each


def chain_from_iterable(kind: type, iterables: Iterable[Iterable[Any]], /) -> Iterator[Any]:
    for each in iterables:
        yield from each


def fromkeys(kind: type, iterable: Iterable[Any], value: Any = None, /) -> Any:
    mapping: Any = kind()
    for key in iterable:
        mapping[key] = value
    return mapping


def count_elements(mapping: Any, iterable: Iterable[Any]) -> None:
    for item in iterable:
        mapping[item] = mapping.get(item, 0) + 1


def bisect_left(items: Any, item: Any, lo: int = 0, hi: int | None = None, *, key: Any = None) -> int:
    return _bisected(items, lo, hi, lambda other: (other if key is None else key(other)) < item)


def bisect_right(items: Any, item: Any, lo: int = 0, hi: int | None = None, *, key: Any = None) -> int:
    return _bisected(items, lo, hi, lambda other: not item < (other if key is None else key(other)))


def _bisected(items: Any, low: int, high: int | None, is_before: Callable[[Any], bool]) -> int:
    if low < 0:
        raise ValueError("lo must be non-negative")
    high = len(items) if high is None else high
    while low < high:
        middle = (low + high) // 2
        if is_before(items[middle]):
            low = middle + 1
        else:
            high = middle
    return low


def product(*iterables: Iterable[Any], repeat: int = 1) -> Iterator[Any]:
    if repeat < 0:
        raise ValueError("repeat argument cannot be negative")
    pools = [tuple(each) for each in iterables] * repeat
    return _product(pools, ())


def _product(pools: list[tuple[Any, ...]], before: tuple[Any, ...]) -> Iterator[Any]:
    if not pools:
        yield before
        return
    for item in pools[0]:
        yield from _product(pools[1:], (*before, item))


def islice(iterable: Iterable[Any], *bounds: int | None) -> Iterator[Any]:
    cut = slice(*bounds)
    if cut.step == 0:
        raise ValueError("Step for islice() must be a positive integer or None.")
    return _islice(iter(iterable), cut.start or 0, cut.stop, cut.step or 1)


def _islice(source: Iterator[Any], start: int, stop: int | None, step: int) -> Iterator[Any]:
    position, wanted = 0, start
    while True:
        while position < wanted:
            if next(source, _MISSING) is _MISSING:
                return
            position += 1
        item = _MISSING if stop is not None and position >= stop else next(source, _MISSING)
        if item is _MISSING:
            return
        position += 1
        wanted += step
        if stop is not None and wanted > stop:
            wanted = stop
        yield item


def count(start: Any = 0, step: Any = 1) -> Iterator[Any]:
    while True:
        yield start
        start = start + step


def repeat(object: Any, times: int = _MISSING) -> Iterator[Any]:
    if times is _MISSING:
        while True:
            yield object
    for _ in range(times):
        yield object


def accumulate(iterable: Iterable[Any], func: Any = None, *, initial: Any = None) -> Iterator[Any]:
    source = iter(iterable)
    return _accumulate(source, operator.add if func is None else func, initial)


def _accumulate(source: Iterator[Any], function: Callable[[Any, Any], Any], total: Any) -> Iterator[Any]:
    if total is None:
        total = next(source, _MISSING)
        if total is _MISSING:
            return
    yield total
    for item in source:
        total = function(total, item)
        yield total


def zip_longest(*iterables: Iterable[Any], fillvalue: Any = None) -> Iterator[Any]:
    return _zip_longest([iter(each) for each in iterables], fillvalue)


def _zip_longest(sources: list[Any], fill: Any) -> Iterator[Any]:
    left = len(sources)
    while left:
        items = []
        for position in range(len(sources)):
            item = _MISSING if sources[position] is None else next(sources[position], _MISSING)
            if item is _MISSING and sources[position] is not None:
                sources[position] = None
                left -= 1
                if not left:
                    return
            items.append(fill if item is _MISSING else item)
        yield tuple(items)


def pairwise(iterable: Iterable[Any], /) -> Iterator[Any]:
    return _pairwise(iter(iterable))


def _pairwise(source: Iterator[Any]) -> Iterator[Any]:
    before = next(source, _MISSING)
    if before is _MISSING:
        return
    for item in source:
        yield before, item
        before = item


def combinations(iterable: Iterable[Any], r: int) -> Iterator[Any]:
    return _combinations(*_pool(iterable, r))


def _combinations(pool: tuple[Any, ...], r: int) -> Iterator[Any]:
    yield from _chosen(pool, r, lambda pool, place: pool[place + 1 :])


def permutations(iterable: Iterable[Any], r: int | None = None) -> Iterator[Any]:
    return _permutations(*_pool(iterable, r))


def _permutations(pool: tuple[Any, ...], r: int) -> Iterator[Any]:
    yield from _chosen(pool, r, lambda pool, place: pool[:place] + pool[place + 1 :])


def combinations_with_replacement(iterable: Iterable[Any], r: int) -> Iterator[Any]:
    return _combinations_with_replacement(*_pool(iterable, r))


def _combinations_with_replacement(pool: tuple[Any, ...], r: int) -> Iterator[Any]:
    yield from _chosen(pool, r, lambda pool, place: pool[place:])


def _pool(iterable: Iterable[Any], r: int | None) -> tuple[tuple[Any, ...], int]:
    pool = tuple(iterable)
    if r is not None and r < 0:
        raise ValueError("r must be non-negative")
    return pool, len(pool) if r is None else r


def _chosen(pool: tuple[Any, ...], r: int, left: Callable[[tuple[Any, ...], int], tuple[Any, ...]]) -> Iterator[Any]:
    """Tuples of `r` items; `left` says what the next may be, after the one at a place of the pool."""
    if r == 0:
        yield ()
        return
    for place in range(len(pool)):
        for rest in _chosen(left(pool, place), r - 1, left):
            yield (pool[place], *rest)


def compress(data: Iterable[Any], selectors: Iterable[Any]) -> Iterator[Any]:
    return _compress(iter(data), iter(selectors))


def _compress(data: Iterator[Any], selectors: Iterator[Any]) -> Iterator[Any]:
    for item in data:
        selected = next(selectors, _MISSING)
        if selected is _MISSING:
            return
        if selected:
            yield item


def takewhile(predicate: Callable[[Any], Any], iterable: Iterable[Any], /) -> Iterator[Any]:
    for item in iterable:
        if not predicate(item):
            return
        yield item


def dropwhile(predicate: Callable[[Any], Any], iterable: Iterable[Any], /) -> Iterator[Any]:
    source = iter(iterable)
    for item in source:
        if not predicate(item):
            yield item
            break
    yield from source


def starmap(function: Callable[..., Any], iterable: Iterable[Any], /) -> Iterator[Any]:
    for args in iterable:
        yield function(*args)


def filter_(function: Any, iterable: Iterable[Any], /) -> Iterator[Any]:
    return _filter(bool if function is None else function, iter(iterable))


def _filter(function: Callable[[Any], Any], source: Iterator[Any]) -> Iterator[Any]:
    for item in source:
        if function(item):
            yield item


def filterfalse(function: Any, iterable: Iterable[Any], /) -> Iterator[Any]:
    return _filterfalse(bool if function is None else function, iter(iterable))


def _filterfalse(function: Callable[[Any], Any], source: Iterator[Any]) -> Iterator[Any]:
    for item in source:
        if not function(item):
            yield item


def groupby(iterable: Iterable[Any], key: Any = None) -> Iterator[Any]:
    return _groupby(iter(iterable), key)


def _groupby(source: Iterator[Any], key: Any) -> Iterator[Any]:
    state: dict[str, Any] = {"key": None, "item": None, "begun": False, "waiting": False, "group": 0}
    target = None
    while True:
        state["group"] += 1
        while not state["begun"] or (state["group"] > 1 and _same_key(target, state["key"])):
            try:
                item = next(source)
            except StopIteration:
                return
            state.update(key=item if key is None else key(item), item=item, begun=True, waiting=True)
        target = state["key"]
        yield target, _group(source, key, state, target, state["group"])


def _group(source: Iterator[Any], key: Any, state: dict[str, Any], target: Any, number: int) -> Iterator[Any]:
    """One group: it ends with its key, or as soon as the next group is asked for."""
    while state["group"] == number:
        if not state["waiting"]:
            try:
                item = next(source)
            except StopIteration:
                return
            state.update(key=item if key is None else key(item), item=item, waiting=True)
        if not _same_key(target, state["key"]):
            return
        state["waiting"] = False
        yield state["item"]


def _same_key(one: Any, other: Any) -> Any:
    return one == other or (one != one and one is other)  # NaN is its own equal


def tee(iterable: Iterable[Any], n: int = 2, /) -> tuple[Iterator[Any], ...]:
    if n < 0:
        raise ValueError("n must be >= 0")
    source = iter(iterable)
    taken: list[Any] = []
    return tuple([_taking(source, taken) for _ in range(n)])


def _taking(source: Iterator[Any], taken: list[Any]) -> Iterator[Any]:
    place = 0
    while True:
        if place == len(taken):
            try:
                item = next(source)
            except StopIteration:
                return
            taken.append(item)
        yield taken[place]
        place += 1


def cycle(iterable: Iterable[Any], /) -> Iterator[Any]:
    kept = []
    for item in iterable:
        yield item
        kept.append(item)
    while kept:
        yield from kept


def reversed_(sequence: Any, /) -> Iterator[Any]:
    """Of an object that is a sequence by its methods alone."""
    return _reversed(sequence, len(sequence))


def _reversed(sequence: Any, size: int) -> Iterator[Any]:
    for place in range(size - 1, -1, -1):
        try:
            item = sequence[place]
        except (IndexError, StopIteration):
            return
        yield item


def by_place(sequence: Any) -> Iterator[Any]:
    """`iter` of an object that has items and no `__iter__`."""
    place = 0
    while True:
        try:
            item = sequence[place]
        except (IndexError, StopIteration):
            return
        yield item
        place += 1


def until(function: Callable[[], Any], sentinel: Any) -> Iterator[Any]:
    """`iter(function, sentinel)`."""
    while True:
        try:
            item = function()
        except StopIteration:
            return
        if sentinel is item or sentinel == item:
            return
        yield item


def reduce(function: Callable[[Any, Any], Any], iterable: Iterable[Any], initial: Any = _MISSING, /) -> Any:
    source = iter(iterable)
    total = next(source, _MISSING) if initial is _MISSING else initial
    if total is _MISSING:
        raise TypeError("reduce() of empty iterable with no initial value")
    for item in source:
        total = function(total, item)
    return total


def format_exception_only(error: Any, value: Any = _MISSING) -> list[str]:
    error = error if value is _MISSING else value
    kind = type(error)
    looked_up = (SyntaxError, NameError, AttributeError, ImportError, BaseExceptionGroup)  # worded with more than that
    if not issubclass(kind, BaseException) or issubclass(kind, looked_up) or hasattr(error, "__notes__"):
        unsupported("traceback.format_exception_only")
    own = kind.__module__ in ("__main__", "builtins")
    name, text = kind.__qualname__ if own else f"{kind.__module__}.{kind.__qualname__}", str(error)
    return [f"{name}: {text}\n" if text else f"{name}\n"]


def cached(function: Callable[..., Any], maxsize: int | None, typed: bool, info: Any) -> Any:
    """What `functools.cache` and `lru_cache` make of a function."""
    answers: dict[Any, Any] = {}
    counts = [0, 0]

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        key: tuple[Any, ...] = (args, tuple(kwargs.items()))
        if typed:
            key = (*key, tuple([type(each) for each in (*args, *kwargs.values())]))
        if key in answers:
            counts[0] += 1
            answer = answers.pop(key)
        else:
            counts[1] += 1
            answer = function(*args, **kwargs)
            if maxsize is not None and len(answers) >= maxsize and key not in answers:
                if maxsize == 0:
                    return answer
                del answers[next(iter(answers))]
        answers[key] = answer  # the last to be used is the last to go
        return answer

    def cache_clear() -> None:
        answers.clear()
        counts[:] = [0, 0]

    wrapper.cache_info = lambda: info(*counts, maxsize, len(answers))  # type: ignore[attr-defined]
    wrapper.cache_clear = cache_clear  # type: ignore[attr-defined]
    return wrapper


CACHED: types.CodeType = next(each for each in cached.__code__.co_consts if getattr(each, "co_name", "") == "wrapper")
"""The code of such a function. None is made after the graph: what it has answered by then would be lost."""


def least(*args: Any, key: Any = None, default: Any = _MISSING) -> Any:
    return _best(min, operator.lt, args, key, default)


def greatest(*args: Any, key: Any = None, default: Any = _MISSING) -> Any:
    return _best(max, operator.gt, args, key, default)


def _best(function: Any, is_better: Callable[[Any, Any], Any], args: Any, key: Any, default: Any) -> Any:
    best = best_key = _MISSING
    for item in args if len(args) > 1 else args[0]:
        item_key = item if key is None else key(item)
        if best is _MISSING or is_better(item_key, best_key):
            best, best_key = item, item_key
    if best is not _MISSING:
        return best
    return function(()) if default is _MISSING else default


def checkpointed_sequence(
    functions: Any, segments: int, input: Any, use_reentrant: bool | None = None, preserve_rng_state: bool = True
) -> Any:
    def segment(part: list[Any]) -> Callable[[Any], Any]:
        def forward(input: Any) -> Any:
            for function in part:
                input = function(input)
            return input

        return forward

    parts = functions
    if isinstance(functions, torch.nn.Sequential):
        parts = []
        for module in functions._modules.values():  # as `children` does: each once
            if not any(module is part for part in parts):
                parts.append(module)
    size, end = len(parts) // segments, 0
    for start in range(0, size * (segments - 1), size):
        end = start + size
        part = segment(parts[start:end])
        input = checkpoint(part, input, use_reentrant=use_reentrant, preserve_rng_state=preserve_rng_state)
    return segment(parts[end:])(input)


def scripted(function: Any, *args: Any, **kwargs: Any) -> Any:
    """What TorchScript runs knows of no default device: it makes its tensors on the host."""
    with HOST:
        return function(*args, **kwargs)


def put_for_now(registry: Any, name: str, tensor: Any) -> None:
    """Where this is followed it is no side effect: what was there is put back."""
    registry[name] = tensor


def functional_call(
    module: Any, state: Any, args: Any = None, kwargs: Any = None, *, tie_weights: bool = True, strict: bool = False
) -> Any:
    """For names that the module has, none of whose tensors is another's (`builtin_calls` sees to that)."""
    tensors = state if isinstance(state, dict) else {name: each[name] for each in state for name in each}
    places = []
    for path in tensors:
        *owners, name = path.split(".")
        owner = module
        for each in owners:
            owner = owner._modules[each]
        places.append((owner._parameters if name in owner._parameters else owner._buffers, name))
    before = [registry[name] for registry, name in places]
    positional = () if args is None else args if isinstance(args, tuple) else (args,)
    try:
        for (registry, name), tensor in zip(places, tensors.values(), strict=True):
            put_for_now(registry, name, tensor)
        return module(*positional, **(kwargs or {}))
    finally:
        for (registry, name), tensor in zip(places, before, strict=True):
            put_for_now(registry, name, tensor)


def logs(logger: Any, level: int) -> bool:
    """Whether a logger takes messages of a level: what it remembers, or what it would find out."""
    if logger.disabled:
        return False
    known = logger._cache.get(level)
    if known is not None:
        return bool(known)
    if logger.manager._disable >= level:
        return False
    while logger is not None:
        if logger.level:
            return bool(level >= logger.level)
        logger = logger.parent
    return True


def is_tensor_like(value: Any) -> bool:
    return type(value) is torch.Tensor or hasattr(value, "__torch_function__")


def check_tensor_all(cond: Any, message: Any = None) -> None:
    check_tensor_all_with(RuntimeError, cond, message)


def check_tensor_all_with(error_type: type[Exception], cond: Any, message: Any = None) -> None:
    if not isinstance(cond, torch.Tensor):
        raise TypeError(f"cond must be a tensor, but got {type(cond)}")
    if cond.dtype != torch.bool:
        raise TypeError(f"cond tensor must have dtype torch.bool, but got {cond.dtype}")
    if not cond._is_all_true():
        raise error_type  # by PyTorch's own, with its words: the graph fails, and Python runs the call


def assert_(condition: Any, message: Any) -> None:
    if not condition:
        raise AssertionError(message)


def check_with(error_type: type[Exception], cond: Any, message: Any) -> None:
    if type(cond) is not bool:
        _refuse_check(error_type, cond, message)
    if not cond:
        if message is not None and not callable(message):
            _refuse_check(error_type, cond, message)
        raise error_type(_NO_WORDS if message is None else str(message()))


_NO_WORDS = (
    "Expected cond to be True, but got False. (Could this error message be improved? If so, please report an "
    "enhancement request to PyTorch.)"
)


def _refuse_check(error_type: type[Exception], cond: Any, message: Any) -> None:
    """By PyTorch's own, with its words."""
    _native.suspended(torch._check_with, error_type, cond, message)


setattr(_refuse_check, DISABLED, True)


FILLED: dict[str, Callable[..., Any]] = {
    "full_like": lambda input, fill_value, **options: torch.empty_like(input, **options).fill_(fill_value),
    "full": lambda size, fill_value, **options: torch.empty(size, **options).fill_(fill_value),
}
_SUB = (("alpha",), lambda input, other, *, alpha: input - other * alpha)
_SUB_ = (("alpha",), lambda input, other, *, alpha: input.sub_(other * alpha))
BY_TENSORS: dict[str, tuple[tuple[str, ...], Callable[..., Any]]] = {
    "add": (("alpha",), lambda input, other, *, alpha: input + other * alpha),
    "add_": (("alpha",), lambda input, other, *, alpha: input.add_(other * alpha)),
    **{"sub": _SUB, "subtract": _SUB, "sub_": _SUB_, "subtract_": _SUB_},
    "addcmul": (("value",), lambda input, tensor1, tensor2, *, value: input + tensor1 * tensor2 * value),
    "addcdiv": (("value",), lambda input, tensor1, tensor2, *, value: input + tensor1 / tensor2 * value),
    "addmm": (
        ("alpha", "beta"),
        lambda input, mat1, mat2, *, beta=1, alpha=1: input * beta + (mat1 @ mat2) * alpha,
    ),
}
"""Operators that take a number by keyword, computed with a 0-d tensor in its place: PyTorch would read the number."""


def cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    """`torch.cond`: the branch that is taken."""
    return true_fn(*operands) if _holds(pred) else false_fn(*operands)


def while_loop(cond_fn: Any, body_fn: Any, carried_inputs: Any) -> Any:
    """`while_loop`, round by round."""
    carried = tuple(carried_inputs)
    while _holds(cond_fn(*carried)):
        carried = tuple(body_fn(*carried))
    return carried


def map_rows(f: Any, xs: Any, *args: Any) -> Any:
    """`map` over the first dimension of a tensor."""
    if not isinstance(xs, torch.Tensor):
        unsupported("torch's map over other than a tensor")
    rows = [f(row, *args) for row in xs.unbind(0)]
    if isinstance(rows[0], torch.Tensor):
        return torch.stack(rows)
    if type(rows[0]) not in (tuple, list):
        unsupported("torch's map of a function that returns other than tensors")
    return type(rows[0])([torch.stack(parts) for parts in zip(*rows, strict=True)])


def _holds(test: Any) -> bool:
    """Whether a bool, or a tensor of one, is true. Its number is told by the graph as sizes are that only data tell:
    what is relied on of it is checked, and there is a version of the graph for either. Such numbers are at least 2."""
    if isinstance(test, torch.Tensor):
        told: int = (test.to(torch.int64).reshape(()) + 2).item()  # type: ignore[assignment]
        return told == 3
    return bool(test)


def custom_operator(operator: Any, *args: Any, **kwargs: Any) -> Any:
    return operator._opoverload(*args, **kwargs)


POLYFILLS: dict[Any, Callable[..., Any]] = {
    **STAND_INS,
    internal("CustomOpDef.__call__", "torch._library.custom_ops"): custom_operator,
    internal("_assert"): assert_,
    torch.cond: cond,
    internal("while_loop", "torch._higher_order_ops.while_loop"): while_loop,
    internal("map", "torch._higher_order_ops.map"): map_rows,
    internal("_check_with"): check_with,
    internal("_check_tensor_all"): check_tensor_all,
    internal("_check_tensor_all_with"): check_tensor_all_with,
    torch.overrides.is_tensor_like: is_tensor_like,
    checkpoint_sequential: checkpointed_sequence,
    itertools.chain: chain,
    itertools.chain.__dict__["from_iterable"]: chain_from_iterable,
    dict.__dict__["fromkeys"]: fromkeys,
    collections.OrderedDict.__dict__["fromkeys"]: fromkeys,
    collections._count_elements: count_elements,  # type: ignore[attr-defined]
    bisect.bisect_left: bisect_left,
    bisect.bisect_right: bisect_right,
    itertools.product: product,
    itertools.islice: islice,
    itertools.count: count,
    itertools.repeat: repeat,
    itertools.accumulate: accumulate,
    itertools.zip_longest: zip_longest,
    itertools.pairwise: pairwise,
    itertools.combinations: combinations,
    itertools.combinations_with_replacement: combinations_with_replacement,
    itertools.permutations: permutations,
    itertools.compress: compress,
    itertools.takewhile: takewhile,
    itertools.dropwhile: dropwhile,
    itertools.starmap: starmap,
    itertools.filterfalse: filterfalse,
    itertools.cycle: cycle,
    itertools.groupby: groupby,
    itertools.tee: tee,
    filter: filter_,
    functools.reduce: reduce,
    functools._lru_cache_wrapper: cached,
    traceback.format_exception_only: format_exception_only,
}


class _Places:
    def __getitem__(self, place: int) -> int:
        return place


def _kinds() -> Iterator[tuple[types.CodeType, types.CodeType, type]]:
    for original, function in {**POLYFILLS, reversed: reversed_}.items():
        lazy = function
        if not inspect.isgeneratorfunction(function):  # what it takes at once, it takes before the generator is made
            lazy = globals().get("_" + function.__name__.rstrip("_"), function)
        if inspect.isgeneratorfunction(lazy):
            kind = original if isinstance(original, type) else original.__objclass__
            yield function.__code__, lazy.__code__, kind


KINDS: dict[types.CodeType, type] = {
    **{lazy: kind for _, lazy, kind in _kinds()},
    _group.__code__: type(next(itertools.groupby("a"))[1]),
    _taking.__code__: type(itertools.tee("a")[0]),
    by_place.__code__: type(iter(_Places())),
    until.__code__: type(iter(int, 1)),
}
"""By the code of a generator above: the class of the iterators it stands for, which the program may ask for."""

MAKERS: frozenset[types.CodeType] = frozenset({maker for maker, _, _ in _kinds()} | {tee.__code__})
"""The code of what yields such a generator: where no more are followed, Python calls the original."""
