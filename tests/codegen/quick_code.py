"""LLVM's code generator at its quickest, which is most of the time of tests of schedules otherwise.

    with quick_code(): ...      machine code that runs is written quickly, in processes that it starts too
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from smelt.codegen.llvm import compile as compiling
from smelt.codegen.llvm import shared_objects
from smelt.device import Target

_QUICK = "SMELT_TESTS_QUICK_CODE"
_machine, _version = compiling.machine, shared_objects.version
_until_the_end = ExitStack()


@contextmanager
def quick_code() -> Iterator[None]:
    def machine(target: Target, level: int = 0) -> Any:
        return _machine(target, level)

    with (
        mock.patch.dict(os.environ, {_QUICK: "1"}),
        mock.patch.object(compiling, "machine", machine),
        mock.patch.object(shared_objects, "version", lambda: f"{_version()} quick"),  # code that is kept is kept apart
    ):
        yield


def continue_quickly() -> None:
    """For a process that `quick_code` may have started: the same until it ends."""
    if os.environ.get(_QUICK):
        _until_the_end.enter_context(quick_code())
