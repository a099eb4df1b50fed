"""Attention of many queries by tensor cores: on the host, a warp as a vector, against the interpreters; and as PTX."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.gpu_attention_tiles import Case
from smelt.base.rewrite_budget import RewriteBudget
from smelt.codegen.attention_problem import problem_of
from smelt.codegen.gpu.attention import score_tiles as schedule
from smelt.codegen.gpu.attention.score_tiles_body import ScoreTiles
from smelt.codegen.gpu.gpu_generator import CudaGenerator
from smelt.codegen.gpu.grids import KernelGrids
from smelt.codegen.write_module import join
from smelt.ir.check_kernel import check_kernel
from smelt.ir.kernel import Kernel
from smelt.ir.loops.check import check_module
from tests.codegen.gpu.on_host import OnHost, filled
from tests.codegen.gpu.test_ptx import assembled, assembled_here, ptx_of
from tests.kernel_reference import run_kernel
from tests.loop_reference import run_grid


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two warps that take few cols at a time: several steps and blocks of small attentions."""
    usual = schedule._sized

    def sized(*args: object) -> ScoreTiles:
        return replace(usual(*args), row_tiles=1, warps=2, cols=16)  # type: ignore[arg-type]

    monkeypatch.setattr(schedule, "_sized", sized)


def given_for(case: Case, kernel: Kernel) -> list[torch.Tensor]:
    """Random numbers; for gradients, with the results and sums that there are for them."""
    given = [filled(buffer, seed) for seed, buffer in enumerate(kernel.parameters)]
    if kernel.name == "gradients":
        by_name = {buffer.name: tensor for buffer, tensor in zip(kernel.parameters, given, strict=True)}
        forward = case.kernel()
        tensors = [by_name.get(buffer.name, torch.zeros(int(buffer.size))).clone() for buffer in forward.parameters]
        run_kernel(forward, tensors)
        for name, tensor in zip([buffer.name for buffer in forward.parameters], tensors, strict=True):
            if name in "yl":
                by_name[name].copy_(tensor)
    return given


def check(case: Case, *, gradients: bool = False, aligned: bool = True) -> KernelGrids:
    kernel = case.kernel(gradients)
    check_kernel(kernel, after="the test")
    built = OnHost(kernel, warp=32, aligned=aligned)
    assert any(isinstance(each, ScoreTiles) for each in built.plan.phases)
    built.check(rtol=2e-2, atol=3e-2 if gradients else 1e-2, given=given_for(case, kernel))
    return built.plan


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize(
    "case",
    [
        Case(2, 40, 33, 16), Case(1, 33, 48, 24, ("causal",)), Case(2, 70, 65, 8, ("causal", "window")),
        Case(1, 33, 40, 12, ("bias", "softcap")), Case(1, 20, 72, 40, ("window",)),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.usefixtures("small")
def test_against_the_interpreter(case: Case, dtype: str) -> None:
    check(replace(case, dtype=dtype), aligned=dtype == "bf16")


@pytest.mark.usefixtures("small")
def test_gradients() -> None:
    for case in (Case(2, 40, 33, 16, ("causal", "softcap")), Case(1, 33, 48, 24, ("window", "bias"))):
        plan = check(case, gradients=True)
        assert [each.by_query for each in plan.phases if isinstance(each, ScoreTiles)] == [True, False]


@pytest.mark.usefixtures("small")
def test_more_rows_of_a_warp_that_stay_in_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = schedule._sized
    monkeypatch.setattr(schedule, "_sized", lambda *given: replace(usual(*given), row_tiles=2, keeps_rows=False))
    check(Case(1, 70, 40, 24, ("causal",)))


@pytest.mark.usefixtures("small")
def test_queries_that_look_at_nothing_find_zeros() -> None:
    case = Case(1, 32, 32, 16, ("bias",))
    kernel = case.kernel()
    given = given_for(case, kernel)
    bias = given[3].view(32, 32)
    bias[:5] = bias[:, 20:] = float("-inf")
    built = OnHost(kernel, warp=32)
    built.check(rtol=2e-2, atol=1e-2, given=given)


@pytest.mark.usefixtures("small")
def test_large_scores_that_grow_from_step_to_step() -> None:
    """Earlier sums are relative to a maximum times log2(e), which float32 rounds by up to 0.2 here."""
    case = Case(1, 32, 64, 16)
    kernel = case.kernel()
    given = given_for(case, kernel)
    queries, keys, values = (tensor.zero_().view(-1, 16) for tensor in given[:3])
    step = torch.arange(64) // 16
    queries[:, 0], queries[:, 1] = 2**11, torch.arange(1, 33) / 8
    keys[:, 0], keys[:, 1] = 2**12, 4 * step
    values[:] = step[:, None] - 1.5
    OnHost(kernel, warp=32).check(rtol=2e-2, atol=1e-2, given=given)


@pytest.mark.usefixtures("small")
def test_loops_have_no_races_and_wait_for_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run thread by thread, as for a GPU."""
    from smelt.codegen.gpu.cuda_target import describe_cuda

    case = Case(1, 20, 40, 16, ("causal",))
    kernel, target, generator = case.kernel(), describe_cuda("sm_80"), CudaGenerator()
    code = generator.emit("k", generator.schedule(kernel, target, RewriteBudget(), check=False, of=""), target)
    module = join([code])
    check_module(module)
    given = given_for(case, kernel)
    memory = [bytearray(each.view(torch.uint8).numpy().tobytes()) for each in given]
    (phase,) = code.phases
    run_grid(module, phase.symbol, *memory, bytearray(16), blocks=int(phase.blocks), shared_bytes=phase.shared_bytes)
    run_kernel(kernel, given)
    for place in (3, 4):
        found = torch.frombuffer(memory[place], dtype=given[place].dtype)
        torch.testing.assert_close(found, given[place], rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("kinds", "reach", "window"),
    [((), None, None), (("causal",), 0, None), (("window",), None, 15), (("causal", "window", "bias"), 0, 15)],
)
def test_keys_that_are_hidden_are_known(kinds: tuple[str, ...], reach: int | None, window: int | None) -> None:
    problem = problem_of(Case(1, 64, 64, 16, kinds).kernel())
    assert (problem.reach, problem.window) == (reach, window)


@assembled_here
@pytest.mark.parametrize("chip", ["sm_80", "sm_90"])
def test_ptx_is_assembled_with_few_spills(chip: str, tmp_path: Path) -> None:
    cases = [
        Case(96, 1024, 1024, 64), Case(96, 1024, 1024, 64, ("causal",)), Case(32, 1000, 1000, 80, ("bias", "softcap")),
        Case(64, 1024, 1024, 128, ("causal", "softcap")), Case(16, 1024, 1024, 256),
    ]  # fmt: skip
    kernels = {f"forward{number}": case.kernel() for number, case in enumerate(cases)}
    kernels |= {f"backward{width}": Case(64, 1024, 1024, width, ("causal",)).kernel(True) for width in (64, 128)}
    found = assembled(ptx_of(kernels, chip), chip, tmp_path)
    # The assembler spills two registers of a gradient where two blocks fit then.
    assert {name: spilled for name, (_, spilled) in found.items() if spilled > 8} == {}
