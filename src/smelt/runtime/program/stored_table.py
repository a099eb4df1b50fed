"""Flat tables in files: which of their objects the table itself names, and finding those in another process.

    stored_objects(flat)              (None, None, ("out",), …)    None: a kernel, a function, a dtype or a device
    restored(table, plain, launch)    the objects, with what the table names found by those names
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from smelt.ir import serialize
from smelt.ir.table.read import TableReader
from smelt.runtime.program.flatten import FlatTable, function_of

Launch = Callable[[str, str], Any]  # what launches a kernel, by its name and its target's


def stored_objects(flat: FlatTable) -> tuple[Any, ...]:
    """The objects that are stored beside a table."""
    objects = list(flat.objects)
    for place, _ in _named_objects(TableReader(flat.table), lambda name, target: None):
        objects[place] = None
    return tuple(objects)


def restored(table: bytes, plain: Sequence[Any], launch: Launch) -> FlatTable:
    """A table as it was stored, with all of its objects."""
    objects = list(plain)
    for place, find in _named_objects(TableReader(table), launch):
        objects[place] = find()
    return FlatTable(table, tuple(objects))


def _named_objects(reader: TableReader, launch: Launch) -> Iterator[tuple[int, Callable[[], Any]]]:
    """The objects that a table names: where each is, and how it is found."""
    strings = reader.strings
    for dtype in reader.rows("dtypes"):
        yield dtype.object, partial(_dtype, strings[dtype.name])
    for device in reader.rows("devices"):
        yield device.object, partial(torch.device, strings[device.name])
    for kernel in reader.rows("kernels"):
        yield kernel.object, partial(launch, strings[kernel.name], strings[kernel.target])
    functions = {call.function: strings[call.name] for call in reader.rows("calls")}
    for place, name in functions.items():
        yield place, partial(_function, name)


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name} is no dtype")
    return dtype


def _function(name: str) -> Callable[..., Any]:
    """What calls an operator, "aten::mm.out" for example."""
    namespace, _, rest = name.partition("::")
    plain, _, overload = rest.partition(".")
    op = serialize.operator(["#o", namespace, plain, overload or "default"])
    return function_of(op)
