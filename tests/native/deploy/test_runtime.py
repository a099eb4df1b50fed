"""The C runtime, driven from outside: sizes, branches, loops, arguments, state, and what it says to wrong calls."""

import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import smelt
from smelt.base.errors import SmeltError
from smelt.ir.artifact_file.artifact import ArtifactFile
from smelt.ir.artifact_file.code import Code, CodeSlot
from smelt.ir.artifact_file.container import read_sections
from smelt.ir.artifact_file.layout import FEATURES, Machine
from smelt.ir.artifact_file.read import read
from smelt.ir.artifact_file.write import save
from smelt.ir.table import records as r
from smelt.ir.table.records import Bind, RegisterKind
from smelt.symbolic.postfix import Op
from tests.deploy.failing import Tallied, example
from tests.native.deploy.conftest import Said
from tests.native.deploy.models import MODELS, floats, here

Drive = Callable[..., Said]

# As smelt.h numbers them.
ARGUMENT, IO, FILE, VERSION, TARGET, MEMORY, INPUT, SIZE, UNSUPPORTED, RAISED, LIMIT, MISMATCH = range(1, 13)


def tensor(given: torch.Tensor, strides: tuple[int, ...] | None = None) -> str:
    """A tensor as the driver reads it."""
    sizes = ",".join(map(str, given.shape))
    data = given.contiguous().view(torch.uint8) if given.dim() else given[None].view(torch.uint8)
    text = f"{str(given.dtype).removeprefix('torch.')}:{sizes}:{bytes(data.flatten().tolist()).hex()}"
    return text if strides is None else f"{text}:{','.join(map(str, strides))}"


def number(kind: str, value: float) -> str:
    return f"{kind}::{struct.pack({'int64': '<q', 'bool': '<?', 'float64': '<d'}[kind], value).hex()}"


def values(output: tuple[str, str, bytes]) -> torch.Tensor:
    dtype, sizes, data = output
    shape = [int(size) for size in sizes.split(",") if size]
    return torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)).reshape(shape)


# --- sizes ------------------------------------------------------------------------------------------------------


def test_it_tells_what_it_takes(drive: Drive, models: dict[str, Path]) -> None:
    said = drive(models["affine"], "info").lines
    assert said[2].startswith("model affine for ") and said[2].endswith(': {"name":"affine"}')
    assert said[3:5] == ["input x float32 flags=0 2..4096=rows 4..4", "output y float32 flags=0 2..4096=rows 4..4"]
    said = drive(models["arguments"], "info").lines
    assert said[3:7] == [
        "input x float32 flags=2 2..1000",
        "input mode int64 flags=0 relu neg",
        "input flag bool flags=0",
        "input scale float64 flags=1",
    ]
    said = drive(models["training"], "info").lines
    assert said[-3:-1] == ["state w float32 flags=0 4..4", "state odd float32 flags=0 2..2"]


@pytest.mark.parametrize("options", [(), ("memory",), ("trust",), ("threads=3",), ("threads=2", "own")])
def test_sizes_differ_from_call_to_call(drive: Drive, models: dict[str, Path], options: tuple[str, ...]) -> None:
    given = [torch.randn(rows, 4) for rows in (2, 7, 100, 3, 3, 257)]
    said = drive(models["affine"], *options, *[word for x in given for word in ("run", tensor(x))])
    assert said.status("run") == [0] * len(given)
    w, b = torch.tensor([1.0, 2, 3, 4]), torch.tensor([10.0, 20, 30, 40])
    for x, found in zip(given, said.outputs("y"), strict=True):
        torch.testing.assert_close(values(found), x * w + b)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_work_is_shared_out_between_threads(drive: Drive, models: dict[str, Path], threads: int) -> None:
    given = [torch.randn(n, m) for n, m in ((40, 33), (3, 17), (2, 2), (40, 33))]
    calls = [word for x in given for word in ("run", tensor(x))]
    said = drive(models["softmax"], f"threads={threads}", "repeat", "20", *calls)
    for place, x in enumerate(given):
        want = torch.softmax(2 * x.double(), 1).float()
        torch.testing.assert_close(values(said.outputs("y")[place]), want)
        torch.testing.assert_close(values(said.outputs("t")[place]), want.t())
        torch.testing.assert_close(values(said.outputs("c")[place]), want[:, 0])


