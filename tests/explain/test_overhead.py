"""With logs and reports off, a compiled call does nothing for them: no hook is called, no step is timed."""

import torch
from torch import nn

import smelt
from benchmarks.explain_overhead import Block, hook_calls
from smelt.base.events import collect


def test_a_compiled_call_calls_no_hook() -> None:
    model, x = smelt.compile(Block(16)), torch.randn(2, 4, 16)
    tiny = smelt.compile(lambda x: x + 1)
    sized = smelt.compile(lambda x: x * 2, dynamic=True)

    def run() -> None:
        model(x).sum().backward()
        tiny(x)
        with torch.no_grad():
            tiny(x.detach())
        sized(torch.ones(5))

    for _ in range(3):
        run()
    assert hook_calls(run) == {}


def test_hooks_are_counted_where_they_are_called() -> None:
    calls = hook_calls(lambda: smelt.compile(nn.Linear(3, 3))(torch.ones(3)))
    assert calls["timed"] > 3 and calls["wanted"] > 3 and calls["note"] == 1
    assert calls["emit"] == 0  # nobody listens: not one text is made


def test_being_collected_once_leaves_nothing_behind() -> None:
    compiled = smelt.compile(lambda x: x.sin() + 1)
    with collect():
        compiled(torch.ones(3))
    compiled(torch.ones(3))
    assert hook_calls(lambda: compiled(torch.ones(3))) == {}
