"""Where PyTorch keeps what a tensor is, found by experiment, so that guards can look there instead of asking.

Asking a tensor for its dtype, device, sizes, strides and `requires_grad` costs half a microsecond, and a large model
has hundreds of parameters to ask at every call. All of it is in a few words of memory. `find_layout` makes tensors that
differ in known ways and finds the places by the differences (`torch_abi/probe.py`); if any place is missing, ambiguous
or blind to something guards rely on, there is no layout, and guards go on asking.

    tensor → (Python object) → body: … rank, sizes, strides, …, dtype/device/flags, dispatch keys; → autograd's record
"""

import contextlib
import ctypes
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

import torch

from smelt import _native
from smelt.base.fast_dataclass import dataclass
from smelt.torch_abi.probe import WORD, Experiment, NotFound, find_body, find_place, only, read_bytes, read_words

_WORDS = 32  # of a body that are looked at
_INLINE = 5  # so many sizes are in the body itself
_FILLS = (0x00, 0xFF, 0x55, 0xAA)
_ROUNDS = 8  # of making tensors until one is where it should be
_ATTEMPTS = 8  # what was in memory before can hide that bits mean nothing; not every time


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Byte offsets, as `_native.set_tensor_layout` takes them; `plain` and the masks are what is there."""

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


def install_tensor_layout() -> None:
    """Tell the C part where to look, if that can be found out; once is enough."""
    EXPERIMENT.why_not()


def find_layout() -> TensorLayout:
    """The layout of this PyTorch's tensors."""
    usable = _allocated_size()
    with _unfilled():
        samples = _samples()
        body = find_body(samples)
        if any(usable(t._cdata) < WORD * 16 for t in samples):
            raise NotFound("a tensor is smaller than expected")
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(NotFound):
                return _find_in_bodies(samples, body, usable)
        return _find_in_bodies(samples, body, usable)


EXPERIMENT = Experiment(
    lambda: find_layout(), lambda layout: _native.set_tensor_layout(base=torch.Tensor, **asdict(layout))
)


@contextlib.contextmanager
def _unfilled() -> Iterator[None]:
    """Where algorithms are to be deterministic, PyTorch fills new memory, and knows not how for some dtypes."""
    fills = torch._C._get_deterministic_fill_uninitialized_memory()
    torch._C._set_deterministic_fill_uninitialized_memory(False)
    try:
        yield
    finally:
        torch._C._set_deterministic_fill_uninitialized_memory(fills)


