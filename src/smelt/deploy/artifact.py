"""`Artifact`: an exported function with its code, to be saved, looked at and called.

    artifact = smelt.export(model, (x,))
    artifact.save("model.smelt")           one file that runs without Python
    artifact(x)                            runs that file's code, here

`artifact_file` is all that the file holds, as records.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from smelt.base import events
from smelt.base.errors import LibraryError, SmeltError
from smelt.base.fast_dataclass import dataclass
from smelt.base.options import Options
from smelt.base.version import VERSION
from smelt.codegen.ahead_of_time import KernelEntry, TargetCode, build_for, find_target
from smelt.deploy.errors import ExportError
from smelt.deploy.export import exported_machine
from smelt.deploy.loaded import LoadedArtifact, LoadedEntry, load
from smelt.deploy.manifest import manifest_of, manifest_of_entries
from smelt.deploy.records import kernel_places, target_part, unaligned_kernels
from smelt.deploy.shared_data import SharedData
from smelt.deploy.state.sharing import entry_states, with_one_state, without_origins
from smelt.deploy.static_model import save_static
from smelt.deploy.variant import HowToLower
from smelt.device import Target, target_of
from smelt.ir.artifact.machine import Machine
from smelt.ir.artifact.text import format_machine
from smelt.ir.artifact_file.artifact import ArtifactFile, TargetPart
from smelt.ir.artifact_file.weights import save_weights
from smelt.ir.artifact_file.write import save as save_file


@dataclass(frozen=True, slots=True)
class MachineCode:
    """The state machine of an entry point for a target, its code, and where its kernels begin, by state, variant and
    name."""

    machine: Machine
    code: TargetCode
    entries: Mapping[tuple[int, int, str], KernelEntry]


class Artifact:
    """An exported function: its state machine, weights, and machine code for some targets.

    - `machine` is its state machine, and `print(artifact)` prints it.
    - `save(path)` writes one file, which `smelt.load` and the C runtime read. `save(path, weights=…)` writes two.
    - Calling it runs its code in this process, in its own session: its state changes from call to call.
    """

    def __init__(self, parts: Sequence[MachineCode], entries: Sequence[str] = (), name: str | None = None) -> None:
        """`parts`: of each target, each entry point. `entries`: their names, of a file with several."""
        self._parts, self._entries = tuple(parts), tuple(entries)
        self.machine = self._parts[0].machine
        self.name = name or self.machine.name
        self.metadata: dict[str, Any] = {}
        self._loaded: LoadedArtifact | None = None
        self._session: LoadedArtifact | None = None

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of the entry points, in order."""
        return self._entries or (self.name,)

    def entry(self, name: str) -> LoadedEntry:
        """An entry point by its name, which runs its code here. Entry points share weights and state."""
        return self._running().entry(name)

    @property
    def artifact_file(self) -> ArtifactFile:
        """All that a file of it holds."""
        targets: list[TargetPart] = []
        manifests: list[dict[str, Any]] = []
        data, count = SharedData(), len(self.entries)
        names = [each.code.target.name for each in self._parts[::count]]
        made_by = {"smelt": VERSION, "torch": str(torch.__version__)}
        for each in self._parts:
            part, ends = target_part(each.machine, each.code, each.entries, data.places(each.machine))
            targets.append(part)
            manifests.append(manifest_of(each.machine, names, made_by, ends))
        if any(manifest["returns"] != manifests[place % count]["returns"] for place, manifest in enumerate(manifests)):
            raise ExportError(
                "code for GPUs and for processors does not return at the same places",
                hint="export a file for each: they rely on different sizes",
            )
        manifest = manifests[0]
        if self._entries:
            manifest = manifest_of_entries(self.name, dict(zip(self._entries, manifests, strict=False)))
        return ArtifactFile(manifest | self.metadata, tuple(targets), data.weights, data.state, count)

    def save(self, path: str | os.PathLike[str], weights: str | os.PathLike[str] | None = None) -> Path:
        """Write the artifact to a file; an existing file is replaced as a whole.

        With `weights`, the weights are written there, as safetensors. `smelt.load(path, weights=…)` takes that file or
        another with the same names, dtypes and shapes, such as those of a fine-tuned model."""
        file = self.artifact_file
        if weights is not None:
            save_weights(file, weights)
            file = replace(file, has_weights=False)
        save_file(file, path)
        return Path(path)

    def save_static(self, path: str | os.PathLike[str], target: str = "host") -> tuple[Path, ...]:
        """Write an object file and a header to be linked into a C program, `path` with .o and .h, instead of a file
        that is loaded; for `"wasm32"` also a WebAssembly module and its JavaScript, .wasm and .mjs. `target` is any
        that code is made for (`"aarch64-android"`, `"x86-64-v3-windows"`, …), whatever the artifact has code for."""
        if self._entries:
            raise ExportError("an object file has one entry point", hint="export the function that you need alone")
        return save_static(self.machine, path, target)

    def session(self) -> LoadedArtifact:
        """The artifact loaded, with a state of its own."""
        if self._loaded is None:
            with tempfile.TemporaryDirectory() as folder:
                self._loaded = load(self.save(Path(folder) / "artifact.smelt"))
        return self._loaded.session()

    def _running(self) -> LoadedArtifact:
        self._session = self._session or self.session()
        return self._session

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it, or its first entry point, on arguments like the function's own."""
        return self._running()(*args, **kwargs)

    def state_dict(self) -> dict[str, Any]:
        """What it keeps from call to call, as calls of this object have left it."""
        return self._running().state_dict()

    def __str__(self) -> str:
        machines = [each.machine for each in self._parts[: len(self.entries)]]
        return "\n".join(format_machine(machine, programs=False) for machine in machines)

    def __repr__(self) -> str:
        states, registers = len(self.machine.states), len(self.machine.registers)
        return f"<Artifact {self.name}: {states} states, {registers} registers>"


