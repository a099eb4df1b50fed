"""Object files of functions that many kernels call, such as a product's packing and tiles: compiled once, then linked.

    known_objects(functions, target)   →   {"product.tile.f32.8x12": b"\\x7fELF…", …}, without those nobody has made yet

LLVM takes longer for them than for the kernels that call them, and they are the same in every program. An object is
cached in the process and on disk. It may hold several functions: `link` extracts what is needed.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from smelt import _native
from smelt.base import events, locks
from smelt.codegen.llvm.print_module import SharedFunction, bundle
from smelt.device import Target
from smelt.ir.artifact_file.code import Code, code_section, read_code
from smelt.runtime.cache import CacheFile, open_store

Item = TypeVar("Item")
_MOST = 512  # functions, some kB each
_objects: dict[str, bytes] = {}
_lock = locks.lock()


def known_objects(functions: Mapping[str, SharedFunction], target: Target) -> dict[str, bytes]:
    """The objects of those functions that were made before, by name."""
    objects = {}
    store = open_store()
    for name in functions:
        key = _key(name, functions, target)
        with _native.Held(_lock):
            data = _objects.get(key)
        if data is None and store is not None and (stored := store.get(key)):
            data = read_code(stored.sections[0].data).image
            _keep(key, data)
            events.count("shared_functions_loaded")
        if data is not None:
            objects[name] = data
    return objects


def balanced(items: Iterable[Item], count: int, length: Callable[[Item], int]) -> list[list[Item]]:
    """So many lists of items, about as long as each other."""
    lists: list[list[Item]] = [[] for _ in range(count)]
    lengths = [0] * count
    for item in sorted(items, key=lambda each: -length(each)):
        shortest = lengths.index(min(lengths))
        lists[shortest].append(item)
        lengths[shortest] += length(item)
    return lists


def bundles(missing: Sequence[str], functions: Mapping[str, SharedFunction], most: int) -> list[list[str]]:
    """Names in lists to be made side by side, `most` at most."""
    return balanced(missing, min(most, len(missing)), lambda name: len(functions[name].text))


def bundle_text(names: Iterable[str], functions: Mapping[str, SharedFunction]) -> str:
    return bundle([functions[name] for name in names], functions)


def remember(
    names: Iterable[str], functions: Mapping[str, SharedFunction], target: Target, data: bytes
) -> dict[str, bytes]:
    """Keep the object of functions, here and on disk; the object of each by name."""
    store = open_store()
    for name in names:
        key = _key(name, functions, target)
        _keep(key, data)
        if store is not None:
            store.put(key, CacheFile({}, (code_section(Code(data, (0,))),)))
    return dict.fromkeys(names, data)


def _keep(key: str, data: bytes) -> None:
    with _native.Held(_lock):
        _objects[key] = data
        while len(_objects) > _MOST:
            del _objects[next(iter(_objects))]


def _key(name: str, functions: Mapping[str, SharedFunction], target: Target) -> str:
    """Everything that the object depends on, including the texts of functions it calls, which may be in the same
    object."""
    reached, waiting = {name}, [name]
    while waiting:
        new = functions[waiting.pop()].calls - reached
        reached |= new
        waiting += new
    digest = hashlib.sha256("\n".join(functions[each].text for each in sorted(reached)).encode())
    made_by = (version(), target.triple, target.cpu, target.features)
    return "\n".join(("shared function", name, digest.hexdigest(), *made_by))


def version() -> str:
    """Of llvmlite; an ImportError if it is not there."""
    import llvmlite  # type: ignore[import-untyped]

    return str(llvmlite.__version__)
