"""Level `indexing`: gathers, scatters, masks, sorting, and indices out of range."""

from typing import Any

import torch
import torch.nn.functional as F

from smelt.device.host_library import HOST
from smelt_conform.bench import Bench, compared, expect, numbers
from smelt_conform.check import Check, Level, Measurement


def _indices(device: str, *values: int) -> torch.Tensor:
    return torch.tensor(values).to(device)


def _gathers(device: str) -> Any:
    x, rows = numbers(device, 9, 6), _indices(device, 8, 0, 3, 3, -1)
    by_row = _indices(device, 5, 0, 1, 2, 4, 3, 0, 1, 2).unsqueeze(1)
    return x[rows], x[:, _indices(device, 5, 0)], x[rows, _indices(device, 0, 1, 2, 3, 4)], x.gather(1, by_row)


def _selects(device: str) -> Any:
    x = numbers(device, 9, 6)
    return x.index_select(0, _indices(device, 2, 2, 7)), x.take_along_dim(_indices(device, 1, 0).expand(9, 2), 1)


def _embedding(device: str) -> Any:
    table = numbers(device, 11, 8)
    return F.embedding(_indices(device, 0, 10, 5, 5).view(2, 2), table), F.one_hot(_indices(device, 1, 0, 3), 5)


def _writes(device: str) -> Any:
    x = numbers(device, 8, 5)
    x[_indices(device, 1, 6)] = numbers(device, 2, 5, seed=1)
    x[:, _indices(device, 0)] = 3.0
    x.index_fill_(0, _indices(device, 4), -1)
    return x, x.scatter(1, _indices(device, 1, 0, 2, 3, 4, 0, 1, 2).unsqueeze(1), 9.0)


def _accumulates(device: str) -> Any:
    """Several additions to one element: none may be lost."""
    x, rows = torch.zeros(5, 3, device=device), _indices(device, *([0, 2, 2, 4] * 50))
    values = numbers(device, 200, 3)
    put = torch.zeros(5, 3, device=device).index_put((rows,), values, accumulate=True)
    return x.index_add(0, rows, values), put, x.scatter_add(0, rows.unsqueeze(1).expand(200, 3), values)


def _masks(device: str) -> Any:
    x = numbers(device, 7, 9)
    return x.masked_fill(x > 0, -1), torch.where(x > 0, x, 0.0), x[x > 0], (x > 1).nonzero(), x.tril(1), x.triu()


def _sorting(device: str) -> Any:
    x = torch.randperm(200, generator=torch.Generator().manual_seed(0)).float().view(4, 50).to(device)
    return x.sort(1), x.topk(5, dim=1), x.argsort(0, descending=True), torch.unique(x)


def _joining(device: str) -> Any:
    x, y = numbers(device, 3, 4), numbers(device, 2, 4, seed=1)
    return (
        torch.cat([x, y]),
        torch.stack([x, x]),
        x.roll(1, 1),
        F.pad(x, (1, 2)),
        torch.cat([x, y]).tensor_split(2)[1] + 1,
    )


def _out_of_range(bench: Bench) -> None:
    x = numbers(bench.name, 5, 3)
    for index in (5, -6, 1 << 40):
        try:
            x[_indices(bench.name, 1, index)].sum().item()
        except IndexError:
            continue
        expect(False, f"index {index} into 5 rows raised no IndexError")
    expect(torch.equal(x.cpu(), numbers(HOST.type, 5, 3)), "an index out of range changed the tensor")


def _timed(bench: Bench) -> tuple[Any, int]:
    x = torch.ones(1 << 15, 128, device=bench.name)
    rows = torch.arange(1 << 15).flip(0).to(bench.name)
    return lambda: x.index_select(0, rows), 2 * x.nbytes + rows.nbytes


_GATHER = "compile(): loads from addresses that are computed, indices of 64 bits"

LEVEL = Level(
    "indexing",
    "Indexing",
    (
        Check("gathers", "rows, columns and elements by indices", _GATHER, compared(_gathers, torch.int64)),
        Check("selects", "index_select and take_along_dim", _GATHER, compared(_selects, torch.int64)),
        Check("embedding", "rows of a table", _GATHER, compared(_embedding, torch.int64)),
        Check(
            "writes",
            "writes by indices",
            "compile(): stores to addresses that are computed",
            compared(_writes, torch.int64),
        ),
        Check(
            "accumulates",
            "several numbers added to one place",
            "compile(): atomic additions",
            compared(_accumulates, torch.int64),
        ),
        Check(
            "masks",
            "masks, and results whose size depends on them",
            "copy_out(), allocate()",
            compared(_masks, torch.bool),
        ),
        Check("sorting", "sorted rows, the largest, unique values", _GATHER, compared(_sorting, torch.int64)),
        Check(
            "joining",
            "tensors joined, rolled and padded",
            "launch(): addresses inside of allocations",
            compared(_joining),
        ),
        Check("out_of_range", "an index out of range is an IndexError", "copy_out() of a kernel's flag", _out_of_range),
    ),
    (Measurement("index_select of rows", _timed),),
)
