"""Programs as CUDA graphs, by the fake driver: when they are recorded, what they are launched with, and when not."""

import ctypes
import gc
import random
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from smelt import _native
from smelt.ir.table.records import Allocate, Call, Draws, Drop, Ref
from smelt.ir.table.write import write_program
from smelt.runtime.cuda import graph_recorder
from smelt.runtime.cuda.graph_use import in_words
from smelt.runtime.cuda.image import CudaCode
from smelt.torch_abi import aoti_shims
from smelt.torch_abi.aoti_shims import connect, device_code, dtype_code
from tests.program_tables import Launched, program, tensor
from tests.runtime.cuda.fake_cuda import ILLEGAL_ADDRESS, FakeCuda, Grid, cuda_launcher, ptx

TEXT = ptx(("add_one", 4), ("numbers", 5))
GPU, HOST = torch.device("cuda"), torch.device("cpu")
SIDE = 0x51DE
COUNT = 5
CALLS = 1000
FALLIBLE = (
    "cuStreamBeginCapture_v2", "cuGraphInstantiateWithFlags", "cuGraphExecKernelNodeSetParams_v2", "cuGraphLaunch",
)  # fmt: skip


class Recorder:
    """A stream to record on, and memory that stays: the host's, as all memory here."""

    always = True
    now = 0

    class Memory:
        """What a graph has as long as it is there."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda, self.stream, self.under_way, self.current = cuda, SIDE, 0, 0
        self.pool: list[torch.Tensor] = []
        self.recorded_calls = 0
        self.questions = ((self.setting, ()), (min, (1, 2)))
        self.memory: Recorder.Memory | None = Recorder.Memory()

    def begin(self, device: int) -> "Recorder":
        assert device == 0
        self.under_way += 1
        self.current = self.cuda.stream(device)
        self.cuda.set_stream(device, SIDE)
        return self

    def end(self) -> None:
        self.under_way -= 1
        self.cuda.set_stream(0, self.current)

    def setting(self) -> int:
        if self.now < 0:
            raise RuntimeError
        return self.now


@pytest.fixture
def gpu(cuda: FakeCuda) -> Iterator[FakeCuda]:
    """Tensors of the host that say they are on a GPU."""
    connect()
    lib = aoti_shims.find_library()
    fakes = {
        "aoti_torch_get_device_index": cuda.library.fake_device_index,
        "aoti_torch_empty_strided": cuda.library.fake_empty_strided,
    }
    functions = lib.functions | {name: ctypes.cast(fake, ctypes.c_void_p).value or 0 for name, fake in fakes.items()}
    _native.set_library(torch.Tensor, torch.nn.Parameter, lib.body, lib.storage, lib.memory, functions)
    cuda.set_stream(0, 0xABC)
    yield cuda
    aoti_shims._install(lib)
    assert cuda.number("graphs") == cuda.number("events") == 0


def refused(*_: Any, **__: Any) -> Any:
    raise AssertionError("nobody should ask for this")


def runner(
    steps: Any, tensors: Any, outputs: Any, recorder: Any, functions: Any = None, **counts: Any
) -> _native.Runner:
    table, objects = write_program(program(steps, outputs, tensors, **counts), dtype_code, device_code)

    def allocate(shape: Any, stride: Any, dtype: Any, device: Any) -> torch.Tensor:
        made = torch.empty_strided(shape, stride, dtype=dtype, device="cpu")
        recorder.pool += [made] * recorder.under_way
        return made

    return _native.Runner(
        table, objects, threads=lambda: 1, acquire=refused, release=refused, allocate=allocate, view=refused,
        watchers=(), recorder=recorder, **{"fit": refused} | (functions or {}),
    )  # fmt: skip


def floats(name: str) -> Any:
    return tensor(name, torch.float32, GPU, (COUNT,), (1,))


def three_added(recorder: Any) -> _native.Runner:
    """x + 3 by three kernels, two of whose results are dropped."""
    launch = cuda_launcher(CudaCode(TEXT), [Grid("add_one", 1, 32)], 3, sizes=1, device=0)
    add = [Launched("add_one", launch, (source, to, 1)) for source, to in ((0, 2), (2, 3), (3, 4))]
    steps = (Allocate(2), add[0], Allocate(3), add[1], Drop((2,)), Allocate(4), add[2], Drop((3,)))
    sizes = tensor("sizes", torch.int64, HOST, (1,), (1,))
    tensors = (floats("x"), sizes, floats("a"), floats("b"), floats("y"))
    return runner(steps, tensors, (Ref(4),), recorder, inputs=1, constants=(torch.tensor([COUNT]),))


def test_calls_that_repeat_are_recorded_and_results_are_fresh(gpu: FakeCuda) -> None:
    recorder = Recorder(gpu)
    run = three_added(recorder)
    inputs = [torch.arange(float(COUNT)) * number for number in range(8)]
    results = [run(x)[0] for x in inputs]
    assert (run.graphs["graphs"], run.graphs["launched"]) == (1, 6), run.graphs
    for x, result in zip(inputs, results, strict=True):  # at other addresses each time, and none is overwritten
        assert result.tolist() == (x + 3).tolist()
    assert len({result.data_ptr() for result in results}) == 8
    assert len(gpu.launches) == 8 * 3 and {launched.stream for launched in gpu.launches} == {0xABC}
    assert recorder.under_way == 0
    del run


@pytest.mark.parametrize("is_kept", [False, True])
def test_inputs_that_steps_drop_are_freed_by_steps_and_by_graphs(gpu: FakeCuda, is_kept: bool) -> None:
    launch = cuda_launcher(CudaCode(TEXT), [Grid("add_one", 1, 32)], 3, sizes=1, device=0)
    add = [Launched("add_one", launch, (source, to, 1)) for source, to in ((0, 2), (2, 3), (3, 4))]
    steps = (Allocate(2), add[0], Drop((0,)), Allocate(3), add[1], Drop((2,)), Allocate(4), add[2], Drop((3,)))
    sizes = tensor("sizes", torch.int64, HOST, (1,), (1,))
    tensors = (floats("x"), sizes, floats("a"), floats("b"), floats("y"))
    constants = (torch.tensor([COUNT]),)
    run = runner(steps, tensors, (Ref(4),), Recorder(gpu), inputs=1, constants=constants, consuming=True)
    for number in range(6):
        x = torch.full((COUNT,), float(number))
        freed = weakref.ref(x)
        given, kept = [x], x if is_kept else None
        del x
        assert run(given)[0].tolist() == [number + 3.0] * COUNT
        assert given == [] and (freed() is kept)
    assert run.graphs["launched"] == 4
    del run


def test_each_stream_and_each_setting_has_its_graph(gpu: FakeCuda) -> None:
    recorder = Recorder(gpu)
    run = three_added(recorder)
    for stream, setting, graphs in ((0xABC, 0, 1), (0xDEF, 0, 2), (0xABC, 1, 3), (0xDEF, 0, 3), (0xDEF, -1, 4)):
        gpu.set_stream(0, stream)
        recorder.now = setting
        for _ in range(3):
            assert run(torch.zeros(COUNT))[0].tolist() == [3.0] * COUNT
        assert run.graphs["graphs"] == graphs, (stream, setting)
    del run


def test_numbers_of_the_host_are_read_at_each_call(gpu: FakeCuda) -> None:
    code = CudaCode(TEXT)
    launch = cuda_launcher(code, [Grid("numbers", 1, 32)], 4, device=0, numbers=bytes([0, 8, 8, 0]))
    steps = (Allocate(3), *(Launched("numbers", launch, (0, 1, 2, 3)) for _ in range(3)))
    number = tensor("n", torch.int64, HOST)
    run = runner(steps, (floats("x"), number, number, floats("y")), (Ref(3),), Recorder(gpu), inputs=3)
    for seed in range(6):
        run(torch.zeros(COUNT), torch.tensor(seed), torch.tensor(-seed))
    assert run.graphs["launched"] == 4
    assert [each.parameters[1] for each in gpu.launches[::3]] == list(range(6))
    assert [ctypes.c_int64(each.parameters[2]).value for each in gpu.launches[::3]] == [-seed for seed in range(6)]
    del run


def test_the_host_may_not_be_part_of_a_graph(gpu: FakeCuda) -> None:
    gpu.set(host_nodes=1)
    run = three_added(Recorder(gpu))
    for _ in range(8):
        assert run(torch.zeros(COUNT))[0].tolist() == [3.0] * COUNT
    assert run.graphs["launched"] == 0 and run.graphs["why_not"] == "its steps could not be recorded"
    del run


@pytest.mark.parametrize("function", FALLIBLE)
def test_what_fails_is_done_step_by_step(gpu: FakeCuda, function: str) -> None:
    recorder = Recorder(gpu)
    run = three_added(recorder)
    gpu.fail(function, ILLEGAL_ADDRESS)
    for number in range(8):
        x = torch.full((COUNT,), float(number))
        assert run(x)[0].tolist() == (x + 3).tolist()
    assert run.graphs["launched"] > 0 and recorder.under_way == 0
    del run


def test_a_recording_of_the_caller_gets_the_steps(gpu: FakeCuda) -> None:
    before = gpu.number("modules")
    run = three_added(Recorder(gpu))
    for _ in range(4):
        run(torch.zeros(COUNT))
    launched = run.graphs["launched"]
    gpu.set(capturing=1)
    assert run(torch.zeros(COUNT))[0].tolist() == [3.0] * COUNT
    assert run.graphs["launched"] == launched and run.graphs["why_not"] == "somebody else records"
    gpu.set(capturing=0)
    run(torch.zeros(COUNT))
    assert run.graphs["launched"] == launched + 1
    del run
    gc.collect()
    gpu.set(modules=before)  # what the caller recorded stays loaded


def test_questions_have_hashable_answers_and_follow_the_settings() -> None:
    recorder = graph_recorder.RECORDERS["auto"]
    assert recorder is not None

    def answers() -> list[int]:
        found = []
        for function, arguments in recorder.questions:
            try:
                found.append(hash(function(*arguments)))
            except RuntimeError:
                found.append(0)
        return found

    before = answers()
    assert len(before) > 8 and answers() == before
    matmul = torch.backends.cuda.matmul
    precision = matmul.fp32_precision
    try:
        matmul.fp32_precision = "tf32"  # after which PyTorch raises when it is asked by the older names
        assert answers() != before
    finally:
        matmul.fp32_precision = precision
    assert answers() == before


def test_an_interrupt_while_steps_are_recorded_is_raised(gpu: FakeCuda) -> None:
    launch = cuda_launcher(CudaCode(TEXT), [Grid("add_one", 1, 32)], 3, sizes=1, device=0)
    add, sizes = Launched("add_one", launch, (0, 0, 1)), tensor("sizes", torch.int64, HOST, (1,), (1,))
    recorder, calls = Recorder(gpu), []

    def interrupted(x: torch.Tensor) -> torch.Tensor:
        calls.append(recorder.under_way)
        if recorder.under_way:
            raise KeyboardInterrupt
        return x.clone()

    steps = (add, Call("aten::clone", interrupted, (Ref(0),), results=(2,), is_one=True), add)
    fit = {"fit": lambda result, *_: result}
    tensors, constants = (floats("x"), sizes, floats("y")), (torch.tensor([1]),)
    run = runner(steps, tensors, (Ref(2),), recorder, fit, inputs=1, constants=constants)
    x = torch.zeros(COUNT)
    for _ in range(2):
        run(x)
    with pytest.raises(KeyboardInterrupt):
        run(x)
    assert calls == [0, 0, 1] and recorder.under_way == 0
    del run


def test_memory_of_graphs_goes_with_the_program(gpu: FakeCuda) -> None:
    recorder = Recorder(gpu)
    assert recorder.memory is not None
    memory = weakref.ref(recorder.memory)
    run = three_added(recorder)
    for _ in range(4):
        run(torch.zeros(COUNT))
    recorder.memory = None
    assert run.graphs["graphs"] == 1 and gpu.number("graphs") and memory() is not None
    del run
    gc.collect()
    assert gpu.number("graphs") == 0 and memory() is None


def test_graphs_are_freed_where_memory_is_short_and_recorded_anew(gpu: FakeCuda) -> None:
    recorder = Recorder(gpu)
    runs = [three_added(recorder) for _ in range(3)]
    for repetition in range(4):
        for run in runs:
            for _ in range(4):
                assert run(torch.zeros(COUNT))[0].tolist() == [3.0] * COUNT
        has_graphs = repetition < 3  # a program whose graphs are freed again and again has none any more
        assert [run.graphs["graphs"] for run in runs] == [int(has_graphs)] * 3
        assert _native.free_cuda_graphs() == 3 * has_graphs
        assert gpu.number("graphs") == 0
    del runs, run


def test_graphs_that_were_launched_often_are_recorded_again(gpu: FakeCuda) -> None:
    run = three_added(Recorder(gpu))
    for _ in range(8):
        for _ in range(12):
            assert run(torch.zeros(COUNT))[0].tolist() == [3.0] * COUNT
        assert run.graphs["graphs"] == 1
        assert _native.free_cuda_graphs() == 1
    del run


def test_graphs_are_recorded_where_the_gpu_waits_for_the_host(gpu: FakeCuda) -> None:
    recorder = Recorder(gpu)
    recorder.always = False
    run = three_added(recorder)
    gpu.set(busy=1)
    for _ in range(6):
        run(torch.zeros(COUNT))
    assert run.graphs["graphs"] == 0 and run.graphs["why_not"] == "the GPU does not wait for the host"
    gpu.set(busy=0)
    for _ in range(6):  # it is asked again in the eighth call
        assert run(torch.zeros(COUNT))[0].tolist() == [3.0] * COUNT
    assert (run.graphs["graphs"], run.graphs["launched"]) == (1, 3), run.graphs
    del run


def squared_plus_one(recorder: Recorder) -> _native.Runner:
    """(x + 1)² + 1, and (x + 1)² itself: a library call reads and returns memory between kernels."""
    launch = cuda_launcher(CudaCode(TEXT), [Grid("add_one", 1, 32)], 3, sizes=1, device=0)

    def square(x: torch.Tensor, out: torch.Tensor) -> None:
        recorder.recorded_calls += recorder.under_way
        pointers = [ctypes.c_void_p(each.data_ptr()) for each in (x, out)]
        assert recorder.cuda.library.fake_library_square(*pointers, COUNT) == 0

    steps = (
        Allocate(2), Launched("add_one", launch, (0, 2, 1)), Allocate(3),
        Call("aten::square.out", square, (Ref(2), Ref(3))), Drop((2,)),
        Allocate(4), Launched("add_one", launch, (3, 4, 1)),
    )  # fmt: skip
    sizes = tensor("sizes", torch.int64, HOST, (1,), (1,))
    tensors = (floats("x"), sizes, floats("a"), floats("b"), floats("y"))
    return runner(steps, tensors, (Ref(3), Ref(4)), recorder, inputs=1, constants=(torch.tensor([COUNT]),))


def one_drawing(recorder: Recorder, drawn: list[float]) -> _native.Runner:
    """x + 1, and a number of the host's generator that nobody reads."""
    launch = cuda_launcher(CudaCode(TEXT), [Grid("add_one", 1, 32)], 3, sizes=1, device=0)

    def rand() -> torch.Tensor:
        number = torch.rand([])
        drawn.append(float(number))
        return number

    draw = Call("aten::rand", rand, results=(None,), is_one=True, draws=Draws.UNREAD)
    add = Launched("add_one", launch, (0, 2, 1))
    sizes = tensor("sizes", torch.int64, HOST, (1,), (1,))
    steps = (draw, Allocate(2), add, draw, *[add] * 4)
    tensors = (floats("x"), sizes, floats("y"))
    return runner(steps, tensors, (Ref(2),), recorder, inputs=1, constants=(torch.tensor([COUNT]),))


