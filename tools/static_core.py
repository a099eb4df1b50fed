"""Compiles the part of the C executor that static models run to LLVM bitcode: src/smelt/codegen/static/core/*.bc.

    python tools/static_core.py          needs clang; to be run when the C sources change, as tests/codegen/static says

`smelt.export` links the bitcode with the kernels of a model, so making an object file needs no C compiler. There is one
file for each width of a pointer. It names no processor and no features, so that LLVM compiles it for every target of
that width (`codegen.llvm.compile.linked_object`). LLVM reads the bitcode of earlier versions: use an old clang.
"""

import hashlib
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CSRC, INCLUDE = ROOT / "src/smelt/csrc", ROOT / "src/smelt/include"
CORE = ROOT / "src/smelt/codegen/static/core"
SOURCES = (
    "executor/expression.c",
    "executor/run/blocks.c",
    "executor/run/parts.c",
    "executor/run/outputs.c",
    "executor/run/run.c",
    "static/static.c",
)
# No name of them ends as those of models do, NAME_run and NAME_init.
ENTRIES = ("smelt_run_model", "smelt_reset_model", "smelt_parallel_for")
# 64-bit processors lay out these sources' data in one way, whichever of them clang is told of.
TRIPLES = {64: "aarch64-unknown-linux-gnu", 32: "wasm32-unknown-unknown"}
OPTIMIZE = "-O2"
FLAGS = [
    *("-std=c11", "-Wall", "-Wextra", "-Werror", "-DSMELT_STATIC_MODEL", f"-I{CSRC}", f"-I{INCLUDE}", "-nostdlibinc"),
    *("-ffreestanding", "-fno-builtin", "-fPIC", "-fno-strict-aliasing", "-fno-asynchronous-unwind-tables"),
    *("-Xclang", "-disable-llvm-passes"),
]


def sources() -> list[Path]:
    """The C files, the headers that they include, and this script."""
    found: dict[Path, None] = {}
    waiting = [CSRC / name for name in SOURCES]
    while waiting:
        file = waiting.pop(0)
        if file not in found:
            found[file] = None
            names = re.findall(r'#include "([\w/]+\.h)"', file.read_text())
            waiting += [CSRC / name if (CSRC / name).exists() else INCLUDE / name for name in names]
    return [*found, Path(__file__).resolve()]


def checksum() -> str:
    """Of all that the bitcode is made of."""
    digest = hashlib.sha256()
    for file in sources():
        digest.update(f"{file.name}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def bitcode(bits: int) -> bytes:
    """Of all sources as one, optimized together."""
    text = "".join(f'#include "{name}"\n' for name in SOURCES)
    module = _clang(bits, "c", text, "-S", *FLAGS).decode()
    # Functions that files share are not inlined: LLVM takes twice as long for one large function, which is no faster.
    module = re.sub(r"(?m)^(define .*@smelt_.*\)) (#\d+ \{)$", r"\1 noinline \2", module)
    public = rf"internal|.*@(?:{'|'.join(ENTRIES)})\("
    module = re.sub(rf"(?m)^define (?:dso_local |hidden )*(?!{public})", "define internal ", module)
    module = _clang(bits, "ir", module, "-S").decode()
    return _clang(bits, "ir", _for_any_processor(module), "-c", "-Xclang", "-disable-llvm-passes")


def _clang(bits: int, language: str, text: str, *flags: str) -> bytes:
    command = ["clang", f"--target={TRIPLES[bits]}", OPTIMIZE, "-emit-llvm", *flags, "-x", language, "-", "-o", "-"]
    return subprocess.run(command, input=text.encode(), stdout=subprocess.PIPE, check=True).stdout


def _for_any_processor(module: str) -> str:
    """Without the processor of each function, and without metadata."""
    module = re.sub(r"(?m)^attributes (#\d+) = .*$", r"attributes \1 = { nounwind }", module)
    module = re.sub(r"(?m)^.*@llvm\.lifetime\..*\n", "", module)
    module = re.sub(r", ![\w.]+ !\d+", "", module)
    return re.sub(r"(?m)^![\w.]+ = .*\n", "", module)


def main() -> None:
    CORE.mkdir(exist_ok=True)
    for bits in TRIPLES:
        (CORE / f"core{bits}.bc").write_bytes(bitcode(bits))
    (CORE / "sources.sha256").write_text(checksum() + "\n")


if __name__ == "__main__":
    sys.exit(main())
