"""Minimum cut by maximum flow (Dinic): which edges to cut, at least total capacity, to separate source from sink.

    network = Network(); a = network.vertex(); ...
    network.edge(network.source, a, 5); network.edge(a, network.sink, 3)
    network.cut() → the vertices on the source's side, here {source, a}

Of several minimum cuts, the one nearest the sink is taken: what does not have to be on the sink's side is not.
"""

from collections import deque

INFINITE = 1 << 62


class Network:
    """A directed network with integer capacities. Edge `e` and its reverse `e ^ 1` are adjacent."""

    def __init__(self) -> None:
        self._heads: list[list[int]] = []
        self._to: list[int] = []
        self._left: list[int] = []
        self.source = self.vertex()
        self.sink = self.vertex()

    def vertex(self) -> int:
        self._heads.append([])
        return len(self._heads) - 1

    def edge(self, start: int, end: int, capacity: int) -> None:
        for origin, target, left in ((start, end, capacity), (end, start, 0)):
            self._heads[origin].append(len(self._to))
            self._to.append(target)
            self._left.append(left)

    def cut(self) -> set[int]:
        """Push as much flow as fits; the source's side of the minimum cut nearest the sink."""
        while (levels := self._levels())[self.sink] >= 0:
            following = [0] * len(self._heads)
            while self._push_one_path(levels, following):
                pass
        beyond = self._reaching_sink()
        return {vertex for vertex in range(len(self._heads)) if vertex not in beyond}

    def _levels(self) -> list[int]:
        heads, to, left = self._heads, self._to, self._left
        levels = [-1] * len(heads)
        levels[self.source] = 0
        queue = deque([self.source])
        while queue:
            vertex = queue.popleft()
            level = levels[vertex] + 1
            for edge in heads[vertex]:
                target = to[edge]
                if levels[target] < 0 and left[edge] > 0:
                    levels[target] = level
                    queue.append(target)
        return levels

    def _push_one_path(self, levels: list[int], following: list[int]) -> bool:
        """One augmenting path along rising levels; `following` remembers edges that lead nowhere in this phase."""
        to, left = self._to, self._left
        path: list[int] = []
        vertex = self.source
        while vertex != self.sink:
            edges, level = self._heads[vertex], levels[vertex] + 1
            for place in range(following[vertex], len(edges)):
                edge = edges[place]
                if levels[to[edge]] == level and left[edge] > 0:
                    following[vertex] = place
                    path.append(edge)
                    vertex = to[edge]
                    break
            else:
                following[vertex] = len(edges)
                if not path:
                    return False
                vertex = to[path.pop() ^ 1]
                following[vertex] += 1
        amount = min([left[edge] for edge in path])
        for edge in path:
            left[edge] -= amount
            left[edge ^ 1] += amount
        return True

    def _reaching_sink(self) -> set[int]:
        reaching = {self.sink}
        queue = deque([self.sink])
        while queue:
            vertex = queue.popleft()
            for edge in self._heads[vertex]:
                origin = self._to[edge]
                if self._left[edge ^ 1] > 0 and origin not in reaching:
                    reaching.add(origin)
                    queue.append(origin)
        return reaching