def test_the_callers_own_threads_are_used(drive: Drive, models: dict[str, Path]) -> None:
    x = torch.randn(300, 50)
    said = drive(models["softmax"], "threads=4", "own", "run", tensor(x))
    torch.testing.assert_close(values(said.outputs("y")[0]), torch.softmax(2 * x.double(), 1).float())
    assert int(said.lines[-1].split()[1].rstrip(",")) > 0


def test_after_a_fork_the_child_goes_on_alone(drive: Drive, models: dict[str, Path]) -> None:
    x = torch.randn(300, 50)
    said = drive(models["softmax"], "threads=3", "run", tensor(x), "fork", "run", tensor(x))
    first, second = said.outputs("y")
    assert first == second and "child 0" in said.lines


def test_strided_and_odd_inputs_are_copied(drive: Drive, models: dict[str, Path]) -> None:
    x = torch.randn(4, 6)
    said = drive(models["affine"], "run", f"float32:6,4:{tensor(x).split(':')[2]}:1,6")
    want = x.t() * torch.tensor([1.0, 2, 3, 4]) + torch.tensor([10.0, 20, 30, 40])
    torch.testing.assert_close(values(said.outputs("y")[0]), want)


def test_a_second_call_needs_no_more_memory(drive: Drive, models: dict[str, Path]) -> None:
    x = tensor(torch.randn(100, 40))
    once, often = (drive(models["softmax"], "repeat", times, "run", x).lines[-1] for times in ("1", "5"))
    assert once == often and "peak" in once


def test_outputs_go_to_the_callers_memory(drive: Drive, models: dict[str, Path]) -> None:
    said = drive(models["affine"], "bind", "0", "32", "run", tensor(torch.ones(2, 4)), "run", tensor(torch.ones(3, 4)))
    assert said.status("run") == [0, SIZE]
    assert said.message("run") == "output y has 48 bytes, and was given room for 32"


@pytest.mark.parametrize(
    ("name", "inputs", "status", "message"),
    [
        ("affine", ["float32:1,4:"], SIZE, "input x: dimension 0 rows is 1, and must be from 2 to 4096"),
        ("affine", ["float32:5000,4:"], SIZE, "input x: dimension 0 rows is 5000, and must be from 2 to 4096"),
        ("affine", ["float32:2,5:"], SIZE, "input x: dimension 1 is 5, and must be 4"),
        ("affine", ["float32:2,-4:"], SIZE, "input x: dimension 1 is -4, and must be 4"),
        ("affine", ["float64:2,4:"], INPUT, "input x is float64, and must be float32"),
        ("affine", ["float32:2:"], INPUT, "input x has 1 dimensions, and must have 2"),
        ("affine", ["none"], INPUT, "input x is missing"),
        ("affine", [], INPUT, "the model takes 1 inputs, and got 0"),
        ("affine", ["none", "none"], INPUT, "the model takes 1 inputs, and got 2"),
    ],
)
def test_wrong_inputs_are_told_by_name(
    drive: Drive, models: dict[str, Path], name: str, inputs: list[str], status: int, message: str
) -> None:
    said = drive(models[name], "run", *inputs, "run", tensor(torch.zeros(2, 4)))
    assert said.status("run") == [status, 0]
    assert said.lines[2].split(" ", 2)[2] == message


