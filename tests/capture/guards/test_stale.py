"""What captured code reads in roundabout ways, changed between calls: the answer is always the one of plain Python."""

import collections
import dataclasses
import enum
import functools
import operator
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from tests.capture.programs import Captured

Case = tuple[Callable[[torch.Tensor], Any], list[Callable[[], Any]]]
CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


class Holder:
    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)


@case
def slots() -> Case:
    class Slotted:
        __slots__ = ("k", "more")

    item = Slotted()
    item.k = 2
    changes = [lambda: setattr(item, "k", 3), lambda: setattr(item, "more", 5), lambda: delattr(item, "more")]
    return lambda x: x * item.k + getattr(item, "more", 0), changes


@case
def order_of_a_dict() -> Case:
    table = {"a": 1, "b": 2}

    def turn() -> None:
        table["a"] = table.pop("a")

    return lambda x: (x * next(iter(table.values())), list(table)), [turn, turn]


@case
def order_of_an_ordered_dict() -> Case:
    table = collections.OrderedDict(a=1, b=2)
    return lambda x: (x * next(iter(table.values())), list(table)), [lambda: table.move_to_end("a"), table.popitem]


@case
def class_of_dicts() -> Case:
    class Table(dict):
        pass

    table = Table(a=1)
    return lambda x: x * len(table) + table["a"], [lambda: table.update(a=5), lambda: table.update(b=1)]


@case
def default_factory() -> Case:
    table = collections.defaultdict(int)

    def f(x: torch.Tensor) -> Any:
        found = table["new"]
        del table["new"]
        return x + found

    return f, [lambda: setattr(table, "default_factory", lambda: 7), lambda: setattr(table, "default_factory", float)]


@case
def items_of_named_tuples() -> Case:
    class Pair(NamedTuple):
        one: int
        other: torch.Tensor

    held = Holder(pair=Pair(1, torch.ones(2)))
    changes = [lambda: setattr(held, "pair", Pair(2, torch.ones(2))), lambda: setattr(held, "pair", (3, torch.ones(2)))]
    return lambda x: (x + held.pair[1] * held.pair[0], type(held.pair).__name__), changes


@case
def descriptors() -> Case:
    class Scaled:
        @property
        def k(self) -> int:
            return 2

    item = Scaled()
    changes = [
        lambda: setattr(Scaled, "k", property(lambda self: 3)),
        lambda: setattr(Scaled, "k", 4),
        lambda: item.__dict__.update(k=5),
    ]
    return lambda x: x * item.k, changes


