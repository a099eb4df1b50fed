"""Shortcuts: guards that held twice look at little, and still notice whatever a first look would notice.

Every test holds guards that took the fast path against new ones made from the same tree, after each change.
"""

import collections
import contextlib
import gc
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from smelt._native import Guards

Node = tuple[Any, ...]


class Thing:
    """An object whose attributes guards read."""

    shared: Any = 1

    def __init__(self, **members: Any) -> None:
        self.__dict__.update(members)


class Other(Thing):
    pass


def node(accessor: tuple[Any, ...], *below: Node, checks: tuple[Any, ...] = (), collect: bool = False) -> Node:
    return (accessor, checks, below, collect, str(accessor))


def attribute(name: str, *below: Node, checks: tuple[Any, ...] = (), collect: bool = False) -> Node:
    return node(("dict",), node(("key", name), *below, checks=checks, collect=collect))


def armed(root: Node, *slots: Any) -> Guards:
    guards = Guards((root,))
    for _ in range(3):
        assert guards.check(slots) is not None
    assert guards.fast_path is not None
    return guards


def same_answer(guards: Guards, *slots: Any) -> bool:
    """Whether all holds, after checking that new guards say so too and collect the same."""
    fresh, found = Guards(guards.roots).check(slots), guards.check(slots)
    assert (found is None) == (fresh is None), guards.explain(slots)
    if found is not None and fresh is not None:
        assert [id(value) for value in found] == [id(value) for value in fresh]
    return found is not None


THING = (("type", Thing),)


def test_an_attribute_assigned_deleted_and_back_again() -> None:
    first, second = object(), object()
    thing = Thing(a=first)
    guards = armed(node(("slot", 0), attribute("a", checks=(("is", first),)), checks=THING), thing)
    thing.a = second
    assert not same_answer(guards, thing)
    thing.a = first
    assert same_answer(guards, thing)
    del thing.a
    assert not same_answer(guards, thing)
    thing.a = first
    assert same_answer(guards, thing)
    thing.b = 1
    assert same_answer(guards, thing)
    assert not same_answer(guards, Thing(a=second))
    assert same_answer(guards, Thing(a=first))


class Plain:
    """Its attributes are assigned one by one: from 3.13 on CPython keeps them in the object, beside no dict at all."""

    def __init__(self, a: object) -> None:
        self.a = a
        self.b, self.c = 2, 3


def test_attributes_kept_in_the_object_itself() -> None:
    def write(thing: Plain, value: object) -> None:
        thing.a = value

    first, second = object(), object()
    checks = (("keys", ("a", "b", "c")),)
    things = [Plain(first) for _ in range(3)]
    for thing in things:
        for _ in range(20):  # CPython has learned by heart how to write it
            write(thing, first)
        seen = node(("dict",), node(("key", "a"), checks=(("is", first),)), checks=checks)
        guards = armed(node(("slot", 0), seen, checks=(("type", Plain),)), thing)
        facts, questions = guards.fast_path or (0, 0)
        assert facts > 0 and questions == 0
        for value in (second, first) * 10:
            write(thing, value)
            assert same_answer(guards, thing) == (value is first)
        for _ in range(3):
            assert same_answer(guards, thing)
        thing.d = 4  # type: ignore[attr-defined]
        assert not same_answer(guards, thing)
        del thing.d  # type: ignore[attr-defined]
        assert same_answer(guards, thing)
        del thing.b
        thing.b = 2
        assert not same_answer(guards, thing)  # in another order
    assert all(vars(thing) == {"a": first, "c": 3, "b": 2} for thing in things)


def test_attributes_are_left_as_they_are() -> None:
    thing = Plain(1)
    names = iter(vars(thing))
    assert next(names) == "a"
    armed(node(("slot", 0), attribute("a", checks=(("equals", 1),)), checks=(("type", Plain),)), thing)
    assert list(names) == ["b", "c"] and list(vars(thing).items()) == [("a", 1), ("b", 2), ("c", 3)]
    assert list(vars(Plain(1))) == ["a", "b", "c"]


