"""The engine behind a `CompiledRegion`: all that was compiled for it, and the decisions around capture.

Frames that no entry fits come to `_missed`; states after a break come to `plan_for`. Both look among what is known,
then capture, within `cache_size_limit` and under one lock, so that each version is built once.
"""

import time
import traceback
import types
from collections.abc import Callable, Hashable
from typing import Any

import torch

from smelt import _native
from smelt.base import locks
from smelt.base.coexist import opaque
from smelt.base.errors import ChipFailed, GraphBreakError, NotEnoughMemory, warn
from smelt.base.events import count, counters, emit, timed
from smelt.base.headroom import why_not_compile
from smelt.base.options import config
from smelt.base.torch_originals import replaced_underneath
from smelt.capture.driver.break_records import EXPECTED_TO_RAISE
from smelt.capture.driver.capture_frame import capture
from smelt.capture.driver.closing import Captured
from smelt.capture.driver.debuggers import tell_of_monitoring, watch
from smelt.capture.driver.run_plan import drive, recover, run_eagerly
from smelt.capture.driver.tracebacks import without_smelt
from smelt.capture.driver.trial import Trial
from smelt.capture.guards.dynamic_sizes import History
from smelt.capture.guards.recompiles import RecompileRecord
from smelt.capture.model.breaks import SkipFrame
from smelt.capture.model.bytecode import decode
from smelt.capture.model.marks import DISABLED, mark_entered
from smelt.capture.model.paused_iterators import PLACE
from smelt.capture.model.policy import calls_library_hooks, frame_is_worth_capturing, frame_runs_alone
from smelt.capture.model.state import LiveFrame, StateKey, flat, key_of
from smelt.capture.model.user_names import user_names
from smelt.capture.persist.store import CaptureStore
from smelt.capture.replay.plan import GraphFailed, Plan, Return, Stop, what_is_returned
from smelt.ir.graph import GraphCompiler, PersistentCompiler
from smelt.ir.nodes.ambient import default_devices
from smelt.ir.nodes.size_check import SizesMissed
from smelt.runtime import preserved_state  # noqa: F401  (says what `preserving_state` puts back)
from smelt.torch_abi.tensor_layout import install_tensor_layout

_ENOUGH_IDLE = 3
_COMPILING_CALLS = 2  # times cache_size_limit: in how many calls places behind breaks of a function are compiled
CALLS_BEFORE_WARNING = 5
"""After how many calls without a graph a compiled function warns that nothing of it is compiled."""
MAX_SIZE_VARIANTS = 8
"""How many versions of a graph there are for sizes that only data tell: a run by none of them is Python's."""
_MODE_HANDLERS = ("__torch_dispatch__", "__torch_function__")  # they run below what graphs take for granted


