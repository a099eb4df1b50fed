"""The small scripts of `examples/` do what they say."""

import pytest

import smelt
from examples import edit_graph, explain_breaks, second_derivatives, train_step


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