def test_a_counter_beside_what_is_read() -> None:
    inner = Thing(x=5)
    thing = Thing(count=0, inner=inner)
    tree = node(
        ("slot", 0),
        attribute("inner", attribute("x", checks=(("equals", 5),)), checks=THING, collect=True),
        checks=THING,
    )
    guards = armed(tree, thing)
    for step in range(10):
        thing.count += 1
        assert same_answer(guards, thing)
        assert guards.fast_path is not None, step
    inner.x = 6
    assert not same_answer(guards, thing)
    inner.x = 5
    assert same_answer(guards, thing)
    thing.inner = Thing(x=5)
    assert same_answer(guards, thing)
    thing.inner = Thing(x=6)
    assert not same_answer(guards, thing)
    thing.inner = Other(x=5)
    assert not same_answer(guards, thing)


def test_the_dict_of_an_instance_replaced() -> None:
    thing = Thing(a=1)
    guards = armed(node(("slot", 0), attribute("a", checks=(("equals", 1),)), checks=THING), thing)
    thing.__dict__ = {"a": 2}
    assert not same_answer(guards, thing)
    thing.__dict__ = {"a": 1}
    assert same_answer(guards, thing)
    vars(thing)["a"] = 3
    assert not same_answer(guards, thing)


def test_the_class_of_an_instance_replaced() -> None:
    thing = Thing(inner=Thing(a=1))
    tree = node(("slot", 0), attribute("inner", attribute("a", checks=(("equals", 1),)), checks=THING), checks=THING)
    guards = armed(tree, thing)
    thing.inner.__class__ = Other
    assert not same_answer(guards, thing)
    thing.inner.__class__ = Thing
    assert same_answer(guards, thing)
    thing.__class__ = Other
    assert not same_answer(guards, thing)


def test_keys_order_and_absence() -> None:
    table = {"a": 1, "b": 2}
    checks = (("type", dict), ("keys", ("a", "b")), ("lacks", "c"))
    guards = armed(node(("slot", 0), node(("key", "a"), checks=(("equals", 1),)), checks=checks), table)
    table["c"] = 1
    assert not same_answer(guards, table)
    del table["c"]
    assert same_answer(guards, table)
    table["a"] = table.pop("a")
    assert not same_answer(guards, table)
    assert not same_answer(guards, {"b": 2, "a": 1})
    assert same_answer(guards, {"a": 1, "b": 2})


def test_the_order_of_an_ordered_dict() -> None:
    table = collections.OrderedDict(a=1, b=2)
    held = Thing(table=table)
    checks = (("keys", ("a", "b")), ("length", 2))
    tree = node(("slot", 0), attribute("table", node(("key", "a"), collect=True), checks=checks), checks=THING)
    guards = armed(tree, held)
    table.move_to_end("a")
    assert not same_answer(guards, held)
    table.move_to_end("b")
    assert same_answer(guards, held)


def test_empty_registries_filled() -> None:
    thing = Thing(hooks=collections.OrderedDict(), plain={}, items=[])
    empty = (("length", 0),)
    tree = node(
        ("slot", 0),
        node(("dict",), *(node(("key", name), checks=empty) for name in ("hooks", "plain", "items"))),
        checks=THING,
    )
    guards = armed(tree, thing)
    for container, fill in ((thing.hooks, {1: 2}.items()), (thing.plain, {1: 2}.items())):
        container.update(fill)
        assert not same_answer(guards, thing)
        container.clear()
        assert same_answer(guards, thing)
    thing.items.append(1)
    assert not same_answer(guards, thing)
    thing.items.clear()
    assert same_answer(guards, thing)


