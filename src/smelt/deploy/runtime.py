"""The C runtime, `libsmelt`, by ctypes: models, sessions, tensors by address. Needs neither torch nor NumPy.

    model = Model("model.smelt"); session = Session(model)
    session.run([TensorAt("float32", (2, 4), None, address)])
    session.output(0)    →   TensorAt("float32", (2, 8), None, address in the session's memory)
"""

import ctypes
import json
import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from smelt.base.errors import SmeltError
from smelt.base.fast_dataclass import dataclass
from smelt.base.paths import PACKAGE
from smelt.ir.table.dtypes import DTYPE_NAMES

LIBRARY = Path(PACKAGE) / "lib" / "libsmelt.so"

_FILE, _TRUST = (2, 3, 4), 14  # statuses of files that cannot be read, and of one that is not trusted
TRUST_WEIGHTS, WITHOUT_CODE = 1, 2  # flags of opening
MOST_THREADS = 1024  # of a session, as csrc/executor/thread_pool.h has it


class ArtifactFailed(SmeltError):
    """The C runtime refused a file or a call, or the exported function raised. `status` is the runtime's number."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__("SM050" if status in _FILE else "SM053" if status == _TRUST else "SM052", message)
        self.status = status


class _Error(ctypes.Structure):
    _fields_ = (("status", ctypes.c_int), ("message", ctypes.c_char * 256))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("dtype", ctypes.c_int),
        ("rank", ctypes.c_int),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
    )


class _Dim(ctypes.Structure):
    _fields_ = (("low", ctypes.c_int64), ("high", ctypes.c_int64), ("name", ctypes.c_char_p))


class _Info(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int),
        ("rank", ctypes.c_int),
        ("dims", ctypes.POINTER(_Dim)),
        ("flags", ctypes.c_uint),
        ("choice_count", ctypes.c_size_t),
        ("choices", ctypes.POINTER(ctypes.c_char_p)),
    )


class _OpenOptions(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("flags", ctypes.c_uint),
        ("allocator", ctypes.c_void_p),
        ("device", ctypes.c_int),
        ("device_number", ctypes.c_int),
        ("keys", ctypes.c_char_p),
        ("key_count", ctypes.c_size_t),
        ("allowed", ctypes.c_char_p),
        ("allowed_count", ctypes.c_size_t),
        ("weights", ctypes.c_char_p),
    )


class _SessionOptions(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("threads", ctypes.c_int),
        ("most_states", ctypes.c_int64),
        ("parallel_for", ctypes.c_void_p),
        ("parallel_context", ctypes.c_void_p),
    )


_Profile = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64)


@dataclass(frozen=True, slots=True)
class TensorAt:
    """Memory with a shape; `strides` count elements, None for contiguous. Of an output None may be the dtype."""

    dtype: str | None
    sizes: tuple[int, ...]
    strides: tuple[int, ...] | None
    address: int


@dataclass(frozen=True, slots=True)
class RegisterInfo:
    """What an input, an output or a piece of state is. A dimension is (least, most, name)."""

    name: str
    dtype: str | None
    dims: tuple[tuple[int, int, str | None], ...]
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EntryInfo:
    """An entry point."""

    name: str
    inputs: tuple[RegisterInfo, ...]
    outputs: tuple[RegisterInfo, ...]


@cache
def library() -> Any:
    """The C runtime, loaded when it is first asked for."""
    loaded = ctypes.CDLL(os.fspath(LIBRARY))
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    error, tensor = ctypes.POINTER(_Error), ctypes.POINTER(_Tensor)
    out = ctypes.POINTER(pointer)
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "smelt_model_open": (ctypes.c_int, [ctypes.c_char_p, ctypes.POINTER(_OpenOptions), out, error]),
        "smelt_model_close": (None, [pointer]),
        "smelt_model_name": (ctypes.c_char_p, [pointer]),
        "smelt_model_target": (ctypes.c_char_p, [pointer]),
        "smelt_model_manifest": (pointer, [pointer, ctypes.POINTER(size)]),
        "smelt_session_new": (ctypes.c_int, [pointer, ctypes.POINTER(_SessionOptions), out, error]),
        "smelt_session_free": (None, [pointer]),
        "smelt_run": (ctypes.c_int, [pointer, tensor, size, error]),
        "smelt_output": (ctypes.c_int, [pointer, size, tensor, error]),
        "smelt_returned": (ctypes.c_int, [pointer, *[ctypes.POINTER(ctypes.c_int64)] * 2, error]),
        "smelt_state_read": (ctypes.c_int, [pointer, size, pointer, size, error]),
        "smelt_state_write": (ctypes.c_int, [pointer, size, pointer, size, error]),
        "smelt_session_reset": (ctypes.c_int, [pointer, error]),
        "smelt_session_save": (ctypes.c_int, [pointer, ctypes.c_char_p, error]),
        "smelt_session_load": (ctypes.c_int, [pointer, ctypes.c_char_p, error]),
    }
    signatures |= {
        "smelt_model_entry_count": (size, [pointer]),
        "smelt_model_entry": (ctypes.c_char_p, [pointer, size]),
        "smelt_model_state_count": (size, [pointer]),
        "smelt_model_state": (ctypes.POINTER(_Info), [pointer, size]),
        "smelt_session_choose": (ctypes.c_int, [pointer, size, error]),
        "smelt_session_profile": (ctypes.c_int, [pointer, _Profile, pointer, error]),
    }
    for kind in ("input", "output"):
        signatures[f"smelt_entry_{kind}_count"] = (size, [pointer, size])
        signatures[f"smelt_entry_{kind}"] = (ctypes.POINTER(_Info), [pointer, size, size])
    for name, (returned, taken) in signatures.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = returned, taken
    return loaded


def _checked(name: str, *arguments: Any) -> None:
    """Call a function that may fail."""
    error = _Error()
    status = getattr(library(), name)(*arguments, ctypes.byref(error))
    if status:
        raise ArtifactFailed(status, error.message.decode(errors="replace"))


def _path(path: str | os.PathLike[str]) -> bytes:
    """As C takes it."""
    encoded = os.fsencode(path)
    if 0 in encoded:
        raise ValueError(f"the path {encoded!r} has a zero byte")  # C would take what comes before it
    return encoded


class Model:
    """An open file. `flags` are those of smelt.h. `keys`, `allowed`: public keys and hashes; one must be the
    file's; None for any. `weights`: the file of weights of one that has none itself."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        flags: int = 0,
        keys: Sequence[bytes] | None = None,
        allowed: Sequence[bytes] | None = None,
        weights: str | os.PathLike[str] | None = None,
    ) -> None:
        lists: list[Any] = []
        for names in (keys, allowed):
            lists += (None, 0) if names is None else (b"".join(names), len(names))
        beside = None if weights is None else _path(weights)
        options = _OpenOptions(ctypes.sizeof(_OpenOptions), flags, None, 0, 0, *lists, beside)
        self._address = ctypes.c_void_p()
        self._close = library().smelt_model_close  # kept here: at exit, Python clears modules before objects
        _checked("smelt_model_open", _path(path), ctypes.byref(options), ctypes.byref(self._address))
        count = library().smelt_model_entry_count(self._address)
        self.entries = tuple(map(self._entry, range(count)))
        self.state = self._infos("model_state")

    def _entry(self, number: int) -> EntryInfo:
        name = library().smelt_model_entry(self._address, number).decode()
        return EntryInfo(name, self._infos("entry_input", number), self._infos("entry_output", number))

    @property
    def address(self) -> ctypes.c_void_p:
        return self._address

    @property
    def name(self) -> str:
        return str(library().smelt_model_name(self._address).decode())

    @property
    def target(self) -> str:
        """What the code that was chosen is for."""
        return str(library().smelt_model_target(self._address).decode())

    @property
    def manifest(self) -> dict[str, Any]:
        """What the file says to people and to Python."""
        size = ctypes.c_size_t()
        address = library().smelt_model_manifest(self._address, ctypes.byref(size))
        try:
            manifest = json.loads(ctypes.string_at(address, size.value))
        except (ValueError, RecursionError) as error:
            raise SmeltError("SM050", f"the manifest is damaged: {error}") from None
        if not isinstance(manifest, dict):
            raise SmeltError("SM050", "the manifest is no object")
        return manifest

    def _infos(self, kind: str, *entry: int) -> tuple[RegisterInfo, ...]:
        count = getattr(library(), f"smelt_{kind}_count")(self._address, *entry)
        info_of = getattr(library(), f"smelt_{kind}")
        return tuple(_info(info_of(self._address, *entry, place)[0]) for place in range(count))

    def __del__(self) -> None:
        if self._address:
            self._close(self._address)


