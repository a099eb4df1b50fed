"""Calibration: kernels are chosen where they were measured to be faster, and nowhere else."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from smelt import _native
from smelt.base.options import Options, config
from smelt.cli import main
from smelt.device import host_costs
from smelt.device.host_costs import HostCosts, in_use
from smelt.device.product_costs import AttentionCosts, MatrixSizes, ProductCosts
from smelt.explain.calibration_report import report
from smelt.fuse.lowering import product_choice
from smelt.ir.kernel import Contract, WeightedSum
from smelt.ir.program import Launch, Program
from smelt.pipeline.cache import calibrated
from smelt.pipeline.cache.keys import environment_key
from smelt.pipeline.calibration import calibrate as calibration
from smelt.pipeline.calibration import measure
from smelt.pipeline.calibration.calibrate import Calibration, calibrate, costs_of
from smelt.pipeline.calibration.fit import is_chosen
from smelt.pipeline.calibration.measure import MeasuredPoint
from smelt.pipeline.calibration.points import Point, points
from smelt.runtime.cache import CacheFile, open_store
from tests.fuse.running import fused
from tests.processes import run

KIND = "float32 some rows along"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The disk cache in a directory of its own, with no calibration."""
    monkeypatch.setenv("SMELT_CACHE", "1")
    monkeypatch.setattr(config, "disk_cache_dir", str(tmp_path))
    yield tmp_path
    calibrated._read.clear()


@pytest.fixture(autouse=True)
def exact_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_choice, "may_round_products", lambda: False)


def of_kind(kind: str) -> list[Point]:
    return [point for point in points() if point.kind == kind]


def product(rows: int) -> Program:
    return fused(lambda x, w: torch.mm(x, w.t()), torch.randn(rows, 768), torch.randn(768, 768))


def own(program: Program) -> bool:
    """Whether a kernel computes the program's product, convolution or attention."""
    kernels = [step.kernel for step in program.steps if isinstance(step, Launch)]
    return any(isinstance(each, Contract | WeightedSum) for kernel in kernels for each in kernel.instructions())


def measured_as(
    monkeypatch: pytest.MonkeyPatch, kind: str, times: Callable[[Point, float], tuple[float, float]]
) -> Calibration:
    """A calibration of one kind that is told how long a kernel of so many estimated cycles and the library take."""
    monkeypatch.setattr(calibration, "points", lambda: of_kind(kind))

    def timed(ready: measure.ReadyPoint, threads: int) -> MeasuredPoint:
        return MeasuredPoint(ready.point, threads, ready.estimate, *times(ready.point, ready.estimate))

    monkeypatch.setattr(measure.ReadyPoint, "measured", timed)
    monkeypatch.setattr(calibration, "cycles_to_pass", lambda threads: (0.1, 0.5))
    return calibrate(60.0)


