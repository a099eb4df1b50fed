"""Stale guards: for each kind of thing that can be read, change it between calls; the answer is always the eager one.

Each test fails if the guard kind it is about is not built.
"""

import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import tests.capture.guards.test_guards as this_module
from smelt.base.errors import SmeltWarning
from smelt.base.options import config
from tests.capture.programs import Captured, assert_alike, observe

X = torch.arange(6.0).reshape(2, 3)


def follow(function: Callable[..., Any], *variants: tuple[Any, ...]) -> Captured:
    """Call with each variant of the arguments in turn, twice round, each a few times; always the plain answer."""
    runner = Captured()
    for arguments in (*variants, *variants):
        for _ in range(3):
            assert_alike(runner(function, *arguments), function(*arguments))
    return runner


def follow_changes(function: Callable[..., Any], changes: Iterator[None], *args: Any) -> Captured:
    """Call after each change of the world; always the plain answer."""
    runner = Captured()
    for _ in changes:
        for _ in range(4):  # from the third on by the guards' fast path
            assert_alike(runner(function, *args), function(*args))
    return runner


@pytest.mark.parametrize(
    "variant",
    [
        X.double(),
        X.to(torch.int64),
        torch.ones(2, 4),
        torch.ones(6),
        X.T.contiguous().T,
        X.clone().requires_grad_(),
        nn.Parameter(X.clone()),
    ],
    ids=["dtype", "integers", "shape", "rank", "stride", "requires_grad", "parameter"],
)
def test_tensor(variant: torch.Tensor) -> None:
    def f(x):
        scale = 2 if x.is_contiguous() else 3
        kind = 5 if isinstance(x, nn.Parameter) else 7
        return x * scale * kind, x.shape, x.dtype, x.requires_grad, x.stride()

    assert len(follow(f, (X,), (variant,)).recompiles) == 1


@pytest.mark.parametrize(
    "values", [(1, 2), (1, True), (1, 1.0), (0.0, -0.0), ("a", "b"), (None, 3), (torch.float32, torch.float64)]
)
def test_python_values(values: tuple[Any, Any]) -> None:
    def f(x, v):
        return (x + 1, v) if v == 1 else (x + 2, v)

    assert len(follow(f, *((X, v) for v in values)).recompiles) == 1


