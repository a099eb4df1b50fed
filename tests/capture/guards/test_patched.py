"""Functions and methods of PyTorch that the program replaced by wrappers, which carry the names of what they wrap.

Each program runs through the same changes of the world eagerly and compiled: the results, and what the wrappers wrote
down of their calls, must be the same.
"""

import functools
import inspect
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import smelt

BACKENDS = ("eager", "aot_eager", "llvm")
# Every world changes under one way to run graphs as text and one to trace them; the third gets the other world.
WORLDS = [("through_changes", "eager"), ("through_changes", "llvm"), ("patched_first", "aot_eager")]

# Calls of functions of `torch.nn.functional`, as a program writes them; x is 2 x 3 x 4, w is 4 x 4, i are integers.
OF_FUNCTIONAL = {
    "relu": "(x)", "relu_": "(x + 0)", "gelu": "(x)", "silu": "(x)", "elu": "(x)", "selu": "(x)", "celu": "(x)",
    "leaky_relu": "(x)", "softplus": "(x)", "softsign": "(x)", "tanhshrink": "(x)", "hardtanh": "(x)",
    "hardswish": "(x)", "hardsigmoid": "(x)", "relu6": "(x)", "logsigmoid": "(x)", "mish": "(x)",
    "threshold": "(x, 0.1, 0.2)",
    "sigmoid": "(x)", "tanh": "(x)", "glu": "(x)", "softmax": "(x, -1)", "log_softmax": "(x, -1)", "softmin": "(x, -1)",
    "linear": "(x, w)", "bilinear": "(x, x, w.expand(4, 4, 4))", "layer_norm": "(x, (4,))", "rms_norm": "(x, (4,))",
    "group_norm": "(x, 3)", "instance_norm": "(x)", "batch_norm": "(x, None, None, training=True)",
    "normalize": "(x)", "dropout": "(x, 0.5, False)", "embedding": "(i, w)", "one_hot": "(i, 4)", "pad": "(x, (1, 1))",
    "max_pool1d": "(x, 2)", "avg_pool1d": "(x, 2)", "adaptive_avg_pool1d": "(x, 2)", "conv1d": "(x, w[:3, :3, None])",
    "interpolate": "(x, scale_factor=2.0)", "scaled_dot_product_attention": "(x, x, x)", "cosine_similarity": "(x, x)",
    "mse_loss": "(x, x + 1)", "l1_loss": "(x, x + 1)", "smooth_l1_loss": "(x, x + 1)", "huber_loss": "(x, x + 1)",
    "cross_entropy": "(x[0, :2], i[0])", "nll_loss": "(x[0, :2], i[0])", "kl_div": "(x, x.exp())",
    "unfold": "(x[None], 2)",
    "binary_cross_entropy_with_logits": "(x, x.sigmoid())", "pixel_shuffle": "(x.reshape(1, 4, 2, 3), 2)",
}  # fmt: skip

OF_TORCH = {
    "relu": "(x)", "sin": "(x)", "add": "(x, 1)", "mul": "(x, x)", "matmul": "(x, w)", "cat": "([x, x])", "sum": "(x)",
    "stack": "([x, x])", "where": "(x > 0, x, x * 2)", "einsum": "('abc,cd->abd', x, w)", "norm": "(x)",
    "split": "(x, 2)", "softmax": "(x, -1)", "clamp": "(x, 0, 1)", "zeros_like": "(x)", "ones": "(2)",
    "arange": "(4)", "unique": "(i)",
    "meshgrid": "(x[0, 0], x[0, 1])", "chunk": "(x, 2)", "max": "(x)", "cdist": "(x, x)", "get_default_dtype": "()",
    "is_tensor": "(x)", "is_grad_enabled": "()", "tensor": "([1.0, 2.0])",
}  # fmt: skip

OF_TENSOR = {
    "add": "(1)", "add_": "(1)", "sub": "(x)", "mul": "(x)", "div": "(2)", "matmul": "(w)", "exp": "()", "relu": "()",
    "sigmoid": "()", "softmax": "(-1)", "sum": "()", "mean": "(-1)", "view": "(6, 4)", "reshape": "(-1)", "size": "()",
    "transpose": "(0, 1)", "permute": "(2, 0, 1)", "contiguous": "()", "clone": "()", "detach": "()", "float": "()",
    "to": "(torch.float64)", "masked_fill": "(x > 0, 0.0)", "unsqueeze": "(0)", "squeeze": "()", "chunk": "(2)",
    "split": "(2)", "norm": "()", "max": "(-1)", "expand": "(2, 3, 4)", "clamp": "(0, 1)", "dim": "()", "numel": "()",
    "flatten": "()", "item": "()", "is_floating_point": "()", "new_zeros": "(2)", "type_as": "(w)",
    "unflatten": "(2, (2, 2))",
    "stride": "()", "copy_": "(x + 1)", "zero_": "()",
}  # fmt: skip

