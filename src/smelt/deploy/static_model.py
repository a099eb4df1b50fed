"""An artifact without a loader: its state machine, kernels and weights in one object file, or a WebAssembly module.

save_static(machine, "build/model", "x86-64-v3")    →   build/model.o, build/model.h
save_static(machine, "build/model", "wasm32")       →   build/model.wasm, model.mjs, model.d.mts and the object
"""

import os
from dataclasses import replace
from pathlib import Path

from smelt.codegen.ahead_of_time import find_target, write_for
from smelt.codegen.static.build import StaticModel, static_model
from smelt.deploy.records import Entries, kernel_places, target_table
from smelt.deploy.shared_data import SharedData
from smelt.ir.artifact.machine import Machine, SizeCheck

_SUFFIXES = (".o", ".h", ".wasm", ".mjs")


def static_model_of(machine: Machine, target_name: str, name: str | None = None) -> StaticModel:
    """The object of a machine for one target, and what is told of it."""
    target = find_target(target_name)
    places = kernel_places(machine)
    module = write_for(list(places.values()), target, prefix="k")
    entries: Entries = dict(zip(places, module.entries, strict=True))
    data = SharedData()
    table, symbols = target_table(_checking(machine, entries), entries, data.places(machine))
    by_symbol = {entry.symbol: number for number, entry in enumerate(module.entries)}
    kernels = [by_symbol[each] for each in symbols]
    return static_model(name or machine.name, table, data.weights, data.state, module, target, kernels=kernels)


def _checking(machine: Machine, entries: Entries) -> Machine:
    """With checks of what the code relies on of sizes: that may be more than the machine checks, which was made for
    other targets. Sizes of which it does not hold have no variant then."""
    facts: dict[tuple[int, int], dict[SizeCheck, None]] = {}
    for (of, place, _), entry in entries.items():
        facts.setdefault((of, place), {}).update(dict.fromkeys(map(SizeCheck, entry.facts)))
    states = []
    for number, state in enumerate(machine.states):
        variants = []
        for place, variant in enumerate(state.variants):
            checks = tuple(dict.fromkeys((*variant.checks, *facts.get((number, place), ()))))
            variants.append(replace(variant, checks=checks))
        states.append(replace(state, variants=tuple(variants)))
    return replace(machine, states=tuple(states))


def save_static(machine: Machine, path: str | os.PathLike[str], target_name: str = "host") -> tuple[Path, ...]:
    """Write the files, whose names are `path` with their suffixes; functions are named after its last part."""
    base = Path(path)
    if base.suffix in _SUFFIXES:
        base = base.with_suffix("")
    model = static_model_of(machine, target_name, base.name)
    files: dict[str, bytes] = {".o": model.object, ".h": model.header.encode()}
    if model.module is not None and model.javascript is not None and model.types is not None:
        files |= {".wasm": model.module, ".mjs": model.javascript.encode(), ".d.mts": model.types.encode()}
    written = []
    for suffix, content in files.items():
        written.append(base.with_name(base.name + suffix))
        written[-1].write_bytes(content)
    return tuple(written)
