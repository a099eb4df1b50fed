"""MLP, GPT-2, ResNet and ViT in training with AdamW on a chip: the host's losses, and nothing left to the host."""

import pytest
import torch

import smelt
from smelt.chips import fallbacks
from tests.chips.models import HOW, MODELS, Training, far_off


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", MODELS)
def test_losses_are_the_hosts(name: str, how: str) -> None:
    before = fallbacks("sim")
    assert far_off(Training("sim", name, how).losses(), name) is None
    assert fallbacks("sim") == before


@pytest.mark.parametrize("name", ["mlp", "gpt2"])
def test_a_step_copies_nothing_but_its_results(name: str) -> None:
    """Optimizers count on the host; what they compute of that is passed along with launches. Whether all indices were
    in range (of labels, tokens and positions) is one flag."""
    training = Training("sim", name, "step")
    for _ in range(2):
        training.step(training.batch())
    batch = training.batch()
    names = ("chip_copies_in", "chip_copies_out", "eager_graphs")
    before = [smelt.counters[name] for name in names]
    training.step(batch)
    assert [smelt.counters[name] - count for name, count in zip(names, before, strict=True)] == [0, 1, 0]  # a flag


def test_counts_stay_as_they_were_where_a_step_fails(sim: object) -> None:
    training = Training("sim", "mlp", "step")
    for _ in range(2):
        training.step(training.batch())
    counts = [state["step"] for state in training.optimizer.state.values()]
    assert counts and all(each.device.type == "cpu" and each == 2 for each in counts)
    batch = training.batch()
    batch["labels"] = batch["labels"] + 100
    with pytest.raises((IndexError, RuntimeError)):
        training.step(batch)
    assert all(each == 2 for each in counts)


def test_a_number_of_the_host_is_read_when_it_is_needed() -> None:
    """Before and after the count moves."""

    def run(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        first = count.item()
        count.add_(1)
        return x * first + count.item()

    compiled = smelt.compile(run)
    count = torch.tensor(3.0)
    for expected in (3.0, 4.0, 5.0):
        assert torch.equal(compiled(torch.ones(2).to("sim"), count).cpu(), torch.full((2,), 2 * expected + 1))
