"""Each accessor and each check: a value that passes, one that fails, and what `explain` says of it."""

import collections
import gc
import math
import struct
import types
import weakref
from typing import Any

import pytest

from smelt._native import NULL, Guards
from smelt.symbolic.postfix import Op, apply, encode, number, symbol
from tests.native.frames import ANYTHING


class Device:
    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return self.name


FLOAT, HALF = types.SimpleNamespace(name="float"), types.SimpleNamespace(name="half")


class Tensor:
    """The part of a tensor that guards look at."""

    def __init__(
        self,
        dtype: object = FLOAT,
        device: str = "cpu",
        shape: tuple[int, ...] = (2, 3),
        stride: tuple[int, ...] = (3, 1),
        requires_grad: bool = False,
    ) -> None:
        self.dtype, self.device, self.shape = dtype, Device(device), shape
        self.requires_grad, self._stride = requires_grad, stride

    def stride(self) -> tuple[int, ...]:
        return self._stride


class OtherTensor(Tensor):
    pass


class Hiding(Tensor):
    """Its objects hold something under the name of a method."""

    def __init__(self) -> None:
        super().__init__()
        self.stride = len  # type: ignore[assignment]


class Asking(Tensor):
    def __getattribute__(self, name: str) -> Any:
        assert name != "stride", "no check runs this"
        return super().__getattribute__(name)


class Computed:
    @property
    def stride(self) -> None:
        raise AssertionError("no check runs this")


def tensor_check(**changes: Any) -> tuple[Any, ...]:
    fields = {"type": Tensor, "dtype": FLOAT, "device": Device("cpu"), "shape": (2, 3), "stride": (3, 1), "grad": False}
    return ("tensor", *(fields | changes).values())


def root(*checks: tuple[Any, ...], collect: bool = False) -> Guards:
    return Guards(((("slot", 0), checks, (), collect, "x"),))


def reach(*path: tuple[Any, ...], checks: tuple[tuple[Any, ...], ...] = ()) -> Guards:
    """A chain of accessors below slot 0, the last one's value checked and collected."""
    node: tuple[Any, ...] = ()
    for accessor in reversed(path):
        node = ((accessor, () if node else checks, node, not node, "it"),)
    return Guards(((("slot", 0), (), node, False, "x"),))


def outer() -> Any:
    held = 7

    def inner() -> int:
        return held

    return inner


EMPTY = types.CellType()
INNER = outer()


class Holder:
    def __init__(self) -> None:
        self.part = 5


class Slotted:
    __slots__ = ("part",)


ORDERED = collections.OrderedDict(a=1, b=2)


# --- accessors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ((("attr", "part"),), Holder(), 5),
        ((("dict",), ("key", "part")), Holder(), 5),
        ((("dict",), ("key", "run")), type("T", (), {"run": 3}), 3),
        ((("key", "a"),), {"a": 1}, 1),
        ((("key", "b"),), ORDERED, 2),
        ((("key", (1, 2)),), {(1, 2): "pair"}, "pair"),
        ((("item", 1),), (4, 5), 5),
        ((("item", 0),), [4, 5], 4),
        ((("cell",),), types.CellType(3), 3),
        ((("type",),), 3, int),
        ((("globals",),), INNER, globals()),
        ((("builtins",), ("key", "len")), INNER, len),
        ((("closure", 0), ("cell",)), INNER, 7),
        ((("value", "fixed"),), None, "fixed"),
    ],
)
def test_accessor_reaches(path: Any, value: object, expected: object) -> None:
    collected = reach(*path).check([value])
    assert collected is not None
    assert collected[0] is expected or collected[0] == expected


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((("attr", "missing"),), Holder()),
        ((("dict",),), Slotted()),
        ((("dict",),), 3),
        ((("key", "missing"),), {"a": 1}),
        ((("key", "a"),), types.MappingProxyType({"a": 1})),
        ((("key", "b"),), collections.defaultdict(int, a=1)),
        ((("item", 2),), collections.deque([4, 5])),
        ((("key", []),), {"a": 1}),
        ((("item", 2),), (4, 5)),
        ((("item", 2),), [4, 5]),
        ((("item", 0),), {0: 1}),
        ((("cell",),), 3),
        ((("cell",), ("type",)), EMPTY),
        ((("globals",),), 3),
        ((("builtins",),), 3),
        ((("closure", 1),), INNER),
        ((("closure", 0),), outer),
        ((("closure", 0),), 3),
        ((("attr", "x"),), NULL),
    ],
)
def test_accessor_that_cannot_reach_fails(path: Any, value: object) -> None:
    guards = reach(*path)
    assert guards.check([value]) is None
    explained = guards.explain([value])
    assert explained is not None and explained.startswith("it: ")


