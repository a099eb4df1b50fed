"""What scripts do with an accelerator beside computing: streams, events, seeds, copies, pinned batches, files."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import rnn
from torch.utils.data import DataLoader, TensorDataset

import smelt


class _Module:
    """`torch.lazy`, which is there once a test has begun."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.lazy, name)  # type: ignore[attr-defined]


LAZY: Any = _Module()

def test_the_accelerator_waits_and_counts() -> None:
    x = torch.ones(3, device="lazy") + 1
    torch.accelerator.synchronize()
    run = smelt.lazy.explain().runs[-1]
    assert run.reason == "torch.lazy.synchronize()" and run.line.startswith(__file__)
    torch.accelerator.empty_cache()
    assert torch.accelerator.current_accelerator() == torch.device("lazy")
    assert torch.accelerator.current_device_index() == 0
    torch.accelerator.set_device_index(0)
    with LAZY.device(0):
        assert x.tolist() == [2.0] * 3


def test_events_take_the_time_of_what_is_before_them() -> None:
    start, end = LAZY.Event(enable_timing=True), LAZY.Event(enable_timing=True)
    start.record()
    x = torch.ones(3, device="lazy").exp()
    end.record()
    assert smelt.lazy.explain().pending == 0
    end.synchronize()
    assert end.query() and start.elapsed_time(end) > 0
    with pytest.raises(ValueError, match="enable_timing"):
        LAZY.Event().elapsed_time(end)
    with pytest.raises(ValueError, match="recorded"):
        start.elapsed_time(LAZY.Event(enable_timing=True))
    del x


def test_there_is_one_stream() -> None:
    stream = LAZY.Stream()
    x = torch.ones(3, device="lazy")
    with LAZY.stream(stream):
        y = x + 1
    LAZY.current_stream().wait_stream(stream)
    stream.record_event().synchronize()
    assert smelt.lazy.explain().pending == 0 and stream == LAZY.current_stream()
    assert y.tolist() == [2.0] * 3


SEEDS: dict[str, Callable[[], Any]] = {
    "torch": lambda: torch.manual_seed(3),
    "the device": lambda: LAZY.manual_seed(3),
    "all devices": lambda: LAZY.manual_seed_all(3),
}


@pytest.mark.parametrize("name", SEEDS)
def test_seeds(name: str) -> None:
    torch.manual_seed(3)
    wanted = torch.rand(4)
    SEEDS[name]()
    assert LAZY.initial_seed() == 3
    assert torch.equal(torch.rand(4, device="lazy").cpu(), wanted)


def test_states_of_random_numbers() -> None:
    state = LAZY.get_rng_state()
    first = torch.rand(3, device="lazy").tolist()
    LAZY.set_rng_state_all([state])
    with torch.random.fork_rng(device_type="lazy"):
        assert torch.rand(3, device="lazy").tolist() == first
        LAZY.seed()
    assert torch.rand(3, device="lazy").tolist() == first
    assert LAZY.get_rng_state_all()[0].shape == state.shape


DRAWS: dict[str, Callable[[Any], torch.Tensor]] = {
    "randn": lambda where: torch.randn(5, **where),
    "randint": lambda where: torch.randint(0, 9, (5,), **where),
    "randperm": lambda where: torch.randperm(5, **where),
    "normal_": lambda where: torch.empty(5, device=where["device"]).normal_(generator=where["generator"]),
    "exponential_": lambda where: torch.empty(5, device=where["device"]).exponential_(generator=where["generator"]),
    "bernoulli": lambda where: torch.bernoulli(
        torch.full((5,), 0.5, device=where["device"]), generator=where["generator"]
    ),
    "multinomial": lambda where: torch.multinomial(
        torch.ones(5, device=where["device"]), 2, generator=where["generator"]
    ),
    "normal": lambda where: torch.normal(torch.zeros(5, device=where["device"]), 2.0, generator=where["generator"]),
}


@pytest.mark.parametrize("name", DRAWS)
def test_generators_of_the_host(name: str) -> None:
    found, wanted = (
        DRAWS[name]({"device": device, "generator": torch.Generator().manual_seed(2)}) for device in ("lazy", "cpu")
    )
    assert found.device.type == "lazy" and torch.equal(found.cpu(), wanted)


def test_copies_share_what_their_originals_share() -> None:
    x = torch.arange(6.0, device="lazy").reshape(2, 3) + 1
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):  # of the whole and its parts
        parts: list[Any] = [x, x[1], x.t()[2]]
        copies: list[Any] = copy.deepcopy([parts[number] for number in order])
        whole, row, column = (copies[order.index(number)] for number in range(3))
        row.zero_()
        column += 10
        assert whole.tolist() == [[1.0, 2.0, 13.0], [0.0, 0.0, 10.0]]
        assert x.tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    bits = copy.deepcopy([x, x.view(torch.int32)])
    bits[1].zero_()
    assert bits[0].tolist() == [[0.0] * 3] * 2