def test_items_of_lists_and_tuples() -> None:
    thing = Thing(items=[Thing(a=1), 7, (8, 9)])
    items = (
        node(("item", 0), attribute("a", checks=(("equals", 1),)), checks=THING),
        node(("item", 1), checks=(("equals", 7),)),
        node(("item", 2), node(("item", 1), checks=(("equals", 9),)), checks=(("type", tuple), ("length", 2))),
    )
    root = node(("slot", 0), attribute("items", *items, checks=(("type", list), ("length", 3))), checks=THING)
    guards = armed(root, thing)
    for index, changed in ((0, Thing(a=2)), (1, 8), (1, 7.0), (2, (8, 10)), (2, [8, 9]), (2, (8, 9, 9))):
        before = thing.items[index]
        thing.items[index] = changed
        assert not same_answer(guards, thing)
        thing.items[index] = before
        assert same_answer(guards, thing)
    thing.items.append(1)
    assert not same_answer(guards, thing)
    thing.items.pop()
    thing.items[:] = [Thing(a=1), 7, (8, 9)]
    assert same_answer(guards, thing)
    thing.items = thing.items[:2]
    assert not same_answer(guards, thing)


def outer(value: Any) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    def read() -> Any:
        return value

    def write(new: Any) -> None:
        nonlocal value
        value = new

    return read, write


def test_cells_and_closures() -> None:
    read, write = outer(1)
    tree = node(("slot", 0), node(("closure", 0), node(("cell",), checks=(("equals", 1),))))
    guards = armed(tree, read)
    write(2)
    assert not same_answer(guards, read)
    write(1)
    assert same_answer(guards, read)
    for value in (1, 2, 1, 3, 2, 1):
        read, _ = outer(value)  # often where the last one lay
        assert same_answer(guards, read) == (value == 1)
    cell = types.CellType(5)
    guards = armed(node(("slot", 0), node(("cell",), checks=(("equals", 5),))), cell)
    cell.cell_contents = 6
    assert not same_answer(guards, cell)
    del cell.cell_contents
    assert not same_answer(guards, cell)


def test_an_empty_cell() -> None:
    cell = types.CellType()
    guards = armed(node(("slot", 0), node(("cell",), checks=(("unbound",),))), cell)
    cell.cell_contents = None
    assert not same_answer(guards, cell)


def test_code_defaults_and_globals_of_a_function() -> None:
    def function(a: int = 1, *, b: int = 2) -> int:
        return a + b

    def replacement(a: int = 1, *, b: int = 2) -> int:
        return a - b

    code, defaults = function.__code__, function.__defaults__
    tree = node(
        ("slot", 0),
        node(("attr", "__code__"), checks=(("is", code),)),
        node(("attr", "__defaults__"), checks=(("equals", (1,)),)),
        node(("attr", "__kwdefaults__"), node(("key", "b"), checks=(("equals", 2),))),
        node(("globals",), node(("key", "Thing"), checks=(("is", Thing),))),
        checks=(("type", types.FunctionType),),
    )
    guards = armed(tree, function)
    function.__code__ = replacement.__code__
    assert not same_answer(guards, function)
    function.__code__ = code
    function.__defaults__ = (2,)
    assert not same_answer(guards, function)
    function.__defaults__ = None
    assert not same_answer(guards, function)
    function.__defaults__ = defaults
    assert same_answer(guards, function)
    assert function.__kwdefaults__ is not None
    function.__kwdefaults__["b"] = 3
    assert not same_answer(guards, function)
    function.__kwdefaults__ = {"b": 2}
    assert same_answer(guards, function)


def test_no_defaults_become_some() -> None:
    def function(a: int) -> int:
        return a

    guards = armed(node(("slot", 0), node(("attr", "__defaults__"), checks=(("is", None),))), function)
    function.__defaults__ = (1,)
    assert not same_answer(guards, function)
    function.__defaults__ = None
    assert same_answer(guards, function)


def test_methods() -> None:
    thing = Thing(a=1)
    method = types.MethodType(Thing.__init__, thing)
    below = node(("attr", "__self__"), attribute("a", checks=(("equals", 1),)), checks=THING)
    guards = armed(node(("slot", 0), below, checks=(("type", types.MethodType),)), method)
    thing.a = 2
    assert not same_answer(guards, method)
    assert not same_answer(guards, types.MethodType(Thing.__init__, Thing(a=2)))
    assert same_answer(guards, types.MethodType(Thing.__init__, Thing(a=1)))


