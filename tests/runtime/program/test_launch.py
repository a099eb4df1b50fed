"""Programs run from Python: steps in order, memory planned and reused, layouts as promised."""

import gc
import itertools
import threading
import weakref
from dataclasses import replace

import pytest
import torch

from smelt.base.errors import UnexpectedResult
from smelt.ir.kernel import Axis, Buffer, Compute, Index, Kernel, Load, Role, Stage, Store
from smelt.ir.program import Launch, Library, Operand, Place, Program, ProgramBuffer
from smelt.ir.table import records as r
from smelt.ir.tensorspec import TensorSpec
from smelt.runtime.program.arenas import ARENA_ALIGNMENT, Arenas
from smelt.runtime.program.launch import Executable, fit

aten = torch.ops.aten
F32 = torch.float32
CPU = torch.device("cpu")


def spec(*shape: int, stride: tuple[int, ...] | None = None) -> TensorSpec:
    example = torch.empty(shape)
    return TensorSpec(tuple(shape), stride or tuple(example.stride()), F32, CPU)


def negate(name: str, size: int) -> Kernel:
    index = Index((("j", 1),))
    body = (Load("v0", "a", index), Compute("v1", "neg", ("v0",), F32), Store("b", index, "v1"))
    buffers = (Buffer("a", F32, size, Role.INPUT), Buffer("b", F32, size, Role.OUTPUT))
    return Kernel(name, (), (Axis("j", size),), buffers, (Stage(True, body),))


def run_negate(threads: int, source: torch.Tensor, target: torch.Tensor) -> None:
    assert threads > 0
    torch.neg(source, out=target)


def mm_then_negate() -> Program:
    """out = -(x @ w.T), the product in the arena."""
    buffers = (
        ProgramBuffer("x", spec(2, 3), Place.INPUT),
        ProgramBuffer("w", spec(4, 3), Place.INPUT),
        ProgramBuffer("product", spec(2, 4), Place.ARENA, offset=64),
        ProgramBuffer("out", spec(2, 4), Place.FRESH),
    )
    product = Library(
        aten.mm.out,
        (Operand("x", (2, 3), (3, 1)), Operand("w", (3, 4), (1, 3))),
        (),
        outs=("product",),
        into=("out",),
    )
    steps = (product, Launch(negate("k0", 8), ("product", "out")))
    outputs = (Operand("out", (2, 4), (4, 1)), Operand("out", (4, 2), (1, 4)), None)
    return Program("p", buffers, ("x", "w"), (), steps, outputs, arena_bytes=96)


def test_steps_run_in_order_on_planned_memory() -> None:
    executable = Executable(mm_then_negate(), {"k0": run_negate})
    x, w = torch.randn(2, 3), torch.randn(4, 3)
    out, transposed, nothing = executable(x, w)
    torch.testing.assert_close(out, -(x @ w.t()))
    torch.testing.assert_close(transposed, out.t())
    assert transposed.untyped_storage().data_ptr() == out.untyped_storage().data_ptr()
    assert nothing is None


def test_what_a_step_raises_says_which_step_it_was() -> None:
    def fail(threads: int, source: torch.Tensor, target: torch.Tensor) -> None:
        raise KeyError("k0")

    executable = Executable(mm_then_negate(), {"k0": fail})
    with pytest.raises(KeyError) as caught:
        executable(torch.randn(2, 3), torch.randn(4, 3))
    assert isinstance(executable.read().steps[caught.value.smelt_step], r.Launch)  # type: ignore[attr-defined]


def test_a_program_knows_where_it_begins_to_write_inputs() -> None:
    assert Executable(mm_then_negate(), {"k0": run_negate}).run.__dict__["writes_from"] is None
    program = mm_then_negate()
    steps = (*program.steps, Launch(negate("k0", 8), ("out", "y")))
    buffers = (*program.buffers, ProgramBuffer("y", spec(2, 4), Place.INPUT))
    writing = replace(program, steps=steps, buffers=buffers, inputs=("x", "w", "y"))
    executable = Executable(writing, {"k0": run_negate})
    place = executable.run.__dict__["writes_from"]
    steps = executable.read().steps
    assert [type(step) for step in steps[:place]].count(r.Launch) == 1 and isinstance(steps[place], r.Launch)


