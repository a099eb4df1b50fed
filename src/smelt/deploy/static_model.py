"""An artifact without a loader: its state machine, kernels and weights in one object file, or a WebAssembly module.

    save_static(machine, "build/model", "x86-64-v3")    →   build/model.o, build/model.h
    save_static(machine, "build/model", "wasm32")       →   build/model.wasm, build/model.mjs and the object
"""

import os
from pathlib import Path

from smelt.codegen.ahead_of_time import find_target, write_for
from smelt.codegen.static.build import StaticModel, static_model
from smelt.deploy.records import Entries, kernel_places, target_table
from smelt.ir.artifact.machine import Machine


def static_model_of(machine: Machine, target_name: str, name: str | None = None) -> StaticModel:
    """The object of a machine for one target, and what is told of it."""
    target = find_target(target_name)
    places = kernel_places(machine)
    module = write_for(list(places.values()), target, prefix="k")
    entries: Entries = dict(zip(places, module.entries, strict=True))
    table, symbols = target_table(machine, entries)
    by_symbol = {entry.symbol: number for number, entry in enumerate(module.entries)}
    weights = {f"storage {number}": each.data.numpy() for number, each in enumerate(machine.storages)}
    return static_model(
        name or machine.name, table, weights, module, target, kernels=[by_symbol[each] for each in symbols]
    )


def save_static(machine: Machine, path: str | os.PathLike[str], target_name: str = "host") -> tuple[Path, ...]:
    """Write the files, whose names begin with `path`; functions are named after its last part."""
    base = Path(path)
    made = static_model_of(machine, target_name, base.name)
    files: dict[str, bytes] = {".o": made.object, ".h": made.header.encode()}
    if made.module is not None and made.javascript is not None:
        files |= {".wasm": made.module, ".mjs": made.javascript.encode()}
    written = []
    for suffix, content in files.items():
        written.append(base.with_name(base.name + suffix))
        written[-1].write_bytes(content)
    return tuple(written)
