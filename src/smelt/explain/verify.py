"""`smelt.verify(model, args)`: run a program by every backend and say whether, and where, they differ from eager.

    >>> print(smelt.verify(model, (x,)))
    eager       right   3 values, largest error 0.3 times the expected one
    aot_eager   right   …
    llvm        WRONG   gradient of weight: off by 0.5 at [3, 1] (-0.25, eager has 0.25), expected 5e-7

What is expected of a backend is an error against the same program in float64 of at most twice eager's plus 4 ulp of the
tensor's largest value; rounding varies, so it is called wrong beyond 16 times that. A gradient may be off by the
rounding of the largest gradient too: one that cancels to nothing, as of a bias before a batch norm, is made of terms of
that size. A program that draws random numbers draws the same ones in float64. Where there is no float64 program (it
sets dtypes explicitly, or draws other numbers in float64) a backend is compared with eager itself: by the tolerances of
`torch.testing`, plus twice what eager's result moves by when the last bit of every operator's result changes. The model
and its arguments stay unchanged.
"""

import contextlib
import copy
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from smelt.base.errors import SmeltError
from smelt.base.fast_dataclass import dataclass
from smelt.device import random_state
from smelt.explain.rerun import Nudged, Recorded, replayed

Compile = Callable[..., Any]

_LOOSE = {torch.float16: 1e-3, torch.bfloat16: 1.6e-2, torch.float32: 1.3e-6, torch.float64: 1e-7}  # torch.testing's
_SLACK = 16  # how many times the expected error is still taken for rounding


@dataclass(frozen=True, slots=True)
class Found:
    """One compared value: `error` is relative to the expected error, `fault` describes a wrong value."""

    name: str  # "output[0]", "gradient of layers.0.weight", "layers.1.running_mean afterwards"
    error: float  # the largest, as a multiple of the expected error
    fault: str | None  # in words, if it is wrong


@dataclass(frozen=True, slots=True)
class Verdict:
    """The comparison of one backend with eager."""

    backend: str
    compared: tuple[Found, ...]
    failure: str | None = None  # what it raised, if it did

    @property
    def right(self) -> bool:
        """Whether it ran without an error, and every value is within tolerance."""
        return self.failure is None and all(each.fault is None for each in self.compared)

    def __str__(self) -> str:
        if self.failure is not None:
            return f"{self.backend:11} FAILED  {self.failure}"
        faults = [f"{each.name}: {each.fault}" for each in self.compared if each.fault is not None]
        if faults:
            more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
            return f"{self.backend:11} WRONG   {faults[0]}{more}"
        worst = max((each.error for each in self.compared), default=0.0)
        count = len(self.compared)
        return f"{self.backend:11} right   {count} values, largest error {worst:.2g} times the expected one"


@dataclass(frozen=True, slots=True)
class Verification:
    """The comparison of every backend with eager. `ok` is True if all are right; `str()` has a line for each."""

    verdicts: tuple[Verdict, ...]
    reference: str

    @property
    def ok(self) -> bool:
        """Whether every backend is right."""
        return all(verdict.right for verdict in self.verdicts)

    @property
    def first_wrong(self) -> Verdict | None:
        """The first backend that differs from eager: the error is in the stage that it adds."""
        return next((verdict for verdict in self.verdicts if not verdict.right), None)

    def __str__(self) -> str:
        lines = [*map(str, self.verdicts), f"compared with {self.reference}"]
        if self.first_wrong is not None and self.first_wrong.backend in _STAGES:
            lines.append(_STAGES[self.first_wrong.backend])
        return "\n".join(lines)


_STAGES = {
    "eager": "look at capture: SMELT_LOGS=graph,guards,breaks",
    "aot_eager": "look at autograd: SMELT_LOGS=joint,forward,backward",
    "llvm": "look at simplify, fuse and codegen: `smelt bisect` finds the rewrite",
}


