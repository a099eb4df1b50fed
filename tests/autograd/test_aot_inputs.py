"""`aot_function` of whatever comes: numbers, modes, classes of tensors, inputs that change in every way."""

import contextlib
import dataclasses
import importlib
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import smelt
from smelt.autograd.aot import aot_function, aot_module, aot_module_simplified
from smelt.autograd.partition import partition
from smelt.base.errors import SmeltError, SmeltWarning
from tests.autograd.helpers import Seen
from tests.targets import HOST, device_type

Make = Callable[[int], tuple[Any, ...]]
MODES: dict[str, Callable[[], Any]] = {
    "grad": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}


def plain(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def computed(*shape: int) -> torch.Tensor:
    return leaf(*shape) * 1


def look(value: Any, is_input: bool) -> Any:
    """All that shows of a tensor; of a result of its own, not how often it was written on the way."""
    if not isinstance(value, torch.Tensor):
        return value if isinstance(value, int | float | str | bool | type(None)) else type(value)
    seen = [value.detach().clone(), value.dtype, tuple(value.shape), value.stride(), value.storage_offset()]
    seen += [value.requires_grad, value.is_leaf, value.is_inference(), type(value)]
    return (*seen, value._version) if is_input and not value.is_inference() else tuple(seen)


def who_is_who(values: Any) -> tuple[list[int], list[int]]:
    tensors = [each for each in pytree.tree_leaves(values) if isinstance(each, torch.Tensor)]
    places = [each.untyped_storage().data_ptr() for each in tensors]
    return [places.index(place) for place in places], [list(map(id, tensors)).index(id(each)) for each in tensors]


def run(function: Callable[..., Any], make: Make, mode: str) -> list[Any]:
    """What three calls give, leave behind and pass back; the class of an error."""
    found: list[Any] = []
    for number in range(3):
        torch.manual_seed(number)
        args = make(number)
        try:
            with MODES[mode]():
                outputs = function(*args)
        except Exception as error:
            found.append((type(error), str(error) if type(error) is RuntimeError else ""))
            continue
        found.append(pytree.tree_map(lambda each: look(each, False), outputs))
        found.append(pytree.tree_map(lambda each: look(each, True), args))
        found.append(who_is_who((args, outputs)))
        results = [each for each in pytree.tree_leaves(outputs) if isinstance(each, torch.Tensor)]
        losses = [(each * torch.arange(1.0, each.numel() + 1).view(each.shape)).sum()
                  for each in results if each.requires_grad and each.dtype.is_floating_point]  # fmt: skip
        if losses:
            try:
                torch.stack(losses).sum().backward()
            except RuntimeError as error:
                found.append(type(error))
            inputs = [each for each in pytree.tree_leaves(args) if isinstance(each, torch.Tensor) and each.is_leaf]
            found.append([each.grad for each in inputs])
    return found


def check(function: Callable[..., Any], make: Make, modes: tuple[str, ...] = tuple(MODES)) -> None:
    """As eager, by hand and for backends, in every mode, three calls of one compiled function."""

    class Module(torch.nn.Module):
        def forward(self, *args: Any) -> Any:
            return function(*args)

    for mode in modes:
        wanted = run(function, make, mode)
        for partition_fn in (partition.default, partition.min_cut):
            made = aot_function(function, Seen().compiler, partition_fn=partition_fn)
            compare(run(made, make, mode), wanted)
        with MODES[mode]():
            simplified = aot_module_simplified(Module(), make(0), Seen().compiler)
        compare(run(simplified, make, mode), wanted)


def compare(found: Any, wanted: Any) -> None:
    ours, tree = pytree.tree_flatten(found)
    theirs, expected = pytree.tree_flatten(wanted)
    assert tree == expected
    for have, want in zip(ours, theirs, strict=True):
        if isinstance(want, torch.Tensor):
            torch.testing.assert_close(have, want, rtol=1e-6, atol=1e-6, equal_nan=True)
        else:
            assert have == want


Point = namedtuple("Point", "x y")

NUMBERS: dict[str, tuple[Callable[..., Any], Make]] = {
    "int": (lambda x, n: x * n, lambda i: (leaf(3), i + 2)),
    "float": (lambda x, n: x * n + n, lambda i: (leaf(3), i + 2.5)),
    "bool": (lambda x, n: x * 2 if n else x * 3, lambda i: (leaf(3), i % 2 == 0)),
    "zeros": (lambda x, n: torch.copysign(x, torch.tensor(n)), lambda i: (plain(3), -0.0 if i % 2 else 0.0)),
    "complex": (lambda x, n: x * n, lambda i: (plain(3), complex(1, i))),
    "size": (lambda x, n: (x[:n].sum(), n + 1), lambda i: (leaf(5), i + 1)),
    "shape": (lambda x: (x * x.shape[0], x.shape[0]), lambda i: (leaf(3 + i),)),
    "text": (lambda x, s: (x * 2, s) if s == "a" else (x * 3, None), lambda i: (leaf(3), "ab"[i % 2])),
    "none": (lambda x, s: x * 2 if s is None else x * s, lambda i: (leaf(3), None if i % 2 else 4)),
    "dtype": (lambda x, s: x.to(s), lambda i: (leaf(3), [torch.float64, torch.float32, torch.bfloat16][i])),
    "slice": (lambda x, s: x[s] * 1, lambda i: (leaf(5), slice(i, 4))),
    "nested": (lambda x, s: x * sum(s["n"]), lambda i: (leaf(5), {"n": [i, 2, 3]})),
    "function": (lambda x, f: f(x), lambda i: (leaf(3), [torch.sin, torch.relu, torch.exp][i])),
    "alone": (lambda n: torch.ones(3) * n, lambda i: (i,)),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_and_other_plain_values_are_those_of_the_call(name: str) -> None:
    check(*NUMBERS[name])


@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("values", [(3, 5, 6, 7), (2.5, 3.5, 4.5), (True, False, True)])
def test_numbers_of_a_captured_graph_are_those_of_the_call(dynamic: bool | None, values: Any, grows: bool) -> None:
    def backend(module: Any, examples: Any) -> Any:
        return aot_module_simplified(module, examples, Seen().compiler)

    compiled = smelt.compile(lambda x, n: x * n + x.shape[0], backend=backend, dynamic=dynamic)
    for place, value in enumerate(values):
        x = torch.randn(3 + place * grows, 2, requires_grad=True)
        torch.testing.assert_close(compiled(x, value), x * value + x.shape[0])
        torch.testing.assert_close(
            torch.autograd.grad(compiled(x, value).sum(), x), torch.autograd.grad((x * value).sum(), x)
        )


class Settings:
    factor = 1.0


@dataclasses.dataclass
class Pair:
    tensor: torch.Tensor
    number: int


@pytest.mark.filterwarnings("ignore::smelt.base.errors.SmeltWarning")
def test_objects_that_may_change_are_looked_at_in_every_call() -> None:
    settings = Settings()

    def changed(number: int) -> tuple[Any, ...]:
        settings.factor = number + 1.0
        return leaf(3), settings

    check(lambda x, s: x * s.factor, changed)
    check(lambda pair: pair.tensor * pair.number, lambda i: (Pair(leaf(3), i),))
    check(lambda x, a: x * torch.from_numpy(a).to(x.device), lambda i: (leaf(3), np.full(3, i, np.float32)))
    check(lambda x, s: x * len(s), lambda i: (leaf(3), set(range(i))))


def enabled(x: Any) -> Any:
    with torch.enable_grad():
        return x * 2


def enabled_view(x: Any) -> Any:
    with torch.enable_grad():
        return x.view(-1), x[0] * 1


def enabled_first(x: Any) -> Any:
    with torch.enable_grad():
        y = x * 2
    return y, y * 2, x.view(-1)


def disabled_view(x: Any) -> Any:
    with torch.no_grad():
        y = x.view(-1)
    return y, x * 2


def all_disabled(x: Any) -> Any:
    with torch.no_grad():
        return x.view(-1), x * 3


def in_inference_mode(x: Any) -> Any:
    with torch.inference_mode():
        return x * 2


GRADIENTS: dict[str, tuple[Callable[..., Any], Make]] = {
    "enabled": (enabled, lambda i: (leaf(3),)),
    "enabled, of a computed one": (enabled, lambda i: (computed(3),)),
    "enabled view": (enabled_view, lambda i: (leaf(3),)),
    "enabled view of a computed one": (enabled_view, lambda i: (computed(3),)),
    "enabled first": (enabled_first, lambda i: (leaf(3),)),
    "disabled view": (disabled_view, lambda i: (leaf(3),)),
    "all disabled": (all_disabled, lambda i: (leaf(3),)),
    "view": (lambda x: x.view(-1), lambda i: (leaf(3, 2),)),
    "views": (lambda x: (x.view(-1), x.t(), x[0]), lambda i: (computed(3, 2),)),
    "itself": (lambda x: (x, x * 2), lambda i: (leaf(3),)),
    "inference mode inside": (in_inference_mode, lambda i: (leaf(3),)),
    "a new leaf": (lambda x: torch.ones(3, requires_grad=True) * x, lambda i: (plain(3),)),
    "a leaf as result": (lambda x: (x * 2).detach().requires_grad_(), lambda i: (leaf(3),)),
    "made to require grad": (lambda x: x.requires_grad_() * 2, lambda i: (plain(3),)),
    "made not to require grad": (lambda x: x.requires_grad_(False) * 2, lambda i: (leaf(3),)),
    "detached in place": (lambda x: x.detach_() * 2, lambda i: (computed(3),)),
}


@pytest.mark.filterwarnings("ignore::smelt.base.errors.SmeltWarning")
@pytest.mark.parametrize("name", GRADIENTS)
def test_what_requires_grad_is_what_does_in_eager(name: str) -> None:
    check(*GRADIENTS[name])


def inference_tensor(*shape: int) -> torch.Tensor:
    with torch.inference_mode():
        return torch.randn(*shape)


def test_inference_mode_and_its_tensors() -> None:
    check(lambda x, b: (x * b, b.add_(1), x.view(-1), x), lambda i: (plain(3), plain(3)))
    check(lambda x: (x * 2, x.view(-1)), lambda i: (inference_tensor(3),))
    check(lambda x: x.mul_(2), lambda i: (inference_tensor(3),), ("inference",))
    check(lambda x, w: x * w, lambda i: (inference_tensor(3) if i % 2 else plain(3), leaf(3)))


def under_no_grad(change: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    def function(x: torch.Tensor) -> Any:
        with torch.no_grad():
            change(x)
        return x * 2

    return function


def exchange_data(x: Any) -> Any:
    x.data = torch.ones(2, 3)
    return x


CHANGES: dict[str, Callable[[Any], Any]] = {
    "t_": lambda x: x.t_(),
    "transpose_": lambda x: x.transpose_(0, 1),
    "unsqueeze_": lambda x: x.unsqueeze_(0),
    "squeeze_": lambda x: x.squeeze_(),
    "resize_": lambda x: x.resize_(2),
    "resize_ to more": lambda x: x.resize_(4, 4).zero_(),
    "set_": lambda x: x.set_(torch.arange(4.0)),
    "as_strided_": lambda x: x.as_strided_((2,), (1,)),
    "there and back": lambda x: x.unsqueeze_(0).squeeze_(0),
    "and written": lambda x: x.mul_(2).t_(),
    "data": exchange_data,
}


@pytest.mark.filterwarnings("ignore::smelt.base.errors.SmeltWarning")
@pytest.mark.parametrize("name", CHANGES)
def test_inputs_that_are_given_another_shape_or_other_memory(name: str) -> None:
    change = CHANGES[name]
    for make in (plain, computed, leaf):
        check(lambda x: (change(x), x * 2)[1], lambda i, make=make: (make(2, 3),))  # type: ignore[misc]
    check(change, lambda i: (plain(2, 3),))
    check(under_no_grad(change), lambda i: (leaf(2, 3),))


def same_twice(number: int) -> tuple[Any, ...]:
    x = plain(6)
    return x, x


def overlapping(number: int) -> tuple[Any, ...]:
    x = plain(6)
    return x[:4], x[2:]


def one_element(x: Any) -> Any:
    x[0] = 5.0
    return x * 2


WRITES: dict[str, tuple[Callable[..., Any], Make]] = {
    "gaps": (lambda x: (x.mul_(2), x + 1)[1], lambda i: (plain(6)[::2],)),
    "columns": (lambda x: (x.mul_(2), x + 1), lambda i: (plain(4, 6)[:, ::2],)),
    "gaps, transposed": (lambda x: (x.add_(1), x * 2, x.t()), lambda i: (plain(4, 6)[:, :3].t(),)),
    "gaps, with gradients": (lambda x, w: x.mul_(w) + 1, lambda i: (plain(6)[::2], leaf(3))),
    "gaps, of a computed one": (lambda x: x.mul_(2) + 1, lambda i: (computed(6)[::2],)),
    "gaps, copied into": (lambda x, y: (x.copy_(y), x + 1), lambda i: (plain(4, 6)[:, :3].t(), plain(3, 4))),
    "gaps, one element": (one_element, lambda i: (plain(4, 6)[:, ::2],)),
    "transposed": (lambda x, y: (x.copy_(y), x + 1), lambda i: (plain(4, 3).t(), plain(3, 4))),
    "shown more than once": (lambda x: x.add_(1), lambda i: (plain(1).expand(3),)),
    "part": (lambda x: x[1:].mul_(2), lambda i: (plain(6),)),
    "leaf": (lambda x: x.mul_(2) + 1, lambda i: (leaf(3),)),
    "leaf without gradients": (under_no_grad(lambda x: x.mul_(2)), lambda i: (leaf(3),)),
    "one tensor by two names": (lambda x, y: (x.mul_(2), x + y), same_twice),
    "overlapping": (lambda x, y: (x.mul_(2), y.add_(1), x + 1), overlapping),
}


@pytest.mark.filterwarnings("ignore::smelt.base.errors.SmeltWarning")
@pytest.mark.parametrize("name", WRITES)
def test_inputs_that_are_written(name: str) -> None:
    check(*WRITES[name])


class Wrapped(torch.Tensor):
    """A tensor that holds another."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Wrapped":
        made: Wrapped = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(Wrapped, lambda each: each.inner, (args, kwargs or {}))
        return pytree.tree_map_only(torch.Tensor, Wrapped, func(*args, **kwargs))


class Adding(torch.Tensor):
    """Products of such tensors are sums."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func = torch.add if func is torch.Tensor.mul else func
        return super().__torch_function__(func, types, args, kwargs or {})


def test_tensors_of_other_classes_keep_their_code() -> None:
    with pytest.warns(SmeltWarning, match="a tensor subclass with operators of its own"):
        x, y = Wrapped(torch.ones(3)), Wrapped(torch.ones(3))
        made, expected = aot_function(lambda x: x.mul_(2) + 1, Seen().compiler)(x), y.mul_(2) + 1
        assert type(made) is Wrapped and torch.equal(made.inner, expected.inner) and torch.equal(x.inner, y.inner)
    with pytest.warns(SmeltWarning):
        added = aot_function(lambda x: x.mul(2), Seen().compiler)(torch.ones(3).as_subclass(Adding))
        assert torch.equal(added.as_subclass(torch.Tensor), torch.full((3,), 3.0))
    check(lambda x: x * 2, lambda i: (torch.nn.Parameter(plain(3)),))
    check(lambda x: x * 2, lambda i: (torch.nn.Buffer(plain(3)),))


@pytest.mark.filterwarnings("ignore::smelt.base.errors.SmeltWarning")
def test_sparse_and_lazily_conjugated_arguments() -> None:
    sparse = torch.eye(3).to_sparse()
    torch.testing.assert_close(aot_function(lambda x: x.to_dense() * 2, Seen().compiler)(sparse), torch.eye(3) * 2)
    compiled = aot_function(lambda x: torch.view_as_real(x.resolve_conj()), Seen().compiler)
    x = torch.randn(3, dtype=torch.complex64)
    for each in (x, x.conj(), x):
        torch.testing.assert_close(compiled(each), torch.view_as_real(each.resolve_conj()))


def without_memory() -> torch.Tensor:
    x = torch.ones(8)
    x.untyped_storage().resize_(0)
    return x


@pytest.mark.filterwarnings("ignore::smelt.base.errors.SmeltWarning")
def test_memory_that_comes_and_goes() -> None:
    """As sharded parameters are gathered, used and let go."""

    def gathered(p: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            p.untyped_storage().resize_(32)
            p.copy_(torch.full((8,), 3.0))
        y = p * 2 * w
        with torch.no_grad():
            p.untyped_storage().resize_(0)
        return y

    compiled, w = aot_function(gathered, Seen().compiler), torch.ones(8, requires_grad=True)
    for _ in range(2):
        p = without_memory()
        torch.testing.assert_close(compiled(p, w), torch.full((8,), 6.0))
        assert p.untyped_storage().nbytes() == 0


@pytest.mark.filterwarnings("ignore:SM020")
def test_an_operator_gives_memory_back_before_a_write() -> None:
    importlib.import_module("torch._inductor")  # which registers the operator that FSDP's graphs call

    def gathered(p: torch.Tensor, shard: torch.Tensor) -> torch.Tensor:
        torch.ops.inductor.resize_storage_bytes_(p, 32)
        with torch.no_grad():
            p.copy_(shard)
        return p * 2 * shard

    p, shard = without_memory(), torch.full((8,), 3.0, requires_grad=True)
    found = aot_function(gathered, Seen().compiler)(p, shard)
    torch.testing.assert_close(found, torch.full((8,), 18.0))
    assert p.tolist() == [3.0] * 8


def test_a_write_to_memory_that_is_gone_is_refused() -> None:
    compiled = aot_function(lambda x: x.mul_(2), Seen().compiler)
    compiled(torch.ones(8))
    with pytest.raises(RuntimeError, match="its storage was resized to 0 bytes"):
        compiled(without_memory())


LOOKS: dict[str, Callable[[torch.Tensor], Any]] = {
    "numpy": lambda x: torch.from_numpy(x.numpy() * 2),
    "asarray": lambda x: torch.from_numpy(np.asarray(x) * 2),
    "a ufunc": lambda x: torch.as_tensor(np.sin(x)),  # type: ignore[call-overload]
    "dlpack": lambda x: torch.from_numpy(np.from_dlpack(x) * 2),
    "address": lambda x: x * (x.data_ptr() != 0),
    "list": lambda x: torch.tensor(x.tolist()),
    "branch": lambda x: x * 2 if x.sum() > 0 else x,
}


@pytest.mark.parametrize("name", LOOKS)
def test_who_looks_at_data_is_told_that_there_is_none(name: str) -> None:
    """NumPy makes memory of its own for an array without data, and takes what is there for numbers."""
    with pytest.raises(SmeltError, match="does not run without data"):
        aot_function(LOOKS[name], Seen().compiler)(torch.ones(3, device=HOST))


@pytest.mark.filterwarnings("ignore::smelt.base.errors.SmeltWarning")
def test_where_a_tensor_lies_in_its_storage_is_that_of_the_call() -> None:
    x = torch.randn(6)
    compiled = aot_function(lambda x: (x * 2, x.storage_offset()), Seen().compiler)
    for start in (0, 2, 3):
        torch.testing.assert_close(compiled(x[start:][:3]), (x[start:][:3] * 2, start))


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def test_settings_of_the_process_are_those_of_the_call() -> None:
    product = aot_function(torch.mm, Seen().compiler)
    a = torch.randn(3, 3)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast(device_type(), dtype=dtype):
            assert product(a, a).dtype is dtype
    assert product(a, a).dtype is torch.float32
    filled = aot_function(lambda x: x + torch.zeros(3), Seen().compiler)
    for dtype in (torch.float32, torch.float64):
        with default_dtype(dtype):
            assert filled(torch.ones(3, dtype=torch.float32)).dtype is dtype
    halved = aot_function(lambda x: torch.sin(x), Seen().compiler)
    assert halved(torch.ones(3)).device.type == device_type()
    with torch.device("meta"):
        assert aot_function(lambda x: torch.zeros(3), Seen().compiler)(torch.ones(3)).is_meta


def test_containers_of_many_kinds() -> None:
    check(lambda p: Point(p.x * 2, {"y": [p.y, p.x.sum(), None, "s"]}), lambda i: (Point(leaf(3), plain(3)),))
    check(lambda d: OrderedDict(a=d["a"] * 2), lambda i: (OrderedDict(a=leaf(3)),))
    check(lambda x: (), lambda i: (leaf(3),))
    check(lambda x: None, lambda i: (leaf(3),))
    check(lambda x, y: (x, y, x * y), lambda i: (lambda w: (w, w))(leaf(3)))
    check(lambda x: (lambda y: (y, y, y.view(-1)))(x * 2), lambda i: (leaf(3),))


def test_a_function_that_pytorch_runs_says_so_once() -> None:
    seen = Seen()
    compiled = aot_function(lambda x: x.t_() * 2, seen.compiler)
    with pytest.warns(SmeltWarning, match="changes its shape or layout in place") as caught:
        for _ in range(3):
            compiled(torch.randn(2, 3))
    assert len(caught) == 1 and not seen.modules


def test_only_so_many_versions_are_kept() -> None:
    seen = Seen()
    compiled = aot_function(lambda x, n: x * n, seen.compiler)
    for number in [*range(70), 69, 0]:
        torch.testing.assert_close(compiled(torch.ones(2), number), torch.full((2,), float(number)))
    assert len(seen.modules) == 71


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.norm, self.drop = torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        count = self.count
        assert isinstance(count, torch.Tensor)
        count.add_(1)
        return self.drop(self.norm(self.second(self.first(x)))) * scale, count, None, 3


@pytest.mark.parametrize("simplified", [False, True])
def test_a_module_in_training_and_out_of_it_with_numbers(simplified: bool) -> None:
    torch.manual_seed(0)
    model, own = Counting(), Counting()
    own.load_state_dict(model.state_dict())
    example = [torch.randn(4, 3), 1.0]
    compiled: Any = (
        aot_module_simplified(model, example, Seen().compiler) if simplified else aot_module(model, Seen().compiler)
    )
    for step, training in enumerate((True, True, False, True)):
        model.train(training)
        own.train(training)
        x = torch.randn(4 + step, 3)
        found, wanted = [], []
        for call, to in ((compiled, found), (own, wanted)):
            torch.manual_seed(step)
            to.extend(call(x, step + 1.5))
            to[0].sum().backward()
        torch.testing.assert_close(found[:2], wanted[:2])
        assert found[2:] == wanted[2:] and found[1] is model.count
        for mine, theirs in zip(model.parameters(), own.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad)
        torch.testing.assert_close(list(model.buffers()), list(own.buffers()))


def test_derivatives_of_higher_order_with_numbers() -> None:
    compiled, x = aot_function(lambda x, n: (x**3 * n).sum(), Seen().compiler), torch.randn(3, requires_grad=True)
    for number in (1, 2.5):
        (first,) = torch.autograd.grad(compiled(x, number), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        torch.testing.assert_close(second, 6 * x.detach() * number)
