"""Every scalar operation and conversion on every dtype, compiled, against the reference interpreter."""

import itertools

import pytest
import torch

from smelt.base.options import Options
from smelt.codegen import compile_kernels
from smelt.ir.kernel import Kernel
from smelt.ir.scalar import SCALAR_OPS, ScalarOp, kind_of
from smelt.ir.tensorspec import short_name
from tests.codegen.running import call
from tests.kernel_reference import run_kernel
from tests.kernel_text import parse_kernel

FLOATS = (torch.float32, torch.float64)
NARROW = (torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 7.25, -7.75, 100.0, -100.0, 1e-30, -1e30]
EDGES = [float("inf"), float("-inf"), float("nan")]


def points(dtype: torch.dtype) -> torch.Tensor:
    """Numbers of `dtype` worth trying."""
    if dtype is torch.bool:
        return torch.tensor([True, False])
    if dtype.is_floating_point:
        others = torch.randn(13, generator=torch.Generator().manual_seed(1))
        return torch.cat([torch.tensor(SPECIAL + EDGES), others]).to(dtype)
    limits = torch.iinfo(dtype)
    low = max(limits.min, -9)
    return torch.tensor([limits.min, limits.max, *range(low, low + 20), 63, 64, 65, 100], dtype=dtype)


def operands(op: ScalarOp, dtype: torch.dtype) -> list[torch.Tensor]:
    """All combinations of points, one flat tensor an operand, of an odd length so that the last vector overlaps."""
    kinds = [torch.bool if op.name == "where" and number == 0 else dtype for number in range(op.arity)]
    choices = [points(kind)[: None if op.arity < 3 else 9] for kind in kinds]
    grids = torch.meshgrid(*(torch.arange(each.numel()) for each in choices), indexing="ij")
    flat = [each[grid.reshape(-1)] for each, grid in zip(choices, grids, strict=True)]
    if op.name in ("floordiv", "truncdiv", "remainder", "fmod") and kind_of(dtype) == "i":
        fine = flat[1] != 0  # PyTorch raises
        if dtype is not torch.uint8:
            fine &= ~((flat[1] == -1) & (flat[0] == torch.iinfo(dtype).min))  # faults on some machines
        flat = [each[fine] for each in flat]
    return [torch.cat([each, each[:3]]) if each.numel() % 2 == 0 else each for each in flat]


def kernel_of(name: str, op: str, inputs: list[torch.dtype], output: torch.dtype, size: int) -> Kernel:
    names = [f"x{number}" for number in range(len(inputs))]
    lines = [f"kernel {name} rows() cols(j:{size})"]
    lines += [f"in {n}: {short_name(d)}[{size}]" for n, d in zip(names, inputs, strict=True)]
    lines += [f"out y: {short_name(output)}[{size}]", "loop:"]
    lines += [f"v{n} = load {n}[j]" for n in names]
    lines += [f"r = {op} {', '.join('v' + n for n in names)} : {short_name(output)}", "store y[j] = r"]
    return parse_kernel("\n".join(lines))


# Compared with float64, within two ulp: eager's f32 versions flush small results, or give up where quotients are huge.
ROUNDED = {
    "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tanh", "sigmoid", "erf", "pow",
    "fma", "fmod", "remainder",
}  # fmt: skip


# The same, within so many quarters of an ulp of one (docs/math.md).
ABSOLUTE = {"ndtr": 4, "gelu_slope": 5}


def expected(op: str, kernel: Kernel, inputs: list[torch.Tensor]) -> torch.Tensor:
    if op in (*ROUNDED, *ABSOLUTE) and inputs[0].dtype is torch.float32:
        return SCALAR_OPS[op].reference(*(each.double() for each in inputs))
    want = torch.zeros(inputs[0].numel(), dtype=kernel.buffer("y").dtype)
    run_kernel(kernel, [*inputs, want])
    return want


