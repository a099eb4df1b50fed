"""Where PyTorch keeps what a tensor is, found by experiment, so that guards can look there instead of asking.

Asking a tensor for its dtype, device, sizes, strides and `requires_grad` costs half a microsecond, and a large model
has hundreds of parameters to ask at every call. All of it lies in a few words of memory. `find_layout` makes tensors
that differ in known ways and looks for the places where exactly that difference shows; if any place is missing,
ambiguous or blind to something guards rely on, there is no layout, and guards go on asking.

    tensor → (Python object) → body: … rank, sizes, strides, …, dtype/device/flags, dispatch keys; → autograd's record
"""

import contextlib
import ctypes
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict

import torch

from smelt import _native
from smelt.base.fast_dataclass import dataclass
from smelt.ir.nodes.ambient import default_devices, without_default_devices

_WORD = 8
_WORDS = 32  # of a body that are looked at
_INLINE = 5  # so many sizes lie in the body itself
_FILLS = (0x00, 0xFF, 0x55, 0xAA)
_ATTEMPTS = 8  # what was in memory before can hide that bits mean nothing; not every time


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Byte offsets, as `_native.set_tensor_layout` takes them; `plain` and the masks are what lies there."""

    body: int
    rank: int
    sizes: int
    strides: int
    kind: int
    kind_masks: tuple[int, ...]
    gradient: int
    plain: int
    wanted: int
    history: tuple[int, ...]
    dimensions: int = _INLINE


_taught = False


def install_tensor_layout() -> None:
    """Tell the C part where to look, if that can be found out; once is enough."""
    global _taught
    if _taught or default_devices() is None or torch._C._len_torch_dispatch_stack():
        return  # under a mode, tensors are not what they seem: next time
    layout = _native.sheltered(_without_devices)
    if layout is not None:
        _native.set_tensor_layout(base=torch.Tensor, **asdict(layout))
    _taught = True


def _without_devices() -> TensorLayout | None:
    with without_default_devices():
        return find_layout()


def find_layout() -> TensorLayout | None:
    """The layout of this PyTorch's tensors, or None if the experiments do not agree on one."""
    usable = _allocated_size()
    if usable is None or sys.implementation.name != "cpython" or ctypes.sizeof(ctypes.c_void_p) != _WORD:
        return None
    with torch._C._InferenceMode(False), torch.enable_grad(), _unfilled():
        samples = _samples()
        body = _only(place for place in range(2, 6) if all(_words(id(t), 6)[place] == t._cdata for t in samples))
        if body is None or any(usable(t._cdata) < _WORD * 16 for t in samples):
            return None
        found = (_find_in_bodies(samples, body * _WORD, usable) for _ in range(_ATTEMPTS))
        return next((layout for layout in found if layout is not None), None)


@contextlib.contextmanager
def _unfilled() -> Iterator[None]:
    """Where algorithms are to be deterministic, PyTorch fills new memory, and knows not how for some dtypes."""
    fills = torch._C._get_deterministic_fill_uninitialized_memory()
    torch._C._set_deterministic_fill_uninitialized_memory(False)
    try:
        yield
    finally:
        torch._C._set_deterministic_fill_uninitialized_memory(fills)


