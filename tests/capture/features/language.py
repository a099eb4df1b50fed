"""Programs with what the language has: classes inside, iterators half way, exceptions, context managers, attributes."""

import contextlib
import functools
import itertools
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.capture.features.running import feature

# classes defined inside


@feature("classes defined inside")
def class_inside(x: torch.Tensor) -> Any:
    class Local:
        factor = 3

        def __init__(self, t: torch.Tensor) -> None:
            self.t = t

        def scaled(self) -> torch.Tensor:
            return self.t * self.factor

    return Local(x).scaled()


@feature("classes defined inside")
def class_inside_closure(x: torch.Tensor) -> Any:
    k = x.dim()

    class Local:
        shape = tuple(x.shape)

        def add(self, t: torch.Tensor) -> torch.Tensor:
            return t + x + k

    return Local().add(x), Local.shape, Local.__name__


@feature("classes defined inside")
def class_inside_derived(x: torch.Tensor) -> Any:
    class Local(Base):
        def shift(self) -> int:
            return super().shift() + 1

    return x + Local().shift(), issubclass(Local, Base), Local.__mro__[1] is Base


@feature("classes defined inside")
def class_inside_properties(x: torch.Tensor) -> Any:
    class Local:
        def __init__(self) -> None:
            self._t = x

        @property
        def t(self) -> torch.Tensor:
            return self._t * 2

        @staticmethod
        def one() -> int:
            return 1

        @classmethod
        def name(cls) -> str:
            return cls.__name__

        def __add__(self, other: Any) -> Any:
            return self._t + other

    return Local().t, Local.one(), Local.name(), Local() + 3


@feature("classes defined inside")
def exception_inside(x: torch.Tensor) -> Any:
    class Wrong(ValueError):
        pass

    try:
        raise Wrong("no")
    except Wrong as error:
        return x + 1, str(error), type(error).__name__


@feature("classes defined inside")
def module_inside(x: torch.Tensor) -> Any:
    class Twice(torch.nn.Module):
        def forward(self, t: torch.Tensor) -> torch.Tensor:
            return t * 2

    return Twice()(x)


@feature("classes defined inside")
def class_by_type(x: torch.Tensor) -> Any:
    Local = type("Local", (Base,), {"k": 5})
    return x * Local().k, Local.__name__


# iterators and generators returned or advanced half way


def numbers(n: int) -> Iterator[int]:
    for k in range(n):  # noqa: UP028
        yield k


def scaled(x: torch.Tensor) -> Iterator[torch.Tensor]:
    try:
        yield x * 1
        yield x * 2
        yield x * 3
    finally:
        LOG.append("closed")


LOG: list[str] = []


class Base:
    """What classes inside are derived from."""

    def shift(self) -> int:
        return 4


