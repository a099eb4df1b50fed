"""Kernels of every GPU schedule as SPIR-V: valid, and on a Vulkan device the same as the interpreter leaves."""

import math
from dataclasses import replace

import pytest
import torch

from smelt.base.errors import SmeltError
from smelt.codegen.chip_generator import SpirvGenerator, spirv_module
from smelt.codegen.gpu.simt import Simt
from smelt.codegen.gpu.spirv.print_spirv import PUSHED, print_grids
from smelt.codegen.loops.builder import Builder, param
from smelt.codegen.loops.runtime_sizes import Sizes
from smelt.device import Grid, Launch
from smelt.ir import loops
from smelt.ir.kernel import Axis, Buffer, Cast, Compute, Const, Index, Instruction, Kernel, Load, Role, Stage, Store
from tests.codegen.cpu.test_scatters import rows_kernel
from tests.codegen.cpu.test_sizes import COUNT, FAR, STEP
from tests.codegen.gpu import running
from tests.codegen.gpu.on_vulkan import (
    OnVulkan,
    chip,
    needs_vulkan,
    same_group_on_vulkan,
    same_on_vulkan,
    target,
    validate,
)
from tests.codegen.gpu.running import split_more
from tests.codegen.gpu.test_gpu_kernels import partial_fold
from tests.codegen.gpu.test_gpu_scans import along, down, values
from tests.codegen.gpu.test_gpu_scatters import drawn
from tests.codegen.gpu.test_gpu_sizes import ALL
from tests.codegen.gpu.test_launch_groups import update
from tests.codegen.gpu.test_transpose_tiles import channels_last, turned
from tests.ir.kernels import COLUMN_SUM, LAYER_NORM, SOFTMAX, sized
from tests.kernel_reference import run_kernel
from tests.kernel_text import parse_kernel

ALONG = Index((("j", 1),))
LARGE = torch.tensor([1e5, 1e8, -1e12, 3e38, -7e20, 65536.0, float("inf"), float("nan")])


def of_each(op: str, dtype: torch.dtype, count: int) -> Kernel:
    body: tuple[Instruction, ...] = (
        Load("a", "x", ALONG),
        Compute("b", op, ("a",), dtype),
        Store("y", ALONG, "b"),
    )
    buffers = (Buffer("x", dtype, count, Role.INPUT), Buffer("y", dtype, count, Role.OUTPUT))
    return Kernel(op, (), (Axis("j", count),), buffers, (Stage(True, body),))


def converted(source: torch.dtype, dtype: torch.dtype, count: int) -> Kernel:
    body: tuple[Instruction, ...] = (Load("a", "x", ALONG), Cast("b", "a", dtype), Store("y", ALONG, "b"))
    buffers = (Buffer("x", source, count, Role.INPUT), Buffer("y", dtype, count, Role.OUTPUT))
    return Kernel("converted", (), (Axis("j", count),), buffers, (Stage(True, body),))


@pytest.mark.parametrize(("rows", "cols"), [(3, 7), (70, 33), (2, 5000)])
@pytest.mark.parametrize("text", [SOFTMAX, LAYER_NORM, COLUMN_SUM])
def test_rows_and_folds(text: str, rows: int, cols: int) -> None:
    same_on_vulkan(parse_kernel(sized(text, rows, cols)), aligned=(True, False))


def test_folds_over_some_rows() -> None:
    same_on_vulkan(partial_fold((3, 5, 4), (1,), True))