def test_slot_and_function_slot() -> None:
    guards = Guards(((("slot", 1), (("equals", 2),), (), True, "b"), (("slot", 2), (("is", INNER),), (), True, "f")))
    assert guards.check([1, 2, INNER]) == (2, INNER)
    assert guards.check([1, 3, INNER]) is None
    assert guards.check([1, 2, outer]) is None
    assert guards.check([1, 2]) is None


# --- checks ---------------------------------------------------------------------------------------

NAN = float("nan")

PASSES = [
    (("type", int), 3),
    (("is", INNER), INNER),
    (("equals", 3), 3),
    (("equals", "abc"), "".join(["ab", "c"])),
    (("equals", (1, [2.0, {"k": "v"}])), (1, [2.0, {"k": "v"}])),
    (("equals", NAN), NAN * 1),
    (("equals", complex(1, -0.0)), complex(1, -0.0)),
    (("equals", {1, "a", None, 2.5}), {2.5, None, "a", 1}),
    (("equals", frozenset({1, 2})), frozenset({2, 1})),
    (("equals", range(0, 4, 2)), range(0, 4, 2)),
    (("length", 2), [1, 2]),
    (("length", 0), {}),
    (("keys", ("a", "b")), {"a": 1, "b": 2}),
    (("keys", ("a", "b")), ORDERED),
    (("keys", ()), {}),
    (("lacks", "z"), {"a": 1}),
    (("method", "stride"), Tensor()),
    (("method", "index"), [1]),
    (("unbound",), NULL),
    (("calls", lambda: True, True), 0),
    (("calls", lambda: True, True), NULL),
    (("predicate", lambda value: value > 1), 2),
    (tensor_check(), Tensor()),
    (tensor_check(shape=(None, 3)), Tensor(shape=(9, 3))),
    (tensor_check(stride=(None, 1)), Tensor(stride=(50, 1))),
    (tensor_check(stride=None), Tensor(stride=(7, 7))),
    (tensor_check(grad=True), Tensor(requires_grad=True)),
    (tensor_check(shape=(), stride=()), Tensor(shape=(), stride=())),
]


@pytest.mark.parametrize(("check", "value"), PASSES)
def test_check_holds(check: Any, value: object) -> None:
    guards = root(check)
    assert guards.check([value]) == ()
    assert guards.explain([value]) is None


def raises(*_: object) -> bool:
    raise RuntimeError("boom")


MOVED = collections.OrderedDict(a=1, b=2)
MOVED.move_to_end("a")

