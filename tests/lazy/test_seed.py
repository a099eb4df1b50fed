"""The seed's examples: operators are recorded, and one kernel runs when a value is needed."""

import torch

import smelt
from smelt.lazy.timeline import LazyRun


def last_run() -> LazyRun:
    return smelt.lazy.explain().runs[-1]


def test_a_chain_is_recorded_and_runs_as_one_kernel(lazy: torch.device) -> None:
    runs = smelt.lazy.explain().run_count
    x = smelt.lazy.tensor([1.0, 2.0, 3.0])
    y = x + 1
    z = y * 2
    w = z - 0.5
    del y, z
    found = smelt.lazy.explain()
    assert (found.run_count, found.pending) == (runs, 3)
    assert str(w) == "tensor([3.5000, 5.5000, 7.5000], device='lazy:0')"
    run = last_run()
    assert (run.how, run.kernels, run.operators, run.outputs) == ("compiled", 1, 3, 1)
    assert run.line.startswith(f"{__file__}:")


def test_what_is_alive_is_computed_by_the_same_kernel(lazy: torch.device) -> None:
    x = smelt.lazy.tensor([1.0, 2.0, 3.0])
    y = x + 1
    z = y * 2
    w = z.relu()
    assert w.tolist() == [4.0, 6.0, 8.0]
    assert (last_run().kernels, last_run().outputs) == (1, 3)
    runs = smelt.lazy.explain().run_count
    assert (y.tolist(), z.tolist()) == ([2.0, 3.0, 4.0], [4.0, 6.0, 8.0])
    assert smelt.lazy.explain().run_count == runs


def test_a_product_and_a_mean_on_the_device(lazy: torch.device) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(100, 100, device="lazy"), torch.randn(100, 100, device="lazy")
    w = x @ y + 1
    result = w.mean()
    smelt.lazy.step()
    assert smelt.lazy.explain().pending == 0
    torch.manual_seed(0)
    a, b = torch.randn(100, 100), torch.randn(100, 100)
    torch.testing.assert_close(result.cpu(), (a @ b + 1).mean())


def test_nothing_runs_for_values_that_nobody_can_see(lazy: torch.device) -> None:
    x = smelt.lazy.tensor([1.0, 2.0])
    runs = smelt.lazy.explain().run_count
    y = x.exp()
    del y
    smelt.lazy.step()
    assert smelt.lazy.explain().run_count == runs


def test_a_branch_and_a_number_make_it_run(lazy: torch.device) -> None:
    x = smelt.lazy.tensor([1.0, 2.0])
    assert (x + 1).sum() > 3
    assert last_run().reason == "a number is needed"
    assert float((x * 2).sum()) == 6.0
    assert (x * 3).cpu().tolist() == [3.0, 6.0]
    assert last_run().reason == "it is copied to cpu"


def test_lazy_layers_learn_their_sizes(lazy: torch.device) -> None:
    with lazy:
        model = torch.nn.Sequential(torch.nn.LazyLinear(6), torch.nn.ReLU(), torch.nn.LazyLinear(3))
    out = model(torch.randn(4, 5, device="lazy"))
    assert model[0].weight.shape == (6, 5)
    assert out.cpu().shape == (4, 3)
