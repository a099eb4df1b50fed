"""What `compile_kernels` promises besides right answers: one build per text, readable output, light imports."""

import math
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from smelt.base import events
from smelt.base.errors import SmeltError, SpecError
from smelt.base.options import Options
from smelt.base.rewrite_budget import RewriteBudget
from smelt.codegen import assembly, build, compile_kernels, loops_of, write_module
from smelt.codegen.cpu import target as cpu
from smelt.codegen.cpu.schedule_passes import plan
from smelt.codegen.llvm import compile as engine
from smelt.codegen.loops.builder import Builder
from smelt.codegen.write_module import How, divided, units
from smelt.device import Target, find, names, register
from smelt.ir.kernel import Kernel
from smelt.ir.loops import Module, Value
from smelt.ir.scalar import SCALAR_OPS
from tests import processes
from tests.codegen.llvm.test_scalars import CASES, kernel_of
from tests.codegen.running import call
from tests.ir.kernels import COLUMN_SUM, LAYER_NORM, SOFTMAX, sized
from tests.kernel_reference import run_kernel
from tests.kernel_text import parse_kernel

KERNEL = parse_kernel(sized(SOFTMAX, 6, 13))


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    build.forget()
    yield
    build.forget()


def test_equal_kernels_are_built_once() -> None:
    both = compile_kernels([KERNEL, replace(KERNEL, name="again")], Options())
    assert both["softmax"].address == both["again"].address
    assert compile_kernels([replace(KERNEL, name="third")], Options())["third"] is both["again"]


def test_what_was_not_asked_for_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_MOST", 2)
    softmax, norm, column = (parse_kernel(sized(text, 4, 8)) for text in (SOFTMAX, LAYER_NORM, COLUMN_SUM))
    first = compile_kernels([softmax], Options())[softmax.name]
    compile_kernels([norm], Options())
    assert compile_kernels([softmax], Options())[softmax.name] is first
    compile_kernels([column], Options())
    events.counters.clear()
    assert compile_kernels([softmax, column], Options())[softmax.name] is first
    assert events.counters["kernels_built"] == 0
    compile_kernels([softmax, norm, column], Options())
    assert events.counters["kernels_built"] == 1


