"""The small scripts of `examples/` do what they say."""

import re

import pytest

import smelt
from examples import (
    classifier,
    custom_backend,
    edit_graph,
    explain_breaks,
    fine_tune,
    lazy,
    second_derivatives,
    train_step,
    transformer_step,
)
from smelt.pipeline import backends


@pytest.fixture(autouse=True)
def fresh() -> None:
    smelt.reset()


def test_explain_breaks_names_both_breaks_and_ends_with_one_graph(capsys: pytest.CaptureFixture[str]) -> None:
    explain_breaks.main()
    lines = capsys.readouterr().out.splitlines()
    assert "before: graphs 3, breaks 2" in lines
    assert "after: graphs 1, breaks 0" in lines
    assert any("print" in line for line in lines) and any("torch.where" in line for line in lines)
    assert sum("explain_breaks.py:" in line for line in lines) == 2
    assert lines[-1] == "same output, one graph"


def test_edit_graph_replaces_relu_removes_dropout_and_trains(capsys: pytest.CaptureFixture[str]) -> None:
    edit_graph.main()
    lines = capsys.readouterr().out.splitlines()
    assert "relu: now gelu" in lines and "dropout: removed" in lines
    code = "\n".join(line for line in lines if " = torch." in line)
    assert "gelu" in code and "torch.relu" not in code and "dropout(" not in code
    assert lines[-1] == "output (4, 5) as expected, and the edited model trains"


def test_second_derivatives_prints_each_training_twice(capsys: pytest.CaptureFixture[str]) -> None:
    second_derivatives.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[::2]] == list(second_derivatives.TRAININGS)
    for line in lines[1::2]:
        assert float(line.split(": ")[1]) < 1e-6


def test_train_step_compiles_one_graph_for_all_but_the_first_step(capsys: pytest.CaptureFixture[str]) -> None:
    train_step.main()
    lines = capsys.readouterr().out.splitlines()
    assert "compiled 2 times; breaks: 0" in lines
    for line in lines[1:11]:
        _, plain, ours = line.split()
        assert abs(float(plain) - float(ours)) < 1e-4


def _losses(lines: list[str]) -> list[tuple[float, float]]:
    """Both numbers of each line that compares eager with compiled."""
    found = [re.search(r"loss (\S+) eagerly, (\S+) ", line) for line in lines]
    return [(float(match[1]), float(match[2])) for match in found if match is not None]


def test_classifier_trains_as_eager_does_in_one_graph(capsys: pytest.CaptureFixture[str]) -> None:
    classifier.main()
    lines = capsys.readouterr().out.splitlines()
    losses = _losses(lines)
    assert len(losses) == 3 and losses[-1][0] < losses[0][0] / 10
    for eager, ours in losses:
        assert abs(eager - ours) < 1e-3 * max(1.0, eager)
    assert "compiled 1 graph, called 60 times" in lines
    assert lines[-1] == "100% of the points are told right"


def test_a_transformers_step_is_one_graph(capsys: pytest.CaptureFixture[str]) -> None:
    transformer_step.main(steps=12)
    lines = capsys.readouterr().out.splitlines()
    losses = _losses(lines)
    assert len(losses) == 3 and losses[-1][0] < losses[0][0]
    for eager, ours in losses:
        assert abs(eager - ours) < 1e-3 * eager
    assert "compiled 2 times; breaks: 0" in lines


def test_fine_tuning_learns_and_compiles_for_all_lengths_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    fine_tune.main()
    lines = capsys.readouterr().out.splitlines()
    before, after = (float(re.search(r"(\d+)% right", lines[number])[1]) for number in (0, 2))  # type: ignore[index]
    assert after > before + 20
    match = re.fullmatch(r"(\d+) lengths, (\d+) graphs for training and evaluation, 0 breaks", lines[-1])
    assert match is not None and int(match[1]) > 3 and int(match[2]) <= 4  # a first and a general one, for each mode
    assert smelt.counters["sizes_compiled"] == 0


def test_custom_backends_look_time_and_take_apart(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "_registered", {})
    custom_backend.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "counting: 3 linear, 2 relu"
    assert lines[1].startswith("timing: ten runs, 1 graph;")
    assert lines[2].startswith("forward: ") and lines[3].startswith("backward: ")
    assert lines[-1] == "gradients are there"


def test_lazy_tensors_run_as_one_kernel_and_train_a_program_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    lazy.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["3 operators wait", "tensor([3.5000, 5.5000, 7.5000], device='lazy:0')", "1 kernel ran"]
    losses = [re.search(r"loss (\S+) eagerly, (\S+) lazily", line) for line in lines]
    pairs = [(float(match[1]), float(match[2])) for match in losses if match is not None]
    assert len(pairs) == 6 and all(abs(eager - ours) < 1e-3 for eager, ours in pairs)
    steps = [line.partition(": ")[2] for line in lines if "an optimizer's step" in line]
    assert steps == ["compiled", "compiled", "cached", "cached", "cached", "cached"]