def test_classes_and_their_bases() -> None:
    class Base:
        method: Any = len

    class Middle(Base):
        pass

    class Leaf(Middle):
        pass

    class Elsewhere(Base):
        method: Any = max

    root = node(("value", Leaf), checks=(("class has", "method", len), ("class lacks", "extra")))
    guards = armed(root)
    assert same_answer(guards)
    Leaf.method = max
    assert not same_answer(guards)
    del Leaf.method
    assert same_answer(guards)
    Base.method = max
    assert not same_answer(guards)
    Base.method = len
    Middle.extra = 1  # type: ignore[attr-defined]
    assert not same_answer(guards)
    del Middle.extra  # type: ignore[attr-defined]
    assert same_answer(guards)
    Leaf.__bases__ = (Elsewhere,)
    assert not same_answer(guards)
    Leaf.__bases__ = (Middle,)
    assert same_answer(guards)


def test_attributes_read_through_the_class() -> None:
    class Base:
        limit: Any = 1

    class Leaf(Base):
        def method(self) -> int:
            return 1

        @property
        def computed(self) -> int:
            return 1

    method = Leaf.method
    root = node(
        ("value", Leaf),
        node(("attr", "limit"), checks=(("equals", 1),), collect=True),
        node(("attr", "method"), node(("attr", "__code__"), checks=(("is", method.__code__),))),
        node(("attr", "computed"), checks=(("type", property),)),
    )
    guards = armed(root)
    Base.limit = 2
    assert not same_answer(guards)
    Base.limit = 1
    assert same_answer(guards)
    method.__code__ = (lambda self: 2).__code__
    assert not same_answer(guards)
    assert guards.fast_path == (2, 1)  # the class, the field of the function; the property is asked for


def test_class_checks_say_what_they_found() -> None:
    assert Guards((node(("value", Thing), checks=(("class has", "shared", 1),)),)).check(()) == ()
    guards = Guards((node(("value", Thing), checks=(("class has", "shared", 2),)),))
    assert guards.check(()) is None
    assert (
        guards.explain(())
        == "('value', <class 'tests.native.test_native_fast_path.Thing'>): expected 2 under 'shared', got 1"
    )
    guards = Guards((node(("value", Thing), checks=(("class has", "nowhere", 2),)),))
    assert str(guards.explain(())).endswith("expected 2 under 'nowhere', got nothing")
    guards = Guards((node(("value", Thing), checks=(("class lacks", "shared"),)),))
    assert str(guards.explain(())).endswith("expected nothing under 'shared', found something")
    assert Guards((node(("value", Thing), checks=(("class lacks", "nowhere"),)),)).check(()) == ()
    assert Guards((node(("value", 3), checks=(("class lacks", "nowhere"),)),)).check(()) is None
    with pytest.raises(TypeError, match="needs a name"):
        Guards((node(("value", Thing), checks=(("class lacks", 3),)),))


def test_calls_and_predicates_are_asked_each_time() -> None:
    state = [True]
    thing = Thing(a=[1])
    tree = node(
        ("slot", 0),
        attribute("a", checks=(("predicate", lambda items: items == [1]),)),
        node(("value", None), checks=(("calls", lambda: state[0], True),)),
        checks=THING,
    )
    guards = armed(tree, thing)
    state[0] = False
    assert not same_answer(guards, thing)
    state[0] = True
    thing.a.append(2)
    assert not same_answer(guards, thing)
    thing.a.pop()
    assert same_answer(guards, thing)


def test_a_predicate_that_changes_what_was_settled() -> None:
    thing = Thing(a=Thing(b=object()), c=1)
    grow: list[Any] = []

    def predicate(value: Any) -> bool:
        if grow:
            grow.pop()
            thing.a = None
            gc.collect()
        return True

    tree = node(
        ("slot", 0),
        node(
            ("dict",),
            node(("key", "c"), checks=(("predicate", predicate),)),
            node(("key", "a"), attribute("b", checks=(("predicate", predicate),), collect=True), checks=THING),
        ),
        checks=THING,
    )
    guards = armed(tree, thing)
    grow.append(1)
    guards.check((thing,))
    assert not same_answer(guards, thing)


