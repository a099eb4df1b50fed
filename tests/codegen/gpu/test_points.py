"""Pointwise kernels: vectors of any number of points, several a thread; vectors for sizes that vary."""

import pytest
import torch

from smelt.codegen.gpu import grid_plan
from smelt.codegen.gpu.bodies.points_body import Points
from smelt.codegen.gpu.phase_kernels import in_one_loop
from smelt.ir.kernel import Kernel
from tests.codegen.gpu.on_host import OnHost, ptx
from tests.kernel_text import parse_kernel


def update(count: object, dtype: str = "f32") -> Kernel:
    """Two arrays in place, as an optimizer has them."""
    text = f"""
kernel update rows() cols(j:{count})
  in g: {dtype}[{count}]
  inout p: f32[{count}]
  inout m: f32[{count}]
  loop:
    a = load g[j]
    b = cast a : f32
    c = load p[j]
    d = load m[j]
    e = add d, b : f32
    f = mul e, c : f32
    store m[j] = e
    store p[j] = f
"""
    return parse_kernel(text, {"s0": 300_000})


def biased() -> Kernel:
    return parse_kernel(
        """
kernel biased rows(i:s0) cols(j:s1)
  in x: f32[s0*s1]
  in w: f32[s1]
  out y: f32[s0*s1]
  loop:
    a = load x[s1*i + j]
    b = load w[j]
    c = add a, b : f32
    store y[s1*i + j] = c
""",
        {"s0": 1000, "s1": 512},
    )


@pytest.fixture
def small_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small kernels are large ones."""
    monkeypatch.setattr(grid_plan, "_ENOUGH_BLOCKS", 1)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("count", [1, 3, 1000, 8192, 8193, 30_003])
def test_any_number_of_points(small_chip: None, count: int, dtype: str) -> None:
    OnHost(update(count, dtype)).check()


def test_several_vectors_a_thread(small_chip: None) -> None:
    kernel = parse_kernel("""
kernel half rows() cols(j:20003)
  in x: bf16[20003]
  out y: bf16[20003]
  loop:
    v = load x[j]
    store y[j] = v
""")
    made = OnHost(kernel)
    assert made.plan.phases[0].vectors == 2 and made.plan.phases[0].width == 8
    made.check()


def test_what_is_read_after_a_store_is_what_was_stored(small_chip: None) -> None:
    kernel = parse_kernel("""
kernel twice rows() cols(j:20003)
  inout x: f32[20003]
  out y: f32[20003]
  loop:
    v = load x[j]
    w = add v, v : f32
    store x[j] = w
    u = load x[j]
    store y[j] = u
""")
    assert OnHost(kernel).plan.phases[0].vectors > 1
    OnHost(kernel).check()


def test_vectors_of_any_size_need_no_guard(small_chip: None) -> None:
    kernel = update("s0")
    made = OnHost(kernel)
    assert made.plan.phases[0].width == 4 and made.plan.phases[0].leaves_some
    assert not kernel.cols[0].size.shape_env.guards  # type: ignore[attr-defined]
    for count in (2, 3, 4, 1000, 8193):
        made.check({"s0": count})


def test_rows_of_whole_vectors_are_relied_on(small_chip: None) -> None:
    kernel = biased()
    made = OnHost(kernel)
    assert made.plan.phases[0].width == 4
    (guard,) = kernel.cols[0].size.shape_env.guards  # type: ignore[attr-defined]
    assert str(guard.expression) == "((s1)%(4))"
    for s0, s1 in [(2, 4), (70, 64), (33, 128)]:
        made.check({"s0": s0, "s1": s1})


def test_sixteen_bytes_at_once() -> None:
    text = ptx(update((1 << 24) + 1))
    assert text.count("ld.global.v4.b32") + text.count("ld.global.nc.v4.b32") >= 3
    assert text.count("st.global.v4.b32") >= 2 and "local" not in text


UPDATE = """
kernel update rows({rows}) cols(j:{cols})
  in g: f32[{total}]
  in rate: f32[1]
  inout p: f32[{total}]
  row:
    r = load {rate}
    s = sqrt r : f32
  loop:
    a = load g[{at}]
    b = mul a, s : f32
    c = load p[{at}]
    d = sub c, b : f32
    store p[{at}] = d
"""


@pytest.mark.parametrize("rows", [1, 37])
def test_scalars_that_are_computed_first_are_computed_at_every_point(rows: int) -> None:
    several = rows > 1
    kernel = parse_kernel(
        UPDATE.format(
            rows=f"i:{rows}" if several else "", cols=1001, total=rows * 1001, at="1001*i + j" if several else "j",
            rate="rate[0]",
        )
    )  # fmt: skip
    made = OnHost(kernel)
    assert [type(phase) for phase in made.plan.phases] == [Points]
    made.check(given=[torch.randn(rows * 1001), torch.tensor([0.5])])


def test_scalars_that_a_point_overwrites_are_computed_before_all() -> None:
    kernel = parse_kernel(UPDATE.format(rows="", cols=1001, total=1001, at="j", rate="p[3]"))
    assert in_one_loop(kernel) is kernel


def test_vectors_that_are_rows_apart_share_what_is_the_same_in_all_rows(small_chip: None) -> None:
    """As in a batch norm of channels-last images."""
    kernel = parse_kernel("""
kernel scaled rows() cols(i:1024, j:64)
  in x: f32[65536]
  in w: f32[64]
  inout y: f32[65536]
  loop:
    v = load x[64*i + j]
    s = load w[j]
    u = load y[64*i + j]
    t = fma v, s, u : f32
    store y[64*i + j] = t
""")
    made = OnHost(kernel)
    (points,) = made.plan.phases
    assert points.vectors == 2 and not points.threads * points.width % 64
    made.check()
    text = ptx(kernel)
    assert text.count("ld.global.nc.v4") == 3, "two vectors of x and one of w"
