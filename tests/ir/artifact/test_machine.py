"""Machines print as reviewed, and each rule is broken by a machine that breaks just that one."""

from dataclasses import replace

import pytest
import torch

from smelt.base.errors import SpecError
from smelt.ir.artifact.check import MACHINE_RULES, check_machine
from smelt.ir.artifact.machine import (
    Argument,
    ArgumentKind,
    Binding,
    Branch,
    Dimension,
    Jump,
    Literal,
    Machine,
    Raise,
    Register,
    RegisterKind,
    RegisterView,
    Return,
    Scalar,
    SizeCheck,
    State,
    Storage,
    ValueCheck,
    Variant,
)
from smelt.ir.artifact.text import format_machine
from smelt.ir.artifact.tree import LEAF, Tree, tree_of
from smelt.ir.program import Launch, Operand, Place, Program, ProgramBuffer
from smelt.ir.tensorspec import TensorSpec
from smelt.symbolic.expressions import Expression, ShapeEnv, SizeGuard
from tests.golden import golden
from tests.kernel_text import parse_kernel

KERNEL = parse_kernel("""
kernel double rows() cols(j:4)
  in x: f32[4]
  out y: f32[4]
  loop:
    a = load x[j]
    b = add a, a : f32
    store y[j] = b
""")
SPEC = TensorSpec((4,), (1,), torch.float32, torch.device("cpu"))
PROGRAM = Program(
    "double",
    (ProgramBuffer("x", SPEC, Place.INPUT), ProgramBuffer("y", SPEC, Place.FRESH)),
    ("x",),
    (),
    (Launch(KERNEL, ("x", "y")),),
    (Operand("y", (4,), (1,)),),
)


def _view(register: int) -> RegisterView:
    return RegisterView(register, (4,), (1,))


def _size_check() -> SizeCheck:
    symbol = ShapeEnv().symbol("rows", 8)
    return SizeCheck(SizeGuard(">=", Expression.of(symbol) - Expression.of(4)))


F32 = torch.float32
RETURN = Return((_view(3), Scalar(1), Literal(None)), tree_of((1, 2, 3))[0])
MACHINE = Machine(
    "walk",
    Tree("tuple", (), (Tree("tuple", (), (LEAF, LEAF)), Tree("dict", ("twice",), (LEAF,)))),
    (
        Argument("x", ArgumentKind.TENSOR, 0),
        Argument("limit", ArgumentKind.NUMBER, 1),
        Argument("twice", ArgumentKind.VALUE, None, (True, False)),
    ),
    (Dimension("rows", 2, 64),),
    (Storage("weight", torch.zeros(32, dtype=torch.uint8)), Storage("count", torch.zeros(16, dtype=torch.uint8))),
    (
        Register("x", RegisterKind.INPUT, F32, ("rows", 4)),
        Register("limit", RegisterKind.INPUT, torch.float64, ()),
        Register("weight", RegisterKind.CONSTANT, F32, (4,), None, 0, 16),
        Register("count", RegisterKind.STATE, F32, (4,), None, 1),
        Register("", RegisterKind.LOCAL, F32),
        Register("", RegisterKind.LOCAL, torch.bool),
    ),
    (
        State(
            "entry",
            (
                Variant(
                    PROGRAM,
                    (_view(2),),
                    (4,),
                    Jump(1),
                    (Binding("rows", 0, 0),),
                    (ValueCheck(2, True), _size_check()),
                ),
                Variant(PROGRAM, (_view(3),), (3,), RETURN),
            ),
        ),
        State("again", (Variant(PROGRAM, (_view(4),), (4,), Raise("ValueError", "too many")),)),
    ),
    ("twice was asked for",),
)


def test_machines_print_as_reviewed() -> None:
    check_machine(MACHINE)
    golden("ir/machine.txt", format_machine(MACHINE) + "\n")


def _with_register(number: int, **fields: object) -> Machine:
    registers = list(MACHINE.registers)
    registers[number] = replace(registers[number], **fields)  # type: ignore[arg-type]
    return replace(MACHINE, registers=tuple(registers))