OF_OPERATORS = {
    "__add__": "x + 1", "__radd__": "1 + x", "__sub__": "x - w[0]", "__rsub__": "1 - x", "__mul__": "x * x",
    "__rmul__": "2 * x", "__truediv__": "x / 2", "__rtruediv__": "1 / (x + 3)", "__matmul__": "x @ w", "__neg__": "-x",
    "__pow__": "x ** 2", "__rpow__": "2 ** x", "__getitem__": "x[0]", "__gt__": "x > 0", "__eq__": "x == 0",
    "__iadd__": "iadd(x.clone(), 1)", "__invert__": "~i", "__and__": "i & 1", "__floordiv__": "x // 1",
    "__len__": "len(x)", "__abs__": "abs(x)", "__mod__": "x % 2", "__iter__": "[row + 1 for row in x]",
    "__contains__": "1.0 in x", "__ne__": "x != 0", "__bool__": "1 if x.sum() > 0 else 2",
    "__setitem__": "put(x.clone())", "__float__": "float(x.sum())",
}  # fmt: skip

OF_PROPERTIES = {"T": "x[0].T", "mT": "x.mT", "H": "x[0].H", "shape": "x.shape", "dtype": "x.dtype", "data": "x.data",
                 "requires_grad": "x.requires_grad", "device": "x.device", "is_leaf": "x.is_leaf", "grad": "x.grad",
                 "ndim": "x.ndim", "real": "x.real", "is_cuda": "x.is_cuda", "grad_fn": "x.grad_fn"}  # fmt: skip


def iadd(x: torch.Tensor, y: Any) -> torch.Tensor:
    x += y
    return x


def put(x: torch.Tensor) -> torch.Tensor:
    x[0] = 1.0
    return x


class World:
    """What wrappers look at and write down."""

    def __init__(self) -> None:
        self.flag = False
        self.log: list[str] = []


def wrapped(original: Any, world: World) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        world.log.append(original.__name__)
        made = original(*args, **kwargs)
        if world.flag and isinstance(made, torch.Tensor):
            return torch.logical_not(made) if made.dtype == torch.bool else torch.sub(made, -3)
        return made

    return wrapper


