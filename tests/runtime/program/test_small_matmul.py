"""Products without a call where they are small, and transposed where that is faster: the same values for any layout."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from smelt import _native
from smelt.ir.program import Library, Operand, Place, Program, ProgramBuffer
from smelt.ir.table.records import TENSOR, Call, Layout, Native, Ref, Tensor
from smelt.ir.table.write import write_program
from smelt.ir.tensorspec import TensorSpec
from smelt.runtime.program.launch import Executable
from smelt.runtime.program.small_matmul import DEPTH, MULTIPLICATIONS, SIDE, as_called, small_product
from smelt.torch_abi.aoti_shims import connect
from tests.layout import needs_layout
from tests.program_tables import program as program_table

aten = torch.ops.aten
CPU = torch.device("cpu")

pytestmark = needs_layout  # the runner makes them; a library rounds in its own way
SHAPES = [(1, 1, 1), (3, 5, 2), (10, 10, 10), (64, 1, 64), (1, 64, 64), (7, 2, 33), (2, 1024, 2), (16, 16, 16)]


def laid_out(tensor: torch.Tensor, layout: str) -> tuple[torch.Tensor, tuple[int, ...], int]:
    """Memory that holds a tensor in a layout, with its strides there and where it begins."""
    rows, columns = tensor.shape
    if layout == "rows":
        return tensor.clone(), (columns, 1), 0
    if layout == "columns":
        return tensor.t().contiguous().clone().view(rows, columns), (1, rows), 0
    held = torch.full((rows + 2, 2 * columns + 3), math.nan, dtype=tensor.dtype)
    view = held[1 : rows + 1, 2 : 2 * columns + 2 : 2]
    view.copy_(tensor)
    return held, tuple(view.stride()), view.storage_offset()


def buffer(name: str, place: Place, tensor: torch.Tensor) -> ProgramBuffer:
    spec = TensorSpec(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, CPU)
    return ProgramBuffer(name, spec, place)


def whole(made: ProgramBuffer) -> Operand:
    return Operand(made.name, made.spec.shape, made.spec.stride)


def executable(
    op: Any, given: list[tuple[Operand, torch.Tensor]], out: torch.Tensor, **factors: float
) -> tuple[Executable, list[torch.Tensor]]:
    buffers = [buffer(operand.buffer, Place.INPUT, tensor) for operand, tensor in given]
    result = buffer("out", Place.FRESH, out)
    step = Library(op, tuple(operand for operand, _ in given), tuple(factors.items()), ("out",), ("out",))
    names = tuple(each.name for each in buffers)
    return Executable(Program("p", (*buffers, result), names, (), (step,), (whole(result),)), {}), [t for _, t in given]


def native_call_of(made: Executable) -> Native:
    (call,) = [step for step in made.read().steps if isinstance(step, Call)]
    assert call.native is not None
    return call.native


def product_of(made: Executable) -> tuple[int, ...]:
    return native_call_of(made).product


def check(found: torch.Tensor, exact: torch.Tensor, size: torch.Tensor, depth: int) -> None:
    """`size`: what the sum is of absolute values, which rounding errors are measured by."""
    allowed = (depth + 2) * torch.finfo(found.dtype).eps * size + torch.finfo(found.dtype).tiny
    assert ((found.double() - exact).abs() <= allowed).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layouts", [("rows", "rows"), ("columns", "apart"), ("apart", "columns")])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_of_any_layout(shape: tuple[int, int, int], layouts: tuple[str, str], dtype: torch.dtype) -> None:
    rows, columns, depth = shape
    left, right = torch.randn(rows, depth, dtype=dtype), torch.randn(depth, columns, dtype=dtype)
    given = []
    for name, tensor, layout in zip(("left", "right"), (left, right), layouts, strict=True):
        held, stride, begin = laid_out(tensor, layout)
        given.append((Operand(name, tuple(tensor.shape), stride, begin), held))
    out = torch.empty(rows, columns, dtype=dtype)
    for target in (out, torch.empty_strided((rows, columns), (1, rows), dtype=dtype)):
        made, inputs = executable(aten.mm.out, given, target)
        assert product_of(made)
        found = made(*inputs)[0]
        assert found.stride() == target.stride()
        check(found, left.double() @ right.double(), left.double().abs() @ right.double().abs(), depth)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("repeated", [(), (0,), (1,), (0, 1), "vector", "number"])
def test_sums_with_what_is_repeated(shape: tuple[int, int, int], repeated: Any) -> None:
    rows, columns, depth = shape
    left, right = torch.randn(rows, depth), torch.randn(depth, columns)
    sizes = {"vector": (columns,), "number": ()}.get(repeated) if isinstance(repeated, str) else None
    if sizes is None:
        sizes = tuple(1 if place in repeated else size for place, size in enumerate((rows, columns)))
    added = torch.randn(sizes)
    tensors = {"added": added, "left": left, "right": right}
    given = [(Operand(name, tuple(t.shape), tuple(t.stride())), t) for name, t in tensors.items()]
    made, inputs = executable(aten.addmm.out, given, torch.empty(rows, columns), beta=3.0, alpha=0.5)
    assert product_of(made)
    exact = 3 * added.double() + 0.5 * (left.double() @ right.double())
    size = 3 * added.double().abs() + 0.5 * (left.double().abs() @ right.double().abs())
    check(made(*inputs)[0], exact, size, depth)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("factors", "unread", "value"),
    [
        ({"beta": 0.0, "alpha": 1.0}, ("added",), 2.0),
        ({"beta": 1.0, "alpha": 0.0}, ("left", "right"), 1.0),
        ({"beta": 0.0, "alpha": 0.0}, ("added", "left", "right"), 0.0),
    ],
)
def test_what_is_multiplied_by_zero_is_not_looked_at(
    factors: dict[str, float], unread: tuple[str, ...], value: float, dtype: torch.dtype
) -> None:
    tensors = {name: torch.ones(2, 2, dtype=dtype) for name in ("added", "left", "right")}
    for number, name in enumerate(unread):
        tensors[name].fill_((math.nan, math.inf)[number % 2])
    given = [(Operand(name, (2, 2), (2, 1)), tensor) for name, tensor in tensors.items()]
    made, inputs = executable(aten.addmm.out, given, torch.empty(2, 2, dtype=dtype), **factors)
    assert product_of(made) and torch.equal(made(*inputs)[0], torch.full((2, 2), value, dtype=dtype))
    eager = torch.addmm(*inputs[:3], beta=factors["beta"], alpha=factors["alpha"])
    assert torch.equal(eager, made(*inputs)[0])


@pytest.mark.parametrize("shape", SHAPES)
def test_floats_are_rounded_once(shape: tuple[int, int, int]) -> None:
    rows, columns, depth = shape
    left, right = torch.randn(rows, depth), torch.randn(depth, columns)
    given = [
        (Operand("left", (rows, depth), (depth, 1)), left),
        (Operand("right", (depth, columns), (columns, 1)), right),
    ]
    made, inputs = executable(aten.mm.out, given, torch.empty(rows, columns))
    exact, size = left.double() @ right.double(), left.double().abs() @ right.double().abs()
    allowed = torch.finfo(torch.float32).eps / 2 * exact.abs() + depth * torch.finfo(torch.float64).eps * size
    assert product_of(made) and ((made(*inputs)[0].double() - exact).abs() <= allowed).all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_spreads_as_it_should(value: float) -> None:
    left, right = torch.zeros(3, 2), torch.ones(2, 3)
    right[1, 2] = value
    given = [(Operand("left", (3, 2), (2, 1)), left), (Operand("right", (2, 3), (3, 1)), right)]
    made, inputs = executable(aten.mm.out, given, torch.empty(3, 3))
    assert product_of(made)
    torch.testing.assert_close(made(*inputs)[0], left @ right, equal_nan=True)


@pytest.mark.parametrize(
    "shape", [(1, 1, DEPTH + 1), (1, SIDE + 1, 1), (SIDE + 1, 1, 1), (64, MULTIPLICATIONS // 64 + 1, 1), (2, 2, 0)]
)
def test_what_is_larger_is_left_to_the_library(shape: tuple[int, int, int]) -> None:
    rows, columns, depth = shape
    left, right = torch.randn(rows, depth), torch.randn(depth, columns)
    given = [
        (Operand("left", (rows, depth), (depth, 1)), left),
        (Operand("right", (depth, columns), (columns, 1)), right),
    ]
    made, inputs = executable(aten.mm.out, given, torch.empty(rows, columns))
    assert product_of(made) == ()
    torch.testing.assert_close(made(*inputs)[0], left @ right)


def test_other_dtypes_and_batches_are_left_to_the_library() -> None:
    square = Operand("any", (2, 2), (2, 1))
    batch = Operand("any", (3, 2, 2), (4, 2, 1))
    assert small_product([square] * 3, [0] * 3, {torch.float32})
    for dtypes in ({torch.bfloat16}, {torch.int64}, {torch.complex64}, {torch.float32, torch.float64}):
        assert small_product([square] * 3, [0] * 3, dtypes) == ()
    assert small_product([batch] * 3, [0] * 3, {torch.float32}) == ()


class Watching(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_who_watches_operators_sees_them() -> None:
    given = [(Operand(name, (2, 2), (2, 1)), torch.ones(2, 2)) for name in ("left", "right")]
    made, inputs = executable(aten.mm.out, given, torch.empty(2, 2))
    with Watching() as mode:
        made(*inputs)
    assert product_of(made) and "aten.mm.out" in mode.seen


def runner(product: tuple[int, ...]) -> Any:
    connect()
    code = (TENSOR, 0, TENSOR, 1, TENSOR, 2)
    native = Native("aoti_torch_cpu_mm_out", None, (Ref(2), Ref(0), Ref(1)), code, (), 0, product)
    step = Call("mm", torch.mm, (Ref(0), Ref(1), Ref(2)), ("out",), native=native)
    table = program_table((step,), (), (Tensor("", torch.float32, CPU, Layout((2, 2), (2, 1))),) * 3, inputs=3)

    def unused(*args: Any) -> Any:
        raise AssertionError("nothing of this is needed")

    return _native.Runner(
        *write_program(table, lambda dtype: -1, lambda device: None), threads=unused, acquire=unused, release=unused,
        allocate=unused, view=unused, fit=unused, watchers=(),
    )  # fmt: skip


def test_a_runner_makes_what_is_described() -> None:
    out = torch.zeros(2, 2)
    runner((0, 1, 2, 2, 2, 1, 0, 2, 1, 0, 2, 1, 0))(torch.ones(2, 2), torch.ones(2, 2), out)
    assert torch.equal(out, torch.tensor([[2.0, 2.0], [0.0, 0.0]]))  # a call would have made both rows


@pytest.mark.parametrize(
    "product", [(0, 1), (0, 1, 2, 2, 2, 1, 0, 2, 1, 0, 2, 1), (0, -1, 2, 2, *range(9)), (0, 2, SIDE + 1, 2, *range(9))]
)
def test_what_describes_no_product_is_refused(product: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="describe no product"):
        runner(product)


@pytest.fixture
def turning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smelt.device.host_library.slow_transposed_products", lambda: True)


def shapes_called(made: Executable) -> list[tuple[int, ...] | None]:
    return [ref.layout and ref.layout.shape for ref in native_call_of(made).tensors]


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("sizes", [None, (), (40,), (1, 40), (20, 1), (20, 40)])
@pytest.mark.usefixtures("turning")
def test_products_by_what_is_transposed_are_called_transposed(batch: tuple[int, ...], sizes: Any) -> None:
    left, right = torch.randn(*batch, 20, 30), torch.randn(*batch, 40, 30)
    tensors = {"left": left, "right": right.mT}
    if sizes is not None:
        tensors = {"added": torch.randn((*batch, *sizes) if len(sizes) == 2 else sizes), **tensors}
    operands = [Operand(name, tuple(t.shape), tuple(t.stride())) for name, t in tensors.items()]
    given = list(zip(operands, (*[t for name, t in tensors.items() if name != "right"], right), strict=True))
    plain, added = (aten.bmm.out, aten.baddbmm.out) if batch else (aten.mm.out, aten.addmm.out)
    factors = {} if sizes is None else {"beta": 3.0, "alpha": 0.5}
    made, inputs = executable(plain if sizes is None else added, given, torch.empty(*batch, 20, 40), **factors)
    shapes = shapes_called(made)
    assert shapes[0] == (*batch, 40, 20) and shapes[-1] == (*batch, 30, 20)
    found = made(*inputs)[0]
    exact, size = left.double() @ right.double().mT, left.double().abs() @ right.double().abs().mT
    if sizes is not None:
        exact, size = (3 * tensors["added"] + 0.5 * exact), (3 * tensors["added"].abs() + 0.5 * size)
    assert found.is_contiguous()
    check(found, exact, size, 30)


@pytest.mark.usefixtures("turning")
def test_what_goes_another_way_already_is_called_as_it_is() -> None:
    def called(*operands: Operand, dtype: torch.dtype = torch.float32) -> bool:
        return as_called(operands, {dtype}) != operands

    out, left, right = Operand("a", (20, 40), (40, 1)), Operand("b", (20, 30), (30, 1)), Operand("c", (30, 40), (1, 30))
    assert called(out, left, right)
    assert not called(out, left, right, dtype=torch.float64)
    assert not called(out, left, Operand("c", (30, 40), (40, 1)))
    assert not called(out, Operand("b", (20, 30), (1, 20)), right)
    assert not called(Operand("a", (20, 40), (1, 20)), left, right)
    for rows, columns, depth in ((8, 400, 300), (400, 8, 300), (400, 300, 8), (16, 16, 32), (512, 512, 512)):
        sides = Operand("a", (rows, columns), (columns, 1)), Operand("b", (rows, depth), (depth, 1))
        assert not called(*sides, Operand("c", (depth, columns), (1, depth)))


@pytest.mark.usefixtures("turning")
def test_products_in_planned_memory_are_called_transposed() -> None:
    x, first, second = torch.randn(20, 30), torch.randn(40, 30), torch.randn(30, 40)
    between = torch.empty(20, 40)
    given = [buffer(name, Place.INPUT, t) for name, t in (("x", x), ("first", first), ("second", second))]
    planned = replace(buffer("between", Place.ARENA, between), offset=64)
    steps = (
        Library(aten.mm.out, (whole(given[0]), Operand("first", (30, 40), (1, 30))), (), ("between",), ("out",)),
        Library(aten.mm.out, (whole(planned), Operand("second", (40, 30), (1, 40))), (), ("out",), ("out",)),
    )
    out = buffer("out", Place.FRESH, x)
    program = Program("p", (*given, planned, out), ("x", "first", "second"), (), steps, (whole(out),), 64 + 4 * 800)
    made = Executable(program, {})
    exact = x.double() @ first.double().t() @ second.double().t()
    size = x.double().abs() @ first.double().abs().t() @ second.double().abs().t()
    call = made.read().steps[0]
    assert isinstance(call, Call) and call.native is not None and call.native.tensors[2].layout.shape == (30, 20)
    for _ in range(2):
        check(made(x, first, second)[0], exact, size, 70)
