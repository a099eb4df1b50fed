"""Worlds that change between calls, held against plain Python: what a captured function read may be another next."""

from collections import Counter

import pytest

from tests.capture.mutations.campaign import report
from tests.capture.mutations.running import verdict
from tests.capture.mutations.story import ROUNDS, story_of

STORIES = 60


def test_a_changed_world_is_seen() -> None:
    # The same stories every time, so that a change is judged by itself; `make test-worlds` tells others.
    totals: Counter[str] = Counter()
    for seed in range(STORIES):
        story = story_of(seed)
        found = verdict(story)
        if found.failure is not None:
            pytest.fail(report(story, f"story {seed}"), pytrace=False)
        totals.update(calls=found.calls, graphs=found.graphs, again=found.recompiles, raised=found.raised)
    assert totals["calls"] >= STORIES * ROUNDS
    for kind in ("graphs", "again", "raised"):
        assert totals[kind] >= STORIES // 2, totals