class Judge:
    """Eager's answer and the float64 one, with which any number of ways to run the program are compared."""

    def __init__(
        self, model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], compile: Compile
    ) -> None:
        self._model = model
        self._compile = compile
        self._program = _Program(model, args, kwargs)
        self._eager = self._program.run(model)
        self.random = not _equal(self._eager, self._program.run(model, seed=1))
        self._moved: dict[str, Any] | None = None
        try:
            self._exact, self.reference = self._in_double(), "the same program in float64"
            if self.random:
                self.reference += ", with the same random numbers"
        except Exception as error:  # a dtype is written into the program, or it draws other random numbers in float64
            self._exact = {}
            self.reference = (
                f"eager, as the program does not run in float64 ({_first_line(error)}); the bound includes eager's own "
                "error: how far its results move when the last bit of every operator's result changes"
            )

    def verdict(self, backend: str, options: Mapping[str, Any]) -> Verdict:
        """Run it by a backend and look at what came out."""
        settings = {**options, "eager_random": True} if self.random else dict(options)
        try:
            mine = self._program.run(self._compile(self._model, backend=backend, options=settings))
        except Exception as error:
            return Verdict(backend, (), _first_line(error))
        return Verdict(backend, tuple(self._compare(mine)))

    def _in_double(self) -> dict[str, Any]:
        if not self.random:
            return self._program.run(self._model, double=True)
        draws = Recorded()
        self._program.run(self._model, around=lambda: draws)
        return self._program.run(self._model, double=True, around=lambda: replayed(draws.drawn))

    def _own_error(self, name: str) -> float:
        """How far eager's value moves when the last bit of every operator's result changes."""
        if self._moved is None:
            self._moved = self._program.run(self._model, around=Nudged)
        eager, moved = self._eager[name], self._moved.get(name)
        if not isinstance(moved, torch.Tensor) or moved.shape != eager.shape:
            return 0.0
        return _largest((moved - eager).to(torch.complex128 if eager.is_complex() else torch.float64))

    def _compare(self, mine: dict[str, Any]) -> Iterator[Found]:
        gradients = [_largest(value) for name, value in self._exact.items() if name.startswith("gradient of ")]
        for name, theirs in self._eager.items():
            if name not in mine:
                yield Found(name, float("inf"), "is missing")
                continue
            ours, exact = mine[name], self._exact.get(name)
            if isinstance(theirs, torch.Tensor) and isinstance(ours, torch.Tensor):
                terms = max(gradients) if exact is not None and name.startswith("gradient of ") else 0.0
                if isinstance(exact, torch.Tensor) and exact.shape == theirs.shape:
                    yield _compare_tensor(name, ours, theirs, exact, terms=terms)
                else:
                    yield _compare_tensor(name, ours, theirs, theirs, own_error=self._own_error(name))
            elif type(ours) is not type(theirs):
                yield Found(name, float("inf"), f"is {type(ours).__name__}, eager has {type(theirs).__name__}")
            elif isinstance(theirs, int | float | str | bytes | None) and ours != theirs:
                yield Found(name, float("inf"), f"is {ours!r}, eager has {theirs!r}")
            else:
                yield Found(name, 0.0, None)
        for name in mine.keys() - self._eager.keys():
            yield Found(name, float("inf"), "is not there in eager")


def verify(judge: Judge, backends: Sequence[str], options: Mapping[str, Any]) -> Verification:
    """The verdict on each backend."""
    return Verification(tuple(judge.verdict(backend, options) for backend in backends), judge.reference)


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


