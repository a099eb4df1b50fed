"""PTX of GPU schedules: assembled by ptxas for old and new chips, with few registers, nothing spilled, sixteen bytes an
access; and what LLVM must not be asked for is refused before it ends the process."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from smelt.base.errors import SmeltError
from smelt.base.rewrite_budget import RewriteBudget
from smelt.codegen.generator import EntryCode
from smelt.codegen.gpu.cuda_target import describe_cuda
from smelt.codegen.gpu.gpu_generator import CudaGenerator, ptx
from smelt.codegen.loops.builder import Builder, param
from smelt.codegen.write_module import join
from smelt.ir.kernel import Kernel
from smelt.ir.loops import GLOBAL, Module
from smelt.ir.loops.text import format_module
from smelt.ir.scalar import SCALAR_OPS, kind_of
from tests.codegen.cpu.test_online_softmax import FOLDED, IN_PLACE, LOG_SOFTMAX, LOGSUMEXP
from tests.codegen.cpu.test_transpose_tiles import turned
from tests.codegen.llvm.test_scalars import DTYPES, kernel_of
from tests.ir.kernels import COLUMN_SUM, LAYER_NORM, SOFTMAX, sized
from tests.kernel_text import parse_kernel
from tests.processes import run_new

CHIPS = ["sm_75", "sm_80", "sm_90", "sm_100"]
MOST_REGISTERS = 80  # 768 threads of a multiprocessor have those
REGISTERS_TO_READ_AHEAD = {"column_sum_512_8000_0": 128}  # of 512 threads: sums of columns wait for memory (H200)


def found_ptxas() -> str | None:
    """On the path, or in the wheel nvidia-cuda-nvcc."""
    spec = importlib.util.find_spec("nvidia")
    places = [Path(place) for place in spec.submodule_search_locations or ()] if spec is not None else []
    wheels = [str(file) for place in places for file in sorted(place.glob("*/bin/ptxas"))]
    return shutil.which("ptxas") or (wheels[0] if wheels else None)


PTXAS = found_ptxas()
assembled_here = pytest.mark.skipif(PTXAS is None, reason="no ptxas: pip install nvidia-cuda-nvcc")


def code_of(symbol: str, kernel: Kernel, chip: str) -> EntryCode:
    generator, target = CudaGenerator(), describe_cuda(chip)
    return generator.emit(symbol, generator.schedule(kernel, target, RewriteBudget(), check=True, of=""), target)


def ptx_of(kernels: dict[str, Kernel], chip: str = "sm_90") -> str:
    return ptx(join([code_of(name, kernel, chip) for name, kernel in kernels.items()]), describe_cuda(chip))


def assembled(text: str, chip: str, folder: Path, level: int = 3) -> dict[str, tuple[int, int]]:
    """By function: the registers it uses, and the bytes it spills."""
    assert PTXAS is not None
    (folder / "k.ptx").write_text(text)
    command = [PTXAS, f"-arch={chip}", f"-O{level}", "-v", str(folder / "k.ptx"), "-o", str(folder / "k.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, tuple[int, int]] = {}
    for part in re.split(r"Compiling entry function", done.stderr)[1:]:
        (name,) = re.findall(r"^ '(\w+)'", part)
        spilled = sum(map(int, re.findall(r"(\d+) bytes spill", part)))
        found[name] = int(re.findall(r"Used (\d+) registers", part)[0]), spilled
    return found


def pointwise(op: str, dtype: str, size: int = 1 << 24) -> Kernel:
    """Of one input; narrow floats by way of f32."""
    wide = dtype in ("bf16", "f16")
    before, after = (" b = cast a : f32\n", f" d = cast c : {dtype}\n") if wide else ("", "")
    given, out, work = ("b", "d", "f32") if wide else ("a", "c", dtype)
    return parse_kernel(
        f"kernel k rows() cols(j:{size})\n in x: {dtype}[{size}]\n out y: {dtype}[{size}]\n loop:\n a = load x[j]\n"
        f"{before} c = {op} {given} : {work}\n{after} store y[j] = {out}"
    )


FORMS = {
    "softmax": SOFTMAX, "in_place": IN_PLACE, "folded": FOLDED, "log_softmax": LOG_SOFTMAX, "logsumexp": LOGSUMEXP,
    "layer_norm": LAYER_NORM, "column_sum": COLUMN_SUM,
}  # fmt: skip
SHAPES = [(4096, 33), (4096, 1024), (512, 8000), (4096, 50_000), (4, 1_000_000)]


def golden() -> dict[str, Kernel]:
    """Kernels of every schedule: part of a warp, a warp, a block a row, many blocks a row, and columns."""
    found = {}
    for form, text in FORMS.items():
        found |= {f"{form}_{rows}_{cols}": parse_kernel(sized(text, rows, cols)) for rows, cols in SHAPES}
    found |= {f"gelu_{dtype}": pointwise("ndtr", dtype) for dtype in ("f32", "bf16", "f16")}
    found |= {f"turned_{dtype}": turned(1024, 768, dtype) for dtype in ("f32", "bf16", "f64")}
    text = SOFTMAX.format(rows="s0", cols="s1", total="s0*s1")
    return found | {"sizes": parse_kernel(text, {"s0": 4096, "s1": 1000})}


@assembled_here
@pytest.mark.parametrize("chip", CHIPS)
def test_golden_kernels_assemble_and_spill_nothing(chip: str, tmp_path: Path) -> None:
    found = assembled(ptx_of(golden(), chip), chip, tmp_path)
    assert len(found) > len(golden())
    most = {name: REGISTERS_TO_READ_AHEAD.get(name, MOST_REGISTERS) for name in found}
    assert {name: used for name, (used, _) in found.items() if used > most[name]} == {}
    assert {name: spilled for name, (_, spilled) in found.items() if spilled} == {}


def slope_and_sum(op: str, dtype: str, rows: int, cols: int) -> Kernel:
    """The gradient of an activation in place, and of the bias before it."""
    total, at = rows * cols, f"{cols}*i + j"
    return parse_kernel(
        f"kernel k rows(i:{rows}) cols(j:{cols})\n in x: {dtype}[{total}]\n inout g: {dtype}[{total}]\n"
        f" out y: {dtype}[{total}]\n out d: {dtype}[{cols}]\n loop:\n a = load x[{at}]\n a1 = cast a : f32\n"
        f" b = {op} a1 : f32\n b1 = cast b : {dtype}\n store y[{at}] = b1\n c = load g[{at}]\n c1 = cast c : f32\n"
        f" s = gelu_slope a1 : f32\n e = mul c1, s : f32\n e1 = cast e : {dtype}\n store g[{at}] = e1\n"
        f" e2 = cast e1 : f32\n accumulate sum d[j] = e2"
    )


@assembled_here
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("rows, cols", [(4096, 3072), (16384, 768), (2048, 1000), (50_000, 64)])
def test_column_sums_of_long_code_spill_nothing(rows: int, cols: int, dtype: str, tmp_path: Path) -> None:
    found = assembled(ptx_of({"k": slope_and_sum("ndtr", dtype, rows, cols)}), "sm_90", tmp_path)
    assert {name: used for name, used in found.items() if used[1] or used[0] > MOST_REGISTERS} == {}


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "i32", "i16"])
def test_contiguous_memory_goes_sixteen_bytes_at_once(dtype: str) -> None:
    op = "ndtr" if dtype[-2:] in ("16", "32") and dtype[0] != "i" else "neg"
    text = ptx_of({"k": pointwise(op, dtype)})
    loads, stores = re.findall(r"ld\.global\S*", text), re.findall(r"st\.global\S*", text)
    assert loads and set(loads) == {"ld.global.nc.v4.b32"}
    assert stores and set(stores) == {"st.global.v4.b32"}


def test_the_page_shows_the_loops_and_the_ptx_of_softmax() -> None:
    page = (Path(__file__).parents[3] / "docs" / "codegen.md").read_text()
    blocks = [block.partition("```")[0] for block in page.split("```text\n")[1:]]
    text, loops, instructions = (
        next(block for block in blocks if block.lstrip().startswith(start))
        for start in ("kernel softmax", "grid", "ld.global")
    )
    kernel = parse_kernel(text)
    numbered = re.compile(r"%(rd?)\d+")  # as LLVM's versions differ in these
    pairs = [
        (loops, format_module(join([code_of("k0", kernel, "sm_90")]))),
        (numbered.sub(r"%\1", instructions), numbered.sub(r"%\1", ptx_of({"k0": kernel}))),
    ]
    for shown, whole in pairs:
        assert {line for line in shown.splitlines() if line.strip() != "…"} <= set(whole.splitlines())


def test_two_doubles_are_one_access() -> None:
    text = ptx_of({"k": pointwise("neg", "f64")})
    assert set(re.findall(r"ld\.global\S*|st\.global\S*", text)) == {"ld.global.nc.v2.b64", "st.global.v2.b64"}


@pytest.mark.parametrize("form", ["softmax", "layer_norm"])
def test_rows_go_sixteen_bytes_at_once(form: str) -> None:
    text = ptx_of({"k": parse_kernel(sized(FORMS[form], 4096, 1024))})
    assert {"ld.global.nc.v4.b32", "st.global.v4.b32"} <= set(re.findall(r"(?:ld|st)\.global\S*", text))
    assert "ld.global.nc.b32" not in text


def test_buffers_at_any_address_go_one_by_one() -> None:
    generator, target = CudaGenerator(), describe_cuda("sm_90")
    made = generator.schedule(pointwise("neg", "f32"), target, RewriteBudget(), check=True, of="")
    text = ptx(join([generator.emit("k", made, target, aligned=False)]), target)
    assert not re.search(r"global\S*\.v[24]", text)


def test_every_rounding_is_said() -> None:
    """An addition or a product without it may be fused by the assembler: sums that undo each other's rounding need
    theirs."""
    text = ptx_of({"k": parse_kernel(sized(LAYER_NORM, 4096, 1024)), "l": pointwise("log1p", "f32")})
    assert re.search(r"\b(add|mul)\.rn\.f32", text)
    assert not re.search(r"\b(add|sub|mul)\.f(32|64)", text)


def order_of(text: str) -> list[str]:
    """Loads, stores and branches of the code that follows a label which is jumped back to."""
    return re.findall(r"ld\.global|st\.global|bra(?!\.uni)", text)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64", "i8", "bool"])
def test_stores_of_some_threads_are_no_branches(dtype: str) -> None:
    """The assembler moves no load over a branch: what a thread reads for several tiles would come one by one."""
    total, at = 1000 * 768, "768*i + j"
    kernel = parse_kernel(
        f"kernel k rows(i:1000) cols(j:768)\n in x: {dtype}[{total}]\n out y: {dtype}[{total}]\n out s: f32[768]\n"
        f" loop:\n a = load x[{at}]\n store y[{at}] = a\n b = cast a : f32\n accumulate sum s[j] = b"
    )
    text = ptx_of({"k": kernel})
    first = text[text.index(".entry k_0") :].split(".entry k_1")[0]
    assert re.search(r"@%p\d+ st\.global", first)
    order = order_of(first)
    assert "bra" not in order[order.index("ld.global") : order.index("st.global")]


# Scalar operations.


def operations() -> dict[str, Kernel]:
    found = {}
    for op in SCALAR_OPS.values():
        for dtype in DTYPES:
            if kind_of(dtype) in op.kinds:
                given = [torch.bool if op.name == "where" and n == 0 else dtype for n in range(op.arity)]
                out = torch.bool if op.result == "bool" else dtype
                found[f"{op.name}_{str(dtype)[6:]}"] = kernel_of("k", op.name, given, out, 64)
    return found


@assembled_here
@pytest.mark.parametrize("chip", ["sm_75", "sm_90"])
def test_every_operation_of_every_dtype_assembles(chip: str, tmp_path: Path) -> None:
    kernels = operations()
    assert len(assembled(ptx_of(kernels, chip), chip, tmp_path, level=1)) == len(kernels)


def test_no_operation_calls_what_no_gpu_has() -> None:
    ptx_of(operations())


@pytest.mark.parametrize("name", ["llvm.exp.f32", "llvm.sin.f32", "expf", "llvm.experimental.widget"])
def test_functions_that_no_gpu_has_are_refused_before_llvm_sees_them(name: str) -> None:
    b, place = Builder(describe_cuda("sm_90")), param("p", GLOBAL)
    b.store(b.call(name, b.load(place, "f32"), result="f32"), place)
    with pytest.raises(SmeltError, match=f"no GPU has the function {name}"):
        ptx(Module((b.function("k", [place], "grid"),)), describe_cuda("sm_90"))


def test_a_module_without_functions_is_compiled() -> None:
    assert ".target sm_90" in ptx(Module(()), describe_cuda("sm_90"))


def test_a_value_used_outside_its_branch_raises() -> None:
    """Where LLVM is not asked to check, it ends the process."""
    b, place = Builder(describe_cuda("sm_90")), param("p", GLOBAL)
    with b.when(param("c", "i1")):
        x = b.load(place, "f32")
    b.store(x, place)
    with pytest.raises(SmeltError, match="LLVM rejects the generated code"):
        ptx(Module((b.function("k", [place, param("c", "i1")], "grid"),)), describe_cuda("sm_90"))


_TWO_SUMS = '''
from smelt.base.rewrite_budget import RewriteBudget
from smelt.codegen.gpu.cuda_target import describe_cuda
from smelt.codegen.gpu.gpu_generator import CudaGenerator
from smelt.codegen.write_module import join
from smelt.ir.loops.text import format_module
from tests.kernel_text import parse_kernel
from tests.processes import run_new

kernel = parse_kernel("""kernel sums rows(i:900) cols(j:256)
  in x: f32[230400]
  out a: f32[256]
  out b: f32[256]
  loop:
    v = load x[256*i + j]
    accumulate sum a[j] = v
    w = mul v, v : f32
    accumulate sum b[j] = w""")
target, generator = describe_cuda("sm_90"), CudaGenerator()
plan = generator.schedule(kernel, target, RewriteBudget(), check=False, of="")
print(format_module(join([generator.emit("k", plan, target)])))
'''


def test_code_does_not_depend_on_the_seed_of_hashes() -> None:
    texts = {run_new(_TWO_SUMS, environment={"PYTHONHASHSEED": seed}).stdout for seed in ("1", "2")}
    assert len(texts) == 1 and "fpext" in next(iter(texts))
