"""Branches on a tensor one way of which does nothing but raise: the other is taken, and the graph makes sure of it.

    assert (x > 0).all(), "negative"        →   aten._assert_async(all)     the graph goes on
    if not torch._is_all_true(valid): raise →   the same

Where the tensor decides otherwise the graph fails, nothing has happened, and Python runs the state again from its
start: it is Python that raises, with the message it makes then.
"""

import torch

from smelt.capture.interpreter.interpreter import Frame, Interpreter
from smelt.capture.interpreter.operators import truth
from smelt.capture.model.bytecode import Instruction, only_raises
from smelt.capture.model.policy import acts_as_in_eager
from smelt.capture.model.values import Constant, Tensor, Value


def deciding(interp: Interpreter, frame: Frame, value: Value, jump: Instruction) -> bool:
    """The truth of what a conditional jump asks for."""
    if isinstance(value, Tensor) and not interp.externals.explores and interp.tape.decided(value) is None:
        way = _branch_that_continues(frame, value, jump)
        if way is not None:
            _assume(interp, value, way)
            return way
    return truth(interp, value)


def _branch_that_continues(frame: Frame, value: Tensor, jump: Instruction) -> bool | None:
    """The truth of a tensor for which a jump does not lead to a `raise`; None if both ways lead on, or neither."""
    if value.fake.numel() != 1 or acts_as_in_eager(frame.info.code):
        return None
    jumping = only_raises(frame.info, frame.info.index_at[jump.target])
    staying = only_raises(frame.info, frame.info.index_at[jump.next])
    return None if jumping == staying else jump.name.endswith("TRUE") != jumping


def _assume(interp: Interpreter, value: Tensor, truth: bool) -> None:
    """Record that the graph fails unless the tensor decides this way."""
    test = interp.tape.call("call_function", torch.ne if truth else torch.eq, (value, Constant(0)), {})
    interp.tape.require(test, "a branch leads to an exception")
