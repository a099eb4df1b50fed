"""Kernels as C, by GCC, against the interpreter of the loop form, to the bit, and against LLVM."""

import ctypes
import itertools
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from smelt.base.rewrite_budget import RewriteBudget
from smelt.codegen.cpu import cpu_generator, schedule
from smelt.codegen.cpu.target import describe_host
from smelt.codegen.write_module import How, join, written
from smelt.ir.kernel import Kernel
from smelt.ir.loops import Module, Reduce, walk
from smelt.ir.loops.check import check_module
from tests.codegen.cpu.test_kernels import filled
from tests.codegen.cpu.test_scans import ALONG_ROWS, DOWN, SHARES
from tests.codegen.cpu.test_scatters import rows_kernel
from tests.codegen.cpu.test_transpose_tiles import turned
from tests.codegen.print_c import print_c
from tests.ir.kernels import COLUMN_SUM, LAYER_NORM, SOFTMAX, sized
from tests.ir.products import WRITTEN
from tests.kernel_text import parse_kernel
from tests.loop_reference import run

FLAGS = ("-O1", "-std=gnu99", "-ffp-contract=off", "-Wno-psabi", "-shared", "-fPIC")
# As `_SERIAL_PARALLEL_FOR` of `tests/codegen/foreign.py`.
PARALLEL_FOR = """
i64 smelt_parallel_for(ptr part, ptr buffers, ptr workspace, i64 threads, i64 most, i64 extent, i64 bytes)
{
    s64 least = (s64)threads < (s64)most ? threads : most;
    i64 chunks = least > 1 ? least : 1, first = 0;
    for (i64 chunk = 0; chunk < chunks; chunk++) {
        i64 last = (chunk + 1) * extent / chunks;
        ((void (*)(ptr, ptr, i64, i64, i1))part)(buffers, workspace + chunk * bytes, first, last, chunk + 1 == chunks);
        first = last;
    }
    return chunks;
}
"""
FOLDS = """
kernel folds rows(i:5) cols(j:21)
  in x: {dtype}[105]
  out r: {dtype}[5]
  out c: {dtype}[21]
  out t: {dtype}[1]
  loop:
    a = load x[21*i + j]
    m = reduce {op} a
    accumulate {op} c[j] = a
    accumulate {op} t[0] = a
  row:
    store r[i] = m
"""
INTEGERS = """
kernel integers rows(i:3) cols(j:19)
  in x: {dtype}[57]
  in y: {dtype}[57]
  out q: {dtype}[57]
  out r: {dtype}[57]
  out s: bool[57]
  loop:
    a = load x[19*i + j]
    b = load y[19*i + j]
    one = const 1 : {dtype}
    d = add b, one : {dtype}
    n = sub one, a : {dtype}
    f = floordiv n, d : {dtype}
    g = remainder n, d : {dtype}
    h = shr a, b : {dtype}
    k = maximum f, h : {dtype}
    l = mul k, a : {dtype}
    store q[19*i + j] = l
    store r[19*i + j] = g
    m = lt l, g : bool
    store s[19*i + j] = m
"""
CAST = """
kernel cast rows() cols(j:37)
  in x: {source}[37]
  out y: {dtype}[37]
  loop:
    v = load x[j]
    w = cast v : {dtype}
    store y[j] = w
"""
MATH = """
kernel math rows(i:3) cols(j:19)
  in x: {dtype}[57]
  out y: {dtype}[57]
  loop:
    a = load x[19*i + j]
    b = {op} a : {dtype}
    store y[19*i + j] = b
"""
SOME_FOLDS = [("sum", "f32"), ("prod", "f64"), ("max", "f32"), ("min", "i16"), ("max", "u8"), ("any", "bool")]
SOME_CASTS = [
    *(("f32", "bf16"), ("bf16", "f64"), ("f32", "f16"), ("f16", "f32"), ("f64", "u8"), ("i64", "f32")),
    *(("bool", "f32"), ("f32", "bool"), ("i8", "i64")),
]
SOME_MATH = [("exp", "f32"), ("exp", "f64"), ("log", "f32"), ("sin", "f32"), ("erf", "f64"), ("round", "f32")]
TEXTS = {
    "softmax": sized(SOFTMAX, 3, 7),
    "softmax of long rows": sized(SOFTMAX, 5, 40),
    "layer norm": sized(LAYER_NORM, 3, 37),
    "column sum": sized(COLUMN_SUM, 9, 21),
    "scan": ALONG_ROWS.format(rows=3, cols=21, total=63, dtype="f32", op="sum", how=""),
    "scan of bytes": ALONG_ROWS.format(rows=3, cols=21, total=63, dtype="u8", op="sum", how=" backwards"),
    "scan down": DOWN.format(rows=2, down=5, cols=11, page=55, total=110, dtype="i32", op="max", how=""),
    "shares": SHARES.format(rows=3, cols=19, total=57),
    **{f"fold {op} {dtype}": FOLDS.format(op=op, dtype=dtype) for op, dtype in SOME_FOLDS},
    **{f"integers {dtype}": INTEGERS.format(dtype=dtype) for dtype in ("i64", "i32", "i16", "i8", "u8")},
    **{f"cast {source} {dtype}": CAST.format(source=source, dtype=dtype) for source, dtype in SOME_CASTS},
    **{f"{op} {dtype}": MATH.format(op=op, dtype=dtype) for op, dtype in SOME_MATH},
    **{f"product {name}": product.text for name, product in WRITTEN.items()},
}
KERNELS: dict[str, Callable[[], Kernel]] = {
    **{name: lambda text=text: parse_kernel(text) for name, text in TEXTS.items()},  # type: ignore[misc]
    "transpose": lambda: turned(16, 24),
    "transpose f64": lambda: turned(33, 18, "f64"),
    "transpose u8": lambda: turned(20, 40, "u8"),
    "scatter": lambda: rows_kernel(12, 9, 5),
}
Entry = Callable[[list[Tensor], int, int], None]


