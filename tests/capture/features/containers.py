"""Programs with containers: trees of them, sets in their order, dict views, keys of every kind, classes of them."""

import collections
import functools
from collections import OrderedDict, namedtuple
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree
from torch.utils._ordered_set import OrderedSet

from tests.capture.features.running import feature

# torch.utils._pytree


@feature("pytree")
def tree_map(x: torch.Tensor) -> Any:
    return pytree.tree_map(lambda t: t * 2, {"a": x, "b": [x + 1, (x + 2, 3)]})


@feature("pytree")
def tree_flatten(x: torch.Tensor) -> Any:
    leaves, spec = pytree.tree_flatten({"a": x, "b": [x + 1, {"c": (x, 3)}]})
    return pytree.tree_unflatten([leaf * 2 for leaf in leaves], spec)


@feature("pytree")
def tree_leaves(x: torch.Tensor) -> Any:
    return sum(pytree.tree_leaves([x, (x, {"k": x * 2})]))


@feature("pytree")
def tree_map_only(x: torch.Tensor) -> Any:
    return pytree.tree_map_only(torch.Tensor, torch.sin, [x, 3, {"k": (x, "text")}])


@feature("pytree")
def tree_map_two(x: torch.Tensor) -> Any:
    return pytree.tree_map(lambda a, b: a + b, [x, (x, x)], [x * 2, (x, x + 1)])


@feature("pytree")
def tree_named(x: torch.Tensor) -> Any:
    return pytree.tree_map(torch.neg, Pair(x, [x, OrderedDict(k=x)]))


@feature("pytree")
def tree_structure(x: torch.Tensor) -> Any:
    same = pytree.tree_structure([x, (x, 1)]) == pytree.tree_structure([x, (x, 2)])
    return x + same, pytree.tree_structure([x]).num_leaves


@feature("pytree")
def tree_all(x: torch.Tensor) -> Any:
    return x * pytree.tree_all(lambda t: t.dim() == 2, [x, x]), pytree.tree_any(lambda t: t.dim() == 3, [x])


@feature("pytree")
def tree_flatten_with_path(x: torch.Tensor) -> Any:
    paths, _ = pytree.tree_flatten_with_path({"a": x, "b": [x + 1]})
    return [(pytree.keystr(path), leaf * 2) for path, leaf in paths]


@feature("pytree")
def tree_map_(x: torch.Tensor) -> Any:
    tree = [x.clone(), {"k": x.clone()}]
    pytree.tree_map_(lambda t: t.add_(1), tree)
    return tree


@feature("pytree")
def tree_is_leaf(x: torch.Tensor) -> Any:
    return pytree.tree_map(lambda t: t[0] + 1, [(x, 1), (x, 2)], is_leaf=lambda t: isinstance(t, tuple))


@feature("pytree")
def tree_iter(x: torch.Tensor) -> Any:
    return [leaf + 1 for leaf in pytree.tree_iter({"a": x, "b": [x]})]


@feature("pytree")
def spec_inside(x: torch.Tensor) -> Any:
    leaves, spec = pytree.tree_flatten((x, [x, None]))
    return x + spec.num_leaves, repr(spec), len(leaves), spec.type is tuple


# OrderedSet


@feature("OrderedSet")
def ordered_set(x: torch.Tensor) -> Any:
    seen: OrderedSet[int] = OrderedSet([3, 1, 2])
    seen.add(7)
    seen.discard(1)
    return [x * k for k in seen], 2 in seen, len(seen)


@feature("OrderedSet")
def ordered_set_operators(x: torch.Tensor) -> Any:
    left, right = OrderedSet([1, 2, 3]), OrderedSet([3, 4])
    return x, list(left | right), list(left & right), list(left - right), list(left ^ right)


@feature("OrderedSet")
def ordered_set_updates(x: torch.Tensor) -> Any:
    left = OrderedSet("abc")
    left.update("cd")
    left |= OrderedSet("ef")
    left -= OrderedSet("a")
    return x + len(left), left.pop(), list(left), left == OrderedSet("bcdef")


@feature("OrderedSet")
def ordered_set_returned(x: torch.Tensor) -> Any:
    return OrderedSet([x.dim(), 5]), x + 1


# set operators on dict views


@feature("set operators on dict views")
def keys_and(x: torch.Tensor) -> Any:
    left, right = {"a": x, "b": x + 1}, {"b": x, "c": x}
    return [left[k] for k in left.keys() & right.keys()], x + len(left.keys() | right.keys())


@feature("set operators on dict views")
def keys_minus(x: torch.Tensor) -> Any:
    left = {"a": x, "b": x + 1}
    return sorted(left.keys() - {"a"}), sorted(left.keys() ^ ["a", "z"]), x * 2