def export(
    fn_or_module: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic: Mapping[str, Any] | None = None,
    targets: Sequence[str] | None = None,
    name: str | None = None,
) -> Artifact:
    """Export a function or an `nn.Module`, training steps included, as an artifact that runs without Python.

    The call `fn_or_module(*args, **kwargs)` is captured and compiled, but does not run. Tensors that are only read are
    constants of the artifact. Tensors and numbers that are written are state, which lasts from call to call and is
    saved with the artifact.

    - `args` and `kwargs` are an example of the arguments. The artifact accepts the sizes and Python values of the
      example, except where `dynamic` names others.
    - `dynamic` has the sizes and numbers that differ from call to call, by argument: `{"x": {0: "batch"}}`, with bounds
      `{"x": {0: smelt.Dimension("batch", 1, 64)}}`, several dimensions `{"x": [0, 1]}`, or a number `{"scale": True}`.
      Dimensions of one name are equal. `smelt.mark_dynamic` does the same for a tensor.
    - `targets` are the targets of the code: `"host"`, `"x86-64-v3"`, `"aarch64"`, `"riscv64"` and others; for GPUs
      `"sm_80"`, `"sm_90"` and others, which need no GPU here. The default is the host, or the GPU of the example's
      tensors.
    - `name` is the artifact's name in messages, by default the name of the function.
    """
    if not callable(fn_or_module):
        raise SmeltError("SM001", f"smelt.export takes a function or an nn.Module, not {type(fn_or_module).__name__}")
    if targets is None:
        targets = (_default_target(fn_or_module, args, kwargs or {}),)
    if isinstance(targets, str) or not targets:
        raise ExportError("targets is a sequence of names", hint='targets=("host",)')
    called = name or _name_of(fn_or_module)
    entry = Entry(fn_or_module, tuple(args), kwargs or {}, dynamic or {})
    with events.timed("export", called):
        return Artifact(_parts({called: entry}, targets))