def test_versions_of_one_text_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each relies on other facts of the sizes; those not asked for longest go."""
    key = build._key(KERNEL)
    compile_kernels([KERNEL], Options())
    first = build._built[key][0]
    for number in range(build._MOST_OF_ONE + 5):
        build._build(build._built, {key: KERNEL}, build.How(RewriteBudget()))
        if number < 3:
            monkeypatch.setattr(build, "_known", lambda store, key, kernel: first)
            assert build._relied_on(build._built, key, KERNEL) is first
            monkeypatch.undo()
            assert build._built[key][-1] is first
    assert len(build._built[key]) == build._MOST_OF_ONE


def test_one_name_for_two_kernels_is_refused() -> None:
    with pytest.raises(SmeltError, match="SM030: two different kernels are named softmax"):
        compile_kernels([KERNEL, parse_kernel(sized(SOFTMAX, 6, 14))], Options())


def test_rules_are_checked_when_asked() -> None:
    bad = replace(KERNEL, stages=KERNEL.stages[1:])
    with pytest.raises(SpecError, match="SM022"):
        compile_kernels([bad], Options(check_specs=True))


def test_events_show_loops_llvm_and_assembly() -> None:
    with events.collect() as found:
        compiled = compile_kernels([KERNEL], Options())
        compile_kernels([KERNEL], Options())
    texts = {event.channel: event.text for event in found}
    assert [event.channel for event in found] == ["loops", "llvm", "asm"]
    assert texts["loops"] == loops_of(KERNEL) and "entry function @k0(ptr %buffers" in texts["loops"]
    assert "define void @k0(ptr %buffers, i64 %threads, ptr %workspace)" in texts["llvm"]
    assert texts["llvm"] == compiled["softmax"].llvm
    assert "k0:" in texts["asm"] and "k0:" in assembly([KERNEL])


def test_many_threads_compile_one_kernel() -> None:
    found: list[int] = []

    def build_it() -> None:
        found.append(compile_kernels([KERNEL], Options())["softmax"].address)

    workers = [threading.Thread(target=build_it) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 8 and len(set(found)) == 1


def test_code_lives_as_long_as_its_kernel() -> None:
    compiled = compile_kernels([KERNEL], Options())["softmax"]
    build.forget()
    x, y = torch.randn(6, 13), torch.empty(6, 13)
    call(compiled, [x, y])
    torch.testing.assert_close(y, x.softmax(1))


def test_import_does_not_load_llvm() -> None:
    seen = "import sys; print('llvmlite' in sys.modules, 'sympy' in sys.modules)"
    done = [processes.run(seen, begin=begin) for begin in ("import torch, smelt", "import torch, smelt.codegen")]
    assert done[0].stdout == done[1].stdout == "False False\n"


def _module(value: Value) -> Module:
    b = Builder(find("cpu"))
    b.give(value)
    return Module((b.function("seven", (), "entry", result="i64"),))


NONSENSE = _module(Value("%nowhere", "i64"))


def test_no_part_of_a_module_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """More threads than units leave threads without work."""
    monkeypatch.setattr(write_module, "_WORTH_A_THREAD", 10)
    long = parse_kernel(sized(SOFTMAX, 6, 10_007))
    module_units = units([long], ["k0"], find("cpu"), How(RewriteBudget()))
    assert [len(part) for part in divided(module_units, 16)] == [1]


def test_llvm_errors_are_coded() -> None:
    with pytest.raises(SmeltError, match="SM030: LLVM rejects"):
        engine.load([NONSENSE], find("cpu"))


def test_unknown_target_names_the_choices() -> None:
    assert "cpu" in names()
    with pytest.raises(SmeltError, match="choose from cpu"):
        find("abacus")


def test_twice_the_registers_where_a_point_takes_few() -> None:
    """And only for tensors large enough to make up for LLVM's time."""

    def lanes(op: str, size: int, vectors: int) -> int:
        target = replace(find("cpu"), vector_bits=128, vector_registers=32, unroll_light=vectors)
        return plan(kernel_of("k", op, [torch.float32], torch.float32, size), target).lanes

    assert [lanes("exp", 1 << 18, vectors) for vectors in (4, 8)] == [16, 32]
    assert lanes("exp", 1 << 17, 8) == lanes("sin", 1 << 18, 8) == lanes("neg", 1 << 18, 8) == 16


def test_instructions_in_the_order_of_another_processor() -> None:
    named = build.module_text([KERNEL], replace(find("cpu"), tune_cpu="generic"))
    assert '"tune-cpu"="generic"' in named
    assert "tune-cpu" not in build.module_text([KERNEL], replace(find("cpu"), tune_cpu=""))


def test_a_constant_used_twice_is_read_from_two_places() -> None:
    """Read from one, it would be copied in registers before it is overwritten."""
    target = replace(find("cpu"), fma_clobbers_addend=True, has_fma=True, vector_bits=128)
    kernel = kernel_of("k", "exp", [torch.float32], torch.float32, 64)
    (pool,) = (line for line in build.module_text([kernel], target).splitlines() if ".pool = " in line)
    assert pool.partition("> <{")[2].count("splat (float 0x3FF0000000000000)") == 2


# Targets other than this machine.

VARIANTS = [
    {"has_fma": False, "fma_clobbers_addend": False},
    {"has_nan_minmax": False},
    {"has_narrowing_add": False},
    {"has_narrowing_add": True},
    {"hoist_loads_over_stores": True},
    {"vector_bits": 256, "vector_registers": 16, "fma_clobbers_addend": False, "has_nan_minmax": False},
    {"vector_bits": 512},
]


