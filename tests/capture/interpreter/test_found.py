"""What generated programs found wrong once, each as small as it could be made."""

import collections
import copy
import enum
import functools
import inspect
import itertools
import types
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import smelt
from tests.capture.programs import Captured, compare

X = torch.arange(6.0).reshape(2, 3)


def test_a_dropped_generator_runs_its_finally() -> None:
    """Python closes a suspended generator when nobody can reach it any more."""
    events: list[str] = []

    def numbers(k: int) -> Iterator[int]:
        try:
            yield k
            yield k + 1
        finally:
            events.append("closed")

    def program(x: torch.Tensor) -> tuple[Any, int]:
        source = numbers(3)
        return x * next(source), len(events)

    runner = Captured()
    for call in range(3):
        assert runner(program, X)[1] == call
        assert len(events) == call + 1


EVENTS: list[str] = []


def closing() -> Iterator[int]:
    yield 0
    try:
        yield 1
        yield 2
    finally:
        EVENTS.append("closed")


def through() -> Iterator[int]:
    for number in closing():  # noqa: UP028  # the inner one is dropped with this one
        yield number


def left_by_break(x: torch.Tensor) -> Any:
    for number in closing():
        if number == 1:
            break
    return x + len(EVENTS)


def deleted_after_a_graph_break(x: torch.Tensor) -> Any:
    source = closing()
    y = x * next(source)
    print(end="")
    y = y + next(source)
    del source
    return y + len(EVENTS)


def dropped_with_another(x: torch.Tensor) -> Any:
    source: Any = through()
    y = x * (next(source) + next(source))
    print(end="")
    source = None
    return y + len(EVENTS), source


@pytest.mark.parametrize("program", [left_by_break, deleted_after_a_graph_break, dropped_with_another])
def test_a_generator_is_closed_where_it_is_dropped(program: Any) -> None:
    """What came behind was computed first, with what the generator had not written yet."""
    compiled = smelt.compile(program, backend="eager")
    for _ in range(3):
        found = []
        for run in (program, compiled):
            EVENTS.clear()
            found.append(run(X))
        assert EVENTS == ["closed"]
        torch.testing.assert_close(found[1], found[0])


def test_the_arguments_of_an_exception_are_one_tuple() -> None:
    def program(x: torch.Tensor) -> Any:
        try:
            raise KeyError(3, x + 1)
        except KeyError as error:
            return error, error.args

    error, args = Captured()(program, X)
    assert error.args is args


def test_iterators_that_the_program_takes_are_pythons_own() -> None:
    """Where a break comes while an iterator is on its way into an object, a list or a call."""
    box = types.SimpleNamespace()

    def program(x: torch.Tensor) -> Any:
        box.__dict__["pairs"] = zip([1, 2], [x, x], strict=True)
        vars(box).update(half=iter([x, x]))
        made = [iter((1, 2)), print("break"), enumerate([x])]
        for item in (walk := iter([1, 2])):
            made += [walk, print(item)]
            break
        return made

    made = Captured()(program, X)
    kinds = [type(each).__name__ for each in (box.pairs, box.half, made[0], made[2], made[3])]
    assert kinds == ["zip", "list_iterator", "tuple_iterator", "enumerate", "list_iterator"]
    assert list(made[3]) == [2]


def test_an_error_before_the_first_write_comes_from_the_programs_line() -> None:
    def program(x: torch.Tensor) -> None:
        x += x

    runner = Captured()
    runner(program, X.clone())
    leaf = X.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="a view of a leaf Variable") as caught:
        runner(program, leaf.view(2, 3))
    assert caught.traceback[-1].name == "program"
    assert caught.value.__context__ is None


def test_views_that_autograd_disowns_are_left_to_python() -> None:
    def program(x: torch.Tensor) -> Any:
        z = x * 2
        for _ in z:
            z.zero_()
            print("turn")
        return z

    runner = compare(program, X.clone().requires_grad_())
    assert "B011" in runner.break_codes