def test_dimensions_of_one_name_have_one_size(drive: Drive, tmp_path: Path) -> None:
    model = MODELS["affine"]()
    model.register("other", RegisterKind.INPUT, "float32", r.Dim(0, 9, "rows"))
    save(model.artifact(), tmp_path / "m.smelt")
    said = drive(tmp_path / "m.smelt", "run", tensor(torch.zeros(2, 4)), tensor(torch.zeros(3)))
    assert said.status("run") == [SIZE]
    assert said.message("run") == "input other: dimension 0 is 3, and rows is 2 elsewhere"


# --- control flow -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [0, 1, 50])
def test_a_loop_runs_as_often_as_its_condition_holds(drive: Drive, models: dict[str, Path], rounds: int) -> None:
    x = torch.tensor([2.0**rounds, 0, 0, 0])
    said = drive(models["loop"], "run", tensor(x), "returned")
    assert values(said.outputs("y")[0]).tolist() == [1.0, 0, 0, 0]
    assert values(said.outputs("count")[0]).item() == rounds
    assert said.lines[-2] == "returned 0 3 0"


def test_a_loop_that_does_not_end_is_ended(drive: Drive, models: dict[str, Path]) -> None:
    said = drive(models["loop"], "limit=100", "run", tensor(torch.tensor([float("inf"), 0, 0, 0])), "returned")
    assert said.status("run") == [LIMIT] and said.status("returned") == [ARGUMENT]


def test_arguments_of_python_choose_variants(drive: Drive, models: dict[str, Path]) -> None:
    x = torch.tensor([-1.0, 2, -3])
    relu, neg, other = (number("int64", place) for place in range(3))
    on, off = number("bool", True), number("bool", False)
    said = drive(
        models["arguments"],
        *("run", tensor(x), relu, on, "none"),
        *("run", tensor(x), neg, on, number("float64", 3.0)),
        *("run", tensor(x), neg, off, "none"),
        *("run", tensor(x), other, on, "none"),
    )
    assert said.status("run") == [0, 0, 0, INPUT]
    assert values(said.outputs("y")[0]).tolist() == [0.0, 2.0, 0.0]
    assert values(said.outputs("y")[1]).tolist() == [3.0, -6.0, 9.0]
    assert said.outputs("y")[2][0] == "none"  # None was returned
    assert said.message("run") == "input mode is choice 2, and has 2"
    assert [values(each).tolist() for each in said.outputs("x")] == [[-1, 2, -3], [-3, 6, -9], [-1, 2, -3]]


def test_inputs_that_were_copied_are_written_back(drive: Drive, models: dict[str, Path]) -> None:
    scaled = ("int64::" + bytes(8).hex(), number("bool", True), number("float64", 2.0))
    said = drive(models["arguments"], "run", f"float32:2:{floats(1, 5, 2, 6).hex()}:2", *scaled)
    (written,) = said.outputs("x")  # the driver shows the first two floats of what it gave
    assert values(written).tolist() == [2.0, 5.0]
    assert values(said.outputs("y")[0]).tolist() == [2.0, 4.0]


def with_variant(change: Callable[[r.Variant], r.Variant]) -> ArtifactFile:
    """The affine model with another variant."""
    model = MODELS["affine"]()
    model.states = [r.State("entry", tuple(map(change, model.states[0].variants)))]
    return model.artifact()


def test_copies_alone_make_a_model(drive: Drive, models: dict[str, Path]) -> None:
    x = torch.randn(3, 5)
    said = drive(models["copies"], "run", tensor(x), "run", tensor(torch.zeros(60, 8)))
    assert said.status("run") == [0, RAISED] and said.message("run") == "ValueError: n is too large"
    assert torch.equal(values(said.outputs("y")[0]), x) and torch.equal(values(said.outputs("t")[0]), x.t())
    assert values(said.outputs("sizes")[0]).tolist() == [3, 16 * 8]
    assert torch.equal(values(said.outputs("kept")[0]).flatten()[:15], x.flatten())


