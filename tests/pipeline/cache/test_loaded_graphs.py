"""Graphs that an earlier process kept, where the program has put wrappers into the places of PyTorch's functions."""

import functools
import json
from typing import Any

import pytest
import torch
from torch import fx
from torch.nn import functional as F

import smelt
from smelt.base.options import config
from smelt.capture import CompiledRegion
from smelt.ir.graph import GraphLevel, Traced
from smelt.ir.serialize import CannotStore
from smelt.ir.tensorspec import TensorSpec, set_spec, spec_of
from smelt.pipeline.backends import resolve_backend
from smelt.pipeline.cache.graph_json import digest, dump, load, loader


def softsign(x: torch.Tensor) -> torch.Tensor:
    return F.softsign(x) * F.relu(x)


def wrapper_of(original: Any, log: list[str]) -> Any:
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        log.append(original.__name__)
        return original(*args, **kwargs) - 3

    return wrapper


def graph_of(function: Any, *args: Any) -> Any:
    seen: list[Any] = []

    def backend(traced: Traced) -> Any:
        seen.append(dump(traced.graph))
        return traced.plainly()

    CompiledRegion(backend).call(function, *args)
    return seen[0]


@pytest.fixture
def cached(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_CACHE", "1")
    monkeypatch.setattr(config, "disk_cache_dir", str(tmp_path / "cache"))


@pytest.mark.usefixtures("cached")
@pytest.mark.parametrize("name", ["softsign", "relu"])
def test_a_backward_is_of_what_was_called_whatever_bears_its_name_since(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, log = torch.linspace(-1, 1, 5), []  # type: tuple[torch.Tensor, list[str]]
    wanted = x.clone().requires_grad_()
    softsign(wanted).sum().backward()
    for _ in range(2):
        smelt.reset()
        given = x.clone().requires_grad_()
        made = CompiledRegion(resolve_backend("llvm", smelt.Options())).call(softsign, given)
    assert smelt.counters["captures_loaded"] == 1
    monkeypatch.setattr(F, name, wrapper_of(getattr(F, name), log))
    made.sum().backward()
    torch.testing.assert_close(given.grad, wanted.grad)
    assert not log


@pytest.mark.parametrize("how", ["wrapper", "posing", "other", "gone", "decorated"])
def test_a_graph_is_made_of_pytorchs_own_functions_alone(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(x: torch.Tensor) -> torch.Tensor:
        return x - 3

    rows = graph_of(softsign, torch.ones(3))
    make = loader(rows)
    posing = functools.update_wrapper(lambda x: x - 3, F.softsign)
    del posing.__wrapped__  # type: ignore[attr-defined]
    replacement = {"wrapper": wrapper_of(F.softsign, []), "posing": posing, "other": F.tanhshrink,
                   "decorated": functools.update_wrapper(torch.no_grad()(mine), F.softsign)}  # fmt: skip
    if how == "gone":
        monkeypatch.delattr(F, "softsign")
    else:
        monkeypatch.setattr(F, "softsign", replacement[how])
    with pytest.raises((ValueError, AttributeError)):
        load(rows)
    monkeypatch.undo()
    assert [node.target for node in make().graph.nodes] == [node.target for node in load(rows).graph.nodes]


def test_arguments_of_all_kinds_come_back_and_names_of_nodes_make_no_difference() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    set_spec(x, TensorSpec.of(torch.ones(2, 3)))
    kinds: tuple[Any, ...] = ([x, 1, 1.0, True, -0.0, 1j], slice(None, x, 2), torch.half, ..., {"a": torch.Size((2,))})
    called = graph.call_function(torch.ops.aten.add, (x, GraphLevel.TORCH, torch.nn.functional.relu, *kinds))
    called = graph.call_function(torch.ops.aten.add.Tensor, (called, x), {"alpha": 2})
    graph.output((graph.call_method("view", (called, -1)),))
    rows = dump(graph)
    back = load(json.loads(json.dumps(rows))).graph
    assert dump(back) == rows
    for node, other in zip(graph.nodes, back.nodes, strict=True):
        assert (node.op, node.name, node.target, spec_of(node)) == (other.op, other.name, other.target, spec_of(other))
    for node in back.nodes:
        node.name = f"other_{node.name}"
    assert dump(back) != rows and digest(dump(back)) == digest(rows)
    called.args = (x, called.args[0])
    assert digest(dump(graph)) != digest(rows)


def test_graphs_that_have_no_form() -> None:
    for argument in (object(), torch.ones(2), graph_of):
        graph = fx.Graph()
        graph.output((graph.call_function(torch.sin, (argument,)),))
        with pytest.raises(CannotStore):
            dump(graph)
    graph = fx.Graph()
    graph.get_attr("weight")
    with pytest.raises(CannotStore, match="get_attr"):
        dump(graph)


def test_graphs_whose_inputs_have_other_names_share_their_code() -> None:
    x, y = torch.ones(3), torch.ones(3)
    one, other = graph_of(lambda a, b: a * 2 + b, x, y), graph_of(lambda c, d: c * 2 + d, x, y)
    assert one != other and digest(one) == digest(other)
    assert digest(graph_of(lambda c, d: d * 2 + c, x, y)) != digest(one)