@pytest.fixture(params=VARIANTS, ids=str)
def variant(request: pytest.FixtureRequest) -> Iterator[Target]:
    """This machine, described as less or more than it is: LLVM makes up the difference."""
    target = replace(cpu.describe_host(), **request.param)
    register("cpu", lambda: target)
    yield target
    register("cpu", cpu.describe_host)


def _kernels() -> list[Kernel]:
    shapes = [parse_kernel(sized(text, 9, 37)) for text in (SOFTMAX, LAYER_NORM, COLUMN_SUM)]
    floats = [op for op, dtype in CASES if dtype is torch.float32 and SCALAR_OPS[op].result == "same"]
    for op in floats:
        arity = SCALAR_OPS[op].arity
        inputs = [torch.bool if op == "where" and number == 0 else torch.float32 for number in range(arity)]
        shapes.append(kernel_of(op, op, inputs, torch.float32, 75))
    return shapes


def test_other_widths_and_missing_instructions_change_nothing(variant: Target) -> None:
    kernels = _kernels()
    compiled = compile_kernels(kernels, Options())
    for kernel in kernels:
        given = [torch.rand(buffer.size) + 0.25 for buffer in kernel.parameters]
        given = [g > 0.7 if b.dtype is torch.bool else g for g, b in zip(given, kernel.parameters, strict=True)]
        want = [tensor.clone() for tensor in given]
        call(compiled[kernel.name], given, 2)
        run_kernel(kernel, want)
        for mine, reference in zip(given, want, strict=True):
            torch.testing.assert_close(mine, reference, rtol=2e-6, atol=2e-6)


def test_a_maximum_takes_few_instructions_and_keeps_nan(variant: Target) -> None:
    """Folded over rows longer than a vector, with a NaN first, last, in the middle, and everywhere."""
    kernel = parse_kernel(
        "kernel k rows(i:5) cols(j:200)\n in x: f32[1000]\n out y: f32[5]\n out z: f32[1000]\n loop:\n"
        " a = load x[200*i + j]\n m = reduce max a\n n = neg a : f32\n o = maximum a, n : f32\n"
        " store z[200*i + j] = o\n row:\n store y[i] = m"
    )
    x = torch.arange(1000.0).reshape(5, 200) - 700
    x[1, 0] = x[2, 199] = x[3, 70] = x[4] = math.nan
    most, larger = torch.empty(5), torch.empty(1000)
    call(compile_kernels([kernel], Options())["k"], [x, most, larger], 1)
    torch.testing.assert_close(most, x.amax(1), equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(larger, x.abs().flatten(), equal_nan=True, rtol=0, atol=0)


def test_rounding_to_bfloat16_is_pytorchs(variant: Target) -> None:
    """For every upper half there is: ties, their neighbours, what overflows; and a length that leaves single lanes."""
    upper = torch.arange(2**16, dtype=torch.int64) << 16
    bits = torch.cat([upper + low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)] + [upper[:37]])
    x = (bits - (bits >> 31 << 32)).to(torch.int32).view(torch.float32)
    kernel = parse_kernel(
        f"kernel k rows() cols(j:{x.numel()})\n in x: f32[{x.numel()}]\n out y: bf16[{x.numel()}]\n loop:\n"
        " a = load x[j]\n b = cast a : bf16\n store y[j] = b"
    )
    rounded = torch.empty(x.numel(), dtype=torch.bfloat16)
    call(compile_kernels([kernel], Options())["k"], [x, rounded], 1)
    torch.testing.assert_close(rounded, x.bfloat16(), equal_nan=True, rtol=0, atol=0)
    assert torch.equal(rounded.signbit(), x.signbit())  # of NaN too: eager's has none on one machine, one on another


CHIPS = [
    ("x86_64-unknown-linux-gnu", "x86-64-v3", "", 256),
    ("x86_64-unknown-linux-gnu", "x86-64-v4", "", 512),
    ("aarch64-unknown-linux-gnu", "neoverse-n1", "", 128),
]