@contextmanager
def patched(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    held = name in vars(owner)
    before = inspect.getattr_static(owner, name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        if held:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


def program(text: str, **names: Any) -> Callable[..., Any]:
    known = {"F": F, "torch": torch, "iadd": iadd, "put": put, "operator": operator, **names}
    exec(f"def program(x, w, i):\n    before = x * 2\n    found = {text}\n    return before, found\n", known)
    made: Callable[..., Any] = known["program"]
    return made


def inputs() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(3)
    return torch.randn(2, 3, 4), torch.randn(4, 4), torch.tensor([[0, 1], [2, 3]])


class Seen:
    """What calls gave, in order."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.all: list[Any] = []

    def call(self, function: Callable[..., Any]) -> None:
        given = inputs()
        found = function(*given)
        self.all.append((found, given, list(self.world.log)))


def through_changes(owner: Any, name: str, text: str, compiled: Callable[[Any], Any]) -> list[Any]:
    """The program and one that calls the kept original, while the original is replaced, put back, and replaced."""
    world = World()
    seen = Seen(world)
    original = inspect.getattr_static(owner, name)
    function = compiled(program(text))
    seen.call(function)
    for _ in range(2):
        with patched(owner, name, wrapped(original, world)):
            seen.call(function)
            world.flag = not world.flag
            seen.call(function)
            seen.call(function)
        seen.call(function)
    return seen.all


def patched_first(owner: Any, name: str, text: str, compiled: Callable[[Any], Any]) -> list[Any]:
    """The original is replaced before anything is compiled, and put back later."""
    world = World()
    seen = Seen(world)
    original = inspect.getattr_static(owner, name)
    with patched(owner, name, wrapped(original, world)):
        function = compiled(program(text))
        seen.call(function)
        world.flag = True
        seen.call(function)
        seen.call(function)
    seen.call(function)
    return seen.all


def original_kept(owner: Any, name: str, text: str, compiled: Callable[[Any], Any]) -> list[Any]:
    """`text` calls `kept`, the original: whatever stands in its place, no wrapper runs."""
    world = World()
    seen = Seen(world)
    original = inspect.getattr_static(owner, name)
    early, late = (compiled(program(text, kept=original)) for _ in range(2))
    seen.call(early)
    with patched(owner, name, wrapped(original, world)):
        for function in (early, late):
            seen.call(function)
            world.flag = True
            seen.call(function)
    seen.call(early)
    seen.call(late)
    return seen.all


SCENARIOS = {"through_changes": through_changes, "patched_first": patched_first}


def check(scenario: Callable[..., list[Any]], owner: Any, name: str, text: str, backend: Any) -> None:
    wanted = scenario(owner, name, text, lambda function: function)
    smelt.reset()
    found = scenario(owner, name, text, lambda function: smelt.compile(function, backend=backend))
    assert len(found) == len(wanted)
    for place, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        assert ours[2] == theirs[2], f"call {place}: the wrappers were called {ours[2]}, in eager {theirs[2]}"
        assert_same(ours[:2], theirs[:2], f"call {place}")


def assert_same(ours: Any, theirs: Any, place: str) -> None:
    assert type(ours) is type(theirs), place
    if isinstance(ours, tuple | list):
        assert len(ours) == len(theirs), place
        for mine, other in zip(ours, theirs, strict=True):
            assert_same(mine, other, place)
    elif isinstance(ours, torch.Tensor):
        torch.testing.assert_close(ours, theirs, equal_nan=True, msg=lambda text: f"{place}: {text}")
    elif isinstance(ours, float):
        assert ours == pytest.approx(theirs, rel=1e-5), place
    else:
        assert ours == theirs or (ours != ours and theirs != theirs), place


def plain_backend(module: torch.fx.GraphModule, examples: Any) -> Callable[..., Any]:
    return module.forward


def stepping_backend(module: torch.fx.GraphModule, examples: Any) -> Callable[..., Any]:
    return torch.fx.Interpreter(module).run


@pytest.mark.parametrize(("scenario", "backend"), WORLDS)
@pytest.mark.parametrize("name", OF_FUNCTIONAL)
def test_functional(name: str, scenario: str, backend: str) -> None:
    check(SCENARIOS[scenario], F, name, f"F.{name}{OF_FUNCTIONAL[name]}", backend)


@pytest.mark.parametrize("backend", ["eager", "llvm", plain_backend])
@pytest.mark.parametrize("name", OF_FUNCTIONAL)
def test_functional_kept(name: str, backend: Any) -> None:
    check(original_kept, F, name, f"kept{OF_FUNCTIONAL[name]}", backend)


@pytest.mark.parametrize(("scenario", "backend"), WORLDS)
@pytest.mark.parametrize("name", OF_TORCH)
def test_torch(name: str, scenario: str, backend: str) -> None:
    check(SCENARIOS[scenario], torch, name, f"torch.{name}{OF_TORCH[name]}", backend)


@pytest.mark.parametrize("backend", ["eager", "llvm", plain_backend])
@pytest.mark.parametrize("name", OF_TORCH)
def test_torch_kept(name: str, backend: Any) -> None:
    check(original_kept, torch, name, f"kept{OF_TORCH[name]}", backend)


def method_call(name: str, receiver: str) -> str:
    tensor = {"item": "x[0, 0, 0]", "add_": "x.clone()", "zero_": "x.clone()", "copy_": "x.clone()"}.get(name, "x")
    arguments = OF_TENSOR[name]
    if receiver == "":
        return f"{tensor}.{name}{arguments}"
    return f"{receiver}({tensor}, {arguments[1:]}"


@pytest.mark.parametrize(("scenario", "backend"), WORLDS)
@pytest.mark.parametrize("name", OF_TENSOR)
def test_methods(name: str, scenario: str, backend: str) -> None:
    check(SCENARIOS[scenario], torch.Tensor, name, method_call(name, ""), backend)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "llvm", plain_backend, stepping_backend])
@pytest.mark.parametrize("name", OF_TENSOR)
def test_methods_kept(name: str, backend: Any) -> None:
    check(original_kept, torch.Tensor, name, method_call(name, "kept"), backend)


@pytest.mark.parametrize(("scenario", "backend"), WORLDS)
@pytest.mark.parametrize("name", OF_OPERATORS)
def test_operators(name: str, scenario: str, backend: str) -> None:
    check(SCENARIOS[scenario], torch.Tensor, name, OF_OPERATORS[name], backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", OF_PROPERTIES)
def test_properties(name: str, backend: str) -> None:
    def scenario(owner: Any, name: str, text: str, compiled: Callable[[Any], Any]) -> list[Any]:
        seen = Seen(World())
        original = inspect.getattr_static(owner, name)

        def getter(tensor: torch.Tensor) -> Any:
            seen.world.log.append(name)
            return original.__get__(tensor)

        function = compiled(program(text))
        seen.call(function)
        with patched(owner, name, property(getter)):
            seen.call(function)
            seen.call(function)
            late = compiled(program(text))
            seen.call(late)
        seen.call(function)
        seen.call(late)
        return seen.all

    check(scenario, torch.Tensor, name, OF_PROPERTIES[name], backend)