def test_copies_of_what_is_not_a_plain_tensor() -> None:
    leaf = torch.ones(2, device="lazy", requires_grad=True)
    (leaf * 3).sum().backward()
    found = copy.deepcopy(leaf)
    assert found.requires_grad and found.grad is not None and found.grad.tolist() == [3.0, 3.0]
    with pytest.raises(RuntimeError, match="created explicitly by the user"):
        copy.deepcopy(leaf * 2)
    conjugate = torch.tensor([1 + 2j], device="lazy").conj()
    assert copy.deepcopy(conjugate).tolist() == [1 - 2j]
    storage = copy.deepcopy(leaf.detach().untyped_storage())
    assert storage.device.type == "lazy" and storage.nbytes() == 8
    host = [torch.ones(2), torch.ones(2).untyped_storage()]
    assert copy.deepcopy(host)[1].tolist() == host[1].tolist()
    empty = copy.deepcopy(torch.empty(0, 3, device="lazy"))
    assert empty.shape == (0, 3)


def test_models_are_copied_with_their_ties_and_trained_apart() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    model.to("lazy")
    other = copy.deepcopy(model)
    assert other[2].weight is other[0].weight is not model[0].weight
    before = model[0].weight.tolist()
    optimizer = torch.optim.Adam(other.parameters())
    other(torch.ones(4, 3, device="lazy")).sum().backward()
    optimizer.step()
    assert model[0].weight.tolist() == before != other[0].weight.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.int8])
def test_pickles(dtype: torch.dtype) -> None:
    x = torch.arange(4, device="lazy").to(dtype)
    whole, part = pickle.loads(pickle.dumps([x, x[1:3]]))
    assert (whole.device, whole.dtype, whole.tolist(), part.tolist()) == (x.device, dtype, x.tolist(), x[1:3].tolist())
    module = pickle.loads(pickle.dumps(nn.Linear(2, 2).to("lazy")))
    assert module.weight.device == x.device and module.weight.requires_grad


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pinned", [False, True])
def test_batches_come_to_the_device(workers: int, pinned: bool) -> None:
    data = TensorDataset(torch.arange(8.0)[:, None], torch.arange(8))
    seen: list[int] = []
    for x, number in DataLoader(data, batch_size=3, num_workers=workers, pin_memory=pinned):
        x = x.to("lazy", non_blocking=True)
        assert x.squeeze(1).long().tolist() == number.tolist()
        seen += number.tolist()
    assert seen == list(range(8))


def test_batches_of_what_is_on_the_device() -> None:
    data = TensorDataset(torch.arange(8.0, device="lazy")[:, None])
    torch.manual_seed(0)
    seen = [batch.squeeze(1).tolist() for (batch,) in DataLoader(data, batch_size=4, shuffle=True)]
    assert sorted(seen[0] + seen[1]) == list(map(float, range(8)))


