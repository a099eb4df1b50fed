"""Tensors of a class with `__torch_dispatch__` that a compiled function makes: captured whole, with eager's numbers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt

aten = torch.ops.aten


class Scaled(torch.Tensor):
    """Integers times a scale."""

    values: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls, values: torch.Tensor, scale: torch.Tensor) -> "Scaled":
        made: Scaled = torch.Tensor._make_wrapper_subclass(
            cls, values.shape, strides=values.stride(), dtype=scale.dtype, device=values.device, requires_grad=False
        )
        return made

    def __init__(self, values: torch.Tensor, scale: torch.Tensor) -> None:
        self.values, self.scale = values, scale  # type: ignore[method-assign]

    def plain(self) -> torch.Tensor:
        return self.values.to(self.dtype) * self.scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func is aten.t.default:
            return Scaled(args[0].values.t(), args[0].scale)
        if func is aten.mul.Tensor and isinstance(args[1], float):
            return Scaled(args[0].values, args[0].scale * args[1])
        if func is aten.cumsum.default:
            raise ValueError(f"no {func.__name__}")
        return func(*[each.plain() if isinstance(each, Scaled) else each for each in args], **(kwargs or {}))


class Added(Scaled):
    """Has an operator of its own."""

    def __add__(self, other: Any) -> Any:
        return self.plain() + 1000


class Asked(torch.Tensor):
    """Is asked for functions, too, as the classes of torchao are."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Asked":
        made: Asked = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        return made

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            return F.linear(args[0], args[1].inner) * 2
        if func is torch.relu:
            return super().__torch_function__(func, types, args, kwargs or {})
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        unwrapped = [each.inner + 1 if isinstance(each, Asked) else each for each in args]
        return func(*unwrapped, **(kwargs or {}))


def scaled(x: torch.Tensor, kind: type = Scaled) -> Any:
    scale = x.abs().amax() / 127
    return kind((x / scale).round().to(torch.int8), scale)