@dataclass(frozen=True, slots=True)
class Entry:
    """A function and an example of its arguments, for `export_entries`: what `export` takes."""

    function: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    dynamic: Mapping[str, Any] = field(default_factory=dict)


def export_entries(
    entries: Mapping[str, Entry], *, targets: Sequence[str] | None = None, name: str = "model"
) -> Artifact:
    """Export several functions as entry points of one artifact, over one set of weights and one state.

    What one function writes is state of all: a cache that `prefill` fills is the cache that `decode` reads. Python
    numbers that one function changes must not be read by another; keep them in tensors.

    - `entries` are the functions by name, each an `smelt.Entry` with an example of its arguments, as in `smelt.export`.
      Names are identifiers. The first one is called if no entry point is chosen.
    - `targets` are the targets of the code, as in `smelt.export`.
    - `name` is the artifact's name.
    """
    if not entries or not all(str(entry).isidentifier() for entry in entries):
        what = f"entries is a dict of functions by name, and names are identifiers, not {list(entries)}"
        raise SmeltError("SM001", what)
    if len(entries) == 1:
        ((only, entry),) = entries.items()
        return export(entry.function, entry.args, entry.kwargs, dynamic=entry.dynamic, targets=targets, name=only)
    if targets is None:
        first = next(iter(entries.values()))
        targets = (_default_target(first.function, first.args, first.kwargs),)
    with events.timed("export", name):
        named = {f"{name}.{entry}": what for entry, what in entries.items()}
        return Artifact(_parts(named, targets), tuple(entries), name)


def _parts(entries: Mapping[str, Entry], targets: Sequence[str]) -> list[MachineCode]:
    """The code of each target, of each entry point, by the names of their tables."""
    found_targets = tuple(find_target(each) for each in targets)
    parts: dict[str, list[MachineCode]] = {target.name: [] for target in found_targets}
    # One program serves all processors, another one all GPUs.
    for is_grids in dict.fromkeys(target.warp_size > 1 for target in found_targets):
        family = tuple(target for target in found_targets if (target.warp_size > 1) is is_grids)
        options = Options.from_user({"library": "none", "target": family[0].name if is_grids else ""})
        how = HowToLower(options, family)
        states = entry_states(tuple(entries))
        machines = []
        for called, entry in entries.items():
            try:
                machine = exported_machine(
                    entry.function, entry.args, entry.kwargs, entry.dynamic, called, how, states[called]
                )
            except LibraryError as missing:
                raise LibraryError(called, missing.operators, missing.lines, exported=True) from None
            machines.append(machine)
        if len(machines) > 1:
            machines = with_one_state(machines, tuple(states.values()))
        for machine in machines:
            for each in _built(without_origins(machine), family):
                parts[each.code.target.name].append(each)
    return [each for target in found_targets for each in parts[target.name]]


def _built(machine: Machine, targets: Sequence[Target]) -> Iterator[MachineCode]:
    """A machine with code for each target."""
    kernels, unaligned = kernel_places(machine), unaligned_kernels(machine)
    for target in targets:
        with events.timed("generate", f"{machine.name} for {target.name}"):
            code = build_for(list(kernels.values()), target, unaligned)
        yield MachineCode(machine, code, dict(zip(kernels, code.entries, strict=True)))


def _default_target(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The kind of GPU that a module or the arguments of a call are on, or "host"."""
    own = function.parameters() if isinstance(function, torch.nn.Module) else ()
    tensors = [each for each in (*own, *pytree.tree_leaves((args, kwargs))) if isinstance(each, torch.Tensor)]
    on_gpu = [each.device for each in tensors if each.device.type == "cuda"]
    return (target_of(on_gpu[0]) or "host") if on_gpu else "host"


def _name_of(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", None) or type(function).__name__
    return str(name).strip("<>") or "function"