def test_sizes_that_no_variant_is_for_are_told(drive: Drive, tmp_path: Path) -> None:
    even = r.Check(r.apply(Op.EQ, r.apply(Op.MOD, r.symbol(0), r.number(2)), r.number(0)), "rows is even")
    save(with_variant(lambda v: replace(v, checks=(even,))), tmp_path / "m.smelt")
    said = drive(tmp_path / "m.smelt", "run", tensor(torch.ones(3, 4)), "run", tensor(torch.ones(4, 4)))
    assert said.status("run") == [UNSUPPORTED, 0]
    assert said.lines[2].endswith("the model was not exported for these inputs: rows is even does not hold")
    few = r.Symbol("rows", Bind.SIZE, 0, 0, 2, 8)
    save(with_variant(lambda v: replace(v, symbols=(few,))), tmp_path / "m.smelt")
    said = drive(tmp_path / "m.smelt", "run", tensor(torch.ones(9, 4)))
    assert said.message("run") == "x, dimension 0, is 9, and must be from 2 to 8 (entry)"


@pytest.mark.parametrize(
    ("size", "status"),
    [
        (r.apply(Op.MUL, r.symbol(0), r.number(1 << 62)), SIZE),  # does not fit 64 bits
        (r.apply(Op.SUB, r.symbol(0), r.number(100)), SIZE),  # negative
        (r.apply(Op.DIV, r.number(1), r.apply(Op.SUB, r.symbol(0), r.symbol(0))), SIZE),  # divides by zero
        (r.number(1 << 46), MEMORY),
        (r.number(1 << 48), SIZE),
    ],
)
def test_an_arena_of_impossible_size_is_an_error(drive: Drive, tmp_path: Path, size: r.Expression, status: int) -> None:
    save(with_variant(lambda v: replace(v, arena_bytes=size)), tmp_path / "m.smelt")
    said = drive(tmp_path / "m.smelt", "run", tensor(torch.ones(2, 4)))
    found = said.status("run")
    assert found == [status] or (status == MEMORY and found == [0])  # memory that nobody touches may be promised


@pytest.mark.parametrize(
    "value",
    [
        r.RegisterValue(0, r.number(33)),
        r.RegisterValue(0, r.number(16), r.number(17)),
        r.RegisterValue(3, r.number(16)),  # not made yet
        r.ArenaValue(r.number(64), r.number(1)),
        r.ProducedValue(0, r.number(33)),
        r.ProducedValue(0, r.number(4), r.number(-4)),
    ],
)
def test_no_value_reaches_outside_its_memory(drive: Drive, tmp_path: Path, value: r.Value) -> None:
    save(with_variant(lambda v: replace(v, values=(*v.values, value))), tmp_path / "m.smelt")
    said = drive(tmp_path / "m.smelt", "run", tensor(torch.ones(2, 4)))
    assert said.status("run") in ([FILE], [SIZE])