@feature("set operators on dict views")
def items_or(x: torch.Tensor) -> Any:
    left, right = {"a": 1, "b": 2}, {"b": 2, "c": 3}
    return x + len(left.items() | right.items()), sorted(left.items() & right.items()), left.items() - right.items()


@feature("set operators on dict views")
def keys_compare(x: torch.Tensor) -> Any:
    left, right = {"a": x, "b": x}, {"b": x, "a": x}
    return x, left.keys() == right.keys(), left.keys() <= {"a", "b", "c"}, left.keys() > {"a"}, left.keys() != {"a"}


@feature("set operators on dict views")
def keys_disjoint(x: torch.Tensor) -> Any:
    left = {"a": x, "b": x}
    return x + 1, left.keys().isdisjoint(["c"]), left.keys().isdisjoint({"a"}), {"a": 1}.items().isdisjoint([("a", 1)])


@feature("set operators on dict views")
def set_with_keys(x: torch.Tensor) -> Any:
    names = {"a", "b"}
    names |= {"c": 1}.keys()
    names &= {"a": 1, "c": 2}.keys()
    return x * len(names), sorted(names), sorted({"a", "q"} - {"a": 1}.keys())


@feature("set operators on dict views")
def items_compare(x: torch.Tensor) -> Any:
    left = {"a": 1, "b": (2, 3)}
    return x, left.items() == {"b": (2, 3), "a": 1}.items(), ("a", 1) in left.items(), ("a", 2) in left.items()


@feature("set operators on dict views")
def keys_reversed(x: torch.Tensor) -> Any:
    left = {"a": x, "b": x + 1}
    return list(reversed(left.keys())), list(reversed(left.values())), [k for k, _ in reversed(left.items())]


@feature("set operators on dict views")
def ordered_keys(x: torch.Tensor) -> Any:
    left = OrderedDict(a=x, b=x + 1)
    return sorted(left.keys() & {"a"}), sorted(left.keys() | {"q"}), left["a"] + 1


# frozensets


@feature("frozensets")
def frozen_key(x: torch.Tensor) -> Any:
    table = {frozenset({1, 2}): x, frozenset(): x + 1}
    return table[frozenset([2, 1])], table[frozenset()]


@feature("frozensets")
def frozen_operators(x: torch.Tensor) -> Any:
    a, b = frozenset({1, 2, 3}), frozenset({3, 4})
    return x + len(a | b), sorted(a & b), sorted(a - b), a <= (a | b), hash(a) == hash(frozenset([3, 2, 1]))


@feature("frozensets")
def frozen_in_set(x: torch.Tensor) -> Any:
    groups = {frozenset({1}), frozenset({2, 3})}
    return x * (frozenset({3, 2}) in groups), len(groups), sorted(map(len, groups))


@feature("frozensets")
def frozen_of_frozen(x: torch.Tensor) -> Any:
    inner = frozenset("ab")
    outer = frozenset([inner, frozenset("c")])
    return x + 1, inner in outer, outer == {inner, frozenset("c")}, outer


@feature("frozensets")
def frozen_methods(x: torch.Tensor) -> Any:
    a = frozenset([1, 2])
    return x, a.union([5]), a.issubset([1, 2, 3]), a.isdisjoint({9}), a.copy() is a, frozenset(a) is a


# tensors, partials, functions as dict keys


@feature("keys of dicts")
def tensor_key(x: torch.Tensor) -> Any:
    y = x + 1
    table = {x: 1, y: 2}
    return x * table[x] + table[y], x in table, (x + 1) in table


@feature("keys of dicts")
def tensor_key_returned(x: torch.Tensor) -> Any:
    y = x * 2
    return {y: x, x: y}, y


@feature("keys of dicts")
def tensor_in_set(x: torch.Tensor) -> Any:
    y = x + 1
    seen = {x}
    seen.add(y)
    return y * len(seen), y in seen, (x * 2) in seen


@feature("keys of dicts")
def partial_key(x: torch.Tensor) -> Any:
    double = functools.partial(torch.mul, other=2)
    table = {double: x}
    return double(table[double]), functools.partial(torch.mul) in table


@feature("keys of dicts")
def function_key(x: torch.Tensor) -> Any:
    def local(t: torch.Tensor) -> torch.Tensor:
        return t + 1

    table = {local: 1, torch.sin: 2, len: 3}
    return [name(x) * k for name, k in table.items() if name is not len], table[len]


@feature("keys of dicts")
def instance_key(x: torch.Tensor) -> Any:
    key = Plain(x)
    table = {key: x + 1, Plain: x + 2}
    return table[key], table[Plain], Plain(x) in table


