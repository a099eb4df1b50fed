"""Sizes that only data tell, under fullgraph=True: one graph for 0, 1 and many, with gradients; branches on them."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import smelt
from smelt.base.errors import GraphBreakError

_LIBRARY = torch.library.Library("smelt_data_sizes", "DEF")
_LIBRARY.define("keep(Tensor scores, float least) -> Tensor")
_LIBRARY.impl("keep", lambda scores, least: torch.nonzero(scores.detach() > least)[:, 0].contiguous(), "CPU")


@torch.library.register_fake("smelt_data_sizes::keep", lib=_LIBRARY)
def _described(scores: torch.Tensor, least: float) -> torch.Tensor:
    return scores.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)


def masked(x: torch.Tensor, lengths: torch.Tensor) -> Any:
    return (x[x > 0] * 2).sin()


def nonzero(x: torch.Tensor, lengths: torch.Tensor) -> Any:
    places = (x > 0).nonzero()[:, 0]
    return (x[places] * 3).exp().sum(), places


def tuple_of_places(x: torch.Tensor, lengths: torch.Tensor) -> Any:
    table = x.view(4, 4)
    i, j = torch.where(table > 0)
    return table[table > 0].sin() + i + j, table[table.sum(1) > 0], table[:, table.sum(0) > 0]


def selected(x: torch.Tensor, lengths: torch.Tensor) -> Any:
    return torch.masked_select(x, x > 0).exp()


def unique(x: torch.Tensor, lengths: torch.Tensor) -> Any:
    values, places, counts = torch.unique((x * 2).round(), return_inverse=True, return_counts=True)
    return values.detach() * 2, places + 1, counts + 1


def consecutive(x: torch.Tensor, lengths: torch.Tensor) -> Any:
    return torch.unique_consecutive((x > 0).long()) + 1


def unique_rows(x: torch.Tensor, lengths: torch.Tensor) -> Any:
    return torch.unique((x > 0).long().view(8, 2), dim=0) * 2


def of_library(x: torch.Tensor, lengths: torch.Tensor) -> Any:
    return x[torch.ops.smelt_data_sizes.keep(x, 0.0)] * 2


def written_back(x: torch.Tensor, lengths: torch.Tensor) -> Any:
    rows = x.view(8, 2)
    mask = rows[:, 0] > 0
    out = torch.zeros_like(rows)
    out[mask] = torch.nn.functional.gelu(rows[mask] @ torch.eye(2))
    return out


def size_returned(x: torch.Tensor, lengths: torch.Tensor) -> Any:
    kept = x[x > 0]
    return kept.sum(), kept.shape[0], kept.shape[0] * 2 + 1


def made_of_size(x: torch.Tensor, lengths: torch.Tensor) -> Any:
    kept = x[x > 0]
    return torch.arange(kept.shape[0]) + kept, kept.sum() / max(kept.numel(), 1)


def repeated(x: torch.Tensor, lengths: torch.Tensor) -> Any:
    return x[:3].repeat_interleave(lengths, 0).sin()


def counts(x: torch.Tensor, lengths: torch.Tensor) -> Any:
    return torch.bincount(lengths) * 2


def from_item(x: torch.Tensor, lengths: torch.Tensor) -> Any:
    n = lengths[0].item()
    return x[:n].exp(), torch.zeros(int(lengths[1]), 3) + x[0], n


def without_gradients(x: torch.Tensor, lengths: torch.Tensor) -> Any:
    with torch.no_grad():
        places = (x > 0).nonzero()[:, 0]
    return x[places].sin().sum()


def mutated(x: torch.Tensor, lengths: torch.Tensor) -> Any:
    y = x * 2
    y[y > 1] += 1
    y.add_(y[y > 0].sum())
    return y


def of_autocast(x: torch.Tensor, lengths: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rows = x.view(8, 2)
        return rows[rows[:, 0] > 0] @ torch.ones(2, 3)


ONE_GRAPH = [
    masked,
    nonzero,
    tuple_of_places,
    selected,
    unique,
    consecutive,
    unique_rows,
    of_library,
    written_back,
    size_returned,
    repeated,
    counts,
    from_item,
    without_gradients,
    mutated,
    of_autocast,
]


def split(x: torch.Tensor, lengths: torch.Tensor) -> Any:
    return [part.sum() * place for place, part in enumerate(x.split(lengths.tolist()))]


def none_left(x: torch.Tensor, lengths: torch.Tensor) -> Any:
    kept = x[x > 0]
    if kept.shape[0] == 0:
        return x.sum() * 0
    return kept.mean()


def more_than_five(x: torch.Tensor, lengths: torch.Tensor) -> Any:
    kept = x[x > 0]
    return kept[:5].sin() if kept.shape[0] > 5 else kept.cos()


def at_most_three(x: torch.Tensor, lengths: torch.Tensor) -> Any:
    kept = x[x > 0]
    return kept.topk(min(kept.shape[0], 3))[0]


def squeezed(x: torch.Tensor, lengths: torch.Tensor) -> Any:
    kept = x[x > 0].squeeze()
    return kept.sum() * (kept.dim() + 1)  # another number of dimensions for one


def largest(x: torch.Tensor, lengths: torch.Tensor) -> Any:
    kept = x[x > 0]
    return kept.max() if kept.numel() else x.min()


def raised(x: torch.Tensor, lengths: torch.Tensor) -> Any:
    return x[x > 0].max()  # of none there is no largest


def of_known_sum(x: torch.Tensor, lengths: torch.Tensor) -> Any:
    return torch.cat([x[x > 0], x[x <= 0]]).view(4, -1).softmax(-1)


def strides_asked(x: torch.Tensor, lengths: torch.Tensor) -> Any:
    kept = x.view(8, 2)[x.view(8, 2)[:, 0] > 0].t()
    return kept.sum() + (1 if kept.is_contiguous() else 2)


def looped(x: torch.Tensor, lengths: torch.Tensor) -> Any:
    total = x.sum()
    for row in range(x[x > 0].shape[0]):
        total = total + row
    return total


SEVERAL = [
    split,
    none_left,
    more_than_five,
    at_most_three,
    squeezed,
    largest,
    raised,
    of_known_sum,
    strides_asked,
    looped,
    made_of_size,
]

CALLS = [
    (8, (4, 5, 7)),
    (3, (1, 7, 8)),
    (1, (0, 3, 13)),
    (0, (6, 0, 10)),
    (8, (3, 1, 12)),
    (7, (16, 0, 0)),
    (16, (2, 2, 12)),
    (2, (5, 5, 6)),
]


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """What is counted inside the block, once it is left."""
    before, found = Counter(smelt.counters), Counter[str]()
    yield found
    found.update(Counter(smelt.counters))
    found.subtract(before)


def _inputs(positive: int, lengths: tuple[int, ...], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    x = torch.full((16,), -1.0)
    x[:positive] = torch.rand(positive) + 0.1
    x = (x + torch.rand(16) * 0.01)[torch.randperm(16)]
    return x.contiguous().requires_grad_(), torch.tensor(lengths)


def _outcome(function: Callable[..., Any], given: tuple[torch.Tensor, torch.Tensor]) -> Any:
    """Results, with the gradients that follow; or the kind of error."""
    try:
        found = function(*given)
    except (RuntimeError, IndexError) as error:
        return (type(error), str(error)),
    results = found if isinstance(found, tuple | list) else (found,)
    grown = [each.float().sum() for each in results if isinstance(each, torch.Tensor) and each.requires_grad]
    if grown:
        torch.stack(grown).sum().backward()
    return [type(each) for each in results], [torch.as_tensor(each).detach() for each in results], given[0].grad


def _same(function: Callable[..., Any], compiled: Callable[..., Any]) -> None:
    for seed, (positive, lengths) in enumerate(CALLS):
        expected = _outcome(function, _inputs(positive, lengths, seed))
        found = _outcome(compiled, _inputs(positive, lengths, seed))
        assert found[0] == expected[0]
        torch.testing.assert_close(found[1:], expected[1:], rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "llvm"])
@pytest.mark.parametrize("function", ONE_GRAPH, ids=lambda function: function.__name__)
def test_one_graph_is_captured_once_for_none_one_and_many(function: Callable[..., Any], backend: str) -> None:
    compiled = smelt.compile(function, fullgraph=True, backend=backend)
    with counted() as counts:
        _same(function, compiled)
    assert counts["graphs"] == 1
    assert counts["graph_breaks"] == counts["recompiles"] == counts["frames_skipped"] == 0


@pytest.mark.parametrize("backend", ["eager", "llvm"])
@pytest.mark.parametrize("function", SEVERAL, ids=lambda function: function.__name__)
def test_what_depends_on_such_a_size_is_right_whatever_it_is(function: Callable[..., Any], backend: str) -> None:
    _same(function, smelt.compile(function, fullgraph=True, backend=backend))


def test_a_branch_on_such_a_size_has_a_graph_for_each_way() -> None:
    compiled = smelt.compile(none_left, fullgraph=True, backend="eager")
    with counted() as counts:
        for _ in range(3):
            _same(none_left, compiled)
    assert counts["graphs"] == 2 and counts["graph_breaks"] == 0


def test_many_sizes_are_one_compilation() -> None:
    compiled = smelt.compile(masked, fullgraph=True)
    compiled(*_inputs(8, (1, 1, 1), 0))
    with counted() as counts:
        for positive in (2, 3, 5, 9, 16):
            compiled(*_inputs(positive, (1, 1, 1), positive))
    assert counts["graphs"] == counts["sizes_traced"] == counts["sizes_compiled"] == counts["kernels_built"] == 0


def test_inputs_are_as_they_were_where_another_graph_takes_over() -> None:
    def function(x: torch.Tensor, log: list[int]) -> torch.Tensor:
        x.add_(1)
        log.append(1)
        kept = x[x > 0]
        if kept.shape[0] > 3:
            x.mul_(2)
        return x + torch.rand(1)

    compiled = smelt.compile(function, fullgraph=True)
    for positive in (8, 2, 8, 0, 1):
        ways = []
        for run in (function, compiled):
            x, log = torch.full((12,), -3.0), [0]
            x[:positive] = 2.0
            torch.manual_seed(positive)
            ways.append((run(x, log), x, log))
        torch.testing.assert_close(ways[0], ways[1])


def test_dynamic_inputs_and_sizes_of_data_go_together() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        kept = x[x[:, 0] > 0]
        return kept * (kept.shape[0] / x.shape[0]) if kept.shape[0] < x.shape[0] - 1 else kept.sum(0, keepdim=True)

    compiled = smelt.compile(function, fullgraph=True)
    for rows in (4, 6, 7, 9, 12, 3, 2):
        for seed in range(3):
            torch.manual_seed(seed)
            x = torch.randn(rows, 3)
            torch.testing.assert_close(compiled(x), function(x))


def test_after_many_kinds_of_sizes_python_runs_the_others() -> None:
    compiled = smelt.compile(looped, fullgraph=True, backend="eager")
    with counted() as counts:
        for positive in range(16):
            given = _inputs(positive, (1, 1, 1), positive)
            torch.testing.assert_close(compiled(*given), looped(*given))
    assert counts["graphs"] <= 9


def test_a_branch_on_a_value_still_breaks() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0] if x.sum() > 0 else x

    with pytest.raises(GraphBreakError, match="B003"):
        smelt.compile(function, fullgraph=True)(torch.ones(3))


def test_a_custom_backend_is_given_the_whole_graph() -> None:
    graphs: list[Any] = []

    def backend(module: Any, inputs: Any) -> Any:
        module.graph.eliminate_dead_code()
        module.recompile()
        graphs.append(module)
        return module.forward

    _same(none_left, smelt.compile(none_left, fullgraph=True, backend=backend))
    assert len(graphs) == 2
