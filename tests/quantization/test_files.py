"""Files of weights: every block format gives the values of its specification, and no damaged file does harm."""

import struct
from pathlib import Path

import pytest
import torch
from torch import nn

import smelt
from smelt.base.errors import SmeltError
from smelt.quantization import QuantizedLinear, QuantizedTensor, read_gguf, read_safetensors
from tests.quantization.files import BLOCKS, gguf, random_blocks, safetensors, values_of
from tests.quantization.mutate import METADATA, MUTATED, read_mutated, small_gguf

ROWS, COLUMNS = 192, 512


def written(path: Path, raw: bytes) -> Path:
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("kind", BLOCKS)
def test_values_of_every_block_format(kind: str, tmp_path: Path) -> None:
    raw = random_blocks(kind, ROWS, COLUMNS, 1)
    file = read_gguf(written(tmp_path / "a.gguf", gguf(METADATA, {"w": (kind, (ROWS, COLUMNS), raw)})))
    weight = file.tensors["w"]
    assert isinstance(weight, QuantizedTensor) and weight.shape == file.shapes["w"] == (ROWS, COLUMNS)
    expected = torch.tensor(values_of(kind, raw), dtype=torch.float64).view(ROWS, COLUMNS)
    torch.testing.assert_close(weight.dequantized(torch.float64), expected, rtol=1e-6, atol=1e-6)
    assert file.metadata == METADATA


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("kind", BLOCKS)
def test_compiled_products_of_every_block_format(kind: str, rows: int, tmp_path: Path) -> None:
    raw = random_blocks(kind, ROWS, COLUMNS, 2)
    weight = read_gguf(written(tmp_path / "a.gguf", gguf({}, {"w": (kind, (ROWS, COLUMNS), raw)}))).tensors["w"]
    assert isinstance(weight, QuantizedTensor)
    layer, x = QuantizedLinear(weight), torch.randn(rows, COLUMNS)
    truth = nn.functional.linear(x.double(), weight.dequantized(torch.float64))
    with torch.no_grad():
        eager, compiled = layer(x), smelt.compile(layer)(x)
    assert (compiled - truth).abs().max() <= 2 * (eager - truth).abs().max() + 1e-6 * truth.abs().max()


def test_floats_of_gguf_and_safetensors(tmp_path: Path) -> None:
    x, y = torch.randn(3, 5), torch.randn(2, 2, 4).to(torch.bfloat16)
    parts = {"x": ("f32", (3, 5), x.numpy().tobytes()), "y": ("bf16", (2, 2, 4), y.view(torch.uint8).numpy().tobytes())}
    read = read_gguf(written(tmp_path / "a.gguf", gguf({}, parts))).tensors
    assert torch.equal(read["x"], x) and torch.equal(read["y"], y)
    tensors = {"odd": torch.ones(3, dtype=torch.int8), "x": x, "y": y, "none": torch.empty(0, 4)}
    found = read_safetensors(written(tmp_path / "a.safetensors", safetensors(tensors, {"format": "pt"})))
    assert found.keys() == tensors.keys() and all(torch.equal(found[name], tensors[name]) for name in tensors)


def _gguf_with(**changes: tuple[str, tuple[int, ...], bytes]) -> bytes:
    return gguf({}, changes)


WRONG_GGUF: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "other": (b"GGML" + small_gguf()[4:], "no GGUF"),
    "version": (b"GGUF\x02" + small_gguf()[5:], "version 2"),
    "cut": (small_gguf()[:-100], "tensor 'norm' reaches beyond the end|tensor 'q6_K' reaches beyond the end"),
    "cut in the header": (small_gguf()[:60], "ends within|there are no"),
    "many keys": (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "there are no"),
    "rows": (_gguf_with(w=("q4_0", (2, 48), b"\0" * 64)), "tensor 'w' has rows of 48"),
    "sizes": (_gguf_with(w=("f32", (1 << 40, 1 << 40), b"")), "tensor 'w' reaches beyond|impossible"),
    "no rows": (_gguf_with(w=("f32", (0, 4), b"")), "tensor 'w' has the impossible shape"),
}


def _overlapping() -> bytes:
    """Many tensors of the same bytes, of which each would be a copy."""
    raw = gguf({}, {"a": ("q4_0", (2, 32), b"\0" * 36), "b": ("q4_0", (2, 32), b"\0" * 36)})
    second = raw.rindex(struct.pack("<IQ", 2, 64))
    return raw[:second] + struct.pack("<IQ", 2, 32) + raw[second + 12 :]


WRONG_GGUF["overlap"] = (_overlapping(), "tensor 'b' overlaps")


@pytest.mark.parametrize("name", WRONG_GGUF)
def test_wrong_gguf_files_are_refused(name: str, tmp_path: Path) -> None:
    raw, text = WRONG_GGUF[name]
    with pytest.raises(SmeltError, match=text) as caught:
        read_gguf(written(tmp_path / "a.gguf", raw))
    assert caught.value.code == "SM091"


def _header(text: str, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(text)) + text.encode() + data


_ENTRY = '{"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}'
WRONG_SAFETENSORS: dict[str, tuple[bytes, str]] = {
    "header": (struct.pack("<Q", 1 << 40) + b"{}", "the header would have"),
    "no JSON": (_header("{"), "no JSON"),
    "deep": (_header("[" * 100_000), "no JSON"),
    "twice": (_header('{"w": 1, "w": 2}'), "twice"),
    "cut": (_header(_ENTRY, b"\0" * 7), "tensor 'w' reaches beyond"),
    "rest": (_header(_ENTRY, b"\0" * 9), "belong to none"),
    "gap": (_header(_ENTRY.replace("[0, 8]", "[1, 9]"), b"\0" * 9), "tensor 'w' begins at byte 1"),
    "shape": (_header(_ENTRY.replace("[2]", "[-2]"), b"\0" * 8), "tensor 'w' has an impossible shape"),
    "strides": (_header(_ENTRY.replace("[2]", f"[0, {1 << 61}, {1 << 61}]").replace("8]", "0]")), "impossible shape"),
    "bytes": (_header(_ENTRY.replace("[2]", "[3]"), b"\0" * 8), "tensor 'w' has 8 bytes, and its shape needs 12"),
    "dtype": (_header(_ENTRY.replace("F32", "F6"), b"\0" * 8), "tensor 'w' is of dtype 'F6'"),
}


@pytest.mark.parametrize("name", WRONG_SAFETENSORS)
def test_wrong_safetensors_files_are_refused(name: str, tmp_path: Path) -> None:
    raw, text = WRONG_SAFETENSORS[name]
    with pytest.raises(SmeltError, match=text) as caught:
        read_safetensors(written(tmp_path / "a.safetensors", raw))
    assert caught.value.code == "SM091"


@pytest.mark.parametrize("form", MUTATED)
def test_mutated_files_are_read_or_refused(form: str, tmp_path: Path) -> None:
    """`python -m tests.quantization.mutate` reads more of them."""
    assert read_mutated(form, 2_000, 0, tmp_path / "a") > 500