def compiled_c(module: Module, folder: Path) -> Entry:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no GCC")
    source, library = folder / "module.c", folder / "module.so"
    source.write_text(print_c(module) + PARALLEL_FOR)
    subprocess.run([compiler, *FLAGS, str(source), "-o", str(library), "-lm"], check=True, timeout=120)
    return entry(ctypes.cast(ctypes.CDLL(str(library)).k0, ctypes.c_void_p).value or 0)


def entry(address: int) -> Entry:
    """Machine code, to call with tensors, threads, and bytes of workspace."""
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)(address)

    def call(tensors: list[Tensor], threads: int, size: int) -> None:
        workspace = torch.zeros(size + 64, dtype=torch.uint8)
        buffers = (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])
        function(ctypes.addressof(buffers), threads, workspace.data_ptr() + -workspace.data_ptr() % 64)

    return call


def interpreted(module: Module) -> Entry:
    def call(tensors: list[Tensor], threads: int, size: int) -> None:
        memory = [(ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr()) for tensor in tensors]
        run(module, "k0", memory, threads, bytearray(size))

    return call


def has_open_order(module: Module) -> bool:
    """Whether sums of lanes may be taken in any order: ours is the C's, not LLVM's."""
    nodes = itertools.chain.from_iterable(walk(function.body) for function in (*module.helpers, *module.functions))
    return any(isinstance(node, Reduce) and "reassoc" in node.flags for node in nodes)


@pytest.mark.parametrize("name", KERNELS)
def test_c_and_llvm_and_the_interpreter_agree(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "GRAIN", 1)  # small kernels are shared out between threads, too
    kernel, target = KERNELS[name](), describe_host()
    code = written("k0", kernel, target, How(RewriteBudget(), check=True))
    module = join([code])
    check_module(module)
    tensors = [filled(buffer, seed) for seed, buffer in enumerate(kernel.parameters)]
    (built,) = cpu_generator.load([module], target)
    calls = (interpreted(module), compiled_c(module, tmp_path), entry(built.address("k0")))
    near = 1e-5 if has_open_order(module) else 0
    for threads in (1, 3):
        results = [[tensor.clone() for tensor in tensors] for _ in calls]
        for call, result in zip(calls, results, strict=True):
            call(result, threads, int(code.per_thread_workspace) * threads)
        for by_interpreter, by_c, by_llvm in zip(*results, strict=True):
            torch.testing.assert_close(by_c, by_interpreter, rtol=0, atol=0, equal_nan=True)
            torch.testing.assert_close(by_llvm, by_interpreter, rtol=near, atol=near, equal_nan=True)