class CountsDown:
    """An iterator of its own class."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> "CountsDown":
        return self

    def __next__(self) -> int:
        if self.n == 0:
            raise StopIteration
        self.n -= 1
        return self.n


class ByPlace:
    """Iterated by its items."""

    def __getitem__(self, place: int) -> int:
        if place > 2:
            raise IndexError
        return place * 10

    def __len__(self) -> int:
        return 3


@feature("iterators half way")
def returned_iterator(x: torch.Tensor) -> Any:
    items = iter([x, x + 1, x + 2])
    first = next(items)
    return first, list(items)


@feature("iterators half way")
def iterator_returned(x: torch.Tensor) -> Any:
    items = iter([1, 2, 3])
    return x * next(items), items


@feature("iterators half way")
def generator_returned(x: torch.Tensor) -> Any:
    made = numbers(4)
    k = next(made)
    return x + k, made


@feature("iterators half way")
def generator_not_begun(x: torch.Tensor) -> Any:
    return x + 1, numbers(3)


@feature("iterators half way")
def generator_expression_returned(x: torch.Tensor) -> Any:
    made = (k * 2 for k in [1, 2, 3])
    return x + next(made), made


@feature("iterators half way")
def zip_returned(x: torch.Tensor) -> Any:
    pairs = zip([1, 2], "ab", strict=True)
    next(pairs)
    return x * 2, pairs


@feature("iterators half way")
def map_half_way(x: torch.Tensor) -> Any:
    made = map(lambda t: t + 1, [x, x * 2, x * 3])  # noqa: C417
    return next(made), [t * 2 for t in made]


@feature("iterators half way")
def own_iterator(x: torch.Tensor) -> Any:
    down = CountsDown(4)
    return x * next(down), [k for k in down if k], 3 in CountsDown(5)


@feature("iterators half way")
def iterated_by_place(x: torch.Tensor) -> Any:
    total = x
    for k in ByPlace():
        total = total + k
    return total, list(ByPlace()), 10 in ByPlace(), list(reversed(ByPlace()))


@feature("iterators half way")
def iter_with_sentinel(x: torch.Tensor) -> Any:
    items = [3, 2, 1, 0]
    return [x * k for k in iter(lambda: items.pop(0), 1)], items


@feature("iterators half way")
def itertools_half_way(x: torch.Tensor) -> Any:
    cycle = itertools.cycle([1, 2])
    count = itertools.count(5)
    return x * next(cycle) + next(count), next(cycle), next(count), list(itertools.islice(count, 2))


@feature("iterators half way")
def generator_closed(x: torch.Tensor) -> Any:
    LOG.clear()
    made = scaled(x)
    first = next(made)
    made.close()
    return first, list(LOG)


@feature("iterators half way")
def generator_sent(x: torch.Tensor) -> Any:
    def takes() -> Any:
        given = yield x
        while given is not None:
            given = yield x * given
        return "done"

    made = takes()
    first = next(made)
    return first + made.send(3), made.send(4), next(made, "end")


@feature("iterators half way")
def generator_in_object(x: torch.Tensor) -> Any:
    box = {"made": (t for t in [x, x + 1])}
    return next(box["made"]), box


@feature("generator functions as callables")
def generator_function_mapped(x: torch.Tensor) -> Any:
    return [list(made) for made in map(numbers, [1, 2])], x + 1


@feature("generator functions as callables")
def generator_function_passed(x: torch.Tensor) -> Any:
    def apply(function: Callable[..., Any], *args: Any) -> Any:
        return [t * 2 for t in function(*args)]

    return apply(scaled, x), apply(numbers, 3)


@feature("generator functions as callables")
def generator_function_partial(x: torch.Tensor) -> Any:
    return x * sum(functools.partial(numbers, 4)()), list(itertools.chain.from_iterable(map(numbers, (2, 3))))


@feature("generator functions as callables")
def generator_method_passed(x: torch.Tensor) -> Any:
    class_of = Yields([x, x + 1])
    return [t for made in map(Yields.each, [class_of]) for t in made], dict(class_of.pairs())


class Yields:
    """Methods that are generators."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def each(self) -> Iterator[Any]:
        yield from self.items

    def pairs(self) -> Iterator[tuple[int, Any]]:
        yield from enumerate(self.items)


# @contextmanager and functools.wraps made inside


@feature("contextmanager made inside")
def manager_inside(x: torch.Tensor) -> Any:
    seen = []

    @contextlib.contextmanager
    def managed(k: int) -> Iterator[int]:
        seen.append("in")
        try:
            yield k + 1
        finally:
            seen.append("out")

    with managed(2) as k:
        x = x * k
    return x, seen


@feature("contextmanager made inside")
def manager_outside(x: torch.Tensor) -> Any:
    with doubled(x) as y:
        z = y + 1
    return z


