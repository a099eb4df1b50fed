"""Plain values as JSON and back, exactly: types, the order of dicts, the bits of floats. No pickle, nothing is run.

    (1, 2.0, "x", {"k": [None]}, torch.float32)   →   ["t", 1, ["f", "00…40"], "x", ["m", ["k", ["l", None]]], ["d", …]]

Numbers, strings, None and truth values stand for themselves; all else is a list that begins with its kind. What has no
form here is for whoever calls to say: `other(value)` returns a list whose kind begins with `#`, and is given it back.
"""

import struct
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.immutable_collections import immutable_dict, immutable_list

Other = Callable[[Any], Any]

_ITSELF = (type(None), bool, int, str)
_SEQUENCES: dict[type, str] = {tuple: "t", list: "l", immutable_list: "l", torch.Size: "z"}
_NAMED: dict[type, str] = {torch.dtype: "d", torch.layout: "y", torch.memory_format: "w"}


def encode(value: Any, other: Other) -> Any:
    """The form of a value."""
    kind = type(value)
    if kind in _ITSELF:
        return value
    if kind in _SEQUENCES:
        return [_SEQUENCES[kind], *[each if type(each) in _ITSELF else encode(each, other) for each in value]]
    if kind is float:
        return ["f", struct.pack("<d", value).hex()]
    if kind is complex:
        return ["c", struct.pack("<dd", value.real, value.imag).hex()]
    if kind is dict or kind is immutable_dict:
        return ["m", *[[encode(key, other), encode(each, other)] for key, each in value.items()]]
    if kind is set or kind is frozenset:
        return ["S" if kind is set else "F", *sorted([encode(each, other) for each in value], key=repr)]
    if kind in _NAMED:
        return [_NAMED[kind], str(value).removeprefix("torch.")]
    if kind is torch.device:
        return ["v", str(value)]
    if kind is slice or kind is range:
        return ["s" if kind is slice else "r", *[encode(each, other) for each in (value.start, value.stop, value.step)]]
    if kind is bytes:
        return ["b", value.hex()]
    if value is Ellipsis or value is NotImplemented:
        return ["e" if value is Ellipsis else "n"]
    return other(value)


def decode(form: Any, other: Other) -> Any:
    """The value of a form; raises if it is none."""
    if type(form) is not list:
        return form
    kind = form[0]
    if kind[0] == "#":
        return other(form)
    return _READERS[kind](form, other)


def _items(form: Any, other: Other) -> list[Any]:
    return [each if type(each) is not list else decode(each, other) for each in form[1:]]


def _torch_name(form: Any, kind: type) -> Any:
    value = getattr(torch, form[1])
    if type(value) is not kind:
        raise ValueError(f"torch.{form[1]} is no {kind.__name__}")
    return value


_READERS: dict[str, Callable[[Any, Other], Any]] = {
    "t": lambda form, other: tuple(_items(form, other)),
    "l": _items,
    "z": lambda form, other: torch.Size(_items(form, other)),
    "f": lambda form, other: struct.unpack("<d", bytes.fromhex(form[1]))[0],
    "c": lambda form, other: complex(*struct.unpack("<dd", bytes.fromhex(form[1]))),
    "m": lambda form, other: {decode(key, other): decode(each, other) for key, each in form[1:]},
    "S": lambda form, other: set(_items(form, other)),
    "F": lambda form, other: frozenset(_items(form, other)),
    "d": lambda form, other: _torch_name(form, torch.dtype),
    "y": lambda form, other: _torch_name(form, torch.layout),
    "w": lambda form, other: _torch_name(form, torch.memory_format),
    "v": lambda form, other: torch.device(form[1]),
    "s": lambda form, other: slice(*_items(form, other)),
    "r": lambda form, other: range(*_items(form, other)),
    "b": lambda form, other: bytes.fromhex(form[1]),
    "e": lambda form, other: Ellipsis,
    "n": lambda form, other: NotImplemented,
}