@case
def method_of_a_base() -> Case:
    class Base:
        def scale(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    class Child(Base):
        def scale(self, x: torch.Tensor) -> torch.Tensor:
            return super().scale(x) + 1

    item = Child()
    changes = [
        lambda: setattr(Base, "scale", lambda self, x: x * 5),
        lambda: setattr(Child, "scale", lambda self, x: x),
        lambda: delattr(Child, "scale"),
    ]
    return lambda x: item.scale(x), changes


@case
def bases_of_a_class() -> Case:
    one, other = type("One", (), {"k": 2}), type("Other", (), {"k": 3})
    child = type("Child", (one,), {})
    item = child()
    return lambda x: (x * item.k, isinstance(item, other)), [lambda: setattr(child, "__bases__", (other,))]


@case
def class_of_an_object() -> Case:
    one, other = type("One", (), {"k": 2}), type("Other", (), {"k": 3})
    item = one()
    return lambda x: x * item.k, [lambda: setattr(item, "__class__", other), lambda: setattr(item, "__class__", one)]


@case
def metaclass() -> Case:
    meta = type("Meta", (type,), {"k": 2})
    kind = meta("Kind", (), {})
    return lambda x: x * kind.k, [lambda: setattr(meta, "k", 3), lambda: setattr(kind, "k", 4)]


@case
def parts_of_partials() -> Case:
    held = Holder(call=functools.partial(torch.add, alpha=1))
    changes = [
        lambda: setattr(held, "call", functools.partial(torch.add, alpha=3)),
        lambda: held.call.keywords.update(alpha=5),
        lambda: setattr(held, "call", functools.partial(torch.sub, alpha=2)),
    ]
    return lambda x: held.call(x, x), changes


@case
def receiver_of_a_method() -> Case:
    class Scaled:
        def __init__(self, k: int) -> None:
            self.k = k

        def scale(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.k

    held = Holder(call=Scaled(2).scale, append=[].append)
    changes = [lambda: setattr(held, "call", Scaled(3).scale), lambda: setattr(held.call.__self__, "k", 4)]
    return lambda x: held.call(x), changes


@case
def keyword_defaults_and_code() -> Case:
    def scale(x: torch.Tensor, *, k: int = 2) -> torch.Tensor:
        return x * k

    def shift(x: torch.Tensor, *, k: int = 2) -> torch.Tensor:
        return x + k

    changes = [
        lambda: scale.__kwdefaults__.update(k=3),
        lambda: setattr(scale, "__kwdefaults__", {"k": 4}),
        lambda: setattr(scale, "__code__", shift.__code__),
    ]
    return lambda x: scale(x), changes


@case
def attribute_of_a_function() -> Case:
    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * scale.k

    scale.k = 2
    return lambda x: scale(x), [lambda: setattr(scale, "k", 3)]


@case
def attribute_of_a_tensor() -> Case:
    weight = torch.ones(2)
    weight.k = 2
    changes = [lambda: setattr(weight, "k", 3), lambda: delattr(weight, "k")]
    return lambda x: x * weight * getattr(weight, "k", 7), changes


@case
def cached_functions() -> Case:
    held = Holder(k=2)

    @functools.cache
    def scale() -> int:
        return held.k

    def clear() -> None:
        held.k += 1
        scale.cache_clear()

    def refill() -> None:
        clear()
        scale()

    return lambda x: x * scale(), [clear, clear, refill, refill]


@case
def cached_property() -> Case:
    class Scaled:
        base = 2

        @functools.cached_property
        def k(self) -> int:
            return self.base

    item = Scaled()

    def clear() -> None:
        item.base = 3
        del item.k

    return lambda x: x * item.k, [lambda: None, lambda: setattr(item, "k", 9), clear]


@case
def modules_of_python() -> Case:
    made = types.ModuleType("stale_guard_module")
    made.k = 2  # type: ignore[attr-defined]
    sys.modules[made.__name__] = made

    def f(x: torch.Tensor) -> Any:
        import stale_guard_module

        return x * stale_guard_module.k

    def replace() -> None:
        other = types.ModuleType(made.__name__)
        other.k = 4  # type: ignore[attr-defined]
        sys.modules[made.__name__] = other

    return f, [lambda: setattr(made, "k", 3), replace]


@case
def fields_and_getters() -> Case:
    @dataclasses.dataclass
    class Settings:
        k: int = 2
        names: tuple[str, ...] = ("k",)

    held = Holder(settings=Settings(), get=operator.attrgetter("k"))
    changes = [
        lambda: setattr(held.settings, "k", 3),
        lambda: setattr(held, "get", operator.attrgetter("names")),
        lambda: setattr(held, "settings", Settings(5, ("a", "b"))),
    ]
    return lambda x: (x, held.get(held.settings), len(dataclasses.fields(held.settings))), changes


@case
def members_and_flags() -> Case:
    class Kind(enum.Flag):
        ONE = 1
        TWO = 2

    held = Holder(kind=Kind.ONE)
    changes = [lambda: setattr(held, "kind", Kind.TWO), lambda: setattr(held, "kind", Kind.ONE | Kind.TWO)]
    return lambda x: (x + 1 if held.kind & Kind.ONE else x - 1, held.kind.value), changes


@case
def sets_slices_and_ranges() -> Case:
    held = Holder(known=frozenset({1}), some={2}, cut=slice(0, 1), turns=range(2), size=torch.Size([1]))
    changes = [
        lambda: setattr(held, "known", frozenset({2})),
        lambda: held.some.add(1),
        lambda: setattr(held, "cut", slice(1, 2)),
        lambda: setattr(held, "turns", range(3)),
        lambda: setattr(held, "size", torch.Size([2])),
    ]

    def f(x: torch.Tensor) -> Any:
        return x[held.cut] + sum(held.turns), 1 in held.known, 1 in held.some, len(held.some), held.size[0]

    return f, changes


@case
def hooks_of_all_modules() -> Case:
    layer, handles = nn.Identity(), []

    def add() -> None:
        handles.append(torch_module.register_module_forward_hook(lambda module, args, result: result + 1))

    return lambda x: layer(x) * 2, [add, lambda: handles.pop().remove()]


@case
def hooks_and_training_of_a_child() -> Case:
    model, handles = nn.Sequential(nn.Sequential(nn.Identity(), nn.Dropout(1.0))), []
    inner = model[0][0]
    changes = [
        lambda: handles.append(inner.register_forward_pre_hook(lambda module, args: (args[0] + 1,))),
        lambda: handles.pop().remove(),
        lambda: model[0][1].eval(),
        lambda: model[0].append(nn.Threshold(0.5, 9.0)),
        lambda: setattr(inner, "forward", lambda x: x - 5),
    ]
    return lambda x: model(x), changes


@case
def parameters_and_buffers() -> Case:
    layer = nn.BatchNorm1d(2, momentum=None, affine=True).eval()
    changes = [
        lambda: setattr(layer, "weight", nn.Parameter(torch.full((2,), 3.0))),
        lambda: layer.running_mean.fill_(2.0),
        lambda: setattr(layer, "running_var", torch.full((2,), 4.0)),
        lambda: setattr(layer, "eps", 0.5),
        lambda: layer.weight.requires_grad_(False),
        lambda: layer.register_buffer("running_mean", None),
    ]
    return lambda x: layer(x.expand(3, 2)) if layer.running_mean is not None else x, changes


@case
def containers_in_containers() -> Case:
    held = Holder(table={"a": [(1, {"b": [2]})]})
    changes = [
        lambda: held.table["a"][0][1]["b"].__setitem__(0, 3),
        lambda: held.table["a"][0][1]["b"].append(4),
        lambda: held.table["a"].append((5, {"b": [6]})),
        lambda: held.table.__setitem__("a", [(7, {"b": (8,)})]),
    ]
    return lambda x: x * sum(sum(inner["b"]) + k for k, inner in held.table["a"]), changes


@case
def cells() -> Case:
    k = 2

    def f(x: torch.Tensor) -> Any:
        return x * k

    def change() -> None:
        nonlocal k
        k += 1.5  # type: ignore[assignment]

    return f, [change, change]


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.requires_grad == other.requires_grad
    if isinstance(one, tuple | list):
        return type(one) is type(other) and len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


@pytest.fixture(autouse=True)
def forget_modules() -> Iterator[None]:
    yield
    sys.modules.pop("stale_guard_module", None)


@pytest.mark.parametrize("name", CASES)
def test_is_noticed(name: str) -> None:
    function, changes = CASES[name]()
    runner, x = Captured(), torch.ones(2)
    for change in (lambda: None, *changes):
        change()
        for _ in range(3):  # guards that held twice take a fast path
            assert alike(runner(function, x), function(x)), name
