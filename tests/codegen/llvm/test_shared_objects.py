"""Functions that modules share: made once in a process and once on a machine, and linked into each image."""

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from smelt.base.options import config
from smelt.codegen.cpu.target import describe_host
from smelt.codegen.llvm import compile as engine
from smelt.codegen.llvm import shared_objects
from smelt.codegen.llvm.link import CannotLink, link
from smelt.codegen.llvm.module_text import ModuleText, apart, bundle
from smelt.codegen.processors import PROCESSORS

HELPERS = {
    "twice": "define internal i64 @help.twice(i64 %x) {\n  %y = shl i64 %x, 1\n  ret i64 %y\n}\n",
    "more": "define internal i64 @help.more(i64 %x, ptr %f) \"tune-cpu\"=\"generic\" {\nentry:\n"
    "  %t = call i64 @help.twice(i64 %x)\n  %u = call i64 @llvm.smax.i64(i64 %t, i64 5)\n"
    "  %v = call i64 %f(i64 %u)\n  ret i64 %v\n}\n",
    "pi": "define internal double @help.pi(double %x) {\n  %y = fmul double %x, 3.140625\n  ret double %y\n}\n",
    "table": "@help.numbers = internal constant [2 x i64] [i64 30, i64 40]\n"
    "define internal i64 @help.table(i64 %x) {\n  %p = getelementptr i64, ptr @help.numbers, i64 %x\n"
    "  %v = load i64, ptr %p\n  ret i64 %v\n}\n",
}
DECLARED = ("declare i64 @llvm.smax.i64(i64, i64)",)
CALLS = """
define i64 @k0(i64 %x) {
  %a = call i64 @help.more(i64 %x, ptr @help.twice)
  %b = call i64 @help.table(i64 1)
  %c = add i64 %a, %b
  ret i64 %c
}
"""
MODULE = ModuleText(DECLARED, tuple(HELPERS.items()), CALLS)
OTHER_CALLS = "define double @k0(double %x) {\n  %y = call double @help.pi(double %x)\n  ret double %y\n}\n"
OTHER = ModuleText((), (("pi", HELPERS["pi"]),), OTHER_CALLS)

pytestmark = pytest.mark.skipif("linux" not in describe_host().triple, reason="objects are not ELF")


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Nothing is known; the texts that LLVM is given."""
    texts: list[str] = []
    ask = engine._object

    def noted(text: str, target: object) -> bytes:
        texts.append(text)
        return ask(text, target)  # type: ignore[arg-type]

    monkeypatch.setattr(shared_objects, "_objects", {})
    monkeypatch.setattr(engine, "_object", noted)
    yield texts


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SMELT_CACHE", "1")
    monkeypatch.setattr(config, "disk_cache_dir", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _answer(module: ModuleText = MODULE, threads: int = 1) -> int:
    (built,) = engine.load([module], describe_host(), threads)
    assert built.image is not None
    return int(ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(built.address("k0"))(7))


def test_functions_with_data_of_their_own_stay() -> None:
    own, shared = apart(MODULE)
    assert set(shared) == {"help.twice", "help.more", "help.pi"}
    assert "declare hidden i64 @help.more(i64 %x, ptr %f)\n" in own and "@help.numbers = internal" in own
    assert shared["help.more"].calls == {"help.twice"} and shared["help.more"].declarations == DECLARED
    text = bundle([shared["help.more"]], shared)
    assert "declare hidden i64 @help.twice(i64 %x)" in text
    assert 'define hidden i64 @help.more(i64 %x, ptr %f) "tune-cpu"="generic" section ".text.help.more" {\n' in text


def test_what_calls_a_function_that_stays_does_too() -> None:
    calling = HELPERS["twice"].replace("shl i64 %x, 1", "call i64 @help.table(i64 %x)")
    _, shared = apart(ModuleText(DECLARED, tuple((HELPERS | {"twice": calling}).items()), CALLS))
    assert set(shared) == {"help.pi"}


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_they_are_called(threads: int, made: list[str]) -> None:
    assert _answer(threads=threads) == 28 + 40
    assert len(made) == 1 + min(threads, 3)


def test_a_process_makes_them_once(made: list[str]) -> None:
    assert [_answer(), _answer(), engine.load([OTHER], describe_host())[0].image is not None] == [68, 68, True]
    assert sum("define hidden" in text for text in made) == 1 and len(made) == 4


def test_a_machine_makes_them_once(disk: Path, made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert _answer() == 68
    assert len(list(disk.iterdir())) == 3
    monkeypatch.setattr(shared_objects, "_objects", {})
    assert _answer() == 68
    assert sum("define hidden" in text for text in made) == 1
    for file in disk.iterdir():
        file.write_bytes(file.read_bytes()[:-3])
    monkeypatch.setattr(shared_objects, "_objects", {})
    assert _answer() == 68
    assert sum("define hidden" in text for text in made) == 2


def test_one_that_calls_another_function_of_the_same_name_is_another(made: list[str]) -> None:
    """The object with `more` has the old `twice` in it."""
    assert _answer() == 68
    thrice = HELPERS["twice"].replace("shl i64 %x, 1", "mul i64 %x, 3")
    assert _answer(replace(MODULE, helpers=tuple((HELPERS | {"twice": thrice}).items()))) == 63 + 40
    assert _answer() == 68
    remade = [text for text in made if "define hidden" in text][1]
    assert "@help.more" in remade and "@help.pi" not in remade


def test_an_image_has_what_it_calls() -> None:
    images = [engine.load([each], describe_host())[0].image for each in (MODULE, OTHER)]
    alone = engine.load([str(OTHER)], describe_host())[0].image
    assert all(image is not None for image in (*images, alone))
    assert [dict(image.symbols).keys() for image in images] == [{"k0"}, {"k0"}]  # type: ignore[union-attr]
    assert len(images[1].code) <= len(alone.code) + 32  # type: ignore[union-attr]


def test_a_library_without_what_it_should_have_is_refused() -> None:
    own, shared = apart(OTHER)
    target = describe_host()
    calling, defining = (engine._object(text, target) for text in (own, bundle(shared.values(), shared)))
    assert link(calling, {"help.pi": defining}).symbols
    with pytest.raises(CannotLink, match=r"does not define it"):
        link(calling, {"help.pi": calling})


@pytest.mark.parametrize("name", ["x86-64-v3", "aarch64", "riscv64"])
def test_for_other_processors(name: str) -> None:
    """Addresses of functions in other objects are known when they are linked: no table is needed."""
    engine.make_all_targets_ready()
    target = PROCESSORS[name]
    own, shared = apart(MODULE)
    both = engine._object(bundle(shared.values(), shared), target)
    image = link(engine._object(own, target), dict.fromkeys(shared, both))
    assert dict(image.symbols).keys() == {"k0"} and not image.slots