class Quantized(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return F.linear(x, scaled(w))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        return grad @ scaled(w), grad.t() @ x


def measured(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    q = scaled(w)
    rows, columns = q.shape
    assert isinstance(q, torch.Tensor) and type(q) is Scaled and q.dtype is torch.float32 and not q.requires_grad
    return x.sum() + rows * columns + q.size(0) + q.stride()[0] + q.dim() + len(q) + q.numel()


def chosen_by_raising(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    try:
        return scaled(w).cumsum(0)
    except ValueError as error:
        return x + len(str(error))


def changed(x: torch.Tensor, w: torch.Tensor) -> Any:
    q = scaled(w)
    q.extra, q.scale = x * 2, q.scale * 2
    return q.extra.sum() + q.plain().sum(), q


WHOLE: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "linear": lambda x, w: F.linear(x, scaled(w)),
    "linear with three dimensions": lambda x, w: F.linear(x[None].expand(2, -1, -1), scaled(w)),
    "product": lambda x, w: x @ scaled(w).t() + x @ scaled(w).T,
    "addmm": lambda x, w: torch.addmm(torch.ones(5), x, scaled(w).t()),
    "two of them": lambda x, w: scaled(x) @ scaled(w).t(),
    "scaled again": lambda x, w: (scaled(w) * 2.0).plain(),
    "operators": lambda x, w: (1.0 - scaled(w)) + -scaled(w) + (scaled(w) == 1) + scaled(w)[0] + abs(scaled(w)),
    "list": lambda x, w: sum(F.linear(x, q) for q in [scaled(w), scaled(w * 2)]),
    "returned": lambda x, w: scaled(w),
    "measured": measured,
    "asked for a function": lambda x, w: F.linear(x, Asked(w)) + Asked(w).ndim + Asked(w).shape[0],
    "asked for methods": lambda x, w: x @ Asked(w).t() + Asked(w).sum() + x @ Asked(w).T + (1 - Asked(w))[0, 0],
    "raising": chosen_by_raising,
    "changed": changed,
}


def _same(found: Any, expected: Any) -> None:
    if isinstance(expected, tuple):
        for one, other in zip(found, expected, strict=True):
            _same(one, other)
        return
    assert type(found) is type(expected) and found.requires_grad == expected.requires_grad
    if isinstance(expected, Scaled):
        assert (found.shape, found.stride(), found.dtype) == (expected.shape, expected.stride(), expected.dtype)
        found, expected = found.plain(), expected.plain()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", WHOLE)
def test_captured_without_a_break(name: str) -> None:
    function = WHOLE[name]
    smelt.reset()
    compiled = smelt.compile(function, fullgraph=True)
    for rows in (3, 3, 6, 7):
        x, w = torch.randn(rows, 4), torch.randn(5, 4)
        _same(compiled(x, w), function(x, w))
    assert smelt.counters["graph_breaks"] == 0 and smelt.counters["kernels"] > 0


def test_inside_of_an_autograd_function() -> None:
    smelt.reset()
    compiled = smelt.compile(lambda x, w: Quantized.apply(x, w).relu(), fullgraph=True)  # type: ignore[no-untyped-call]
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    compiled(x, w).sum().backward()
    found = x.grad, w.grad
    x.grad = w.grad = None
    Quantized.apply(x, w).relu().sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(found, (x.grad, w.grad))


def test_what_autograd_records_is_left_to_python() -> None:
    def outer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.linear(x, scaled(w.detach())) * 2

    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4)
    compiled = smelt.compile(outer)
    with pytest.raises(smelt.GraphBreakError, match="autograd records"):
        smelt.compile(outer, fullgraph=True)(x, w)
    compiled(x, w).sum().backward()
    found, x.grad = x.grad, None
    outer(x, w).sum().backward()
    torch.testing.assert_close(found, x.grad)


def test_below_autograd_nothing_is_recorded() -> None:
    """The parts of a wrapper may require a gradient; what its class computes of them does not."""
    x, w = torch.randn(3, 4), torch.randn(5, 4, requires_grad=True)

    def below(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.linear(x, scaled(w))

    _same(smelt.compile(below, fullgraph=True)(x, w), below(x, w))


def test_a_class_with_operators_of_its_own_is_left_to_python() -> None:
    def added(w: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = scaled(w, Added) + 1
        return result

    w = torch.randn(5, 4)
    torch.testing.assert_close(smelt.compile(added)(w), added(w))
    with pytest.raises(smelt.GraphBreakError, match="operators of its own"):
        smelt.compile(added, fullgraph=True)(w)


def test_an_exception_of_the_class_leaves_the_call() -> None:
    with pytest.raises(ValueError, match="no cumsum"):
        smelt.compile(lambda w: scaled(w).cumsum(0))(torch.randn(5, 4))


def test_a_class_that_is_given_another_dispatch_is_followed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    w = torch.randn(5, 4)
    compiled = smelt.compile(lambda w: scaled(w) + 1)
    compiled(w)

    def zeros(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> torch.Tensor:
        return torch.zeros(2)

    monkeypatch.setattr(Scaled, "__torch_dispatch__", classmethod(zeros))
    assert torch.equal(compiled(w), torch.zeros(2))


@pytest.mark.parametrize(
    "function",
    [lambda w: sum(scaled(w)), lambda w: w + len(scaled(w.sum()).shape), lambda w: w + len([*scaled(w)])],
    ids=["sum", "scalar", "unpacked"],
)
def test_iteration_is_left_to_python(function: Callable[[torch.Tensor], Any]) -> None:
    w = torch.randn(5, 4)
    torch.testing.assert_close(smelt.compile(function)(w), function(w))


def test_what_a_class_hands_to_tensors_is_left_to_python() -> None:
    """`Tensor.__torch_function__` makes an object of the class of the result, which has no parts."""
    w = torch.randn(5, 4)

    def handed(w: torch.Tensor) -> Any:
        return torch.relu(Asked(w))

    assert type(smelt.compile(handed)(w)) is type(handed(w)) is Asked


def test_a_block_without_functions_of_classes_is_left_to_python() -> None:
    def blocked(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        q = Asked(w)
        with torch._C.DisableTorchFunctionSubclass():
            found = F.linear(x, q)
        return found + F.linear(x, q)

    x, w = torch.randn(3, 4), torch.randn(5, 4)
    torch.testing.assert_close(smelt.compile(blocked)(x, w), blocked(x, w))


def test_int8_of_torchao_is_one_graph() -> None:
    quantization: Any = pytest.importorskip("torchao.quantization")
    smelt.reset()
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64)).eval()
    quantization.quantize_(model, quantization.Int8DynamicActivationInt8WeightConfig())
    compiled, x = smelt.compile(model, fullgraph=True), torch.randn(8, 64)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    assert (smelt.counters["graphs"], smelt.counters["graph_breaks"]) == (1, 0)


class Slotted(torch.Tensor):
    """Keeps a part in a slot, as those of torchao's float8 do."""

    __slots__ = ("inner",)

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Slotted":
        made: Slotted = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        made.other = inner * 2  # type: ignore[attr-defined]
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return func(*[each.inner if isinstance(each, Slotted) else each for each in args], **(kwargs or {}))


def test_slots_are_filled() -> None:
    w = torch.randn(5, 4)
    torch.testing.assert_close(smelt.compile(lambda w: Slotted(w) + 1, fullgraph=True)(w), w + 1)
    found: Any = smelt.compile(lambda w: Slotted(w), fullgraph=True)(w)
    assert type(found) is Slotted and found.inner is w and "inner" not in found.__dict__
    torch.testing.assert_close(found.other, w * 2)
    names = smelt.compile(lambda w: w + len(vars(Slotted(w))))(w)
    torch.testing.assert_close(names, w + 1)


def test_a_wrapper_outlives_a_graph_break() -> None:
    def broken(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        q = scaled(w)
        first = F.linear(x, q)
        smelt.graph_break()
        return F.linear(x, q) + first

    x, w = torch.randn(3, 4), torch.randn(5, 4)
    torch.testing.assert_close(smelt.compile(broken)(x, w), broken(x, w))
