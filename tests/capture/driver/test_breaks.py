"""Breaks of every kind: the rest is still compiled, and result, printed text and exceptions are Python's own."""

import math
import pathlib
import traceback
import warnings
from collections import OrderedDict
from typing import Any

import pytest
import torch

import smelt
from smelt.base.errors import GraphBreakError
from smelt.base.events import collect
from smelt.capture import REASONS, GraphRecord, graph_break
from tests.capture.programs import Captured, compare, observe

X = torch.arange(6.0).reshape(2, 3) - 2


def test_print_in_the_middle_gives_two_graphs_and_one_break() -> None:
    def f(x):
        y = x * 2
        print("middle", y.sum().item() if False else y.shape)
        return y + 1

    runner = compare(f, X)
    assert len(runner.graphs) == 2
    assert runner.break_codes == ["B002"]
    record = runner.breaks[0]
    assert "print" in record.reason
    assert record.line == f.__code__.co_firstlineno + 2
    assert record.file == __file__


def test_graph_break_on_demand() -> None:
    def f(x):
        y = x.sin()
        graph_break()
        return y.cos()

    runner = compare(f, X)
    assert (len(runner.graphs), runner.break_codes) == (2, ["B001"])


def test_branch_on_a_tensor_compiles_both_sides() -> None:
    def f(x):
        y = x * 2
        if y.sum() > 0:
            return y + 1
        return y - 1

    runner = compare(f, X)
    compare(f, -X, runner=runner)
    compare(f, X, runner=runner)
    assert runner.break_codes == ["B003"]
    assert len(runner.graphs) == 3
    assert runner.recompiles == []


def test_while_on_a_tensor() -> None:
    def f(x):
        n = 0
        while x.sum() < 50:
            x = x * 2
            n = n + 0
        return x, n

    runner = compare(f, X)
    assert len(runner.graphs) <= 3


@pytest.mark.parametrize("name", ["tolist", "bool", "int", "nonzero", "mask"])
def test_data_of_a_tensor(name: str) -> None:
    def f(x):
        y = x * 2
        z: Any = y.sum()
        if name == "tolist":
            z = y.tolist()
        elif name == "bool":
            z = bool(z)
        elif name == "int":
            z = int(z)
        elif name == "nonzero":
            z = y.nonzero()
        elif name == "mask":
            z = y[y > 0]
        return y + 1, z

    runner = compare(f, X)
    assert len(runner.graphs) == 2


def test_break_three_calls_deep_keeps_the_callers_graphs() -> None:
    def inner(x):
        y = x + 1
        print("inner")
        return y * 2

    def middle(x):
        return inner(x * 3) - 1

    def outer(x):
        return middle(x.sin()).cos()

    runner = compare(outer, X)
    assert len(runner.graphs) == 2
    assert len(runner.breaks[0].stack) == 3
    ops = [[node.name for node in traced.graph.nodes if node.op.startswith("call")] for traced in runner.graphs]
    assert ops == [["sin", "mul", "add"], ["mul", "sub", "cos"]]


def test_break_in_a_loop_compiles_a_fixed_number_of_graphs() -> None:
    def f(x, n):
        for _ in range(n):
            x = x * 2
            print("turn")
        return x + 1

    runner = compare(f, X, 3)
    graphs = len(runner.graphs)
    compare(f, X, 3, runner=runner)
    assert len(runner.graphs) == graphs <= 4


def test_break_in_nested_loops_and_zips() -> None:
    def f(x, parts):
        out = []
        for i, (p, q) in enumerate(zip(parts, reversed(parts))):  # noqa: B905
            for k in {"a": 1, "b": 2}.items():
                x = x + p * k[1]
                if i == 1:
                    print(i, k)
            out.append(x - q)
        return out

    compare(f, X, [1, 2, 3])


def test_break_inside_with_blocks_keeps_the_grad_mode() -> None:
    def f(x):
        with torch.no_grad():
            y = x * 2
            print(torch.is_grad_enabled(), y.requires_grad)
            z = y + x
        w = x * 3
        print(torch.is_grad_enabled())
        return y, z, w

    runner = compare(f, X.clone().requires_grad_())
    assert torch.is_grad_enabled()
    assert len(runner.graphs) == 2


