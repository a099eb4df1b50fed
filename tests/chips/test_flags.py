"""Indices that are out of range in a program on a chip: one flag tells of all of them, the first operator raises."""

import pytest
import torch

import smelt


def _sum(
    i: torch.Tensor, j: torch.Tensor, k: torch.Tensor, rows: torch.Tensor, others: torch.Tensor
) -> torch.Tensor:
    return rows[i] + others[j] + rows[k.clamp(max=7)]


def _given(*indices: list[int]) -> list[torch.Tensor]:
    tables = [torch.arange(12.0).view(6, 2), torch.arange(8.0).view(4, 2)]
    return [each.to("sim") for each in (*map(torch.tensor, indices), *tables)]


def test_one_flag_for_all_indices() -> None:
    compiled = smelt.compile(_sum, fullgraph=True)
    good = _given([1, -2], [0, -4], [-1, 5])
    for _ in range(2):
        compiled(*good)
    before = smelt.counters["chip_copies_out"]
    found = compiled(*good)
    assert smelt.counters["chip_copies_out"] == before + 1
    assert torch.equal(found.cpu(), _sum(*good).cpu())


@pytest.mark.parametrize(
    ("indices", "error"),
    [
        (([1, 6], [0, 3], [5, 5]), "index 6 is out of bounds for dimension 0 with size 6"),
        (([1, 2], [0, 4], [5, 5]), "index 4 is out of bounds for dimension 0 with size 4"),
        (([1, 2], [0, 3], [5, 9]), "index 7 is out of bounds for dimension 0 with size 6"),
        (([1, 9], [0, 7], [0, 0]), "index 9 is out of bounds for dimension 0 with size 6"),
    ],
)
def test_the_operator_raises_whose_index_it_is(indices: tuple[list[int], ...], error: str) -> None:
    compiled = smelt.compile(_sum, fullgraph=True)
    with pytest.raises(IndexError, match=error):
        compiled(*_given(*indices))


def test_a_flag_is_read_before_what_is_written() -> None:
    """Checks behind a write have a flag of their own."""

    def run(x: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        first = x[i]
        x.index_add_(0, i, first)
        return first + x[x[j].long()]

    compiled = smelt.compile(run, fullgraph=True)
    host, chip = torch.arange(4.0), torch.arange(4.0).to("sim")
    i, j = torch.tensor([1, 1]), torch.tensor([0, 1])
    assert torch.equal(compiled(chip, i.to("sim"), j.to("sim")).cpu(), run(host, i, j))
    assert torch.equal(chip.cpu(), host)
    kept = chip.cpu()
    for wrong in (([4, 0], [0, 0]), ([0, 0], [4, 0])):
        with pytest.raises(IndexError):
            compiled(chip, *(torch.tensor(each).to("sim") for each in wrong))
        assert torch.equal(chip.cpu(), kept)