def test_a_generator_that_returns_after_asking_another_has_yielded_nothing() -> None:
    def program(x: torch.Tensor) -> Any:
        def first() -> Any:
            for turn in range(3):
                return next(filter(lambda t: t.dim() == 2, [x]))
                yield turn

        z = x + 1
        for _ in first():
            z = torch.zeros_like(x)
        return z, [*first()]

    runner = compare(program, X)
    assert not runner.breaks


def test_iterators_of_the_library_have_their_own_classes() -> None:
    def program(x: torch.Tensor) -> Any:
        made = [
            itertools.chain([x], [x]),
            itertools.chain.from_iterable([[x]]),
            itertools.product([1], [2]),
            itertools.accumulate([1, 2]),
            filter(None, [1]),
        ]
        kinds = [type(each) for each in made]
        try:
            made[0].send(None)  # type: ignore[attr-defined]
        except AttributeError as error:
            kinds.append(str(error))  # type: ignore[arg-type]
        return x + len(kinds), kinds, isinstance(made[0], types.GeneratorType)

    compare(program, X)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "llvm"])
@pytest.mark.parametrize("grad", [False, True])
def test_what_shares_memory_is_a_view_just_where_it_is_in_eager(backend: str, grad: bool) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        return x.detach(), x.view(-1).detach(), x.detach().view(-1), x[0], y, y.detach(), y.view(-1).detach()

    def seen(tensor: torch.Tensor) -> tuple[Any, ...]:
        made = torch._C._autograd._get_creation_meta(tensor).name if tensor._is_view() else ""
        return tensor._is_view(), made, tensor.requires_grad, tensor.is_leaf

    x = X.clone().requires_grad_(grad)
    assert [*map(seen, smelt.compile(program, backend=backend)(x))] == [*map(seen, program(x))]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "llvm"])
def test_a_leaf_made_by_detach_is_no_view_of_one(backend: str) -> None:
    @smelt.compile(backend=backend)
    def program(x: torch.Tensor) -> None:
        leaf = x.detach().requires_grad_()
        leaf += x

    with pytest.raises(RuntimeError, match=r"^a leaf Variable that requires grad"):
        program(X.clone())


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
def test_what_no_gradient_arrives_for_has_none(backend: str) -> None:
    """Not zeros either: behind a value that was overwritten, and in the graph before it."""

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x - 1
        smelt.graph_break()
        result = y * 6
        z.zero_()
        return result

    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    smelt.compile(program, backend=backend)(x, y).sum().backward()
    assert x.grad is None
    assert y.grad is not None and y.grad.eq(6).all()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "llvm"])
def test_an_error_after_another_write_comes_from_the_programs_line(backend: str) -> None:
    """The first input is written well; Python must not have to begin again after that."""

    @smelt.compile(backend=backend)
    def program(steps: torch.Tensor, x: torch.Tensor) -> None:
        steps.add_(1)
        x += x

    computed = X.clone().requires_grad_() * 1
    program(torch.zeros(1), computed)
    leaf, steps = X.clone().requires_grad_(), torch.zeros(1)
    with pytest.raises(RuntimeError, match="a view of a leaf Variable") as caught:
        program(steps, leaf.view(2, 3))
    assert caught.traceback[-1].name == "program"
    assert caught.value.__context__ is None
    assert steps.item() == 1


def test_a_warning_names_the_frame_that_its_level_says() -> None:
    """Frames of the program, and beyond them those of its callers, with none of smelt's counted."""

    def warned(x: torch.Tensor, level: int) -> torch.Tensor:
        x = x + 1
        warnings.warn("careful", UserWarning, level)
        return x * 2

    def program(x: torch.Tensor, level: int) -> torch.Tensor:
        return warned(x, level=level) + 1

    compiled = smelt.compile(program, backend="eager")
    for level in (1, 2, 3, 4):
        seen = []
        for function in (program, compiled):
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                function(X, level)
            seen.append([(str(each.message), each.category, each.filename, each.lineno) for each in found])
        assert len(seen[0]) == 1 and seen[0] == seen[1]


class Plain:
    pass


def written_then_deleted(x: torch.Tensor, table: dict[str, int], key: str) -> torch.Tensor:
    table[key] = 2
    del table[key]
    return x + 1


