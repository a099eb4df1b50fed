"""`with smelt.lazy():` for tensors of the host: recorded, eager's values, and nothing left to do at its end."""

import contextlib
import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import smelt
from tests.lazy.test_device import PROGRAMS as ON_A_DEVICE
from tests.processes import run


def block() -> "contextlib.AbstractContextManager[None]":
    found: contextlib.AbstractContextManager[None] = smelt.lazy()
    return found


def test_operators_are_recorded_and_run_at_the_end() -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    runs = smelt.lazy.explain().run_count
    with block():
        y = (x + 1) * 2 - 0.5
        assert (type(y), y.device.type, smelt.lazy.explain().pending) == (torch.Tensor, "cpu", 3)
    found = smelt.lazy.explain()
    assert (found.run_count, found.pending, found.runs[-1].kernels) == (runs + 1, 0, 1)
    assert found.runs[-1].reason == "the end of a lazy block"
    assert y.numpy().tolist() == [3.5, 5.5, 7.5]


LOOKS: dict[str, Callable[[torch.Tensor], Any]] = {
    "print": str,
    "repr": repr,
    "format": lambda x: f"{x}",
    "format of a number": lambda x: f"{x.sum():.2f}",
    "item": lambda x: x[0].item(),
    "float": lambda x: float(x.sum()),
    "int": lambda x: int(x[1]),
    "if": lambda x: 1 if x.sum() > 3 else 2,
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy().tolist(),
    "asarray": lambda x: numpy.asarray(x).tolist(),
    "numpy's functions": lambda x: numpy.sum(x.detach().numpy()),
    "iteration": lambda x: [float(each) for each in x],
    "a tensor of tensors": lambda x: torch.tensor([x.sum(), x[0]]).tolist(),
    "a tensor of a tensor": lambda x: torch.as_tensor(x.sum()).item(),
    "stack": lambda x: torch.stack([x, x]).tolist(),
    "pickle": lambda x: pickle.loads(pickle.dumps(x)).tolist(),
    "deepcopy": lambda x: copy.deepcopy(x).tolist(),
    "equal": lambda x: torch.equal(x, x + 0),
    "allclose": lambda x: torch.allclose(x, x * 1.0),
    "nonzero": lambda x: x.nonzero().tolist(),
    "a mask": lambda x: x[x > 1].tolist(),
    "a slice of a tensor": lambda x: x[: int(x[0])].tolist(),
    "index": lambda x: [7, 8, 9][x[0].long()],
    "storage": lambda x: x.untyped_storage().tolist(),
    "dlpack": lambda x: torch.from_dlpack(x).tolist(),
    "compiled": lambda x: smelt.compile(lambda y: y * 2 + 1)(x).tolist(),
    "in": lambda x: 2.0 in x,
    "len": lambda x: len(x),
}


@pytest.mark.parametrize("name", LOOKS)
def test_what_looks_at_a_value_sees_it(name: str) -> None:
    look = LOOKS[name]
    x = torch.tensor([0.0, 1.0, 2.0])
    wanted = look(x + 1)
    with block():
        assert look(x + 1) == wanted
        y = x + 1
        y *= 1
        assert look(y) == wanted
    assert look(y) == wanted


@pytest.mark.parametrize("name", LOOKS)
def test_what_looks_sees_what_was_written(name: str) -> None:
    look = LOOKS[name]
    x = torch.tensor([0.0, 1.0, 2.0])
    wanted = look(x + 1)
    with block():
        x.add_(1)
        assert look(x) == wanted
    assert look(x) == wanted


@pytest.mark.parametrize("name", ON_A_DEVICE)
def test_programs(name: str) -> None:
    program = ON_A_DEVICE[name]
    x = torch.arange(6.0).reshape(2, 3)
    wanted = program(x.clone())
    with block():
        found = program(x.clone())
    assert type(found) is type(wanted)
    if isinstance(wanted, str | bool):
        assert found == wanted
    else:
        torch.testing.assert_close(found, wanted)


def test_writes_to_tensors_from_outside() -> None:
    x, row = torch.zeros(3, 4), torch.ones(4)
    view, whole = x[1], x.numpy()
    with block():
        x[0] += row
        view.sub_(2)
        x.t()[2] = 5
        row.mul_(3)
    wanted = [[1.0, 1.0, 5.0, 1.0], [-2.0, -2.0, 5.0, -2.0], [0.0, 0.0, 5.0, 0.0]]
    assert x.tolist() == wanted == whole.tolist() and row.tolist() == [3.0] * 4
    assert view.tolist() == wanted[1]