def test_expressions_compute_as_python_does(drive: Drive, tmp_path: Path) -> None:
    seven, minus, third = r.symbol(0), r.number(-3), r.floating(1 / 3)
    cases = {
        r.apply(Op.DIV, seven, minus): -3,
        r.apply(Op.MOD, seven, minus): -2,
        r.apply(Op.DIV, r.apply(Op.NEG, seven), r.number(2)): -4,
        r.apply(Op.MOD, r.apply(Op.NEG, seven), r.number(2)): 1,
        r.apply(Op.MIN, seven, minus): -3,
        r.apply(Op.MAX, seven, minus): 7,
        r.apply(Op.GE, seven, r.number(7)): 1,
        r.apply(Op.NOT, r.apply(Op.LT, seven, minus)): 1,
        r.apply(Op.INT, r.apply(Op.FMUL, r.apply(Op.FLOAT, seven), r.floating(1.5))): 10,
        r.apply(Op.INT, r.apply(Op.FFLOOR, r.apply(Op.FNEG, third))): -1,
        r.apply(Op.FLT, third, r.floating(0.5)): 1,
        r.apply(Op.INT, r.apply(Op.FPOW, r.floating(2.0), r.floating(10.0))): 1024,
    }
    model = MODELS["affine"]()
    numbers = model.register("numbers", RegisterKind.LOCAL, "int64", r.Dim(0))
    size = r.number(8 * len(cases))
    variant = r.Variant(
        "numbers",
        r.Return((r.Returned(numbers),)),
        symbols=(r.Symbol("rows", Bind.SIZE, 0, 0),),
        produced=(r.Produced(numbers, (r.number(len(cases)),)),),
        values=(r.SizesValue(tuple(cases)), r.ProducedValue(0, size)),
        steps=(r.Copy(1, 0, size),),
    )
    model.states, model.outputs = [r.State("entry", (variant,))], [r.Output("numbers", "int64", (r.Dim(0),))]
    save(model.artifact(), tmp_path / "m.smelt")
    said = drive(tmp_path / "m.smelt", "run", tensor(torch.ones(7, 4)))
    assert values(said.outputs("numbers")[0]).tolist() == list(cases.values())


# --- state ------------------------------------------------------------------------------------------------------


def test_state_stays_from_call_to_call(drive: Drive, models: dict[str, Path]) -> None:
    x = tensor(torch.zeros(4))
    for options in ((), ("memory",)):
        calls = ("run", x, "run", x, "state", "w", "state", "odd", "reset", "state", "w")
        said = drive(models["training"], *options, *calls)
        assert [values(each).tolist() for each in said.outputs("w")] == [
            [0.5, 1.0, 1.5, 2.0], [0.25, 0.5, 0.75, 1.0], [0.25, 0.5, 0.75, 1.0], [1.0, 2.0, 3.0, 4.0],
        ]  # fmt: skip
        assert values(said.outputs("odd")[0]).tolist() == [0.5, 1.0]


def test_state_is_written_through_its_strides(drive: Drive, models: dict[str, Path]) -> None:
    said = drive(models["training"], "set", "odd", floats(20, 40).hex(), "set", "odd", "00", "state", "w")
    assert said.status("set") == [0, ARGUMENT]
    assert values(said.outputs("w")[0]).tolist() == [1.0, 20.0, 3.0, 40.0]


def test_a_checkpoint_goes_on_in_c_and_in_python(drive: Drive, models: dict[str, Path], tmp_path: Path) -> None:
    x = tensor(torch.full((4,), 8.0))
    saved = tmp_path / "checkpoint.smelt"
    whole = drive(models["training"], "repeat", "50", "run", x)
    drive(models["training"], "repeat", "10", "run", x, "save", str(saved))
    assert list(tmp_path.iterdir()) == [saved]
    opened = drive(saved, "repeat", "40", "run", x)
    loaded = drive(models["training"], "repeat", "1", "load", str(saved), "repeat", "40", "run", x)
    assert opened.outputs("w") == loaded.outputs("w") == whole.outputs("w")
    again = read(saved.read_bytes())
    assert again.targets == read(models["training"].read_bytes()).targets
    want = torch.tensor([1.0, 2, 3, 4])
    for _ in range(10):
        want = want - (want - 8) * 0.5
    assert bytes(again.state.parts[0]) == bytes(want.view(torch.uint8).tolist())


def test_a_checkpoint_of_another_model_is_refused(drive: Drive, models: dict[str, Path], tmp_path: Path) -> None:
    said = drive(models["training"], "load", str(models["loop"]), "state", "w")
    assert said.status("load") == [MISMATCH]
    assert values(said.outputs("w")[0]).tolist() == [1.0, 2.0, 3.0, 4.0]
    assert drive(models["training"], "load", str(tmp_path / "none")).status("load") == [IO]
    assert drive(models["training"], "save", str(tmp_path / "no" / "folder")).status("save") == [IO]