@feature("keys of dicts")
def module_key(x: torch.Tensor) -> Any:
    table = {LAYER: 2, LAYER.weight: 3}
    return LAYER(x) * table[LAYER] + table[LAYER.weight], list(table.values())


@feature("keys of dicts")
def method_key(x: torch.Tensor) -> Any:
    plain = Plain(3)
    table = {plain.double: 1}
    return x + table[plain.double], len(table)


@feature("keys of dicts")
def hashed_key(x: torch.Tensor) -> Any:
    table = {Named("a"): x, Named("b"): x + 1}
    return table[Named("a")] + table[Named("b")], Named("c") in table, [key.name for key in table]


@feature("keys of dicts")
def tuple_of_objects_key(x: torch.Tensor) -> Any:
    key = Plain(1)
    table = {(key, 2): x, (x, "t"): x + 1}
    return table[key, 2], table[x, "t"], (key, 3) in table


@feature("keys of dicts")
def bound_by_class(x: torch.Tensor) -> Any:
    table = collections.defaultdict(list)
    for value in (1, 2.0, "t", x, x + 1):
        table[type(value)].append(value)
    return {kind.__name__: len(values) for kind, values in table.items()}, table[torch.Tensor][1]


# classes of containers


class Plain:
    """A class of objects that are known by identity."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def double(self) -> Any:
        return self.value * 2


class Named:
    """A class of objects that are known by a name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and other.name == self.name


class Listed(list):  # type: ignore[type-arg]
    """A list with a total."""

    def total(self) -> Any:
        return sum(self)


class Noted(list):  # type: ignore[type-arg]
    """A list that notes what is appended."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.notes: list[str] = []

    def append(self, item: Any) -> None:
        self.notes.append("append")
        super().append(item)

    def __getitem__(self, place: Any) -> Any:
        self.notes.append("get")
        return super().__getitem__(place)


class Shifted(tuple):  # type: ignore[type-arg]
    """A tuple by its own `__new__`."""

    def __new__(cls, first: Any, *rest: Any) -> "Shifted":
        made = super().__new__(cls, (first, *rest))
        made.first = first  # type: ignore[attr-defined]
        return made

    def total(self) -> Any:
        return sum(self)


class Bare(tuple):  # type: ignore[type-arg]
    """A tuple of another name."""


class Tags(set):  # type: ignore[type-arg]
    """A set that can be asked for its items in order."""

    def sorted(self) -> Any:
        return sorted(self)


class Frozen(frozenset):  # type: ignore[type-arg]
    """A frozenset of another name."""


class Table(dict):  # type: ignore[type-arg]
    """A dict whose items are attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __missing__(self, key: Any) -> Any:
        return f"no {key}"


class Counted(OrderedDict):  # type: ignore[type-arg]
    """An ordered dict that counts its writes."""

    writes = 0

    def __setitem__(self, key: Any, value: Any) -> None:
        self.writes = self.writes + 1
        super().__setitem__(key, value)


class Shared:
    """A class that makes one object."""

    one: Any = None

    def __new__(cls, *args: Any) -> "Shared":
        made = super().__new__(cls)
        made.made_by = "new"  # type: ignore[attr-defined]
        return made

    def __init__(self, value: Any) -> None:
        self.value = value


class Chooses:
    """A class whose `__new__` returns something else."""

    def __new__(cls, value: Any) -> Any:
        return value if isinstance(value, int) else super().__new__(cls)

    def __init__(self, value: Any) -> None:
        self.value = value


class Celsius(float):
    """A float with a unit."""

    unit = "C"

    def double(self) -> float:
        return self * 2


class Place(int):
    """An int by its own `__new__`."""

    def __new__(cls, value: int) -> "Place":
        return super().__new__(cls, value + 1)


class Label(str):
    """A string of another name."""

    def shout(self) -> str:
        return self.upper() + "!"


LAYER = torch.nn.Linear(3, 3)
LISTED = Listed([1, 2])
TABLE = Table(a=1)
TAGS = Tags({3})


@feature("subclasses of containers")
def list_subclass(x: torch.Tensor) -> Any:
    items = Listed([x, x + 1])
    items.append(x + 2)
    return items.total(), len(items), items[-1], isinstance(items, list), type(items).__name__


@feature("subclasses of containers")
def list_subclass_returned(x: torch.Tensor) -> Any:
    items = Listed()
    items.extend([x, x * 2])
    items.name = "mine"  # type: ignore[attr-defined]
    return items


