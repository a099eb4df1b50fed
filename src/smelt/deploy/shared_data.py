"""Weights that the state machines of a file share: what processors and GPUs read is stored once.

    with_shared_data(table, machine.storages, weights)   →   the table with keys of `weights`, and those with more

Each machine has storages of its own. They are the same where they have the same name and hold the same bytes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy

from smelt.ir.artifact.machine import Storage
from smelt.ir.artifact_file import records as r


def with_shared_data(
    table: r.Table, storages: Sequence[Storage], weights: Mapping[str, Any]
) -> tuple[r.Table, dict[str, Any]]:
    """A table whose registers name the data they hold by keys of the weights that come with it."""
    shared, keys = dict(weights), dict[str, str]()
    seen: Counter[str] = Counter()
    for number, storage in enumerate(storages):
        data = storage.data.numpy()
        key = f"{storage.name} {seen[storage.name]}"  # several of one machine may have one name
        seen[storage.name] += 1
        while key in shared and not numpy.array_equal(shared[key], data):
            key += "'"
        shared[key] = data
        keys[f"storage {number}"] = key
    registers = [each if each.data is None else replace(each, data=keys[each.data]) for each in table.registers]
    return replace(table, registers=tuple(registers)), shared
