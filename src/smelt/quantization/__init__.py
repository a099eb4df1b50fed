"""Quantized weights: linear layers that keep integers, their calibration, and readers of files that have them.

    smelt.quantize(model, "int4", group_size=64, calibrate=batches)   →   the model, its `nn.Linear`s replaced
"""

from smelt.quantization.convert import quantize
from smelt.quantization.gguf import GgufFile, read_gguf
from smelt.quantization.layers import QuantizedLinear, QuantizedTensor, rounded_to_bytes
from smelt.quantization.safetensors import read_safetensors

__all__ = [
    "GgufFile",
    "QuantizedLinear",
    "QuantizedTensor",
    "quantize",
    "read_gguf",
    "read_safetensors",
    "rounded_to_bytes",
]
