"""How much LLVM is given to compile: its time is a large part of a first call, and goes by what is counted here."""

import pytest

from smelt.codegen.build import source
from smelt.codegen.cpu.schedule_passes import plan
from smelt.device import find
from tests.codegen.cpu.test_kernels import same_as_reference
from tests.ir.kernels import sized
from tests.kernel_text import parse_kernel

IN_PLACE = """
kernel in_place rows(i:{rows}) cols(j:{cols})
  in x: f32[{total}]
  inout y: f32[{total}]
  in scale: f32[{cols}]
  loop:
    a = load y[{cols}*i + j]
    b = load x[{cols}*i + j]
    s = load scale[j]
    c = mul a, b : f32
    d = mul c, s : f32
    store y[{cols}*i + j] = d
"""

FOLDS = """
kernel folds rows(i:{rows}) cols(j:{cols})
  in x: f32[{total}]
  inout y: f32[{total}]
  in scale: f32[{cols}]
  out first: f32[{cols}]
  out second: f32[{cols}]
  out third: f32[{cols}]
  loop:
    a = load y[{cols}*i + j]
    b = load x[{cols}*i + j]
    s = load scale[j]
    c = mul a, b : f32
    d = mul c, s : f32
    e = add d, b : f32
    store y[{cols}*i + j] = d
    accumulate sum first[j] = c
    accumulate sum second[j] = d
    accumulate sum third[j] = e
"""


@pytest.mark.parametrize("cols", [17, 33, 65, 100, 127, 240])
def test_a_last_vector_is_stored_as_one(cols: int) -> None:
    """Not lane by lane, six lines for each: in place, lanes before the last ones keep what they got."""
    kernel = parse_kernel(sized(IN_PLACE, 7, cols))
    text = source(kernel)
    assert text.count("extractelement") <= 4
    assert text.count("\n") < 100
    same_as_reference(kernel)


@pytest.mark.parametrize("cols", [16, 48, 112, 240])
def test_a_long_body_is_written_once(cols: int) -> None:
    """With vectors that divide a row there is no second copy for the last one."""
    kernel = parse_kernel(sized(FOLDS, 40, cols))
    made = plan(kernel, find("cpu"))
    assert cols % made.lanes == 0
    assert "select <" not in source(kernel)  # lanes that count would be chosen
    same_as_reference(kernel)


def test_many_points_are_worth_several_vectors() -> None:
    few, many = (plan(parse_kernel(sized(FOLDS, rows, 512)), find("cpu")) for rows in (4, 4096))
    assert few.lanes < many.lanes


FUNCTION = """
kernel function rows(i:1) cols(j:{cols})
  in x: f32[{cols}]
  out y: f32[{cols}]
  loop:
    a = load x[j]
    b = tanh a : f32
    store y[j] = b
"""


def test_a_function_of_few_points_is_written_for_one_vector() -> None:
    """LLVM takes most of the time of a first call for functions, of which there is little to gain at 1024 points."""
    few, many = (parse_kernel(FUNCTION.format(cols=cols)) for cols in (1024, 65536))
    assert plan(few, find("x86-64-v4")).lanes == 16 < plan(many, find("x86-64-v4")).lanes
    same_as_reference(few)


def test_sums_as_long_as_each_other_share_their_loops() -> None:
    """One loop clears them, one empties them now and then and at the end, one stores them and its tail."""
    text = source(parse_kernel(sized(FOLDS, 200, 240)))
    assert text.count("phi i64") <= 8  # and the rows, the cols, and the parts of each store
    same_as_reference(parse_kernel(sized(FOLDS, 200, 240)))
    same_as_reference(parse_kernel(sized(FOLDS, 70, 235)))


def test_many_sums_of_a_row_fit_into_registers() -> None:
    """What each sum is kept in does not go to memory and back in every loop."""
    sums = "\n".join(
        f"    a{n} = load x[128*i + j + {n}]\n    m{n} = mul g, a{n} : f32\n    s{n} = reduce sum m{n}"
        for n in range(1, 26)
    )
    outs = "\n".join(f"  out y{n}: f32[9]" for n in range(1, 26))
    stores = "\n".join(f"    store y{n}[i] = s{n}" for n in range(1, 26))
    text = f"""kernel taps rows(i:9) cols(j:64)
  in given: f32[576]
  in x: f32[1280]
{outs}
  loop:
    g = load given[64*i + j]
{sums}
  row:
{stores}
"""
    kernel, target = parse_kernel(text), find("cpu")
    assert 25 * plan(kernel, target).lanes * 32 <= max(target.vector_registers, 25) * target.vector_bits
    same_as_reference(kernel)


def test_functions_keep_several_vectors_in_flight() -> None:
    """A polynomial is a chain of operations that wait for each other: with one vector gelu takes half as long again."""
    chain = """
kernel chain rows(i:{rows}) cols(j:{cols})
  in x: f32[{total}]
  in scale: f32[{cols}]
  out y: f32[{total}]
  loop:
    a = load x[{cols}*i + j]
    s = load scale[j]
    b = mul a, s : f32
    c = add b, s : f32
    d = ndtr c : f32
    e = mul c, d : f32
    f = mul e, a : f32
    g = add f, s : f32
    store y[{cols}*i + j] = g
"""
    target = find("cpu")
    few, many = (plan(parse_kernel(sized(chain, rows, 256)), target) for rows in (4, 256))
    assert few.lanes <= many.lanes and many.lanes * 32 >= 2 * target.vector_bits
    if target.vector_registers >= 32:
        assert many.lanes * 32 >= 4 * target.vector_bits