@feature("subclasses of containers")
def list_subclass_overrides(x: torch.Tensor) -> Any:
    items = Noted([x])
    items.append(x + 1)
    return items[1] + items[0], items.notes, items


@feature("subclasses of containers")
def list_subclass_iterated(x: torch.Tensor) -> Any:
    items = Listed([x, x + 1])
    a, b = items
    return [item * 2 for item in items], a + b, items + [x], items[:1], list(items), items == [x, b], x in items[:1]  # noqa: RUF005


@feature("subclasses of containers")
def list_subclass_changed(x: torch.Tensor) -> Any:
    items = Listed([3, 1, 2])
    items.sort()
    items.insert(0, 9)
    items += [5]
    items[1] = 7
    del items[0]
    items.reverse()
    return x + items.pop(), items, sorted(items), items.index(7), items.count(2)


@feature("subclasses of containers")
def list_subclass_from_outside(x: torch.Tensor) -> Any:
    LISTED.append(4)
    total = LISTED.total()
    LISTED.pop()
    return x * total, len(LISTED), list(LISTED)


@feature("subclasses of containers")
def tuple_subclass(x: torch.Tensor) -> Any:
    both = Bare((x, x + 1))
    a, b = both
    return a + b, len(both), both[0], both[:1], both + (x,), type(both).__name__, isinstance(both, tuple)  # noqa: RUF005


@feature("subclasses of containers")
def tuple_subclass_new(x: torch.Tensor) -> Any:
    both = Shifted(x, x + 1)
    return both.total(), both.first, both


@feature("subclasses of containers")
def set_subclass(x: torch.Tensor) -> Any:
    tags = Tags({3, 1})
    tags.add(2)
    return x * len(tags), tags.sorted(), 2 in tags, tags | {9}, tags


@feature("subclasses of containers")
def set_subclass_from_outside(x: torch.Tensor) -> Any:
    TAGS.add(8)
    found = TAGS.sorted()
    TAGS.discard(8)
    return x + found[0], found


@feature("subclasses of containers")
def frozenset_subclass(x: torch.Tensor) -> Any:
    tags = Frozen([2, 1])
    return x * len(tags), 2 in tags, sorted(tags), tags == {1, 2}, type(tags).__name__


@feature("subclasses of containers")
def dict_subclass(x: torch.Tensor) -> Any:
    table = Table(a=x)
    table.b = x + 1
    return table.a + table["b"], list(table), len(table), table["q"], "a" in table


@feature("subclasses of containers")
def dict_subclass_from_outside(x: torch.Tensor) -> Any:
    TABLE.b = 5
    found = TABLE.a + TABLE["b"]
    del TABLE["b"]
    return x * found, dict(TABLE), list(TABLE.items())


@feature("subclasses of containers")
def ordered_subclass(x: torch.Tensor) -> Any:
    table = Counted()
    table["a"] = x
    table["b"] = x + 1
    table.move_to_end("a")
    return table["a"] + table["b"], list(table), table.writes


@feature("subclasses of containers")
def counter(x: torch.Tensor) -> Any:
    count = collections.Counter("abca")
    count.update(["b", "z"])
    return x * count["a"], dict(count), count.most_common(1), count["none"], sum(count.values())


@feature("subclasses of containers")
def user_list(x: torch.Tensor) -> Any:
    items = collections.UserList([x, x + 1])
    items.append(x)
    table = collections.UserDict(a=x)
    table["b"] = x + 1
    return items[0] + table["b"], len(items), sorted(table)


@feature("subclasses of containers")
def chain_map(x: torch.Tensor) -> Any:
    table = collections.ChainMap({"a": x}, {"a": x + 1, "b": x + 2})
    return table["a"] + table["b"], sorted(table), len(table)


# classes with __new__


@feature("classes with __new__")
def plain_new(x: torch.Tensor) -> Any:
    made = Shared(x)
    return made.value + 1, made.made_by, made  # type: ignore[attr-defined]


@feature("classes with __new__")
def new_of_another(x: torch.Tensor) -> Any:
    return x + Chooses(3), Chooses("text").value


@feature("classes with __new__")
def float_subclass(x: torch.Tensor) -> Any:
    warm = Celsius(3.5)
    return x * warm.double(), warm + 1, warm.unit, isinstance(warm, float), type(warm).__name__


@feature("classes with __new__")
def int_subclass(x: torch.Tensor) -> Any:
    place = Place(2)
    return x[:, :place] * 2, place + 1, [10, 20, 30, 40][place]


@feature("classes with __new__")
def str_subclass(x: torch.Tensor) -> Any:
    label = Label("abc")
    return x + len(label), label.shout(), label + "d", {"abc": 1}[label]