def test_unread_numbers_of_the_host_are_drawn_once_a_call(gpu: FakeCuda) -> None:
    """Step by step, recorded, launched, and where the driver refuses to record or to launch."""
    drawn: list[float] = []
    run = one_drawing(Recorder(gpu), drawn)
    torch.manual_seed(0)
    for number in range(12):
        if number in (3, 7):
            gpu.fail("cuGraphInstantiateWithFlags" if number == 3 else "cuGraphLaunch", ILLEGAL_ADDRESS, 0)
        if number == 5:
            _native.free_cuda_graphs()
        assert run(torch.zeros(COUNT))[0].tolist() == [1.0] * COUNT
        assert len(drawn) == 2 * (number + 1), run.graphs
    assert run.graphs["launched"] > 3
    torch.manual_seed(0)
    assert drawn == [float(torch.rand([])) for _ in drawn]
    del run


@pytest.mark.parametrize("seed", range(4))
def test_a_thousand_calls_of_everything(gpu: FakeCuda, seed: int) -> None:
    """Streams, settings, inputs that move, kept results, calls that the program records, refusals of the driver,
    graphs that are freed: results are right, and never change later."""
    choose, modules = random.Random(seed), gpu.number("modules")
    capturing = ctypes.c_int.in_dll(gpu.library, "fake_capturing")
    recorder = Recorder(gpu)
    runs = [three_added(recorder), squared_plus_one(recorder)]
    held = [torch.zeros(COUNT) for _ in range(3)]
    kept: list[tuple[torch.Tensor, list[float]]] = []
    launched = 0
    for number in range(CALLS):
        gpu.set_stream(0, choose.choice((0xABC, 0xABC, 0xABC, 0xDEF)))
        recorder.now = choose.random() < 0.05
        capturing.value = choose.random() < 0.05
        if choose.random() < 0.03:
            gpu.fail(choose.choice(FALLIBLE), ILLEGAL_ADDRESS, choose.randrange(3))
        if choose.random() < 0.005:
            _native.free_cuda_graphs()
        if choose.random() < 0.02:
            launched += sum(run.graphs["launched"] for run in runs)
            runs = [three_added(recorder), squared_plus_one(recorder)]
        x = choose.choice(held) if choose.random() < 0.7 else torch.empty(COUNT)
        x.fill_(float(number % 7))
        at = choose.randrange(2)
        results = runs[at](x)
        value = x[0].item()
        wanted = ([value + 3], [(value + 1) ** 2, (value + 1) ** 2 + 1])[at]
        for result, expected in zip(results, wanted, strict=True):
            assert result.tolist() == [expected] * COUNT, (number, runs[at].graphs)
            if choose.random() < 0.1:
                kept.append((result, result.tolist()))
    capturing.value = 0
    for result, numbers in kept:
        assert result.tolist() == numbers
    assert launched > 100 and recorder.recorded_calls > 3
    del runs
    gc.collect()
    gpu.set(modules=modules)  # what the program recorded stays loaded


