"""The file of an artifact: what is written is read back, and what breaks a rule is refused with a reason."""

import random
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from smelt import _native
from smelt.ir.artifact_file.artifact import ArtifactFile, Data, check_table
from smelt.ir.artifact_file.container import ArtifactError, read_sections, signed
from smelt.ir.artifact_file.layout import FEATURES, FileHeader, Machine, SectionRecord, feature_mask
from smelt.ir.artifact_file.read import read
from smelt.ir.artifact_file.write import save, write
from smelt.ir.table import records as r
from smelt.ir.table.layout import words_of
from smelt.ir.table.records import Bind, RegisterKind
from smelt.ir.table.write import TableWriter
from smelt.symbolic.postfix import Op
from tests import processes
from tests.ir.artifact_file.example import artifact, table


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    made = artifact()
    data = write(made)
    found = read(data)
    assert found == made
    save(made, tmp_path / "model.smelt")
    assert (tmp_path / "model.smelt").read_bytes() == data
    assert list(tmp_path.iterdir()) == [tmp_path / "model.smelt"]
    assert write(read(data)) == data


def test_weights_and_code_are_on_pages() -> None:
    data = write(artifact())
    sections = read_sections(memoryview(data))
    assert [section.offset % 4096 for section in sections if section.kind in (3, 4, 5)] == [0, 0, 0, 0]
    assert [section.target for section in sections] == [-1, 0, 0, 1, 1, -1, -1]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_checksums_are_those_of_the_specification(data: bytes, expected: int) -> None:
    assert _native.checksum(data) == expected


def test_features_have_bits_by_name() -> None:
    assert feature_mask(Machine.X86_64, ["sse3", "ssse3"]) == 3
    with pytest.raises(KeyError):
        feature_mask(Machine.AARCH64, ["avx2"])
    assert all(len(names) < 63 and len(set(names)) == len(names) for names in FEATURES.values())


def test_reading_needs_no_torch() -> None:
    script = """
import importlib.util, pathlib, sys, types
sys.modules["torch"] = None
package = types.ModuleType("smelt")  # what its __init__ imports beside is not asked for here
package.__path__ = [str(pathlib.Path("src/smelt"))]
sys.modules["smelt"] = package
import smelt.ir.artifact_file.read, smelt.ir.artifact_file.write
"""
    done = processes.run_new(script)
    assert done.returncode == 0, done.stderr


# --- records that break a rule --------------------------------------------------------------------------------


def changed_table(change: Callable[[r.Table], r.Table]) -> ArtifactFile:
    made = artifact()
    return replace(made, targets=(replace(made.targets[0], table=change(table())),))


def in_body(**fields: object) -> ArtifactFile:
    """The example with other fields of the variant in the loop."""

    def change(given: r.Table) -> r.Table:
        body = replace(given.states[1].variants[0], **fields)  # type: ignore[arg-type]
        return replace(given, states=(given.states[0], replace(given.states[1], variants=(body,)), given.states[2]))

    return changed_table(change)


def in_register(number: int, **fields: object) -> ArtifactFile:
    def change(given: r.Table) -> r.Table:
        registers = list(given.registers)
        registers[number] = replace(registers[number], **fields)  # type: ignore[arg-type]
        return replace(given, registers=tuple(registers))

    return changed_table(change)


