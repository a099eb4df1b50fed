"""The parts by themselves: where nodes keep things, what kinds of nodes hold, the queue, graphs of any size."""

import ctypes
import mmap
import sys
from typing import Any

import pytest
import torch
from torch import fx

from smelt import _native
from smelt.autograd.engine.generalize_sizes import generalize, split_numbers, with_numbers
from smelt.autograd.engine.read_graph import is_number, read
from smelt.autograd.engine.trace_engine import trace
from smelt.autograd.joint.ready_queue import ReadyQueue
from smelt.ir.backward import Backward, Graph
from smelt.ir.graph import GraphLevel, Traced, outputs
from smelt.pipeline.backward.backward_steps import detached
from smelt.torch_abi import node_kinds, node_layout
from smelt.torch_abi.node_kinds import kind_of
from smelt.torch_abi.node_layout import find_layout, why_not_read_nodes
from smelt.torch_abi.probe import NotFound, try_words
from tests.layout import needs_layout

aten = torch.ops.aten
turn = aten.t.default


def test_the_layout_of_nodes_is_found_and_the_same_each_time() -> None:
    assert find_layout() == find_layout()


def test_every_place_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_layout, "_RELEASE", "no_such_symbol")
    monkeypatch.setattr(node_layout, "_has_edges", lambda *found: False)
    with pytest.raises(NotFound) as missing:
        find_layout()
    assert str(missing.value) == (
        "edges: 0 places fit; what needs 'edges' was not looked for; "
        "how nodes are released: no_such_symbol is not exported"
    )


def test_a_guess_that_leads_nowhere_only_fails() -> None:
    assert try_words(8, 2) == [-1, -1]
    page = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    first = ctypes.addressof(ctypes.c_char.from_buffer(page))
    reserved = ctypes.CDLL(None).mprotect
    reserved.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    page[mmap.PAGESIZE - 8 : mmap.PAGESIZE] = (7).to_bytes(8, sys.byteorder)
    assert reserved(first + mmap.PAGESIZE, mmap.PAGESIZE, 0) == 0
    try:
        assert try_words(first + mmap.PAGESIZE - 8, 2) == [7, -1]
        assert try_words(first + mmap.PAGESIZE - 4, 1) == [-1]
    finally:
        reserved(first + mmap.PAGESIZE, mmap.PAGESIZE, 3)


@needs_layout
def test_hooks_of_a_tensor_that_is_gone_are_seen() -> None:
    assert why_not_read_nodes() is None
    x = torch.randn(3, requires_grad=True)
    hidden = x * 2
    seen: list[Any] = []
    hidden.register_hook(seen.append)
    result = hidden.sin()
    del hidden
    reading = read((result.grad_fn,))
    names = [node.name() for node in reading.nodes]
    found, retained = reading.hooks(names.index("MulBackward0"))
    assert retained == 0
    assert [(kind, list(functions.values()), index) for kind, functions, index in found] == [
        ("tensor_pre_hook", [seen.append], 0)
    ]
    assert reading.hooks(names.index("SinBackward0")) == ([], 0)


@needs_layout
def test_hooks_of_leaves_are_seen() -> None:
    assert why_not_read_nodes() is None
    leaf = torch.randn(3, requires_grad=True)
    assert _native.leaf_hooks(leaf) == []
    leaf.register_hook(print)
    leaf.register_post_accumulate_grad_hook(print)
    assert [(kind, list(functions.values())) for kind, functions, _ in _native.leaf_hooks(leaf)] == [
        ("tensor_pre_hook", [print]),
        ("post_accumulate_grad_hook", [print]),
    ]


def test_a_kind_that_hides_what_matters_is_left_whole() -> None:
    x = torch.randn(4, 3, requires_grad=True)
    product = kind_of((x @ x.t()).grad_fn)
    assert product.whole is None and "_saved_self" in product.tensors
    compiled = kind_of(torch.cat([x, x]).grad_fn)
    assert compiled.whole is None and compiled.all_edges
    strided = kind_of(x.as_strided((2, 2), (1, 2)).grad_fn)
    assert strided.whole is not None and "self_geometry" in strided.whole


def test_without_the_header_no_kind_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_kinds, "_header", lambda: "")
    product = torch.ones(1, requires_grad=True) * 2
    assert node_kinds._kind_of_class.__wrapped__(type(product.grad_fn)).whole is not None


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        ((torch.ones(1, requires_grad=True) * 2.5).grad_fn._saved_other, True),  # type: ignore[union-attr]
        ((torch.ones(1, requires_grad=True) * 2).grad_fn._saved_other, True),  # type: ignore[union-attr]
        (torch.tensor(2.5), False),
        (torch.tensor(2.5, dtype=torch.float64), False),
        (torch.tensor(2), False),
    ],
)
def test_numbers_are_told_from_tensors(tensor: torch.Tensor, expected: bool) -> None:
    assert is_number(tensor) is expected


def test_the_queue_takes_the_latest_first() -> None:
    queue = ReadyQueue()
    for node, number in enumerate([5, 3, 9, 1, 7]):
        queue.push(node, number)
    assert [queue.pop() for _ in range(5)] == [2, 4, 0, 1, 3] and not queue


def captured(size: int) -> tuple[Backward, tuple[int, ...]]:
    assert why_not_read_nodes() is None
    x = torch.randn(size, 3, requires_grad=True)
    loss = x.mean()
    reading = read((loss.grad_fn,))
    backward = trace(reading, ((0, 0),), (torch.ones(()),), None, None, {})
    return backward, split_numbers(reading.key)[1]


@needs_layout
def test_two_sizes_become_a_graph_for_any() -> None:
    (one, its), (other, others) = captured(10), captured(20)
    general = generalize(one, its, other, others)
    assert general is not None
    third, numbers = captured(7)
    values = general.values(numbers)
    assert values is not None and general.becomes(third, values)
    assert not general.becomes(third, [each + 1 for each in values])
    (step,) = [step for step in with_numbers(general).steps if isinstance(step, Graph)]
    module = step.traced.to_module()
    gradient = torch.full((), 42.0)
    assert torch.equal(module(gradient, *values)[0], gradient.expand(7, 3) / 21)


def test_results_are_detached_that_nobody_else_has_the_memory_of() -> None:
    graph = fx.Graph()
    one, other = graph.placeholder("one"), graph.placeholder("other")
    operators = (aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor)
    product, total, further = (graph.call_function(op, (one, other)) for op in operators)
    alone, shared, given, seen = (graph.call_function(turn, (each,)) for each in (product, total, one, further))
    graph.output((alone, total, shared, given, seen))
    step = Graph(Traced(graph, GraphLevel.TORCH), (0, 1), (2, 3, 4, 5, 6))
    made = detached(step, frozenset({2, 3, 4, 5}))
    results = [result.target for result in outputs(made.traced.graph)]
    assert results == [aten.detach.default, aten.add.Tensor, turn, turn, turn]
    assert alone.graph is graph and aten.detach.default not in [node.target for node in graph.nodes]
    values = torch.randn(2, 2), torch.randn(2, 2)
    found, expected = (each.traced.to_module()(*values) for each in (made, step))
    assert all(map(torch.equal, found, expected))
