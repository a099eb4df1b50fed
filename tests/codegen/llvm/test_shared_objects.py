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
from smelt.codegen.llvm.print_module import apart, bundle
from smelt.codegen.loops.builder import Builder, param
from smelt.codegen.processors import PROCESSORS
from smelt.ir.loops import Function, Module, Table, Value

X = param("x")


def _twice(name: str = "help.twice", factor: int = 2) -> Function:
    b = Builder(TARGET)
    b.give(b.shl(X, 1) if factor == 2 else b.mul(X, factor))
    return b.function(name, [X], "shared", result="i64")


def _calling(name: str, callee: str) -> Function:
    b = Builder(TARGET)
    b.give(b.call(callee, X, result="i64"))
    return b.function(name, [X], "shared", result="i64")


def _more() -> Function:
    b, function = Builder(replace(TARGET, tune_cpu="generic")), param("f", "ptr")
    b.give(
        b.call(function, b.intrinsic("smax", b.call("help.twice", X, result="i64"), b.const("i64", 5)), result="i64")
    )
    return b.function("help.more", [X, function], "shared", result="i64")


def _pi() -> Function:
    b, x = Builder(TARGET), param("x", "f64")
    b.give(b.fmul(x, 3.140625))
    return b.function("help.pi", [x], "shared", result="f64")


def _table() -> Function:
    b = Builder(TARGET)
    b.give(b.load(b.element(Value("@help.numbers", "ptr"), "i64", X), "i64"))
    numbers = Table("help.numbers", (b.const("i64", 30), b.const("i64", 40)))
    return replace(b.function("help.table", [X], "shared", result="i64"), tables=(numbers,))


def _entry() -> Function:
    b = Builder(TARGET)
    more = b.call("help.more", X, Value("@help.twice", "ptr"), result="i64")
    b.give(b.add(more, b.call("help.table", b.const("i64", 1), result="i64")))
    return b.function("k0", [X], "entry", result="i64")


def _other_entry() -> Function:
    b, x = Builder(TARGET), param("x", "f64")
    b.give(b.call("help.pi", x, result="f64"))
    return b.function("k0", [x], "entry", result="f64")


def _module(twice: Function) -> Module:
    return Module((_entry(),), (twice, _more(), _pi(), _table()))


TARGET = describe_host()
MODULE = _module(_twice())
OTHER = Module((_other_entry(),), (_pi(),))

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


def _answer(module: Module = MODULE, threads: int = 1) -> int:
    (built,) = engine.load([module], describe_host(), threads)
    assert built.image is not None
    return int(ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(built.address("k0"))(7))


def test_modules_declare_shared_functions() -> None:
    own, shared = apart(MODULE)
    assert set(shared) == {"help.twice", "help.more", "help.pi", "help.table"}
    assert "declare hidden i64 @help.more(i64, ptr)\n" in own and "@help.numbers" not in own
    assert shared["help.more"].calls == {"help.twice"}
    text = bundle([shared["help.more"]], shared)
    assert "declare hidden i64 @help.twice(i64)" in text and "declare i64 @llvm.smax.i64(i64, i64)" in text
    head = 'define hidden i64 @help.more(i64 %x, ptr %f) nounwind "tune-cpu"="generic" section ".text.help.more" {\n'
    assert head in text


def test_shared_functions_keep_their_tables() -> None:
    _, shared = apart(_module(_calling("help.twice", "help.table")))
    assert shared["help.twice"].calls == {"help.table"}
    text = bundle([shared["help.table"]], shared)
    assert "@help.numbers = private constant" in text and 'section ".text.help.table" {\n' in text


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_they_are_called(threads: int, made: list[str]) -> None:
    assert _answer(threads=threads) == 28 + 40
    assert len(made) == 1 + min(threads, 4)


def test_a_process_makes_them_once(made: list[str]) -> None:
    assert [_answer(), _answer(), engine.load([OTHER], describe_host())[0].image is not None] == [68, 68, True]
    assert sum("define hidden" in text for text in made) == 1 and len(made) == 4


def test_a_machine_makes_them_once(disk: Path, made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert _answer() == 68
    assert len(list(disk.iterdir())) == 4
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
    assert _answer(_module(_twice(factor=3))) == 63 + 40
    assert _answer() == 68
    remade = [text for text in made if "define hidden" in text][1]
    assert "@help.more" in remade and "@help.pi" not in remade


def test_an_image_has_what_it_calls() -> None:
    images = [engine.load([each], describe_host())[0].image for each in (MODULE, OTHER)]
    alone = engine.load([Module((*OTHER.helpers, *OTHER.functions))], describe_host())[0].image
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
