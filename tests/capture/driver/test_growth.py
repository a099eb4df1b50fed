"""What capture keeps, and for how long: work in step with the program, and no object longer than Python keeps it."""

import gc
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import smelt
from smelt.capture.interpreter import iterators
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.model import bytecode
from tests.capture.programs import Captured

X = torch.ones(2)


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _appends(n: int) -> int:
    items: list[int] = []
    for i in range(n):
        items.append(i)
    return len(items)


def _adds(n: int) -> int:
    items: list[int] = []
    for i in range(n):
        items += [i]
    return len(items)


def _comprehensions(n: int) -> int:
    return len([i for i in range(n)]) + len({i for i in range(n)}) + len({i: i for i in range(n)})  # noqa: C416


def _fills(n: int) -> int:
    table: dict[int, int] = {}
    seen: set[int] = set()
    queue: deque[int] = deque()
    lists: defaultdict[int, list[int]] = defaultdict(list)
    for i in range(n):
        table[i] = i
        seen.add(i)
        queue.append(i)
        lists[i].append(i)
    return len(table) + len(seen) + len(queue) + len(lists)


def _replaces(n: int) -> int:
    items = [0] * n
    for i in range(n):
        items[i] = i
    return len(items)


def _takes(n: int) -> int:
    items, table = [0] * n, dict.fromkeys(range(n))
    while items:
        items.pop()
        table.popitem()
    return len(table)


def _walks(n: int) -> int:
    table, total = dict.fromkeys(range(n), 1), 0
    for key, item in table.items():
        total += key + item
    return total


