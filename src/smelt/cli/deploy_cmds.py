"""Commands about artifacts: `smelt export`, `inspect`, `cc`."""

import argparse
import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smelt.base.errors import SmeltError
from smelt.cli.example_spec import BadTarget, add_target, load
from smelt.deploy.runtime import LIBRARY
from smelt.ir.artifact_file.artifact import ArtifactFile, TargetPart
from smelt.ir.artifact_file.container import KEY, manifest_in, unpack
from smelt.ir.artifact_file.layout import FEATURES, Machine
from smelt.ir.artifact_file.read import read
from smelt.ir.table import records as r
from smelt.ir.table.records import Bind, RegisterKind
from smelt.symbolic.expressions import LARGEST
from smelt.symbolic.postfix import Op


def add_export(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("-o", "--output", required=True, help="the file to write, model.smelt")
    parser.add_argument("--weights", metavar="FILE", help="write the weights to a safetensors file of their own")
    parser.add_argument("--name", help="what it is called in messages (default: the function's name)")
    parser.add_argument(
        "--for",
        dest="target_names",
        action="append",
        metavar="NAME",
        help="what to make code for; may be repeated (default: host)",
    )
    parser.add_argument(
        "--static",
        nargs="?",
        const="host",
        metavar="NAME",
        help="write an object and a header to link into a program instead, or for wasm32 a module",
    )
    parser.add_argument(
        "--dynamic",
        action="append",
        default=[],
        metavar="ARGUMENT:DIMENSION=NAME[:LEAST:MOST]",
        help="a size that differs from call to call; may be repeated",
    )


def do_export(args: argparse.Namespace) -> int:
    from smelt.deploy.artifact import export

    target = load(args.target)
    dynamic: dict[str, dict[int, Any]] = {}
    for text in args.dynamic:
        argument, dim, dimension = _dimension(text)
        dynamic.setdefault(argument, {})[dim] = dimension
    artifact = export(
        target.model,
        target.args,
        target.kwargs,
        dynamic=dynamic,
        targets=args.target_names or None,
        name=args.name,
    )
    if args.static:
        written = artifact.save_static(args.output, args.static)
    else:
        weights = () if args.weights is None else (Path(args.weights),)
        written = (artifact.save(args.output, *weights), *weights)
    for path in written:
        print(f"{path}: {_bytes(path.stat().st_size)}")
    for note in artifact.machine.notes:
        print(f"  {note}")
    return 0


def _dimension(text: str) -> tuple[str, int, Any]:
    from smelt.ir.artifact.machine import Dimension

    place, equals, size = text.partition("=")
    argument, colon, dim = place.rpartition(":")
    name, *bounds = size.split(":")
    try:
        if not (equals and colon and argument and name and len(bounds) in (0, 2)):
            raise ValueError
        return argument, int(dim), Dimension(name, *map(int, bounds)) if bounds else name
    except ValueError:
        raise BadTarget(f"{text!r} is no dimension; write ARGUMENT:DIMENSION=NAME or …=NAME:LEAST:MOST") from None


def add_inspect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="model.smelt, or a file of the disk cache")


def do_inspect(args: argparse.Namespace) -> int:
    try:
        data = Path(args.file).read_bytes()
    except OSError as error:
        raise SmeltError("SM050", f"{args.file} cannot be read: {error.strerror}") from None
    manifest = manifest_in(unpack(data))
    if KEY in manifest:
        from smelt.pipeline.cache.entries import text_of_file
        from smelt.runtime.cache import read_file

        print(f"a file of the disk cache: {_bytes(len(data))}\n{text_of_file(read_file(data, manifest[KEY]))}")
    else:
        print("\n".join(inspected(read(data), len(data))))
    return 0


def inspected(artifact: ArtifactFile, size: int) -> list[str]:
    """The lines that describe an artifact."""
    by = ", ".join(f"{name} {version}" for name, version in _told(artifact.manifest, "made by", dict).items())
    tables = [part.table for part in artifact.targets[: artifact.entries]]
    name = tables[0].name if artifact.entries == 1 else tables[0].name.rpartition(".")[0]
    lines = [f"{name}: {_bytes(size)}{f', made by {by}' if by else ''}"]
    for table in tables:
        lines += [] if artifact.entries == 1 else [f"entry point {table.name.rpartition('.')[2]}"]
        lines.append("inputs")
        lines += [f"  {_register(each)}" for each in table.registers if each.kind == RegisterKind.INPUT] or ["  none"]
        lines.append("outputs")
        lines += [f"  {_shown(each.name, each.dtype, each.dims)}" for each in table.outputs] or ["  none"]
        lines += _states(table)
    stored = {RegisterKind.CONSTANT: ("weights", artifact.weights), RegisterKind.STATE: ("state", artifact.state)}
    for kind, (what, data) in stored.items():
        of_kind = [each for table in tables for each in table.registers if each.kind == kind]
        held = list({(each.name, each.data): each for each in of_kind}.values())
        if held:
            is_elsewhere = kind == RegisterKind.CONSTANT and not artifact.has_weights
            where = ", in a file of their own" if is_elsewhere else ""
            lines.append(f"{what}: {len(held)} tensors, {_bytes(data.bytes)}{where}")
            if kind == RegisterKind.STATE:
                lines += [f"  {_register(each)}" for each in held]
    lines.append("code")
    for number, part in enumerate(artifact.targets):
        lines.append(f"  {_target(artifact, number, part)}")
    entries = _told(artifact.manifest, "entries", dict)
    notes = [note for of in (entries.values() if entries else [artifact.manifest]) for note in _told(of, "notes", list)]
    return [*lines, *(["notes", *(f"  {note}" for note in notes)] if notes else [])]


