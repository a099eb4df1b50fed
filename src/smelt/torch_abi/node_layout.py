"""Where PyTorch keeps what a node of autograd's graph is, found by experiment.

Python sees a node's edges and what it saved, not its hooks: those of a tensor that is gone, and those that C++ code put
there, are held by the node alone. Nor can Python free what a node saved. `find_layout` makes nodes that differ in known
ways and looks for the places where exactly that difference shows. If any place is missing or ambiguous there is no
layout, backwards are left to the engine, and the reason names every such place. A guess may lead anywhere, so memory is
read by way of the kernel, which says what cannot be read.

    node: table of its class, …, sequence number, …, edges, …, pre-hooks, hooks of its results, …, post-hooks, inputs
"""

import ctypes
import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, TypeVar

import torch

from smelt import _native
from smelt.base.fast_dataclass import dataclass

_WORD = 8
_PAGE = 4096  # the smallest there is
_WORDS = 64  # of a node that are looked at
_RECORD = 32  # of what autograd knows of a leaf
_Place = TypeVar("_Place")
_RELEASE = "_ZN5torch8autograd10CopySlices17release_variablesEv"


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """Byte offsets, as `_native.set_node_layout` takes them."""

    wrapped: int
    python_wrapped: int
    sequence: int
    edges: int
    edge_size: int
    edge_input: int
    pre: int
    tensor_pre: int
    retained: int
    post: int
    inputs: int
    input_size: int
    options: int
    shape: int
    shape_kind: int
    release: int
    pre_class: int
    tensor_pre_class: int
    post_class: int
    body: int  # of a leaf: from Python's object to the tensor, from that to what autograd knows of it, and there the
    record: int  # hooks on its gradient and those on what was added up
    leaf_pre: int
    leaf_post: int
    leaf_post_class: int


@functools.cache
def why_not_read_nodes() -> str | None:
    """Teach the C part where to look, once; or why that cannot be found out."""
    found = _native.sheltered(_found)
    if isinstance(found, str):
        return f"autograd's graph cannot be read in this PyTorch: {found}"
    _native.set_node_layout(python_base=torch._C._FunctionBase, **asdict(found))
    return None


def _found() -> NodeLayout | str:
    with torch._C._InferenceMode(False), torch.enable_grad():
        return find_layout()


def find_layout() -> NodeLayout | str:
    """The layout of this PyTorch's nodes, or what could not be found."""
    if sys.implementation.name != "cpython" or os.name != "posix" or ctypes.sizeof(ctypes.c_void_p) != _WORD:
        return "not a CPython of 64 bits on a POSIX system"
    wrapped = type((torch.ones(3, requires_grad=True) * 2).grad_fn).__basicsize__
    if wrapped not in (24, 32):  # an object's head, and a pointer that counts references one way or the other
        return f"an object for a node holds more than a pointer ({wrapped} bytes)"
    found: dict[str, int] = {"wrapped": 2 * _WORD}
    missing = []
    for find in _FINDERS:
        try:
            found |= find(found)
        except _Missing as error:
            missing.append(str(error))
        except KeyError as needed:
            missing.append(f"what needs {needed} was not looked for")
        except OSError as error:
            return f"memory cannot be looked at ({error})"
    return "; ".join(missing) if missing else NodeLayout(**found)


class _Missing(Exception):
    """A place that was not found."""