@pytest.mark.parametrize("op", ["sum", "max"])
def test_scans(op: str) -> None:
    for kernel in (along(5, 300, op), down(3, 40, 7, op)):
        same_on_vulkan(kernel, given=[values(torch.float32, kernel.parameters[0].size)], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("op", ["sum", "prod", "max", "last"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i64", "i8"])
def test_scatters(op: str, dtype: str) -> None:
    """Those of narrow numbers change the word around them."""
    kernel, off = rows_kernel(9, 11, 7, op, dtype, "i32"), 0.05 if dtype == "bf16" else 1e-5
    same_on_vulkan(kernel, given=drawn(kernel, 7), rtol=off, atol=off)


def test_transposes() -> None:
    same_on_vulkan(turned(70, 65))
    same_on_vulkan(channels_last(2, 33, 70, "bf16"))


@pytest.mark.parametrize("op", ["exp", "log", "tanh", "erf", "sqrt", "rsqrt", "floor", "round", "sin", "cos"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions(op: str, dtype: torch.dtype) -> None:
    """Of large angles and of what is no number too."""
    x = torch.cat([torch.linspace(-10, 10, 56), LARGE]).to(dtype)
    off = 2e-6 if dtype is torch.float32 else 1e-13
    same_on_vulkan(of_each(op, dtype, 64), given=[x], rtol=off, atol=off)


def test_remainders_are_exact() -> None:
    """Of quotients of any size, by what devices have: no fma, and no function for it."""
    needs_vulkan()
    special = torch.tensor([0.0, -0.0, 1.0, -7.5, 3.4e38, 1e-45, torch.inf, -torch.inf, torch.nan])
    bits = torch.randint(-(2**31), 2**31, (2, 1000), generator=torch.Generator().manual_seed(0)).to(torch.int32)
    x = torch.cat([bits[0].view(torch.float32), special.repeat_interleave(len(special))])
    y = torch.cat([bits[1].view(torch.float32), special.repeat(len(special))])
    body: tuple[Instruction, ...] = (
        Load("a", "x", ALONG),
        Load("b", "y", ALONG),
        Compute("c", "fmod", ("a", "b"), torch.float32),
        Store("z", ALONG, "c"),
    )
    roles = (("x", Role.INPUT), ("y", Role.INPUT), ("z", Role.OUTPUT))
    buffers = tuple(Buffer(name, torch.float32, len(x), role) for name, role in roles)
    kernel = Kernel("fmod", (), (Axis("j", len(x)),), buffers, (Stage(True, body),))
    found = OnVulkan(kernel).run([x, y, torch.zeros(len(x))])[2]
    pairs = zip(x.tolist(), y.tolist(), strict=True)
    wanted = [math.nan if b == 0 or math.isinf(a) else math.fmod(a, b) for a, b in pairs]
    torch.testing.assert_close(found, torch.tensor(wanted), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.float16, torch.bfloat16])
def test_conversions(dtype: torch.dtype) -> None:
    x = torch.cat([torch.linspace(0, 200, 57), torch.tensor([65504.0, 65520.0, 1e-7, 6e-5, 0.0, -0.0, 1.5])])
    x = x if dtype in (torch.float16, torch.bfloat16) else x.clamp(0, 250)
    same_on_vulkan(converted(torch.float32, dtype, 64), given=[x], rtol=0, atol=0)
    back = x.to(dtype)
    same_on_vulkan(converted(dtype, torch.float32, 64), given=[back], rtol=0, atol=0)


@pytest.mark.parametrize("op", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_a_lengthened_number_beside_a_constant(op: str) -> None:
    """Mesa 22.3 compares a plain conversion wrongly."""
    needs_vulkan()
    x = torch.tensor([0, 6, 7, 8, -1, -7, 2**31 - 1, -(2**31)], dtype=torch.int32)
    body: tuple[Instruction, ...] = (
        Load("a", "x", ALONG),
        Cast("w", "a", torch.int64),
        Const("c", 7, torch.int64),
        Compute("b", op, ("w", "c"), torch.bool),
        Store("y", ALONG, "b"),
    )
    buffers = (Buffer("x", torch.int32, 8, Role.INPUT), Buffer("y", torch.bool, 8, Role.OUTPUT))
    kernel = Kernel("k", (), (Axis("j", 8),), buffers, (Stage(True, body),))
    want = [x.clone(), torch.zeros(8, dtype=torch.bool)]
    run_kernel(kernel, want)
    got = OnVulkan(kernel).run([x, torch.zeros(8, dtype=torch.bool)])
    assert torch.equal(got[1], want[1])


def test_more_parameters_than_are_pushed() -> None:
    count, names = 40, [f"x{number}" for number in range(PUSHED + 5)]
    body: list[Instruction] = [Load(name, name, ALONG) for name in names]
    total = names[0]
    for number, name in enumerate(names[1:]):
        body.append(Compute(f"t{number}", "add", (total, name), torch.float32))
        total = f"t{number}"
    body.append(Store("y", ALONG, total))
    buffers = tuple(Buffer(name, torch.float32, count, Role.INPUT) for name in names)
    buffers += (Buffer("y", torch.float32, count, Role.OUTPUT),)
    same_on_vulkan(Kernel("many", (), (Axis("j", count),), buffers, (Stage(True, tuple(body)),)))


def builder(threads: int) -> Simt:
    """Of a grid with one buffer."""
    return Simt(target(), "k", Sizes(1), "i64", buffers=1, threads=threads)


def on_device(b: Simt, memory: torch.Tensor, helpers: tuple[loops.Function, ...] = ()) -> torch.Tensor:
    """What one block leaves in memory."""
    module = spirv_module(loops.Module((b.grid_function(),), helpers))
    validate(module)
    at = chip().allocate(memory.nbytes)
    chip().copy_in(at, memoryview(memory.view(torch.uint8).numpy()))
    chip().launch(chip().compile(module), Launch("k", (at,), (), 0, Grid(1, b.threads, 0)))
    result = torch.empty_like(memory)
    chip().copy_out(at, memoryview(result.view(torch.uint8).numpy()))
    chip().free(at)
    return result


def test_loops_and_branches_in_each_other() -> None:
    """A loop that some threads skip, in a branch, in a loop that repeats until a condition fails."""
    needs_vulkan()
    b = builder(target().warp_size)
    thread, zero = b.thread(), b.const("i64", 0)

    def sum_below(count: loops.Value) -> loops.Value:
        loop = b.begin(zero, count, 1, [zero], guard=True)
        return loop.end(b.add(loop.values[0], loop.index))[0]

    def turn(number: loops.Value, total: loops.Value) -> tuple[loops.Value, list[loops.Value]]:
        odd = b.convert("trunc", number, "i1")
        (more,) = b.choice(odd, lambda: [sum_below(b.sub(thread, number))], lambda: [b.const("i64", 100)])
        following = b.add(number, 1)
        return b.icmp("slt", following, 4), [following, b.add(total, more)]

    _, total = b.repeat([zero, zero], turn)
    outer = b.begin(zero, b.const("i64", 6), 2, [total, zero], guard=False)
    swapped = outer.end(b.add(outer.values[1], 1), outer.values[0])
    b.store_global(b.parameter(0), thread, [b.add(b.mul(swapped[0], 1000), swapped[1])])
    result = on_device(b, torch.zeros(b.threads, dtype=torch.int64))

    def expected(thread: int) -> int:
        first, second = 200 + sum(range(thread - 1)) + sum(range(thread - 3)), 0
        for _ in range(3):
            first, second = second + 1, first
        return first * 1000 + second

    assert result.tolist() == [expected(thread) for thread in range(b.threads)]


def test_numbers_that_are_true_or_false() -> None:
    """Extended with a sign, true is -1."""
    needs_vulkan()
    b = builder(target().warp_size)
    yes = b.icmp("eq", b.and_(b.thread(), 1), 1)
    numbers = [b.convert("zext", yes, "i64"), b.convert("sext", yes, "i64")]
    b.store_global(b.parameter(0), b.mul(b.thread(), 2), numbers)
    result = on_device(b, torch.zeros(2 * b.threads, dtype=torch.int64))
    assert result.tolist() == [number for thread in range(b.threads) for number in (thread % 2, -(thread % 2))]


def test_a_helper_for_arrays_of_two_lengths() -> None:
    """It is printed for each."""
    needs_vulkan()
    b, inside = builder(1), Builder(target())
    array, length = param("array", "ptr"), param("length")
    loop = inside.begin(inside.const("i64", 0), length, 1, [], guard=False)
    inside.store(inside.add(loop.index, 7), inside.element(array, "i64", loop.index))
    loop.end()
    helper = inside.function("fill", (array, length), "shared", inlined=False)
    for place, count in enumerate((2, 5)):
        room = b.stack(f"room{count}", "i64", count, 8)
        b.call("fill", room, b.const("i64", count))
        last = b.load(b.element(room, "i64", count - 1), "i64")
        b.store_global(b.parameter(0), b.const("i64", place), [last])
    result = on_device(b, torch.zeros(2, dtype=torch.int64), (helper,))
    assert result.tolist() == [8, 11]


def test_what_is_not_known_is_named() -> None:
    one, two, out = (loops.Value(name, "f32", number=number) for name, number in (("", 1.0), ("", 2.0), ("%x", None)))
    nodes: dict[str, loops.Node] = {
        "frem of f32": loops.Compute(out, "frem", (one, two)),
        "fptoui of f32": loops.Convert(loops.Value("%y", "i32"), "fptoui", one),
        "Fence": loops.Fence(),
        "atomic fadd": loops.Atomic("fadd", loops.Value("%b0", "ptr1"), one),
    }
    for name, node in nodes.items():
        function = loops.Function("k", (), [node], "grid", threads=4)
        with pytest.raises(SmeltError, match=f"SPIR-V has no {name}"):
            print_grids(loops.Module((function,)))
    function = loops.Function("k", (), [loops.Call(out, "expf", (one,))], "grid", threads=4)
    with pytest.raises(SmeltError, match="no device has the function expf"):
        print_grids(loops.Module((function,)))


def test_assembly_is_the_loop_form() -> None:
    function = loops.Function("k", (), [loops.Barrier("block")], "grid", threads=4)
    text = SpirvGenerator(lambda module: module).assemble(loops.Module((function,)), running.target(4))
    assert "grid @k() threads 4" in text and "barrier block" in text


@pytest.mark.parametrize("on_host", [False, True], ids=["from memory", "passed along"])
@pytest.mark.parametrize("counts", [(5, 70, 1000), (64, 64), tuple(range(3, 40, 5))])
def test_kernels_of_one_launch(counts: tuple[int, ...], on_host: bool) -> None:
    """Parameters of few kernels are pushed, of many there is an array."""
    for aligned in (True, False):
        same_group_on_vulkan([_update(count, on_host) for count in counts], aligned=aligned)


def _update(count: int, on_host: bool) -> Kernel:
    kernel = update(count)
    rate = replace(kernel.buffer("rate"), on_host=on_host)
    return replace(kernel, buffers=tuple(rate if each.name == "rate" else each for each in kernel.buffers))


@pytest.mark.parametrize("sizes", [(40, 70, 30), (2, 3, 2000)], ids=["tiles", "few points"])
def test_products(sizes: tuple[int, int, int]) -> None:
    rows, cols, terms = sizes
    same_on_vulkan(parse_kernel(f"""
kernel product rows(i:{rows}) cols(j:{cols})
  in x: f32[{rows * terms}]
  in w: f32[{cols * terms}]
  out y: f32[{rows * cols}]
  loop:
    p = contract (k:{terms}) x[{terms}*i + k], w[{terms}*j + k] : f32
    store y[{cols}*i + j] = p
"""), atol=4e-6 * terms**0.5)  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_code_for_long_rows_is_right_at_other_sizes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many blocks share a row of the example. Code may rely on what its sizes are multiples of: it is for no others."""
    split_more(monkeypatch)
    needs_vulkan()
    kernel = parse_kernel(ALL[name], {"s0": 3, "s1": 5001})
    facts = OnVulkan(kernel).facts
    ran = 0
    for s0, s1 in ((5, 17), (3, 1001), (70, 33)):
        sizes = {"s0": s0, "s1": s1}
        if all(fact.holds(lambda symbol, sizes=sizes: sizes[symbol.text]) for fact in facts):
            same_on_vulkan(kernel, sizes)
            ran += 1
    assert ran >= 2


def test_indices_past_two_to_the_31() -> None:
    """Memory that is never touched is never there: only a page of each MiB is."""
    needs_vulkan()
    span = STEP * (COUNT - 1) + 1
    built = OnVulkan(parse_kernel(FAR.format(count=COUNT, span=span, step=STEP)))
    x, y = chip().allocate(span), chip().allocate(span)
    looked_at = (0, 1, 7, COUNT - 4, COUNT - 2, COUNT - 1)
    for place in looked_at:
        chip().copy_in(x + STEP * place, memoryview(bytearray([place % 251])))
        chip().copy_in(y + STEP * place, memoryview(bytearray([3])))
    for phase in built.code.phases:
        grid = Grid(int(phase.blocks), phase.threads, phase.shared_bytes)
        chip().launch(built.handle, Launch(phase.symbol, (x, y), (), 0, grid))
    for place in looked_at:
        found = bytearray(1)
        chip().copy_out(y + STEP * place, memoryview(found))
        assert found[0] == place % 251 + 3
    chip().free(x)
    chip().free(y)
