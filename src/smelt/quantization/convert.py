"""`smelt.quantize`: replaces the linear layers of a model by quantized ones.

    smelt.quantize(model, "int8")                                       rounds to the nearest integer
    smelt.quantize(model, "int4", group_size=64, calibrate=batches)     runs the model on samples first
    smelt.quantize(model, "int4", activations="int8")                   rounds the inputs of layers, too
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from smelt.base.errors import SmeltError
from smelt.quantization.calibrated import rounded_with_inputs
from smelt.quantization.layers import QuantizedLinear, QuantizedTensor, check_activations
from smelt.quantization.rounding import Grid, grid_of, packed, scale_dtype_of

BITS = {"int8": 8, "int4": 4}
_LEAST_GROUP = 16
_INT4_GROUP = 64
_MOMENT_BYTES = 1 << 30  # of the sums that one run over the samples collects; a larger model is run several times


def quantize(
    model: nn.Module,
    to: str,
    *,
    group_size: int | None = None,
    calibrate: Iterable[Any] | None = None,
    activations: str | None = None,
    skip: Callable[[str, nn.Linear], bool] | Sequence[str] = (),
) -> nn.Module:
    """Replace the `nn.Linear` layers of `model` by layers with integers of 8 or 4 bits, and return it.

    `to`: "int8" or "int4". `group_size`: weights of a row that share a scale; by default 64 in 4 bits, a row in 8.
    `calibrate`: samples of the model's input (a tensor, a tuple of arguments or a dict of keyword arguments each). The
    weights are then chosen so that the outputs of each layer change little on them. Without samples, each weight is
    rounded to the nearest integer. `activations`: "int8" also rounds the inputs of these layers to 8 bits, at each
    call, group by group: products are faster and less exact. `skip`: names of layers to leave as they are, or a
    function of name and layer.

    Layers whose weight is also used elsewhere stay as they are, such as an output layer tied to the embedding.
    """
    if to not in BITS:
        raise SmeltError("SM090", f"cannot quantize to {to!r}", hint="choose from " + ", ".join(BITS))
    if group_size is not None and (not isinstance(group_size, int) or group_size < _LEAST_GROUP):
        raise SmeltError("SM090", f"group_size={group_size!r}: groups have {_LEAST_GROUP} weights at least")
    check_activations(activations)
    bits = BITS[to]
    layers = dict(_layers(model, skip))
    groups = {name: _group_of(name, layer, bits, group_size) for name, layer in layers.items()}
    if calibrate is None:
        for name, layer in layers.items():
            _replace(model, layer, _rounded(layer, bits, groups[name]), activations)
        return model
    samples = list(calibrate)
    if not samples:
        raise SmeltError("SM090", "calibrate has no samples", hint="pass inputs of the model, or leave it out")
    for names in _runs(layers):
        moments = _moments(model, {name: layers[name] for name in names}, samples)
        for name in names:
            layer, moment = layers[name], moments.pop(name, None)
            weight = _rounded(layer, bits, groups[name]) if moment is None else None
            _replace(model, layer, weight or _calibrated(layer, moment, bits, groups[name]), activations)
    return model


def _layers(
    model: nn.Module, skip: Callable[[str, nn.Linear], bool] | Sequence[str]
) -> Iterator[tuple[str, nn.Linear]]:
    """The linear layers to replace, by the first of their names. Layers without weights stay, as do those whose weight
    is computed from parameters."""
    if isinstance(skip, str):
        skip = (skip,)
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    for name, module in model.named_modules():
        if type(module) is not nn.Linear or not name or not module.weight.numel():
            continue
        if owners.get(id(module.weight), 0) != 1:
            continue
        if not (skip(name, module) if callable(skip) else name in skip):
            yield name, module


def _group_of(name: str, layer: nn.Linear, bits: int, group_size: int | None) -> int:
    columns = layer.in_features
    group = group_size or (_INT4_GROUP if bits == 4 else columns)
    if columns % group or (bits == 4 and group % 2):
        raise SmeltError(
            "SM090",
            f"layer {name} has {columns} inputs, which groups of {group} do not divide",
            hint=f"pass another group_size, or skip=[{name!r}]",
        )
    return group


def _replace(model: nn.Module, layer: nn.Linear, weight: QuantizedTensor, activations: str | None) -> None:
    """Under all of its names."""
    quantized = QuantizedLinear(weight, layer.bias, layer.weight.dtype, activations=activations)
    quantized.train(layer.training)
    for parent in list(model.modules()):
        for own, child in parent._modules.items():
            if child is layer:
                setattr(parent, own, quantized)


# Rounding.


def _rounded(layer: nn.Linear, bits: int, group: int) -> QuantizedTensor:
    weight = layer.weight.detach()
    groups = weight.float().view(weight.shape[0], -1, group)
    grid = grid_of(groups, bits, scale_dtype_of(groups))
    return _quantized(grid.rounded(groups).view(weight.shape), grid, bits, scale_dtype_of(groups))


def _calibrated(layer: nn.Linear, moments: Tensor | None, bits: int, group: int) -> QuantizedTensor:
    assert moments is not None
    weight = layer.weight.detach()
    dtype = scale_dtype_of(weight.float().view(weight.shape[0], -1, group))
    integers, grid = rounded_with_inputs(weight, moments, bits, group, dtype)
    return _quantized(integers, grid, bits, dtype)


def _quantized(integers: Tensor, grid: Grid, bits: int, scale_dtype: torch.dtype) -> QuantizedTensor:
    scale = grid.scale.to(scale_dtype)
    if bits == 8:
        return QuantizedTensor(integers.to(torch.int8), scale)
    return QuantizedTensor(packed(integers), scale, grid.zero.to(torch.uint8), bits=4)


# Samples.


def _runs(layers: Mapping[str, nn.Linear]) -> Iterator[list[str]]:
    """Names of layers whose moments fit in memory together, in the order of the model."""
    names: list[str] = []
    size = 0
    for name, layer in layers.items():
        own = 4 * layer.in_features**2
        if names and size + own > _MOMENT_BYTES:
            yield names
            names, size = [], 0
        names.append(name)
        size += own
    if names:
        yield names


def _moments(model: nn.Module, layers: Mapping[str, nn.Linear], samples: Sequence[Any]) -> dict[str, Tensor]:
    """For each layer that runs, the sum of x xᵀ over its inputs."""
    moments: dict[str, Tensor] = {}

    def collect(name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = args[0] if args else kwargs["input"]
            rows = x.detach().reshape(-1, x.shape[-1]).float()
            product = rows.t() @ rows
            moments[name] = moments[name] + product if name in moments else product

        return hook

    training = [module for module in model.modules() if module.training]
    model.eval()
    with ExitStack() as stack, torch.no_grad():
        for module in training:
            stack.callback(setattr, module, "training", True)
        for name, layer in layers.items():
            stack.callback(layer.register_forward_pre_hook(collect(name), with_kwargs=True).remove)
        for sample in samples:
            if isinstance(sample, Mapping):
                model(**sample)
            elif isinstance(sample, tuple | list):
                model(*sample)
            else:
                model(sample)
    return moments
