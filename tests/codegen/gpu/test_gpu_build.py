"""Kernels for GPUs as `compile_kernels` builds them: several modules side by side, on threads of their own."""

from dataclasses import replace

import pytest

from smelt.base.options import Options
from smelt.codegen import build, compile_kernels
from tests.ir.kernels import LAYER_NORM, SOFTMAX, sized
from tests.kernel_text import parse_kernel


def test_modules_are_built_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_WORTH_A_THREAD", 1000)
    monkeypatch.setattr(build.torch, "get_num_threads", lambda: 3)
    texts = [sized(text, 64, 1024 * number) for text in (SOFTMAX, LAYER_NORM) for number in (1, 2, 3)]
    kernels = [
        replace(parse_kernel(text), name=f"kernel{number}", target="sm_90") for number, text in enumerate(texts)
    ]
    built = compile_kernels(kernels, Options())
    modules = {id(each.loaded): each.loaded.ptx for each in built.values()}
    assert len(modules) == 3
    for each in built.values():
        assert all(f".entry {phase.symbol}(" in modules[id(each.loaded)] for phase in each.phases)