FAILS = [
    (("type", int), True, "x: expected type <class 'int'>, got <class 'bool'>"),
    (("is", INNER), 3, None),
    (("is", 3), NULL, "x: expected the very object 3, got nothing: it is unbound"),
    (("equals", True), False, "x: expected True, got False"),
    (("equals", 1), True, "x: expected 1, got True (a bool)"),
    (("equals", 1), 1.0, "x: expected 1, got 1.0 (a float)"),
    (("equals", 0.0), -0.0, "x: expected 0.0, got -0.0"),
    (("equals", complex(0.0, 0.0)), complex(0.0, -0.0), None),
    (("equals", (1, 2)), (1, True), "x: expected (1, 2), got (1, True)"),
    (("equals", (1, 2)), (1, 2, 3), "x: expected (1, 2), got (1, 2, 3)"),
    (("equals", [1]), [True], None),
    (("equals", {1, "a"}), {True, "a"}, None),
    (("equals", {2}), {2.0}, None),
    (("equals", frozenset({0.0})), frozenset({-0.0}), None),
    (("equals", {1, 2}), {1, 3}, None),
    (("equals", range(0, 3, 2)), range(0, 4, 2), None),
    (("equals", {"a": 1}), {"a": True}, None),
    (("equals", {"a": 1, "b": 2}), {"b": 2, "a": 1}, None),
    (("length", 2), [1], "x: expected length 2, got 1"),
    (("length", 2), 5, "x: checking it raised TypeError: object of type 'int' has no len()"),
    (("keys", ("a", "b")), {"b": 1, "a": 2}, "x: expected keys ('a', 'b'), got ('b', 'a')"),
    (("keys", ("a",)), {"a": 1, "b": 2}, "x: expected keys ('a',), got ('a', 'b')"),
    (("keys", (1,)), {True: 1}, None),
    (("keys", ("a", "b")), MOVED, "x: expected keys ('a', 'b'), got ('b', 'a')"),
    (("keys", ()), [], "x: expected a dict with keys (), got []"),
    (("lacks", "a"), {"a": 1}, "x: expected no key 'a', found one"),
    (("method", "stride"), Hiding(), "x: expected 'stride' to be a method of its class"),
    (("method", "stride"), Computed(), "x: expected 'stride' to be a method of its class"),
    (("method", "stride"), Asking(), "x: expected 'stride' to be a method of its class"),
    (("method", "stride"), 3, "x: expected 'stride' to be a method of its class"),
    (("lacks", "a"), [], "x: expected a dict without the key 'a', got []"),
    (("unbound",), 3, "x: expected it unbound, got 3"),
    (("calls", lambda: False, True), 0, "x: expected True, got False"),
    (("calls", lambda: 1, True), 0, "x: expected True, got 1"),
    (("calls", raises, True), 0, "x: checking it raised RuntimeError: boom"),
    (("predicate", raises), 0, "x: checking it raised RuntimeError: boom"),
    (("predicate", lambda value: value > 1), 1, None),
    (tensor_check(), OtherTensor(), None),
    (tensor_check(), Tensor(dtype=HALF), "x: expected dtype namespace(name='float'), got namespace(name='half')"),
    (tensor_check(), Tensor(device="cuda"), "x: expected device cpu, got cuda"),
    (tensor_check(), Tensor(shape=(2, 4)), "x: expected shape (2, 3), got (2, 4)"),
    (tensor_check(), Tensor(shape=(2, 3, 1)), "x: expected shape (2, 3), got (2, 3, 1)"),
    (tensor_check(shape=(None, 3)), Tensor(shape=(2, 4)), "x: expected shape (None, 3), got (2, 4)"),
    (tensor_check(), Tensor(stride=(1, 2)), "x: expected stride (3, 1), got (1, 2)"),
    (tensor_check(), Tensor(requires_grad=True), "x: expected requires_grad False, got True"),
    (tensor_check(), NULL, None),
    (tensor_check(), 3, f"x: expected type {Tensor!r}, got <class 'int'>"),
]


@pytest.mark.parametrize(("check", "value", "words"), FAILS)
def test_check_fails_and_explains(check: Any, value: object, words: str | None) -> None:
    guards = root(check, collect=True)
    assert guards.check([value]) is None
    explained = guards.explain([value])
    assert explained is not None and explained.startswith("x: ")
    if words is not None:
        assert explained == words


def test_nan_is_nan() -> None:
    assert root(("equals", math.nan)).check([float("nan")]) == ()


def test_explain_names_the_source() -> None:
    class Module:
        training = False

    guards = Guards(
        (
            (
                ("slot", 0),
                (),
                ((("attr", "training"), (("equals", True),), (), False, "self.training"),),
                False,
                "self",
            ),
            (
                ("value", {"scale": 2}),
                (),
                ((("key", "scale"), (("equals", 1),), (), False, "globals()['scale']"),),
                False,
                "",
            ),
        )
    )
    module = Module()
    assert guards.explain([module]) == "self.training: expected True, got False"
    module.training = True
    assert guards.explain([module]) == "globals()['scale']: expected 1, got 2"