def test_kernels_are_chosen_where_they_were_faster(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not own(product(16))
    measured_as(monkeypatch, KIND, lambda _, estimate: (estimate, 2 * estimate))
    assert own(product(16))
    assert not own(product(100)), "rows that were not measured"


@pytest.mark.parametrize("slower", [1.0, 1.1, 5.0])
def test_a_slow_schedule_is_not_chosen(cache: Path, monkeypatch: pytest.MonkeyPatch, slower: float) -> None:
    found = measured_as(monkeypatch, KIND, lambda _, estimate: (slower * 2 * estimate, 2 * estimate))
    assert found.is_kept
    assert not own(product(16))


def test_a_kernel_that_is_slowed_down_is_not_chosen(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By real times: each launch runs a hundred times."""

    launcher = _native.Launcher

    class SlowLauncher:
        def __init__(self, *code: int) -> None:
            self.launcher = launcher(*code)

        def __call__(self, threads: int, *buffers: Any) -> None:
            for _ in range(100):
                self.launcher(threads, *buffers)

    monkeypatch.setattr(calibration, "points", lambda: of_kind(KIND)[:4])
    monkeypatch.setattr(measure._native, "Launcher", SlowLauncher)
    found = calibrate(60.0)
    assert {each.threads for each in found.measured} >= {1} and all(each.kernel > 0 for each in found.measured)
    assert not any(own(product(rows)) for rows in (12, 16, 32, 48))


def test_too_few_measurements_are_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With several threads on a busy machine, whose launches wait for threads that do not run."""
    taken = [MeasuredPoint(point, 1, 1e6, 1e5, 2e5) for point in of_kind(KIND)]
    few = [replace(each, threads=64) for each in taken[:1]]
    monkeypatch.setattr(calibration, "measured", lambda *_: iter(taken + few))
    monkeypatch.setattr(calibration, "points", lambda: of_kind(KIND))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(calibration, "cycles_to_pass", lambda threads: (0.1, 0.5))
    found = calibrate(60.0)
    assert [*found.costs] == [1]
    assert any("too few measurements with 64 threads" in line for line in report(found))


def test_one_slow_size_is_not_chosen(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of a size that the estimate says nothing bad of: the whole kind pays for it."""
    slow = MatrixSizes(1, 16, 512, 1024)

    def times(point: Point, estimate: float) -> tuple[float, float]:
        return (3 if point.sizes == slow else 0.9) * estimate, 1.2 * estimate

    measured_as(monkeypatch, KIND, times)
    assert not own(product(16))


@pytest.mark.parametrize("seed", range(20))
def test_no_size_that_lost_is_chosen(seed: int) -> None:
    chance = random.Random(seed)
    taken = of_kind(KIND)
    times = [
        MeasuredPoint(point, 1, estimate, estimate * chance.uniform(0.5, 1.5), estimate * chance.uniform(0.5, 1.5))
        for point in taken
        for estimate in [float(point.sizes.multiplications) / 16]
    ]
    costs = costs_of(times, 0.1, 1.0).products[KIND]
    assert not [each for each in times if is_chosen(each, costs) and each.kernel > each.library]


@pytest.mark.parametrize("faster", [2.0, 0.9])
def test_convolutions_are_chosen_by_costs(monkeypatch: pytest.MonkeyPatch, faster: float) -> None:
    """Also those that the rule for machines without a calibration leaves to the library, and the other way round."""
    costs = ProductCosts(0, 0.1 * faster, 0, 0, 1.0)
    kinds = {"float32 convolution 1×1": costs, "float32 convolution of taps": costs}
    monkeypatch.setattr(host_costs, "_measured", lambda: {1: HostCosts(kinds, digest="measured")})
    monkeypatch.setattr(
        product_choice.TargetChoice, "contraction_cycles", lambda *_: 0.1 * 64 * 64 * 256 * (9 if taps == 3 else 1)
    )
    for taps in (1, 3):
        x, w = torch.randn(1, 64, 16, 16), torch.randn(64, 64, taps, taps)

        def convolve(x: torch.Tensor, w: torch.Tensor, padding: int = taps // 2) -> torch.Tensor:
            return torch.relu(torch.nn.functional.conv2d(x, w, padding=padding))

        monkeypatch.setattr(product_choice, "slow_windows", lambda *_: False)
        assert own(fused(convolve, x, w)) is (faster > 1)
    narrow = torch.randn(1, 16, 16, 16), torch.randn(16, 16, 3, 3)
    assert not own(fused(lambda x, w: torch.relu(torch.nn.functional.conv2d(x, w)), *narrow)), "not measured"


@pytest.mark.parametrize("lateness", [0.5, 1.0])
def test_attention_is_chosen_by_costs(monkeypatch: pytest.MonkeyPatch, lateness: float) -> None:
    costs = AttentionCosts(1e6, 0, 0, 0, lateness=lateness)
    monkeypatch.setattr(host_costs, "_measured", lambda: {1: HostCosts(attention={"many queries": costs}, digest="d")})
    monkeypatch.setattr(product_choice.TargetChoice, "contraction_cycles", lambda *_: 1e6)
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    assert own(fused(lambda *given: attend(*given)[0], *torch.randn(3, 1, 2, 16, 8))) is (lateness < 1)


def test_costs_are_those_of_the_closest_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    by_threads = {count: HostCosts(digest=str(count)) for count in (1, 16)}
    monkeypatch.setattr(host_costs, "_measured", lambda: by_threads)
    for threads, digest in {1: "1", 3: "1", 4: "1", 5: "16", 16: "16", 64: "16"}.items():
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert in_use().digest == digest


# On disk.


COSTS = HostCosts(
    {KIND: ProductCosts(1.0, 2.0, 3.0, 4.0, lateness=5.0, launch=6.0)}, {"gradients": AttentionCosts(1, 2, 3, 4, 5, 6)},
    frozenset({"float32"}), 0.5,
)  # fmt: skip


def test_later_processes_have_the_costs(cache: Path) -> None:
    before = environment_key(Options())
    assert calibrated.keep({1: COSTS})
    found = in_use()
    assert replace(found, digest="") == COSTS and found.digest
    assert environment_key(Options()) != before, "compiled graphs depend on the costs"
    script = "import smelt.pipeline.cache.entries\nfrom smelt.device.host_costs import in_use\nprint(in_use().digest)"
    assert _printed(script, cache, "1") == found.digest
    assert _printed(script, cache, "0") == ""


def _printed(script: str, cache: Path, switch: str) -> str:
    return run(script, environment={"SMELT_CACHE": switch, "SMELT_CACHE_DIR": str(cache)}).stdout.strip()


def test_nothing_is_kept_without_a_cache() -> None:
    assert not calibrated.keep({1: COSTS})
    assert in_use().digest == ""


def test_of_other_code_nothing_is_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calibrated.keep({1: COSTS})
    assert in_use().digest
    calibrated._read.clear()
    monkeypatch.setattr(calibrated, "installation", lambda: ("another version",))
    assert not in_use().digest


@pytest.mark.parametrize(
    "costs",
    [
        None,
        [],
        {"x": {}},
        {"0": calibrated._plain({1: COSTS})["1"]},
        {"1": calibrated._plain({1: COSTS})["1"] | {"conversion": float("nan")}},
        {"1": calibrated._plain({1: COSTS})["1"] | {"products": {KIND: [1.0, -2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]}}},
        {"1": calibrated._plain({1: COSTS})["1"] | {"products": {KIND: [1.0]}}},
        {"1": calibrated._plain({1: COSTS})["1"] | {"conversion": 10**400}},
        {"9" * 400: calibrated._plain({1: COSTS})["1"]},
        {"1": {"products": 3}},
    ],
)
def test_what_no_calibration_wrote_is_ignored(cache: Path, costs: object) -> None:
    store = open_store()
    assert store is not None
    store.put(calibrated._key(), CacheFile({"costs": costs}))
    assert in_use().digest == ""


def test_doctor_calibrates(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def few() -> Sequence[Point]:
        return of_kind(KIND)[:4]

    monkeypatch.setattr(calibration, "points", few)
    assert main(["doctor"]) == 0
    assert "-     calibration  none" in capsys.readouterr().out
    assert main(["doctor", "--calibrate"]) == 0
    out = capsys.readouterr().out
    assert KIND in out and " of 4" in out and "ok    calibration" in out


def test_every_point_has_a_kernel_and_a_library_call() -> None:
    """And each kind has enough points for its constants."""
    kinds: dict[str, int] = {}
    for point in points():
        kinds[point.kind] = kinds.get(point.kind, 0) + 1
    assert all(count >= 4 for count in kinds.values())
    seen: set[str] = set()
    for point in points():
        if point.kind not in seen:
            seen.add(point.kind)
            (ready,) = measure._ready([point])
            assert ready.estimate > 0
            point.call(*(torch.ones(spec.shape, dtype=spec.dtype) for spec in point.inputs))()