def test_packed_sequences() -> None:
    def run(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        layer, given = nn.LSTM(2, 3).to(device), [torch.randn(3, 2), torch.randn(5, 2), torch.randn(1, 2)]
        inputs = [each.to(device).requires_grad_() for each in given]
        packed = rnn.pack_sequence(inputs, enforce_sorted=False)
        assert packed.batch_sizes.device.type == "cpu"
        out, _ = layer(packed)
        padded, lengths = rnn.pad_packed_sequence(out)
        padded.square().sum().backward()
        return [padded.detach().cpu(), lengths, *(each.grad.cpu() for each in inputs if each.grad is not None)]

    for mine, theirs in zip(run("lazy"), run("cpu"), strict=True):
        torch.testing.assert_close(mine, theirs)


NO_DEVICE: dict[str, Callable[[], Any]] = {
    "ones": lambda: torch.ones(2, device="lazy:1"),
    "empty": lambda: torch.empty(2, device="lazy:1"),
    "arange": lambda: torch.arange(2, device="lazy:1"),
    "tensor": lambda: torch.tensor([1.0], device="lazy:1"),
    "to": lambda: torch.ones(2).to("lazy:1"),
    "like": lambda: torch.ones_like(torch.ones(2, device="lazy"), device="lazy:1"),
    "set_device": lambda: LAZY.set_device(1),
}


@pytest.mark.parametrize("name", NO_DEVICE)
def test_a_second_device_is_refused(name: str) -> None:
    with pytest.raises(RuntimeError, match="there is one device of this kind, with number 0, not 1"):
        NO_DEVICE[name]()


STRANGE: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "sparse": (lambda x: x.to_sparse(), "tensors of layout torch.sparse_coo"),
    "csr": (lambda x: x.to_sparse_csr(), "tensors of layout torch.sparse_csr"),
    "quantized": (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8), "quantized tensors"),
    "nested": (lambda x: torch.nested.nested_tensor([x, x]), "nested tensors"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_kinds_of_tensors_that_are_not_there(name: str) -> None:
    make, words = STRANGE[name]
    with pytest.raises(NotImplementedError, match=f"the device 'lazy' has no {words}"):
        make(torch.ones(2, 2, device="lazy"))


def test_numbers_of_python() -> None:
    half, three = torch.tensor(1.5, device="lazy"), torch.tensor(3, device="lazy")
    assert (f"{half:.2f}", f"{three}") == ("1.50", "3")
    assert (int(three), float(half), complex(half), bool(three)) == (3, 1.5, 1.5 + 0j, True)
    assert [1, 2, 3, 4][three] == 4 and list(range(three)) == [0, 1, 2]
    x = torch.arange(3.0, device="lazy")
    assert len(x) == 3 and 2.0 in x and [float(each) for each in x] == [0.0, 1.0, 2.0]
    assert torch.equal(x, x.clone()) and torch.allclose(x, x + 1e-9) and bool((x < 3).all())


def _text(x: torch.Tensor) -> str:
    return "\n".join(map(str, (x, x > 1, x * 1j, x.exp(), x[:0], x.to(torch.bfloat16), nn.Parameter(x), x.sum())))


def test_prints_are_the_hosts() -> None:
    x = torch.arange(4.0)
    assert _text(x.to("lazy")).replace(", device='lazy:0'", "").split() == _text(x).split()


def test_checkpoints_that_name_devices() -> None:
    file = io.BytesIO()
    torch.save(nn.Linear(2, 2).to("lazy").state_dict(), file)

    def load(**options: Any) -> str:
        file.seek(0)
        return str(torch.load(file, **options)["weight"].device)

    assert load() == load(weights_only=True) == load(map_location=torch.device("lazy")) == "lazy:0"
    assert load(map_location={"lazy:0": "cpu"}) == load(map_location=lambda storage, _: storage) == "cpu"


def test_states_of_optimizers_go_with_their_parameters() -> None:
    def make(device: str) -> tuple[nn.Module, torch.optim.Optimizer]:
        layer = nn.Linear(2, 2).to(device)
        return layer, torch.optim.Adam(layer.parameters())

    model, optimizer = make("lazy")
    model(torch.ones(1, 2, device="lazy")).sum().backward()
    optimizer.step()
    for device in ("lazy", "cpu"):
        other, theirs = make(device)
        other.load_state_dict(model.state_dict())
        theirs.load_state_dict(optimizer.state_dict())
        mine, moments = (each.state_dict()["state"][0]["exp_avg"] for each in (optimizer, theirs))
        assert moments.device.type == device and moments.tolist() == mine.tolist()


OUT: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "a part": lambda x, where: torch.add(x, 1, out=torch.zeros(4, 3, **where)[::2]),
    "resized": lambda x, where: torch.matmul(x, x.t(), out=torch.empty(0, **where)),
    "a pair": lambda x, where: torch.max(
        x, 1, out=(torch.empty(2, **where), torch.empty(2, dtype=torch.int64, **where))
    ),
    "cat": lambda x, where: torch.cat([x, x], out=torch.empty(4, 3, **where)),
    "sum": lambda x, where: torch.sum(x, 0, out=torch.empty(3, **where)),
    "arange": lambda x, where: torch.arange(3, out=torch.empty(3, **where)),
    "where": lambda x, where: torch.where(x > 1, x, -x, out=torch.empty(2, 3, **where)),
    "cumsum": lambda x, where: torch.cumsum(x, 0, out=torch.empty(2, 3, **where)),
    "eye": lambda x, where: torch.eye(3, out=torch.empty(3, 3, **where)),
    "itself": lambda x, where: torch.mul(x, 2, out=x),
    "rand": lambda x, where: (torch.manual_seed(1), torch.rand(3, out=torch.empty(3, **where)))[1],
}


@pytest.mark.parametrize("name", OUT)
def test_results_into_given_tensors(name: str) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    found, wanted = (OUT[name](x.to(device, copy=True), {"device": device}) for device in ("lazy", "cpu"))
    for mine, theirs in zip(found, wanted, strict=True):
        assert torch.equal(mine.cpu(), theirs)


def _many_writes(x: torch.Tensor) -> torch.Tensor:
    device = x.device
    x[1:, ::2] = 9
    x[x > 10] = -1
    x[:, [0, 2]] += 5
    x[torch.tensor([0, 2], device=device), 1] = 3.0
    x.diagonal().mul_(2)
    x.T[0].copy_(x[:, 1])
    x.unfold(1, 2, 2)[0].zero_()
    x[..., None].squeeze(-1).neg_()
    x.flatten()[3] = 7
    x.swapaxes(0, 1)[1, 1] = 100
    x.select(0, 0).narrow(0, 1, 2).fill_(3)
    x.masked_fill_(x < 0, 0)
    x.index_add_(0, torch.tensor([0], device=device), torch.ones(1, 4, device=device))
    x.scatter_(1, torch.zeros(3, 1, dtype=torch.int64, device=device), 8.0)
    x.view(torch.int32)[0, 0] = 0
    x.mT[2] *= 2
    return x


def test_many_writes_through_views() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    found = _many_writes(x.to("lazy"))
    assert torch.equal(found.cpu(), _many_writes(x.clone()))
