"""Graphs and programs on another device than they say: a chip's graph as the host's, and the host's program on a chip.

    x: f32[3] on sim   ── hosted ──►   the same graph on the host   ── stages ──►   program   ── on_chip ──►   on sim

The stages know the host and CUDA. A chip is to them a host without a library: all that was built for that holds.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from smelt.device.host_library import HOST
from smelt.ir.graph import Traced, copied_graph, outputs
from smelt.ir.kernel import SIZES
from smelt.ir.program import Launch, Program, ProgramBuffer
from smelt.ir.substitute_sizes import resized
from smelt.ir.tensorspec import TensorSpec, set_spec, spec_of, tensor_specs


def moved(value: Any, source: torch.device, to: torch.device) -> Any:
    """`value` with another device wherever it names `source`."""
    return resized(value, lambda _: to, lambda each: _is(each, source))


def _is(value: Any, device: torch.device) -> bool:
    return isinstance(value, torch.device) and value.type == device.type


def devices_of(traced: Traced) -> Iterator[torch.device]:
    """The devices that a torch-level graph's inputs are on, and those that its calls name."""
    for node in traced.graph.nodes:
        yield from (spec.device for spec in tensor_specs(node))
        yield from _named((node.args, dict(node.kwargs)))
    yield from (tensor.device for tensor in traced.constants.values())


def _named(value: Any) -> Iterator[torch.device]:
    if isinstance(value, torch.device):
        yield value
    elif isinstance(value, dict):
        yield from _named(list(value.values()))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _named(item)


def why_not_hosted(traced: Traced, chip: torch.device) -> str | None:
    """Why a graph cannot be computed by a chip alone. Numbers of the host's that it is given are copied there."""
    returned = outputs(traced.graph)
    for node in traced.graph.nodes:
        for spec in tensor_specs(node):
            if spec.device.type == chip.type:
                continue
            if node.op != "placeholder" or spec.shape or node in returned or spec.device.type != HOST.type:
                return f"{node.name} is on {spec.device}, beside tensors on {chip.type}"
        others = {each for each in _named((node.args, dict(node.kwargs))) if each.type != chip.type}
        if others:
            return f"{node.name} names the device {others.pop()}, beside tensors on {chip.type}"
        if any(value in _OTHER_NAMES for value in (*node.args, *node.kwargs.values()) if isinstance(value, str)):
            return f"{node.name} names another device, beside tensors on {chip.type}"
    return None


_OTHER_NAMES = (HOST.type, "cuda", "meta")


def hosted(traced: Traced, chip: torch.device) -> Traced:
    """The graph of a chip as the host's."""
    graph = copied_graph(traced.graph)
    for node in graph.nodes:
        spec = spec_of(node)
        if node.op == "placeholder" and isinstance(spec, TensorSpec) and spec.device.type == HOST.type:
            set_spec(node, replace(spec, is_number=True))  # `why_not_hosted` lets no others pass
        else:
            set_spec(node, moved(spec, chip, HOST))
        node.args = _renamed(moved(node.args, chip, HOST), chip)
        node.kwargs = _renamed(moved(dict(node.kwargs), chip, HOST), chip)
    return replace(traced, graph=graph)


def _renamed(value: Any, chip: torch.device) -> Any:
    """Devices may go by their names."""
    if isinstance(value, str):
        return HOST.type if value.partition(":")[0] == chip.type else value
    if isinstance(value, dict):
        return {name: _renamed(item, chip) for name, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_renamed(item, chip) for item in value)
    return value


def names_devices(traced: Traced) -> bool:
    """Whether calls of a graph name a device: run elsewhere, they would still mean that one."""
    return any(True for node in traced.graph.nodes for _ in _named((node.args, dict(node.kwargs)))) or any(
        isinstance(value, str) for node in traced.graph.nodes for value in (*node.args, *node.kwargs.values())
    )


def on_chip(program: Program, chip: torch.device) -> Program:
    """A program of the host's with its memory on a chip; sizes and numbers that launches pass along stay."""
    sizes = set()
    for step in program.steps:
        if isinstance(step, Launch):
            pairs = zip((each for kernel, _ in step.parts for each in kernel.parameters), step.args, strict=True)
            sizes |= {name for parameter, name in pairs if parameter.name == SIZES}

    def placed(buffer: ProgramBuffer) -> ProgramBuffer:
        stays = buffer.name in sizes or buffer.spec.is_number
        return buffer if stays else replace(buffer, spec=replace(buffer.spec, device=chip))

    return replace(
        program,
        buffers=tuple(placed(each) for each in program.buffers),
        constants=tuple((name, each if name in sizes else each.to(chip)) for name, each in program.constants),
        steps=tuple(step if isinstance(step, Launch) else moved(step, HOST, chip) for step in program.steps),
    )