def written_then_popped(x: torch.Tensor, table: dict[str, int], key: str) -> torch.Tensor:
    table[key] = 2
    return x + table.pop(key)


def set_then_unset(x: torch.Tensor, thing: Any, key: str) -> torch.Tensor:
    thing.extra = 2
    del thing.extra
    return x + 1


@pytest.mark.parametrize("function", [written_then_deleted, written_then_popped, set_then_unset])
@pytest.mark.parametrize("order", [(True, False), (False, True), (True, False, True)])
def test_what_was_there_before_it_was_written_and_taken_out(function: Any, order: tuple[bool, ...]) -> None:
    """Nothing of it is read, and yet it matters: the real key goes if there was one."""
    compiled = smelt.compile(function, backend="eager", fullgraph=True)
    for there in order:
        if function is set_then_unset:
            thing: Any = Plain()
            thing.extra = 1 if there else None
            if not there:
                del thing.extra
            compiled(torch.ones(1), thing, "a")
            assert vars(thing) == {}
        else:
            table = {"a": 1, "b": 2} if there else {"b": 2}
            compiled(torch.ones(1), table, "a")
            assert table == {"b": 2}


def copied(x: torch.Tensor, thing: Any) -> tuple[torch.Tensor, Any]:
    return x + 1, copy.deepcopy(thing)


def test_a_copy_of_one_object_met_twice_is_one() -> None:
    compiled = smelt.compile(copied, backend="eager")
    for together in (True, False, True):
        thing, inner = Plain(), Plain()
        thing.items = [inner, inner if together else Plain(), thing]  # type: ignore[attr-defined]
        thing.lists = [[1], [1]]  # type: ignore[attr-defined]
        thing.lists[1] = thing.lists[0] if together else [1]  # type: ignore[attr-defined]
        _, found = compiled(torch.ones(1), thing)
        assert found is not thing and found.items[2] is found
        assert (found.items[0] is found.items[1]) is together
        assert (found.lists[0] is found.lists[1]) is together


class Asks:
    """A class that answers for what its property could not."""

    @property
    def wide(self) -> Any:
        return self.missing

    def __getattr__(self, name: str) -> Any:
        if name == "wide":
            return 5
        raise AttributeError(name)


def test_a_getter_that_raises_attribute_error_asks_the_class() -> None:
    def f(x: torch.Tensor, thing: Asks) -> torch.Tensor:
        return x * 2 + thing.wide

    compiled = smelt.compile(f, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(1), Asks()), f(torch.ones(1), Asks()))


def test_a_selection_that_is_all_a_function_does_raises() -> None:
    """A graph without results was not run, though an index was out of range."""

    def f(x: torch.Tensor, index: torch.Tensor) -> None:
        x.index_select(0, index).sum()

    compiled = smelt.compile(f, backend="eager")
    compiled(X, torch.tensor([0, 1]))
    with pytest.raises(IndexError, match="index out of range"):
        compiled(X, torch.tensor([0, 2]))


class Bound:
    def method(self) -> None: ...

    @classmethod
    def of_class(cls) -> None: ...


def test_the_type_of_a_bound_method_tells_c_from_python() -> None:
    def f(x: torch.Tensor, thing: Bound, items: list[int]) -> Any:
        methods = [[].append, items.append, thing.method, Bound.of_class, x.sum, "a".join, dict.fromkeys, (1).__add__]
        return x + 1, tuple(map(type, methods)), dict.fromkeys

    compiled = smelt.compile(f, backend="eager")
    assert compiled(X, Bound(), [1])[1:] == f(X, Bound(), [1])[1:]


def least(values: Any) -> Any:
    return min(values, 5)


def test_an_error_in_a_function_of_c_shows_the_line_that_called_it() -> None:
    """Capture interprets `min`, and its lines are not the user's."""

    def f(x: torch.Tensor, given: Any) -> Any:
        y = x + 1
        return least(given), y

    compiled = smelt.compile(f, backend="eager")
    compiled(X, 3)
    with pytest.raises(RuntimeError, match="ambiguous") as raised:
        compiled(X, X)
    assert [entry.name for entry in raised.traceback][1:] == ["f", "least"]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "llvm"])
