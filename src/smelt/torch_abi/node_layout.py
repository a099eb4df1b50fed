"""Where PyTorch keeps what a node of autograd's graph is, found by experiment.

Python sees a node's edges and what it saved, not its hooks: those of a tensor that is gone, and those that C++ code put
there, are held by the node alone. Nor can Python free what a node saved. `find_layout` makes nodes that differ in known
ways and finds the places by the differences (`torch_abi/probe.py`). If any place is missing or ambiguous there is no
layout, backwards run in the engine, and the reason names every such place.

    node: table of its class, …, sequence number, …, edges, …, pre-hooks, hooks of its results, …, post-hooks, inputs
"""

import functools
import warnings
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from smelt import _native
from smelt.base.fast_dataclass import dataclass
from smelt.torch_abi.probe import (
    WORD,
    Experiment,
    NotFound,
    find_body,
    find_place,
    only,
    read_bytes,
    read_words,
    try_words,
    why_not_probe,
)
from smelt.torch_abi.symbols import find_in_bindings, find_symbol

_WORDS = 64  # of a node that are looked at
_RECORD = 32  # of what autograd knows of a leaf
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


def why_not_read_nodes() -> str | None:
    """Teach the C part where to look, once; or why that cannot be found out."""
    reason = EXPERIMENT.why_not()
    return reason and f"autograd's graph cannot be read in this PyTorch: {reason}"


def find_layout() -> NodeLayout:
    """The layout of this PyTorch's nodes."""
    wrapped = type((torch.ones(3, requires_grad=True) * 2).grad_fn).__basicsize__
    if wrapped not in (24, 32):  # an object's head, and a pointer that counts references one way or the other
        raise NotFound(f"an object for a node holds more than a pointer ({wrapped} bytes)")
    offsets: dict[str, int] = {"wrapped": 2 * WORD}
    missing = []
    for find in _FINDERS:
        try:
            offsets |= find(offsets)
        except NotFound as error:
            missing.append(str(error))
        except KeyError as needed:
            missing.append(f"what needs {needed} was not looked for")
        except OSError as error:
            raise NotFound(f"memory cannot be looked at ({error})") from error
    if missing:
        raise NotFound("; ".join(missing))
    return NodeLayout(**offsets)


EXPERIMENT = Experiment(
    lambda: find_layout(),
    lambda layout: _native.set_node_layout(python_base=torch._C._FunctionBase, **asdict(layout)),
)


def _find_leaf(offsets: dict[str, int]) -> dict[str, int]:
    """Where the hooks of a leaf are, which its node asks it for."""
    plain, hooked, later, both = (torch.ones(3, requires_grad=True) for _ in range(4))
    for leaf in (hooked, both):
        leaf.register_hook(lambda gradient: None)  # type: ignore[no-untyped-call]
    for leaf in (later, both):
        leaf.register_post_accumulate_grad_hook(lambda leaf: None)  # type: ignore[no-untyped-call]
    samples = (plain, hooked, later, both)
    body = find_body(samples)
    pre = [t._backward_hooks for t in (hooked, both)]
    post = [t._post_accumulate_grad_hooks for t in (later, both)]
    bodies = [try_words(t._cdata, 8) for t in samples]
    records = {record: [try_words(words[record], _RECORD) for words in bodies] for record in range(2, 8)}
    record, place = only(
        ((record, p) for record, rows in records.items() for p in range(_RECORD - 1) if _holds_hooks(rows, p, pre)),
        "hooks on gradients of leaves",
    )
    classes = ((last, _class_of_later(records[record], last, post)) for last in range(_RECORD))
    last, cls = only(((p, c) for p, c in classes if c is not None), "hooks of leaves after adding up")
    return {
        "body": body,
        "record": record * WORD,
        "leaf_pre": place * WORD,
        "leaf_post": last * WORD,
        "leaf_post_class": cls,
    }


def _holds_hooks(rows: list[list[int]], place: int, dicts: list[Any]) -> bool:
    """Whether a vector is empty in the first and third record, and holds these dicts in the others."""
    if any(rows[number][place] or rows[number][place + 1] for number in (0, 2)):
        return False
    for number, functions in zip((1, 3), dicts, strict=True):
        first, end = rows[number][place : place + 2]
        if end - first != WORD or try_words(try_words(first, 1)[0], 2)[1] != id(functions):
            return False
    return True


