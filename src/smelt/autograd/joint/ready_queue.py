"""The queue of nodes that are ready to run, in the order in which PyTorch's engine takes them.

The node with the highest sequence number goes first. Leaves all have the same number, so for them the order depends on
the heap algorithm of the C++ standard library. Hooks make that order visible to the program, so it is reproduced.
"""

from collections.abc import Sequence


class ReadyQueue:
    """`push(node, number)`, and `pop()` the node with the highest number."""

    def __init__(self) -> None:
        self.heap: list[tuple[int, int]] = []  # (number, node)

    def push(self, node: int, number: int) -> None:
        self.heap.append((number, node))
        self._rise(len(self.heap) - 1, (number, node))

    def pop(self) -> int:
        heap = self.heap
        first = heap[0]
        last = heap.pop()
        if heap:
            hole, length = 0, len(heap)
            child = 0
            while child < (length - 1) // 2:  # the hole sinks to the bottom, then the last entry rises from there
                child = 2 * (child + 1)
                if heap[child][0] < heap[child - 1][0]:
                    child -= 1
                heap[hole] = heap[child]
                hole = child
            if length % 2 == 0 and child == (length - 2) // 2:
                child = 2 * (child + 1)
                heap[hole] = heap[child - 1]
                hole = child - 1
            self._rise(hole, last)
        return first[1]

    def _rise(self, hole: int, entry: tuple[int, int]) -> None:
        heap = self.heap
        while hole > 0 and heap[(hole - 1) // 2][0] < entry[0]:
            heap[hole] = heap[(hole - 1) // 2]
            hole = (hole - 1) // 2
        heap[hole] = entry

    def __bool__(self) -> bool:
        return bool(self.heap)


def pushed_to_pop(wanted: Sequence[int]) -> list[int]:
    """The order in which to push nodes of equal number, so that they are popped in the wanted order.

    [a, b, c, d]   →   [a, c, b, d]
    """
    ready = ReadyQueue()
    for place in range(len(wanted)):
        ready.push(place, 0)
    pushed = {ready.pop(): node for node in wanted}
    return [pushed[place] for place in range(len(wanted))]
