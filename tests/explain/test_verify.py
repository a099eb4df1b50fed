"""`smelt.verify`: agreement is told from rounding, disagreement is named, and nothing is left changed."""

from typing import Any

import pytest
import torch
from torch import nn

import smelt
from tests.explain.faults import swap_subtractions_merged_with_tanh

X = torch.linspace(-2, 2, 40).reshape(5, 8)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 4))


def test_a_model_that_is_right_is_found_right_and_stays_as_it_was() -> None:
    net, x = model(), X.clone().requires_grad_()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    found = smelt.verify(net, (x,))
    assert found.ok and found.first_wrong is None
    assert [verdict.backend for verdict in found.verdicts] == ["eager", "aot_eager", "llvm"]
    assert found.reference == "the same program in float64"
    names = {each.name for each in found.verdicts[-1].found}
    assert {"output", "gradient of 0.weight", "gradient of argument[0][0]", "1.running_mean afterwards"} <= names
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert x.grad is None and all(p.grad is None and p.dtype is torch.float32 for p in net.parameters())


def test_a_wrong_fusion_is_named_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    swap_subtractions_merged_with_tanh(monkeypatch)
    found = smelt.verify(lambda x, y: (x.exp() - y).tanh(), (X, X.flip(0)))
    assert not found.ok and found.first_wrong is found.verdicts[2]
    assert [verdict.right for verdict in found.verdicts] == [True, True, False]
    text = str(found)
    assert "llvm        WRONG   output: off by" in text and "smelt bisect" in text


def test_random_programs_are_held_against_eagers_own_numbers() -> None:
    found = smelt.verify(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)), (X,))
    assert found.ok and found.reference.startswith("eager, as the program draws random numbers")


def test_functions_with_modules_outside_and_results_of_any_shape() -> None:
    net = model()

    def program(x: torch.Tensor, table: dict[str, Any]) -> dict[str, Any]:
        return {"logits": net(x).softmax(-1), "parts": [x > 0, table["n"]], "none": None}

    found = smelt.verify(program, (X, {"n": 3}))
    assert found.ok
    assert {"output['logits']", "output['parts'][0]"} <= {each.name for each in found.verdicts[0].found}
    assert all(p.grad is None for p in net.parameters())


def test_a_backend_that_fails_is_not_right() -> None:
    def backend(graph: Any, examples: Any) -> Any:
        raise ValueError("no such luck")

    smelt.register_backend(backend, "failing_for_verify")
    found = smelt.verify(lambda x: x + 1, (X,), backends=("failing_for_verify",), options={"fallback": False})
    assert not found.ok and found.verdicts[0].failure is not None and "no such luck" in found.verdicts[0].failure


WRONG = {"value": torch.zeros_like, "dtype": lambda x: x.double(), "shape": lambda x: x[:1]}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_what_differs_is_said(wrong: Any) -> None:
    def backend(graph: Any, examples: Any) -> Any:
        return lambda *inputs: tuple(wrong(part) for part in graph(*inputs))

    smelt.register_backend(backend, "wrong_for_verify")
    (verdict,) = smelt.verify(lambda x: x + 1, (X,), backends=("wrong_for_verify",)).verdicts
    assert not verdict.right and "eager has" in str(verdict)


def test_nan_and_infinity_must_be_where_eager_has_them() -> None:
    x = torch.tensor([0.0, 1.0, float("nan"), float("inf")])
    assert smelt.verify(lambda x: (x.log(), 1 / x), (x,)).ok


def test_what_is_no_program_is_refused() -> None:
    with pytest.raises(smelt.SmeltError, match="SM001"):
        smelt.verify(3)  # type: ignore[arg-type]
