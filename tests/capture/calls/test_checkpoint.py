"""`torch.utils.checkpoint` inside captured functions: the same values and gradients, and fewer bytes kept for them."""

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import smelt
from smelt.autograd.joint.aliasing import is_view
from smelt.autograd.partition.partition import ForwardBackward
from smelt.base.events import collect
from smelt.ir.tensorspec import TensorSpec, spec_of, tensor_spec
from tests.capture.contexts import every_backend, same

aten = torch.ops.aten


def data() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(7)
    return torch.randn(4, 8, requires_grad=True), (torch.randn(8, 8) / 3).requires_grad_()


def block(x: Any, w: Any) -> Any:
    return F.relu(x @ w).sin() @ w


def dropping(x: Any, w: Any) -> Any:
    return F.dropout(F.gelu(x @ w), 0.4) @ w


def several(x: Any, w: Any, scale: float = 1.0) -> Any:
    y = x @ w * scale
    return y.sin(), {"cos": y.cos(), "shape": y.shape}, [None, y.view(-1)[:3]]


def repeated(function: Any, *, reentrant: bool = False, **options: Any) -> Any:
    def run(x: Any, w: Any) -> Any:
        for _ in range(3):
            x = checkpoint(function, x, w, use_reentrant=reentrant, **options)
        return x.exp()

    return run


def structured(x: Any, w: Any) -> Any:
    first, rest, (_, part) = checkpoint(several, x, w, scale=0.5, use_reentrant=False)
    return first, rest["cos"] * 2, rest["shape"], part + 1


def nested(x: Any, w: Any) -> Any:
    def inner(x: Any) -> Any:
        return checkpoint(block, x, w, use_reentrant=False).tanh()

    return checkpoint(inner, x, use_reentrant=False) + x


def without_gradients(x: Any, w: Any) -> Any:
    with torch.no_grad():
        return checkpoint(dropping, x, w, use_reentrant=False)


def under_autocast(x: Any, w: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return checkpoint(block, x, w, use_reentrant=False).float()


def written_after(x: Any, w: Any) -> Any:
    y = checkpoint(block, x, w, use_reentrant=False)
    y.add_(1)
    return y * 2


def escaping(x: Any, w: Any) -> Any:
    kept = []

    def inner(x: Any) -> Any:
        y = x @ w
        kept.append(y)
        return y.sin()

    return checkpoint(inner, x, use_reentrant=False), kept


FUNCTIONS = {
    "plain": repeated(block),
    "reentrant": repeated(block, reentrant=True),
    "dropout": repeated(dropping),
    "not preserving": repeated(block, preserve_rng_state=False),
    "structured": structured,
    "nested": nested,
    "no grad": without_gradients,
    "written after": written_after,
}


@every_backend
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_as_eager(function: Any, backend: str) -> None:
    same(function, *data(), backend=backend)


@every_backend
def test_in_autocast(backend: str) -> None:
    same(under_autocast, *data(), backend=backend, tolerance=2e-2, exact=False)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: Any) -> Any:
        return x + self.down(F.dropout(F.gelu(self.up(self.norm(x))), 0.1, self.training))


class Scaling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def scaled(self, x: Any, *, scale: Any) -> Any:
        return self.layer(x).relu() * scale

    def forward(self, x: Any) -> Any:
        return checkpoint(self.scaled, x, scale=x.sum(), use_reentrant=False)


@every_backend
def test_a_method_with_keywords(backend: str) -> None:
    same(Scaling(), data()[0], backend=backend)


