"""The guides on settings and debugging: config, cache size, disable, reset, errors; and the questions at the end."""

import dataclasses
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import smelt
from smelt.base.events import collect


def my_function(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def test_settings_can_be_printed_and_set() -> None:
    text = str(smelt.config)
    for field in dataclasses.fields(smelt.config):
        assert field.name in text
    before = dataclasses.asdict(smelt.config)
    try:
        smelt.config.verbose = True
        smelt.config.suppress_errors = False
        smelt.config.cache_size_limit = 64
        assert torch.equal(smelt.compile(my_function)(torch.ones(2)), torch.full((2,), 2.0))
    finally:
        for name, value in before.items():
            setattr(smelt.config, name, value)


def test_a_misspelt_setting_is_an_error() -> None:
    with pytest.raises(smelt.SmeltError, match="cache_size_limit"):
        smelt.config.cache_size = 64  # type: ignore[attr-defined]


def test_the_cache_size_limit_holds_and_says_what_kept_changing() -> None:
    before = smelt.config.cache_size_limit
    smelt.config.cache_size_limit = 3
    try:
        compiled = smelt.compile(lambda x, mode: x + len(mode))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for mode in ("a", "bb", "ccc", "dddd", "eeeee"):
                x = torch.randn(3)
                assert torch.equal(compiled(x, mode), x + len(mode))
    finally:
        smelt.config.cache_size_limit = before
    assert smelt.counters["graphs"] == 3
    (warning,) = [each for each in told if issubclass(each.category, smelt.SmeltWarning)]
    assert "mode" in str(warning.message) and "cache_size_limit" in str(warning.message)


def test_a_disabled_function_is_never_compiled() -> None:
    @smelt.disable
    def no_compile_function(x: torch.Tensor) -> torch.Tensor:
        assert not smelt.is_compiling()
        return x + 1

    def outer(x: torch.Tensor) -> torch.Tensor:
        return no_compile_function(x * 2) - 3

    x = torch.randn(4)
    torch.testing.assert_close(smelt.compile(outer)(x), x * 2 + 1 - 3)
    explanation = smelt.explain(outer)(x)
    assert [len(ops) for ops in explanation.ops_per_graph] == [1, 1]
    (reason,) = explanation.break_reasons
    assert "no_compile_function" in reason.reason or "disable" in reason.reason


def test_reset_forgets_everything() -> None:
    compiled = smelt.compile(my_function)
    compiled(torch.ones(2))
    assert smelt.counters["graphs"] == 1
    smelt.reset()
    assert smelt.counters["graphs"] == 0
    compiled(torch.ones(2))
    assert smelt.counters["graphs"] == 1


def test_a_compiled_function_still_has_the_code_of_the_original_to_show() -> None:
    compiled = smelt.compile(my_function)
    assert compiled.__wrapped__.__code__ is my_function.__code__
    assert compiled.__name__ == "my_function"


def test_an_error_of_the_program_is_the_same_error_compiled() -> None:
    def problematic_function(x: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(7, 7)

    x = torch.ones(2, 3)
    with pytest.raises(RuntimeError) as plain:
        problematic_function(x)
    with pytest.raises(RuntimeError) as compiled:
        smelt.compile(problematic_function)(x)
    assert str(compiled.value) == str(plain.value)


def test_question_3_many_breaks_and_how_they_go_away(capsys: pytest.CaptureFixture[str]) -> None:
    def bad_code(x: torch.Tensor) -> torch.Tensor:
        a = x + 1
        print(a)
        b = a * 2
        print(b)
        return b

    def good_code(x: torch.Tensor) -> torch.Tensor:
        a = x + 1
        b = a * 2
        return b

    x = torch.randn(3)
    assert smelt.explain(bad_code)(x).graph_break_count == 2
    assert smelt.explain(good_code)(x).graph_break_count == 0
    assert torch.equal(smelt.compile(bad_code)(x), good_code(x))


def test_question_3_changing_sizes_are_right_though_compiled_again() -> None:
    model = nn.Linear(100, 4)
    compiled = smelt.compile(model)
    for size in (16, 32, 64):
        x = torch.randn(size, 100)
        torch.testing.assert_close(compiled(x), model(x))
    assert smelt.counters["recompiles"] <= 2


def test_the_generated_code_of_forward_and_backward_can_be_seen() -> None:
    x = torch.randn(8, requires_grad=True)
    with collect() as events:
        smelt.compile(lambda x: torch.sin(x) * 2)(x).sum().backward()
    generated = [event.text for event in events if event.channel == "llvm"]
    assert len(generated) == 2
    assert all("define" in text for text in generated)


class Debug(TorchDispatchMode):
    """The guide's mode that notes every operator it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_sees_every_operator_of_a_compiled_function() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        z = y + 1
        return z.sum()

    compiled = smelt.compile(function)
    x = torch.randn(10, requires_grad=True)
    compiled(x)
    with Debug() as mode:
        loss = compiled(x)
        loss.backward()
    assert torch.equal(x.grad, torch.full((10,), 2.0))  # type: ignore[arg-type]
    assert mode.seen[:3] == ["mul.Tensor", "add.Tensor", "sum.default"]
    graphs = smelt.counters["graphs"]
    compiled(x)
    assert smelt.counters["graphs"] == graphs == 1  # compiled before, compiled again afterwards
