"""Kernels written out as text, shared by the tests of the kernel form and of its targets."""

SOFTMAX = """
kernel softmax rows(i:{rows}) cols(j:{cols})
  in x: f32[{total}]
  out y: f32[{total}]
  scratch e: f32[{cols}]
  loop:
    v0 = load x[{cols}*i + j]
    m = reduce max v0
  loop:
    v1 = load x[{cols}*i + j]
    v2 = sub v1, m : f32
    v3 = exp v2 : f32
    store e[j] = v3
    s = reduce sum v3
  loop:
    v4 = load e[j]
    v5 = div v4, s : f32
    store y[{cols}*i + j] = v5
"""

LAYER_NORM = """
kernel layer_norm rows(i:{rows}) cols(j:{cols})
  in x: f32[{total}]
  in w: f32[{cols}]
  in b: f32[{cols}]
  out y: f32[{total}]
  out mean: f32[{rows}]
  loop:
    v0 = load x[{cols}*i + j]
    s = reduce sum v0
  row:
    n = const {cols} : f32
    m = div s, n : f32
    store mean[i] = m
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
    ww = load w[j]
    bb = load b[j]
    o = fma u, ww, bb : f32
    store y[{cols}*i + j] = o
"""

COLUMN_SUM = """
kernel column_sum rows(i:{rows}) cols(j:{cols})
  in x: f32[{total}]
  out y: f32[{cols}]
  out all: f32[1]
  loop:
    v = load x[{cols}*i + j]
    accumulate sum y[j] = v
    s = reduce sum v
  row:
    accumulate sum all[0] = s
"""


def sized(text: str, rows: int, cols: int) -> str:
    """`text` with its extents filled in. Strides of 1 and 0 do not survive the text form: use cols of at least 2."""
    return text.format(rows=rows, cols=cols, total=rows * cols)
