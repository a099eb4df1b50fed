"""A model as ONNX Runtime runs it: exported by PyTorch at the first call, then a session with PyTorch's thread count.

    model = OnnxModel(module)
    model(x)     the first call exports and loads; later ones take and return tensors as the module does

Outputs come as a flat list, in the order in which the module's tensors stand. ONNX Runtime is given what it likes best:
constant weights, fixed sizes, all of its graph optimizations, and its threads spin after a call. Those spinning threads
take the cores from whoever runs next, so the harness measures in blocks with a pause before each.
"""

import importlib
import importlib.util
from typing import Any

import torch
from torch import nn

NEEDED = ("onnxruntime", "onnx", "onnxscript")
OPSET = 20  # 18 and 23, which has attention as one operator, gave ONNX Runtime the same times


class CannotExport(RuntimeError):
    """PyTorch's exporter or ONNX Runtime does not take the model; the text says why, on one line."""


def missing() -> list[str]:
    """The packages that would have to be installed first."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def _one_line(error: BaseException) -> str:
    """An exporter's error, whose cause stands last in a long text with advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    said = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {said[0] if said else ''}"


def exported(module: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """The model as ONNX's bytes, weights inside."""
    try:
        program = torch.onnx.export(
            module, inputs, kwargs=kwargs, dynamo=True, opset_version=OPSET, verbose=False, optimize=True
        )
        assert program is not None
        written: bytes = program.model_proto.SerializeToString()
    except Exception as error:  # whatever an exporter raises is the reason
        raise CannotExport(f"no export: {_one_line(error)}") from error
    return written


class OnnxModel:
    """A module that ONNX Runtime runs in place of PyTorch."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.session: Any = None
        self.names: list[str] = []

    def _load(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if absent := missing():
            raise CannotExport(f"not installed: pip install {' '.join(absent)}")
        onnxruntime: Any = importlib.import_module("onnxruntime")  # it may be missing where types are checked
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        model = exported(self.module, inputs, kwargs)
        try:
            self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise CannotExport(f"exported, but does not load: {_one_line(error)}") from error
        self.names = [argument.name for argument in self.session.get_inputs()]

    def __call__(self, *inputs: torch.Tensor, **kwargs: torch.Tensor) -> list[torch.Tensor]:
        if self.session is None:
            self._load(inputs, kwargs)
        given = (*inputs, *kwargs.values())
        feed = {name: x.numpy() for name, x in zip(self.names, given, strict=True)}
        return [torch.from_numpy(found) for found in self.session.run(None, feed)]