def _find_leaf(found: dict[str, int]) -> dict[str, int]:
    """Where the hooks of a leaf are, which its node asks it for."""
    plain, hooked, later, both = (torch.ones(3, requires_grad=True) for _ in range(4))
    for leaf in (hooked, both):
        leaf.register_hook(lambda gradient: None)  # type: ignore[no-untyped-call]
    for leaf in (later, both):
        leaf.register_post_accumulate_grad_hook(lambda leaf: None)  # type: ignore[no-untyped-call]
    samples = (plain, hooked, later, both)
    heads = [_words(id(t), 5) for t in samples]
    body = _only(
        (place for place in range(2, 5) if all(h[place] == t._cdata for h, t in zip(heads, samples, strict=True))),
        "the tensor inside Python's object",
    )
    pre = [t._backward_hooks for t in (hooked, both)]
    post = [t._post_accumulate_grad_hooks for t in (later, both)]
    bodies = [_words(t._cdata, 8) for t in samples]
    records = {record: [_words(words[record], _RECORD) for words in bodies] for record in range(2, 8)}
    record, place = _only(
        ((record, p) for record, rows in records.items() for p in range(_RECORD - 1) if _holds_hooks(rows, p, pre)),
        "hooks on gradients of leaves",
    )
    classes = ((last, _class_of_later(records[record], last, post)) for last in range(_RECORD))
    last, cls = _only(((p, c) for p, c in classes if c is not None), "hooks of leaves after adding up")
    return {
        "body": body * _WORD,
        "record": record * _WORD,
        "leaf_pre": place * _WORD,
        "leaf_post": last * _WORD,
        "leaf_post_class": cls,
    }


def _holds_hooks(rows: list[list[int]], place: int, dicts: list[Any]) -> bool:
    """Whether a vector is empty in the first and third record, and holds these dicts in the others."""
    if any(rows[number][place] or rows[number][place + 1] for number in (0, 2)):
        return False
    for number, functions in zip((1, 3), dicts, strict=True):
        first, end = rows[number][place : place + 2]
        if end - first != _WORD or _words(_words(first, 1)[0], 2)[1] != id(functions):
            return False
    return True


def _class_of_later(rows: list[list[int]], place: int, dicts: list[Any]) -> int | None:
    """The class of what a pointer leads to, null in the first two records, that holds these dicts in the others."""
    if rows[0][place] or rows[1][place]:
        return None
    held = [_words(rows[number][place], 2) for number in (2, 3)]
    if [words[1] for words in held] != [id(functions) for functions in dicts] or held[0][0] != held[1][0]:
        return None
    return held[0][0]


@functools.cache
def _materializing() -> int | None:
    """The byte of a context that says whether its backward is given zeros for gradients that do not come."""
    contexts: list[Any] = [_pass(torch.ones(1, requires_grad=True)).grad_fn for _ in range(4)]
    for context, materializes in zip(contexts, (True, False, True, False), strict=True):
        context.set_materialize_grads(materializes)
    rows = [ctypes.string_at(id(context), type(context).__basicsize__) for context in contexts]
    found = [place for place in range(len(rows[0])) if [row[place] for row in rows] == [1, 0, 1, 0]]
    return found[0] if len(found) == 1 else None


def materializes(context: Any) -> bool | None:
    """Whether a `torch.autograd.Function` wants zeros for gradients that do not come; None if that cannot be told."""
    place = _materializing()
    return None if place is None else bool(ctypes.string_at(id(context) + place, 1)[0])


def address_of(node: Any) -> int:
    """Where the node lies that a Python object of a C++ node stands for."""
    return ctypes.c_uint64.from_address(id(node) + 2 * _WORD).value


def _find_hooks(kind: str, found: dict[str, int]) -> dict[str, int]:
    """The vector that holds hooks of a kind, and the class of those that hold a dict of Python functions."""
    plain, hooked, twice = (_leaf() * 2 for _ in range(3))
    dicts = []
    for tensor in (hooked, twice):
        if kind == "tensor_pre":
            tensor.register_hook(lambda gradient: None)  # type: ignore[no-untyped-call]
            dicts.append(tensor._backward_hooks)
        else:
            node: Any = tensor.grad_fn
            register = node.register_prehook if kind == "pre" else node.register_hook
            dicts.append(register(lambda *gradients: None).hooks_dict_ref())
    nothing, one, other = (_words(address_of(tensor.grad_fn), _WORDS) for tensor in (plain, hooked, twice))
    rows = [nothing, one, nothing, other]
    places = (place for place in range(_WORDS - 1) if _holds_hooks(rows, place, dicts))
    place = _only(places, f"{kind}-hooks of nodes")
    classes = {_words(_words(words[place], 1)[0], 1)[0] for words in (one, other)}
    return {kind: place * _WORD, f"{kind}_class": _only(classes, f"the class of {kind}-hooks")}