class Engine:
    """One per `smelt.compile`. `call(function, …)` runs the function with its frames captured."""

    def __init__(
        self,
        compile_graph: GraphCompiler,
        *,
        fullgraph: bool = False,
        dynamic: bool | None = None,
        fallback: bool = True,
        settings: Hashable = None,
    ) -> None:
        self.compile_graph = compile_graph
        self.settings = settings
        self.fullgraph = fullgraph
        self.fallback = fallback
        self.dynamic = dynamic
        install_tensor_layout()
        watch()
        self.native = _native.Region(self._missed)
        options = (fullgraph, dynamic)
        self.capture_store = (
            CaptureStore(compile_graph, options) if isinstance(compile_graph, PersistentCompiler) else None
        )
        self._tries = self.capture_store is not None and fallback and not fullgraph
        self._trials: list[Trial] = []
        self._seconds = 0.0  # spent on capturing and compiling
        self._lock = locks.lock()
        self._resumed: dict[StateKey, list[Captured]] = {}
        self._skipped: set[Any] = set()
        self._idle: dict[Any, int] = {}
        self._raised: dict[Any, int] = {}
        self._histories: dict[Any, History] = {}
        self._compiling_calls: dict[types.CodeType, tuple[int, int]] = {}  # the last call that compiled, how many did
        self._out_of_memory = False  # too little memory was left to compile, and that was said
        self._warned_of_stack = False  # a thread had too little stack, and that was said
        self._relaxed_fullgraph = False  # something was given up, and said so: what is called there may break
        self._calls_without_graph: int | None = 0  # None once there is a graph, or something was said
        self._why_no_graph = "it has no Python code that smelt could capture"

    def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `function` with this region active."""
        return self.entering(function)(*args, **kwargs)

    def entering(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that calls `function` with this region active: one layer, as every call goes through it."""
        native, enter, suspended = self.native, self.native.enter, _native.suspended
        grad_mode = torch.is_grad_enabled
        trials = [Trial(function, native, lambda: self._seconds) for _ in range(2)] if self._tries else []
        self._trials += trials
        dispatch_modes, function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
        transforms = torch._C._are_functorch_transforms_active

        def compiled(*args: Any, **kwargs: Any) -> Any:
            counters["calls"] += 1
            try:
                if native.scattered and trials:
                    trial = trials[grad_mode()]
                    if trial.calls_to_leave and config.leave_slow_code:
                        trial.calls_to_leave -= 1
                        counters["calls_left_to_eager"] += 1
                        return suspended(function, *args, **kwargs)
                if dispatch_modes() or (function_modes() and _watched()) or transforms():
                    result = _under_modes(function, args, kwargs)
                    self._why_no_graph = _MODES_ACTIVE
                elif native.scattered and trials:
                    result = trials[grad_mode()].call(args, kwargs)
                else:
                    result = enter(function, args, kwargs)
            except BaseException as error:
                error.__traceback__ = without_smelt(error.__traceback__)
                raise
            if self._calls_without_graph is not None:
                self._count_without_graph(function)
            return result

        mark_entered(compiled, function, self.settings, self.fullgraph)
        return opaque(compiled)

    def _count_without_graph(self, function: Callable[..., Any]) -> None:
        if self._calls_without_graph is None or _native.Region.held():
            return
        self._calls_without_graph += 1
        if self._calls_without_graph < CALLS_BEFORE_WARNING:
            return
        name, calls = getattr(function, "__qualname__", repr(function)), self._calls_without_graph
        self._calls_without_graph = None
        warn(
            f"SM016: {name} was called {calls} times, and nothing of it was captured: it runs in Python. The reason: "
            f"{self._why_no_graph}."
        )

    def reset(self) -> None:
        """Forget everything compiled."""
        with _native.Held(self._lock):
            self.native.clear()
            self._resumed.clear()
            self._skipped.clear()
            self._idle.clear()
            self._raised.clear()
            self._histories.clear()
            self._compiling_calls.clear()
            self.native.scattered = False
            for trial in self._trials:
                trial.begin()
            self._relaxed_fullgraph = self._out_of_memory = self._warned_of_stack = False
            self._calls_without_graph = 0

    def why_left(self) -> list[str]:
        """Why functions of this region are left to eager, one reason each."""
        return [trial.reason for trial in self._trials if trial.reason]

    def _missed(self, function: types.FunctionType, slots: tuple[Any, ...]) -> "_native.Entry | None":
        """A frame that no entry fits: an entry for it, or None to let CPython run it."""
        code = function.__code__
        if code in self._skipped or self._out_of_memory or _watched():
            return None
        if frame_runs_alone(code):
            self.native.alone(code)
            return None
        if self._calls_without_graph is not None:
            self._why_no_graph = f"{code.co_qualname} ({code.co_filename}) is left to Python"
        if code.co_name in _MODE_HANDLERS or not frame_is_worth_capturing(code) or DISABLED in function.__dict__:
            self.native.never(code)
            return None
        if calls_library_hooks(function, slots):
            return None
        if replaced_underneath() is not None or not self._has_stack(code.co_qualname):
            return None
        entry: _native.Entry | None = _native.preserving_state(self._made_for, function, slots)
        return entry

    def _made_for(self, function: types.FunctionType, slots: tuple[Any, ...]) -> "_native.Entry | None":
        code = function.__code__
        frames = [LiveFrame(function, decode(code), 0, list(slots), [])]
        tell_of_monitoring(code.co_qualname)
        with _native.Held(self._lock):
            known = self.native.entries(code)
            state = flat(frames)
            for entry in known:
                if entry.guards.check(state) is not None:
                    return entry
            captured = None if known else self._load(frames[0])
            captured = captured or self._capture(frames, code, [entry.guards for entry in known])
            if captured is None:
                return None
            native_entry = self._entry(captured)
            self.native.add(code, native_entry)  # before another thread looks
            return native_entry

    def _has_stack(self, name: str) -> bool:
        """Whether this thread's stack is large enough to compile on; says so, once, if it is not."""
        reason = why_not_compile(_native.stack_left())
        if reason is not None and not self._warned_of_stack:
            self._warned_of_stack = True
            warn(f"SM020: a graph of {name} could not be compiled and runs in Python. {reason}.")
        return reason is None

    def _load(self, frame: LiveFrame) -> Captured | None:
        """What an earlier process made of a function that is called for the first time."""
        code = frame.info.code
        if self.capture_store is None or code in self._histories:
            return None
        with timed("load", code.co_qualname):
            history = History()
            loaded = self.capture_store.load(frame, history)
        if loaded is None:
            return None
        self._histories[code] = history
        self._calls_without_graph = None
        return Captured(loaded.guards, loaded.plan, loaded.entry_state, True)

    def _entry(self, captured: Captured) -> "_native.Entry":
        """Where nothing is to be done but to run the graph, C does it."""
        plan, entry_state = captured.plan, captured.entry_state
        computation = plan.computation
        result = what_is_returned(plan) if isinstance(plan, Return) and entry_state.open else None
        if result is None or computation.run is None:
            return _native.Entry(captured.guards, self._runner(captured))

        def failed(error: Exception, *collected: Any) -> Any:
            return self._recover(captured, computation.failed(error), collected)

        restore = computation.restore_entry
        return _native.Entry(captured.guards, computation.run, computation.arguments, result, failed, restore)

    def _runner(self, captured: Captured) -> Callable[..., Any]:
        plan, entry_state = captured.plan, captured.entry_state

        def run(*collected: Any) -> Any:
            try:
                return drive(self, plan, collected) if isinstance(plan, Stop) else plan.finish(collected)
            except GraphFailed as raised:
                failure = raised.with_traceback(None)
            return self._recover(captured, failure, collected)

        if entry_state.open:
            return run
        holds = entry_state.checker()
        return lambda *collected: (
            run(*collected) if holds(collected) else run_eagerly(self, entry_state.state(collected))
        )

    def _recover(self, captured: Captured, failure: GraphFailed, collected: tuple[Any, ...]) -> Any:
        """A graph raised. If it met sizes that it is not for, another is; else Python runs the state and raises."""
        frames, met = captured.entry_state.state(collected), failure.error
        for place in range(MAX_SIZE_VARIANTS):
            if failure.irreversible or not isinstance(met, SizesMissed):
                break
            version = self._version(captured, place, frames, met.values)
            if version is None:
                break
            plan, values = version
            try:
                return plan.finish(values) if isinstance(plan, Return) else drive(self, plan, values)
            except GraphFailed as raised:
                failure = raised.with_traceback(None)
            met = failure.error
        return recover(self, captured.entry_state, failure, collected)

    def _version(
        self, captured: Captured, place: int, frames: list[LiveFrame], sizes: tuple[int, ...]
    ) -> tuple[Plan, tuple[Any, ...]] | None:
        """The plan and the inputs of a version for sizes that data told; None where the state fits none."""
        version = captured.others[place] if place < len(captured.others) else None
        version = version or _native.preserving_state(self._captured_for, captured, place, frames, sizes)
        values = None if version is None else version.guards.check(flat(frames))
        if version is None or values is None or not version.entry_state.holds(values):
            return None
        return version.plan, values

    def _captured_for(
        self, captured: Captured, place: int, frames: list[LiveFrame], sizes: tuple[int, ...]
    ) -> Captured | None:
        """One more version of a graph, for sizes that data told."""
        with _native.Held(self._lock):
            if place < len(captured.others):
                return captured.others[place]
            key = (frames[-1].info.code, "sizes that data told")
            version = None if key in self._skipped else self._capture(frames, key, [], from_data=sizes)
            if version is not None:
                captured.others.append(version)
            return version

    def plan_for_sizes(
        self, frames: list[LiveFrame], plan: Plan, place: int, error: BaseException
    ) -> tuple[Plan, tuple[Any, ...]] | None:
        """How to go on from a state whose plan met sizes that it is not for: by one more version of it."""
        known = self._resumed.get(key_of(frames), ())
        captured = next((each for each in known if each.plan is plan), None)
        if captured is None or not isinstance(error, SizesMissed) or place >= MAX_SIZE_VARIANTS:
            return None
        return self._version(captured, place, frames, error.values)

    def plan_for(self, frames: list[LiveFrame]) -> tuple[Plan, tuple[Any, ...]] | None:
        """How to go on from a state after a break: a plan and its inputs, or None to let CPython finish the frame."""
        if self._out_of_memory or _watched() or _native.Region.held() or replaced_underneath() is not None:
            return None
        key, state = key_of(frames), flat(frames)
        known = self._find(key, state)
        if known is not None or key in self._skipped or not self._has_stack(frames[-1].info.code.co_qualname):
            return known
        planned: tuple[Plan, tuple[Any, ...]] | None = _native.preserving_state(self._planned, frames, key, state)
        return planned

    def _planned(self, frames: list[LiveFrame], key: StateKey, state: list[Any]) -> tuple[Plan, tuple[Any, ...]] | None:
        with _native.Held(self._lock):
            planned = self._find(key, state)
            if planned is not None or key in self._skipped:
                return planned
            known = self._resumed.setdefault(key, [])
            captured = self._capture(frames, key, [each.guards for each in known])
            if captured is None:
                return None
            known.append(captured)
        collected = captured.guards.check(state)
        return None if collected is None else (captured.plan, collected)

    def _find(self, key: StateKey, state: list[Any]) -> tuple[Plan, tuple[Any, ...]] | None:
        for captured in self._resumed.get(key, ()):
            collected = captured.guards.check(state)
            if collected is not None and captured.entry_state.holds(collected):
                return captured.plan, collected
        return None

    def _capture(
        self, frames: list[LiveFrame], key: Any, known: "list[_native.Guards]", from_data: tuple[int, ...] = ()
    ) -> Captured | None:
        names = user_names(frames[-1])
        name, follow_loops = names.function, True
        if known:
            reason = known[-1].explain(flat(frames)) or "none of the earlier versions fits"
            follow_loops = PLACE not in reason and len(known) < 2
            reason = names.translated(reason)
            count("recompiles")
            frame = frames[-1]
            resumed = len(frames) > 1 or frame.index != 0
            record = RecompileRecord(name, reason, *names.place(frame), len(known) + 1, resumed)
            emit("recompiles", str(record), record)
            if len(known) >= config.cache_size_limit:
                self._give_up(
                    key,
                    f"SM011: {name} was compiled {len(known)} times (cache_size_limit); where no version fits it runs "
                    f"in Python from now on. What keeps changing: {reason}. Hint: {record.hint}.",
                )
                return None
        if self._compiles_without_end(frames[0].info.code, key):
            return None
        began = time.perf_counter()
        try:
            with timed("capture and compile", name):
                history = self._histories.setdefault(key, History())
                keep = None if self.capture_store is None or known else self.capture_store.saver(frames[0], history)
                captured = capture(
                    frames,
                    self.compile_graph,
                    fullgraph=self.fullgraph and not self._relaxed_fullgraph,
                    dynamic=self.dynamic,
                    settings=self.settings,
                    history=history,
                    follow_loops=follow_loops,
                    keep=keep if not from_data else None,
                    from_data=from_data,
                )
        except SkipFrame as reason:
            self._skipped.add(key)
            count("frames_skipped")
            emit("breaks", f"{name} runs eagerly: {reason}", reason)
            self._why_no_graph = f"{name} cannot be captured: {reason}"
            return None
        except (GraphBreakError, ChipFailed):
            raise
        except Exception as error:
            self._failed(error, key, name)
            # What is called there would fare no better.
            self._out_of_memory = isinstance(error, NotEnoughMemory | MemoryError)
            return None
        finally:
            self._seconds += time.perf_counter() - began
        return None if self._is_idle(captured, frames, key) else captured

    def _compiles_without_end(self, code: types.CodeType, key: Any) -> bool:
        """Whether call after call compiled something for a function, each time for another place behind a break: the
        limit of versions is one of each place, and there may be as many places as there are frames on the way."""
        last, calls = self._compiling_calls.get(code, (-1, 0))
        calls += last != counters["calls"]
        self._compiling_calls[code] = counters["calls"], calls
        most = _COMPILING_CALLS * config.cache_size_limit
        if calls <= most:
            return False
        if calls == most + 1 and last != counters["calls"]:
            warn(
                f"SM011: {code.co_qualname} was compiled further in each of {most} calls ({_COMPILING_CALLS} times "
                "cache_size_limit); where no version fits it runs in Python from now on. Hint: smelt.explain lists its "
                "graph breaks; the values behind them change from call to call."
            )
        self._skipped.add(key)
        self._relaxed_fullgraph = True
        return True

    def _is_idle(self, captured: Captured, frames: list[LiveFrame], key: Any) -> bool:
        """Whether CPython does better with this state; after a few such answers it is skipped for good."""
        plan = captured.plan
        if plan.computation.run is not None:
            self._calls_without_graph = None
            return False
        if isinstance(plan, Stop):
            self._why_no_graph = str(plan.record)
        elif captured.saw_tensors:
            self._calls_without_graph = None  # all of it is captured, and there is nothing to compute
        if isinstance(plan, Return):
            idle, counts = False, True
        elif plan.record.code in EXPECTED_TO_RAISE:
            self._raised[key] = self._raised.get(key, 0) + 1
            if self._raised[key] >= config.cache_size_limit:
                self._skipped.add(key)  # what was compiled for calls that do not raise stays
            return True
        else:
            idle = counts = plan.eager or not (captured.saw_tensors or _may_compute(frames[-1]))
        if counts:
            self._idle[key] = self._idle.get(key, 0) + 1
            if self._idle[key] >= _ENOUGH_IDLE:
                self._skipped.add(key)
                if len(frames) == 1 and frames[0].index == 0:
                    self.native.never(frames[0].info.code)
        if idle:
            count("frames_skipped")
        return idle

    def _failed(self, error: Exception, key: Any, name: str) -> None:
        """Capture never runs user code, so this is the compiler's own fault, not the program's."""
        if not (config.suppress_errors and self.fallback):
            raise error
        detail = "".join(traceback.format_exception(error)) if config.verbose else f"{type(error).__name__}: {error}"
        self._give_up(key, f"SM020: a graph of {name} could not be compiled and runs in Python. {detail}")

    def _give_up(self, key: Any, text: str) -> None:
        self._skipped.add(key)
        self._relaxed_fullgraph = True
        self._calls_without_graph = None
        warn(text)