def _find_in_bodies(samples: Sequence[torch.Tensor], body: int, usable: Callable[[int], int]) -> TensorLayout | None:
    bodies = [_words(t._cdata, min(_WORDS, usable(t._cdata) // _WORD)) for t in samples]
    span = range(min(map(len, bodies)))
    rank = _only(
        place for place in span if all(_has_sizes(t, words, place) for t, words in zip(samples, bodies, strict=True))
    )
    keys = _only(
        place
        for place in span
        if all(words[place] == torch._C._dispatch_keys(t).raw_repr() for t, words in zip(samples, bodies, strict=True))
    )
    if rank is None or keys is None:
        return None
    numel = rank + 2 * _INLINE + 2  # after the sizes, the strides and the storage offset
    if (
        any(words[numel] != t.numel() for t, words in zip(samples, bodies, strict=True))
        or not numel < keys <= numel + 4
    ):
        return None
    masks = _find_masks(numel + 1, keys + 1, usable)
    if masks is None or not _tells_kinds_apart(numel + 1, masks):
        return None
    found = [gradient for fill in _FILLS if (gradient := _find_gradient(usable, fill)) is not None]
    if not found or len({(place, plain, wanted) for place, plain, wanted, _ in found}) != 1:
        return None
    place, plain, wanted, _ = found[0]
    history = tuple(sorted(frozenset.intersection(*(words for _, _, _, words in found))))
    if not 1 <= len(history) <= 4:
        return None
    return TensorLayout(
        body,
        rank * _WORD,
        (rank + 1) * _WORD,
        (rank + 1 + _INLINE) * _WORD,
        (numel + 1) * _WORD,
        masks,
        place * _WORD,
        plain,
        wanted,
        history,
    )


def _samples() -> list[torch.Tensor]:
    plain = torch.empty(7, 11, 13)
    made = [plain, plain[2:, 3], torch._neg_view(plain), torch.empty(17, dtype=torch.int64), torch.empty(())]
    made += [torch.empty(2, 3, 5, 7, 19, device="meta")[:, 1:], torch.empty(3, dtype=torch.complex64).conj()]
    return [*made, torch.nn.Parameter(torch.empty(23, 29)), torch.empty(3, 31).t(), torch.empty(0, 37)]


def _has_sizes(tensor: torch.Tensor, words: Sequence[int], place: int) -> bool:
    rank, strides = tensor.dim(), place + 1 + _INLINE
    return (
        strides + _INLINE < len(words)
        and words[place] == rank
        and list(words[place + 1 : place + 1 + rank]) == list(tensor.shape)
        and list(words[strides : strides + rank]) == list(tensor.stride())
        and words[strides + _INLINE] == tensor.storage_offset()
    )


def _find_masks(first: int, end: int, usable: Callable[[int], int]) -> tuple[int, ...] | None:
    """The bits of each word that are the same in tensors alike; the others are never written.

    That shows only in tensors that lie in memory of known content, so those are waited for, one for each content.
    """
    masks = [(1 << 64) - 1] * (end - first)
    pattern: list[int] | None = None
    one = torch.empty(2, 3)
    size = usable(one._cdata)  # while it lives: of a freed block nobody may ask
    for fill in _FILLS:
        filled = _fill_free_memory(size, fill)
        alike = [torch.empty(2, 3) for _ in range(2 * len(filled))]
        if not any(tensor._cdata in filled for tensor in alike):
            return None
        for tensor in alike:
            words = _words(tensor._cdata, end)[first:]
            pattern = pattern or words
            masks = [mask & ~(word ^ seen) for mask, word, seen in zip(masks, words, pattern, strict=True)]
    return tuple(masks)


def _fill_free_memory(size: int, fill: int) -> frozenset[int]:
    """Leave a pattern in blocks of a size that the C library will soon hand out again; which ones."""
    allocate, free = _allocator()
    blocks = [allocate(size) for _ in range(6)]
    for block in blocks:
        ctypes.memset(block, fill, size)
    for block in blocks:
        free(block)
    return frozenset(blocks)


@functools.cache
def _allocator() -> tuple[Callable[[int], int], Callable[[int], None]]:
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    return library.malloc, library.free


def _tells_kinds_apart(first: int, masks: Sequence[int]) -> bool:
    """Whether the words from `first` differ wherever guards must tell tensors apart, and agree where they must not."""

    def kind(tensor: torch.Tensor) -> tuple[int, ...]:
        words = _words(tensor._cdata, first + len(masks))[first:]
        return tuple(word & mask for word, mask in zip(words, masks, strict=True))

    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)} - {torch.complex32}  # warns
    typed = [torch.empty(2, 3, dtype=dtype) for dtype in dtypes if not str(dtype).startswith("torch.q")]
    number, pair = torch.empty(2, 3), torch.empty(2, 3, dtype=torch.complex64)
    elsewhere = torch.empty(2, 3, device="meta")
    readings = [number, torch._neg_view(number), number.to_sparse(), pair, pair.conj(), torch._neg_view(pair)]
    alike = [torch.empty(2, 3), torch.empty(5, 3)[1:3], torch.nn.Parameter(torch.empty(2, 3))]
    here, there = (ctypes.string_at(t._cdata + first * _WORD, _WORD) for t in (number, elsewhere))
    device = next((byte for byte in range(_WORD) if here[byte] != there[byte]), _WORD)
    has_index = device + 1 < _WORD and here[device + 1] == there[device + 1] == 0xFF  # -1: neither device has one
    return (
        all(len(set(map(kind, group))) == len(group) for group in (typed, readings))
        and has_index
        and len(set(map(kind, alike))) == 1
    )


def _find_gradient(usable: Callable[[int], int], fill: int) -> tuple[int, int, int, frozenset[int]] | None:
    """The word with the pointer to autograd's record; what its first word is unless the tensor is a view (there lies
    the table of the record's C++ class, and views have one of their own); the byte there that says a gradient is
    wanted; and the words that are zero in leaves and in nothing computed from them (one points to the node that
    computed it).
    """
    for size in range(128, 320, 16):
        _fill_free_memory(size, fill)
    plain, wanting, leaf = torch.empty(3), torch.empty(3).requires_grad_(), torch.empty(3, requires_grad=True)
    frozen = torch.empty(3).requires_grad_().requires_grad_(False)
    leaf.grad = torch.zeros(3)
    leaf.register_hook(lambda grad: None)  # type: ignore[no-untyped-call]
    results = [leaf * 2, (wanting * 2)[1:], torch.empty(3).add_(leaf)]
    views = [plain[1:], results[1]]
    recorded = [wanting, leaf, frozen, *results, *views[:1]]
    bodies = [_words(t._cdata, 8) for t in recorded]
    place = _only(
        word
        for word in range(2, 8)
        if _words(plain._cdata, 8)[word] == 0
        and all(body[word] > 4096 and body[word] % _WORD == 0 for body in bodies)
        and len({body[word] for body in bodies}) == len(bodies)
    )
    if place is None:
        return None

    def record(tensor: torch.Tensor) -> bytes:
        address = _words(tensor._cdata, 8)[place]
        return ctypes.string_at(address, usable(address))

    wants, frozens = [record(wanting), record(leaf)], [record(frozen)]
    computed = [record(tensor) for tensor in results]
    frozen.requires_grad_()
    wanting.requires_grad_(False)
    wants.append(record(frozen))
    frozens.append(record(wanting))
    size = min(map(len, (*wants, *frozens, *computed))) // _WORD * _WORD
    firsts = {int.from_bytes(found[:_WORD], sys.byteorder) for found in (*wants, *frozens)}
    if len(firsts) != 1 or firsts & {int.from_bytes(record(view)[:_WORD], sys.byteorder) for view in views}:
        return None
    wanted = _only(
        byte
        for byte in range(size)
        if all(found[byte] == 1 for found in wants) and all(found[byte] == 0 for found in (*frozens, *computed))
    )
    history = frozenset(
        word
        for word in range(0, size, _WORD)
        if not any(any(found[word : word + _WORD]) for found in (*wants, *frozens))
        and all(any(found[word : word + _WORD]) for found in computed)
    )
    return None if wanted is None else (place, firsts.pop(), wanted, history)


def _allocated_size() -> Callable[[int], int] | None:
    """`malloc_usable_size`, which says how far a block may be read; None where the C library has none."""
    try:
        function = ctypes.CDLL(None).malloc_usable_size
    except (OSError, AttributeError, TypeError):
        return None
    function.restype, function.argtypes = ctypes.c_size_t, [ctypes.c_void_p]
    return lambda address: int(function(address))


def _words(address: int, count: int) -> list[int]:
    return list((ctypes.c_uint64 * count).from_address(address))


def _only(places: Iterable[int]) -> int | None:
    """The one place found, or None if there are none or several."""
    found = list(places)
    return found[0] if len(found) == 1 else None