def test_a_write_that_autograd_forbids_raises(backend: str) -> None:
    """A compiled graph's result was no longer one of several views, and the write behind it went through."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = (x - y).unbind()[1]
        z += y[0]
        return z

    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        smelt.compile(f, backend=backend)(X.clone().requires_grad_(), X)


def _one_of_several(x: torch.Tensor) -> Any:
    return x.unbind()[1]


def _without_gradients(x: torch.Tensor) -> Any:
    with torch.no_grad():
        return x.t()[1]


def _view(x: torch.Tensor) -> Any:
    return x.t()[1]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "llvm"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("made", [_one_of_several, _without_gradients, _view], ids=lambda made: made.__name__)
def test_who_may_be_written_is_the_same_behind_a_break(backend: str, grad: bool, made: Any) -> None:
    """Results of a compiled graph were tensors that anyone may write, or views that nobody may, whatever eager has."""

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        z = made(x * 2)
        smelt.graph_break()
        z += w.sum()
        return z

    def outcome(call: Any) -> Any:
        x, w = X.clone().requires_grad_(grad), torch.ones(3, requires_grad=True)
        try:
            z = call(x, w)
            z.sum().backward()
        except RuntimeError as error:
            return str(error).split(" is being modified", 1)[1]
        return [None if each is None else each.tolist() for each in (z, w.grad, x.grad)]

    assert outcome(smelt.compile(f, backend=backend)) == outcome(f)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "llvm"])
def test_what_a_detached_result_becomes_does_not_show_in_views_of_the_same_memory(backend: str) -> None:
    """The view was one of the detached result, and came to require grad with it."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        view = y[0]
        return view, y.detach().requires_grad_()

    view, detached = smelt.compile(f, backend=backend)(X)
    assert not view.requires_grad and view._is_view()
    assert detached.requires_grad and not detached._is_view()
    view.zero_()
    assert not detached[0].any()


def calls_itself(x: torch.Tensor, y: torch.Tensor, times: int = 2) -> torch.Tensor:
    if times:
        return calls_itself(x, y, times - 1) * 2
    print("innermost")
    return x + y


def handles_itself(x: torch.Tensor, y: torch.Tensor, times: int = 2) -> torch.Tensor:
    try:
        if times:
            return handles_itself(x, y, times - 1)
        print("innermost")
        return x + y
    except RuntimeError as error:
        raise ValueError("outer") from error


def folds_by_lambda(x: torch.Tensor, y: torch.Tensor) -> Any:
    return (lambda t: t + functools.reduce(lambda a, b: a * 2 + b, [x, y]))(x)


def calls_lambda_by_lambda(x: torch.Tensor, y: torch.Tensor) -> Any:
    return (lambda f, t: f(t))(lambda t: (print("inner"), t + y), x)


