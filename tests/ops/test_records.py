"""Every record's samples, over every dtype: what the fuser makes of the call is what PyTorch gives."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from smelt.fuse import inline_exprs
from smelt.ir.tensorspec import TensorSpec
from smelt.ops.promote import KERNEL_DTYPES, promoted
from smelt.ops.record import LibraryCall, Lookup, OpRecord, Pieces, Pointwise, Scan
from smelt.ops.registry import all_records, record_of
from tests.fuse.running import assert_same, fused, without_onednn
from tests.ops.samples import SAMPLES, Sample
from tests.ops_db.comparing import rebuilt

DTYPES = sorted(KERNEL_DTYPES, key=str)
LOWERED = [record for record in all_records() if not isinstance(record.lowering, LibraryCall)]
POINTWISE = [record for record in LOWERED if isinstance(record.lowering, Pointwise)]


def test_every_operator_that_kernels_follow_has_samples() -> None:
    assert {record.op for record in LOWERED} == SAMPLES.keys()


def test_an_unknown_operator_is_a_library_call() -> None:
    assert isinstance(record_of(torch.ops.aten.histc.default).lowering, LibraryCall)


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


@pytest.mark.parametrize("record", LOWERED, ids=lambda record: str(record.op))
def test_samples_agree_with_eager(record: OpRecord) -> None:
    tried = 0
    for dtype in DTYPES:
        for sample in SAMPLES[record.op](dtype):
            tensors = _tensors(sample.args)
            finite = all(torch.isfinite(t).all() for t in tensors if t.is_floating_point())
            if not finite and _turns_to_integers(record, sample.args, sample.kwargs):
                continue
            call = _called(record, sample)
            try:
                call(*tensors)
            except (RuntimeError, TypeError, NotImplementedError, ZeroDivisionError):
                continue
            try:
                with without_onednn():
                    assert_same(call, *tensors)
            except AssertionError as wrong:
                raise AssertionError(f"{record.op}{sample.args}{sample.kwargs}: {wrong}") from wrong
            tried += 1
    assert tried, "no sample of this record runs at all"


@pytest.mark.parametrize("record", POINTWISE, ids=lambda record: str(record.op))
def test_records_that_ask_for_positions_say_so(record: OpRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    position = inline_exprs._Emitter.position

    def noted(emitter: Any, dim: int) -> Any:
        asked.append(dim)
        return position(emitter, dim)

    monkeypatch.setattr(inline_exprs._Emitter, "position", noted)
    for dtype in (torch.float32, torch.int64):
        for sample in SAMPLES[record.op](dtype):
            with contextlib.suppress(Exception):  # what PyTorch refuses
                fused(_called(record, sample), *_tensors(sample.args))
    assert isinstance(record.lowering, Pointwise) and record.lowering.by_position == bool(asked)


def _called(record: OpRecord, sample: Sample) -> Callable[..., Any]:
    """The call of a sample, with its tensors as arguments."""

    def call(*given: torch.Tensor) -> Any:
        fresh = iter(given)
        found = record.op(*rebuilt(sample.args, lambda _: next(fresh)), **sample.kwargs)
        if isinstance(record.lowering, Pieces | Lookup):  # of no use to kernels that nothing follows
            found = torch.maximum(found, found)
        if isinstance(record.lowering, Scan) and isinstance(found, tuple):
            found = found[0]
        return found

    return call


def _turns_to_integers(record: OpRecord, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """NaN and infinities have no meaning as integers."""
    try:
        found = record.op(*args, **kwargs)
    except Exception:
        return True
    return isinstance(found, torch.Tensor) and not found.is_floating_point() and found.dtype is not torch.bool


@pytest.mark.parametrize("left", DTYPES, ids=str)
@pytest.mark.parametrize("right", DTYPES, ids=str)
def test_promotion_is_pytorchs(left: torch.dtype, right: torch.dtype) -> None:
    for a in (torch.ones(2, dtype=left), torch.ones((), dtype=left), True, 3, 2.5):
        for b in (torch.ones(2, dtype=right), torch.ones((), dtype=right)):
            given = [TensorSpec.of(x) if isinstance(x, torch.Tensor) else x for x in (a, b)]
            assert promoted(given) is torch.result_type(a, b), (a, b)