def test_a_program_that_owns_its_inputs_lets_go_of_its_inputs() -> None:
    alive: list[bool] = []

    def watch(threads: int, source: torch.Tensor, target: torch.Tensor) -> None:
        alive.extend(ref() is not None for ref in refs)
        torch.neg(source, out=target)

    executable = Executable(mm_then_negate(), {"k0": watch}, consuming=True)
    given = [torch.ones(2, 3), torch.ones(4, 3)]
    refs = [weakref.ref(tensor) for tensor in given]
    out, _, _ = executable.run(given)
    assert torch.equal(out, torch.full((2, 4), -3.0))
    assert given == [] and alive == [False, False]


def test_outputs_of_two_calls_do_not_share_memory() -> None:
    executable = Executable(mm_then_negate(), {"k0": run_negate})
    first = executable(torch.ones(2, 3), torch.ones(4, 3))[0]
    kept = first.clone()
    executable(torch.zeros(2, 3), torch.ones(4, 3))
    assert torch.equal(first, kept)


def test_the_arena_is_kept_between_calls_and_aligned() -> None:
    places: list[int] = []

    def watch(threads: int, source: torch.Tensor, target: torch.Tensor) -> None:
        places.append(source.data_ptr())
        torch.neg(source, out=target)

    executable = Executable(mm_then_negate(), {"k0": watch})
    for _ in range(3):
        executable(torch.ones(2, 3), torch.ones(4, 3))
    assert len(set(places)) == 1
    assert places[0] % ARENA_ALIGNMENT == 0