def raises_again(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    try:
        return x + y
    except RuntimeError:
        print("passing")
        raise


@pytest.mark.parametrize(
    "program",
    [calls_itself, handles_itself, folds_by_lambda, calls_lambda_by_lambda, raises_again],
    ids=lambda f: f.__name__,
)
def test_a_traceback_has_a_line_for_each_frame(program: Any) -> None:
    """Frames of one code, or of one name and line, were taken for one."""
    compare(program, X, torch.ones(2, 2))


class Counting(type):
    """A metaclass whose operators have effects."""

    def __getitem__(cls, key: int) -> Any:
        SEEN.append(key)
        return cls(key)

    def __contains__(cls, key: object) -> bool:
        SEEN.append(key)
        return key == 1

    def __bool__(cls) -> bool:
        SEEN.append("bool")
        return False

    def __add__(cls, other: int) -> int:
        SEEN.append("add")
        return other + 1


class Counted(metaclass=Counting):
    def __init__(self, key: int) -> None:
        self.key = key


SEEN: list[Any] = []


def operates_on_a_class(x: torch.Tensor, key: int) -> Any:
    found: Any = Counted
    SEEN.clear()
    made = found[key]
    return x * made.key, key in found, 1 if found else 2, found + key, list(SEEN)


class Roomy:
    __slots__ = ("__dict__", "key")

    def __init__(self, key: int) -> None:
        self.key = key


def makes_an_object_of_slots_and_dict(x: torch.Tensor, key: int) -> Any:
    made = Roomy(key)
    made.other = x * made.key  # type: ignore[attr-defined]
    return made.key, made.__dict__, made.other  # type: ignore[attr-defined]


@pytest.mark.parametrize("program", [operates_on_a_class, makes_an_object_of_slots_and_dict], ids=lambda f: f.__name__)
def test_classes_of_unusual_make(program: Any) -> None:
    """Operators of a metaclass ran while the code was captured, and once more; a slot beside a dict was an entry."""
    compare(program, X, 1)
    compare(program, X, 2)


def test_an_object_of_slots_and_dict_is_whole_outside() -> None:
    made = smelt.compile(lambda x: (Roomy(3), x + 1), backend="eager")(X)[0]
    assert made.key == 3 and not made.__dict__


def test_a_cleared_cache_is_filled_by_the_program() -> None:
    """Asking whether an answer is still the same made answers of other arguments."""
    asked: list[int] = []

    @functools.cache
    def table(n: int) -> list[int]:
        asked.append(n)
        return [n]

    compiled = smelt.compile(lambda x, n: x * table(n)[0], backend="eager")
    for n in (2, 3, 4):
        compiled(X, n)
    table.cache_clear()
    asked.clear()
    assert torch.equal(compiled(X, 2), X * 2)
    assert asked == [2]


def test_a_raise_that_breaks_is_worded_once() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            raise ExceptionGroup("several", [ValueError("one")])
        except* ValueError:
            x = x + 1
        return x

    reasons = smelt.explain(program)(X).break_reasons
    assert not [each for each in reasons if each.reason.count("an exception is raised here") > 1]


def with_parameters(a: int, b: int = 1, *, c: int) -> None: ...


def looks_at_parameters(x: torch.Tensor) -> Any:
    shown = inspect.signature(with_parameters).parameters
    print(shown, sorted(shown.keys()))
    return x * shown.keys().__len__(), shown.values().__len__(), type(shown), shown


def test_parameters_of_a_signature_are_the_mapping_they_are() -> None:
    """They were printed as another mapping, and asking their keys for a method was an error inside the compiler."""
    mine, eager = smelt.compile(looks_at_parameters, backend="eager")(X), looks_at_parameters(X)
    assert repr(mine) == repr(eager)
    compare(looks_at_parameters, X)


SCALE = {"by": 1}


class Scaled(enum.Enum):
    """Members whose methods look at what may change."""

    A = 1
    B = 2

    def __str__(self) -> str:
        return f"{self.name}{SCALE['by']}"

    @property
    def scale(self) -> int:
        return SCALE["by"] * int(self.value)


class Weighted(enum.Enum):
    A = 1
    B = 2

    def __add__(self, other: int) -> int:
        return SCALE["by"] + other

    def __bool__(self) -> bool:
        return SCALE["by"] > 1

    def __lt__(self, other: object) -> bool:
        return SCALE["by"] > 1


def asks_members(x: torch.Tensor, scaled: Scaled, weighted: Weighted) -> Any:
    words = str(scaled), f"{scaled:>4}", f"{Scaled.B}"
    numbers = weighted + 1, 1 if weighted else 2, weighted < Weighted.B, Scaled.B.scale
    return x * scaled.scale, words, numbers, scaled is Scaled.A, {Scaled.A: 1}[scaled]


def test_members_of_an_enum_answer_as_they_would_now() -> None:
    """What their properties and operators had answered once was taken for what they always answer."""
    compiled = smelt.compile(asks_members, backend="eager")
    for by in (1, 1, 2, 3, 1):
        SCALE["by"] = by
        mine, eager = (f(X, Scaled.A, Weighted.A) for f in (compiled, asks_members))
        assert torch.equal(mine[0], eager[0]) and mine[1:] == eager[1:]


def imports_from_its_package(x: torch.Tensor) -> Any:
    from ...capture.programs import compare as one
    from ..programs import compare as other

    return x + 1, one is other


def test_an_import_from_the_package_around_is_followed() -> None:
    assert not compare(imports_from_its_package, X).breaks


DROPPED: list[Any] = []


class Resource:
    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        DROPPED.append(self.number)


def drops(x: torch.Tensor) -> Any:
    def inside(t: torch.Tensor) -> torch.Tensor:
        kept = Resource(2)
        return t.sin() * kept.number

    resource: Any = Resource(1)
    y = inside(x)
    DROPPED.append("inside")
    resource = None
    DROPPED.append("outside")
    return y, resource, list(DROPPED)


def test_objects_do_what_they_do_when_they_are_dropped() -> None:
    """Their `__del__` was not called: only Python makes such objects, and goes on to where it drops them."""
    found = []
    for run in (drops, smelt.compile(drops, backend="eager")):
        for _ in range(2):
            DROPPED.clear()
            found.append([run(X)[2], list(DROPPED)])
    assert found[1:] == found[:1] * 3


def test_attributes_of_a_namespace_are_followed() -> None:
    """As settings of a model often are. Each was a break."""

    def program(x: torch.Tensor, settings: types.SimpleNamespace) -> Any:
        settings.calls += 1
        settings.last = x.sum()
        del settings.gone
        y = x * settings.scale if settings.deep.flag else x
        return y, getattr(settings, "missing", 3), hasattr(settings, "gone")

    found = []
    runner = Captured(fullgraph=True)
    for run in (program, functools.partial(runner, program)):
        deep = types.SimpleNamespace(flag=True)
        settings = types.SimpleNamespace(scale=2.0, calls=0, deep=deep)
        for flag in (True, True, False):
            deep.flag, settings.gone = flag, None
            y, *others = run(X, settings)
            found.append((y.tolist(), *others, settings.calls, list(vars(settings))))
    assert found[3:] == found[:3]


def test_a_key_that_is_put_back_comes_last_wherever_it_was() -> None:
    """Where it was last already nothing changes, but that it was is relied on."""
    table, ordered = {"a": 1, "b": 2}, collections.OrderedDict(a=1, b=2)

    def program(x: torch.Tensor, key: str) -> Any:
        ordered.move_to_end(key)
        table[key] = table.pop(key)
        return x + 1

    runner = Captured()
    for key in ("b", "b", "a", "a", "b"):
        runner(program, X, key)
        assert list(ordered)[-1] == key and list(table)[-1] == key
    for mapping in (table, ordered):
        mapping.clear()
        mapping.update(b=1, a=2)
    runner(program, X, "b")
    assert list(ordered) == ["a", "b"] and list(table) == ["a", "b"]


def test_a_tuple_with_all_items_of_another_is_the_same() -> None:
    """`t * 1`, `t + ()` and `t[:]` are `t`, as long as it is a tuple and nothing derived from it."""

    class Derived(tuple[Any, ...]):
        __slots__ = ()

    def program(x: torch.Tensor, given: tuple[Any, ...], derived: Any, items: list[int]) -> Any:
        made, no = (x + 1, items), ()
        whole = [(t * 1, 1 * t, t * True, t + no, no + t, t[:], t[0:], t[:5], t[::1], tuple(t)) for t in (made, given)]
        parts = [(t * 2, t * 0, t + t[:1], t[1:], t[::-1], t[::2]) for t in (made, given)]
        return made, given, whole, parts, (derived * 1, derived[:], derived + no), (items * 1, items[:], 1 * items)

    items = [1, 2]
    found = Captured()(program, X, (3, items), Derived((4, items)), items)
    for same, whole in zip(found[:2], found[2], strict=True):
        assert all(each is same for each in whole)
    assert [len(part) for part in found[3][1]] == [4, 0, 3, 1, 2, 1]
    assert all(type(each) is tuple and each == (4, items) for each in found[4])
    assert all(each == items and each is not items for each in found[5])
