"""Circles among values that are made of each other.

    circles([p, q, r], makers)   →   [p], [q, r]     q is made of r, and r of p and q

Each comes after those that it is made of.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

_Value = TypeVar("_Value", bound=Hashable)


def circles(values: Iterable[_Value], makers: Callable[[_Value], Iterable[_Value]]) -> Iterator[list[_Value]]:
    """The strongly connected components, by Tarjan's algorithm without recursion."""
    number: dict[_Value, int] = {}
    lowest: dict[_Value, int] = {}
    open_values: list[_Value] = []
    is_open: set[_Value] = set()
    for start in values:
        if start in number:
            continue
        path: list[tuple[_Value, Iterator[_Value]]] = [(start, iter(makers(start)))]
        number[start] = lowest[start] = len(number)
        open_values.append(start)
        is_open.add(start)
        while path:
            value, rest = path[-1]
            maker = next((each for each in rest if each not in number or each in is_open), None)
            if maker is None:
                path.pop()
                if path:
                    above = path[-1][0]
                    lowest[above] = min(lowest[above], lowest[value])
                if lowest[value] == number[value]:
                    place = open_values.index(value)
                    circle = open_values[place:]
                    del open_values[place:]
                    is_open.difference_update(circle)
                    yield circle
            elif maker in number:
                lowest[value] = min(lowest[value], number[maker])
            else:
                number[maker] = lowest[maker] = len(number)
                open_values.append(maker)
                is_open.add(maker)
                path.append((maker, iter(makers(maker))))