def _find_retained(found: dict[str, int]) -> dict[str, int]:
    """How many of a node's results retain their gradient."""
    counts = []
    for retained in range(4):
        parts = torch.ones(4, 3, requires_grad=True).mul(1).unbind()
        for part in parts[:retained]:
            part.retain_grad()
        counts.append(_words(address_of(parts[0].grad_fn), _WORDS))
    places = (place for place in range(_WORDS) if [words[place] for words in counts] == [0, 1, 2, 3])
    return {"retained": _only(places, "retained gradients") * _WORD}


def _find_sequence(found: dict[str, int]) -> dict[str, int]:
    samples: list[Any] = [(_leaf() * 2).grad_fn for _ in range(3)]
    rows = [(_words(address_of(node), _WORDS), node._sequence_nr()) for node in samples]
    places = (place for place in range(_WORDS) if all(words[place] == number for words, number in rows))
    return {"sequence": _only(places, "numbers of nodes") * _WORD}


def _find_edges(found: dict[str, int]) -> dict[str, int]:
    """The vector of edges, the size of one, and where in it the number of the input lies."""
    parts = (_leaf() * 2).unbind()
    sums = [parts[2] + parts[1], torch.stack([parts[0], parts[2], parts[1], parts[2]])]
    before = address_of(parts[0].grad_fn)
    fitting = (
        (place, size)
        for size in (16, 24)
        for place in range(_WORDS - 1)
        if all(_has_edges(tensor.grad_fn, place, size, before) for tensor in sums)
    )
    place, size = _only(fitting, "edges")
    return {"edges": place * _WORD, "edge_size": size, "edge_input": size - _WORD}


def _has_edges(node: Any, place: int, size: int, before: int) -> bool:
    wanted = [number for _, number in node.next_functions]
    words = _words(address_of(node), _WORDS)
    first, last = words[place], words[place + 1]
    if last - first != size * len(wanted):
        return False
    step = size // _WORD
    edges = _words(first, step * len(wanted))
    numbers = [edges[step * number + step - 1] & 0xFFFFFFFF for number in range(len(wanted))]
    return all(edges[step * number] == before for number in range(len(wanted))) and numbers == wanted


def _find_inputs(found: dict[str, int]) -> dict[str, int]:
    """The vector of inputs, the size of one, where in it the sizes lie and what tells that they are sizes."""
    node: Any = torch.ones(3, 5, 7, requires_grad=True).mul(1).unbind()[0].grad_fn
    words = _words(address_of(node), _WORDS)
    fitting = set()
    for place in range(_WORDS - 1):
        if words[place + 1] & 0xFFFFFFFF != 3:
            continue
        first = words[place]
        inside = _words(first, 48)
        for shape in range(8):  # the sizes lie beside the pointer to them and their number
            step = next((s for s in range(shape + 7, 20) if _is_shape(inside, first, shape + s)), None)
            if _is_shape(inside, first, shape) and step and _is_shape(inside, first, shape + 2 * step):
                fitting.add((place * _WORD, step * _WORD, shape * _WORD))
    inputs, size, shape = _only(fitting, "inputs of nodes")
    kind = _find_shape_kind(inputs, shape)
    return {"inputs": inputs, "input_size": size, "shape": shape, "shape_kind": kind}


def _is_shape(words: list[int], first: int, place: int) -> bool:
    beside = first + (place + 2) * _WORD
    return words[place] == beside and words[place + 1] & 0xFFFFFFFF == 2 and words[place + 2 : place + 4] == [5, 7]


def _find_shape_kind(inputs: int, shape: int) -> int:
    """A nested tensor has a tensor of sizes: the byte behind the place for sizes says so."""
    plain: Any = torch.ones(2, 3, requires_grad=True).mul(1).grad_fn
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are said to be a prototype
        nested: Any = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], requires_grad=True).mul(1).grad_fn
    rows = [_words(_words(address_of(node) + inputs, 1)[0] + shape, 10) for node in (plain, nested)]
    places = (place for place in range(7, 10) if [row[place] & 0xFF for row in rows] == [0, 1])
    return shape + _only(places, "the kind of sizes") * _WORD