@pytest.mark.parametrize(
    "values",
    [
        ([1, 2], [1, 2, 3]),
        ([1, 2], (1, 2)),
        ([1, 2], [1, 3]),
        ({"a": 1}, {"a": 2}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({1}, {2}),
    ],
    ids=["length", "type", "item", "value", "order", "set"],
)
def test_containers(values: tuple[Any, Any]) -> None:
    def f(x, v):
        total = 0
        for i, k in enumerate(v):
            total = total * 10 + i + (v[k] if isinstance(v, dict) else k)
        if isinstance(v, list):
            total = total + 1000
        return x * total

    assert len(follow(f, *((X, v) for v in values)).recompiles) == 1


def test_key_absent_then_present() -> None:
    def f(x, d):
        return x * d.get("k", 2) + ("z" in d)

    follow(f, (X, {}), (X, {"k": 5}), (X, {"z": 0}), (X, {"k": 5, "z": 1}))


class Thing:
    factor = 2

    def __init__(self, amount=3):
        self.amount = amount

    def scale(self, x):
        return x * self.amount * self.factor

    @property
    def double(self):
        return self.amount * 2


class OtherThing(Thing):
    def scale(self, x):
        return x - self.amount


def test_attributes_and_types_of_objects() -> None:
    def f(x, thing):
        return thing.scale(x) + thing.double

    follow(f, (X, Thing()), (X, Thing(4)), (X, OtherThing()))


def test_attribute_of_the_instance_hides_the_class() -> None:
    thing = Thing()

    def changes():
        yield
        thing.factor = 9  # type: ignore[misc]
        yield
        del thing.factor
        yield
        thing.scale = lambda x: x - 100  # type: ignore[method-assign]
        yield

    follow_changes(lambda x: thing.scale(x), changes(), X)


def test_attributes_of_the_class() -> None:
    class Local(Thing):
        @classmethod
        def shift(cls):
            return 1

        @staticmethod
        def stretch():
            return 2

    thing = Local()

    def changes():
        yield
        Local.factor = 7
        yield
        Local.scale = lambda self, x: x + self.amount
        yield
        Local.double = property(lambda self: 11)  # type: ignore[assignment]
        yield
        Local.shift = classmethod(lambda cls: 5)  # type: ignore[assignment]
        yield
        Local.stretch = staticmethod(lambda: 6)
        yield
        Local.amount = property(lambda self: 77, lambda self, v: None)  # type: ignore[assignment]
        yield

    def f(x):
        return thing.scale(x) + thing.double + Local.shift() + thing.stretch() + thing.shift()

    assert len(follow_changes(f, changes(), X).recompiles) == 6


def test_getattr_hook() -> None:
    class Lazy:
        def __getattr__(self, name):
            return 3 if name == "soft" else 4

    lazy = Lazy()

    def changes():
        yield
        lazy.soft = 8
        yield
        del lazy.soft
        Lazy.soft = 9
        yield

    follow_changes(lambda x: x * lazy.soft, changes(), X)


FACTOR = 2


def helper(x: torch.Tensor, k: int = 3, *, shift: int = 1) -> torch.Tensor:
    return x * k + shift


def test_globals_and_builtins() -> None:
    def f(x):
        return helper(x) * FACTOR + abs(-2)  # type: ignore[operator]

    def changes():
        yield
        this_module.FACTOR = 5
        yield
        this_module.helper = lambda x: x - 1  # type: ignore[assignment]
        yield
        this_module.abs = lambda v: 40  # type: ignore[attr-defined]
        yield
        del this_module.abs  # type: ignore[attr-defined]
        this_module.FACTOR = 2
        this_module.helper = original  # type: ignore[assignment]
        yield

    original = helper
    f = types.FunctionType(f.__code__, vars(this_module), "f")
    follow_changes(f, changes(), X)


def test_function_code_defaults_and_closures() -> None:
    def make(n):
        def inner(x, k=2, *, s=1):
            return x * n * k + s

        return inner

    inner = make(3)

    def changes():
        yield
        inner.__defaults__ = (5,)
        yield
        inner.__kwdefaults__ = {"s": 7}
        yield
        inner.__closure__[0].cell_contents = 11
        yield
        inner.__code__ = make.__code__.replace().co_consts and (lambda x, k=2, *, s=1: x - k if n else s).__code__
        yield

    n = 1
    follow_changes(lambda x: inner(x), changes(), X)


def test_functions_passed_in() -> None:
    def f(x, g):
        return g(x)

    runner = follow(f, (X, torch.sin), (X, torch.cos), (X, lambda t: t * 2), (X, lambda t: t * 3))
    assert len(runner.graphs) == 4


def test_a_closure_made_anew_is_not_a_new_version() -> None:
    def f(x, g):
        return g(x)

    runner = Captured()
    for _ in range(3):
        torch.testing.assert_close(runner(f, X, lambda t: t * 2), X * 2)
    assert len(runner.graphs) == 1


def test_monkeypatched_torch() -> None:
    original = torch.nn.functional.silu

    def changes():
        yield
        torch.nn.functional.silu = lambda x, inplace=False: x * 100
        yield
        torch.nn.functional.silu = original
        yield

    try:
        follow_changes(nn.SiLU(), changes(), X)
    finally:
        torch.nn.functional.silu = original


def test_training_flag() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    runner = Captured()
    for training in (True, False, True, False):
        model.train(training)
        torch.manual_seed(1)
        mine = runner(model, X)
        torch.manual_seed(1)
        assert_alike(mine, model(X))
    assert len(runner.recompiles) == 1


def test_parameters_replaced_frozen_and_reshaped() -> None:
    model = nn.Linear(3, 3)

    def changes():
        yield
        model.weight.requires_grad_(False)
        yield
        model.weight = nn.Parameter(torch.ones(3, 3))
        yield
        model.weight.data = torch.ones(5, 3)
        model.bias.data = torch.ones(5)
        yield
        model.bias = None
        yield
        model.weight.data.mul_(2)
        yield

    follow_changes(model, changes(), X)


def test_modules_replaced_and_added() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def changes():
        yield
        model[1] = nn.Tanh()
        yield
        model.append(nn.Linear(3, 2))
        yield
        del model[0]
        yield

    follow_changes(model, changes(), X)


def test_hooks_of_a_module() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def changes():
        yield
        handle = model[0].register_forward_hook(lambda module, args, out: out * 2)
        yield
        pre = model[1].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
        yield
        handle.remove()
        yield
        pre.remove()
        yield
        everywhere = nn.modules.module.register_module_forward_hook(lambda module, args, out: out + 1)
        yield
        everywhere.remove()
        yield

    follow_changes(model, changes(), X)


def test_forward_patched_on_the_instance() -> None:
    model = nn.Sequential(nn.Linear(3, 3))

    def changes():
        yield
        model[0].forward = lambda x: x * 5
        yield
        del model[0].forward
        yield

    follow_changes(model, changes(), X)


@pytest.mark.parametrize(
    "name", ["grad", "inference", "autocast", "default dtype", "deterministic", "function mode", "dispatch mode"]
)
def test_process_state(name: str) -> None:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Doubling(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            return out * 2 if func is torch.sin else out

    class Counting(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Counting.seen += 1
            return func(*args, **(kwargs or {}))

    def f(x, w):
        deterministic = torch.are_deterministic_algorithms_enabled()
        return torch.sin(x) @ w, torch.zeros(2) + deterministic, torch.is_grad_enabled()

    def state():
        if name == "grad":
            return torch.no_grad()
        if name == "inference":
            return torch.inference_mode()
        if name == "autocast":
            return torch.autocast("cpu", dtype=torch.bfloat16)
        if name == "function mode":
            return Doubling()
        if name == "dispatch mode":
            return Counting()
        return Setting(name)

    class Setting:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            if self.name == "default dtype":
                torch.set_default_dtype(torch.float64)
            else:
                torch.use_deterministic_algorithms(True)

        def __exit__(self, *exc):
            torch.set_default_dtype(torch.float32)
            torch.use_deterministic_algorithms(False)

    w = torch.ones(3, 3, requires_grad=True)
    runner = Captured()
    for _ in range(2):
        assert_alike(runner(f, X, w), f(X, w))
        with state():
            before = Counting.seen
            eager = f(X, w)
            per_call = Counting.seen - before
            mine = runner(f, X, w)
            assert Counting.seen - before == 2 * per_call
            assert_alike(mine, eager)


def test_same_tensor_twice_and_different_tensors() -> None:
    def f(x, y):
        x = x.view(-1)
        x.add_(1)
        return x * y.view(-1)

    runner = Captured()
    for same in (False, True, False, True):
        a, b = X.clone(), X.clone()
        expected = f(a.clone(), b.clone()) if not same else f(a2 := X.clone(), a2)
        assert_alike(runner(f, a, a if same else b), expected)


def test_identity_of_tensors() -> None:
    def f(x, y):
        return x + 1 if x is y else x + 2

    a, b = X.clone(), X.clone()
    follow(f, (a, b), (a, a))
    follow(f, (a, a), (a, b))


def test_unbound_and_empty_cells() -> None:
    def make(full):
        def f(x):
            try:
                return x * late
            except NameError:
                return x - 1

        if full:
            late = 3
        return f

    runner = Captured()
    for full in (True, False, True, False):
        f = make(full)
        assert_alike(runner(f, X), f(X))


def test_recompile_names_the_guard_and_both_values() -> None:
    def f(x, n):
        return x * n

    runner = follow(f, (X, 2), (X, 3))
    assert len(runner.recompiles) == 1
    text = runner.recompiles[0]
    assert "n" in text and "2" in text and "3" in text


def test_cache_size_limit_warns_once_and_then_runs_in_python() -> None:
    def f(x, n):
        return x * n if n in range(200) else x  # looks at n

    runner = Captured()
    for n in range(config.cache_size_limit):
        runner(f, X, n)
    with pytest.warns(SmeltWarning, match=r"SM011.*f was compiled 8 times.*expected n == 7, got n = 100") as seen:
        for n in range(100, 104):
            torch.testing.assert_close(runner(f, X, n), X * n)
    assert len(seen) == 1
    assert len(runner.graphs) == config.cache_size_limit
    torch.testing.assert_close(runner(f, X, 3), X * 3)
    assert len(runner.graphs) == config.cache_size_limit


def test_a_string_that_is_only_passed_on_is_not_guarded() -> None:
    class Named:
        tag = "a"

    def f(x, named, name):
        other = named.tag
        print(name, other, (x * 2).sum().item())
        return x + 1, other

    def decides(x, name):
        return x + 1 if name == "b" else x - 1

    runner, named = Captured(), Named()
    for turn in range(4):
        named.tag = f"tag {turn}"
        name = f"turn {turn}"
        expected = observe(lambda: f(X, named, name))  # noqa: B023
        found = observe(lambda: runner(f, X, named, name))  # noqa: B023
        assert found.printed == expected.printed and found.result[1] == named.tag
    assert not runner.recompiles
    for name in ("a", "b", "c"):
        assert torch.equal(runner(decides, X, name), decides(X, name))
    assert runner.recompiles