_MODES_ACTIVE = "a torch function or dispatch mode, or a transform of torch.func, is active"


def _under_modes(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call in plain Python, and say so: `torch.set_default_device` is such a mode, and lasts."""
    count("calls_under_modes")
    name = getattr(function, "__qualname__", repr(function))
    emit("breaks", f"{name} runs in Python: {_MODES_ACTIVE} (hint: compile outside it)")
    return _native.suspended(function, *args, **kwargs)


def _watched() -> bool:
    """Whether a mode, a transform or a JIT tracer is to see, and may change, every operator: kernels would go past it.
    Or whether a class of tensors, such as `DTensor`, runs an operator: autograd is off there.

    A default device is a mode too, but one that capture knows.
    """
    if torch._C._len_torch_dispatch_stack() or torch._C._are_functorch_transforms_active() or torch._C._is_tracing():
        return True
    if torch._C._dispatch_tls_local_exclude_set().has(torch._C.DispatchKey.Functionalize):
        return True
    return torch._C._len_torch_function_stack() > 0 and default_devices() is None


def _may_compute(frame: LiveFrame) -> bool:
    """Whether tensors or modules are within the frame's reach at first sight."""
    held = [item for value in frame.slots for item in (value if type(value) in (tuple, list) else (value,))]
    held += [item for value in frame.slots if type(value) is dict for item in value.values()]
    return any(issubclass(type(value), torch.Tensor | torch.nn.Module) for value in held)