def test_break_inside_a_decorated_no_grad_function() -> None:
    @torch.no_grad()
    def helper(x):
        return x * 2

    def f(x):
        return helper(x) + x

    compare(f, X.clone().requires_grad_())


def test_user_context_managers() -> None:
    class Noisy:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            print("enter", self.name)
            return self

        def __exit__(self, *exc):
            print("exit", self.name, exc[0] is None)
            return self.name == "swallow"

    def f(x):
        with Noisy("a") as m:
            y = x * 2
            with Noisy("swallow"):
                y = y + 1
                raise ValueError(m.name)
            y = y * 3
        return y

    compare(f, X)


def test_exceptions_of_the_user_pass_with_their_own_lines() -> None:
    def helper(x):
        x + 1
        raise KeyError("gone")

    def f(x):
        return helper(x * 2)

    runner = Captured()
    for _ in range(2):
        with pytest.raises(KeyError, match="gone") as caught:
            runner(f, X)
        lines = [(entry.name, entry.lineno) for entry in traceback.extract_tb(caught.value.__traceback__)]
        first = f.__code__.co_firstlineno
        assert ("f", first + 1) in lines
        assert ("helper", helper.__code__.co_firstlineno + 2) in lines
        inside = [entry.filename for entry in traceback.extract_tb(caught.value.__traceback__)]
        assert not any("drive.py" in name or "step.py" in name for name in inside)


def test_traceback_of_a_break_that_raises() -> None:
    def noisy(flag):
        if flag:
            raise RuntimeError("no")

    def helper(x):
        y = x + 1
        print("before")
        noisy.__wrapped__ = None
        noisy(True)
        return y

    def f(x):
        return helper(x * 2) + 1

    with pytest.raises(RuntimeError, match="no") as caught:
        Captured()(f, X)
    lines = [(entry.name, entry.lineno) for entry in traceback.extract_tb(caught.value.__traceback__)]
    names = [name for name, _ in lines]
    assert names[-3:] == ["f", "helper", "noisy"]
    assert lines[-2] == ("helper", helper.__code__.co_firstlineno + 4)


def test_wrong_shapes_raise_torchs_error_from_the_users_line() -> None:
    def f(x):
        y = x * 2
        return y @ y

    eager = observe(lambda: f(X))
    runner = Captured()
    with pytest.raises(RuntimeError) as caught:
        runner(f, X)
    assert str(caught.value) == str(eager.error)
    assert ("f", f.__code__.co_firstlineno + 2) in [
        (e.name, e.lineno) for e in traceback.extract_tb(caught.value.__traceback__)
    ]


def test_try_except_finally() -> None:
    def f(x, d):
        y = x * 2
        try:
            z = d["missing"]
        except KeyError as error:
            print("caught", error)
            z = 1
        finally:
            print("finally")
        try:
            w = y + z
            int("not a number")
        except ValueError:
            w = y - z
        else:
            w = y * 100
        return w

    compare(f, X, {"a": 1})


def test_exception_in_a_callee_is_handled_by_the_caller() -> None:
    def inner(x):
        print("inner")
        if x.sum() > -100:
            raise ValueError("inner failed")
        return x

    def f(x):
        y = x + 1
        try:
            y = inner(y * 2)
        except ValueError as error:
            print(error, error.__traceback__.tb_lineno)
            y = y * 5
        return y + 1

    compare(f, X)


def test_reraise_and_chaining() -> None:
    def f(x):
        try:
            [][x.dim()]
        except IndexError as error:
            raise ValueError("outer") from error

    runner = Captured()
    with pytest.raises(ValueError, match="outer") as caught:
        runner(f, X)
    assert isinstance(caught.value.__cause__, IndexError)