def _with_variant(**fields: object) -> Machine:
    entry = MACHINE.states[0]
    changed = replace(entry.variants[0], **fields)  # type: ignore[arg-type]
    return replace(MACHINE, states=(replace(entry, variants=(changed, *entry.variants[1:])), *MACHINE.states[1:]))


BROKEN: dict[str, list[Machine]] = {
    "registers": [
        _with_register(2, offset=20),
        _with_register(2, storage=7),
        _with_register(3, storage=None),
        _with_register(0, shape=("columns", 4)),
        _with_register(0, shape=None),
        _with_register(4, shape=(4,)),
        _with_register(2, stride=(5,)),
    ],
    "storages": [
        _with_register(2, storage=1, offset=0),
        replace(MACHINE, storages=(Storage("weight", torch.zeros(32)), MACHINE.storages[1])),
    ],
    "arguments": [
        replace(MACHINE, arguments=MACHINE.arguments[:2]),
        replace(MACHINE, arguments=(replace(MACHINE.arguments[0], register=1), *MACHINE.arguments[1:])),
        replace(MACHINE, arguments=(replace(MACHINE.arguments[0], kind=ArgumentKind.VALUE), *MACHINE.arguments[1:])),
    ],
    "programs": [
        _with_variant(inputs=()),
        _with_variant(results=(None, None)),
        _with_variant(program=None),
        _with_variant(inputs=(_view(1),)),
        _with_variant(inputs=(_view(9),)),
        _with_variant(results=(0,)),
        _with_variant(written=(2,)),
    ],
    "symbols": [
        _with_variant(symbols=()),
        _with_variant(symbols=(Binding("rows", 0, 2),)),
        _with_variant(symbols=(Binding("rows", 0, 0), Binding("rows", 0, 1))),
        _with_variant(checks=(ValueCheck(3, True),)),
    ],
    "results": [
        _with_variant(next=Branch(11, 0, 1)),
        _with_variant(next=Return((), LEAF)),
        _with_variant(next=Return((_view(12),), LEAF)),
    ],
    "filled": [
        _with_variant(inputs=(_view(4),)),
        _with_variant(results=(None,)),
        _with_variant(next=Branch(5, 1, 1)),
    ],
}


@pytest.mark.parametrize("rule", MACHINE_RULES)
def test_each_rule_is_broken(rule: str) -> None:
    for machine in BROKEN[rule]:
        with pytest.raises(SpecError, match=f'breaks rule "{rule}"'):
            check_machine(machine)


def test_trees_are_data_and_build_what_they_were_made_of() -> None:
    value = ((1, [2, 3]), {"mask": 4, 5: (6,)})
    tree, leaves = tree_of(value)
    assert leaves == [1, 2, 3, 4, 6]
    assert Tree.from_data(tree.to_data()) == tree
    assert tree.build(iter(leaves)) == value
    assert list(tree.flatten(value)) == leaves
    assert list(tree.names("")) == ["0[0]", "0[1][0]", "0[1][1]", "1.mask", "1[5][0]"]


def test_objects_with_named_fields_become_records() -> None:
    from collections import OrderedDict, namedtuple

    pair = namedtuple("Pair", "left right")
    tree, leaves = tree_of(OrderedDict(first=pair(1, 2)))
    built = tree.build(iter(leaves))
    assert built.first.left == 1 and built["first"]["right"] == 2
    with pytest.raises(AttributeError):
        _ = built.second


@pytest.mark.parametrize(
    "value", [((1, [2]), {"mask": 4, 5: (6,)}), (1, {"mask": 4, 5: (6,)}), ((1, [2, 3]), {"mask": 4})]
)
def test_arguments_of_another_form_are_refused(value: object) -> None:
    tree, _ = tree_of(((1, [2, 3]), {"mask": 4, 5: (6,)}))
    with pytest.raises(ValueError, match="not a"):
        list(tree.flatten(value))


@pytest.mark.parametrize(
    "data", [None, ["leaf"], ["odd", [], [], ""], ["dict", ["a"], [], ""], ["leaf", [], [["leaf", [], [], ""]], ""]]
)
def test_damaged_trees_are_refused(data: object) -> None:
    with pytest.raises(ValueError, match="a tree"):
        Tree.from_data(data)