def test_a_checkpoint_is_read_by_the_target_that_runs(drive: Drive, tmp_path: Path) -> None:
    """Whatever a file says of other machines."""
    made = MODELS["training"]().artifact()
    (part,) = made.targets
    registers = [replace(each, name=f"{each.name} elsewhere") for each in part.table.registers]
    machine = next(machine for machine in FEATURES if machine not in (here(), Machine.CUDA))
    other = replace(part, machine=machine, table=replace(part.table, registers=tuple(registers)))
    path, saved = tmp_path / "m.smelt", tmp_path / "checkpoint.smelt"
    save(replace(made, targets=(other, part)), path)
    said = drive(path, "run", tensor(torch.full((4,), 8.0)), "save", str(saved), "load", str(saved))
    assert said.status("save") == said.status("load") == [0]


# --- files ------------------------------------------------------------------------------------------------------


def test_files_that_are_none_are_refused(drive: Drive, models: dict[str, Path], tmp_path: Path) -> None:
    whole = models["affine"].read_bytes()
    path = tmp_path / "m.smelt"
    assert drive(path).status("open") == [IO]
    for data, status in [
        (b"", FILE),
        (b"x" * 5000, FILE),
        (whole[:-1], FILE),
        (whole + b"\0", FILE),
        (whole[:8] + struct.pack("<q", 99) + whole[16:], VERSION),
        (whole[:100] + b"!" + whole[101:], FILE),
        (whole[:-1] + b"!", FILE),
    ]:
        path.write_bytes(data)
        assert drive(path).status("open") == [status]
    assert drive(tmp_path).status("open") == [FILE]