@feature("classes with __new__")
def object_new(x: torch.Tensor) -> Any:
    made = object.__new__(Plain)
    made.value = x
    other = Plain.__new__(Plain)
    other.__init__(x + 1)  # type: ignore[misc]
    return made.double() + other.double()


class Once:
    """A class of which there is one object."""

    _one: Any = None

    def __new__(cls) -> "Once":
        if cls._one is None:
            cls._one = super().__new__(cls)
        found: Once = cls._one
        return found


@feature("classes with __new__")
def singleton(x: torch.Tensor) -> Any:
    first, second = Once(), Once()
    return x + (first is second), type(first).__name__


# namedtuples

Pair = namedtuple("Pair", ["left", "right"])
Given = namedtuple("Given", "a b c", defaults=(1, 2))


class Typed(NamedTuple):
    """A named tuple with a method and a default."""

    x: Any
    k: int = 3

    def scaled(self) -> Any:
        return self.x * self.k

    @property
    def twice(self) -> Any:
        return self.x * 2


class Derived(Pair):
    """A class of named tuples."""

    def total(self) -> Any:
        return self.left + self.right


@feature("namedtuples")
def named_fields(x: torch.Tensor) -> Any:
    pair = Pair(x, right=x + 1)
    return pair.left + pair[1], pair._fields, pair, len(pair)


@feature("namedtuples")
def named_replace(x: torch.Tensor) -> Any:
    pair = Pair(x, x + 1)._replace(left=x * 3)
    return pair, pair._asdict(), Pair._make([x, x])


@feature("namedtuples")
def named_typed(x: torch.Tensor) -> Any:
    made = Typed(x)
    return made.scaled(), made.twice, made.k, Typed(x, k=5)


@feature("namedtuples")
def named_derived(x: torch.Tensor) -> Any:
    made = Derived(x, x + 1)
    return made.total(), made, isinstance(made, Pair)


@feature("namedtuples")
def named_made_inside(x: torch.Tensor) -> Any:
    Local = namedtuple("Local", ["a", "b"])
    made = Local(x, b=2)
    return made.a * made.b, made._fields


@feature("namedtuples")
def named_operators(x: torch.Tensor) -> Any:
    left, right = Pair(1, 2), Pair(1, 3)
    return x, left < right, left == (1, 2), left + (3,), left * 2, hash(left) == hash((1, 2)), {left: 1}[1, 2]  # noqa: RUF005


@feature("namedtuples")
def named_defaults(x: torch.Tensor) -> Any:
    return x * Given(2).c, Given._field_defaults, Given(1, *[2, 3]), repr(Given(1))


@feature("namedtuples")
def named_key(x: torch.Tensor) -> Any:
    table = {Pair(1, 2): x}
    a, b = next(iter(table))
    return table[Pair(1, 2)] + a + b, next(iter(table))


# iteration over sets


@feature("iteration over sets")
def set_loop(x: torch.Tensor) -> Any:
    total = x
    for k in {1, 2, 3}:
        total = total + k
    return total


@feature("iteration over sets")
def set_from_outside(x: torch.Tensor) -> Any:
    return [x * k for k in NUMBERS], sum(NUMBERS), [*NUMBERS]


@feature("iteration over sets")
def strings_from_outside(x: torch.Tensor) -> Any:
    return x + len([name for name in NAMES if name]), sorted(NAMES), ",".join(sorted(NAMES)), [*NAMES]


@feature("iteration over sets")
def texts_of_sets(x: torch.Tensor) -> Any:
    texts = f"one of {NAMES}", str(NUMBERS), repr(frozenset()), f"{FROZEN!r} {FROZEN!a}"
    return x + 1, texts


@feature("iteration over sets")
def set_of_modules(x: torch.Tensor) -> Any:
    for layer in {LAYER}:
        x = layer(x)
    return x


@feature("iteration over sets")
def set_pop(x: torch.Tensor) -> Any:
    numbers = {5}
    k = numbers.pop()
    return x * k, numbers, len(numbers)


@feature("iteration over sets")
def set_comprehension(x: torch.Tensor) -> Any:
    found = {t.dim() for t in (x, x[0], x)}
    return x * max(found), min(found), {k + 1 for k in found}, list(map(str, found))


@feature("iteration over sets")
def frozenset_from_outside(x: torch.Tensor) -> Any:
    total = x
    for k in FROZEN:
        total = total * k
    return total, list(FROZEN), tuple(FROZEN), next(iter(FROZEN))


NUMBERS = {3, 1, 2}
FROZEN = frozenset({"ä", "b", "c"})
NAMES = {"left", "right", "up"}
FROZEN = frozenset({2, 5})
