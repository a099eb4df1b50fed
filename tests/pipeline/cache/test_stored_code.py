"""Code of each kind in the sections of a cache file: what is read is what was written."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import smelt
from smelt.ir.artifact_file.code import Code, CodeSlot, code_bytes, read_code
from smelt.ir.artifact_file.container import ArtifactError
from smelt.pipeline.cache import entries
from smelt.runtime.cuda.image import CudaCode, CudaImage


def test_code_for_gpus_comes_back_with_what_was_assembled() -> None:
    images = [CudaImage(b"cubin", (9, 0), 12040, "a log"), CudaImage(b"another", (7, 5), 12040)]
    for assembled in ([], images):
        description, code = entries._described(CudaCode(".version 8.4 \u2192", assembled))
        found = entries._loaded(description, read_code(code_bytes(code)), "cuda")
        assert found.ptx == ".version 8.4 \u2192" and list(found.images) == assembled
    (kind, made_for), code = entries._described(CudaCode("", images))
    with pytest.raises(ValueError, match="shorter"):
        entries._loaded((kind, made_for[:1]), code, "cuda")


@pytest.mark.parametrize("pieces", [[], [b"one"], [b"one", b"two", b"\0"]])
def test_code_in_pieces(pieces: list[bytes]) -> None:
    assert read_code(code_bytes(Code.of_pieces(pieces))).pieces == pieces


def test_altered_sections_of_code_are_refused_or_say_something_else() -> None:
    """Whatever a byte becomes, it is an error or another code within its bounds: never an access outside."""
    whole = code_bytes(Code(bytes(64), (0, 8), (CodeSlot(8, "", 4), CodeSlot(16, "exp"))))
    for place in (*range(200), *range(len(whole) - 4, len(whole))):
        for value in (0, 1, 0x7F, 0xFF):
            changed = bytes((*whole[:place], value, *whole[place + 1 :]))
            try:
                code = read_code(changed)
            except ArtifactError:
                continue
            assert all(0 <= each < len(code.image) for each in code.entries)
            assert all(0 <= slot.offset <= len(code.image) - 8 for slot in code.slots)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("SMELT_CACHE", raising=False)
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    smelt.reset()
    yield
    smelt.reset()


def test_a_grids_kernel_out_of_the_cache_is_built_again_for_unaligned_buffers(cache: None) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * 2 + x.mean(1, keepdim=True)).softmax(1)

    memory = torch.randn(64 * 128 + 1)
    aligned, unaligned = memory[:-1].view(64, 128), memory[1:].view(64, 128)
    results = []
    for built in (2, 1):  # that for aligned ones comes out of the cache
        smelt.reset()
        compiled = smelt.compile(f, options={"target": "simt-host", "fallback": False})
        results.append((compiled(aligned), compiled(unaligned)))
        assert smelt.counters["kernels_built"] == built and smelt.counters["cache_hits"] == 2 - built
    assert all(map(torch.equal, *results))
    torch.testing.assert_close(results[0], (f(aligned), f(unaligned)))