def test_overlapping_calls_take_arenas_of_their_own() -> None:
    both_inside = threading.Barrier(2, timeout=60)
    places: list[int] = []

    def meet(threads: int, source: torch.Tensor, target: torch.Tensor) -> None:
        places.append(source.data_ptr())
        both_inside.wait()
        torch.neg(source, out=target)

    executable = Executable(mm_then_negate(), {"k0": meet})
    results: dict[int, torch.Tensor] = {}

    def call(value: int) -> None:
        results[value] = executable(torch.full((2, 3), float(value)), torch.ones(4, 3))[0]

    callers = [threading.Thread(target=call, args=(value,)) for value in (1, 2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(set(places)) == 2
    for value, result in results.items():
        assert torch.equal(result, torch.full((2, 4), -3.0 * value))


def test_an_arena_returns_after_an_error() -> None:
    places: list[int] = []

    def fail_once(threads: int, source: torch.Tensor, target: torch.Tensor) -> None:
        places.append(source.data_ptr())
        if len(places) == 1:
            raise ValueError("once")

    executable = Executable(mm_then_negate(), {"k0": fail_once})
    with pytest.raises(ValueError, match="once"):
        executable(torch.ones(2, 3), torch.ones(4, 3))
    executable(torch.ones(2, 3), torch.ones(4, 3))
    assert places[0] == places[1]


def test_inputs_with_a_storage_offset_are_seen_where_they_start() -> None:
    executable = Executable(mm_then_negate(), {"k0": run_negate})
    x = torch.randn(3, 3)[1:]
    w = torch.randn(5, 3)[1:]
    torch.testing.assert_close(executable(x, w)[0], -(x @ w.t()))


def test_several_results_of_a_library_call() -> None:
    buffers = (
        ProgramBuffer("x", spec(4, 3), Place.INPUT),
        ProgramBuffer("top", spec(4), Place.LIBRARY),
        ProgramBuffer("where", TensorSpec((4,), (1,), torch.int64, CPU), Place.LIBRARY),
    )
    step = Library(aten.max.dim, (Operand("x", (4, 3), (3, 1)), 1), (("keepdim", False),), outs=("top", "where"))
    program = Program("p", buffers, ("x",), (), (step,), (Operand("top", (4,), (1,)), Operand("where", (4,), (1,))))
    x = torch.randn(4, 3)
    top, where = Executable(program, {})(x)
    assert torch.equal(top, x.max(1).values)
    assert torch.equal(where, x.max(1).indices)


def test_a_library_result_in_another_layout_is_brought_into_the_promised_one() -> None:
    surprising = torch.arange(6.0).reshape(3, 2).t()
    fitted = fit(surprising, (2, 3), (3, 1), torch.float32, "t")
    assert fitted.stride() == (3, 1)
    assert torch.equal(fitted, surprising)
    assert fit(fitted, (2, 3), (3, 1), torch.float32, "t") is fitted
    negated = fit(torch._neg_view(fitted), (2, 3), (3, 1), torch.float32, "neg")
    assert not negated.is_neg()
    assert torch.equal(negated, -fitted)


def test_a_library_result_of_another_shape_or_dtype_is_an_error() -> None:
    with pytest.raises(UnexpectedResult, match="mystery returned"):
        fit(torch.ones(2, 3), (2, 3), (3, 1), torch.bfloat16, "mystery")
    with pytest.raises(UnexpectedResult, match="SM023"):
        fit(torch.ones(2, 3), (2, 4), (4, 1), torch.float32, "mystery")


def test_library_buffers_die_after_their_last_use() -> None:
    buffers = (
        ProgramBuffer("x", spec(4), Place.INPUT),
        ProgramBuffer("a", spec(4), Place.LIBRARY),
        ProgramBuffer("b", spec(4), Place.LIBRARY),
    )
    whole = ((4,), (1,))
    steps = (
        Library(aten.neg.default, (Operand("x", *whole),), (), outs=("a",)),
        Library(aten.exp.default, (Operand("a", *whole),), (), outs=("b",)),
    )
    program = Program("p", buffers, ("x",), (), steps, (Operand("b", *whole),))
    executable = Executable(program, {})
    assert executable.read().steps[2] == r.Drop((1,))
    x = torch.randn(4)
    assert torch.equal(executable(x)[0], (-x).exp())


def test_constants_and_odd_numbers_reach_library_calls() -> None:
    constant = torch.tensor([1.0, 2.0])
    buffers = (
        ProgramBuffer("x", spec(2), Place.INPUT),
        ProgramBuffer("constant0", spec(2), Place.CONSTANT),
        ProgramBuffer("a", spec(2), Place.LIBRARY),
    )
    step = Library(
        aten.add.Tensor,
        (Operand("x", (2,), (1,)), Operand("constant0", (2,), (1,))),
        (("alpha", float("inf")),),
        outs=("a",),
    )
    program = Program("p", buffers, ("x",), (("constant0", constant),), (step,), (Operand("a", (2,), (1,)),))
    assert torch.equal(Executable(program, {})(torch.zeros(2))[0], torch.full((2,), float("inf")))


def test_buffers_may_be_called_like_anything_the_source_needs() -> None:
    names = ("take", "give", "fit", "threads", "arena", "run", "torch", "empty_strided")
    shape = ((4,), (1,))
    places = [Place.INPUT, *([Place.LIBRARY] * (len(names) - 1))]
    buffers = tuple(ProgramBuffer(name, spec(4), place) for name, place in zip(names, places, strict=True))
    steps = tuple(
        Library(aten.neg.default, (Operand(before, *shape),), (), outs=(after,))
        for before, after in itertools.pairwise(names)
    )
    program = Program("p", buffers, ("take",), (), steps, (Operand("empty_strided", *shape),))
    x = torch.randn(4)
    assert torch.equal(Executable(program, {})(x)[0], -x)


def test_strides_of_single_elements_take_no_copy() -> None:
    """As a gradient of a 1×1 weight has them, channels-last. Nor is what comes a view, which autograd would see."""
    given = torch.randn(4, 3, 1, 1).contiguous(memory_format=torch.channels_last)
    given = given.as_strided((4, 3, 1, 1), (3, 1, 3, 3)).clone(memory_format=torch.preserve_format)
    assert given.stride() == (3, 1, 3, 3)
    fitted = fit(given, (4, 3, 1, 1), (3, 1, 1, 1), torch.float32, "x")
    assert fitted.stride() == (3, 1, 1, 1) and fitted.data_ptr() == given.data_ptr() and not fitted._is_view()
    assert torch.equal(fitted, given)
    turned = fit(given, (4, 3, 1, 1), (1, 4, 1, 1), torch.float32, "x")
    assert turned.stride() == (1, 4, 1, 1) and turned.data_ptr() != given.data_ptr() and torch.equal(turned, given)


def test_an_arena_forgets_programs_that_are_gone() -> None:
    """Sizes come and go, each with a program: views for all there ever were piled up."""
    arenas = Arenas()
    inputs = torch.randn(2, 3), torch.randn(4, 3)
    kept = Executable(mm_then_negate(), {"k0": run_negate}, arenas=arenas)
    kept(*inputs)
    for _ in range(3):
        Executable(mm_then_negate(), {"k0": run_negate}, arenas=arenas)(*inputs)
    gc.collect()
    (arena,) = arenas.free
    assert len(arena.views) == 1


def test_arenas_for_many_sizes_have_room_to_grow() -> None:
    arenas = Arenas()
    for size in range(1000, 1100):
        arenas.acquirer(size, (), list)
        assert size <= arenas.size <= size * 5 // 4
