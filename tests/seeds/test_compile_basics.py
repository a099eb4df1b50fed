"""The guides on compiling: one line, the same answers, compiled once, again for a new shape; training included."""

import copy
import time
from collections.abc import Callable

import pytest
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

import smelt


class MyModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Linear(100, 50)
        self.layer2 = nn.Linear(50, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.layer1(x))
        x = self.layer2(x)
        return x


class Flexible(nn.Module):
    """A flag and a loop in `forward`, as the guide's "keeps its flexibility" shows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Linear(8, 8)
        self.dropout = nn.Dropout(0.5)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor, use_dropout: bool = True) -> torch.Tensor:
        x = self.layer1(x)
        if use_dropout:
            x = self.dropout(x)
        for layer in self.layers:
            x = layer(x)
        return x


def test_one_line_and_the_model_is_used_as_before() -> None:
    model = MyModel()
    compiled = smelt.compile(model)
    x = torch.randn(32, 100)
    output = compiled(x)
    assert output.shape == (32, 10)
    torch.testing.assert_close(output, model(x))
    assert smelt.counters["graphs"] == 1 and smelt.counters["graph_breaks"] == 0


def test_a_flag_and_a_loop_over_layers_are_one_graph() -> None:
    model = Flexible()
    assert smelt.explain(model, backend="eager")(torch.randn(4, 8)).graph_break_count == 0
    compiled = smelt.compile(model, fullgraph=True)
    x = torch.randn(4, 8)
    torch.testing.assert_close(compiled(x, use_dropout=False), model(x, use_dropout=False))
    torch.manual_seed(3)
    expected = model(x)
    torch.manual_seed(3)
    torch.testing.assert_close(compiled(x), expected)


def test_the_first_call_compiles_and_the_second_is_fast() -> None:
    compiled = smelt.compile(MyModel())
    x = torch.randn(32, 100)
    times = []
    for _ in range(10):  # other processes may take the cores away during some of them
        start = time.perf_counter()
        compiled(x)
        times.append(time.perf_counter() - start)
    assert smelt.counters["graphs"] == 1
    assert min(times[1:]) < times[0] / 3


def test_after_a_warm_up_nothing_is_compiled_any_more() -> None:
    compiled = smelt.compile(MyModel())
    with torch.no_grad():
        compiled(torch.randn(16, 100))
        warmed = smelt.counters["graphs"]
        for _ in range(5):
            compiled(torch.randn(16, 100))
    assert warmed == 1 and smelt.counters["graphs"] == warmed


def test_a_new_shape_compiles_again_and_an_old_one_does_not() -> None:
    model = MyModel()
    compiled = smelt.compile(model)
    for rows, graphs in ((32, 1), (32, 1), (64, 2), (32, 2), (64, 2)):
        x = torch.randn(rows, 100)
        torch.testing.assert_close(compiled(x), model(x))
        assert smelt.counters["graphs"] == graphs


def test_four_batch_sizes_are_all_right() -> None:
    model = MyModel()
    compiled = smelt.compile(model)
    for batch_size in (16, 32, 64, 128):
        x = torch.randn(batch_size, 100)
        torch.testing.assert_close(compiled(x), model(x))
    assert smelt.counters["graphs"] <= 4


def classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 10))


def train(model: nn.Module, call: Callable[[torch.Tensor], torch.Tensor], loader: "DataLoader[object]") -> list[float]:
    """The guide's training loop: the losses of each epoch."""
    optimizer = optim.Adam(model.parameters())
    criterion = nn.CrossEntropyLoss()
    losses = []
    for _ in range(3):
        total_loss = 0.0
        for x_batch, y_batch in loader:
            output = call(x_batch)
            loss = criterion(output, y_batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total_loss += loss.item()
        losses.append(total_loss / len(loader))
    return losses


def test_training_a_classifier_follows_eager_step_by_step() -> None:
    data = TensorDataset(torch.randn(330, 20), torch.randint(0, 10, (330,)))
    loader = DataLoader(data, batch_size=32, drop_last=True)
    model = classifier()
    other = copy.deepcopy(model)
    compiled = smelt.compile(other)
    expected = train(model, model, loader)
    got = train(compiled, compiled, loader)
    assert got == pytest.approx(expected, rel=1e-4)
    assert got[-1] < got[0]
    assert smelt.counters["graphs"] == 1  # drop_last: every batch has the same shape
    for have, want in zip(other.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(have, want, rtol=1e-3, atol=1e-5)


def test_without_drop_last_the_short_batch_compiles_once_more() -> None:
    loader = DataLoader(TensorDataset(torch.randn(70, 20)), batch_size=32)
    compiled = smelt.compile(classifier(), backend="eager")
    for _ in range(2):
        for (batch,) in loader:
            compiled(batch)
    assert smelt.counters["graphs"] == 2


def test_part_of_a_model_can_be_compiled_alone() -> None:
    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = MyModel()
            self.decoder = nn.Linear(10, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            encoded = smelt.compile(self.encoder)(x)
            return self.decoder(encoded)

    model = Complex()
    x = torch.randn(4, 100)
    torch.testing.assert_close(model(x), model.decoder(model.encoder(x)))
    assert smelt.counters["graphs"] == 1


@pytest.mark.parametrize("backend", ["llvm", "aot_eager"])
def test_the_backend_can_be_chosen(backend: str) -> None:
    model = MyModel()
    x = torch.randn(4, 100)
    torch.testing.assert_close(smelt.compile(model, backend=backend)(x), model(x))
