"""Python's own rules: what special methods may answer, how builtins are called, what is equal to what.

Each line is an expression, evaluated by plain Python and by a compiled function that computes with a tensor before and
after it: both give the same, of the same type, or raise the same with the same words, and smelt itself never fails.
"""

import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from smelt.base.errors import SmeltWarning
from tests.capture.programs import Captured

WORLD = """
import collections, functools, itertools, math, operator, bisect, torch
from collections import OrderedDict, defaultdict, deque

def answering(name, value):
    return type("Odd", (), {name: lambda self, *args: value})()

def hinting(value):
    return type("Hint", (), {"__length_hint__": lambda self: value, "__iter__": lambda self: iter([1, 2])})()

nan, other_nan = float("nan"), float("nan")
nans, same_nans, other_nans = [nan, 1.0], [nan, 1.0], [other_nan, 1.0]
one, two = OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)
counts, lists = defaultdict(int, a=1), defaultdict(list)

class Plain:
    pass

class Mine(dict):
    pass

Pair = collections.namedtuple("Pair", "a b")

class Worded(Pair):
    __slots__ = ()
    def __repr__(self): return "worded"

class Odd(Pair):
    __slots__ = ()
    def __add__(self, other): return "add"
    def __contains__(self, item): return True
    def __bool__(self): return False
    def __mul__(self, k): return "mul"
    def __eq__(self, other): return "eq"

worded, odd, plain = Worded(1, 2), Odd(1, 2), Plain()

class OnTheObject:
    def __init__(self):
        self.__len__ = lambda: 5
        self.__iter__ = lambda: iter([1])
        self.__call__ = lambda: 9
        self.__contains__ = lambda item: True
        self.__getitem__ = lambda key: 3
        self.__bool__ = lambda: False
        self.__enter__ = lambda: 1
        self.__exit__ = lambda *error: None
        self.__next__ = lambda: 1

on_the_object = OnTheObject()

def entered(manager):
    with manager as value:
        return value

class ByItems:
    def __getitem__(self, key):
        if key > 2:
            raise IndexError
        return key * 2

by_items = ByItems()

class Counted:
    def __init__(self): self.asked = 0
    def __len__(self):
        self.asked += 1
        return 2
    def __iter__(self): return iter([1, 2])

def asked(function):
    counted = Counted()
    return function(counted), counted.asked

class Base:
    level = 1
    @staticmethod
    def static(): return super().__repr__()
    @staticmethod
    def of_one(value): return super().__eq__(value)
    @staticmethod
    def of_any(*values): return super().__eq__(values)
    @classmethod
    def of_class(cls): return super().__name__
    def deleted(self):
        del self
        return super().__init__()
    def replaced(self):
        self = 3
        return super().__init__()

class Child(Base):
    @property
    def failing(self): raise AttributeError("failing")
    def __getattr__(self, name): return ("asked", name)

class Hooked:
    def __init__(self): self.x = 1
    def __getattribute__(self, name):
        if name == "refused": raise AttributeError("refused!")
        if name == "worse": raise ValueError("worse!")
        return object.__getattribute__(self, name)
    def __getattr__(self, name):
        if name == "denied": raise AttributeError("denied")
        return ("asked", name)

class Catching:
    def __getattribute__(self, name):
        try:
            return super().__getattribute__(name)
        except AttributeError:
            return "caught " + name
    def __getattr__(self, name): return "never"

class Plainly:
    def __getattr__(self, name): return "asked " + name
    def plainly(self): return object.__getattribute__(self, "missing")

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))

child, hooked, catching, plainly, model = Child(), Hooked(), Catching(), Plainly(), Model()

def naming_itself():
    def inner(n):
        return inner if n == 0 else inner(n - 1)
    return inner, inner(2)

def naming_each_other():
    def even(n): return n == 0 or odd(n - 1)
    def odd(n): return n != 0 and even(n - 1)
    return even, odd

def holding_itself():
    inside = []
    whole = (inside,)
    inside.append(whole)
    return whole

def own_nan():
    q = float("nan")
    return (q in [q], [q].index(q), [q].count(q), (q,) == (q,), [q] == [q], {"a": q} == {"a": q}, q == q, q is q,
            q in {q}, q in {q: 1}, q in (q,), q in deque([q]))

def numbers(count, seen):
    for k in range(count):
        seen.append(k)
        yield k

def unpacked():
    seen = []
    try:
        a, b = numbers(5, seen)
    except ValueError as error:
        return str(error), seen

def reading_itself(kind):
    made = kind()
    def pairs():
        for key in "abc":
            yield key, len(made)
    made.update(pairs())
    return sorted(made.items() if kind is dict else made)
"""


