"""Kernels that differ in their length alone in one launch: which wait for which, and what they keep in memory."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from smelt.base.errors import SpecError
from smelt.base.rewrite_budget import RewriteBudget
from smelt.device.fusion_limits import Limits
from smelt.fuse.launches.group_launches import family, group_launches
from smelt.fuse.memory_plan import plan_memory
from smelt.ir import serialize
from smelt.ir.check_kernel import check_program
from smelt.ir.kernel import Kernel, KernelGroup
from smelt.ir.program import Launch, Library, Operand, Place, Program, ProgramBuffer, Step
from smelt.ir.substitute_sizes import length_axis, lengthened
from smelt.ir.tensorspec import TensorSpec
from smelt.ir.text import format_program
from smelt.symbolic.expressions import ShapeEnv
from smelt.symbolic.symsize import sym_size
from tests.ir.kernels import COLUMN_SUM, SOFTMAX, sized
from tests.kernel_reference import run_program
from tests.kernel_text import parse_kernel

aten = torch.ops.aten
LIMITS = Limits(group_buffers=500)
HOST = torch.device("cpu")


def doubled(count: int, op: str = "add") -> Kernel:
    return replace(
        parse_kernel(
            f"kernel {op}{count} rows() cols(j:{count})\n in x: f32[{count}]\n out y: f32[{count}]\n loop:\n"
            f" a = load x[j]\n b = {op} a, a : f32\n store y[j] = b"
        ),
        target="gpu",
    )


def in_place(count: int) -> Kernel:
    return replace(
        parse_kernel(
            f"kernel update{count} rows() cols(j:{count})\n in g: f32[{count}]\n inout p: f32[{count}]\n loop:\n"
            f" a = load g[j]\n b = load p[j]\n c = sub b, a : f32\n store p[j] = c"
        ),
        target="gpu",
    )


def summed(count: int) -> Kernel:
    return parse_kernel(
        f"kernel sum{count} rows() cols(j:{count})\n in x: f32[{count}]\n out y: f32[1]\n loop:\n"
        f" a = load x[j]\n s = reduce sum a\n row:\n store y[0] = s"
    )


def product(a: str, b: str, out: str) -> Library:
    whole = (8, 8), (8, 1)
    return Library(aten.mm.out, (Operand(a, *whole), Operand(b, *whole)), (), (out,), ("out",))


def program(steps: Sequence[Step], inputs: dict[str, int], made: dict[str, int], returned: Sequence[str]) -> Program:
    """Buffers of so many floats each."""

    def spec(count: int) -> TensorSpec:
        return TensorSpec((count,), (1,), torch.float32, HOST)

    buffers = [ProgramBuffer(name, spec(count), Place.INPUT) for name, count in inputs.items()]
    for name, count in made.items():
        buffers.append(ProgramBuffer(name, spec(count), Place.FRESH if name in returned else Place.ARENA))
    sizes = inputs | made
    outputs = tuple(Operand(name, (sizes[name],), (1,)) for name in returned)
    return Program("p", tuple(buffers), tuple(inputs), (), tuple(steps), outputs)


def seeded_inputs(given: Program, sizes: dict[str, int]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(sizes[name], generator=generator) for name in given.inputs]


def grouped(given: Program, limits: Limits = LIMITS, budget: int = -1) -> Program:
    """The program with groups: it keeps the rules, does the same, and its kernels can be stored."""
    found = group_launches(given, lambda _: limits, RewriteBudget(budget))
    check_program(found.unplanned())
    planned = plan_memory(found)
    check_program(planned)
    assert serialize.parse(serialize.dump(planned.kernels)) == planned.kernels
    sizes = {buffer.name: buffer.spec.shape[0] for buffer in given.buffers}
    one, other = (seeded_inputs(given, sizes) for _ in range(2))
    for mine, theirs in zip(run_program(found, one), run_program(given, other), strict=True):
        assert torch.equal(mine, theirs)  # type: ignore[arg-type]
    assert all(map(torch.equal, one, other))
    return found


def shown(found: Program) -> list[str]:
    """Each step: the kernels of a launch by name, or the operator."""
    return [
        "+".join(kernel.name for kernel, _ in step.parts) if isinstance(step, Launch) else "mm" for step in found.steps
    ]


def test_side_by_side() -> None:
    steps = [Launch(doubled(n), (f"x{n}", f"y{n}")) for n in (4, 9, 2)]
    given = program(steps, {"x4": 4, "x9": 9, "x2": 2}, {"y4": 4, "y9": 9, "y2": 2}, ["y4", "y9", "y2"])
    found = grouped(given)
    assert shown(found) == ["add4+add9+add2"]
    (kernel,) = found.kernels
    assert isinstance(kernel, KernelGroup) and kernel.target == "gpu" and len(kernel.parameters) == 6
    assert "group g0_add4_and_2_more of 3" in format_program(found)


def test_each_kind_by_itself() -> None:
    steps = [Launch(doubled(n, op), (f"x{n}", f"{op}{n}")) for n in (4, 9) for op in ("add", "mul")]
    made = {f"{op}{n}": n for n in (4, 9) for op in ("add", "mul")}
    assert shown(grouped(program(steps, {"x4": 4, "x9": 9}, made, list(made)))) == ["add4+add9", "mul4+mul9"]


def test_one_that_waits_for_another_waits_with_it() -> None:
    """Counts, then updates that read them: two launches, not four."""
    steps = []
    for n in (4, 9):
        steps += [Launch(doubled(n), (f"x{n}", f"c{n}")), Launch(in_place(n), (f"c{n}", f"p{n}"))]
    given = program(steps, {"x4": 4, "x9": 9, "p4": 4, "p9": 9}, {"c4": 4, "c9": 9}, [])
    assert shown(grouped(given)) == ["add4+add9", "update4+update9"]


def test_a_chain_is_no_group() -> None:
    steps = [Launch(doubled(4), ("x", "a")), Launch(doubled(4), ("a", "b")), Launch(doubled(4), ("b", "y"))]
    assert shown(grouped(program(steps, {"x": 4}, {"a": 4, "b": 4, "y": 4}, ["y"]))) == ["add4"] * 3


def test_what_would_wait_for_itself_is_another_group() -> None:
    """add(x) → mul → add: the second add may not join the first, as its own operand comes after that."""
    steps = [
        Launch(doubled(4), ("x", "a")),
        Launch(doubled(4, "mul"), ("a", "b")),
        Launch(doubled(4), ("b", "y")),
        Launch(doubled(9), ("z", "c")),
        Launch(doubled(9, "mul"), ("c", "d")),
    ]
    made = {"a": 4, "b": 4, "y": 4, "c": 9, "d": 9}
    assert shown(grouped(program(steps, {"x": 4, "z": 9}, made, ["y", "d"]))) == ["add4+add9", "mul4+mul9", "add4"]


@pytest.mark.parametrize("later", ["reads", "overwrites what it read", "overwrites what it wrote"])
def test_a_step_in_between_that_needs_one(later: str) -> None:
    call = {
        "reads": product("a", "w", "m"),
        "overwrites what it read": product("w", "w", "x"),
        "overwrites what it wrote": product("w", "w", "a"),
    }[later]
    steps = [Launch(doubled(64), ("x", "a")), call, Launch(doubled(65), ("z", "b"))]
    more = {"m": 64} if later == "reads" else {}
    given = program(steps, {"x": 64, "w": 64, "z": 65}, {"a": 64, "b": 65} | more, ["a", "b", *more])
    assert shown(grouped(given)) == ["add64", "mm", "add65"]


def test_a_step_in_between_that_has_nothing_to_do_with_it() -> None:
    steps = [Launch(doubled(64), ("x", "a")), product("w", "w", "m"), Launch(doubled(65), ("z", "b"))]
    given = program(steps, {"x": 64, "w": 64, "z": 65}, {"a": 64, "m": 64, "b": 65}, ["a", "b", "m"])
    assert shown(grouped(given)) == ["mm", "add64+add65"]


def test_what_is_large_is_not_kept_for_others() -> None:
    """A gradient that an update lets go: it goes before the next product, small ones wait."""
    large = 1 << 19
    steps = [
        Launch(doubled(large), ("x", "g")),
        Launch(in_place(large), ("g", "p")),
        product("w", "w", "m"),
        Launch(doubled(large), ("x", "h")),
        Launch(in_place(large), ("h", "q")),
    ]
    given = program(steps, {"x": large, "p": large, "q": large, "w": 64}, {"g": large, "h": large, "m": 64}, ["m"])
    assert shown(grouped(given)) == ["add524288", "update524288", "mm", "add524288", "update524288"]
    side_by_side = replace(given, steps=(steps[0], steps[3], steps[1], steps[4], steps[2]))
    assert shown(grouped(side_by_side)) == ["add524288+add524288", "update524288+update524288", "mm"]


def test_groups_are_as_long_as_each_other() -> None:
    counts = range(2, 12)
    steps = [Launch(doubled(n), (f"x{n}", f"y{n}")) for n in counts]
    made = {f"y{n}": n for n in counts}
    found = grouped(program(steps, {f"x{n}": n for n in counts}, made, list(made)), Limits(group_buffers=9))
    assert [len(list(step.parts)) for step in found.steps if isinstance(step, Launch)] == [3, 3, 4]


def test_without_fuel_or_where_a_target_has_no_groups() -> None:
    steps = [Launch(doubled(n), (f"x{n}", f"y{n}")) for n in (4, 9)]
    given = program(steps, {"x4": 4, "x9": 9}, {"y4": 4, "y9": 9}, ["y4", "y9"])
    assert grouped(given, Limits()) is given and grouped(given, budget=0).steps == given.steps


def test_what_has_no_family() -> None:
    assert family(doubled(4)) == family(doubled(9)) != family(doubled(9, "mul"))
    assert family(parse_kernel(sized(SOFTMAX, 4, 8))) is None
    assert family(parse_kernel(sized(COLUMN_SUM, 4, 80))) is None
    short, other, long = (summed(count) for count in (512, 513, 100_000))
    assert family(short) == family(replace(short, name="other")) != family(other)
    assert family(short) is not None and family(long) is not None
    environment, kernel = ShapeEnv(), doubled(4)
    axis = length_axis(kernel)
    assert axis is not None
    assert family(lengthened(kernel, axis, sym_size(environment, environment.symbol("s0", 4)))) is None


def test_a_group_that_writes_what_it_reads_is_refused() -> None:
    group = KernelGroup("g", (doubled(4), doubled(4)))
    bad = program([Launch(group, ("x", "a", "a", "y"))], {"x": 4}, {"a": 4, "y": 4}, ["y", "a"])
    with pytest.raises(SpecError, match="is read before"):
        check_program(bad)
    worse = program([Launch(group, ("x", "a", "x", "a"))], {"x": 4}, {"a": 4}, ["a"])
    with pytest.raises(SpecError):
        check_program(worse)
    mixed = KernelGroup("g", (doubled(4), replace(doubled(4), target="other")))
    with pytest.raises(SpecError, match="different targets"):
        check_program(program([Launch(mixed, ("x", "a", "x", "y"))], {"x": 4}, {"a": 4, "y": 4}, ["y", "a"]))
