"""`smelt.compile` as users meet it: functions, decorators, modules, and what bad input gets."""

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn.utils import parametrize

import smelt
from smelt.base.errors import SmeltError


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    smelt.reset()
    yield
    smelt.reset()


class Net(nn.Module):
    """Small, with a buffer, a flag that matters, and a submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 2)
        self.register_buffer("scale", torch.tensor(2.0))
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.first(x)) * self.scale
        return self.second(self.dropout(hidden))


def three_ops(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sin() + 1


def test_a_function_and_a_decorator_with_and_without_arguments() -> None:
    @smelt.compile
    def plain(x: torch.Tensor) -> torch.Tensor:
        """Doubles."""
        return x * 2

    @smelt.compile(backend="eager", fullgraph=True)
    def with_arguments(x: torch.Tensor, *, by: float = 3.0) -> torch.Tensor:
        return x * by

    x = torch.randn(5)
    assert torch.equal(plain(x), x * 2)
    assert torch.equal(with_arguments(x), x * 3)
    assert torch.equal(with_arguments(x, by=4.0), x * 4)
    assert plain.__name__ == "plain"
    assert plain.__doc__ == "Doubles."
    assert plain.__wrapped__(x).equal(x * 2)


def test_a_decorated_method_is_still_a_method() -> None:
    class Scaler:
        def __init__(self, by: float) -> None:
            self.by = by

        @smelt.compile(backend="eager")
        def scaled(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.by

    x = torch.randn(3)
    assert torch.equal(Scaler(2.0).scaled(x), x * 2)
    assert torch.equal(Scaler(5.0).scaled(x), x * 5)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "llvm"])
def test_backends_agree_with_eager_forward_and_backward(backend: str) -> None:
    torch.manual_seed(0)
    model = Net().eval()
    compiled = smelt.compile(copy.deepcopy(model), backend=backend)
    x = torch.randn(6, 4)
    expected, got = model(x), compiled(x)
    torch.testing.assert_close(got, expected)
    expected.square().sum().backward()
    got.square().sum().backward()
    for have, want in zip(compiled.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(have.grad, want.grad)


def test_a_compiled_module_is_the_model() -> None:
    model = Net()
    compiled = smelt.compile(model, backend="eager")
    assert isinstance(compiled, Net)
    assert repr(compiled) == repr(model)
    assert list(compiled.state_dict()) == list(model.state_dict())
    assert all(a is b for a, b in zip(compiled.parameters(), model.parameters(), strict=True))
    compiled.eval()
    assert not model.training and not model.dropout.training
    model.train()
    assert compiled.training
    model.new_attribute = 3
    assert compiled.new_attribute == 3
    compiled.second = nn.Linear(8, 5)
    assert model(torch.randn(1, 4)).shape == (1, 5)
    assert compiled(torch.randn(1, 4)).shape == (1, 5)


def test_switching_train_and_eval_recompiles() -> None:
    model = Net()
    compiled = smelt.compile(model, backend="eager")
    x = torch.randn(64, 4)
    compiled.eval()
    first = compiled(x)
    assert torch.equal(first, compiled(x))
    compiled.train()
    assert not torch.equal(compiled(x), compiled(x))
    compiled.eval()
    assert torch.equal(first, compiled(x))


def test_loading_weights_and_moving_dtype_reach_the_compiled_code() -> None:
    model = Net().eval()
    compiled = smelt.compile(model)
    x = torch.randn(3, 4)
    compiled(x)
    other = Net().eval()
    compiled.load_state_dict(other.state_dict())
    torch.testing.assert_close(compiled(x), other(x))
    compiled.double()
    torch.testing.assert_close(compiled(x.double()), other.double()(x.double()))


def test_hooks_on_a_compiled_module_run() -> None:
    model = Net().eval()
    compiled = smelt.compile(model, backend="eager")
    seen: list[str] = []
    compiled.register_forward_pre_hook(lambda module, args: seen.append("before"))
    model.register_forward_hook(lambda module, args, result: seen.append("after"))
    model.second.register_forward_hook(lambda module, args, result: result + 1)
    x = torch.randn(2, 4)
    expected = model(x)
    seen.clear()
    torch.testing.assert_close(compiled(x), expected)
    assert seen == ["before", "after"]


def test_copies_and_pickles_of_a_compiled_module_are_compiled_and_their_own() -> None:
    compiled = smelt.compile(Net().eval(), backend="eager")
    x = torch.randn(2, 4)
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert torch.equal(other(x), compiled(x))
        with torch.no_grad():
            other.first.weight.zero_()
        assert not torch.equal(other(x), compiled(x))
        smelt.reset()
        other(x)
        assert smelt.counters["graphs"] == 1


def test_disable_true_gives_the_model_back() -> None:
    model = Net()
    assert smelt.compile(model, disable=True) is model
    assert smelt.compile(three_ops, disable=True) is three_ops


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_accepts_the_modes_of_torch_compile(mode: str) -> None:
    x = torch.randn(5)
    compiled = smelt.compile(three_ops, mode=mode)
    torch.testing.assert_close(compiled(x), three_ops(x))
    assert (smelt.counters["tuned_graphs"] > 0) == mode.startswith("max-autotune")


def test_two_names_of_one_mode_are_captured_into_each_other() -> None:
    inner = smelt.compile(three_ops, mode="reduce-overhead")
    outer = smelt.compile(lambda x: inner(x) + 1)
    x = torch.randn(5)
    torch.testing.assert_close(outer(x), three_ops(x) + 1)
    assert smelt.counters["graphs"] == 1 and smelt.counters["graph_breaks"] == 0


@pytest.mark.parametrize(
    ("call", "code", "names"),
    [
        (lambda: smelt.compile(3), "SM001", "int"),
        (lambda: smelt.compile(three_ops, backend="lvm"), "SM002", "llvm"),
        (lambda: smelt.compile(three_ops, backend="inductor"), "SM002", "llvm"),
        (lambda: smelt.compile(three_ops, backend=7), "SM002", "aot_eager"),
        (lambda: smelt.compile(three_ops, options={"fule": 1}), "SM003", "max_rewrites"),
        (lambda: smelt.compile(three_ops, options={"max_rewrites": "much"}), "SM003", "int"),
        (lambda: smelt.compile(three_ops, mode="fastest"), "SM003", "max-speed"),
        (lambda: smelt.compile(three_ops, fullgraph=1), "SM003", "fullgraph"),
        (lambda: smelt.compile(three_ops, dynamic="yes"), "SM003", "dynamic"),
        (lambda: smelt.register_backend(3), "SM002", "callable"),
        (lambda: smelt.register_backend(lambda g, i: g, name="llvm"), "SM002", "llvm"),
        (lambda: smelt.disable(3), "SM001", "int"),
    ],
)
def test_bad_input_is_an_error_at_once_that_names_the_choices(call: Callable[[], Any], code: str, names: str) -> None:
    with pytest.raises(SmeltError) as caught:
        call()
    assert caught.value.code == code
    assert names in str(caught.value)


def test_unknown_keyword_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="fullgrap"):
        smelt.compile(three_ops, fullgrap=True)


def test_a_custom_backend_gets_a_graph_module_and_examples() -> None:
    seen: list[tuple[fx.GraphModule, list[Any]]] = []

    def backend(module: fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        seen.append((module, examples))
        return module.forward

    x = torch.randn(3, 2)
    assert torch.equal(smelt.compile(three_ops, backend=backend)(x), three_ops(x))
    ((module, examples),) = seen
    assert isinstance(module, fx.GraphModule)
    assert examples[0].shape == (3, 2)
    smelt.register_backend(backend, name="mine")
    assert "mine" in smelt.list_backends()
    assert torch.equal(smelt.compile(three_ops, backend="mine")(x), three_ops(x))
    assert len(seen) == 2


def test_a_custom_backend_may_edit_the_graph() -> None:
    def gelu_for_relu(module: fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        for node in module.graph.nodes:
            if node.target is torch.relu:
                node.target = torch.nn.functional.gelu
        module.recompile()
        return module

    x = torch.randn(7)
    edited = smelt.compile(lambda x: torch.relu(x) + 1, backend=gelu_for_relu)
    assert torch.equal(edited(x), torch.nn.functional.gelu(x) + 1)


def test_a_backend_that_returns_nonsense_or_fails_falls_back_with_a_warning() -> None:
    def broken(module: fx.GraphModule, examples: list[Any]) -> Any:
        raise ValueError("no chip here")

    x = torch.randn(4)
    with pytest.warns(smelt.SmeltWarning, match="no chip here"):
        assert torch.equal(smelt.compile(three_ops, backend=broken)(x), three_ops(x))
    smelt.config.suppress_errors = False
    try:
        with pytest.raises(ValueError, match="no chip here"):
            smelt.compile(three_ops, backend=broken)(x)
        with pytest.raises(SmeltError, match="not a callable"):
            smelt.compile(three_ops, backend=lambda g, i: 3)(x)
    finally:
        smelt.config.suppress_errors = True


def test_exceptions_of_the_user_come_through_unchanged() -> None:
    class Own(Exception):
        pass

    def fails(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        if y.shape[0] == 3:
            raise Own("three")
        return y

    compiled = smelt.compile(fails)
    assert torch.equal(compiled(torch.zeros(2)), torch.ones(2))
    with pytest.raises(Own, match=r"^three$") as caught:
        compiled(torch.zeros(3))
    assert "raise Own" in str(caught.traceback[-1].statement)


def test_wrong_shapes_give_pytorchs_own_error_from_the_users_line() -> None:
    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b

    a, b = torch.randn(2, 3), torch.randn(4, 5)
    with pytest.raises(RuntimeError) as eager:
        product(a, b)
    with pytest.raises(RuntimeError) as compiled:
        smelt.compile(product)(a, b)
    assert str(compiled.value) == str(eager.value)
    assert "return a @ b" in str(compiled.traceback[-1].statement)


def test_disable_and_graph_break_and_is_compiling() -> None:
    flags: list[bool] = []

    @smelt.disable
    def outside(x: torch.Tensor) -> torch.Tensor:
        flags.append(smelt.is_compiling())
        return x + 1

    def inside(x: torch.Tensor) -> torch.Tensor:
        x = x * 2 if smelt.is_compiling() else x * 3
        x = outside(x)
        smelt.graph_break()
        return x * 5

    x = torch.randn(3)
    compiled = smelt.compile(inside, backend="eager")
    torch.testing.assert_close(compiled(x), (x * 2 + 1) * 5)
    assert flags == [False]
    assert smelt.counters["graphs"] == 2
    assert smelt.counters["graph_breaks"] == 2
    with pytest.raises(smelt.GraphBreakError, match="SM010"):
        smelt.compile(inside, backend="eager", fullgraph=True)(x)


def test_reset_forgets_compiled_code_and_counters() -> None:
    compiled = smelt.compile(three_ops)
    x = torch.randn(4)
    compiled(x)
    compiled(x)
    assert smelt.counters["graphs"] == 1
    smelt.reset()
    assert not smelt.counters
    compiled(x)
    assert smelt.counters["graphs"] == 1


def test_explain_counts_graphs_breaks_and_ops() -> None:
    def talks(x: torch.Tensor) -> torch.Tensor:
        a = x + 1
        b = a * 2
        print("between", tuple(b.shape))
        return b - 1

    told = smelt.explain(talks)(torch.randn(4, 4))
    assert (told.graph_count, told.graph_break_count, told.op_count) == (2, 1, 3)
    assert "print" in told.break_reasons[0].reason
    assert told.break_reasons[0].file == __file__
    assert [len(ops) for ops in told.ops_per_graph] == [2, 1]
    assert any("x" in guard and "4, 4" in guard for guard in told.out_guards)
    text = str(told)
    assert "Graph Count: 2" in text and "Graph Break Count: 1" in text and "Op Count: 3" in text
    assert {"fuse", "generate"} <= {stage for stage, _ in told.compile_times}


def test_dynamic_true_is_right_for_every_size() -> None:
    compiled = smelt.compile(three_ops, dynamic=True)
    for size in (1, 2, 7, 7, 33):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), three_ops(x))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "llvm"])
def test_inputs_whose_names_read_alike(backend: str) -> None:
    box = nn.Module()
    box.x = nn.Parameter(torch.full((2,), 3.0))

    def function(box_x: torch.Tensor, box: Any) -> torch.Tensor:
        difference: torch.Tensor = box.x - box_x
        return difference

    assert smelt.compile(function, backend=backend)(torch.ones(2), box).tolist() == [2.0, 2.0]


class Symmetric(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.triu() + weight.triu(1).T


def test_a_parametrization_can_be_put_on_a_compiled_module_and_taken_off() -> None:
    model = nn.Linear(3, 3)
    compiled = smelt.compile(model)
    x = torch.randn(2, 3)
    compiled(x)
    parametrize.register_parametrization(compiled, "weight", Symmetric())
    for _ in range(2):
        torch.testing.assert_close(compiled(x), nn.functional.linear(x, compiled.weight, compiled.bias))
    assert torch.equal(compiled.weight, compiled.weight.T)
    torch.testing.assert_close(model(x), compiled(x))
    parametrize.remove_parametrizations(compiled, "weight", leave_parametrized=True)
    assert type(model) is nn.Linear and isinstance(compiled, nn.Linear)
    torch.testing.assert_close(compiled(x), nn.functional.linear(x, model.weight, model.bias))
