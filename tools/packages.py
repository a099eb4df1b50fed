"""Packages of the C runtime and of the WebAssembly runtime: `make packages`, or

    python tools/packages.py [libsmelt npm] [--to dist]    →  dist/libsmelt-0.1.0.tar.gz, dist/smelt-runtime-0.1.0.tgz

The first is sources: `sh build.sh PREFIX` builds and installs them with any C compiler. The second is the npm package,
whose types and code are put together here. It needs no npm.
"""

import argparse
import io
import json
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ROOT / "packages"
SMELT = ROOT / "src" / "smelt"
ASSETS = SMELT / "codegen" / "static" / "assets"


def version() -> str:
    """Of smelt, as pyproject.toml has it."""
    found = re.search(r'(?m)^version = "(.*)"$', (ROOT / "pyproject.toml").read_text())
    assert found is not None
    return found[1]


def libsmelt_files() -> dict[str, bytes]:
    """What the source archive has, by name."""
    files = [path for folder in ("deploy", "executor") for path in (SMELT / "csrc" / folder).rglob("*.[ch]")]
    files += [*(SMELT / "include").iterdir(), *(SMELT / "lib").rglob("*.pc"), *(SMELT / "lib").rglob("*.cmake")]
    named = {str(path.relative_to(SMELT)): path for path in sorted(files)}
    named |= {path.name: path for path in sorted((PACKAGES / "libsmelt").iterdir())}
    named |= {f"examples/{path.name}": path for path in sorted((ROOT / "examples" / "deploy").glob("*.c*"))}
    named["LICENSE"] = ROOT / "LICENSE"
    return {name: path.read_bytes() for name, path in named.items()}


def npm_files() -> dict[str, bytes]:
    """What the npm package has, by name."""
    npm = PACKAGES / "npm"
    types = (npm / "index.d.mts").read_text() + (ASSETS / "session.d.mts").read_text()
    generic = "load<S extends { reset(): void } = Session>("
    types = types.replace("declare function load(", f"declare function {generic}")
    types = types.replace("Promise<Session>", "Promise<S>")
    assert generic in types and json.loads((npm / "package.json").read_text())["version"] == version()
    return {
        "package.json": (npm / "package.json").read_bytes(),
        "README.md": (npm / "README.md").read_bytes(),
        "LICENSE": (ROOT / "LICENSE").read_bytes(),
        "index.mjs": (ASSETS / "session.mjs").read_bytes(),
        "index.d.mts": types.encode(),
    }


def packed(path: Path, folder: str, files: Mapping[str, bytes]) -> Path:
    """An archive of files, all below `folder`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mode = len(data), 0o755 if name.endswith(".sh") else 0o644
            archive.addfile(entry, io.BytesIO(data))
    return path


def libsmelt(to: Path) -> Path:
    name = f"libsmelt-{version()}"
    return packed(to / f"{name}.tar.gz", name, libsmelt_files())


def npm(to: Path) -> Path:
    return packed(to / f"smelt-runtime-{version()}.tgz", "package", npm_files())


KINDS = {"libsmelt": libsmelt, "npm": npm}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", help=f"{', '.join(KINDS)}; none: all")
    parser.add_argument("--to", type=Path, default=ROOT / "dist")
    args = parser.parse_args()
    for kind in args.kinds or KINDS:
        path = KINDS[kind](args.to)
        print(f"smelt: {path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
