"""Reads damaged files of weights: each is read, its tensors too, or refused with SM091.

    python -m tests.quantization.mutate [--count 100000] [--seed 0] [--forms gguf safetensors]

Prints how many of each format were refused. Any other exception, or a crash, fails.
"""

import argparse
import random
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from smelt.base.errors import SmeltError
from smelt.quantization import read_gguf, read_safetensors
from tests.quantization.files import BLOCKS, gguf, random_blocks, safetensors

METADATA = {"general.architecture": "llama", "blocks": 2, "rope": 10000.0, "tied": True, "merges": ["a b", "c"]}


def small_gguf() -> bytes:
    tensors = {kind: (kind, (2, 256), random_blocks(kind, 2, 256, 3)) for kind in BLOCKS}
    return gguf(METADATA, tensors | {"norm": ("f32", (8,), b"\0" * 32)})


def small_safetensors() -> bytes:
    return safetensors({"a.weight": torch.randn(4, 6), "b": torch.ones(3, dtype=torch.int64)}, {"format": "pt"})


def _tensors_of_gguf(path: Path) -> dict[str, Any]:
    return read_gguf(path).tensors


MUTATED: dict[str, tuple[Callable[[], bytes], Callable[[Path], dict[str, Any]]]] = {
    "gguf": (small_gguf, _tensors_of_gguf),
    "safetensors": (small_safetensors, lambda path: dict(read_safetensors(path))),
}


def mutated(whole: bytes, header: int, chance: random.Random) -> bytes:
    """A file with 1 to 4 changes, most of them in its first `header` bytes."""
    raw = bytearray(whole)
    for _ in range(chance.randrange(1, 5)):
        place = chance.randrange(max(1, min(len(raw), header if chance.random() < 0.9 else len(raw))))
        match chance.randrange(5):
            case 0:
                raw[place : place + 1] = bytes([chance.randrange(256)])
            case 1:
                raw[place : place + 8] = chance.choice((b"\xff" * 8, b"\0" * 8, struct.pack("<Q", 1 << 63)))
            case 2:
                del raw[place : place + chance.randrange(1, 20)]
            case 3:
                raw[place:place] = chance.randbytes(chance.randrange(1, 9))
            case 4:
                del raw[chance.randrange(len(raw)) if raw else 0 :]
    return bytes(raw)


def read_mutated(form: str, count: int, seed: int, path: Path) -> int:
    """Read damaged files; returns how many were refused."""
    make, read = MUTATED[form]
    whole, chance, refused = make(), random.Random(seed), 0
    header = whole.index(b"\0" * 31) if form == "gguf" else 300
    for number in range(count):
        raw = mutated(whole, header, chance)
        path.write_bytes(raw)
        try:
            for tensor in read(path).values():
                values = tensor if isinstance(tensor, Tensor) else tensor.dequantized()
                values.double().sum()
        except SmeltError as error:
            assert error.code == "SM091", (number, error)
            refused += 1
        except Exception as error:
            raise AssertionError(f"file {number} of seed {seed}: {type(error).__name__}: {error}") from error
    return refused


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--forms", nargs="+", choices=list(MUTATED), default=list(MUTATED))
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for form in args.forms:
            refused = read_mutated(form, args.count, args.seed, Path(folder) / "a")
            print(f"{form}: {args.count} files, {refused} refused, the others read", flush=True)


if __name__ == "__main__":
    main()
