"""`smelt.load`: an exported function, out of its file, called like the function itself; without torch and its source.

    model = smelt.load("model.smelt")
    model(x)                            torch tensors in, tensors out; NumPy arrays in, arrays out
    model.entry("decode")(x)            an entry point of a file with several
    model.state_dict()                  what it keeps from call to call, by name; load_state_dict takes it
    model.save("checkpoint.smelt")      a file of the model with its current state
"""

import math
import os
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from smelt.base.errors import SmeltError
from smelt.deploy.arrays import Arrays, TorchArrays, arrays_for, copied
from smelt.deploy.manifest import ArgumentForm, Signature, entry_manifests
from smelt.deploy.runtime import MOST_THREADS, EntryInfo, Model, RegisterInfo, Session
from smelt.ir.artifact_file.keys import Key, file_hash, public_key, several
from smelt.ir.table.dtypes import DTYPES


class LoadedEntry:
    """An entry point of a loaded artifact, called as its function is called in Python."""

    def __init__(self, number: int, info: EntryInfo, manifest: Any, session: Session, lock: threading.Lock) -> None:
        self._number, self._info, self._session, self._lock = number, info, session, lock
        try:
            self.signature = Signature.of(manifest)
        except ValueError as error:
            raise SmeltError("SM050", str(error)) from error
        wanted = [argument for argument in self.signature.arguments if argument.is_input]
        if len(wanted) != len(info.inputs):
            raise SmeltError("SM050", "the manifest is of another file: its arguments are not the file's inputs")

    @property
    def name(self) -> str:
        """Its name in the file."""
        return self._info.name

    @property
    def inputs(self) -> tuple[RegisterInfo, ...]:
        """The inputs of the C runtime, in order: names, dtypes, and bounds of sizes."""
        return self._info.inputs

    @property
    def outputs(self) -> tuple[RegisterInfo, ...]:
        """The outputs of the C runtime, in order."""
        return self._info.outputs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it as the function was called that was exported."""
        try:
            leaves = self.signature.flatten(args, kwargs)
            pairs = list(self.signature.inputs(leaves))
        except ValueError as error:
            raise SmeltError("SM052", str(error)) from None
        arrays = arrays_for(leaves)
        tensors, kept = [], []
        for (argument, value), info in zip(pairs, self.inputs, strict=True):
            tensor, keeps = _given(arrays, argument, value, info)
            tensors.append(tensor)
            kept.append(keeps)
        with self._lock:
            self._session.choose(self._number)
            self._session.run(tensors)
            try:
                returned = self.signature.returned(*self._session.returned(), len(self.outputs))
            except ValueError as error:
                raise SmeltError("SM050", str(error)) from None
            outputs: list[Any] = []
            for place, kind in enumerate(returned.outputs):
                output = self._session.output(place)
                if output.dtype is None or (kind == "number" and output.sizes):
                    raise SmeltError("SM050", f"the manifest is damaged: output {place} is no {kind}")
                array = copied(arrays, output)
                outputs.append(array.item() if kind == "number" else arrays.at_home(array))
        return returned.build(outputs)

    def __repr__(self) -> str:
        return f"<entry point {self.name}>"


class LoadedArtifact:
    """A loaded artifact. It runs one call at a time, also for several threads; `session()` returns another object with
    its own state and the same weights."""

    def __init__(
        self, model: Model, threads: int = 0, weights: str | os.PathLike[str] | None = None
    ) -> None:
        self._model, self._threads, self._weights = model, threads, weights
        self._session = Session(model, threads)
        self._lock = threading.Lock()
        try:
            manifests = entry_manifests(model.manifest, [info.name for info in model.entries])
        except ValueError as error:
            raise SmeltError("SM050", str(error)) from error
        self._entries = {
            info.name: LoadedEntry(number, info, manifests[info.name], self._session, self._lock)
            for number, info in enumerate(model.entries)
        }
        self._first = next(iter(self._entries.values()))
        self.signature = self._first.signature

    @property
    def name(self) -> str:
        """The name of the exported function, or of the file with several entry points."""
        return self._model.name

    @property
    def target(self) -> str:
        """The target of the code that is used."""
        return self._model.target

    @property
    def manifest(self) -> dict[str, Any]:
        """What the file says of itself: signatures, targets, provenance, and what was added to it."""
        return self._model.manifest

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of the entry points, in order."""
        return tuple(self._entries)

    def entry(self, name: str) -> LoadedEntry:
        """An entry point by its name. Entry points share weights and state."""
        if name not in self._entries:
            hint = f"choose from {', '.join(self.entries)}"
            raise SmeltError("SM052", f"{self.name} has no entry point {name!r}", hint=hint)
        return self._entries[name]

    @property
    def inputs(self) -> tuple[RegisterInfo, ...]:
        """The inputs of the C runtime for the first entry point, in order: names, dtypes, and bounds of sizes."""
        return self._first.inputs

    @property
    def outputs(self) -> tuple[RegisterInfo, ...]:
        """The outputs of the C runtime for the first entry point, in order."""
        return self._first.outputs

    def session(self) -> "LoadedArtifact":
        """The same artifact with its own state. Both can be called at the same time."""
        return LoadedArtifact(self._model, self._threads, self._weights)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it, or its first entry point, as the function was called that was exported."""
        return self._first(*args, **kwargs)

    def state_dict(self) -> dict[str, Any]:
        """Its state by name, as copies: tensors if torch is imported, otherwise NumPy arrays."""
        arrays = arrays_for(())
        state = {}
        with self._lock:
            for number, info in enumerate(self._model.state):
                array = arrays.empty(_dtype(info), _sizes(info))
                self._session.read_state(number, arrays.address(array), _bytes(info))
                state[info.name] = array
        return state

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Set state by name. `strict`: `state` must have every name, and no other."""
        places = {info.name: (number, info) for number, info in enumerate(self._model.state)}
        missing = [name for name in places if name not in state]
        unknown = [name for name in state if name not in places]
        if strict and (missing or unknown):
            raise SmeltError("SM052", f"state: missing {missing or 'nothing'}, unknown {unknown or 'nothing'}")
        arrays = arrays_for(list(state.values()))
        with self._lock:
            for name, value in state.items():
                if name in places:
                    self._write(arrays, *places[name], value)

    def _write(self, arrays: Arrays, number: int, info: RegisterInfo, value: Any) -> None:
        tensor, kept = arrays.argument(value, _dtype(info))
        if tensor.dtype != info.dtype or tensor.sizes != _sizes(info):
            shown = f"{tensor.dtype}{list(tensor.sizes)}"
            raise SmeltError("SM052", f"{info.name} is {info.dtype}{list(_sizes(info))}, not {shown}")
        if tensor.strides is not None:
            kept = kept.contiguous() if isinstance(arrays, TorchArrays) else kept.copy()
        self._session.write_state(number, arrays.address(kept), _bytes(info))

    def reset(self) -> None:
        """Return to the state in the file."""
        with self._lock:
            self._session.reset()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a file of the artifact with its current state: a checkpoint, which C reads too."""
        with self._lock:
            self._session.save(path)
        return Path(path)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Set the state from a file of the same artifact."""
        with self._lock:
            self._session.load(path)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as the file, with its current state, and its weights if they are in a file of their own."""
        weights = None if self._weights is None else Path(self._weights).read_bytes()
        with tempfile.TemporaryDirectory() as folder:
            return _unpickled, (self.save(Path(folder) / "artifact.smelt").read_bytes(), self._threads, weights)

    def __repr__(self) -> str:
        return f"<artifact {self.name} for {self.target}>"


def load(
    path: str | os.PathLike[str],
    *,
    threads: int = 0,
    keys: Key | Sequence[Key] | None = None,
    allow: Key | Sequence[Key] | None = None,
    weights: str | os.PathLike[str] | None = None,
) -> LoadedArtifact:
    """Load an exported function from its file, `path`. Call the result like the function.

    A file that is truncated, modified or not an artifact is refused, and none of its code runs.

    - `threads` is the number of threads that a call may use; 0 means one per processor.
    - `keys` are Ed25519 public keys: PEM files, or 64 hexadecimal digits. The file must be signed by one of them.
    - `allow` are SHA-256 hashes of files, 64 hexadecimal digits. The file's must be one of them.
    - `weights` is the safetensors file with the weights of an artifact that was saved without them: the one that was
      saved with it, or one with the same names, dtypes and shapes. `keys` and `allow` are required of it too.
    """
    if not 0 <= threads <= MOST_THREADS:
        raise SmeltError("SM052", f"threads is from 0 to {MOST_THREADS}, not {threads}")
    signers = None if keys is None else list(map(public_key, several(keys)))
    hashes = None if allow is None else list(map(file_hash, several(allow)))
    return LoadedArtifact(Model(path, keys=signers, allowed=hashes, weights=weights), threads, weights)


def _unpickled(data: bytes, threads: int, weights: bytes | None = None) -> LoadedArtifact:
    with tempfile.TemporaryDirectory() as folder:
        path, beside = Path(folder) / "artifact.smelt", Path(folder) / "weights.safetensors"
        path.write_bytes(data)
        if weights is None:
            return load(path, threads=threads)
        beside.write_bytes(weights)
        return load(path, threads=threads, weights=beside)


def _given(arrays: Arrays, argument: ArgumentForm, value: Any, info: RegisterInfo) -> tuple[Any, Any]:
    if isinstance(value, str):
        if value not in info.choices:
            kind = "a tensor" if argument.kind == "tensor" else "a number"
            raise SmeltError("SM052", f"argument {argument.name} is the str {value!r}, and must be {kind}")
        value = info.choices.index(value)
    try:
        tensor, kept = arrays.argument(value, _dtype(info))
    except (TypeError, ValueError, RuntimeError) as error:
        raise SmeltError("SM052", f"argument {argument.name}: {error}") from None
    if tensor.dtype not in DTYPES:
        raise SmeltError("SM052", f"argument {argument.name} is {tensor.dtype}, and must be {info.dtype}")
    return tensor, kept


def _dtype(info: RegisterInfo) -> str:
    assert info.dtype is not None
    return info.dtype


def _sizes(info: RegisterInfo) -> tuple[int, ...]:
    return tuple(low for low, _, _ in info.dims)


def _bytes(info: RegisterInfo) -> int:
    return math.prod(_sizes(info)) * DTYPES[_dtype(info)]