def _shown(value: Any) -> Any:
    if type(value) in (tuple, list):
        return type(value), [_shown(item) for item in value]
    return type(value).__name__, re.sub(r"0x[0-9a-f]+", "…", repr(value))


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        result = call()
    except Exception as error:
        return "raised", type(error).__name__, str(error)
    try:
        return _shown(result)
    except Exception as error:
        return "cannot be shown", type(error).__name__, str(error)


_WORLD = compile(WORLD, "<world>", "exec")


def check(expression: str, *, both: bool = True) -> None:
    """Both give the same, where the exception is handled inside, and where it is not."""
    text = f"""
def handled(x):
    y = x + 1
    try:
        found = {expression}
    except Exception as error:
        found = type(error), str(error)
    return y * 2, found

def free(x):
    return {expression}, x + 1
"""
    code = compile(text, "<rules>", "exec")
    x = torch.ones(2)
    for name in ("handled", "free") if both else ("handled",):
        outcomes = []
        for compiled in (False, True):
            world: dict[str, Any] = {"__name__": "rules"}
            exec(_WORLD, world)
            exec(code, world)
            runner: Any = Captured() if compiled else (lambda function, *args: function(*args))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                warnings.simplefilter("error", SmeltWarning)
                outcomes.append([_outcome(lambda: runner(world[name], x)) for _ in range(2)])  # noqa: B023
        assert outcomes[1] == outcomes[0]


