"""Dynamic sizes and numbers of functions with branches: all that were declared, or an error or a warning at export."""

from typing import Any

import pytest
import torch

import smelt
from smelt.base.errors import SmeltError, SmeltWarning
from tests.capture.explore.comparing import same

Tensor = torch.Tensor


def but_the_first(x: Tensor) -> Tensor:
    y = x[1:]
    if y.sum() > 0:
        return (y * 2).sum(0)
    return y - 1


@pytest.mark.parametrize("example", [1, 2, 3, 7])
def test_part_of_a_tensor_whatever_the_example_was(example: int) -> None:
    rows = {"x": {0: smelt.Dimension("rows", 1, 100)}}
    artifact = smelt.export(but_the_first, (torch.ones(example, 3),), dynamic=rows)
    torch.manual_seed(0)
    for count in (1, 2, 3, 5, 100):
        for given in (torch.rand(count, 3), -torch.rand(count, 3)):
            same(artifact(given), but_the_first(given), 1e-6)


def by_rows(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x = x + 1
    if x.shape[0] > 3:
        return x.mean(0)
    return x.sum(0) if x.shape[0] > 1 else x[0] - 1


def test_branches_on_sizes_behind_branches_on_tensors() -> None:
    artifact = smelt.export(by_rows, (torch.ones(3, 2),), dynamic={"x": {0: smelt.Dimension("rows", 1, 50)}})
    torch.manual_seed(0)
    for count in (1, 2, 3, 4, 5, 50):
        for given in (torch.rand(count, 2), -torch.rand(count, 2)):
            same(artifact(given), by_rows(given), 1e-6)


def exchanging(x: Tensor, decides: Tensor) -> tuple[Tensor, Tensor]:
    old, new = x[1:] * 3, x[:-1] * 2
    for i in range(4, 0, -2):
        if decides[0] > 1 or i < 2:
            old, new = new, old
            continue
        old = old + 1
        if decides[1] > 1:
            old = x[1:] * 4
    return old, new


def test_values_of_any_size_that_loops_exchange_and_keep() -> None:
    rows = {"x": {0: smelt.Dimension("rows", 1, 50)}}
    artifact = smelt.export(exchanging, (torch.ones(5, 2), torch.ones(2)), dynamic=rows)
    for count in (1, 2, 3, 50):
        for decides in ([2.0, 0.0], [0.0, 2.0], [0.0, 0.0]):
            given = torch.rand(count, 2), torch.tensor(decides)
            same(artifact(*given), exchanging(*given), 1e-6)


def keeping(x: Tensor, decides: Tensor) -> Tensor:
    for i in range(4, 0, -2):
        x.mean()
        if decides[0] > 1 or i < 2:
            continue
    return x + decides


def test_what_no_way_through_a_loop_changes_is_not_copied() -> None:
    rows = {"x": {0: smelt.Dimension("rows", 1, 50)}}
    artifact = smelt.export(keeping, (torch.ones(5, 2), torch.ones(2)), dynamic=rows)
    for count in (1, 2, 50):
        for decides in ([2.0, 0.0], [0.0, 2.0]):
            given = torch.rand(count, 2), torch.tensor(decides)
            same(artifact(*given), keeping(*given), 1e-6)
    moving = [state for state in str(artifact).split("  state ") if state.split()[1] == "to"]
    assert moving and not any("r0[" in state for state in moving)


def folded(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x.mean()
    return x.max() - 1


def test_a_reduction_of_every_size_that_was_declared() -> None:
    artifact = smelt.export(folded, (torch.ones(100),), dynamic={"x": {0: smelt.Dimension("n", 4, 100_000)}})
    torch.manual_seed(0)
    for count in (4, 100, 1024, 1025, 4096, 4097, 70_000, 100_000):
        for given in (torch.rand(count), -torch.rand(count)):
            same(artifact(given), folded(given), 1e-4)


def repeated(x: Tensor, n: int, scale: float) -> Tensor:
    for i in range(n):
        x = x * scale + i
    return x


@pytest.mark.parametrize("dynamic", [{}, {"n": True}, {"n": True, "scale": True}], ids=str)
def test_a_number_that_bounds_a_loop_may_be_any(dynamic: dict[str, Any]) -> None:
    x = torch.tensor([1.0, -2.0])
    artifact = smelt.export(repeated, (x, 3, 0.5), dynamic=dynamic)
    for n, scale in ((3, 0.5), (0, 2.0), (1, -1.0), (40, 0.9)):
        same(artifact(x, n, scale), repeated(x, n, scale), 1e-5)


def stacked(x: Tensor, n: int) -> Tensor:
    return torch.stack([x * i for i in range(n)])


def test_warns_of_a_number_that_is_fixed() -> None:
    x = torch.ones(2)
    with pytest.warns(SmeltWarning, match="n is fixed at 3"):
        artifact = smelt.export(stacked, (x, 3))
    same(artifact(x, 3), stacked(x, 3), 0)
    with pytest.raises(SmeltError, match="n is 3 in this artifact, not 4"):
        artifact(x, 4)


def test_refuses_to_fix_a_number_that_was_declared_to_differ() -> None:
    with pytest.raises(SmeltError, match="n is fixed at 3"):
        smelt.export(stacked, (torch.ones(2), 3), dynamic={"n": True})


def with_a_diagonal(x: Tensor, scale: float) -> Tensor:
    y = x * scale
    y.fill_diagonal_(0.5)
    return y


def test_warns_where_code_is_for_some_sizes_only() -> None:
    rows = {"x": {0: smelt.Dimension("rows", 1, 4096)}}
    with pytest.warns(SmeltWarning, match=r"code for some sizes only: a call with .*shape\[0\] = \d+ stops"):
        artifact = smelt.export(with_a_diagonal, (torch.ones(3, 4), 2.0), dynamic=rows)
    same(artifact(torch.ones(3, 4), 2.0), with_a_diagonal(torch.ones(3, 4), 2.0), 1e-6)


def test_sizes_that_no_code_reads_may_be_any() -> None:
    rows = {"x": {0: smelt.Dimension("rows", 0, 4096)}}
    artifact = smelt.export(lambda x: (x, 2), (torch.ones(3, 4),), dynamic=rows)
    for count in (0, 1, 2, 70):
        given = torch.rand(count, 4)
        assert torch.equal(artifact(given)[0], given)
