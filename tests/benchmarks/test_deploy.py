"""The table of `benchmarks.deploy`: its ratios, and what it says of bars that are missed."""

from typing import Any

import pytest

from benchmarks import deploy_table as table
from benchmarks.deploy import MODELS
from benchmarks.models import model_named


def _result(**changes: Any) -> dict[str, Any]:
    times = {"c": 0.010, "smelt": 0.011, "ort": 0.014}
    return {
        "model": "gpt2-prompt", "mode": "infer", "failed": {}, "right": True, "file": 15_050_000, "weights": 15_000_000,
        "state": 0, "plan": 5_000_000, "inputs": 1_000_000,
        "first": {"export": [{"processor": 1.5}], "smelt": [{"processor": 1.0}]},
        "start": [{"processor": 0.016, "seconds": seconds, "peak": 23_000_000} for seconds in (0.029, 0.020)],
        "steady": {who: [{"processor": seconds}] * 3 for who, seconds in times.items()},
    } | changes  # fmt: skip


def test_ratios() -> None:
    result = _result()
    assert table.export_ratio(result) == pytest.approx(1.5)
    assert table.memory_ratio(result) == pytest.approx(1.1)
    assert table.added(result) == pytest.approx(0.006)
    assert table.start_seconds(result) == 0.020
    assert table.beyond_weights(result) == 50_000
    assert table.speed(result, "smelt") == pytest.approx(1.1) and table.speed(result, "aotinductor") is None
    shown = table.markdown([result])
    assert "| gpt2-prompt | 1.50× | 20.0 | 6.0 | 1.10× | 50 | 10.00 | 1.10× | 1.40× |" in shown
    assert "missed" not in shown


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"first": {"export": [{"processor": 3.0}], "smelt": [{"processor": 1.0}]}}, "export takes 3.00"),
        ({"plan": 1_000_000}, "the peak is 1.38"),
        ({"file": 15_300_000}, "300000 bytes beside weights"),
        ({"steady": {"c": [{"processor": 2.0}], "smelt": [{"processor": 1.0}]}}, "0.50 of the speed in Python"),
        ({"steady": {"c": [{"processor": 2.0}], "smelt": [{"processor": 2.0}], "ort": [{"processor": 1.0}]}}, "ONNX"),
        ({"start": [{"processor": 0.1, "seconds": 0.05, "peak": 1}]}, "after 50.0 ms"),
        ({"right": False}, "not eager's"),
    ],
)
def test_what_misses_its_bar_is_told(changes: dict[str, Any], why: str) -> None:
    assert [line for line in table.missed([_result(**changes)]) if why in line]


def test_every_model_is_there() -> None:
    for names in MODELS.values():
        for name in names:
            assert model_named(name).what