@pytest.mark.parametrize(("triple", "chip", "features", "bits"), CHIPS)
def test_other_chips_need_no_other_functions(triple: str, chip: str, features: str, bits: int) -> None:
    """Code for each chip assembles, and calls nothing but the launcher, our own helper and what the C library has."""
    engine.llvm().initialize_all_targets()
    engine.llvm().initialize_all_asmprinters()
    arm = triple.startswith("aarch64")
    target = replace(
        find("cpu"), triple=triple, cpu=chip, features=features, vector_bits=bits,
        has_fma=True, fma_clobbers_addend=arm, has_nan_minmax=arm, has_narrowing_add=arm,
        vector_registers=16 if bits == 256 else 32, has_scalef=bits == 512,
    )  # fmt: skip
    narrow = parse_kernel(
        "kernel n rows() cols(j:37)\n in x: f16[37]\n in b: bf16[37]\n out y: f16[37]\n out z: bf16[37]\n loop:\n"
        " a = load x[j]\n b = load b[j]\n c = cast a : f32\n d = cast b : f32\n e = mul c, d : f32\n"
        " f = cast e : f16\n g = cast e : bf16\n store y[j] = f\n store z[j] = g"
    )
    wide = parse_kernel(
        "kernel w rows() cols(j:37)\n in x: f64[37]\n out y: f64[37]\n loop:\n a = load x[j]\n b = exp a : f64\n"
        " c = log1p b : f64\n d = tanh c : f64\n e = sigmoid d : f64\n store y[j] = e"
    )
    turned = parse_kernel(
        "kernel t rows(i:300) cols(j:200)\n in x: f32[60000]\n out y: f32[60000]\n loop:\n"
        " a = load x[i + 300*j]\n store y[200*i + j] = a"
    )
    text = engine.assemble(build.module_text([*_kernels(), narrow, wide, turned], target), target)
    for scale in ("vscalefps", "vscalefpd"):  # in the exponentials of whole vectors
        assert (scale in text) == target.has_scalef
    called = set()
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] in ("bl", "callq", "call", "jmp") and not words[1].startswith((".", "*")):
            called.add(words[1].removesuffix("@PLT"))
    assert {name for name in called if not name.startswith(("k", "smelt.", "smelt_"))} <= {"fmodf"}, called


def test_a_module_that_llvm_rejects_is_said_also_where_others_are_built_beside_it() -> None:
    good = _module(Value("", "i64", number=7))
    with pytest.raises(SmeltError, match="LLVM rejects"):
        engine.load([good, NONSENSE, good], find("cpu"))
    assert len({built.address("seven") for built in engine.load([good, good], find("cpu"))}) == 2


@pytest.fixture
def without_halves() -> Iterator[None]:
    target = replace(cpu.describe_host(), has_half=False)
    register("cpu", lambda: target)
    yield
    register("cpu", cpu.describe_host)


def test_conversions_of_float16_by_its_bits_are_pytorchs(without_halves: None) -> None:
    """Of every float16 there is; of float32 round each of them: ties, their neighbours, what over- or underflows."""
    halves = torch.arange(2**16).to(torch.uint16).view(torch.float16)
    near = halves[halves.isfinite()].float()
    beside = [(near.view(torch.int32) + step).view(torch.float32) for step in (-1, 1, 0xFFF, 0x1000, 0x1001)]
    edges = torch.tensor([65504.0, 65519.99, 65520.0, 1e30, math.inf, -math.inf, math.nan])
    floats = torch.cat([near, *beside, torch.arange(-5000.0, 5000.0) * 2.0**-27, edges])
    for given, made in ((halves, torch.float32), (floats, torch.float16)):
        kernel = kernel_of("k", "cast", [given.dtype], made, len(given))
        got, want = torch.empty(len(given), dtype=made), given.to(made)
        call(compile_kernels([kernel], Options())["k"], [given, got], 1)
        known = ~want.isnan()
        assert torch.equal(got.isnan(), ~known)
        assert torch.equal(got[known], want[known])
        assert torch.equal(torch.signbit(got[known]), torch.signbit(want[known]))
