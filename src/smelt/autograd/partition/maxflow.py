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
        while (levels := self._levels())[self.source] >= 0:
            self._push(levels)
        beyond = self._reaching_sink()
        return {vertex for vertex in range(len(self._heads)) if vertex not in beyond}

    def _levels(self) -> list[int]:
        """How many edges each vertex is away from the sink; -1 for those farther away than the source."""
        heads, to, left = self._heads, self._to, self._left
        levels = [-1] * len(heads)
        levels[self.sink] = level = 0
        reached = [self.sink]
        while reached and levels[self.source] < 0:
            level += 1
            before, reached = reached, []
            for vertex in before:
                for edge in heads[vertex]:
                    origin = to[edge]
                    if levels[origin] < 0 and left[edge ^ 1] > 0:
                        levels[origin] = level
                        reached.append(origin)
        return levels

    def _push(self, levels: list[int]) -> None:
        """Flow along falling levels, until no path is left. The next path begins where the last one is full."""
        heads, to, left = self._heads, self._to, self._left
        following = [0] * len(heads)  # edges before these lead nowhere in this phase
        path: list[int] = []
        vertex = self.source
        while True:
            if vertex == self.sink:
                amount = min([left[edge] for edge in path])
                for edge in path:
                    left[edge] -= amount
                    left[edge ^ 1] += amount
                full = next(place for place, edge in enumerate(path) if not left[edge])
                vertex = to[path[full] ^ 1]
                del path[full:]
            edges, level = heads[vertex], levels[vertex] - 1
            for place in range(following[vertex], len(edges)):
                edge = edges[place]
                if left[edge] > 0 and levels[to[edge]] == level:
                    following[vertex] = place
                    path.append(edge)
                    vertex = to[edge]
                    break
            else:
                following[vertex] = len(edges)
                if not path:
                    return
                vertex = to[path.pop() ^ 1]
                following[vertex] += 1

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
