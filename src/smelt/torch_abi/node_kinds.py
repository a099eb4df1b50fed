"""What each kind of node of autograd's graph holds, and whether Python can see all of it.

    AddmmBackward0  →  plain values: alpha, beta, sizes and strides; tensors: mat1, mat2; hidden: two layouts, harmless

A captured backward is run again for another graph of the same shape. That is right only if everything a node computes
with is either compared or fetched anew. PyTorch shows most of what a node saved as attributes; what it does not show is
named in the header that its wheels come with. A kind that holds something unseen that matters is left whole: it is
called, not captured.
"""

import functools
import os
import re
from typing import Any

import torch

from smelt.base.fast_dataclass import dataclass

_HEADER = "include/torch/csrc/autograd/generated/Functions.h"

# Types of hidden members that say nothing new. Each describes one argument of the forward, and formulas use it for the
# gradient of that same argument alone, whose dtype, device and layout the node behind the edge shows. Of lists of
# tensors the number is the number of edges.
_HARMLESS = frozenset({"at::ScalarType", "at::TensorOptions", "at::Layout", "size_t", "::std::vector<at::ScalarType>"})
# Sizes of every tensor in a list. They are known if each has an edge.
_SIZES_OF_LIST = frozenset({"::std::vector<::std::vector<c10::SymInt>>", "::std::vector<::std::vector<int64_t>>"})


@dataclass(frozen=True, slots=True)
class NodeKind:
    """A kind of node; `whole` says why it is not captured."""

    name: str
    plain: tuple[str, ...] = ()  # attributes with numbers, sizes and the like
    tensors: tuple[str, ...] = ()  # attributes with tensors, None or tuples of tensors
    raw: str | None = None  # an attribute that tells whether hooks have packed what was saved
    all_edges: bool = False  # whether the kind is understood only if each of its inputs needs a gradient
    whole: str | None = None


def kind_of(node: Any) -> NodeKind:
    """The kind of a node that is written in C++."""
    cls: Any = type(node)
    return _kind_of_class(cls)


@functools.cache
def _kind_of_class(kind: Any) -> NodeKind:
    name = kind.__name__
    if getattr(torch._C._functions, name, None) is not kind:
        return NodeKind(name, whole=f"nothing is known of {name}")
    members = _members(name)
    if members is None:
        return NodeKind(name, whole=f"what {name} holds is not known")
    shown = [attribute for attribute in dir(kind) if attribute.startswith("_saved_")]
    names = {attribute.removeprefix("_saved_") for attribute in shown}
    hidden = {
        member: cpp for member, cpp in members.items() if member not in names and member.removesuffix("_") not in names
    }
    for member, cpp in hidden.items():
        if cpp not in _HARMLESS and cpp not in _SIZES_OF_LIST:
            return NodeKind(name, whole=f"{name} holds {member}, which cannot be seen")
    tensors = tuple(attribute for attribute in shown if hasattr(kind, attribute.replace("_saved_", "_raw_saved_", 1)))
    return NodeKind(
        name,
        tuple(attribute for attribute in shown if attribute not in tensors),
        tensors,
        tensors[0].replace("_saved_", "_raw_saved_", 1) if tensors else None,
        any(cpp in _SIZES_OF_LIST for cpp in hidden.values()),
    )


@functools.cache
def _header() -> str:
    path = os.path.join(os.path.dirname(torch.__file__), _HEADER)
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def _members(name: str) -> dict[str, str] | None:
    """Member → type, of the class that the header declares for a kind of node."""
    match = re.search(rf"struct (?:TORCH_API )?{name} : public \w+ \{{(.*?)\n\}};", _header(), re.DOTALL)
    if match is None:
        return None
    body = match[1]
    body = body[body.rindex("SwapSavedVariables& saved) override;") :] if "SwapSavedVariables" in body else body
    members = {}
    for line in body.splitlines()[1:]:
        declared = re.fullmatch(r"\s*([\w:<>, ]+?)\s+(\w+)(?:\s*=[^;]*)?;", line)
        if declared is None and line.strip():
            return None  # a declaration this does not understand
        if declared is not None and not declared[2].endswith("_released_"):
            members[declared[2]] = declared[1]
    return members
