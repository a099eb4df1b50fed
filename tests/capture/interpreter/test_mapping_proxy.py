"""`types.MappingProxyType` and what stands on it: signatures of functions, their `bind`."""

import functools
import inspect
import types
from collections import OrderedDict
from typing import Any

import pytest
import torch

import smelt

x = torch.arange(3.0)
HELD: dict[str, Any] = {"a": 2, "b": 3.0}
PROXY = types.MappingProxyType(HELD)
ORDERED = types.MappingProxyType(OrderedDict(u=1, v=2))


def signed(a: Any, b: Any = 2, *rest: Any, c: Any = 3, **named: Any) -> None: ...


SIGNATURE = inspect.signature(signed)


def subscript(x: Any) -> Any:
    return x * PROXY["a"] + ORDERED["v"]


def methods(x: Any) -> Any:
    return x * PROXY.get("z", 4), list(PROXY.keys()), list(PROXY.values()), list(PROXY.items()), PROXY.copy()


def loops(x: Any) -> Any:
    for name, value in PROXY.items():
        x = x + value + len(name)
    return x, list(PROXY), list(reversed(PROXY))


def operators(x: Any) -> Any:
    merged = PROXY | {"q": 1}
    return x * 1, merged, type(merged), PROXY == HELD, PROXY != {}, "a" in PROXY, len(PROXY), bool(PROXY), not PROXY


def unpacked(x: Any) -> Any:
    return {**PROXY}, dict(PROXY), dict(PROXY, a=x), f(**PROXY)


def f(a: Any, b: Any) -> Any:
    return a + b


def made(x: Any) -> Any:
    inner = {"k": x}
    proxy = types.MappingProxyType(inner)
    inner["l"] = x + 1
    return proxy["l"] * len(proxy), isinstance(proxy, types.MappingProxyType), type(proxy).__name__


def returned(x: Any) -> Any:
    return types.MappingProxyType({"k": x + 1}), PROXY


def absent(x: Any) -> Any:
    try:
        return x * PROXY["absent"]
    except KeyError as error:
        return x, str(error)


def bound(x: Any) -> Any:
    found = SIGNATURE.bind(1, x, 5, z=6)
    found.apply_defaults()
    return found.arguments["b"] * found.arguments["c"], found.args, found.kwargs


def bound_of_new(x: Any) -> Any:
    found = inspect.signature(signed).bind(x, 5, 6, c=7, z=8)
    return found.args[0] * found.kwargs["z"]


def partly(x: Any) -> Any:
    return SIGNATURE.bind_partial(b=x).arguments["b"] * 2


def refused(x: Any) -> Any:
    try:
        SIGNATURE.bind()
    except TypeError as error:
        return x + 1, str(error)


def parameters(x: Any) -> Any:
    names = [(each.name, each.default, each.kind) for each in SIGNATURE.parameters.values()]
    return names, {n for n, p in SIGNATURE.parameters.items() if p.default is not inspect.Parameter.empty} == {"b", "c"}


def _filled(function: Any) -> Any:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        found = signature.bind(*args, **kwargs)
        found.apply_defaults()
        return function(*found.args, **found.kwargs)

    return wrapper


@_filled
def decorated(x: Any, scale: float = 2.0) -> Any:
    return x * scale


FUNCTIONS = [subscript, methods, loops, operators, unpacked, made, returned, absent, bound, bound_of_new, partly]
FUNCTIONS += [refused, parameters, decorated]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
def test_it_is_one_graph(function: Any) -> None:
    compiled = smelt.compile(function, backend="eager", fullgraph=True)
    for given in (x, x + 1):
        assert str(compiled(given)) == str(function(given))


def test_what_is_behind_it_is_guarded() -> None:
    held = {"a": 2}
    proxy = types.MappingProxyType(held)
    compiled = smelt.compile(lambda x: x * proxy["a"] + len(proxy), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), x * 2 + 1)
    held["a"] = 5
    torch.testing.assert_close(compiled(x), x * 5 + 1)
    held["b"] = 5
    torch.testing.assert_close(compiled(x), x * 5 + 2)


def test_it_cannot_be_written() -> None:
    def writes(x: Any) -> Any:
        PROXY["a"] = 1  # type: ignore[index]
        return x

    def adds(x: Any) -> Any:
        proxy = PROXY
        proxy |= {"c": 1}  # type: ignore[misc]
        return x

    for function in (writes, adds):
        with pytest.raises(TypeError):
            smelt.compile(function, backend="eager")(x)
    assert HELD == {"a": 2, "b": 3.0}