def test_pipes_are_neither_read_nor_replaced(drive: Drive, models: dict[str, Path], tmp_path: Path) -> None:
    """Opening a pipe would wait for its writer, and a checkpoint would replace a device such as /dev/null."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert drive(pipe).status("open") == [FILE]
    said = drive(models["training"], "save", str(pipe), "load", str(pipe))
    assert said.status("save") == [IO] and "it is no file" in said.message("save")
    assert said.status("load") == [FILE]
    with pytest.raises(SmeltError, match="is no file"):
        save(MODELS["affine"]().artifact(), pipe)
    assert pipe.is_fifo()


def test_weights_may_be_trusted(drive: Drive, models: dict[str, Path], tmp_path: Path) -> None:
    whole = bytearray(models["affine"].read_bytes())
    weights = read_sections(memoryview(whole))[-2]
    whole[weights.offset + 64 : weights.offset + 68] = floats(100)
    (tmp_path / "m.smelt").write_bytes(whole)
    said = drive(tmp_path / "m.smelt", "trust", "run", tensor(torch.zeros(2, 4)))
    assert values(said.outputs("y")[0])[0].tolist() == [100.0, 20, 30, 40]
    assert "damaged" in drive(tmp_path / "m.smelt").message("open")


def test_the_first_target_that_fits_is_used(drive: Drive, models: dict[str, Path], tmp_path: Path) -> None:
    made = MODELS["affine"]().artifact()
    (part,) = made.targets
    elsewhere = next(machine for machine in FEATURES if machine != here())
    all_features = (1 << len(FEATURES[elsewhere])) - 1
    better = replace(part, features=all_features, code=replace(part.code, slots=(CodeSlot(0, "nothing"),)))
    path = tmp_path / "m.smelt"
    other = replace(part, machine=elsewhere, code=better.code)
    save(replace(made, targets=(other, replace(better, machine=elsewhere), part)), path)
    assert drive(path, "run", tensor(torch.ones(2, 4))).status("run") == [0]
    save(replace(made, targets=(other,)), path)
    assert drive(path).status("open") == [TARGET]
    assert drive(path, "only_check", "info").status("open") == [0]


@pytest.mark.parametrize(
    "code",
    [Code(b"x" * 16, (16,)), Code(b"x" * 16, (-1,)), Code(b"x" * 16, (0,), (CodeSlot(9, "exp"),)),
     Code(b"x" * 16, (0,), (CodeSlot(8, "", 17),))],
)  # fmt: skip
def test_code_outside_of_its_image_is_refused(drive: Drive, tmp_path: Path, code: Code) -> None:
    made = MODELS["affine"]().artifact()
    parts = [replace(part, code=code) for part in made.targets]
    path = tmp_path / "m.smelt"
    save(replace(made, targets=tuple(parts)), path)
    assert drive(path).status("open") == [FILE]


def test_code_that_calls_what_is_not_known_is_refused(drive: Drive, tmp_path: Path) -> None:
    made = MODELS["affine"]().artifact()
    (part,) = made.targets
    code = replace(part.code, slots=(*part.code.slots, CodeSlot(0, "system")))
    save(replace(made, targets=(replace(part, code=code),)), tmp_path / "m.smelt")
    said = drive(tmp_path / "m.smelt")
    assert said.status("open") == [TARGET] and "calls system, which this runtime does not have" in said.message("open")


def test_a_model_that_is_only_checked_runs_nothing(drive: Drive, models: dict[str, Path]) -> None:
    said = drive(models["affine"], "only_check", "info")
    assert said.status("session") == [ARGUMENT] and "input x float32 flags=0 2..4096=rows 4..4" in said.lines


def test_machines_have_their_features_in_both_languages() -> None:
    text = (Path(__file__).parents[3] / "src/smelt/csrc/deploy/processor.c").read_text()
    for machine, table in ((Machine.X86_64, "x86"), (Machine.AARCH64, "aarch64"), (Machine.RISCV64, "riscv")):
        listed = text.split(f"{table}_names[] = {{")[1].split("NULL")[0]
        assert tuple(part.strip().strip('"') for part in listed.split(",") if part.strip()) == FEATURES[machine]


# --- calls that fail ----------------------------------------------------------------------------------------------


def test_state_is_as_it_was_whichever_allocation_fails(drive: Drive, tmp_path: Path) -> None:
    dynamic = {"x": {0: smelt.Dimension("rows", 2, 4096)}}
    path = smelt.export(Tallied(), (example(),), dynamic=dynamic).save(tmp_path / "m.smelt")
    x = {value: tensor(example(64, value)) for value in (1.0, -1.0)}
    failures = 0
    for value in (1.0, -1.0):
        for allocation in range(40):
            said = drive(path, "fail", str(allocation), "run", x[value], "state", "count", "state", "total")
            status = said.status("run")[0]
            count, total = (values(said.outputs(name)[0]).tolist() for name in ("count", "total"))
            if status == 0:
                break
            failures += 1
            assert (status, count, total) == (MEMORY, 0.0, [0.0] * 4)
        assert (status, count, total) == (0, 1.0, [value] * 4)
    assert failures > 6


def test_state_is_as_it_was_when_the_limit_of_states_is_reached(drive: Drive, tmp_path: Path) -> None:
    path = smelt.export(Tallied(), (example(),)).save(tmp_path / "m.smelt")
    said = drive(path, "limit=2", "run", tensor(example()), "state", "count")
    assert said.status("run") == [LIMIT] and values(said.outputs("count")[0]).item() == 0


def test_state_is_as_it_was_when_an_output_does_not_fit(drive: Drive, tmp_path: Path) -> None:
    count = torch.zeros(())

    def step(x: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        return x * count

    path = smelt.export(step, (example(),)).save(tmp_path / "m.smelt")
    said = drive(path, "bind", "0", "32", "run", tensor(example()), "bind", "0", "48", "run", tensor(example()))
    assert said.status("run") == [SIZE, 0]
    assert values(said.outputs("output")[0]).tolist() == [[1.0] * 4] * 3
