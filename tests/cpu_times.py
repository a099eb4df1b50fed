"""The processor time of each test, its child processes included: what a test costs, however busy the machine is.

pytest --cpu-times build/times.txt      a line per test: seconds, a tab, its node id
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

_TICK = os.sysconf("SC_CLK_TCK")


class CpuTimes:
    """The plugin: each process of a run appends to the same file."""

    def __init__(self, file: str) -> None:
        self.file = Path(file)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        start = _tree_seconds(os.getpid())
        result = yield
        seconds = _tree_seconds(os.getpid()) - start
        with self.file.open("a") as out:
            out.write(f"{max(seconds, 0):.2f}\t{item.nodeid}\n")
        return result


def _tree_seconds(process: int) -> float:
    """Seconds that a process, its living descendants and those they have waited for have run."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        children = [
            child
            for task in os.listdir(f"/proc/{process}/task")
            for child in Path(f"/proc/{process}/task/{task}/children").read_text().split()
        ]
    except OSError:  # it has ended meanwhile
        return 0.0
    return sum(map(int, fields[11:15])) / _TICK + sum(_tree_seconds(int(child)) for child in children)
