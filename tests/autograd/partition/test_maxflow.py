"""Minimum cuts against exhaustive search on small networks."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.autograd.partition.maxflow import INFINITE, Network

Edges = list[tuple[int, int, int]]

VERTICES = 6
edges_of = st.lists(
    st.tuples(st.integers(0, VERTICES - 1), st.integers(0, VERTICES - 1), st.integers(1, 9)).filter(
        lambda e: e[0] != e[1]
    ),
    max_size=14,
)


def cost(edges: Edges, side: set[int]) -> int:
    return sum(capacity for start, end, capacity in edges if start in side and end not in side)


def sides() -> list[set[int]]:
    """Every way to part vertex 0 (the source) from vertex 1 (the sink)."""
    rest = range(2, VERTICES)
    return [{0, *chosen} for size in range(VERTICES - 1) for chosen in itertools.combinations(rest, size)]


def built(edges: Edges) -> Network:
    network = Network()
    for _ in range(VERTICES - 2):
        network.vertex()
    for edge in edges:
        network.edge(*edge)
    return network


@settings(max_examples=60, deadline=None)
@given(edges_of)
def test_the_cut_is_minimal_and_nearest_the_sink(edges: Edges) -> None:
    side = built(edges).cut()
    best = min(cost(edges, other) for other in sides())
    assert 0 in side and 1 not in side
    assert cost(edges, side) == best
    assert all(other <= side for other in sides() if cost(edges, other) == best)


def test_infinite_edges_are_not_cut() -> None:
    side = built([(0, 2, INFINITE), (2, 3, 5), (3, 1, INFINITE), (2, 1, 4)]).cut()
    assert side == {0, 2} | {4, 5}