def _info(record: Any) -> RegisterInfo:
    dims = [record.dims[place] for place in range(record.rank)]
    shown = tuple((dim.low, dim.high, None if dim.name is None else dim.name.decode()) for dim in dims)
    choices = tuple(record.choices[place].decode() for place in range(record.choice_count))
    return RegisterInfo(record.name.decode(), _dtype(record.dtype), shown, choices)


def _dtype(number: int) -> str | None:
    return None if number < 0 else DTYPE_NAMES[number]


class Session:
    """Runs a model: memory for one call at a time, and its own copy of the state."""

    def __init__(self, model: Model, threads: int = 0) -> None:
        self.model = model
        self._address = ctypes.c_void_p()
        self._free = library().smelt_session_free
        options = _SessionOptions(ctypes.sizeof(_SessionOptions), threads, 0, None, None)
        _checked("smelt_session_new", model.address, ctypes.byref(options), ctypes.byref(self._address))

    def choose(self, entry: int) -> None:
        """The entry point that calls are of from now on, by its number."""
        _checked("smelt_session_choose", self._address, entry)

    def profile(self, tell: Callable[[str, int, int], None] | None) -> None:
        """Have `tell(kernel, begin, end)` called after each kernel of a call, with times in nanoseconds."""

        def called(_: int, kernel: bytes, begin: int, end: int) -> None:
            if tell is not None:
                tell(kernel.decode(), begin, end)

        callback = _Profile() if tell is None else _Profile(called)
        _checked("smelt_session_profile", self._address, callback, None)
        self._callback = callback  # which must stay

    def run(self, inputs: Sequence[TensorAt]) -> None:
        """One call; what the inputs' addresses lead to must stay meanwhile."""
        tensors = (_Tensor * max(len(inputs), 1))()
        kept = []
        for place, tensor in enumerate(inputs):
            sizes = (ctypes.c_int64 * max(len(tensor.sizes), 1))(*tensor.sizes)
            strides = None if tensor.strides is None else (ctypes.c_int64 * max(len(tensor.sizes), 1))(*tensor.strides)
            kept.append((sizes, strides))
            dtype = -1 if tensor.dtype is None else DTYPE_NAMES.index(tensor.dtype)
            tensors[place] = _Tensor(dtype, len(tensor.sizes), sizes, strides, tensor.address)
        _checked("smelt_run", self._address, tensors, len(inputs))

    def output(self, number: int) -> TensorAt:
        """An output of the last call, contiguous, where the session keeps it until the next."""
        tensor = _Tensor()
        _checked("smelt_output", self._address, number, ctypes.byref(tensor))
        sizes = tuple(tensor.sizes[place] for place in range(tensor.rank))
        return TensorAt(_dtype(tensor.dtype), sizes, None, tensor.data or 0)

    def returned(self) -> tuple[int, int]:
        """The state, and the variant of it, that the last call ended in."""
        state, variant = ctypes.c_int64(), ctypes.c_int64()
        _checked("smelt_returned", self._address, ctypes.byref(state), ctypes.byref(variant))
        return state.value, variant.value

    def read_state(self, number: int, address: int, size: int) -> None:
        """Copy a piece of state, contiguous, to memory of its size."""
        _checked("smelt_state_read", self._address, number, address, size)

    def write_state(self, number: int, address: int, size: int) -> None:
        """The other way round."""
        _checked("smelt_state_write", self._address, number, address, size)

    def reset(self) -> None:
        """Back to the state that the file holds."""
        _checked("smelt_session_reset", self._address)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file of the model with this session's state."""
        _checked("smelt_session_save", self._address, _path(path))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Take over the state of such a file."""
        _checked("smelt_session_load", self._address, _path(path))

    def __del__(self) -> None:
        if self._address:
            self._free(self._address)
