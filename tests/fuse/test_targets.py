"""How many kernels well-known pieces of models become, and that they compute the right thing."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt import _native
from smelt.base import events
from smelt.base.errors import SmeltError
from smelt.base.options import Options
from smelt.codegen import compile_kernels
from smelt.codegen.cpu import cpu_generator
from smelt.codegen.cpu.target import describe_host
from smelt.device import generator_of, launcher_of, register, target_of, withdraw
from smelt.device.fusion_limits import Limits
from smelt.ir.kernel import Accumulate, Compute, Role
from smelt.ir.kernel_code import KernelCode
from smelt.ir.program import Launch, Library, Program
from smelt.ir.serialize import dump, parse
from smelt.ir.text import format_kernel, format_program
from smelt.ops.decompositions import DECOMPOSITIONS
from tests.fuse.running import assert_same, compare, fused
from tests.golden import golden
from tests.kernel_reference import run_program
from tests.targets import seeded

aten = torch.ops.aten


def block(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y = F.gelu(x)
    y = torch.sin(y) * torch.cos(y)
    y = F.layer_norm(y, (x.shape[-1],), w, b)
    return torch.softmax(y, -1) * torch.tanh(y)


def block_joint(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
    leaves = [t.detach().requires_grad_() for t in (x, w, b)]
    y = block(*leaves)
    return (y.detach(), *torch.autograd.grad(y, leaves, g))


def inputs(rows: int, cols: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = seeded(1)
    shapes = ((rows, cols), (cols,), (cols,), (rows, cols))
    return [torch.randn(*shape, generator=generator, dtype=dtype) for shape in shapes]


def test_pointwise_block_is_one_kernel() -> None:
    given = inputs(16, 32)[:3]
    program = fused(block, *given, decompositions=DECOMPOSITIONS)
    assert len(program.steps) == 1
    compare(run_program(program, given), (block(*given),))
    golden("fuse/pointwise_block.txt", format_program(program))


def test_pointwise_block_joint_has_few_kernels() -> None:
    given = inputs(16, 32)
    program = fused(block_joint, *given, decompositions=DECOMPOSITIONS)
    assert len(program.kernels) <= 3 and not any(isinstance(step, Library) for step in program.steps)
    compare(run_program(program, given), block_joint(*given))


def test_pointwise_block_without_fuel_is_the_same() -> None:
    given = inputs(8, 16)
    program = fused(block_joint, *given, budget=0, decompositions=DECOMPOSITIONS)
    assert len(program.steps) > 50
    compare(run_program(program, given), block_joint(*given))


def test_bias_and_relu_after_matmul_are_one_kernel() -> None:
    program = assert_same(lambda x, w, b: torch.relu(x @ w + b), torch.randn(8, 4), torch.randn(4, 6), torch.randn(6))
    assert [type(step).__name__ for step in program.steps] == ["Library", "Launch"]
    assert isinstance(program.steps[0], Library) and program.steps[0].op is aten.mm.out
    golden("fuse/bias_relu.txt", format_program(program))


def test_relu_backward_and_bias_gradient_are_one_kernel() -> None:
    def backward(g: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        masked = aten.threshold_backward(g, y, 0)
        return masked, masked.sum(0)

    program = assert_same(backward, torch.randn(8, 6), torch.randn(8, 6))
    assert len(program.steps) == 1
    assert any(isinstance(i, Accumulate) for i in program.kernels[0].instructions())
    golden("fuse/relu_backward.txt", format_program(program))


def test_siblings_that_read_the_same_share_a_kernel() -> None:
    program = assert_same(lambda x: (torch.sin(x), torch.exp(x)), torch.randn(4, 8))
    assert len(program.steps) == 1


def test_a_transpose_is_read_through() -> None:
    program = assert_same(lambda x: torch.relu(x).permute(0, 2, 1).contiguous() * 2, torch.randn(2, 3, 4))
    assert len(program.steps) == 1
    golden("fuse/transpose.txt", format_program(program))


def test_channels_last_is_visited_in_memory_order() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    program = assert_same(lambda x: torch.relu(x * 2), x)
    (kernel,) = program.kernels
    assert len(kernel.rows) + len(kernel.cols) == 1


def test_batch_norm_statistics_fold_over_rows() -> None:
    def stats(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean = x.mean((0, 2, 3), keepdim=True)
        return mean, ((x - mean) ** 2).mean((0, 2, 3), keepdim=True)

    program = assert_same(stats, torch.randn(4, 3, 5, 6))
    big = [kernel for kernel in program.kernels if kernel.row_count * kernel.col_count > 3]
    assert len(big) == 2  # and two that divide three sums each


def test_sum_of_everything() -> None:
    program = assert_same(lambda x: (x * x).sum(), torch.randn(64, 512, dtype=torch.float64))
    assert len(program.steps) == 1 and program.kernels[0].row_count > 1


def exponentials(program: Program) -> int:
    return sum(isinstance(i, Compute) and i.op == "exp" for kernel in program.kernels for i in kernel.instructions())


def by_hand(x: torch.Tensor) -> torch.Tensor:
    grown = torch.exp(x - x.amax(-1, keepdim=True))
    return grown / grown.sum(-1, keepdim=True)


def test_a_long_row_is_kept_aside_in_the_output() -> None:
    program = assert_same(by_hand, torch.randn(2, 40000, dtype=torch.float64))
    assert all(buffer.role is not Role.SCRATCH for kernel in program.kernels for buffer in kernel.buffers)
    assert exponentials(program) == 1
    narrow = assert_same(lambda x: by_hand(x).bfloat16(), torch.randn(2, 40000))
    assert exponentials(narrow) == 2  # there is no room for f32 in an output of bf16


def test_a_long_row_kept_aside_does_not_write_over_what_is_read_again() -> None:
    """The row dies here and the output could have its memory, but for the pass that reads both."""

    def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x @ w
        return by_hand(y) * y

    def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = by_hand(x)
        return y * 2, y + x

    assert exponentials(assert_same(scaled, torch.randn(3, 4), torch.randn(4, 30000))) == 1
    assert exponentials(assert_same(two, torch.randn(3, 30000))) == 1


def test_equal_kernels_are_one() -> None:
    def two_layers(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.relu(x @ a) @ b) @ a

    program = assert_same(two_layers, torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4))
    assert len(program.kernels) == 2 and len(set(program.kernels)) == 1


def test_no_kernel_reaches_through_a_library_call() -> None:
    """y depends on x through a matmul and directly: fusing both ends would close a cycle."""

    def through(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        top = torch.sin(x)
        return torch.cos(top @ w) + top

    program: Program = assert_same(through, torch.randn(4, 4), torch.randn(4, 4))
    assert len(program.steps) == 3


def test_statistics_in_double_store_nothing_in_double() -> None:
    """Moments over images are read in several kernels; each converts what is in memory anyhow."""

    def moments(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.relu(x + w)
        wide = y.double()
        centered = wide - wide.mean([0, 2, 3], True)
        return y, (centered * centered).mean([0, 2, 3], True)

    program = assert_same(moments, torch.randn(4, 3, 5, 5), torch.randn(3, 1, 1))
    wide = [buffer for buffer in program.buffers if buffer.spec.dtype is torch.float64]
    assert wide and all(buffer.spec.numel == 3 for buffer in wide)


@pytest.fixture
def second() -> Iterator[list[str]]:
    """A second target, for the same device: the host's code under another name. What is asked of it is noted."""
    asked: list[str] = []

    def launcher(code: KernelCode, unaligned: Callable[[], KernelCode]) -> object:
        asked.append("launch")
        return _native.Launcher(code.address(code.symbol), code.buffers, 0, code.per_thread_workspace)

    class Noting:
        def __getattr__(self, name: str) -> object:
            asked.append(name)
            return getattr(cpu_generator, name)

    smelt.reset()
    register(
        "cpu2",
        lambda: replace(describe_host(), name="cpu2"),
        generator=Noting,
        launcher=launcher,
        limits=Limits(values=2),
        devices=("cpu",),
    )
    yield asked
    withdraw("cpu2")
    register("cpu", describe_host, devices=("cpu",))
    smelt.reset()


