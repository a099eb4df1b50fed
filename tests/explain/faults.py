"""Fusions made wrong on purpose, for tests of the tools that find them."""

from typing import Any

import pytest

from smelt.fuse import greedy_fusion


def swap_subtractions_merged_with_tanh(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a kernel that takes in `tanh` computes y - x for x - y."""
    merge = greedy_fusion.merge
    swapped: list[Any] = []  # each once: a kernel is merged in several goes

    def wrong(groups: Any, first: Any, second: Any, plan: Any) -> None:
        members = [*first.members, *second.members]
        merge(groups, first, second, plan)
        if any(member.name.startswith("tanh") for member in members):
            for member in members:
                if member.name.startswith("sub") and not any(member is other for other in swapped):
                    swapped.append(member)
                    member.readings = member.readings[::-1]

    monkeypatch.setattr(greedy_fusion, "merge", wrong)
