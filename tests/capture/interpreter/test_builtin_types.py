"""Methods, operators, errors and texts of Python's own containers and iterators, captured without a break.

Each program runs plainly and twice through capture, and must answer the same: results, orders, and the words of errors.
"""

import collections
import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.capture.programs import Captured

X = torch.arange(6.0).reshape(2, 3)


class Point:
    """Compared and hashed by what it holds."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return f"Point<{self.value}>"

    def moved(self, by: int, *, twice: bool) -> int:
        """The sum."""
        return self.value + by * (2 if twice else 1)


class Empty:
    pass


class Names(set[Any]):
    pass


class Frozen(frozenset[Any]):
    pass


class Table(dict[Any, Any]):
    pass


class Ordered(collections.OrderedDict[Any, Any]):
    pass


def numbers(*items: int) -> Iterator[int]:
    yield from items


def errors(*calls: Callable[[], Any]) -> list[Any]:
    """What each call raises, in words."""
    words: list[Any] = []
    for call in calls:
        try:
            words.append(call())
        except Exception as error:
            words.append((type(error).__name__, str(error)))
    return words


def names_of_functions(x: torch.Tensor) -> Any:
    point, items = Point(1), {1}
    bound: Any = point.moved
    return (
        x + 1,
        (bound.__name__, bound.__qualname__, bound.__doc__, bound.__self__ is point, hasattr(bound, "missing")),
        (items.add.__name__, set.add.__name__, set.add.__qualname__, [].__len__.__name__, len.__name__),
        (hasattr(items.add, "__func__"), hasattr(bound, "__func__")),
    )


def wrong_numbers_of_arguments(x: torch.Tensor) -> Any:
    def two(a: Any, b: Any, *, c: Any) -> None: ...
    def some(a: Any, b: Any = 2, **rest: Any) -> None: ...

    call: Any = lambda function, *args, **kwargs: lambda: function(*args, **kwargs)  # noqa: E731
    too_many: tuple[Any, ...] = ([].append, {}.pop, {1}.add, (1,).count, {}.keys, [].__len__, "".join)
    too_few: tuple[Any, ...] = ([].append, {}.get, {1}.discard, (1,).index, [].insert, dict.fromkeys)
    return x + 1, errors(
        *(call(two, *args) for args in ((), (1,), (1, 2), (1, 2, 3))),
        call(two, 1, 2, c=3, d=4),
        call(two, 1, a=1, c=2),
        *(call(some, *args) for args in ((), (1, 2, 3))),
        call(some, 1, a=2),
        call(Point(1).moved),
        call(Point, 1, 2),
        *(call(method, 1, 2, 3) for method in too_many),
        *(call(method) for method in too_few),
        *(call(function) for function in (len, iter, next, sorted, abs, isinstance)),
        *(call(kind, 1, 2) for kind in (list, tuple, dict, set, frozenset)),
        call([].append, object=1),
    )


def operators_that_are_declined(x: torch.Tensor) -> Any:
    pairs: list[tuple[Any, Any]] = [
        ({1}, [1]), ({1}, numbers(1)), ({1}, len), ({1}, {}), ({}, {1}), ({}, 3), (3, {1}), (frozenset(), "a"),
        ({1}, Empty()), (Empty(), {1}), (None, 1), (collections.OrderedDict(), 3), ([], iter([])),
    ]  # fmt: skip
    signs = (operator.or_, operator.and_, operator.sub, operator.xor, operator.lt, operator.ge, operator.ior)
    calls: list[Any] = []
    for left, right in pairs:
        calls += [lambda sign=sign, left=left, right=right: sign(left, right) for sign in signs]
    return x + 1, errors(*calls)


def equality_of_unlike_things(x: torch.Tensor) -> Any:
    things = [{1}, frozenset([1]), Names([1]), Frozen([1]), {1: 2}.keys(), [1], (1,), {1: 2}, len, 1, None]
    return x + 1, [(one == other, one != other) for one in things for other in things if not one is other is len]


def methods_of_operators(x: torch.Tensor) -> Any:
    items: Any = {1, 2}
    table: Any = {1: 2}
    return (
        x + 1,
        (set.__or__(items, {3}), items.__or__([1]), items.__and__({1}), items.__rsub__({1, 55}), items.__xor__({1})),
        (items.__eq__({1, 2}), items.__eq__(3), items.__lt__({1, 2, 3}), items.__le__(items), items.__ne__({1})),
        (table.__or__({3: 4}), table.__or__(3), table.__ror__({0: 0}), table.__eq__({1: 2}), table.__eq__([])),
        (table.__ior__([(7, 8)]), items.__ior__({9}), items.__iand__({9, 1}), table.keys().__eq__([1])),
        ([1].__add__([2]), [1].__eq__((1,)), [1].__iadd__((3,)), (1,).__lt__((2,)), [1].__mul__(2), (1,).__eq__([1])),
    )


def sets_asked_with_generators(x: torch.Tensor) -> Any:
    asked: list[int] = []

    def items() -> Iterator[int]:
        for item in (3, 4, 5):
            asked.append(item)
            yield item

    ours = {1, 2, 3}
    answers = [ours.isdisjoint(items()), ours.issuperset(items()), ours.issubset(items()), frozenset([3]) >= {3}]
    ours.update(items(), [7])
    ours.difference_update(items())
    ours.symmetric_difference_update(items())
    ours.intersection_update(item for item in [3, 7, 9])
    return x + 1, answers, asked, ours, {1}.union(items()), 4 in items(), 9 in iter([1]), {1}.isdisjoint({2: 3})


def a_set_that_is_looked_at_while_it_is_filled(x: torch.Tensor) -> Any:
    ours: set[int] = set()
    sizes: list[int] = []

    def items() -> Iterator[int]:
        for item in (3, 4, 3):
            sizes.append(len(ours))
            yield item

    ours.update(items())
    return x + 1, sizes, ours


def what_cannot_be_hashed(x: torch.Tensor) -> Any:
    ours: Any = {1}
    table: Any = {1: 2}
    return x + 1, errors(
        lambda: ours.add([]),
        lambda: [] in ours,
        lambda: {} in table,
        lambda: table.get([x]),
        lambda: {1, 2, ()}.union([[]]),
        lambda: hash({}),
        lambda: dict.fromkeys([[]]),
        lambda: ours.remove({3}),
        lambda: {1} in {frozenset([1])},
        lambda: {frozenset([1])}.remove({1}),  # type: ignore[arg-type]
    )


def what_objects_cannot_do(x: torch.Tensor) -> Any:
    thing: Any = Empty()
    number: Any = 3
    items: Any = {1}
    pair: Any = (1,)
    walk: Any = iter([1])

    def store(target: Any, key: Any) -> None:
        target[key] = 1

    def unpack(value: Any) -> Any:
        one, other = value
        return one, other

    def delete(target: Any, key: Any) -> None:
        del target[key]

    return x + 1, errors(
        *(lambda one=one: len(one) for one in (thing, number, walk, numbers())),
        *(lambda one=one: iter(one) for one in (thing, number, len)),
        *(lambda one=one: one() for one in (thing, number, items, pair)),
        *(lambda one=one: one[0] for one in (thing, items, walk)),
        *(lambda one=one: 1 in one for one in (thing, number)),
        *(lambda one=one: store(one, 0) for one in (thing, items, pair, "a")),
        *(lambda one=one: delete(one, 0) for one in (thing, items, pair)),
        *(lambda key=key: store([1], key) for key in ("a", 5, None)),
        lambda: next(thing),
        lambda: "".join(thing),
        lambda: unpack(thing),
        lambda: unpack(3),
        lambda: thing + 1,
        lambda: thing < thing,
    )


def texts_of_containers(x: torch.Tensor) -> Any:
    items: list[Any] = [Point(1)]
    items.append(items)
    table: dict[Any, Any] = {1: Point(2)}
    table[2] = table
    lists = collections.defaultdict(list, {1: [Point(4)]})
    ordered = collections.OrderedDict([(1, Point(1))])
    return (
        x + 1,
        (repr(items), str(table), repr((Point(3),)), repr({Point(5)}), repr(lists), repr(ordered), str(())),
        (repr(table.keys()), repr({1: 2}.items()), repr({1: Point(3)}.values()), repr(ordered.keys())),
        (repr(Names([1])), repr(Frozen()), repr(Frozen([2])), repr(Table({1: Point(1)})), f"{set()}{frozenset([1])}"),
        (str([x]), repr({1: x})),
    )


def lists_of_objects(x: torch.Tensor) -> Any:
    points = [Point(1), Point(2), Point(1)]
    filled, names = [1, 2], {1}
    filled.__init__([3])  # type: ignore[misc]
    names.__init__([2])  # type: ignore[misc]
    found = points.count(Point(1)), points.index(Point(2)), points.index(Point(1), 1), points.index(Point(1), -1)
    return (
        x + 1,
        (found, (Point(1),).index(Point(1)), (1, 2, 2).count(2), filled, names),
        errors(lambda: points.index(Point(9)), lambda: [1].index(2), lambda: (1,).index(2), lambda: [1, 2].index(1, 1)),
    )


def ways_to_make_and_merge_dicts(x: torch.Tensor) -> Any:
    table: dict[Any, Any] = {1: 2}
    table |= [(3, 4)]
    table |= {5: x}
    counts: Any = collections.defaultdict(int)
    nothing: Any = collections.defaultdict(None)
    return (
        x + 1,
        (table, {}.fromkeys([1, 2], 3), collections.OrderedDict.fromkeys("ab")),
        (Ordered.fromkeys([1]), Table.fromkeys("a", 2)),
        (counts.default_factory, counts.__missing__(4), counts, len(table.keys()), {1: 2}.keys() | numbers(3, 4)),
        errors({}.popitem, collections.OrderedDict().popitem, lambda: nothing[3]),
        errors(lambda: dict([1]), lambda: dict([(1, 2), (3,)]), lambda: {}.update("ab")),  # type: ignore[arg-type,list-item]
        errors(lambda: operator.ior({}, 3), lambda: {1: 2}.keys() | 3, lambda: operator.iand({}, 3)),  # type: ignore[operator]
    )


def iterators_stay_at_their_end(x: torch.Tensor) -> Any:
    items = [1, 2]
    forward, backward, zipped = iter(items), reversed(items), zip(items, [1, 2, 3], strict=False)
    counted, mapped, chained = enumerate(items), map(abs, items), itertools.chain(items)
    ends = [list(each) for each in (forward, backward, zipped, counted, mapped, chained)]
    items.append(3)
    table, names = {1: 2}, {1}
    keys, members = iter(table), iter(names)
    ends += [list(keys), list(members)]
    table[2] = 3
    names.add(2)
    again = [list(each) for each in (forward, backward, zipped, counted, mapped, chained, keys, members)]
    return x + 1, ends, again, forward


def iterators_over_what_changes_stay_broken(x: torch.Tensor) -> Any:
    table = {1: 2, 3: 4}
    keys = iter(table)
    first = next(keys)
    table[5] = 6
    words = errors(lambda: next(keys))
    del table[5]
    return x + 1, first, words, errors(lambda: next(keys))


def lengths_of_iterators(x: torch.Tensor) -> Any:
    answers: list[Any] = []
    for over in ([1, 2, 3], {1, 2}, {1: 2, 3: 4}, {1: 2}.values(), "abc", range(4)):
        source: Any = iter(over)
        before = operator.length_hint(source)
        next(source)
        answers.append((type(source).__name__, before, source.__length_hint__()))
    return x + 1, answers


PROGRAMS: list[Callable[[torch.Tensor], Any]] = [
    names_of_functions,
    wrong_numbers_of_arguments,
    operators_that_are_declined,
    equality_of_unlike_things,
    methods_of_operators,
    sets_asked_with_generators,
    a_set_that_is_looked_at_while_it_is_filled,
    what_cannot_be_hashed,
    what_objects_cannot_do,
    texts_of_containers,
    lists_of_objects,
    ways_to_make_and_merge_dicts,
    iterators_stay_at_their_end,
    iterators_over_what_changes_stay_broken,
    lengths_of_iterators,
]


def _shown(answer: Any) -> Any:
    """An answer as text, with iterators taken to their ends."""
    return repr([list(each) if isinstance(each, Iterator) else each for each in answer])


@pytest.mark.parametrize("program", PROGRAMS, ids=[program.__name__ for program in PROGRAMS])
def test_is_captured_whole_and_answers_as_python_does(program: Callable[[torch.Tensor], Any]) -> None:
    runner = Captured(fullgraph=True)
    for _ in range(2):
        assert _shown(runner(program, X)) == _shown(program(X))
    assert not runner.breaks and len(runner.graphs) == 1


@pytest.mark.parametrize("kind", [set, frozenset, Names, Frozen])
def test_sets_made_of_one_from_outside_yield_items_in_their_order(kind: type) -> None:
    def program(x: torch.Tensor, given: Any) -> Any:
        made = [given | {"z"}, given.union("xyz"), given - {"a"}, given ^ frozenset("ae"), given.copy()]
        return x + 1, [list(each) for each in made], str(set(given) | {"w"})

    runner = Captured()
    for letters in ("abc", "abc", "cab", "abcdefghij"):
        given = kind(letters)
        assert repr(runner(program, X, given)) == repr(program(X, given))
    assert not runner.breaks


def test_a_set_made_of_one_with_holes_in_its_table_has_its_own_order() -> None:
    def program(x: torch.Tensor, given: set[int]) -> Any:
        return x + 1, list(given | {3}), list(given.copy())

    runner = Captured()
    crowded = set(range(100))
    crowded -= set(range(5, 100))
    for given in ({0, 1, 2, 3, 4}, crowded, {0, 1, 2, 3, 4}):
        assert repr(runner(program, X, given)) == repr(program(X, given))
    assert not runner.breaks


def test_a_set_from_outside_is_changed_and_compared() -> None:
    def program(x: torch.Tensor, given: set[str]) -> Any:
        size = len(given | {"q"})
        given.add("d")
        given.discard("a")
        missing = given.difference("bcd")
        return x + size, not missing, given == {"b", "c", "d"}

    runner = Captured(fullgraph=True)
    for _ in range(2):
        ours, theirs = set("abc"), set("abc")
        assert repr(runner(program, X, ours)) == repr(program(X, theirs))
        assert ours == theirs
    assert not runner.breaks


def test_a_set_made_before_the_one_it_is_made_of_changes_keeps_its_items() -> None:
    def program(x: torch.Tensor, given: set[str]) -> Any:
        before = given | {"q"}
        given.add("d")
        after = given | {"r"}
        given.add("e")
        return x + 1, sorted(before), sorted(after)

    runner = Captured()
    for _ in range(2):
        ours, theirs = set("abc"), set("abc")
        assert repr(runner(program, X, ours)) == repr(program(X, theirs))
        assert ours == theirs


def test_a_changed_name_changes_the_words_of_an_error() -> None:
    def function(a: int) -> int:
        return a

    def program(x: torch.Tensor) -> Any:
        return x + 1, errors(lambda: function())  # type: ignore[call-arg]

    runner = Captured()
    for name in ("first", "second", "second"):
        function.__qualname__ = name
        assert repr(runner(program, X)) == repr(program(X))
