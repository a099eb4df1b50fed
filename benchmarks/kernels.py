"""Generated kernels beside eager PyTorch, in one run: `python benchmarks/kernels.py [rows cols]`.

Each line: build time, the kernel's time, eager's time for the same work, and eager over kernel (above one: faster).
Kernel and eager calls take turns, and the best of many rounds counts, so a busy machine slows both alike.
"""

import ctypes
import functools
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from smelt.base.options import Options
from smelt.codegen import build, compile_kernels
from tests.kernel_text import parse_kernel

HEAD = "kernel {name} rows(i:{rows}) cols(j:{cols})\n in x: f32[{total}]\n"

COPY = (
    HEAD
    + """ out y: f32[{total}]
 loop:
  a = load x[{cols}*i + j]
  store y[{cols}*i + j] = a
"""
)

GELU = (
    HEAD
    + """ out y: f32[{total}]
 loop:
  a = load x[{cols}*i + j]
  c = const 0.7071067811865476 : f32
  b = mul a, c : f32
  d = erf b : f32
  one = const 1.0 : f32
  e = add d, one : f32
  half = const 0.5 : f32
  f = mul a, half : f32
  g = mul f, e : f32
  store y[{cols}*i + j] = g
"""
)

SIN_COS = (
    HEAD
    + """ out y: f32[{total}]
 loop:
  a = load x[{cols}*i + j]
  s = sin a : f32
  c = cos a : f32
  p = mul s, c : f32
  store y[{cols}*i + j] = p
"""
)

TANH = (
    HEAD
    + """ out y: f32[{total}]
 loop:
  a = load x[{cols}*i + j]
  t = tanh a : f32
  store y[{cols}*i + j] = t
"""
)

SOFTMAX = (
    HEAD
    + """ out y: f32[{total}]
 loop:
  v0 = load x[{cols}*i + j]
  m = reduce max v0
 loop:
  v1 = load x[{cols}*i + j]
  v2 = sub v1, m : f32
  v3 = exp v2 : f32
  store y[{cols}*i + j] = v3
  s = reduce sum v3
 row:
  r = reciprocal s : f32
 loop:
  v4 = load y[{cols}*i + j]
  v5 = mul v4, r : f32
  store y[{cols}*i + j] = v5
"""
)

LAYER_NORM = (
    HEAD
    + """ out y: f32[{total}]
 loop:
  v0 = load x[{cols}*i + j]
  s = reduce sum v0
 row:
  n = const {cols} : f32
  m = div s, n : f32
 loop:
  v1 = load x[{cols}*i + j]
  d = sub v1, m : f32
  q = mul d, d : f32
  t = reduce sum q
 row:
  var = div t, n : f32
  eps = const 1e-05 : f32
  ve = add var, eps : f32
  r = rsqrt ve : f32
 loop:
  v2 = load x[{cols}*i + j]
  d2 = sub v2, m : f32
  u = mul d2, r : f32
  store y[{cols}*i + j] = u
"""
)

ROW_SUM = (
    HEAD
    + """ out y: f32[{rows}]
 loop:
  v = load x[{cols}*i + j]
  s = reduce sum v
 row:
  store y[i] = s
"""
)

COLUMN_SUM = (
    HEAD
    + """ out y: f32[{cols}]
 loop:
  v = load x[{cols}*i + j]
  accumulate sum y[j] = v
"""
)

CASES: dict[str, tuple[str, Callable[[torch.Tensor, torch.Tensor], object]]] = {
    "copy": (COPY, lambda x, y: y.copy_(x)),
    "gelu": (GELU, lambda x, y: F.gelu(x)),
    "tanh": (TANH, lambda x, y: torch.tanh(x, out=y)),
    "sin_cos": (SIN_COS, lambda x, y: x.sin() * x.cos()),
    "softmax": (SOFTMAX, lambda x, y: torch.softmax(x, 1)),
    "layer_norm": (LAYER_NORM, lambda x, y: F.layer_norm(x, x.shape[1:])),
    "row_sum": (ROW_SUM, lambda x, y: x.sum(1)),
    "column_sum": (COLUMN_SUM, lambda x, y: x.sum(0)),
}


def timed(run: Callable[[], object], rounds: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(rounds):
        run()
    return (time.perf_counter() - start) / rounds


def main(rows: int, cols: int) -> None:
    threads = torch.get_num_threads()
    x, y = torch.randn(rows, cols), torch.empty(rows, cols)
    compile_kernels([parse_kernel(COPY.format(name="warm", rows=3, cols=5, total=15))], Options())
    print(f"{rows}x{cols} f32, {threads} threads\n{'':12}  build ms  kernel ms   eager ms   eager/kernel")
    for name, (text, eager) in CASES.items():
        kernel = parse_kernel(text.format(name=name, rows=rows, cols=cols, total=rows * cols))
        start = time.perf_counter()
        compiled = compile_kernels([kernel], Options())[name]
        built = time.perf_counter() - start
        workspace = torch.empty(compiled.per_thread_workspace * threads + 64, dtype=torch.uint8)
        buffers = (ctypes.c_void_p * 2)(x.data_ptr(), y.data_ptr())
        address = compiled.address(compiled.symbol)
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)(address)
        pointer = workspace.data_ptr() + -workspace.data_ptr() % 64
        ours, theirs = [], []
        for _ in range(40):
            ours.append(timed(functools.partial(function, ctypes.addressof(buffers), threads, pointer)))
            theirs.append(timed(functools.partial(eager, x, y)))
        best, other = min(ours), min(theirs)
        print(f"{name:12}  {built * 1e3:8.1f} {best * 1e3:10.3f} {other * 1e3:10.3f} {other / best:14.2f}")
    build.forget()


if __name__ == "__main__":
    main(*(int(value) for value in sys.argv[1:3])) if len(sys.argv) > 2 else main(2048, 1024)