@pytest.mark.parametrize("busy", [0, 1])
def test_long_programs_ask_by_events_between_their_steps(gpu: FakeCuda, busy: int) -> None:
    launch = cuda_launcher(CudaCode(TEXT), [Grid("add_one", 1, 32)], 3, sizes=1, device=0)
    steps = [Allocate(2), Launched("add_one", launch, (0, 2, 1))]
    for number in range(3, 50):
        steps += [Allocate(number), Launched("add_one", launch, (number - 1, number, 1)), Drop((number - 1,))]
    tensors = (floats("x"), tensor("sizes", torch.int64, HOST, (1,), (1,)), *(floats(f"y{n}") for n in range(48)))
    recorder = Recorder(gpu)
    recorder.always = False
    run = runner(steps, tensors, (Ref(49),), recorder, inputs=1, constants=(torch.tensor([COUNT]),))
    gpu.set(busy=busy)
    for _ in range(8):
        assert run(torch.zeros(COUNT))[0].tolist() == [48.0] * COUNT
    assert run.graphs["graphs"] == 1 - busy and gpu.number("events") == 0
    del run


def test_graphs_in_words(gpu: FakeCuda) -> None:
    recorder = Recorder(gpu)
    run = three_added(recorder)
    assert in_words(run.graphs) == "kernel by kernel: it was not called yet"
    run(torch.zeros(COUNT))
    assert in_words(run.graphs) == "kernel by kernel: it was the first call"
    for _ in range(4):
        run(torch.zeros(COUNT))
    assert in_words(run.graphs).startswith("3 of 5 calls by 1 CUDA graph; the last other call: library calls use")
    del run