def _class_of_later(rows: list[list[int]], place: int, dicts: list[Any]) -> int | None:
    """The class of what a pointer leads to, null in the first two records, that holds these dicts in the others."""
    if rows[0][place] or rows[1][place]:
        return None
    held = [try_words(rows[number][place], 2) for number in (2, 3)]
    if [words[1] for words in held] != [id(functions) for functions in dicts] or held[0][0] != held[1][0]:
        return None
    return held[0][0]


@functools.cache
def _materializing() -> int | None:
    """The byte of a context that says whether its backward is given zeros for gradients that do not come."""
    if why_not_probe() is not None:
        return None
    contexts: list[Any] = [_pass(torch.ones(1, requires_grad=True)).grad_fn for _ in range(4)]
    for context, materializes in zip(contexts, (True, False, True, False), strict=True):
        context.set_materialize_grads(materializes)
    rows = [read_bytes(id(context), type(context).__basicsize__) for context in contexts]
    try:
        return find_place(rows, [1, 0, 1, 0], "whether gradients are materialized")
    except NotFound:
        return None


def materializes(context: Any) -> bool | None:
    """Whether a `torch.autograd.Function` wants zeros for gradients that do not come; None if unknown."""
    place = _materializing()
    return None if place is None else bool(read_bytes(id(context) + place, 1)[0])


def address_of(node: Any) -> int:
    """The address of the node that a Python object of a C++ node stands for."""
    return read_words(id(node) + 2 * WORD, 1)[0]


def _find_hooks(kind: str, offsets: dict[str, int]) -> dict[str, int]:
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
    nothing, one, other = (try_words(address_of(tensor.grad_fn), _WORDS) for tensor in (plain, hooked, twice))
    rows = [nothing, one, nothing, other]
    places = (place for place in range(_WORDS - 1) if _holds_hooks(rows, place, dicts))
    place = only(places, f"{kind}-hooks of nodes")
    classes = {try_words(try_words(words[place], 1)[0], 1)[0] for words in (one, other)}
    return {kind: place * WORD, f"{kind}_class": only(classes, f"the class of {kind}-hooks")}


def _find_retained(offsets: dict[str, int]) -> dict[str, int]:
    """How many of a node's results retain their gradient."""
    counts = []
    for retained in range(4):
        parts = torch.ones(4, 3, requires_grad=True).mul(1).unbind()
        for part in parts[:retained]:
            part.retain_grad()
        counts.append(try_words(address_of(parts[0].grad_fn), _WORDS))
    return {"retained": find_place(counts, [0, 1, 2, 3], "retained gradients") * WORD}


def _find_sequence(offsets: dict[str, int]) -> dict[str, int]:
    samples: list[Any] = [(_leaf() * 2).grad_fn for _ in range(3)]
    rows = [try_words(address_of(node), _WORDS) for node in samples]
    return {"sequence": find_place(rows, [node._sequence_nr() for node in samples], "numbers of nodes") * WORD}


def _find_edges(offsets: dict[str, int]) -> dict[str, int]:
    """The vector of edges, the size of one, and where in it the number of the input is."""
    parts = (_leaf() * 2).unbind()
    sums = [parts[2] + parts[1], torch.stack([parts[0], parts[2], parts[1], parts[2]])]
    before = address_of(parts[0].grad_fn)
    fitting = (
        (place, size)
        for size in (16, 24)
        for place in range(_WORDS - 1)
        if all(_has_edges(tensor.grad_fn, place, size, before) for tensor in sums)
    )
    place, size = only(fitting, "edges")
    return {"edges": place * WORD, "edge_size": size, "edge_input": size - WORD}


def _has_edges(node: Any, place: int, size: int, before: int) -> bool:
    wanted = [number for _, number in node.next_functions]
    words = try_words(address_of(node), _WORDS)
    first, last = words[place], words[place + 1]
    if last - first != size * len(wanted):
        return False
    step = size // WORD
    edges = try_words(first, step * len(wanted))
    numbers = [edges[step * number + step - 1] & 0xFFFFFFFF for number in range(len(wanted))]
    return all(edges[step * number] == before for number in range(len(wanted))) and numbers == wanted