DEEP = tuple([r.Instruction(Op.PUSH, 1)] * 33 + [r.Instruction(Op.ADD)] * 32)
BODY = table().states[1].variants[0]
WRONG = {
    "data of another size": (in_register(2, bytes=12), "a wrong bytes"),
    "data that is not there": (replace(artifact(), weights=Data({0: b"12"})), "a wrong data"),
    "data that ends too early": (in_register(2, data=4), "a wrong data"),
    "data that begins too early": (in_register(2, data=-64), "a wrong data"),
    "data at an odd place": (replace(in_register(2, data=2), weights=Data({0: bytes(20)})), "a wrong data"),
    "strides of a local": (in_register(5, strides=(1, 1)), "a wrong data"),
    "strides backwards": (in_register(3, strides=(-1,)), "a wrong strides"),
    "an unknown dtype": (in_register(0, dtype="float12"), "no dtype 'float12'"),
    "sizes the wrong way round": (in_register(0, dims=(r.Dim(5, 4),)), "a wrong dims"),
    "constants of no fixed size": (in_register(2, dims=(r.Dim(1, 4),)), "a wrong dims"),
    "an input with data": (in_register(0, data=0, bytes=16), "a wrong data"),
    "an optional local": (in_register(5, optional=True), "a wrong optional"),
    "choices of a float": (in_register(0, choices=("a",)), "a wrong choices"),
    "two inputs of one name": (in_register(1, name="x"), "a wrong name"),
    "a symbol of no dimension": (in_body(symbols=(r.Symbol("rows", Bind.SIZE, 5, 2),)), "a wrong symbols"),
    "a symbol of no register": (in_body(symbols=(r.Symbol("rows", Bind.SIZE, 9, 0),)), "a wrong register_"),
    "the value of a tensor": (in_body(symbols=(r.Symbol("rows", Bind.VALUE, 5),)), "a wrong symbols"),
    "bounds the wrong way round": (in_body(symbols=(r.Symbol("rows", Bind.SIZE, 5, 0, 3, 2),)), "a wrong symbols"),
    "a symbol that is not there": (in_body(arena_bytes=r.symbol(1)), "a wrong arena_bytes"),
    "an expression of nothing": (in_body(arena_bytes=()), "a wrong code"),
    "an expression that takes too much": (in_body(arena_bytes=(r.Instruction(Op.ADD),)), "a wrong code"),
    "an expression that leaves too much": (in_body(arena_bytes=r.number(1) + r.number(1)), "a wrong code"),
    "a deep expression": (in_body(arena_bytes=DEEP), "a wrong code"),
    "a number of too many bits": (in_body(arena_bytes=r.number(1 << 63)), "cannot be written"),
    "a name that is no text": (in_register(0, name="\ud800"), "cannot be written"),
    "a name with a zero byte": (in_register(0, name="a\0b"), r"cannot be written: .*zero byte: 'a\\x00b'"),
    "a register produced twice": (in_body(produced=BODY.produced[:1] * 2), "a wrong produced"),
    "a constant produced": (in_body(produced=(r.Produced(2, (r.number(4),)), BODY.produced[1])), "a wrong produced"),
    "another rank produced": (in_body(produced=(r.Produced(5), BODY.produced[1])), "a wrong produced"),
    "a constant written": (in_body(values=(r.RegisterValue(2, r.number(1), writes=True),)), "a wrong values"),
    "an input written": (in_body(values=(r.RegisterValue(0, r.number(1), writes=True),)), "a wrong values"),
    "a value that is not produced": (in_body(values=(r.ProducedValue(2, r.number(1)),)), "a wrong values"),
    "a kernel that is not there": (in_body(steps=(r.Launch(2, ()),)), "a wrong kernel"),
    "too few buffers": (in_body(steps=(r.Launch(0, (0, 1)),)), "a wrong steps"),
    "a value that is not there": (in_body(steps=(r.Launch(1, (7,)),)), "no such value"),
    "a copy to what is read": (in_body(steps=(r.Copy(0, 1, r.number(4)),)), "not written"),
    "a branch on a float": (in_body(next=r.Branch(5, 1, 2)), "a wrong register"),
    "a state that is not there": (in_body(next=r.Jump(3)), "a wrong state"),
    "a loop without an end": (in_body(next=r.Jump(1)), "to an end"),
    "too few outputs": (in_body(next=r.Return((r.Returned(5),))), "a wrong outputs"),
    "an output of another dtype": (in_body(next=r.Return((r.Returned(6), r.Returned(None)))), "a wrong outputs"),
    "no such register": (in_body(next=r.Return((r.Returned(-2), r.Returned(None)))), "a wrong register_"),
    "a view of other rank": (
        in_body(next=r.Return((r.Returned(5, (), (), r.ZERO), r.Returned(None)))),
        "a wrong outputs",
    ),
    "a view without strides": (
        in_body(next=r.Return((r.Returned(5), r.Returned(5, (r.number(1),), (), r.ZERO)))),
        "a wrong outputs",
    ),
    "a view of no register": (
        in_body(next=r.Return((r.Returned(5), r.Returned(9, (), (), r.ZERO)))),
        "a wrong register_",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_records_that_break_a_rule_are_not_written(name: str) -> None:
    made, reason = WRONG[name]
    with pytest.raises(ArtifactError, match=reason):
        write(made)


# --- bytes that are not a file ----------------------------------------------------------------------------------


def sealed(data: bytearray) -> bytes:
    """With checksums that hold again, so that what is wrong is found behind them."""
    head = struct.calcsize(f"<{len(FileHeader._fields)}q")
    header = FileHeader(*struct.unpack_from("<6q", data))
    width = 8 * len(SectionRecord._fields)
    for place in range(head, head + width * header.sections, width):
        section = SectionRecord(*struct.unpack_from("<7q", data, place))
        if section.offset >= 0 and section.bytes >= 0:
            found = _native.checksum(memoryview(data)[section.offset : section.offset + section.bytes])
            struct.pack_into("<q", data, place + width - 8, signed(found))
    struct.pack_into("<q", data, head - 8, 0)
    found = _native.checksum(memoryview(data)[: head + width * header.sections])
    struct.pack_into("<q", data, head - 8, signed(found))
    return bytes(data)


def test_every_bit_counts() -> None:
    data = write(artifact())
    rng = random.Random(0)
    for _ in range(300):
        damaged = bytearray(data)
        place = rng.randrange(len(data))
        damaged[place] ^= 1 << rng.randrange(8)
        with pytest.raises(ArtifactError):
            read(bytes(damaged))


def test_a_cut_file_is_refused() -> None:
    data = write(artifact())
    for size in [0, 7, 47, 48, 100, 4096, len(data) - 1]:
        with pytest.raises(ArtifactError):
            read(data[:size])
    with pytest.raises(ArtifactError):
        read(data + b"\0")


def test_a_string_that_is_no_text_is_refused() -> None:
    data = bytearray(write(artifact()))
    (table,) = [section for section in read_sections(memoryview(data)) if section.kind == 2][:1]
    data[table.offset + table.bytes - 2] = 0xFF  # the last letter of the last string
    with pytest.raises(ArtifactError, match="not UTF-8"):
        read(sealed(data))


def test_a_file_may_begin_anywhere_in_memory() -> None:
    data = write(artifact())
    assert read(memoryview(b"x" + data)[1:]) == read(data)


def test_variants_that_share_long_arrays_are_refused_at_once() -> None:
    """Or a file of some kilobytes would take hours to check."""
    writer, count = TableWriter("many"), 500
    for _ in range(count):
        writer.add("values", r.SizesValue((r.number(1),) * 4096))
    places = {word.name: place for place, word in enumerate(words_of("variants"))}
    for _ in range(count):
        writer.add("variants", r.Variant("", r.Return(())))
        first = len(writer.words["variants"]) - len(places)
        writer.words["variants"][first + places["value_count"]] = count  # all of them
    writer.words["states"] += (0, 0, count)
    with pytest.raises(ArtifactError, match="wrong values"):
        check_table(writer.pack(), 0, 0, 0)


def test_what_hides_behind_right_checksums_is_refused_or_whole() -> None:
    """Nothing but `ArtifactError` is raised, whatever the words of a table say."""
    data = write(artifact())
    tables = [section for section in read_sections(memoryview(data)) if section.kind == 2]
    rng = random.Random(1)
    refused = 0
    for _ in range(1500):
        damaged = bytearray(data)
        section = rng.choice(tables)
        place = section.offset + 8 * rng.randrange(section.bytes // 8)
        word = rng.choice([-1, 0, 1, 2, 5, 7, 100, 1 << 31, 1 << 62, (1 << 63) - 1, -(1 << 63), rng.getrandbits(60)])
        struct.pack_into("<q", damaged, place, word)
        try:
            found = read(sealed(damaged))
        except ArtifactError:
            refused += 1
        else:
            write(found)
    assert refused > 700


def test_kinds_of_registers_are_numbered_for_good() -> None:
    """Files outlive versions: numbers are never given anew."""
    assert [kind.value for kind in RegisterKind] == [0, 1, 2, 3]
    assert (Op.PUSH, Op.SYMBOL, Op.MAX, Op.NOT, Op.FLE) == (0, 1, 8, 18, 40)