def _find_options(found: dict[str, int]) -> dict[str, int]:
    """The word of dtype, device and layout: it differs where one of them does, and nowhere else."""
    tensors = [torch.ones(2, 3, requires_grad=True), torch.ones(5, requires_grad=True)]
    others = [torch.ones(2, dtype=dtype, requires_grad=True) for dtype in (torch.float64, torch.bfloat16)]
    others += [torch.ones(2, 3, device="meta", requires_grad=True), torch.ones(2, 3).to_sparse().requires_grad_()]

    inputs, size = found["inputs"], found["input_size"] // _WORD

    def words(tensor: torch.Tensor) -> list[int]:
        return _words(_words(address_of(tensor.unsqueeze(0).grad_fn) + inputs, 1)[0], size)

    alike, different = [words(tensor) for tensor in tensors], [words(tensor) for tensor in others]

    def tells(place: int) -> bool:
        kinds = {row[place] for row in different}
        return len({row[place] for row in alike}) == 1 and len(kinds) == len(others) and alike[0][place] not in kinds

    places = (place for place in range(found["shape"] // _WORD) if tells(place))
    return {"options": _only(places, "dtypes of inputs") * _WORD}


def _find_python_node(found: dict[str, int]) -> dict[str, int]:
    """Where the object for a node that is written in Python points to it."""
    wrappers = [_pass(_leaf()) for _ in range(3)]
    rows = []
    for tensor in wrappers:
        after = tensor * 2
        node = _words(_words(address_of(after.grad_fn) + found["edges"], 1)[0], 1)[0]
        size = type(tensor.grad_fn).__basicsize__ // _WORD
        rows.append((_words(id(tensor.grad_fn), size), node))
    places = (place for place in range(len(rows[0][0])) if all(words[place] == node for words, node in rows))
    return {"python_wrapped": _only(places, "nodes written in Python") * _WORD}


def _find_release(found: dict[str, int]) -> dict[str, int]:
    """The place of `release_variables` in the tables of classes: PyTorch exports that of one class."""
    try:
        exported = ctypes.cast(getattr(ctypes.CDLL(torch._C.__file__), _RELEASE), ctypes.c_void_p).value
    except (AttributeError, OSError):
        raise _Missing(f"how nodes are released: {_RELEASE} is not exported") from None
    base = torch.ones(3, requires_grad=True) * 2
    base[0].mul_(2)
    table = _words(_words(address_of(base.grad_fn), 1)[0], 24)
    places = (place for place, function in enumerate(table) if function == exported)
    return {"release": _only(places, "how nodes are released")}


_FINDERS: tuple[Callable[[dict[str, int]], dict[str, int]], ...] = (
    *(functools.partial(_find_hooks, kind) for kind in ("tensor_pre", "pre", "post")),
    _find_sequence,
    _find_retained,
    _find_edges,
    _find_python_node,  # knows a node by an edge to it
    _find_inputs,
    _find_options,
    _find_release,
    _find_leaf,
)


def _leaf() -> torch.Tensor:
    return torch.ones(3, requires_grad=True)


class _Passing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


_pass: Callable[[torch.Tensor], Any] = _Passing.apply


def _words(address: int, count: int) -> list[int]:
    """Words of memory, -1 for each that cannot be read."""
    words: list[int] = []
    while len(words) < count:
        at = address + len(words) * _WORD
        piece = min(count - len(words), max(1, (_PAGE - at % _PAGE) // _WORD))
        words += _piece(at, piece) or [-1] * piece
    return words


def _piece(address: int, count: int) -> list[int] | None:
    """Words on one page: what the kernel can copy into a pipe can be read, and anything else only fails."""
    source, sink = os.pipe()
    try:
        written = _write(sink, ctypes.c_void_p(address), count * _WORD)
        return list(memoryview(os.read(source, written)).cast("Q")) if written == count * _WORD else None
    finally:
        os.close(source)
        os.close(sink)


def _write(file: int, memory: ctypes.c_void_p, size: int) -> int:
    return int(ctypes.PyDLL(None).write(file, memory, size))


def _only(places: Iterable[_Place], what: str) -> _Place:
    """The one place found."""
    found = list(places)
    if len(found) != 1:
        raise _Missing(f"{what}: {len(found)} places fit")
    return found[0]
