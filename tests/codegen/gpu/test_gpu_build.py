"""Kernels for GPUs as `compile_kernels` builds them: several modules side by side, on threads of their own."""

from dataclasses import replace

import pytest

from smelt.base import events
from smelt.base.options import Options
from smelt.codegen import build, compile_kernels
from smelt.codegen.build import compile_unaligned
from smelt.codegen.generator import named, numbered
from tests.ir.kernels import LAYER_NORM, SOFTMAX, sized
from tests.kernel_text import parse_kernel


def test_modules_are_built_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smelt.codegen.write_module._WORTH_A_THREAD", 20)
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


def test_functions_of_a_gpu_have_the_names_of_kernels() -> None:
    """Profilers show them. Equal kernels are built once all the same, by one of their names."""
    text = parse_kernel(sized(SOFTMAX, 65, 1031))
    first, second = (replace(text, name=name, target="sm_90") for name in ("k0_amax_sub_exp", "k7_amax_sub_exp"))
    before = events.counters["kernels_built"]
    built = compile_kernels([first, second], Options())
    assert events.counters["kernels_built"] == before + 1
    again = compile_kernels([replace(second, name="k3_amax_sub_exp")], Options())["k3_amax_sub_exp"]
    for each in (*built.values(), again, compile_unaligned(second)):
        assert each.phases and all("_amax_sub_exp" in phase.symbol for phase in each.phases)
        assert all(f".entry {phase.symbol}(" in each.loaded.ptx for phase in each.phases)
    assert again.phases == built[first.name].phases and again.symbol in built


def test_names_are_told_apart_within_a_module() -> None:
    kernels = [replace(parse_kernel(sized(SOFTMAX, 8, 32 * number)), name=name) for number, name in NAMES]
    assert named(kernels) == ["a_b_k0", "c", "a_b_k2"] and numbered(kernels) == ["k0", "k1", "k2"]


NAMES = ((1, "a.b"), (2, "c"), (3, "a-b"))
