"""Loops that need no value before their end: a recording ends where the loop repeats, and rounds are one graph."""

import torch
from torch import nn

import smelt
from smelt.lazy.timeline import LazyRun


def runs_since(count: int) -> list[LazyRun]:
    found = smelt.lazy.explain()
    return [run for run in found.runs if run.number > count]


def deep(layers: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)) for _ in range(layers)))


def test_an_inference_loop_is_a_graph_a_round() -> None:
    model, batches = deep(10), torch.randn(60, 4, 6)
    with torch.no_grad():
        wanted = [model(batch) for batch in batches]
        moved = deep(10).to("lazy")
        before = smelt.lazy.explain()
        found = [moved(batch.to("lazy")) for batch in batches]
        runs = runs_since(before.run_count)
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs)
    assert {run.reason for run in runs} == {"a loop repeats"}
    assert len(runs) > 3 and len({run.operators for run in runs[1:]}) == 1
    assert runs[1].operators % 50 == 0  # whole rounds
    assert [run.how for run in runs[3:]] == ["cached"] * (len(runs) - 3)
    assert smelt.lazy.explain().compile_count - before.compile_count <= 3


def test_training_by_hand() -> None:
    def train(device: str) -> list[torch.Tensor]:
        torch.manual_seed(1)
        w, b = torch.randn(5, 3).to(device).requires_grad_(), torch.zeros(3).to(device).requires_grad_()
        for _ in range(120):
            loss = (torch.ones(4, 5, device=device) @ w + b).tanh().square().mean()
            loss.backward()
            with torch.no_grad():
                for each in (w, b):
                    assert each.grad is not None
                    each -= 0.1 * each.grad
                    each.grad = None
        return [w.detach().cpu(), b.detach().cpu()]

    before = smelt.lazy.explain()
    found = train("lazy")
    runs = runs_since(before.run_count)
    torch.testing.assert_close(found, train("cpu"), rtol=1e-4, atol=1e-6)
    assert max(run.operators for run in runs) < 2000
    repeats = [run for run in runs if run.reason == "a loop repeats"]
    assert len(repeats) > 3 and {run.how for run in repeats[3:]} == {"cached"}


def test_a_short_body_is_taken_several_times() -> None:
    x, host = torch.ones(29, device="lazy"), torch.ones(29)  # no other test records these, which would be known then
    before = smelt.lazy.explain()
    for number in range(2000):
        x = x * 0.5 + number
    for number in range(2000):
        host = host * 0.5 + number
    runs = runs_since(before.run_count)
    torch.testing.assert_close(x.cpu(), host)
    assert {run.operators for run in runs[1:]} == {250}
    assert smelt.lazy.explain().compile_count - before.compile_count <= 4


def test_what_comes_after_a_loop_is_not_cut_by_it() -> None:
    x = torch.ones(3, device="lazy")
    for _ in range(700):
        x = x * 0.5 + 1
    smelt.lazy.step()
    before = smelt.lazy.explain()
    y = x
    for number in range(20):
        y = (y + number).sin()
        y = y - x
    for _ in range(300):
        y = y.cos()
    smelt.lazy.step()
    assert len(runs_since(before.run_count)) == 1