def _find_in_bodies(samples: Sequence[torch.Tensor], body: int, usable: Callable[[int], int]) -> TensorLayout:
    bodies = [read_words(t._cdata, min(_WORDS, usable(t._cdata) // WORD)) for t in samples]
    pairs = list(zip(samples, bodies, strict=True))
    fitting = (place for place in range(_WORDS) if all(_has_sizes(t, words, place) for t, words in pairs))
    rank = only(fitting, "sizes and strides")
    keys = find_place(bodies, [torch._C._dispatch_keys(t).raw_repr() for t in samples], "dispatch keys")
    numel = rank + 2 * _INLINE + 2  # after the sizes, the strides and the storage offset
    if any(words[numel] != t.numel() for t, words in pairs) or not numel < keys <= numel + 4:
        raise NotFound("the number of elements is not beside the sizes")
    masks = _find_masks(numel + 1, keys + 1, usable)
    if not _tells_kinds_apart(numel + 1, masks):
        raise NotFound("dtype, device and flags cannot be told apart")
    gradients = _find_gradients(usable)
    if len({(place, plain, wanted) for place, plain, wanted, _ in gradients}) != 1:
        raise NotFound("what autograd knows of a tensor: several places fit")
    place, plain, wanted, _ = gradients[0]
    history = tuple(sorted(frozenset.intersection(*(words for _, _, _, words in gradients))))
    if not 1 <= len(history) <= 4:
        raise NotFound(f"the node that computed a tensor: {len(history)} places fit")
    return TensorLayout(
        body,
        rank * WORD,
        (rank + 1) * WORD,
        (rank + 1 + _INLINE) * WORD,
        (numel + 1) * WORD,
        masks,
        place * WORD,
        plain,
        wanted,
        history,
    )


def _samples() -> list[torch.Tensor]:
    plain = torch.empty(7, 11, 13)
    samples = [plain, plain[2:, 3], torch._neg_view(plain), torch.empty(17, dtype=torch.int64), torch.empty(())]
    samples += [torch.empty(2, 3, 5, 7, 19, device="meta")[:, 1:], torch.empty(3, dtype=torch.complex64).conj()]
    return [*samples, torch.nn.Parameter(torch.empty(23, 29)), torch.empty(3, 31).t(), torch.empty(0, 37)]


def _has_sizes(tensor: torch.Tensor, words: Sequence[int], place: int) -> bool:
    rank, strides = tensor.dim(), place + 1 + _INLINE
    return (
        strides + _INLINE < len(words)
        and words[place] == rank
        and list(words[place + 1 : place + 1 + rank]) == list(tensor.shape)
        and list(words[strides : strides + rank]) == list(tensor.stride())
        and words[strides + _INLINE] == tensor.storage_offset()
    )


def _find_masks(first: int, end: int, usable: Callable[[int], int]) -> tuple[int, ...]:
    """The bits of each word that are the same in tensors alike; the others are never written.

    That shows only in tensors that are in memory of known content, so those are waited for, one for each content.
    """
    masks = [(1 << 64) - 1] * (end - first)
    pattern: list[int] | None = None
    one = torch.empty(2, 3)
    size = usable(one._cdata)  # while it lives: of a freed block nobody may ask
    for fill in _FILLS:
        for tensor in _made_in_known_memory(size, fill):
            words = read_words(tensor._cdata, end)[first:]
            pattern = pattern or words
            masks = [mask & ~(word ^ seen) for mask, word, seen in zip(masks, words, pattern, strict=True)]
    return tuple(masks)


def _made_in_known_memory(size: int, fill: int) -> list[torch.Tensor]:
    """Tensors alike, one of them at least in memory of known content.

    Whatever is let go meanwhile, by the garbage collector for one, may be handed out first. What was made is held, so
    that it is used up.
    """
    tensors: list[torch.Tensor] = []
    for _ in range(_ROUNDS):
        filled = _fill_free_memory(size, fill)
        tensors += [torch.empty(2, 3) for _ in range(2 * len(filled))]
        if any(tensor._cdata in filled for tensor in tensors):
            return tensors
    raise NotFound("no tensor was made in memory of known content")


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
        words = read_words(tensor._cdata, first + len(masks))[first:]
        return tuple(word & mask for word, mask in zip(words, masks, strict=True))

    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    small_complex = {dtype for dtype in dtypes if dtype.is_complex and dtype.itemsize < 8}  # PyTorch warns of these
    typed = [torch.empty(2, 3, dtype=dtype) for dtype in dtypes - small_complex if not str(dtype).startswith("torch.q")]
    number, pair = torch.empty(2, 3), torch.empty(2, 3, dtype=torch.complex64)
    elsewhere = torch.empty(2, 3, device="meta")
    readings = [number, torch._neg_view(number), number.to_sparse(), pair, pair.conj(), torch._neg_view(pair)]
    alike = [torch.empty(2, 3), torch.empty(5, 3)[1:3], torch.nn.Parameter(torch.empty(2, 3))]
    here, there = (read_bytes(t._cdata + first * WORD, WORD) for t in (number, elsewhere))
    device = next((byte for byte in range(WORD) if here[byte] != there[byte]), WORD)
    has_index = device + 1 < WORD and here[device + 1] == there[device + 1] == 0xFF  # -1: neither device has one
    return (
        all(len(set(map(kind, group))) == len(group) for group in (typed, readings))
        and has_index
        and len(set(map(kind, alike))) == 1
    )


_Gradient = tuple[int, int, int, frozenset[int]]


def _find_gradients(usable: Callable[[int], int]) -> list[_Gradient]:
    """What is found in memory of each content; in some of them old bits can hide a place."""
    gradients, missing = [], NotFound("what autograd knows of a tensor")
    for fill in _FILLS:
        try:
            gradients.append(_find_gradient(usable, fill))
        except NotFound as error:
            missing = error
    if not gradients:
        raise missing
    return gradients


def _find_gradient(usable: Callable[[int], int], fill: int) -> _Gradient:
    """The word with the pointer to autograd's record; what its first word is unless the tensor is a view (the table of
    the record's C++ class is there, and views have one of their own); the byte there that says a gradient is wanted;
    and the words that are zero in leaves and in nothing computed from them (one points to the node that computed it).
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
    nothing, bodies = read_words(plain._cdata, 8), [read_words(t._cdata, 8) for t in recorded]
    pointers = (
        word
        for word in range(2, 8)
        if nothing[word] == 0
        and all(body[word] > 4096 and body[word] % WORD == 0 for body in bodies)
        and len({body[word] for body in bodies}) == len(bodies)
    )
    place = only(pointers, "what autograd knows of a tensor")

    def record(tensor: torch.Tensor) -> bytes:
        address = read_words(tensor._cdata, 8)[place]
        return read_bytes(address, usable(address) // WORD * WORD)

    wants, frozens = [record(wanting), record(leaf)], [record(frozen)]
    computed = [record(tensor) for tensor in results]
    frozen.requires_grad_()
    wanting.requires_grad_(False)
    wants.append(record(frozen))
    frozens.append(record(wanting))
    firsts = {words[:WORD] for words in (*wants, *frozens)}
    if len(firsts) != 1 or firsts & {record(view)[:WORD] for view in views}:
        raise NotFound("views cannot be told from other tensors")
    rows = [*wants, *frozens, *computed]
    wanted = find_place(rows, [1] * len(wants) + [0] * len(frozens + computed), "whether a gradient is wanted")
    history = frozenset(
        word
        for word in range(0, min(map(len, rows)), WORD)
        if not any(any(words[word : word + WORD]) for words in (*wants, *frozens))
        and all(any(words[word : word + WORD]) for words in computed)
    )
    return place, int.from_bytes(firsts.pop(), sys.byteorder), wanted, history


def _allocated_size() -> Callable[[int], int]:
    """`malloc_usable_size`, which says how long a block is; not every C library has one."""
    try:
        function = ctypes.CDLL(None).malloc_usable_size
    except (OSError, AttributeError, TypeError):
        raise NotFound("the C library does not say how long a block of memory is") from None
    function.restype, function.argtypes = ctypes.c_size_t, [ctypes.c_void_p]
    return lambda address: int(function(address))