def test_properties_and_slots_are_read_each_time() -> None:
    class Slotted:
        __slots__ = ("a",)

        def __init__(self) -> None:
            self.a = 1

        @property
        def double(self) -> int:
            return 2 * self.a

    thing = Slotted()
    tree = node(
        ("slot", 0),
        node(("attr", "a"), checks=(("equals", 1),), collect=True),
        node(("attr", "double"), checks=(("equals", 2),)),
    )
    guards = armed(tree, thing)
    thing.a = 2
    assert not same_answer(guards, thing)
    thing.a = 1
    assert same_answer(guards, thing)


def test_new_objects_where_old_ones_lay() -> None:
    guards = armed(node(("slot", 0), attribute("a", checks=(("equals", 1),)), checks=THING), Thing(a=1))
    for value in (1, 2, 1, 1, 3, 1, 2):
        assert same_answer(guards, Thing(a=value)) == (value == 1)
    holder = [Thing(a=1)]
    tree = node(("slot", 0), node(("item", 0), attribute("a", checks=(("equals", 1),)), checks=THING))
    guards = armed(tree, holder)
    for value in (1, 2, 1, 1, 3, 1, 2):
        holder[0] = None  # type: ignore[call-overload]
        holder[0] = Thing(a=value)
        assert same_answer(guards, holder) == (value == 1)


def test_guards_in_use_by_code_that_changes_them() -> None:
    thing = Thing(a=1)
    depth = [0]

    def predicate(value: Any) -> bool:
        if depth[0] < 3:
            depth[0] += 1
            thing.noise = depth[0]
            guards.check((thing,))  # replaces the fast path that is being followed
            depth[0] -= 1
        return True

    tree = node(("slot", 0), attribute("a", checks=(("equals", 1), ("predicate", predicate))), checks=THING)
    guards = Guards((tree,))
    for _ in range(5):
        assert guards.check((thing,)) == ()
    thing.a = 2
    assert guards.check((thing,)) is None


def test_fast_paths_keep_nothing_alive() -> None:
    import weakref

    inner = Thing(b=1)
    thing = Thing(a=inner)
    tree = node(
        ("slot", 0), attribute("a", attribute("b", checks=(("equals", 1),)), checks=THING, collect=True), checks=THING
    )
    guards = armed(tree, thing)
    dead = weakref.ref(inner)
    thing.a = None
    del inner
    assert dead() is None
    assert not same_answer(guards, thing)