def agree(op: str, got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Where compiled and reference results agree: exactly, but for functions, which are rounded."""
    same = (got == want.to(got.dtype)) | (got.isnan() & want.isnan())
    if op in ABSOLUTE:
        return same | ((got.double() - want.double()).abs() <= ABSOLUTE[op] / 4 * torch.finfo(got.dtype).eps)
    if op not in ROUNDED or not got.is_floating_point():
        return same
    limits = torch.finfo(got.dtype)
    error = (got.double() - want.double()).abs()
    return same | (error <= 2 * limits.eps * want.double().abs().clamp(min=limits.tiny))


CASES = [(op, dtype) for op in SCALAR_OPS for dtype in DTYPES if kind_of(dtype) in SCALAR_OPS[op].kinds]


@pytest.mark.parametrize("kind", ["f", "i", "b"])
def test_every_operation_on_every_dtype(kind: str) -> None:
    """One module for all operations of a kind, since building is what takes time."""
    chosen = [(op, dtype) for op, dtype in CASES if kind_of(dtype) == kind]
    arguments = {case: operands(SCALAR_OPS[case[0]], case[1]) for case in chosen}
    kernels: dict[tuple[str, torch.dtype], Kernel] = {}
    for op, dtype in chosen:
        inputs = arguments[op, dtype]
        output = torch.bool if SCALAR_OPS[op].result == "bool" else dtype
        kernels[op, dtype] = kernel_of(
            f"{op}_{short_name(dtype)}", op, [each.dtype for each in inputs], output, inputs[0].numel()
        )
    compiled = compile_kernels(list(kernels.values()), Options(check_specs=True))
    faults = []
    for (op, dtype), kernel in kernels.items():
        inputs = arguments[op, dtype]
        got = torch.zeros(inputs[0].numel(), dtype=kernel.buffer("y").dtype)
        call(compiled[kernel.name], [*inputs, got])
        want = expected(op, kernel, inputs)
        wrong = ~agree(op, got, want)
        if bool(wrong.any()):
            at = int(wrong.nonzero()[0])
            given = [each[at].item() for each in inputs]
            faults.append(f"{kernel.name}({given}) = {got[at].item()}, not {want[at].item()}")
    assert not faults, "\n".join(faults)


def test_every_conversion() -> None:
    kinds = (*DTYPES, *NARROW)
    kernels: dict[tuple[torch.dtype, torch.dtype], Kernel] = {}
    inputs = {dtype: convertible(dtype) for dtype in kinds}
    for source, dtype in itertools.product(kinds, kinds):
        name = f"{short_name(source)}_to_{short_name(dtype)}"
        kernels[source, dtype] = kernel_of(name, "cast", [source], dtype, inputs[source].numel())
    compiled = compile_kernels(list(kernels.values()), Options(check_specs=True))
    faults = []
    for (source, dtype), kernel in kernels.items():
        x = inputs[source]
        if source.is_floating_point and not dtype.is_floating_point and dtype is not torch.bool:
            x = torch.where(x.isfinite() & (x.abs() < 100), x, torch.ones_like(x))  # beyond is undefined in C++
            x = x.abs() if dtype is torch.uint8 else x
        got, want = torch.zeros(x.numel(), dtype=dtype), torch.zeros(x.numel(), dtype=dtype)
        call(compiled[kernel.name], [x, got])
        run_kernel(kernel, [x, want])
        wrong = ~((got == want) | (got.isnan() & want.isnan()))
        if bool(wrong.any()):
            at = int(wrong.nonzero()[0])
            faults.append(f"{kernel.name}({x[at].item()}) = {got[at].item()}, not {want[at].item()}")
    assert not faults, "\n".join(faults)


def convertible(dtype: torch.dtype) -> torch.Tensor:
    found = points(dtype)
    if dtype.is_floating_point:
        halves = torch.tensor([1.00390625, 1.01171875, 65504.0, 65519.0, 65520.0, 3.3895e38, 6e-8, 3e-8, 9e-41])
        found = torch.cat([found, halves.to(dtype)])
    return torch.cat([found, found[:1]]) if found.numel() % 2 == 0 else found


def test_wide_numbers_wrap_into_narrow_integers() -> None:
    x = torch.tensor([300.0, -200.0, 70000.0, 255.0, -1.0])
    for dtype in (torch.int8, torch.int16):
        kernel = kernel_of("wrap", "cast", [torch.float32], dtype, 5)
        got = torch.zeros(5, dtype=dtype)
        call(compile_kernels([kernel], Options())["wrap"], [x, got])
        assert got.tolist() == x.to(torch.int64).to(dtype).tolist()


@pytest.mark.parametrize("source", [torch.float32, torch.float64])
@pytest.mark.parametrize(("dtype", "bits"), [(torch.int32, 32), (torch.int64, 64)])
def test_floats_out_of_range_become_the_nearest_integers(source: torch.dtype, dtype: torch.dtype, bits: int) -> None:
    """In vectors and in what is left over of them."""
    limit, half = 2.0 ** (bits - 1), 2.0 ** (bits - 2)
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([limit, -limit, 1.5 * limit, -4 * limit, inf, -inf, nan, half, -half, -1.5])
    limits = torch.iinfo(dtype)
    expected = [limits.max, limits.min] * 3 + [0, int(half), -int(half), -1]
    got = _cast(x.to(source).repeat(7), dtype)
    assert got.tolist() == expected * 7


def _cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    kernel = kernel_of("conversion", "cast", [x.dtype], dtype, x.numel())
    got = torch.empty(x.shape, dtype=dtype)
    call(compile_kernels([kernel], Options())[kernel.name], [x, got])
    return got


def test_every_bfloat16_and_what_lies_between_two_of_them() -> None:
    """Ties go to the even one, what is above the largest to infinity; signs of zeros stay."""
    halves = torch.arange(65536).view(-1, 1) << 16
    between = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    x = (halves + between).view(-1).to(torch.int32).view(torch.float32)
    got, want = _cast(x, torch.bfloat16), x.bfloat16()
    assert torch.equal(got.isnan(), want.isnan())
    kept = ~want.isnan()
    assert torch.equal(got.view(torch.int16)[kept], want.view(torch.int16)[kept])
    assert torch.equal(_cast(want, torch.float32).view(torch.int32)[kept], want.float().view(torch.int32)[kept])


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
def test_few_bfloat16(size: int) -> None:
    x = torch.randn(size)
    assert torch.equal(_cast(x, torch.bfloat16), x.bfloat16())
    assert torch.equal(_cast(x.bfloat16(), torch.float32), x.bfloat16().float())