def test_writes_to_outside_objects_happen() -> None:
    class Box:
        count = 0

    box, log, table = Box(), [], {}

    def f(x):
        y = x * 2
        box.count += 1
        log.append(y.shape)
        table["last"] = box.count
        return y + box.count

    runner = Captured()
    for turn in range(1, 4):
        torch.testing.assert_close(runner(f, X), X * 2 + turn)
        assert (box.count, len(log), table) == (turn, turn, {"last": turn})


def test_nonlocal_of_an_outer_function() -> None:
    total = 0

    def f(x):
        nonlocal total
        total = total + 1
        return x * total

    runner = Captured()
    for turn in range(1, 4):
        torch.testing.assert_close(runner(f, X), X * turn)


COUNTER = 0


def test_globals_written() -> None:
    def f(x):
        global COUNTER
        COUNTER += 1
        y = x + COUNTER
        globals()["COUNTER"] = COUNTER + 10
        return y + reads()

    def reads():
        return COUNTER

    global COUNTER
    for turn in range(3):
        start = COUNTER
        torch.testing.assert_close(Captured()(f, X), X + (start + 1) + (start + 11))
        assert COUNTER == start + 11 == 11 * (turn + 1)


def test_locals_and_eval_see_the_frame() -> None:
    def f(x):
        y = x * 2
        z = 3
        names = sorted(locals())
        return y + eval("z + 1"), names

    compare(f, X)


def test_generators_and_iterators() -> None:
    def numbers(n):
        yield from range(n)

    def f(x):
        for n in numbers(3):
            x = x + n
        total = sum(i * 2 for i in range(4))
        it = iter([1, 2, 3])
        next(it)
        return x * total, list(it), max(t.sum().item() for t in (x, x * 2))

    compare(f, X)


def test_imports_inside() -> None:
    def f(x):
        import math as m
        from collections import OrderedDict as Ordered

        return x * m.pi, Ordered(a=x + 1)

    compare(f, X)


def test_warnings_name_the_users_line() -> None:
    def f(x):
        y = x + 1
        warnings.warn("careful", stacklevel=1)
        return y * 2

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        Captured()(f, X)
    assert [(w.filename, w.lineno) for w in seen] == [(__file__, f.__code__.co_firstlineno + 2)]


def test_super_without_arguments() -> None:
    class Base:
        def run(self, x):
            print("base")
            return x + 1

    class Child(Base):
        def run(self, x):
            y = x * 2
            return super().run(y) - 1

    child = Child()

    def f(x):
        return child.run(x)

    compare(f, X)


def test_closures_over_a_break() -> None:
    def f(x):
        scale = 2

        def grow(t):
            nonlocal scale
            scale += 1
            return t * scale

        y = grow(x)
        print(scale)
        z = grow(y)
        return z, scale

    compare(f, X)


def test_disabled_functions_run_in_python() -> None:
    seen = []

    def helper(x):
        seen.append(type(x))
        return x + 1

    helper._smelt_disable = True  # type: ignore[attr-defined]

    def f(x):
        return helper(x * 2) * 3

    runner = compare(f, X)
    assert runner.break_codes == ["B010"]
    assert len(runner.graphs) == 2
    assert seen[0] is torch.Tensor


def test_a_loop_goes_on_in_one_graph_behind_a_break() -> None:
    def f(x):
        for number, (name, scale) in enumerate(zip("abcd", {"p": 2, "q": 3, "r": 4, "s": 5}.values(), strict=True)):
            if number == 1:
                print(name)
            x = x * scale + number
        return [x * step if step != 1 else print("inside") for step in reversed([1, 2, 3])]

    runner = compare(f, X)
    assert runner.break_codes == ["B002", "B002"]
    assert len(runner.graphs) == 2


def test_a_loop_that_breaks_every_time_is_not_captured_for_every_position() -> None:
    def f(x, parts):
        for part in parts:
            x = x + part
            print("turn")
        return x

    runner = compare(f, X, list(torch.arange(12.0)))
    assert "B023" in runner.break_codes
    assert len(runner.graphs) <= 4


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("breaks", [False, True])
def test_a_dict_may_not_grow_while_it_is_iterated(breaks: bool, ordered: bool) -> None:
    def f(x, table):
        for key in table:
            x = x + table[key]
            if breaks:
                print(key)
            table["new"] = 1
        return x

    make = OrderedDict if ordered else dict
    for _ in range(2):
        expected, found = observe(lambda: f(X, make(a=1, b=2))), observe(lambda: Captured()(f, X, make(a=1, b=2)))
        assert isinstance(expected.error, RuntimeError)
        assert (type(found.error), str(found.error)) == (RuntimeError, str(expected.error))
        assert found.printed == expected.printed