def test_programs_that_have_no_graphs_say_why(gpu: FakeCuda) -> None:
    launch = cuda_launcher(CudaCode(TEXT), [Grid("add_one", 1, 32)], 3, sizes=1, device=0)
    add, sizes = Launched("add_one", launch, (0, 0, 1)), tensor("sizes", torch.int64, HOST, (1,), (1,))
    large = tensor("large", torch.float32, GPU, (1 << 26,), (1,))
    made = Call("aten::clone", refused, (Ref(0),), results=(2,), is_one=True)

    def reason(steps: Any, x: Any = None, recorder: Any = None, more: Any = ()) -> Any:
        tensors, constants = (x or floats("x"), sizes, *more), (torch.tensor([1]),)
        outputs = tuple(Ref(2 + number) for number in range(len(more)))
        run = runner(steps, tensors, outputs, recorder or Recorder(gpu), inputs=1, constants=constants)
        return run.graphs["why_not"]

    mine = Call("mine::op", refused, (Ref(0),))
    always, auto = Recorder(gpu), Recorder(gpu)
    auto.always = False
    assert reason((add, add)) == "it has few steps"
    assert reason((add, add, add)) is None
    assert "not PyTorch's" in reason((add, add, mine))
    assert "tensors of the host" in reason((add, add, Allocate(1), add))
    assert reason((add, made, add), more=(floats("y"),)) is None
    assert "random numbers" in reason((add, made._replace(draws=True), add), more=(floats("y"),))
    assert "would be copied" in reason((add, made, add), large, auto, more=(large,))
    assert reason((add, made, add), large, always, more=(large,)) is None
    assert "uses no GPU" in reason((add, add, add), tensor("x", torch.float32, HOST, (COUNT,), (1,)))