@contextlib.contextmanager
def doubled(x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield x * 2


@feature("contextmanager made inside")
def manager_swallows(x: torch.Tensor) -> Any:
    @contextlib.contextmanager
    def quiet() -> Iterator[None]:
        with contextlib.suppress(ValueError):
            yield

    with quiet():
        raise ValueError("no")
    return x + 1


@feature("contextmanager made inside")
def manager_as_decorator(x: torch.Tensor) -> Any:
    @contextlib.contextmanager
    def graded() -> Iterator[None]:
        with torch.no_grad():
            yield

    @graded()
    def inner(t: torch.Tensor) -> torch.Tensor:
        return t * 2

    return inner(x), inner(x + 1)


@feature("contextmanager made inside")
def exit_stack(x: torch.Tensor) -> Any:
    with contextlib.ExitStack() as stack:
        y = stack.enter_context(doubled(x))
        stack.callback(LOG.append, "left")
        y = y + 1
    return y, LOG.pop()


@feature("contextmanager made inside")
def null_context(x: torch.Tensor) -> Any:
    with contextlib.nullcontext(x + 1) as y, contextlib.closing(Closes()) as closes:
        z = y * closes.k
    return z, closes.k


class Closes:
    """Something to be closed."""

    k = 2

    def close(self) -> None:
        self.k = 0


@feature("functools.wraps made inside")
def wraps_inside(x: torch.Tensor) -> Any:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def inner(*args: Any) -> Any:
            return function(*args) + 1

        return inner

    @logged
    def twice(t: torch.Tensor) -> torch.Tensor:
        """Doubles."""
        return t * 2

    return twice(x), twice.__name__, twice.__doc__, twice.__wrapped__(x)  # type: ignore[attr-defined]


@feature("functools.wraps made inside")
def wraps_torch(x: torch.Tensor) -> Any:
    @functools.wraps(torch.sin)
    def inner(t: torch.Tensor) -> torch.Tensor:
        return torch.sin(t) + 1

    return inner(x), inner.__name__


@feature("functools.wraps made inside")
def wraps_returned(x: torch.Tensor) -> Any:
    def base(t: int) -> int:
        return t

    base.mark = 3  # type: ignore[attr-defined]

    @functools.wraps(base)
    def inner(t: int) -> int:
        return base(t) + 1

    return x + inner(1), inner.mark, inner.__dict__["mark"], inner.__qualname__  # type: ignore[attr-defined]


@feature("functools.wraps made inside")
def update_wrapper(x: torch.Tensor) -> Any:
    def inner(t: torch.Tensor) -> torch.Tensor:
        return t

    functools.update_wrapper(inner, doubled, assigned=("__name__",), updated=())
    return inner(x), inner.__name__


@feature("functools.wraps made inside")
def cached_inside(x: torch.Tensor) -> Any:
    @functools.cache
    def double(k: int) -> int:
        return k * 2

    return x * double(3) + double(3)


@feature("functools.wraps made inside")
def wraps_partial(x: torch.Tensor) -> Any:
    part = functools.partial(torch.add, alpha=2)
    method = functools.partialmethod(torch.Tensor.add, 1)
    return part(x, x), part.func is torch.add, part.keywords, method.args


# tracebacks, __cause__, sys.exc_info


@feature("tracebacks and __cause__")
def cause(x: torch.Tensor) -> Any:
    try:
        try:
            raise ValueError("first")
        except ValueError as error:
            raise KeyError("second") from error
    except KeyError as error:
        return x + 1, type(error.__cause__).__name__, str(error.__context__), error.__suppress_context__


@feature("tracebacks and __cause__")
def traceback_line(x: torch.Tensor) -> Any:
    try:
        raise ValueError("no")
    except ValueError as error:
        trace = error.__traceback__
        assert trace is not None
        return x * 2, trace.tb_lineno > 0, trace.tb_next is None, trace.tb_frame.f_code.co_name


@feature("tracebacks and __cause__")
def traceback_text(x: torch.Tensor) -> Any:
    try:
        raise ValueError("no")
    except ValueError as error:
        return x + 1, "".join(traceback.format_exception_only(type(error), error))


@feature("tracebacks and __cause__")
def with_traceback(x: torch.Tensor) -> Any:
    try:
        try:
            raise ValueError("no")
        except ValueError as error:
            raise RuntimeError("again").with_traceback(error.__traceback__) from None
    except RuntimeError as error:
        return x + 1, error.__cause__, error.__suppress_context__


@feature("tracebacks and __cause__")
def cause_set(x: torch.Tensor) -> Any:
    error = ValueError("a")
    error.__cause__ = KeyError("b")
    error.__context__ = None
    error.add_note("note")
    return x + 1, error.__suppress_context__, error.__notes__, repr(error.__cause__)


@feature("tracebacks and __cause__")
def raised_by_torch(x: torch.Tensor) -> Any:
    try:
        return torch.cat([x, x.reshape(3, 2)[:, :1]])
    except RuntimeError as error:
        return x + 1, type(error).__name__


@feature("tracebacks and __cause__")
def exception_group(x: torch.Tensor) -> Any:
    try:
        raise ExceptionGroup("both", [ValueError("a"), KeyError("b")])
    except* ValueError as group:
        found = [str(error) for error in group.exceptions]
    except* KeyError:
        pass
    return x + 1, found


@feature("sys.exc_info")
def exc_info(x: torch.Tensor) -> Any:
    try:
        raise ValueError("no")
    except ValueError:
        kind, error, trace = sys.exc_info()
    return x + 1, kind is ValueError, str(error), trace is not None, sys.exc_info()


@feature("sys.exc_info")
def exc_info_nested(x: torch.Tensor) -> Any:
    def look() -> Any:
        return sys.exc_info()[0]

    try:
        raise KeyError("no")
    except KeyError:
        inside = look()
    return x * 2, inside.__name__, look()


@feature("sys.exc_info")
def sys_exception(x: torch.Tensor) -> Any:
    try:
        raise KeyError("no")
    except KeyError as error:
        found = sys.exc_info()[1]
        return x * 2, found is error, sys.exception() is error


# attributes of objects


class Documented:
    """Has words of its own."""

    kept: dict[str, Any]

    def __init__(self) -> None:
        self.kept = {}

    def __setitem__(self, key: str, value: Any) -> None:
        """Keeps."""
        self.kept[key] = value

    def __getitem__(self, key: str) -> Any:
        return self.kept[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.kept)

    def __contains__(self, key: object) -> bool:
        return key in self.kept

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


DOCUMENTED = Documented()


@feature("attributes of objects")
def doc(x: torch.Tensor) -> Any:
    def inner() -> None:
        """Inner words."""

    return x + 1, DOCUMENTED.__doc__, Documented.__doc__, inner.__doc__, doubled.__doc__, len.__doc__, (1).__doc__


@feature("attributes of objects")
def dunder_calls(x: torch.Tensor) -> Any:
    made = Documented()
    made.__setitem__("a", x)
    return made.__getitem__("a") + 1, list(made.__iter__()), made.__contains__("a"), made.__call__(x), made.__eq__(made)


@feature("attributes of objects")
def dunder_of_containers(x: torch.Tensor) -> Any:
    items, table = [x, x + 1], {"a": x}
    items.__setitem__(0, x * 2)
    table.__setitem__("b", x)
    table.__delitem__("a")
    first = (1, 2).__iter__().__next__()
    return items.__getitem__(0), list(items.__iter__()), table.__contains__("b"), items.__len__(), first


@feature("attributes of objects")
def names_of_things(x: torch.Tensor) -> Any:
    def inner(a: int, b: int = 2) -> int:
        return a

    names = inner.__name__, inner.__defaults__, inner.__code__.co_varnames, inner.__module__, inner.__kwdefaults__
    of_classes = Documented.__name__, Documented.__module__, DOCUMENTED.__class__.__qualname__
    return x + 1, names, of_classes, torch.sin.__name__


@feature("attributes of objects")
def dunder_of_tensors(x: torch.Tensor) -> Any:
    y = x.clone()
    y.__setitem__(0, 5.0)
    return y.__getitem__(0), x.__add__(1), x.__radd__(1), len(list(x.__iter__())), x.__len__(), x.__neg__(), x.__doc__


@feature("attributes of objects")
def dunder_dict(x: torch.Tensor) -> Any:
    made = Documented()
    made.__dict__["t"] = x
    return made.t + 1, sorted(vars(made)), hasattr(made, "__len__"), made.__dict__.get("none")  # type: ignore[attr-defined]


@feature("attributes of objects")
def function_attributes(x: torch.Tensor) -> Any:
    def inner(t: torch.Tensor) -> torch.Tensor:
        return t * inner.k  # type: ignore[attr-defined]

    inner.k = 3  # type: ignore[attr-defined]
    inner.__name__ = "other"
    return inner(x), inner.__dict__, inner.__name__, hasattr(inner, "q"), getattr(inner, "q", 1)


@feature("attributes of objects")
def annotations(x: torch.Tensor) -> Any:
    def inner(a: int) -> str:
        return str(a)

    same = Documented.__annotations__.keys() == {"kept"}
    return x, inner.__annotations__["a"], same, callable(inner), type(inner).__name__


# weak references


@feature("weak references")
def weak_reference(x: torch.Tensor) -> Any:
    box = Documented()
    reference = weakref.ref(box)
    found = reference()
    assert found is not None
    found["a"] = x
    return box["a"] + 1, reference() is box


@feature("weak references")
def weak_reference_outside(x: torch.Tensor) -> Any:
    found = OUTSIDE_REFERENCE()
    assert found is not None
    return found(x), found is DOCUMENTED


@feature("weak references")
def weak_made_of_outside(x: torch.Tensor) -> Any:
    reference = weakref.ref(DOCUMENTED)
    return reference()(x), reference() is DOCUMENTED, weakref.ref(DOCUMENTED) is reference  # type: ignore[misc]


@feature("weak references")
def weak_tensor(x: torch.Tensor) -> Any:
    reference = weakref.ref(x)
    y = x + 1
    other = weakref.ref(y)
    return reference() * 2, other() is y, reference() is x  # type: ignore[operator]


@feature("weak references")
def weak_table(x: torch.Tensor) -> Any:
    table: Any = weakref.WeakKeyDictionary()
    key = Documented()
    table[key] = 3
    return x * table[key], len(table), key in table


@feature("weak references")
def weak_proxy(x: torch.Tensor) -> Any:
    return PROXY(x) * 2, PROXY.kept


OUTSIDE_REFERENCE = weakref.ref(DOCUMENTED)
PROXY = weakref.proxy(DOCUMENTED)