def test_explain_survives_a_broken_repr() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError

    assert root(("equals", 1)).explain([Broken()]) == "x: expected 1, got a Broken (a Broken)"


# --- trees ----------------------------------------------------------------------------------------


def test_collects_in_tree_order() -> None:
    tree = (
        (("slot", 1), (), ((("item", 0), (), (), True, "b[0]"), (("item", 1), (), (), True, "b[1]")), True, "b"),
        (("slot", 0), (), (), True, "a"),
    )
    assert Guards(tree).check(["a", ("p", "q")]) == (("p", "q"), "p", "q", "a")


def test_collecting_an_unbound_slot_fails() -> None:
    assert Guards(((("slot", 0), (("unbound",),), (), True, "x"),)).check([NULL]) is None
    assert Guards(((("slot", 0), (), (), False, "x"),)).check([NULL]) == ()


def test_distinct() -> None:
    many: list[Any] = [[] for _ in range(200)]
    guards = Guards(tuple((("slot", i), (), (), True, f"t{i}") for i in range(200)), True)
    assert guards.check(many) == tuple(many)
    many[137] = many[5]
    assert guards.check(many) is None
    assert guards.explain(many) == "t5 and t137: expected different objects, got the same one"
    assert Guards(guards.roots).check(many) == tuple(many)
    assert guards.check([1] * 200) == (1,) * 200
    few = Guards(guards.roots[:3], True)
    assert few.check(many[:3]) == tuple(many[:3])
    assert few.check([many[0], 1, many[0]]) is None


def test_deep_and_wide_trees() -> None:
    depth = 20_000
    value: Any = 3
    node: Any = (("item", 0), (("equals", 3),), (), True, "leaf")
    for _ in range(depth):
        value = (value,)
        node = (("item", 0), (), (node,), False, "node")
    guards = Guards(((("slot", 0), (), (node,), False, "root"),))
    assert guards.check([(value,)]) == (3,)
    wide = Guards(tuple((("slot", i), (("equals", i),), (), True, str(i)) for i in range(5000)))
    assert wide.check(range(5000)) == tuple(range(5000))
    assert wide.explain([*range(4999), 0]) == "4999: expected 4999, got 0"
    while isinstance(value, tuple):
        (value,) = value