@pytest.mark.parametrize("work", [_appends, _adds, _comprehensions, _fills, _replaces, _takes, _walks])
def test_a_loop_copies_no_container_at_each_step(work: Callable[[int], int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it takes time by the square of its length."""
    copied = []
    before_mutation: Any = Interpreter.before_mutation

    def counting(interp: Interpreter, value: Any) -> None:
        copied.append(len(getattr(value, "raw_items", None) or getattr(value, "items", ())))
        before_mutation(interp, value)

    def listing(items: Any = ()) -> list[Any]:
        copied.append(len(items) if hasattr(items, "__len__") else 0)
        return [*items]

    def program(x: torch.Tensor) -> torch.Tensor:
        return x + work(500)

    monkeypatch.setattr(Interpreter, "before_mutation", counting)
    monkeypatch.setattr(iterators, "list", listing, raising=False)
    runner = Captured()
    assert runner(program, X).equal(X + work(500))
    assert not runner.breaks
    assert sum(copied) < 5000


def test_what_a_loop_wrote_is_taken_back_where_it_breaks() -> None:
    """Whatever one instruction did to containers is undone if it cannot be captured to its end."""
    outside: dict[str, Any] = {"list": [1], "dict": {"a": 1}, "set": {1}, "deque": deque([1]), "odd": OrderedDict(a=1)}

    class Odd:
        def __index__(self) -> int:
            outside["list"].append(2)
            outside["list"][0] = 5
            outside["list"].pop()
            outside["list"] += [6, 7]
            outside["dict"]["a"] = 2
            outside["dict"]["b"] = 3
            outside["dict"].popitem()
            outside["dict"].setdefault("c", 4)
            outside["set"].add(2)
            outside["deque"].append(2)
            outside["odd"].popitem()
            smelt.graph_break()
            return 0

    def program(x: torch.Tensor) -> Any:
        return x + [1, 2][Odd()]

    def pictured() -> str:
        return repr(outside)

    program(X)
    expected = [pictured()]
    for _ in range(2):
        outside["odd"]["a"] = 1
        program(X)
        expected.append(pictured())
    outside.update(list=[1], dict={"a": 1}, set={1}, deque=deque([1]), odd=OrderedDict(a=1))
    runner = Captured()
    for text in expected:
        outside["odd"]["a"] = 1
        runner(program, X)
        assert pictured() == text


class Box:
    def __init__(self, item: Any) -> None:
        self.item = item


class Countdown:
    def __init__(self, item: torch.Tensor) -> None:
        self.item, self.left = item, 2

    def __iter__(self) -> "Countdown":
        return self

    def __next__(self) -> torch.Tensor:
        self.left -= 1
        if self.left < 0:
            raise StopIteration
        return self.item


def _plain(x: torch.Tensor, box: Box) -> Any:
    return x * 2 + box.item


def _breaks(x: torch.Tensor, box: Box) -> Any:
    y = x + 1
    smelt.graph_break()
    return y * box.item


def _decides(x: torch.Tensor, box: Box) -> Any:
    return x + 1 if x.sum() > 0 else x - box.item


def _raises(x: torch.Tensor, box: Box) -> Any:
    y = x + 1
    raise ValueError(y.shape)


def _handles(x: torch.Tensor, box: Box) -> Any:
    try:
        raise ValueError(x, box)
    except ValueError:
        return x + 1


def _handles_what_it_calls(x: torch.Tensor, box: Box) -> Any:
    def inner(t: torch.Tensor) -> None:
        raise KeyError(t)

    try:
        inner(x)
    except KeyError as error:
        return error.args[0] + getattr(box, "missing", 1)


def _makes_objects(x: torch.Tensor, box: Box) -> Any:
    made = Box(box)
    made.more = [x, box]  # type: ignore[attr-defined]
    return made.item.item + x


def _iterates(x: torch.Tensor, box: Box) -> Any:
    return sum(t for t in Countdown(x)) + box.item


def _writes(x: torch.Tensor, box: Box) -> Any:
    box.item = x + 1
    box.others = [x]  # type: ignore[attr-defined]
    return x


def _closes_over(x: torch.Tensor, box: Box) -> Any:
    count = 0

    def bump() -> Any:
        nonlocal count
        count += 1
        return box.item * count + x

    return bump() + bump()


def _is_called_wrongly(x: torch.Tensor, box: Box) -> Any:
    return len(x, box)  # type: ignore[call-arg]


def _trains(x: torch.Tensor, box: Box) -> Any:
    loss = (x.detach().requires_grad_() * box.item).sum()
    loss.backward()
    return loss.detach()


PROGRAMS = [
    *[_plain, _breaks, _decides, _raises, _handles, _handles_what_it_calls, _makes_objects, _iterates, _writes],
    *[_closes_over, _is_called_wrongly, _trains],
]


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("backend", ["eager", "llvm"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_arguments_go_when_the_caller_drops_them(program: Callable[..., Any], backend: str) -> None:
    """The first call, which captures, holds on to nothing, and neither do later ones."""
    compiled = smelt.compile(program, backend=backend)
    for _ in range(3):
        x, box = torch.ones(2), Box(torch.ones(2))
        gone = [weakref.ref(x), weakref.ref(box), weakref.ref(box.item)]
        try:
            result = compiled(x, box)
        except (ValueError, TypeError) as error:
            error.__traceback__ = None
            result = None
        del x, box, result
        assert [ref() for ref in gone] == [None, None, None]


noted: dict[str, Any] = {}


@smelt.disable
def note(name: str, tensor: torch.Tensor) -> None:
    noted[name] = weakref.ref(tensor)


@smelt.disable
def is_there(name: str) -> bool:
    return noted[name]() is not None


def _deletes(x: torch.Tensor) -> Any:
    large = x + 1
    note("large", large)
    y = large * 2
    del large
    return y, is_there("large")


def _replaces_it(x: torch.Tensor) -> Any:
    large: Any = x + 1
    note("large", large)
    y = large * 2
    large = None
    first = is_there("large")
    y = y + 1
    return y, first, is_there("large")


def _deletes_in_a_loop(x: torch.Tensor) -> Any:
    found = []
    for i in range(3):
        large = x + i
        note("large", large)
        x = large * 2
        del large
        found.append(is_there("large"))
    return x, found


def _deletes_below(x: torch.Tensor) -> Any:
    return _deletes(x)[1], _deletes(x + 1)[1]


def _deletes_in_a_handler(x: torch.Tensor) -> Any:
    large = x + 1
    note("large", large)
    try:
        y = large * 2
        raise ValueError
    except ValueError:
        del large
        return y, is_there("large")


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("backend", ["eager", "llvm"])
@pytest.mark.parametrize(
    "program", [_deletes, _replaces_it, _deletes_in_a_loop, _deletes_below, _deletes_in_a_handler]
)
def test_what_the_program_deletes_is_gone_at_the_next_break(program: Callable[..., Any], backend: str) -> None:
    expected = program(X)[1:]
    assert True not in expected
    compiled = smelt.compile(program, backend=backend)
    for _ in range(3):
        assert compiled(X)[1:] == expected


def test_code_that_is_made_all_the_time_is_not_kept() -> None:
    before = len(bytecode._decoded)
    limit, bytecode._MAX_DECODED = bytecode._MAX_DECODED, before + 10
    try:
        for number in range(50):
            names: dict[str, Any] = {}
            exec(f"def made(x): return x + {number}", names)
            bytecode.decode(names["made"].__code__)
        assert len(bytecode._decoded) <= before + 10
    finally:
        bytecode._MAX_DECODED = limit


@pytest.mark.usefixtures("without_collector")
def test_classes_that_are_made_all_the_time_are_not_kept() -> None:
    """What is known of a class of the program is not remembered by the class."""

    def program(x: torch.Tensor, pair: Any) -> Any:
        return x + pair[0], str(pair)

    def call() -> "weakref.ref[type]":
        kind = type("Pair", (tuple,), {"__slots__": (), "__match_args__": ("a", "b"), "__str__": lambda self: "pair"})
        Captured()(program, X, kind((1, 2)))
        return weakref.ref(kind)

    gone = call()
    gc.collect()
    assert gone() is None, [type(each) for each in gc.get_referrers(gone())]
