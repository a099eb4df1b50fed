"""Values as text and back: the same value, of the same types, and nothing but the values listed."""

import contextlib
import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.ir.call_contract import AsStrided, FromInput, FromResult, JointPlan, Plain, Saved, ViewStep
from smelt.ir.kernel import Const
from smelt.ir.serialize import BadForm, CannotStore, dump, parse
from smelt.ir.tensorspec import TensorSpec
from tests.ir.products import LINEAR_GELU
from tests.kernel_text import parse_kernel

SPEC = TensorSpec((2, 3), (3, 1), torch.float32, torch.device("cpu"), requires_grad=True)

PLAN = JointPlan(
    inputs=2,
    outputs=(
        FromResult(0),
        FromInput(
            1, (ViewStep(torch.ops.aten.view.default, ([-1],), (("x", None),), 2), AsStrided((1,), (1,), 3)), True
        ),
        Plain("text"),
    ),
    results=1,
    result_views=((0, False),),
    tangents=(SPEC,),
    saved=(Saved("relu", SPEC, None, "needed"),),
)

KERNEL = parse_kernel(LINEAR_GELU)


@pytest.mark.parametrize("value", [PLAN, KERNEL, (PLAN, KERNEL, None), [SPEC, SPEC], torch.Size([2, 3]), {1: b"x"}])
def test_there_and_back(value: Any) -> None:
    assert parse(dump(value)) == value


def test_equal_values_of_other_types_stay_apart() -> None:
    values = tuple(Const("a", value, torch.float32) for value in (1, 1.0, True, 0.0, -0.0))
    back = parse(dump(values))
    assert [type(each.value) for each in back] == [int, float, bool, float, float]
    assert math.copysign(1, back[4].value) == -1


PLAINS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(PLAINS)
def test_plain_values_keep_value_and_type(value: Any) -> None:
    assert repr(parse(dump(value))) == repr(value)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_numbers_that_json_lacks(value: float) -> None:
    assert repr(parse(dump(value))) == repr(value)


@torch.library.custom_op("smelt_stored::mine", mutates_args=())
def mine(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@pytest.mark.parametrize(
    "value", [object(), torch.ones(2), print, torch.ops.smelt_stored.mine.default, ViewStep]
)
def test_what_has_no_form_is_refused(value: Any) -> None:
    with pytest.raises(CannotStore):
        dump((1, value))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_changed_text_is_a_value_or_refused_and_runs_nothing(data: st.DataObject) -> None:
    text = json.dumps(dump((PLAN, KERNEL)))
    place = data.draw(st.integers(0, len(text) - 1))
    changed = text[:place] + data.draw(st.sampled_from(["", "[", '"', "9", "-", "x"])) + text[place + 1 :]
    with contextlib.suppress(BadForm, json.JSONDecodeError):
        parse(json.loads(changed))


@pytest.mark.parametrize(
    "text", ["null", "[]", "[[],[]]", '[[],["d","nn"]]', '[[],["d","ones"]]', '[[],["#o","os","system","default"]]',
             '[[],["#r",0]]', '[[],["#e","Role","MISSING"]]', '[[["Popen","ls"]],["#r",0]]', '[[["Axis"]],["#r",0]]',
             '[[],["",0]]', '[[],["#x"]]'],
)  # fmt: skip
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(BadForm):
        parse(json.loads(text))
