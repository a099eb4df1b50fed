"""Writes GGUF and safetensors files as their specifications say, and dequantizes blocks one weight at a time."""

import json
import random
import struct
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 8, "q4_K": 12, "q6_K": 14, "bf16": 30}
BLOCKS = {"q4_0": (32, 18), "q4_1": (32, 20), "q8_0": (32, 34), "q4_K": (256, 144), "q6_K": (256, 210)}


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<i?", 7, value)
    if isinstance(value, int):
        return struct.pack("<iI", 4, value)
    if isinstance(value, float):
        return struct.pack("<if", 6, value)
    if isinstance(value, str):
        return struct.pack("<i", 8) + _text(value)
    items = [_value(item) for item in value]
    return struct.pack("<i", 9) + items[0][:4] + struct.pack("<Q", len(items)) + b"".join(item[4:] for item in items)


def gguf(metadata: Mapping[str, Any], tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> bytes:
    """A file; tensors are (type, sizes outermost first, bytes)."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        head += _text(key) + _value(value)
    data = b""
    for name, (kind, shape, raw) in tensors.items():
        head += _text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape[::-1])
        head += struct.pack("<IQ", TYPES[kind], len(data))
        data += raw + b"\0" * (-len(raw) % 32)
    return head + b"\0" * (-len(head) % 32) + data


def safetensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    names = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int8: "I8", torch.int64: "I64"}
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    data = b""
    for name, tensor in tensors.items():
        raw = tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def random_blocks(kind: str, rows: int, columns: int, seed: int) -> bytes:
    """Blocks of random integers, whose float16 numbers are small."""
    chance = random.Random(seed)
    weights, size = BLOCKS[kind]
    places = {"q4_0": (0,), "q4_1": (0, 2), "q8_0": (0,), "q4_K": (0, 2), "q6_K": (208,)}[kind]
    found = b""
    for _ in range(rows * columns // weights):
        block = bytearray(chance.randbytes(size))
        for place in places:
            block[place : place + 2] = struct.pack("<e", chance.uniform(-0.02, 0.02))
        found += bytes(block)
    return found


def values_of(kind: str, raw: bytes) -> list[float]:
    """Every weight of some blocks."""
    _, size = BLOCKS[kind]
    return [value for first in range(0, len(raw), size) for value in _block(kind, raw[first : first + size])]


def _block(kind: str, raw: bytes) -> list[float]:
    def half(place: int) -> float:
        return float(struct.unpack_from("<e", raw, place)[0])

    if kind == "q8_0":
        return [half(0) * value for value in struct.unpack_from("<32b", raw, 2)]
    if kind in ("q4_0", "q4_1"):
        first = 2 if kind == "q4_0" else 4
        integers = [byte & 15 for byte in raw[first:]] + [byte >> 4 for byte in raw[first:]]
        return [half(0) * (n - 8) if kind == "q4_0" else half(0) * n + half(2) for n in integers]
    if kind == "q4_K":
        s, found = raw[4:16], []
        for j in range(8):
            if j < 4:
                scale, least = s[j] & 63, s[j + 4] & 63
            else:
                scale, least = s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4
            run = raw[16 + j // 2 * 32 : 48 + j // 2 * 32]
            found += [half(0) * scale * (byte >> 4 * (j % 2) & 15) - half(2) * least for byte in run]
        return found
    found = [0.0] * 256
    for part in range(2):
        lower, upper = raw[64 * part : 64 * part + 64], raw[128 + 32 * part : 160 + 32 * part]
        scales = struct.unpack_from("<8b", raw, 192 + 8 * part)
        for at in range(32):
            halves = lower[at] & 15, lower[at + 32] & 15, lower[at] >> 4, lower[at + 32] >> 4
            for number, low in enumerate(halves):
                value = (low | (upper[at] >> 2 * number & 3) << 4) - 32
                found[128 * part + at + 32 * number] = half(208) * scales[at // 16 + 2 * number] * value
    return found