def _told(manifest: Any, key: str, kind: type) -> Any:
    """An entry of a manifest, empty if it is of another kind: anybody may have written it."""
    entry = manifest.get(key) if isinstance(manifest, Mapping) else None
    return entry if isinstance(entry, kind) else kind()


def _states(table: r.Table) -> list[str]:
    lines = [f"states: {len(table.states)}"]
    for number, state in enumerate(table.states):
        for variant in state.variants:
            launches = sum(isinstance(step, r.Launch) for step in variant.steps)
            arena = _constant(variant.arena_bytes)
            memory = "memory by sizes" if arena is None else f"{_bytes(arena)} of memory"
            bounds = [_bound(each) for each in variant.symbols if _is_bounded(each)]
            checks = " and ".join([*bounds, *(check.text for check in variant.checks)])
            lines.append(
                f"  {number} {state.name}: {launches} launches, {memory}, {_next(variant.next)}"
                f"{f', if {checks}' if checks else ''}"
            )
    return lines


def _constant(code: r.Expression) -> int | None:
    return code[0].operand if len(code) == 1 and code[0].op == Op.PUSH else None


def _is_bounded(symbol: r.Symbol) -> bool:
    return symbol.bind == Bind.SIZE and (symbol.low > 0 or symbol.high < LARGEST)


def _bound(symbol: r.Symbol) -> str:
    if symbol.low == symbol.high:
        return f"{symbol.name} is {symbol.low}"
    return f"{symbol.name} from {symbol.low}{'' if symbol.high == LARGEST else f' to {symbol.high}'}"


def _next(following: r.Next) -> str:
    if isinstance(following, r.Branch):
        return f"then state {following.if_true} or {following.if_false}"
    if isinstance(following, r.Jump):
        return f"then state {following.state}"
    return f"raises {following.error}" if isinstance(following, r.Raise) else "returns"


def _register(register: r.Register) -> str:
    choices = f" one of {', '.join(register.choices)}" if register.choices else ""
    return _shown(register.name, register.dtype, register.dims) + choices


def _shown(name: str, dtype: str | None, dims: tuple[r.Dim, ...]) -> str:
    if dtype is None:
        return f"{name}: differs"
    sizes = []
    for dim in dims:
        most = "" if dim.high == LARGEST else str(dim.high)
        sizes.append(str(dim.low) if dim.low == dim.high else f"{dim.name or '?'} {dim.low}..{most}".strip())
    return f"{name}: {dtype}[{', '.join(sizes)}]"


def _target(artifact: ArtifactFile, number: int, part: TargetPart) -> str:
    names, target = _told(artifact.manifest, "targets", list), number // artifact.entries
    name = names[target] if target < len(names) else Machine(part.machine).name
    entry = "" if artifact.entries == 1 else f", {part.table.name.rpartition('.')[2]}"
    features = [each for bit, each in enumerate(FEATURES[Machine(part.machine)]) if part.features >> bit & 1]
    outside = Counter(slot.name for slot in part.code.slots if slot.name)
    needs = f", needs {' '.join(features)}" if features else ""
    calls = f", calls {', '.join(outside)}" if outside else ""
    return f"{name}{entry}: {len(part.table.kernels)} kernels, {_bytes(len(part.code.image))}{needs}{calls}"


def _bytes(count: int) -> str:
    for unit, size in (("MB", 1 << 20), ("kB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def add_cc(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--static", action="store_true", help="link libsmelt.a into the program")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--cflags", action="store_true", help="those of the compiler alone")
    part.add_argument("--libs", action="store_true", help="those of the linker alone")
    part.add_argument("--prefix", action="store_true", help="the folder of include and lib, for CMake and pkg-config")


def do_cc(args: argparse.Namespace) -> int:
    if args.prefix:
        print(LIBRARY.parents[1])
        return 0
    include = [f"-I{LIBRARY.parents[1] / 'include'}"]
    folder = LIBRARY.parent
    linked = [str(LIBRARY.with_suffix(".a"))] if args.static else [f"-L{folder}", f"-Wl,-rpath,{folder}", "-lsmelt"]
    flags = [] if args.libs else include
    flags += [] if args.cflags else [*linked, "-lm", "-lpthread"]
    print(shlex.join(flags))
    return 0
