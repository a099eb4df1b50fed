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
    names = {each.name for each in found.verdicts[-1].compared}
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


def test_random_programs_are_held_against_float64_with_the_same_draws() -> None:
    found = smelt.verify(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)), (X,))
    assert found.ok and found.reference == "the same program in float64, with the same random numbers"


def sampled_mean(x: torch.Tensor) -> torch.Tensor:
    """Half the rows, as a detector samples its boxes: a sum that cancels, so float32 keeps few of its digits."""
    dropped = nn.functional.dropout(x, 0.25)
    rows = dropped[torch.randperm(len(x))[: len(x) // 2]]
    return (rows + 1000).mean() - 1000 - rows.mean()


def test_cancellation_in_a_random_program_is_no_error_of_a_backend() -> None:
    torch.manual_seed(0)
    found = smelt.verify(sampled_mean, (torch.randn(4096, 8, requires_grad=True),))
    assert found.ok, str(found)
    assert all(each.error <= 2 for verdict in found.verdicts for each in verdict.compared)


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: x * torch.bernoulli(x.sigmoid()),
        lambda x: x + torch.randn_like(x) * torch.rand(8),
        lambda x: x[:, torch.multinomial(x.softmax(-1)[0], 3)],
        lambda x: torch.native_dropout(x, 0.5, True)[0],
        lambda x: torch.empty_like(x).uniform_(1, 2) * x,
        lambda x: torch.normal(x.detach(), 1.0) * x,
    ],
)
def test_every_kind_of_draw_is_replayed_in_float64(draw: Any) -> None:
    found = smelt.verify(lambda x: draw(x).exp(), (X.clone().requires_grad_(),), backends=("eager", "aot_eager"))
    assert found.ok and found.reference.endswith("with the same random numbers"), str(found)
    assert all(each.error <= 1 for verdict in found.verdicts for each in verdict.compared)


def test_a_wrong_number_in_a_random_program_is_found() -> None:
    def backend(graph: Any, examples: Any) -> Any:
        return lambda *inputs: tuple(part * (1 + 1e-4) for part in graph(*inputs))

    smelt.register_backend(backend, "slightly_wrong_for_verify")
    for program in (
        lambda x: nn.functional.dropout(x) + 1,
        lambda x: torch.mm(nn.functional.dropout(x), torch.ones(8, 8)),  # does not run in float64
    ):
        found = smelt.verify(program, (X,), backends=("slightly_wrong_for_verify",))
        assert not found.ok and "output: off by" in str(found)


def test_without_a_float64_program_the_bound_has_eagers_own_error() -> None:
    def fixed_dtype(x: torch.Tensor) -> torch.Tensor:
        return sampled_mean(x) + torch.mm(x, torch.ones(8, 8)).sum() * 0  # float64 times float32 raises

    def drawn_elsewhere(x: torch.Tensor) -> torch.Tensor:
        return sampled_mean(x) + torch.rand(torch.finfo(x.dtype).bits).sum() * 0  # twice as many in float64

    torch.manual_seed(0)
    for program in (fixed_dtype, drawn_elsewhere):
        found = smelt.verify(program, (torch.randn(4096, 8, requires_grad=True),))
        assert found.ok, str(found)
        assert found.reference.startswith("eager, as the program does not run in float64 (")
        assert "the bound includes eager's own error" in str(found)


def test_functions_with_modules_outside_and_results_of_any_shape() -> None:
    net = model()

    def program(x: torch.Tensor, table: dict[str, Any]) -> dict[str, Any]:
        return {"logits": net(x).softmax(-1), "parts": [x > 0, table["n"]], "none": None}

    found = smelt.verify(program, (X, {"n": 3}))
    assert found.ok
    assert {"output['logits']", "output['parts'][0]"} <= {each.name for each in found.verdicts[0].compared}
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