def _find_inputs(offsets: dict[str, int]) -> dict[str, int]:
    """The vector of inputs, the size of one, where in it the sizes are and what tells that they are sizes."""
    node: Any = torch.ones(3, 5, 7, requires_grad=True).mul(1).unbind()[0].grad_fn
    words = try_words(address_of(node), _WORDS)
    fitting = set()
    for place in range(_WORDS - 1):
        if words[place + 1] & 0xFFFFFFFF != 3:
            continue
        first = words[place]
        inside = try_words(first, 48)
        for shape in range(8):  # the sizes are beside the pointer to them and their number
            step = next((s for s in range(shape + 7, 20) if _is_shape(inside, first, shape + s)), None)
            if _is_shape(inside, first, shape) and step and _is_shape(inside, first, shape + 2 * step):
                fitting.add((place * WORD, step * WORD, shape * WORD))
    inputs, size, shape = only(fitting, "inputs of nodes")
    kind = _find_shape_kind(inputs, shape)
    return {"inputs": inputs, "input_size": size, "shape": shape, "shape_kind": kind}


def _is_shape(words: list[int], first: int, place: int) -> bool:
    beside = first + (place + 2) * WORD
    return words[place] == beside and words[place + 1] & 0xFFFFFFFF == 2 and words[place + 2 : place + 4] == [5, 7]


def _find_shape_kind(inputs: int, shape: int) -> int:
    """A nested tensor has a tensor of sizes: the byte behind the place for sizes says so."""
    plain: Any = torch.ones(2, 3, requires_grad=True).mul(1).grad_fn
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are said to be a prototype
        nested: Any = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], requires_grad=True).mul(1).grad_fn
    rows = [try_words(try_words(address_of(node) + inputs, 1)[0] + shape, 10) for node in (plain, nested)]
    kinds = [[word & 0xFF for word in row] for row in rows]
    return shape + find_place(kinds, [0, 1], "the kind of sizes", first=7) * WORD


def _find_options(offsets: dict[str, int]) -> dict[str, int]:
    """The word of dtype, device and layout: it differs where one of them does, and nowhere else."""
    tensors = [torch.ones(2, 3, requires_grad=True), torch.ones(5, requires_grad=True)]
    others = [torch.ones(2, dtype=dtype, requires_grad=True) for dtype in (torch.float64, torch.bfloat16)]
    others += [torch.ones(2, 3, device="meta", requires_grad=True), torch.ones(2, 3).to_sparse().requires_grad_()]

    inputs, size = offsets["inputs"], offsets["input_size"] // WORD

    def words(tensor: torch.Tensor) -> list[int]:
        return try_words(try_words(address_of(tensor.unsqueeze(0).grad_fn) + inputs, 1)[0], size)

    alike, different = [words(tensor) for tensor in tensors], [words(tensor) for tensor in others]

    def tells(place: int) -> bool:
        kinds = {row[place] for row in different}
        return len({row[place] for row in alike}) == 1 and len(kinds) == len(others) and alike[0][place] not in kinds

    places = (place for place in range(offsets["shape"] // WORD) if tells(place))
    return {"options": only(places, "dtypes of inputs") * WORD}


def _find_python_node(offsets: dict[str, int]) -> dict[str, int]:
    """Where the object for a node that is written in Python points to it."""
    wrappers = [_pass(_leaf()) for _ in range(3)]
    after = [tensor * 2 for tensor in wrappers]
    nodes = [try_words(try_words(address_of(tensor.grad_fn) + offsets["edges"], 1)[0], 1)[0] for tensor in after]
    size = type(wrappers[0].grad_fn).__basicsize__ // WORD
    rows = [read_words(id(tensor.grad_fn), size) for tensor in wrappers]
    return {"python_wrapped": find_place(rows, nodes, "nodes written in Python") * WORD}


def _find_release(offsets: dict[str, int]) -> dict[str, int]:
    """The place of `release_variables` in the tables of classes: PyTorch exports that of one class."""
    exported = find_in_bindings(_RELEASE) or find_symbol(_RELEASE)
    if exported is None:
        raise NotFound(f"how nodes are released: {_RELEASE} is not exported")
    base = torch.ones(3, requires_grad=True) * 2
    base[0].mul_(2)
    table = try_words(try_words(address_of(base.grad_fn), 1)[0], 24)
    return {"release": find_place([table], [exported], "how nodes are released")}


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
