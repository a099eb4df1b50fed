"""The code of kernels as a report carries it: each text once, all of them compressed.

    Codes().number(kernel)   →   3: the place among `texts()` of [kernel form, loops, LLVM IR, assembly]

Equal kernels, as every layer of a model has them, share one place: a model of many layers has the texts of one.
"""

import base64
import json
import zlib
from collections.abc import Callable
from dataclasses import replace

from smelt import codegen
from smelt.ir.kernel import AnyKernel
from smelt.ir.text import format_kernel


class Codes:
    """Gathers the kernels of a report."""

    def __init__(self) -> None:
        self._kernels: dict[str, AnyKernel] = {}

    def number(self, kernel: AnyKernel) -> int:
        named_alike = replace(kernel, name="kernel")
        key = format_kernel(named_alike)
        self._kernels.setdefault(key, named_alike)
        return list(self._kernels).index(key)

    def texts(self) -> list[list[str]]:
        """Of each: the kernel form, its scheduled loops, the LLVM IR and the assembly of this machine."""
        return [
            [text, *(_or_why_not(text_of, kernel) for text_of in (codegen.loops_of, codegen.source, _assembly))]
            for text, kernel in self._kernels.items()
        ]

    def packed(self) -> str:
        """The same for a page: JSON, deflated, in base64."""
        return base64.b64encode(zlib.compress(json.dumps(self.texts()).encode(), 9)).decode()


def _assembly(kernel: AnyKernel) -> str:
    return codegen.assembly([kernel])


def _or_why_not(text_of: Callable[[AnyKernel], str], kernel: AnyKernel) -> str:
    """A kernel that no code can be made of is shown all the same: somebody may be looking for the reason."""
    try:
        return text_of(kernel)
    except Exception as error:
        return f"there is none: {type(error).__name__}: {error}"
