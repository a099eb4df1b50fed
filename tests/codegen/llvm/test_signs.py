"""What is known never to be above zero, and that functions of it are as exact as the general ones."""

import pytest
import torch

from smelt.base.options import Options
from smelt.codegen import compile_kernels
from smelt.codegen.loops.sign_analysis import never_positive
from tests.codegen.llvm.test_math import sample
from tests.codegen.running import call
from tests.codegen.ulps import bounds, errors
from tests.kernel_text import parse_kernel

HEAD = "kernel k rows(i:3) cols(j:40)\n in x: f32[120]\n in z: f32[120]\n out y: f32[120]\n scratch s: f32[40]\n"
FIRST = " loop:\n v = load x[40*i + j]\n"
MAXIMUM = FIRST + " m = reduce max v\n loop:\n"
AGAIN = " w = load x[40*i + j]\n d = sub w, m : f32\n"
END = " e = exp d : f32\n store y[40*i + j] = e"

KNOWN = {
    "read again": MAXIMUM + AGAIN,
    "computed again": FIRST + " k = const 0.5 : f32\n u = mul v, k : f32\n m = reduce max u\n loop:\n"
    " w = load x[40*i + j]\n h = const 0.5 : f32\n q = mul w, h : f32\n d = sub q, m : f32\n",
    "put aside": FIRST + " u = tanh v : f32\n store s[j] = u\n m = reduce max u\n loop:\n"
    " w = load s[j]\n d = sub w, m : f32\n",
    "minus a square": FIRST + " q = mul v, v : f32\n k = const -0.5 : f32\n d = mul q, k : f32\n",
    "minus a size": FIRST + " q = abs v : f32\n d = neg q : f32\n",
    "bounded": FIRST + " k = const -1.0 : f32\n d = minimum v, k : f32\n",
}
UNKNOWN = {
    "another array": MAXIMUM + " w = load z[40*i + j]\n d = sub w, m : f32\n",
    "another place": MAXIMUM + " w = load x[40*i]\n d = sub w, m : f32\n",
    "the other way round": MAXIMUM + " w = load x[40*i + j]\n d = sub m, w : f32\n",
    "a sum": MAXIMUM.replace("max", "sum") + AGAIN,
    "written since": FIRST + " store s[j] = v\n m = reduce max v\n loop:\n w = load z[40*i + j]\n"
    " store s[j] = w\n q = load s[j]\n d = sub q, m : f32\n",
    "two factors": FIRST + " w = load z[40*i + j]\n q = mul v, w : f32\n d = neg q : f32\n",
    "zeros of two signs": FIRST + " k = const 0.0 : f32\n u = div v, k : f32\n m = reduce max u\n"
    " loop:\n w = load x[40*i + j]\n h = const -0.0 : f32\n q = div w, h : f32\n d = sub q, m : f32\n",
}


@pytest.mark.parametrize("name", KNOWN)
def test_known(name: str) -> None:
    assert "d" in never_positive(parse_kernel(HEAD + KNOWN[name] + END))


@pytest.mark.parametrize("name", UNKNOWN)
def test_not_known(name: str) -> None:
    assert "d" not in never_positive(parse_kernel(HEAD + UNKNOWN[name] + END))


def test_memory_that_is_written_may_have_changed() -> None:
    text = "kernel k rows(i:3) cols(j:40)\n inout x: f32[120]\n" + MAXIMUM + AGAIN
    assert "d" not in never_positive(parse_kernel(text + " e = exp d : f32\n store x[40*i + j] = e"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exp_of_what_is_not_above_zero_is_as_exact(dtype: torch.dtype) -> None:
    x = -sample().abs().to(dtype)
    short = {torch.float32: "f32", torch.float64: "f64"}[dtype]
    kernel = parse_kernel(
        f"kernel k rows() cols(j:{len(x)})\n in x: {short}[{len(x)}]\n out y: {short}[{len(x)}]\n loop:\n"
        f" v = load x[j]\n a = abs v : {short}\n d = neg a : {short}\n e = exp d : {short}\n store y[j] = e"
    )
    assert "d" in never_positive(kernel)
    got = torch.empty_like(x)
    call(compile_kernels([kernel], Options())["k"], [x, got])
    if dtype is torch.float32:
        assert float(errors(got, torch.exp(x.double())).max()) <= bounds(1)["exp"]
    else:
        torch.testing.assert_close(got, torch.exp(x), rtol=3e-16, atol=5e-324, equal_nan=True)