class Stack(nn.Module):
    def __init__(self, *, checkpointed: bool, **options: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.checkpointed, self.options = checkpointed, options

    def forward(self, x: Any) -> Any:
        for each in self.blocks:
            x = checkpoint(each, x, use_reentrant=False, **self.options) if self.checkpointed else each(x)
        return x


def kept_bytes(model: nn.Module, backend: str) -> int:
    same(model, torch.randn(256, 8), backend=backend)
    return int(smelt.counters["saved_bytes"])


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
def test_fewer_bytes_are_saved(backend: str) -> None:
    plain, checkpointed = (kept_bytes(Stack(checkpointed=each), backend) for each in (False, True))
    assert checkpointed < 0.5 * plain
    everything = kept_bytes(Stack(checkpointed=True, context_fn=SAVE_MATMULS), backend)
    assert checkpointed < everything <= plain


SAVE_MATMULS = functools.partial(create_selective_checkpoint_contexts, [aten.addmm.default, aten.mm.default])


def keeps_products(ctx: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    if operator in (aten.mm.default, aten.addmm.default):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


def halves_of(function: Any, *args: Any) -> ForwardBackward:
    """The two graphs it is compiled to."""
    smelt.reset()
    with collect() as events:
        smelt.compile(function, backend="aot_eager", fullgraph=True)(*args)
    (halves,) = {id(e.subject): e.subject for e in events if isinstance(e.subject, ForwardBackward)}.values()
    return halves


def saved_names(function: Any, *args: Any) -> list[str]:
    """The operators whose results are kept."""
    saved = halves_of(function, *args).plan.saved
    return [each.name.rstrip("_0123456789") for each in saved if each.source is None]


def most_alive(graph: fx.Graph) -> int:
    """Bytes of the values that are alive together while a graph runs in its order, inputs aside."""
    last = {used: node for node in graph.nodes for used in node.all_input_nodes}
    alive, most = 0, 0
    for node in graph.nodes:
        if node.op == "call_function" and isinstance(spec_of(node), TensorSpec) and not is_view(node):
            alive += tensor_spec(node).nbytes
        most = max(most, alive)
        for used in node.all_input_nodes:
            if last[used] is node and used.op == "call_function" and not is_view(used):
                alive -= tensor_spec(used).nbytes if isinstance(spec_of(used), TensorSpec) else 0
    return most


def test_regions_are_computed_again_one_at_a_time() -> None:
    alive: list[int] = []
    for count in (2, 8):
        model = Stack(checkpointed=True)
        model.blocks = nn.ModuleList(Block() for _ in range(count))
        backward = halves_of(model, torch.randn(256, 8)).backward
        assert backward is not None
        alive.append(most_alive(backward.graph))
    assert alive[1] < 1.5 * alive[0]


@every_backend
@pytest.mark.parametrize(
    "contexts", [SAVE_MATMULS, functools.partial(create_selective_checkpoint_contexts, keeps_products)]
)
def test_selective_policies(contexts: Any, backend: str) -> None:
    function = repeated(block, context_fn=contexts)
    same(function, *data(), backend=backend)
    names = saved_names(function, *data())
    assert names.count("mm") == 5 + ("exp" not in names)  # two in each block, of which the last feeds exp


def test_without_a_policy_no_product_is_saved() -> None:
    names = saved_names(repeated(block), *data())
    assert names.count("mm") == 2 + ("exp" not in names)  # what one block hands to the next


def test_a_policy_that_changes_is_noticed() -> None:
    operators = [aten.mm.default]
    contexts = functools.partial(create_selective_checkpoint_contexts, operators)
    smelt.reset()
    compiled = smelt.compile(repeated(block, context_fn=contexts), backend="aot_eager", fullgraph=True)
    for _ in range(2):
        compiled(*data())
    assert smelt.counters["graphs"] == 1
    operators.clear()
    compiled(*data())
    assert smelt.counters["graphs"] == 2


@every_backend
@pytest.mark.parametrize("reentrant", [False, True])
def test_sequential(reentrant: bool, backend: str) -> None:
    torch.manual_seed(1)
    layers = nn.Sequential(*(Block() for _ in range(4)))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: Any) -> Any:
            return checkpoint_sequential(self.layers, 2, x, use_reentrant=reentrant)

    same(Model(), data()[0], backend=backend)


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
def test_second_derivatives(backend: str) -> None:
    def penalty(run: Any) -> Any:
        x, w = data()
        (grad,) = torch.autograd.grad(run(x, w).sum(), x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), (x, w))

    function = repeated(block)
    compiled = smelt.compile(function, backend=backend, fullgraph=True)
    for got, expected in zip(penalty(compiled), penalty(function), strict=True):
        torch.testing.assert_close(got, expected)


LOG: list[int] = []


def logs(x: Any, w: Any) -> Any:
    LOG.append(1)
    return x @ w


def prints(x: Any, w: Any) -> Any:
    print("again")
    return x @ w


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Any, w: Any) -> Any:
        return self.norm(x @ w)


@pytest.mark.parametrize("backend", ["eager", "llvm"])
@pytest.mark.parametrize("kind", [lambda: logs, lambda: prints, Normalised])
def test_effects_are_repeated_as_pytorch_repeats_them(kind: Any, backend: str, capsys: Any) -> None:
    seen = []
    for compiling in (False, True):
        smelt.reset()
        function = kind()

        def f(x: Any, w: Any) -> Any:
            return checkpoint(function, x, w, use_reentrant=False).sin()  # noqa: B023

        run = smelt.compile(f, backend=backend) if compiling else f
        LOG.clear()
        results = []
        for _ in range(2):
            x, w = data()
            run(x, w).sum().backward()
            results += [x.grad, w.grad]
        state = [buffer.clone() for buffer in function.buffers()] if isinstance(function, nn.Module) else []
        seen.append(([*results, *state], list(LOG), capsys.readouterr().out))
    (expected, log, text), (got, my_log, my_text) = seen
    torch.testing.assert_close(got, expected)
    assert (my_log, my_text) == (log, text)
    assert smelt.counters["graph_breaks"] >= 1
    with pytest.raises(smelt.GraphBreakError, match="B024"):
        smelt.compile(f, backend=backend, fullgraph=True)(*data())


@every_backend
def test_a_list_made_outside_is_appended_to_again(backend: str) -> None:
    compiled = smelt.compile(escaping, backend=backend)
    for _ in range(2):
        result, kept = compiled(*data())
        result.sum().backward()
        assert len(kept) == 2


@every_backend
def test_sizes_that_change(backend: str) -> None:
    smelt.reset()
    function = repeated(lambda x, w: (x @ w).view(x.shape[0], -1).relu())
    compiled = smelt.compile(function, backend=backend, fullgraph=True)
    for size in (2, 3, 5, 6):
        x, w = torch.randn(size, 8, requires_grad=True), data()[1]
        got, expected = (torch.autograd.grad(run(x, w).sum(), (x, w)) for run in (compiled, function))
        torch.testing.assert_close(got, expected)
    assert smelt.counters["graphs"] == 2


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x.cos())
        return x.sin() * 3

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * ctx.saved_tensors[0] * 3


@every_backend
def test_own_derivatives_inside(backend: str) -> None:
    same(repeated(lambda x, w: Tripled.apply(x @ w)), *data(), backend=backend)


@every_backend
def test_a_break_inside_an_autocast_inside(backend: str) -> None:
    def inner(x: Any, w: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
            smelt.graph_break()
            return y.float() * 2

    function = repeated(inner)
    compiled = smelt.compile(function, backend=backend)
    for _ in range(2):
        got, expected = compiled(*data()), function(*data())
        assert not torch.is_autocast_enabled("cpu") and torch.is_grad_enabled()
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)


@every_backend
def test_requires_grad_where_it_holds_already(backend: str) -> None:
    same(lambda x, w: (x * 2).requires_grad_() @ w + x.detach().requires_grad_(False), *data(), backend=backend)
