"""Code for processors that this machine is not: targets by name, images and objects of every format."""

import struct

import pytest
import torch

import smelt
from smelt.base.errors import SmeltError
from smelt.codegen import processors, targets
from smelt.codegen.ahead_of_time import build_for, find_target, write_for
from smelt.codegen.llvm.compile import make_all_targets_ready, object_codes
from smelt.codegen.llvm.print_module import print_module
from smelt.device import find, names
from smelt.ir.artifact_file.code import CodeSlot
from smelt.ir.artifact_file.layout import FEATURES, Machine, feature_mask
from smelt.ir.substitute_sizes import shape_env_of
from smelt.symbolic.expressions import Expression
from tests.ir.kernels import COLUMN_SUM, LAYER_NORM, SOFTMAX, sized
from tests.kernel_text import parse_kernel

KERNELS = [parse_kernel(sized(text, 5, 33)) for text in (SOFTMAX, LAYER_NORM, COLUMN_SUM)]
MACHINES = {"x86_64": Machine.X86_64, "aarch64": Machine.AARCH64, "riscv64": Machine.RISCV64}
LINKED = ("host", "x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64", "riscv64", "riscv64-v")


def test_processors_are_in_the_registry() -> None:
    assert set(targets.PROCESSORS) == set(processors.PROCESSORS) <= set(names())
    assert find("riscv64-v").vector_bits == 128 and find("wasm32").pointer_bytes == 4


def test_what_a_loader_checks() -> None:
    assert "avx512f" in find_target("x86-64-v4").required_features
    assert {"avx2", "fma"} <= set(find_target("x86-64-v3").required_features)
    assert "avx" not in find_target("x86-64-v2").required_features
    assert find_target("aarch64").required_features == ()
    host = find_target("host")
    assert all(f"+{each}" in host.features.split(",") for each in host.required_features)


def test_an_unknown_name_names_the_choices() -> None:
    with pytest.raises(SmeltError, match="x86-64-v3"):
        find_target("pentium")


@pytest.mark.parametrize("name", LINKED)
def test_images(name: str) -> None:
    code = build_for([*KERNELS, KERNELS[0]], find_target(name))
    assert [entry.symbol for entry in code.entries] == ["k0", "k1", "k2", "k0"]
    assert {"k0", "k1", "k2"} <= dict(code.image.symbols).keys()
    assert code.outside == ("smelt_parallel_for",)
    assert all(isinstance(slot, CodeSlot) and slot.offset % 8 == 0 for slot in code.image.slots)


def test_several_modules_become_one_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smelt.codegen.write_module._WORTH_A_THREAD", 1)
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    code = build_for(KERNELS, find_target("riscv64"))
    assert {"k0", "k1", "k2"} <= dict(code.image.symbols).keys()


def test_sizes_are_over_the_kernels_own_symbols() -> None:
    kernel = parse_kernel(SOFTMAX.format(rows="s0", cols="s1", total="s0*s1"), {"s0": 5, "s1": 33})
    shape_env = shape_env_of(kernel)
    assert shape_env is not None
    (entry,) = build_for([kernel], find_target("x86-64-v3")).entries
    own = set(shape_env.symbols)
    assert entry.params
    assert all(isinstance(each, Expression) and each.symbols() <= own for each in entry.params)
    assert set(entry.facts) <= set(shape_env.guards)


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("x86-64-v3", b"\x7fELF\x02\x01"),
        ("aarch64-android", b"\x7fELF\x02\x01"),
        ("riscv64-none", b"\x7fELF\x02\x01"),
        ("aarch64-macos", struct.pack("<II", 0xFEEDFACF, 0x0100000C)),
        ("x86-64-v3-macos", struct.pack("<II", 0xFEEDFACF, 0x01000007)),
        ("x86-64-v3-windows", struct.pack("<H", 0x8664)),
        ("aarch64-windows", struct.pack("<H", 0xAA64)),
        ("wasm32", b"\0asm\1\0\0\0"),
    ],
)
def test_objects(name: str, start: bytes) -> None:
    make_all_targets_ready()
    written = write_for(KERNELS, find_target(name), prefix="model_k")
    (code,) = object_codes([print_module(each) for each in written.modules], find_target(name))
    assert code.startswith(start)
    assert [entry.symbol for entry in written.entries] == ["model_k0", "model_k1", "model_k2"]
    assert all(entry.symbol.encode() in code for entry in written.entries)


def test_every_feature_has_a_bit_in_files() -> None:
    for target in processors.PROCESSORS.values():
        machine = MACHINES.get(target.triple.partition("-")[0])
        assert machine is None or feature_mask(machine, target.required_features) >= 0
    assert set(processors.HOST_FEATURES["aarch64"]) <= set(FEATURES[Machine.AARCH64])
    assert set(processors.HOST_FEATURES["x86_64"]) <= set(FEATURES[Machine.X86_64])
    assert set(processors.HOST_FEATURES["riscv64"]) <= set(FEATURES[Machine.RISCV64])


@pytest.mark.parametrize("name", ["wasm32", "x86-64-v3-macos", "aarch64-windows"])
def test_files_are_loaded_on_linux_alone(name: str) -> None:
    with pytest.raises(SmeltError, match="save_static"):
        build_for(KERNELS, find_target(name))


@pytest.mark.parametrize("name", ["riscv64", "wasm32", "x86-64-v4"])
def test_nothing_is_compiled_here_for_another_machine(name: str) -> None:
    with pytest.raises(SmeltError, match="does not run here"):
        smelt.compile(torch.sin, options={"target": name})(torch.ones(3))