class _Program:
    """A program with all it starts from, to be run any number of times from the same state."""

    def __init__(self, model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.arguments = (tuple(args), dict(kwargs))
        self.modules = list(_modules_of(model))

    def run(
        self,
        function: Callable[..., Any],
        seed: int = 0,
        double: bool = False,
        around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> dict[str, Any]:
        """Everything it returns, by name: outputs, gradients, and mutated tensors. `around` is entered for the
        call and its backward."""
        with _restored(self.modules) as state, random_state.kept():
            leaves: dict[str, torch.Tensor] = {}
            if double:
                _widen(state.values())
            for name, tensor in state.items():
                tensor.grad = None
                leaves[name] = tensor
            args, kwargs = _copied(self.arguments, "argument", double, leaves)
            torch.manual_seed(seed)
            with around():
                returned = dict(_flattened(function(*args, **kwargs), "output"))
                _backward(returned.values())
            values = {name: _plain(value) for name, value in returned.items()}
            for name, leaf in leaves.items():
                if leaf.grad is not None:
                    values[f"gradient of {name}"] = _plain(leaf.grad)
                if not isinstance(leaf, torch.nn.Parameter):
                    values[f"{name} afterwards"] = _plain(leaf)
            return values


def _modules_of(function: Callable[..., Any]) -> Iterator[torch.nn.Module]:
    """The modules whose state a call may read or write: itself, its object, those in its closure and its globals."""
    if isinstance(function, torch.nn.Module):
        yield function
    elif isinstance(function, types.MethodType):
        if isinstance(function.__self__, torch.nn.Module):
            yield function.__self__
    elif isinstance(function, types.FunctionType):
        names = inspect.getclosurevars(function)
        for value in (*names.nonlocals.values(), *names.globals.values()):
            if isinstance(value, torch.nn.Module):
                yield value


@contextlib.contextmanager
def _restored(modules: Sequence[torch.nn.Module]) -> Iterator[dict[str, torch.Tensor]]:
    """Parameters and buffers by name; whatever happens to them inside is undone."""
    state: dict[str, torch.Tensor] = {}
    for number, module in enumerate(modules):
        prefix = f"{type(module).__name__} " if number else ""
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            state[prefix + name] = tensor
    originals = [(tensor, tensor.data, tensor.data.clone(), tensor.grad) for tensor in state.values()]
    try:
        yield state
    finally:
        for tensor, data, content, grad in originals:
            tensor.grad = None
            tensor.data = data
            tensor.data.copy_(content)
            tensor.grad = grad


def _widen(tensors: Iterable[torch.Tensor]) -> None:
    for tensor in tensors:
        if tensor.is_floating_point():
            tensor.grad = None
            tensor.data = tensor.data.double()


def _copied(value: Any, name: str, double: bool, leaves: dict[str, torch.Tensor]) -> Any:
    """Arguments of their own for a run; their tensors are noted in `leaves`."""
    if isinstance(value, torch.Tensor):
        fresh = value.detach().clone()
        if double and fresh.is_floating_point():
            fresh = fresh.double()
        leaves[name] = fresh.requires_grad_(value.requires_grad)
        return fresh
    if type(value) in (tuple, list):
        return type(value)(_copied(item, f"{name}[{place}]", double, leaves) for place, item in enumerate(value))
    if type(value) is dict:
        return {key: _copied(item, f"{name}[{key!r}]", double, leaves) for key, item in value.items()}
    if isinstance(value, torch.nn.Module):
        module = copy.deepcopy(value)
        module = module.double() if double else module
        leaves.update((f"{name}.{inner}", tensor) for inner, tensor in module.named_parameters())
        return module
    return copy.deepcopy(value)


def _flattened(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The tensors and plain values in what a program returned, by name."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flattened(item, f"{name}[{key!r}]")
    elif isinstance(value, tuple | list):
        for place, item in enumerate(value):
            yield from _flattened(item, f"{name}[{place}]")
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from _flattened(getattr(value, each.name), f"{name}.{each.name}")
    else:
        yield name, value


def _backward(values: Iterable[Any]) -> None:
    """Send a gradient into every output that takes one; the same in every run."""
    total: torch.Tensor | None = None
    for number, value in enumerate(values):
        if isinstance(value, torch.Tensor) and value.requires_grad and value.is_floating_point():
            generator = torch.Generator().manual_seed(number)
            weights = torch.randn(value.shape, generator=generator, dtype=torch.float32).to(value.device, value.dtype)
            part = (value * weights).sum()
            total = part if total is None else total + part.to(total.dtype)
    if total is not None:
        total.backward()  # type: ignore[no-untyped-call]


def _plain(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _equal(first: dict[str, Any], second: dict[str, Any]) -> bool:
    def same(a: Any, b: Any) -> bool:
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            return a.shape == b.shape and bool(torch.allclose(a, b, rtol=0, atol=0, equal_nan=True))
        return type(a) is type(b)

    return first.keys() == second.keys() and all(same(value, second[name]) for name, value in first.items())


def _largest(value: torch.Tensor) -> float:
    finite = value[value.isfinite()].abs()
    return float(finite.max()) if finite.numel() else 0.0


def _compare_tensor(
    name: str,
    ours: torch.Tensor,
    theirs: torch.Tensor,
    exact: torch.Tensor,
    terms: float = 0.0,
    own_error: float = 0.0,
) -> Found:
    for what in ("dtype", "shape", "device"):
        if getattr(ours, what) != getattr(theirs, what):
            return Found(name, float("inf"), f"{what} {getattr(ours, what)}, eager has {getattr(theirs, what)}")
    if not (ours.is_floating_point() or ours.is_complex()):
        wrong = ours != theirs
        return Found(name, float(bool(wrong.any())), _where(wrong, ours, theirs) if wrong.any() else None)
    wide = torch.complex128 if ours.is_complex() else torch.float64
    odd = ~theirs.isfinite()
    strange = (odd != ~ours.isfinite()) | (odd & ~((ours == theirs) | (ours.isnan() & theirs.isnan())))
    if strange.any():
        return Found(name, float("inf"), _where(strange, ours, theirs))
    exact = torch.where(odd, torch.zeros((), dtype=wide), exact.to(wide))
    mine, eager = (torch.where(odd, torch.zeros((), dtype=wide), each.to(wide)) for each in (ours, theirs))
    scale = _largest(exact)
    if exact.equal(eager):
        expected = _LOOSE.get(ours.dtype, 1e-7) * scale + 2 * own_error + 1e-30
    else:
        real = torch.finfo(ours.dtype)
        expected = 2 * float((eager - exact).abs().max()) + real.eps * (4 * scale + terms) + real.tiny
    off = (mine - exact).abs()
    error = float(off.max()) / expected if off.numel() else 0.0
    if error <= _SLACK:
        return Found(name, error, None)
    return Found(name, error, f"{_where(off == off.max(), ours, theirs)}, expected {expected:.2g}")


def _where(wrong: torch.Tensor, ours: torch.Tensor, theirs: torch.Tensor) -> str:
    place = tuple(wrong.nonzero()[0].tolist())
    mine, eager = ours[place].item(), theirs[place].item()
    off = f"off by {abs(mine - eager):.3g} " if not isinstance(mine, bool) else ""
    return f"{off}at {list(place)} ({mine}, eager has {eager})"


def check_callable(model: object) -> None:
    """What `smelt.verify` and `smelt.bisect` are given must be a program."""
    if not callable(model):
        raise SmeltError("SM001", f"this takes a function or an nn.Module, not {type(model).__name__}")