def test_an_iterator_the_program_holds_stays_pythons_own() -> None:
    def f(x):
        source = iter([1, 2, 3, 4, 5])
        for item in source:
            x = x * item
            if item == 1:
                print(next(source))
        return x, type(source).__name__, list(source)

    compare(f, X)


def test_backward_inside() -> None:
    w = torch.ones(3, requires_grad=True)

    def f(x):
        loss = (x * w).sum()
        loss.backward()
        grad = w.grad.clone()
        w.grad = None
        return loss.detach(), grad * 2

    compare(f, X)


def test_requires_grad_inside() -> None:
    def f(x):
        y = (x * 2).requires_grad_()
        z = (y * y).sum()
        (g,) = torch.autograd.grad(z, [y])
        return g + 1

    compare(f, X)


def test_autocast() -> None:
    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x.T
        return y, y.dtype, x @ x.T

    compare(f, X)


def test_tensor_subclass_is_left_alone() -> None:
    class Mine(torch.Tensor):
        pass

    def f(x, m):
        return (x * 2) + m

    runner = Captured()
    mine = X.clone().as_subclass(Mine)
    out = runner(f, X, mine)
    assert type(out) is Mine
    assert "B006" in runner.break_codes or "B008" in runner.break_codes


def test_fullgraph_names_the_line_the_reason_and_a_hint() -> None:
    def f(x):
        y = x * 2
        print("no")
        return y

    with pytest.raises(GraphBreakError) as caught:
        Captured(fullgraph=True)(f, X)
    text = str(caught.value)
    assert caught.value.code == "SM010"
    assert "print" in text and f"{__file__}:{f.__code__.co_firstlineno + 2}" in text and "hint" in text


def test_fullgraph_still_raises_the_users_errors() -> None:
    def f(x):
        return x @ x

    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        Captured(fullgraph=True)(f, X)


def test_fullgraph_without_a_break() -> None:
    def f(x):
        return math.pi * x

    torch.testing.assert_close(Captured(fullgraph=True)(f, X), math.pi * X)


def test_every_break_code_is_explained() -> None:
    page = (pathlib.Path(__file__).parents[3] / "docs" / "breaks.md").read_text(encoding="utf-8")
    for code, (text, hint) in REASONS.items():
        assert f"## {code}: {text.replace('{}', '…')}\n" in page
        assert hint[1:] in page


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "llvm"])
def test_backward_is_run_even_if_nobody_looks_at_the_loss(backend: str) -> None:
    def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        (x * w).sum().backward()
        return x + 1

    x, mine, theirs = torch.randn(3), torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    compiled = smelt.compile(step, backend=backend)
    with collect() as events:
        for _ in range(2):
            assert torch.equal(compiled(x, mine), step(x, theirs))
    assert mine.grad is not None and theirs.grad is not None and torch.equal(mine.grad, theirs.grad)
    graphs = [event.subject.function for event in events if isinstance(event.subject, GraphRecord)]
    assert set(graphs) == {step.__qualname__}, "what was compiled is not captured again where backward runs it"


def test_a_loop_with_two_breaks_in_its_body_is_taken_up_where_it_stands():
    """Between the breaks no step of the loop is taken: its iterator stays one that says where it stands."""

    def program(x, rows):
        for place, (row, scale) in enumerate(zip(rows, range(1, 9), strict=False)):
            x = x + row.sum() * scale
            graph_break()
            x = x * 2
            graph_break()
            x = x + place
        return x

    runner = compare(program, X, [X, X + 1, X + 2])
    assert "B009" not in runner.break_codes
