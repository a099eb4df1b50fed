"""The targets that come with the package, offered to `device.registry`. Loads neither LLVM nor what makes code."""

from typing import Any

from smelt import _native
from smelt.device import Target, register


def _describe_cpu() -> Target:
    from smelt.codegen.cpu.target import describe_host

    return describe_host()


def _cpu_generator() -> Any:
    from smelt.codegen.cpu import cpu_generator

    return cpu_generator


register("cpu", _describe_cpu, generator=_cpu_generator, launcher=_native.Launcher, devices=("cpu",))