class World:
    """Objects of every kind guards can look into, and ways to change them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.root = self.thing(4)

    def leaf(self) -> Any:
        return self.random.choice([1, 2, 2.0, True, None, "a", "b", (1, 2), (1, "b"), 10**20, object()])

    def value(self, depth: int) -> Any:
        if depth == 0:
            return self.leaf()
        return self.random.choice([self.thing, self.table, self.sequence, self.function, self.cell])(depth - 1)

    def thing(self, depth: int) -> Any:
        kind = self.random.choice([Thing, Thing, Other])
        return kind(
            **{name: self.value(self.random.randrange(depth + 1)) for name in "abc"[: self.random.randint(1, 3)]}
        )

    def table(self, depth: int) -> Any:
        kind = self.random.choice([dict, dict, collections.OrderedDict])
        return kind(
            {key: self.value(self.random.randrange(depth + 1)) for key in ["a", "b", 3][: self.random.randint(0, 3)]}
        )

    def sequence(self, depth: int) -> Any:
        kind = self.random.choice([list, tuple])
        return kind(self.value(self.random.randrange(depth + 1)) for _ in range(self.random.randint(0, 3)))

    def function(self, depth: int) -> Any:
        return outer(self.value(depth))[0]

    def cell(self, depth: int) -> Any:
        return types.CellType(self.value(depth)) if self.random.random() < 0.8 else types.CellType()

    def tree(self, accessor: tuple[Any, ...], value: Any) -> Node:
        """Guards for a random part of what lies below."""
        chance = self.random.random
        if isinstance(value, Thing):
            below = [self.tree(("key", name), item) for name, item in vars(value).items() if chance() < 0.8]
            checks = (("lacks", "d"),) if chance() < 0.5 and "d" not in vars(value) else ()
            return node(accessor, node(("dict",), *below, checks=checks), checks=(("type", type(value)),))
        if isinstance(value, dict):
            below = [self.tree(("key", key), item) for key, item in value.items() if chance() < 0.8]
            checks = (
                (),
                (("length", len(value)),),
                (("keys", tuple(value)),),
                (("lacks", "e"),) if "e" not in value else (),
            )[self.random.randrange(4)]
            return node(accessor, *below, checks=(("type", type(value)), *checks))
        if isinstance(value, list) or (isinstance(value, tuple) and chance() < 0.7):
            below = [self.tree(("item", index), item) for index, item in enumerate(value) if chance() < 0.8]
            return node(accessor, *below, checks=(("type", type(value)), ("length", len(value))))
        if isinstance(value, types.FunctionType):
            cell = value.__closure__[0]  # type: ignore[index]
            return node(accessor, self.tree(("closure", 0), cell), checks=(("type", types.FunctionType),))
        if isinstance(value, types.CellType):
            try:
                return node(accessor, self.tree(("cell",), value.cell_contents), checks=(("type", types.CellType),))
            except ValueError:
                return node(accessor, node(("cell",), checks=(("unbound",),)))
        check = ("is", value) if type(value) is object or chance() < 0.2 else ("equals", value)
        return node(accessor, checks=(check,), collect=chance() < 0.3)

    def reachable(self) -> Iterator[Any]:
        waiting = [self.root]
        while waiting:
            value = waiting.pop()
            yield value
            if isinstance(value, Thing):
                waiting += vars(value).values()
            elif isinstance(value, dict):
                waiting += value.values()
            elif isinstance(value, list | tuple):
                waiting += value
            elif isinstance(value, types.FunctionType):
                waiting += value.__closure__ or ()
            elif isinstance(value, types.CellType):
                with contextlib.suppress(ValueError):
                    waiting.append(value.cell_contents)

    def change(self) -> None:
        choices = [v for v in self.reachable() if isinstance(v, Thing | dict | list | types.CellType)]
        value, new = self.random.choice(choices), self.value(self.random.randrange(3))
        if isinstance(value, Thing):
            self.change_thing(value, new)
        elif isinstance(value, dict):
            key = self.random.choice(["a", "b", 3, "d", "e"])
            if isinstance(value, collections.OrderedDict) and value and self.random.random() < 0.3:
                value.move_to_end(next(iter(value)))
            elif key in value and self.random.random() < 0.4:
                del value[key]
            else:
                value[key] = new
        elif isinstance(value, list):
            if value and self.random.random() < 0.7:
                value[self.random.randrange(len(value))] = new
            else:
                value.append(new)
        else:
            value.cell_contents = new

    def change_thing(self, value: Thing, new: Any) -> None:
        name, way = self.random.choice("abcd"), self.random.randrange(6)
        if way == 0:
            vars(value).pop(name, None)
        elif way == 1:
            value.__dict__ = dict(vars(value))
        elif way == 2:
            value.__class__ = Other if type(value) is Thing else Thing
        elif way == 3:
            vars(value)[name] = new
        else:
            setattr(value, name, new)


@pytest.mark.parametrize("seed", range(150))
def test_random_worlds(seed: int) -> None:
    world = World(seed)
    guards = Guards((world.tree(("slot", 0), world.root),))
    for step in range(60):
        fits = same_answer(guards, world.root)
        if not fits or world.random.random() < 0.05:
            guards = Guards((world.tree(("slot", 0), world.root),))
            assert same_answer(guards, world.root), step
        for _ in range(world.random.randrange(3)):
            assert same_answer(guards, world.root)
        if world.random.random() < 0.8:
            world.change()
