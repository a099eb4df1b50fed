"""Faults of the compiler that plain sizes would hide: raised with `check_specs`, passed over without."""

from typing import Any

import pytest
import torch

import smelt
from smelt.base.errors import SmeltError, SpecError, is_fault
from smelt.base.options import config
from smelt.symbolic.expressions import DataDependent

_STAGES = ("smelt.pipeline.compile.Compilation.trace", "smelt.pipeline.sizes.template.Template._made")


def _program(x: torch.Tensor) -> torch.Tensor:
    return x.exp() + x.shape[0]


def _compiled(options: dict[str, Any]) -> torch.Tensor:
    smelt.reset()
    found: torch.Tensor = smelt.compile(_program, dynamic=True, options=options)(torch.ones(3, 4))
    return found


@pytest.fixture(params=_STAGES)
def raising(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    raised: list[Exception] = []

    def fail(*given: Any, **named: Any) -> Any:
        raise raised[0]

    monkeypatch.setattr(request.param, fail)
    monkeypatch.setattr(config, "suppress_errors", False)
    return raised


@pytest.mark.parametrize("error", [KeyError("a fault"), SpecError("SM030", "a fault")], ids=["any", "spec"])
def test_faults_are_raised_where_specs_are_checked(raising: list[Exception], error: Exception) -> None:
    raising.append(error)
    assert torch.equal(_compiled({}), _program(torch.ones(3, 4)))
    with pytest.raises(type(error), match="a fault"):
        _compiled({"check_specs": True})


def test_reasons_are_not_faults(raising: list[Exception]) -> None:
    raising.append(SmeltError("SM020", "a reason"))
    assert torch.equal(_compiled({"check_specs": True}), _program(torch.ones(3, 4)))


def test_which_errors_are_faults() -> None:
    assert is_fault(KeyError()) and is_fault(SpecError("SM030", ""))
    assert is_fault(DataDependent("")) and not is_fault(DataDependent(""), DataDependent)
    assert not is_fault(SmeltError("SM020", ""))