@pytest.mark.parametrize(
    "roots",
    [
        ((("slot",), (), (), False, "x"),),
        ((("slot", -1), (), (), False, "x"),),
        ((("slot", "a"), (), (), False, "x"),),
        ((("dict", 1), (), (), False, "x"),),
        ((("attr", "a"), (), (), False, "x"),),
        ((("slot", 0), (), ((("attr", 3), (), (), False, "x"),), False, "x"),),
        ((("nowhere", 0), (), (), False, "x"),),
        ((("slot", 0), (("nothing", 0),), (), False, "x"),),
        ((("slot", 0), (("equals",),), (), False, "x"),),
        ((("slot", 0), (("type", 3),), (), False, "x"),),
        ((("slot", 0), (("keys", ["a"]),), (), False, "x"),),
        ((("slot", 0), (("calls", 3, 3),), (), False, "x"),),
        ((("slot", 0), (tensor_check(shape=(1,)),), (), False, "x"),),
        ((("slot", 0), (tensor_check(shape=(1, "a")),), (), False, "x"),),
        ((("slot", 0), ((),), (), False, "x"),),
        (((), (), (), False, "x"),),
        ((("slot", 0), (), (), False),),
        ((("slot", 0), [], (), False, "x"),),
        (3,),
    ],
)
def test_malformed_trees_are_refused(roots: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        Guards(roots)


# --- memory ---------------------------------------------------------------------------------------


def test_predicate_may_drop_everything() -> None:
    held: list[Any] = []

    def drop(_: object) -> bool:
        held.clear()
        gc.collect()
        return True

    leaf = (("item", 0), (("predicate", drop), ("type", list)), ((("item", 0), (), (), True, "leaf"),), True, "item")
    held.append(Guards(((("slot", 0), (), (leaf,), False, "x"),)))
    value = [[[1]]]
    slots = [value]
    assert held[0].check(slots) == ([[1]], [1])


def test_predicate_may_change_what_is_being_read() -> None:
    value: list[Any] = [[1], [2]]

    def shrink(_: object) -> bool:
        value.clear()
        return True

    children = tuple((("item", i), (("predicate", shrink),), (), True, "item") for i in range(2))
    assert Guards(((("slot", 0), (), children, False, "x"),)).check([value]) is None

    class Key:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            mapping.clear()
            return True

    mapping: dict[Any, int] = {Key(): 1, "b": 2}
    assert root(("keys", (Key(), "b"))).check([mapping]) is None


def test_property_errors_are_failures() -> None:
    class Bad:
        @property
        def part(self) -> int:
            raise RuntimeError("no part")

    guards = reach(("attr", "part"))
    assert guards.check([Bad()]) is None
    assert guards.explain([Bad()]) == "it: reading it raised RuntimeError: no part"


def test_cycle_through_guards_is_collected() -> None:
    class Node:
        guards: Guards

    node = Node()
    node.guards = Guards(((("value", node), (("is", node),), (), False, "node"),))
    alive = weakref.ref(node)
    del node
    gc.collect()
    assert alive() is None


def test_empty_guards_hold() -> None:
    assert ANYTHING.check([]) == ()
    assert ANYTHING.explain([]) is None


# Two numbers n and m, q = n // m, and a fact about them.
READINGS = ((0, "number", 0, "n"), (1, "number", 0, "m"))
QUOTIENT = encode(apply(Op.DIV, symbol(0), symbol(1)))


def sized(fact: bytes, readings: Any = READINGS, definitions: Any = (QUOTIENT,)) -> Guards:
    roots = tuple((("slot", i), (), (), True, name) for i, name in enumerate("nm"))
    return Guards(roots, False, (readings, definitions, ((fact, "n // m == 3"),)))


@pytest.mark.parametrize("n, m, holds", [(7, 2, True), (-7, -2, True), (8, 2, False), (-7, 2, False), (1, 0, False)])
def test_facts_about_numbers_are_computed_as_python_would(n: int, m: int, holds: bool) -> None:
    guards = sized(encode(apply(Op.EQ, symbol(2), number(3))))
    assert (guards.check([n, m]) is not None) == holds
    assert guards.explain([8, 2]) == "expected n // m == 3, got n = 8, m = 2"


def test_facts_that_overflow_fail() -> None:
    guards = sized(encode(apply(Op.GE, apply(Op.MUL, symbol(0), symbol(1)), number(0))))
    assert guards.check([2**31, 2**31]) is not None
    assert guards.check([2**32, 2**31]) is None


@pytest.mark.parametrize(
    "fact, readings, definitions",
    [
        (encode(symbol(3)), READINGS, (QUOTIENT,)),  # of three symbols none is number 3
        (encode(symbol(0)), READINGS, (encode(symbol(2)),)),  # defined by itself
        (encode(apply(Op.ADD, symbol(0))), READINGS, ()),  # takes what is not there
        (encode((*symbol(0), *symbol(1))), READINGS, ()),  # leaves two numbers
        (encode(symbol(0))[:-1], READINGS, ()),
        (struct.pack("<2q", 99, 0), READINGS, ()),  # no such instruction
        (encode(symbol(0)), ((2, "number", 0, "k"),), ()),  # nothing of that number is collected
        (encode(symbol(0)), ((0, "weight", 0, "n"),), ()),
        (encode(symbol(0)), ((0, "number"),), ()),
        (encode(symbol(0)), READINGS, (None,)),
    ],
)
def test_malformed_facts_about_sizes_are_refused(fact: bytes, readings: Any, definitions: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        sized(fact, readings, definitions)
