"""Transposes 4 × 4 blocks in registers: contiguous steps become rows of a panel, and tiles are stored transposed."""

from smelt.codegen.loops.builder import Builder
from smelt.ir.loops import Value

ACROSS = 4  # numbers of a row that are taken at once


def transposed(b: Builder, rows: list[Value]) -> list[Value]:
    """Of four numbers each, one to four rows → four columns."""
    count = len(rows)

    def mixed(left: Value, right: Value, order: list[int]) -> Value:
        return b.permute(left, order, right)

    if count == 1:
        return [b.extract(rows[0], lane) for lane in range(ACROSS)]
    if count == 2:
        return [mixed(rows[0], rows[1], [lane, ACROSS + lane]) for lane in range(ACROSS)]
    if count == 3:
        pairs = [mixed(rows[0], rows[1], [lane, 4 + lane, lane, lane]) for lane in range(ACROSS)]
        return [mixed(pair, rows[2], [0, 1, 4 + lane]) for lane, pair in enumerate(pairs)]
    low = [mixed(rows[0], rows[1], [0, 4, 1, 5]), mixed(rows[2], rows[3], [0, 4, 1, 5])]
    high = [mixed(rows[0], rows[1], [2, 6, 3, 7]), mixed(rows[2], rows[3], [2, 6, 3, 7])]
    return [mixed(half[0], half[1], order) for half in (low, high) for order in ([0, 1, 4, 5], [2, 3, 6, 7])]