def test_arrays_of_numpy_may_change_what_was_recorded() -> None:
    array = numpy.ones(3, dtype=numpy.float32)
    x, y = torch.from_numpy(array), torch.ones(3)
    with block():
        first = x + 1
        array[:] = 7
        second = x + 1
        x.add_(1)
        assert array.tolist() == [8.0] * 3
        other = y.numpy()
        third = y + 1
        other[:] = 5
        fourth = y * 2
    assert [each.tolist()[0] for each in (first, second, third, fourth)] == [2.0, 8.0, 2.0, 10.0]


def test_training_is_eagers() -> None:
    def train(recorded: bool) -> tuple[list[float], list[torch.Tensor]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.BatchNorm1d(16), nn.Linear(16, 3))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = []
        with block() if recorded else contextlib.nullcontext():
            for _ in range(5):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(torch.randn(8, 6)), torch.randint(0, 3, (8,)))
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                losses.append(loss.item())
        return losses, [*model.state_dict().values(), *(each.grad for each in model.parameters())]  # type: ignore[list-item]

    before = smelt.lazy.explain()
    losses, state = train(True)
    found = smelt.lazy.explain()
    wanted, eager = train(False)
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(wanted), rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(state, eager, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
    runs = found.runs[before.run_count - found.run_count :]
    steps = [each for each in runs if each.reason == "an optimizer's step"]
    assert len(steps) == 5 and {each.how for each in steps[2:]} == {"cached"}
    assert {each.reason for each in runs if each.operators > 1} == {"an optimizer's step"}


def test_random_numbers_are_eagers() -> None:
    def draw() -> list[Any]:
        torch.manual_seed(3)
        x = torch.randn(4) * 2
        x.uniform_()
        y = nn.functional.dropout(x + 1, 0.5)
        drawn = [torch.multinomial(x.abs() + 0.1, 2), torch.bernoulli(x.sigmoid())]
        return [x, y, torch.rand(2), torch.randperm(5), *drawn]

    wanted = draw()
    with block():
        found = draw()
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_errors_are_raised_at_their_line() -> None:
    x = torch.ones(2, 3)
    with block():
        with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
            x @ x
        with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
            torch.ones(2, requires_grad=True).add_(1)
        y = x + 1
    assert y.tolist() == [[2.0] * 3] * 2


def test_an_error_that_only_numbers_show_is_no_number() -> None:
    x = torch.ones(3)
    with pytest.raises(IndexError, match=r"test_block\.py"), block():
        before = x * 2
        bad = x[torch.tensor([9])]
        after = bad + 1
    assert before.tolist() == [2.0] * 3
    assert after.isnan().all()


def test_what_ran_before_an_exception_has_run() -> None:
    x, y = torch.ones(3), None
    with pytest.raises(KeyError), block():
        x += 1
        y = x * 2
        raise KeyError
    assert y is not None
    assert (x.tolist(), y.tolist()) == ([2.0] * 3, [4.0] * 3)
    assert (x + 1).tolist() == [3.0] * 3


def test_a_block_in_a_block_and_functions_of_one() -> None:
    x = torch.ones(3)
    with block():
        y = x + 1
        with block():
            z = y * 2
        assert smelt.lazy.explain().pending == 2
    assert z.tolist() == [4.0] * 3


def test_a_step_in_a_block_leaves_nothing_to_do() -> None:
    x = torch.ones(3)
    with block():
        y = x + 1
        smelt.lazy.step()
        with torch.utils._python_dispatch._disable_current_modes():
            assert (y * 2).tolist() == [4.0] * 3


def test_memory_is_let_go() -> None:
    class Token:
        pass

    tokens = []
    with block():
        for _ in range(3):
            x = torch.ones(5) * 2
            token = Token()
            x.untyped_storage().token = token  # type: ignore[attr-defined]
            tokens.append(weakref.ref(token))
            float(x.sum())
            del token
        del x
        gc.collect()
        assert [each() for each in tokens] == [None] * 3


def test_gradients_and_hooks() -> None:
    seen: list[Any] = []

    def go() -> list[torch.Tensor]:
        w = torch.arange(3.0, requires_grad=True)
        (w * 2).register_hook(seen.append)
        (first,) = torch.autograd.grad((w**3).sum(), w, create_graph=True)
        first.sum().backward()
        assert w.grad is not None
        return [first.detach(), w.grad]

    wanted = go()
    with block():
        found = go()
    torch.testing.assert_close(found, wanted)


def test_views_keep_sharing_memory() -> None:
    with block():
        x = torch.ones(2, 3) * 2
        row, flat = x[0], x.view(-1)
        x.mul_(3)
        other = row + 0
    row.zero_()
    assert x.tolist() == [[0.0] * 3, [6.0] * 3] and flat.tolist() == [0.0] * 3 + [6.0] * 3
    assert other.tolist() == [6.0] * 3
    x.resize_(1)


def test_a_block_in_a_process_that_has_run_backwards() -> None:
    done = run(
        """
x = torch.ones(3, requires_grad=True)
(x * 2).sum().backward()
with smelt.lazy():
    (x * 3).sum().backward()
    print(x.grad.tolist())
print(x.grad.add(1).tolist())
"""
    )
    assert done.stdout.split("\n")[:2] == ["[5.0, 5.0, 5.0]", "[6.0, 6.0, 6.0]"], done.stderr


def _lengths(*values: int) -> torch.Tensor:
    """Integers that are computed, so that a block records them."""
    return torch.tensor(values) + torch.zeros(len(values), dtype=torch.long)


def _packed(layer: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    given = nn.utils.rnn.pack_padded_sequence(x.view(4, 4, 4), _lengths(3, 4, 1, 2), True, enforce_sorted=False)
    found, lengths = nn.utils.rnn.pad_packed_sequence(layer(given)[0], batch_first=True)
    return [found, lengths, *torch.autograd.grad(found.square().sum(), list(layer.parameters()))]


READS_INTEGERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor_split": lambda x: torch.tensor_split(x, _lengths(3, 9)),
    "tensor_split of a tensor": lambda x: x.tensor_split(_lengths(3, 9)),
    "lstm": lambda x: _packed(_seeded(nn.LSTM, 4, 3, batch_first=True), x),
    "gru": lambda x: _packed(_seeded(nn.GRU, 4, 3, batch_first=True, bidirectional=True), x),
    "packed by hand": lambda x: _seeded(nn.LSTM, 4, 3)(
        nn.utils.rnn.PackedSequence(x.view(16, 4), _lengths(4, 4, 4, 4))
    )[0],
    "ctc loss": lambda x: nn.functional.ctc_loss(
        x.view(4, 2, 8).log_softmax(-1), torch.tensor([[1, 2], [3, 1]]), _lengths(4, 3), _lengths(1, 2)
    ),
}


def _seeded(kind: Callable[..., nn.Module], *args: Any, **kwargs: Any) -> nn.Module:
    torch.manual_seed(0)
    return kind(*args, **kwargs)


@pytest.mark.parametrize("name", READS_INTEGERS)
def test_integers_that_are_read_in_memory_are_there(name: str) -> None:
    x = torch.linspace(-1, 1, 64)
    want = READS_INTEGERS[name](x)
    with block():
        found = READS_INTEGERS[name](x)
    torch.testing.assert_close(found, want)


@pytest.mark.parametrize("trains", [True, False])
def test_an_lstm_runs_and_trains(trains: bool) -> None:
    layer, x = _seeded(nn.LSTM, 4, 3, batch_first=True), torch.linspace(-1, 1, 64).view(4, 4, 4)

    def gradients() -> Any:
        with torch.set_grad_enabled(trains):
            found = layer(x)[0]
        return torch.autograd.grad(found.square().sum(), list(layer.parameters())) if trains else found

    want = gradients()
    with block():
        found = gradients()
    torch.testing.assert_close(found, want)


FORWARD: dict[str, Callable[[nn.Module, torch.Tensor], Any]] = {
    "jvp": lambda model, x: torch.func.jvp(model, (x,), (x * 2,)),
    "jacfwd": lambda model, x: torch.func.jacfwd(model)(x[0]),
    "hessian": lambda model, x: torch.func.hessian(lambda row: model(row).sum())(x[0]),
}


@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize("where", ["block", "device"])
def test_forward_gradients_of_a_linear_layer(name: str, where: str) -> None:
    model, x = _seeded(nn.Linear, 4, 3), torch.linspace(-1, 1, 8).view(2, 4)
    want = FORWARD[name](model, x)
    if where == "block":
        with block():
            found = FORWARD[name](model, x)
    else:
        on_device = copy.deepcopy(model).to("lazy")
        found = FORWARD[name](on_device, x.to("lazy"))
        found = found.cpu() if isinstance(found, torch.Tensor) else tuple(each.cpu() for each in found)
    torch.testing.assert_close(found, want)