ANSWERS = {
    "__bool__": ["bool({})", "not {}", "1 if {} else 2", "any([{}])", "all([{}])", "list(filter(None, [{}]))"],
    "__len__": ["len({})", "bool({})", "not {}"],
    "__index__": ["[1, 2, 3][{}]", "(1, 2)[{}]", "deque([1, 2])[{}]", "[1, 2].pop({})", "[1].insert({}, 2)"],
    "__contains__": ["1 in {}", "1 not in {}", "operator.contains({}, 1)"],
    "__iter__": ["list({})", "[i for i in {}]", "iter({}) and 1", "1 in {}", "sum({})", "list(zip({}))", "[*{}]"],
    "__format__": ["format({})", "f'{{{}}}'", "format({}, '>5')", "'{{}}'.format({})"],
    "__str__": ["str({})", "f'{{{}}}'", "f'{{{}!s}}'", "'%s' % ({},)", "format({})"],
    "__repr__": ["repr({})", "str({})", "f'{{{}!r}}'", "'%r' % ({},)", "format({})", "repr([{}])"],
    "__hash__": ["hash({})", "{{{}: 1}} and 1", "len({{{}}})"],
    "__int__": ["int({})", "float({})"],
    "__float__": ["float({})", "math.sqrt({})"],
    "__next__": ["next({})"],
    "__call__": ["{}()"],
    "__getitem__": ["{}[0]", "{}['a']"],
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("answer", ["None", "True", "1.5", "chr(97)", "-1", "2 ** 70"])
def test_special_methods_that_answer_what_they_must_not(name: str, answer: str) -> None:
    for expression in ANSWERS[name]:
        check(expression.format(f'answering("{name}", {answer})'), both=False)


@pytest.mark.parametrize("answer", ["None", "'s'", "-1", "3", "NotImplemented"])
def test_length_hints_are_asked_and_checked(answer: str) -> None:
    for expression in ("list({})", "tuple({})", "sorted({})", "[*{}]", "[].extend({})", "set({})", "sum({})"):
        check(expression.format(f"hinting({answer})"))


BUILTINS = (
    "abs all any ascii bin bool callable chr complex delattr dict divmod enumerate filter float format frozenset "
    "getattr hasattr hex int isinstance issubclass iter len list map max min next oct ord pow range repr reversed "
    "round set setattr slice sorted str sum super tuple type zip"
)


@pytest.mark.parametrize("name", BUILTINS.split())
def test_builtins_refuse_what_pythons_do(name: str) -> None:
    for arguments in (
        "", "[1, 2]", "[1, 2], [3]", "plain, 'a'", "1, 2, 3, 4", "[1], bogus=1", "[1], 1, start=2",
        "[1], [2], default=3", "[2, 1], reverse=None",
    ):  # fmt: skip
        check(f"{name}({arguments})", both=False)


METHODS = {
    "[1, 2]": "append extend insert pop remove clear reverse copy sort index count __len__ __getitem__ __iter__",
    "(1, 2)": "index count __len__ __getitem__ __contains__",
    "{'a': 1}": "get pop setdefault copy clear popitem keys values items update __getitem__ __setitem__ __len__",
    "OrderedDict(a=1)": "move_to_end popitem update pop copy keys",
    "{1, 2}": "add discard remove clear update difference_update union __contains__",
    "deque([1, 2], 3)": "append appendleft extend pop popleft rotate clear copy",
    "(i for i in [1])": "send __next__ close throw",
}


@pytest.mark.parametrize("receiver", METHODS)
def test_methods_refuse_what_pythons_do(receiver: str) -> None:
    for name in METHODS[receiver].split():
        for arguments in ("", "1", "[1, 2]", "1, 2, 3"):
            check(f"{receiver}.{name}({arguments})", both=False)


@pytest.mark.parametrize(
    "expression",
    [
        *["itertools.count([1], [2])", "itertools.combinations([1], -1)", "itertools.permutations([1], 'a')"],
        *["itertools.islice([1], 'a')", "itertools.islice([1], -1)"],
        *["itertools.islice([1])", "itertools.tee([1], 'a')"],
        *["itertools.repeat([1], None)", "itertools.product([1], repeat=-1)", "functools.reduce(max, 1)"],
        *["functools.partial(1)", "defaultdict(1)", "OrderedDict([1], [2])"],
        *["operator.itemgetter()", "bisect.bisect(x, 1)"],
        *["{}.update({1: 2}, {3: 4})", "{}.update([(1, 2), 3])", "dict([(1, 2, 3)])", "Mine([1])", "dict(['ab'])"],
        *["isinstance(1, int, bogus=2)", "list(map(max, [1], [2], strict=True))", "min(1, 2, default=3)", "min([])"],
        *["(lambda *a: a)(*plain)", "(lambda **k: k)(**plain)", "[*plain]", "{**plain}", "(lambda: 1)(*3)", "[*3]"],
        *["getattr(plain, 3)", "setattr(plain, 3, 4)", "sum(['a'], '')", "sum([[1], [2]], [])", "{[1]}", "[1] in {1}"],
    ],
)
def test_calls_that_python_refuses(expression: str) -> None:
    check(expression)


@pytest.mark.parametrize(
    "expression",
    [
        *["nan in nans", "other_nan in nans", "nans == same_nans", "nans == other_nans", "nans != same_nans"],
        *["nans.index(nan)", "nans.count(nan)", "[nan].remove(nan)", "[other_nan].remove(nan)", "nan in {nan}"],
        *["nan in {'a': nan}.values()", "{'a': nan} == {'a': nan}", "{'a': nan} == {'a': other_nan}", "nan is nans[0]"],
        *["nans[0] is same_nans[0]", "nan is other_nan", "nan in deque(nans)", "(nan, 1) < (nan, 2)", "own_nan()"],
        *["(other_nan, 1) < (nan, 2)", "{nan: 1} == {nan: 1}", "deque([nan]) == deque([nan])", "sorted([nan, 1.0])"],
    ],
)
def test_a_nan_is_found_by_what_it_is(expression: str) -> None:
    check(expression)


@pytest.mark.parametrize(
    "expression",
    [
        *["one == two", "one != two", "one == dict(two)"],
        *["dict(one) == two", "[one] == [two]", "{'k': one} == {'k': two}"],
        *["one in [two]", "[two, one].index(one)", "OrderedDict(a=x) == OrderedDict(a=x)", "one | {'c': 3}"],
        *["{'c': 3} | one", "counts | {'b': 2}", "{'b': 2} | counts"],
        *["one | counts", "counts | one", "counts == {'a': 1}"],
        *["repr(one)", "f'{one}'", "repr(counts)", "str(counts)", "f'{counts}'", "format(lists)", "repr([counts])"],
        *["str((one, counts))", "'%s' % one", "repr(defaultdict(int))", "repr(OrderedDict(a=1))", "f'{counts!r:>50}'"],
        *["worded", "str(worded)", "f'{worded}'", "str([worded])", "odd + (3,)", "5 in odd", "bool(odd)", "odd * 2"],
        *["odd == (1, 2)", "(1, 2) == odd", "[odd] == [(1, 2)]"],
        *["1 if odd else 2", "Odd(1, 2) + (3,)", "Pair(1, 2) + (3,)"],
    ],
)
def test_containers_are_equal_and_worded_by_their_class(expression: str) -> None:
    check(expression)


@pytest.mark.parametrize(
    "expression",
    [
        *["len(on_the_object)", "list(on_the_object)", "on_the_object()", "3 in on_the_object", "on_the_object[0]"],
        *["bool(on_the_object)", "entered(on_the_object)", "next(on_the_object)", "list(by_items)", "4 in by_items"],
        *["[k for k in by_items]", "sum(by_items)", "[*by_items]", "len(int)", "iter(int)", "1 in int", "plain()"],
        *["asked(list)", "asked(tuple)", "asked(sorted)", "asked(set)", "asked(sum)", "asked(max)"],
        *["asked(lambda c: [*c])", "asked(lambda c: [].extend(c))"],
        *["asked(lambda c: max(*c))", "asked(lambda c: [k for k in c])"],
        *["unpacked()", "reading_itself(dict)", "reading_itself(set)"],
    ],
)
def test_special_methods_are_looked_up_on_the_class(expression: str) -> None:
    check(expression)


@pytest.mark.parametrize(
    "expression",
    [
        *["Base.static()", "Base().static()", "Base.of_one(3)"],
        *["Base.of_one(child)", "Base.of_any()", "Base.of_any(1)"],
        *["Child.of_class()", "Base().deleted()", "Base().replaced()"],
        *["super(Base, 3)", "super(Base, child)", "super()"],
        *["super(Child, child).level", "super(int, child).x", "child.failing", "getattr(child, 'failing', 1)"],
        *["hooked.x", "hooked.y", "hooked.refused", "hooked.worse", "hooked.denied", "getattr(hooked, 'denied', 1)"],
        *["hasattr(hooked, 'refused')", "hasattr(hooked, 'denied')", "catching.x", "plainly.plainly()", "plainly.x"],
        *["Hooked().refused", "Hooked().denied", "Catching().x", "Plainly().plainly()", "Hooked().x"],
        *["object.__getattribute__(plainly, 'x')", "object.__getattribute__(model, 'weight')", "model.weight"],
    ],
)
def test_super_and_attribute_hooks(expression: str) -> None:
    check(expression)


def test_super_where_nobody_handles_what_it_raises() -> None:
    """Python looks at the frame of the program, also where the call is left to it."""

    def without_class(x: torch.Tensor) -> Any:
        y = x + 1
        return super().__init__(), y  # type: ignore[misc]

    class Base:
        def dropped(self, x: torch.Tensor) -> Any:
            y = x + 1
            del self
            return super().__init__(), y  # type: ignore[misc]

    for function, text in ((without_class, "__class__ cell not found"), (Base().dropped, "arg.0. deleted|'self'")):
        raised: list[BaseException] = []
        for call in (function, lambda x, function=function: Captured()(function, x)):
            with pytest.raises((RuntimeError, UnboundLocalError), match=text) as caught:
                call(torch.ones(2))  # type: ignore[operator]
            raised.append(caught.value)
        plain, captured = raised  # from 3.12 on Python reads `self` itself, before it asks super()
        assert type(captured) is type(plain) and str(captured) == str(plain)


def test_a_class_method_over_a_property() -> None:
    """Until 3.12 it is the property of the class; from 3.13 on it is a method that cannot be called."""

    class Named:
        kind = classmethod(property(lambda cls: cls.__name__ + "!"))  # type: ignore[arg-type]

    def program(x: torch.Tensor, named: Any) -> Any:
        return x + 1, Named.kind, named.kind

    plain, captured = program(torch.ones(2), Named()), Captured()(program, torch.ones(2), Named())
    assert [repr(part)[:12] for part in captured] == [repr(part)[:12] for part in plain]
    if sys.version_info < (3, 13):
        assert captured[1:] == ("Named!", "Named!")


def test_a_function_that_names_itself_is_itself() -> None:
    for expression in (
        "(lambda p: p[0] is p[1])(naming_itself())",
        "(lambda p: p[0](3) is p[0])(naming_itself())",
        "(lambda f: f.__closure__[0].cell_contents is f)(naming_itself()[0])",
        "(lambda p: p[0].__closure__[0].cell_contents is p[1])(naming_each_other())",
    ):
        check(expression)
    world: dict[str, Any] = {}
    exec(WORLD, world)
    inner, same = Captured()(world["naming_itself"])
    assert inner is same and inner(3) is inner
    even, odd = Captured()(world["naming_each_other"])
    assert {cell.cell_contents for each in (even, odd) for cell in each.__closure__} == {even, odd}
    whole = Captured()(world["holding_itself"])
    assert whole[0][0] is whole


def test_a_sum_of_floats_is_pythons() -> None:
    """From 3.12 on, `sum` keeps what rounding takes from the running sum."""
    for expression in (
        "sum([0.1] * 10)",
        "sum([1e16, 1.0, -1e16])",
        "sum([1, 0.1, 0.2, 0.3], 0.0)",
        "sum([1e16, 1.0, -1e16], start=0.5)",
        "sum([float('inf'), -float('inf')])",
        "sum([0.1] * 10 + [x])",
        "sum([1e100, 1, -1e100, 2 ** 70])",
        "sum([1, 2, True])",
        "sum([1.5, 2j])",
    ):
        check(expression)


def test_expressions_read_the_characters_of_subclasses_of_str() -> None:
    """As torchao asks for the version of PyTorch."""

    def program(x: torch.Tensor) -> Any:
        found = re.match(r"(\d+)\.(\d+)", torch.__version__)
        assert found is not None
        return x + int(found.group(1)), re.sub("[0-9]", "n", torch.__version__)

    captured = Captured()
    result = captured(program, torch.ones(2))
    assert torch.equal(result[0], program(torch.ones(2))[0]) and result[1] == program(torch.ones(2))[1]
    assert type(result[1]) is str and not captured.breaks