def test_a_second_target_runs_a_program_from_end_to_end(second: list[str]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16))
    x = torch.randn(4, 8)
    with events.collect() as collected:
        found = smelt.compile(model, options={"fallback": False})(x)
        found.sum().backward()
    torch.testing.assert_close(found, model(x))
    programs = [event.subject for event in collected if isinstance(event.subject, Program)]
    launches = [step for program in programs for step in program.steps if isinstance(step, Launch)]
    assert launches and all(step.target == step.kernel.target == "cpu2" for step in launches)
    assert {"schedule", "emit", "load", "share", "launch"} <= set(second)
    assert all(" on cpu2" in format_kernel(step.kernel) for step in launches)
    assert all(parse(dump(step.kernel)) == step.kernel for step in launches)  # as the disk cache has them


def test_a_target_is_asked_for_by_name() -> None:
    """And where nobody asks for it, the device keeps its own."""
    register("cpu3", lambda: replace(describe_host(), name="cpu3"), generator=lambda: cpu_generator,
             launcher=launcher_of("cpu"), devices=("cpu",), on_request=True)  # fmt: skip
    try:
        assert target_of(torch.device("cpu")) == "cpu" and target_of(torch.device("cpu"), "cpu3") == "cpu3"
        assert target_of(torch.device("meta"), "cpu3") is None
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16))
        x = torch.randn(4, 8)
        for wanted in ("cpu3", ""):
            smelt.reset()
            with events.collect() as collected:
                found = smelt.compile(model, options={"fallback": False, "target": wanted})(x)
                found.sum().backward()
            torch.testing.assert_close(found, model(x))
            programs = [event.subject for event in collected if isinstance(event.subject, Program)]
            assert {kernel.target for program in programs for kernel in program.kernels} == {wanted or "cpu"}
    finally:
        withdraw("cpu3")
        smelt.reset()
    with pytest.raises(SmeltError, match="unknown target 'abacus'") as caught:
        smelt.compile(torch.sin, options={"target": "abacus"})
    listed = str(caught.value).partition("choose from ")[2].split(", ")
    assert "cpu" in listed and listed == sorted(listed)


def test_limits_are_the_targets(second: list[str]) -> None:
    chain = lambda x: x.sin().cos().exp().tanh()  # noqa: E731
    assert len(assert_same(chain, torch.randn(4, dtype=torch.float64)).kernels) == 2


def test_equal_kernels_of_two_targets_are_two(second: list[str]) -> None:
    kernel = assert_same(lambda x: x.sin(), torch.randn(4, dtype=torch.float64)).kernels[0]
    other = replace(kernel, name="other", target="cpu")
    built = compile_kernels([kernel, other], Options())
    assert built[kernel.name].built is not built["other"].built


def test_a_device_without_a_target_has_no_kernels() -> None:
    assert target_of(torch.device("meta")) is None and target_of(torch.device("cpu")) == "cpu"
    with pytest.raises(SmeltError, match="there is no target 'abacus'"):
        generator_of("abacus")
