"""Fake tensors: everything of a tensor but its data.

A `FakeTensor` has a real tensor's shape, strides, dtype, device and `requires_grad`, runs through PyTorch's own
dispatcher (autograd, composite operators, functionalization), and never holds data. `FakeMode` makes every operator
under it return fake tensors; `Recorder` also writes what it saw into an `fx.Graph`.

    with Recorder() as recorder:
        x = recorder.placeholder("x", TensorSpec.of(torch.ones(2, 3)))
        y = torch.relu(x) + 1          # recorder.graph now holds aten.relu.default, aten.add.Tensor

Metadata comes from `meta.rules` where it has a rule, otherwise from PyTorch's meta kernels, many of which are Python
and cost up to a millisecond; their answer is kept by operator and argument metadata, so the second layer of a model
asks no more.
"""

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import fx
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from smelt.base.torch_originals import originals_of_tensors
from smelt.device.host_library import HOST, on_host
from smelt.ir.graph import add_node
from smelt.ir.symbolic_numbers import NumberWriter
from smelt.ir.tensorspec import NodeSpec, NumberSpec, TensorSpec, UnplacedSpec, set_spec, spec_of_value
from smelt.meta.devices import result_device, result_devices, tensors_in
from smelt.meta.layout_probe import tried
from smelt.meta.rules import describe
from smelt.meta.sparse import yields_sparse
from smelt.symbolic.expressions import Expression, ShapeEnv
from smelt.symbolic.symnode import Formula, as_number, example_of, is_symbolic, meaning, surely_equal
from smelt.symbolic.symsize import from_symbolic, is_symbolic_size

# Operators that change nothing but the sizes and strides of their argument. PyTorch uses them within others: a vector
# times a matrix is the product of a row, squeezed.
_RESHAPES_IN_PLACE = frozenset(
    {
        torch.ops.aten.squeeze_.default,
        torch.ops.aten.squeeze_.dim,
        torch.ops.aten.squeeze_.dims,
        torch.ops.aten.unsqueeze_.default,
        torch.ops.aten.t_.default,
        torch.ops.aten.transpose_.default,
    }
)

_META = torch.device("meta")
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_active_mode = torch._C._get_dispatch_mode

# Namespaces of operators that call nothing of the program's.
_BUILT_IN = frozenset({"aten", "prims", "profiler", "quantized", "mkldnn"})


class FakeTensorError(Exception):
    """An operator whose result cannot be described without data: `.item()`, `nonzero`, resizing in place."""


class FakeTensor(torch.Tensor):
    """A tensor without data. `node` is the graph node that returns it, once a `Recorder` has seen it."""

    node: fx.Node | None

    @staticmethod
    def __new__(cls, spec: TensorSpec, node: fx.Node | None = None) -> "FakeTensor":
        fake: FakeTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            spec.shape,
            strides=spec.stride,
            storage_offset=spec.offset,
            dtype=spec.dtype,
            device=spec.device,
            requires_grad=spec.requires_grad,
        )
        fake.node = node
        return fake

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"fake tensor {TensorSpec.of(self)}"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return propagate(func, args, kwargs or {})


_NO_OTHERS = frozenset({FakeTensor, torch.Tensor})  # the second where a node of autograd's graph is called


class FakeMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Under this mode every operator, factories such as `torch.arange` included, returns fake tensors."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Otherwise PyTorch wraps the handler below in a decorator that imports its compiler, seconds of it."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        answer = by_others(func, types, args, kwargs)
        return propagate(func, args, kwargs or {}) if answer is OURS else answer


OURS = object()


def by_others(func: Any, types: Sequence[type], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> Any:
    """What others make of an operator; `OURS` if it is no concern of theirs.

    A class of tensors may answer for itself, as `DTensor` does: what it makes of the operator comes here in turn. On
    the way it asks PyTorch's fake tensors for shapes: that is no part of the program.
    """
    if _active_mode(_FAKE) is not None:
        return func(*args, **kwargs or {})
    return OURS if _NO_OTHERS.issuperset(types) else NotImplemented


@contextlib.contextmanager
def running_plainly() -> Iterator[None]:
    """Functions compiled by smelt run in plain Python wherever a mode is active. They have to where an operator of the
    program calls them while it is asked for the shapes of its results; so there is one, which sees nothing."""
    with FakeMode(), no_dispatch():  # type: ignore[no-untyped-call]
        yield


@contextlib.contextmanager
def without_caller_hooks() -> Iterator[None]:
    """Run with none of the caller's debugging or saving hooks, which are not to see fake tensors, and put them back."""
    anomaly, check_nan = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    hooks: list[Any] = []
    while (top := torch._C._autograd._top_saved_tensors_default_hooks(True)) is not None:
        hooks.append(top)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    torch.set_anomaly_enabled(False)
    for name, original in originals_of_tensors().items():
        setattr(FakeTensor, name, original)  # fake tensors are no tensors of the program's
    try:
        yield
    finally:
        torch.set_anomaly_enabled(anomaly, check_nan)
        for pack, unpack in reversed(hooks):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


def _is_copy_of_number(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether a number is copied as if it were a tensor: PyTorch's batching rules convert them so."""
    return func is torch.ops.aten._to_copy.default and type(args[0]) in _NUMBERS


def _full(number: Any, options: Mapping[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The call that makes a tensor of a number."""
    dtype = options.get("dtype") or _NUMBERS[type(number)]
    return torch.ops.aten.full.default, ([], number), {"dtype": dtype, "device": options.get("device") or HOST}


def propagate(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The fake tensors that `func(*args, **kwargs)` would return. Written arguments are returned as they are."""
    if _is_copy_of_number(func, args):
        func, args, kwargs = _full(args[0], kwargs)
    if func is torch.ops.aten.as_strided_.default and isinstance(args[0], FakeTensor):
        return _restrided(*args, **kwargs)
    if func in _RESHAPES_IN_PLACE and isinstance(args[0], FakeTensor):
        with no_dispatch():
            func(*args, **kwargs)
        return args[0]
    if func is torch.ops.aten.is_same_size.default:
        return tuple(args[0].shape) == tuple(args[1].shape)
    if func is torch.ops.aten._has_same_storage_numel.default:
        # Dual numbers ask. A tangent of another layout than its number's is copied: no is as right as yes.
        return (args[0].shape, args[0].stride()) == (args[1].shape, args[1].stride())
    device = result_device(func, args, kwargs)
    template = describe(func, args, kwargs, device)
    if template is NotImplemented and is_composite(func) and not func._schema.is_mutable:
        # Autograd would have decomposed it, and is off. What writes is computed as a whole.
        return func.decompose(*args, **kwargs)
    if template is NotImplemented:
        template = _remembered(func, args, kwargs, device)
    written = _written_arguments(func, args, kwargs)
    if isinstance(template, _SPECS):
        return written[0] if written and written[0] is not None else _fake(template, device)
    if isinstance(template, tuple | list):
        devices = result_devices(func, args, kwargs, len(template)) if type(template) is list else ()
        results = [
            _fake(item, devices[place] if devices else device) if isinstance(item, _SPECS) else item
            for place, item in enumerate(template)
        ]
        if written:
            results = [old if old is not None else new for old, new in zip(written, results, strict=True)]
        return type(template)(results)
    return template


def described(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], device: torch.device) -> Any:
    """What a call on `device` returns: a spec without a device, a tuple or list of them, or something else entirely."""
    template = describe(func, args, kwargs, device)
    return _remembered(func, args, kwargs, device) if template is NotImplemented else template


def _restrided(self: FakeTensor, size: Any, stride: Any, storage_offset: Any = None) -> FakeTensor:
    """`as_strided_` of a fake tensor: PyTorch's own looks whether that fits into the memory, of which there is none."""
    offset: Any = self.storage_offset() if storage_offset is None else storage_offset
    with no_dispatch():
        self.data = FakeTensor(TensorSpec(tuple(size), tuple(stride), self.dtype, self.device, offset))
    return self


_known: dict[Any, Any] = {}
_KNOWN_LIMIT = 10_000  # a process that sees ever new shapes starts over instead of growing


def _remembered(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], device: torch.device) -> Any:
    """The meta kernel's answer, asked once per operator and argument metadata. Threads may both ask; they agree.

    Whose random numbers they are says nothing of their layout, and meta kernels take no generators.
    """
    args = tuple(None if isinstance(value, torch.Generator) else value for value in args)
    kwargs = {name: None if isinstance(value, torch.Generator) else value for name, value in kwargs.items()}
    try:
        key = (func, device, _freeze(args), _freeze(tuple(kwargs.items())))
    except _Symbolic:
        return _ask_in_symbols(func, args, kwargs, device)
    template = _known.get(key)
    if template is None:
        template = _ask(func, args, kwargs, device)
        if len(_known) >= _KNOWN_LIMIT:
            _known.clear()
        _known[key] = template
    return template


def _ask(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], device: torch.device) -> Any:
    """The meta kernel's answer, on the CPU with the strides of a trial where it may not know them."""
    said = _ask_meta_kernel(func, args, kwargs)
    return tried(func, args, kwargs, said) if on_host(device) else said


def _ask_in_symbols(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], device: torch.device) -> Any:
    """The answer in terms of symbols. A meta kernel that cannot do that is given the sizes, which specializes them."""
    if not on_host(device):
        said = _as_on_host(func, args, kwargs)
        if said is not NotImplemented:
            return said
    with contextlib.suppress(RuntimeError, TypeError, ImportError):
        said = _ask(func, args, kwargs, device)
        if said is not NotImplemented:
            return said
    return _ask(func, _specialized(args), {name: _specialized(value) for name, value in kwargs.items()}, device)


def _as_on_host(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What the rule for the CPU says in symbols, where PyTorch's meta kernel says the same of the sizes there are now.

    Meta kernels are written for other devices, but many know no symbols: that of `addmm`, those of norms and losses.
    Dtypes, which sizes do not decide, are the meta kernel's: moments of 16-bit inputs are wider on a GPU.
    """
    with contextlib.suppress(RuntimeError, TypeError, ImportError, FakeTensorError):
        said = describe(func, args, kwargs, HOST)
        if said is NotImplemented:
            return said
        now = {name: _as_example(value) for name, value in kwargs.items()}
        theirs = _ask_meta_kernel(func, _as_example(args), now)
        one = isinstance(said, UnplacedSpec)
        ours, known = ((said,), (theirs,)) if one else (said, theirs)
        if len(ours) != len(known) or not all(map(_same_at_example, ours, known)):
            return NotImplemented
        specs = [spec and replace(spec, dtype=other.dtype) for spec, other in zip(ours, known, strict=True)]
        return specs[0] if one else type(said)(specs)
    return NotImplemented


def _same_at_example(said: Any, theirs: Any) -> bool:
    """Whether both describe one layout of the sizes there are now."""
    if not isinstance(said, UnplacedSpec) or not isinstance(theirs, UnplacedSpec):
        return said is None  # a gradient that nobody asked for, whatever a meta kernel says of it
    sizes = [(*map(example_of, (*spec.shape, *spec.stride, spec.offset)),) for spec in (said, theirs)]
    return sizes[0] == sizes[1]


def _as_example(value: Any) -> Any:
    """The same with the sizes there are now, none of which is relied on."""
    if isinstance(value, torch.Tensor):
        spec = TensorSpec.of(value)
        shape, stride = (tuple(map(example_of, sizes)) for sizes in (spec.shape, spec.stride))
        return FakeTensor(TensorSpec(shape, stride, spec.dtype, spec.device, example_of(spec.offset)))
    if isinstance(value, tuple | list):
        return type(value)(_as_example(item) for item in value)
    return example_of(value)


def _specialized(value: Any) -> Any:
    """The same with every size relied on."""
    if isinstance(value, torch.Tensor):
        spec = TensorSpec.of(value)
        shape, stride = tuple(map(int, spec.shape)), tuple(map(int, spec.stride))
        return FakeTensor(TensorSpec(shape, stride, spec.dtype, spec.device, int(spec.offset)))
    if isinstance(value, tuple | list):
        return type(value)(_specialized(item) for item in value)
    if isinstance(value, torch.SymInt):
        return int(value)
    return float(value) if isinstance(value, torch.SymFloat) else value


def forget() -> None:
    """Drop what is known of operators' results (for `smelt.reset`)."""
    _known.clear()


_SPECS = (UnplacedSpec, TensorSpec)


def _fake(spec: UnplacedSpec | TensorSpec, device: torch.device) -> FakeTensor:
    """One on `device`, unless the operator said itself where its result is."""
    return FakeTensor(spec if isinstance(spec, TensorSpec) else spec.on(device))


class _Symbolic(Exception):
    """A size that differs from call to call."""


def _freeze(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value._has_symbolic_sizes_strides:
            raise _Symbolic
        return (value.shape, value.stride(), value.storage_offset(), value.dtype, value.device)
    if is_symbolic(value):
        raise _Symbolic
    if isinstance(value, tuple | list):
        return tuple(_freeze(item) for item in value)
    if type(value) is float:
        return (float, repr(value))  # tells -0.0 from 0.0, and finds nan again
    return (type(value), value)


def to_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        base = torch.empty(0, dtype=value.dtype, device=_META)
        return base.as_strided(value.shape, value.stride(), value.storage_offset())
    if isinstance(value, tuple | list):
        return type(value)(to_meta(item) for item in value)
    return value


def _ask_meta_kernel(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    meta_args = to_meta(args)
    meta_kwargs = {name: to_meta(value) for name, value in kwargs.items()}
    takes_device = any(argument.name == "device" for argument in func._schema.arguments)
    if takes_device and (kwargs.get("device") is not None or not tensors_in(args)):
        meta_kwargs["device"] = _META
    before = [(tensor.shape, tensor.stride()) for tensor in tensors_in(meta_args)]
    try:
        with contextlib.nullcontext() if func.namespace in _BUILT_IN else running_plainly():
            result = func(*meta_args, **meta_kwargs)
    except (NotImplementedError, ArithmeticError) as missing:  # numbers in Python where the kernel has a tensor's
        raise FakeTensorError(f"{func} has no result that can be known without data") from missing
    after = [(tensor.shape, tensor.stride()) for tensor in tensors_in(meta_args)]
    if any(not _same_layout(one, other) for one, other in zip(before, after, strict=True)):
        raise FakeTensorError(f"{func} changes the shape of its argument in place")
    if isinstance(result, torch.Tensor):
        return _said(func, result)
    if isinstance(result, tuple | list):
        specs = [_said(func, item) if isinstance(item, torch.Tensor) else item for item in result]
        return specs if isinstance(result, list) else tuple(specs)
    if isinstance(result, int | float | bool) and not isinstance(result, torch.Tensor):
        raise FakeTensorError(f"{func} returns a number that depends on data")
    return result


def _said(func: Any, result: torch.Tensor) -> UnplacedSpec | TensorSpec:
    """What a meta kernel said of a result. A custom operator may name a device: that is where its result is."""
    if func.namespace in _BUILT_IN or result.device.type == _META.type:
        return UnplacedSpec.of(result)
    return replace(TensorSpec.of(result), requires_grad=False)


def _same_layout(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    return len(one[0]) == len(other[0]) and all(map(surely_equal, (*one[0], *one[1]), (*other[0], *other[1])))


def _written_arguments(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """For an operator that writes its arguments: per result, the argument it is, or None. Empty if it writes none."""
    schema = func._schema
    if not schema.is_mutable:
        return []
    by_name = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)}
    by_name.update(kwargs)
    alias_of: dict[str, Any] = {}
    for argument in schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            for name in argument.alias_info.before_set:
                alias_of[name] = by_name.get(argument.name)
            _count_list_written(by_name.get(argument.name))
    written: list[Any] = []
    for result in schema.returns:
        names = result.alias_info.before_set if result.alias_info is not None else ()
        written.append(next((alias_of[name] for name in names if name in alias_of), None))
    return written


def _count_list_written(value: Any) -> None:
    """Count a write to each tensor of a list: PyTorch does so only in the kernels that do the work."""
    fakes = [each for each in value if isinstance(each, FakeTensor)] if isinstance(value, list | tuple) else []
    if fakes:
        torch.autograd.graph.increment_version(fakes)


class CallLog(Protocol):
    """Who is told of the calls that a recorder sees."""

    def note(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None: ...


class Recorder(FakeMode):  # type: ignore[no-untyped-call]
    """Writes every operator that reaches it into `graph`, as `call_function` nodes with specs.

    `decompositions` maps an operator, or the name of all its overloads ("aten::_foreach_add"), to a function of its
    arguments; calls of it are recorded as what the function does instead. A decomposition may return `NotImplemented`
    to leave a particular call whole. Composite operators that a decomposition calls are decomposed as well. Real
    tensors beside fake tensors become constants: `get_attr` nodes, in `constants` by name. Inputs are at the head of
    the graph, whenever they are asked for.
    """

    def __init__(self, decompositions: Mapping[Any, Callable[..., Any]] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = fx.Graph()
        self.constants: dict[str, torch.Tensor] = {}
        self._constant_nodes: dict[int, fx.Node] = {}
        self._decompositions = decompositions or {}
        self._decomposition_by_op: dict[Any, Callable[..., Any] | None] = {}
        self._last_input: fx.Node | None = None
        self._given: dict[Any, fx.Node] = {}
        self._numbers = NumberWriter(self.graph, self._given.__getitem__)
        self._sparse: set[fx.Node] = set()
        # Every fake tensor lives as long as the recorder. PyTorch's derivatives keep the sizes of a tensor while they
        # use it (`fft_r2c_backward`), and functionalization replaces it with another fake tensor once it is written.
        self._made: list[Any] = []
        self._log: CallLog | None = None  # is told of calls, with their tensors

    def number_in(self, holder: fx.Node, spec: NumberSpec) -> Any:
        """The number that a tensor of one element holds: a symbol, or a float given at each call."""
        what, shape_env = spec.what, ShapeEnv()
        shape_env.closed = True  # nothing may depend on what the number is
        leaf = what.symbol if isinstance(what, Expression) else what
        if leaf not in self._given:
            node = self._given[leaf] = self.graph.call_function(torch.ops.aten._local_scalar_dense.default, (holder,))
            set_spec(node, spec)
        return as_number(shape_env, what)

    def placeholder(self, name: str, spec: TensorSpec) -> FakeTensor:
        """A new graph input, after those there are and before everything else."""
        node = self._input(name)
        set_spec(node, spec)
        return FakeTensor(spec, node)

    def _input(self, name: str) -> fx.Node:
        after = self._last_input
        with self.graph.inserting_after(after) if after is not None else self.graph.inserting_before(None):
            node = self._last_input = self.graph.placeholder(name)
        return node

    def constant(self, tensor: torch.Tensor) -> FakeTensor:
        """A fake tensor of a real tensor, which the graph refers to by name."""
        return FakeTensor(TensorSpec.of(tensor), self._constant(tensor))

    def node_of(self, value: Any) -> Any:
        """Graph arguments for a value, containers included: fake tensors become nodes, real tensors constants."""
        if isinstance(value, FakeTensor):
            if value.node is None:
                raise FakeTensorError("a fake tensor from outside the recorded graph was used in it")
            return value.node
        if isinstance(value, torch.Tensor):
            return self._constant(value)
        if isinstance(value, tuple | list):
            return type(value)(self.node_of(item) for item in value)
        return self._number_of(value) if is_symbolic(value) else value

    def _number_of(self, number: Any) -> Any:
        """A number that is given to the graph as one is computed in it; a size is what it is, in symbols."""
        what = meaning(number)
        if not isinstance(what, Expression | Formula):
            return bool(number)
        leaves = what.symbols() if isinstance(what, Expression) else what.leaves()
        if all(leaf in self._given for leaf in leaves):
            return self._numbers.write(number)
        if is_symbolic_size(number) and not any(leaf in self._given for leaf in leaves):
            return from_symbolic(number)
        raise FakeTensorError("a number is computed from sizes that differ from call to call")

    def output(self, values: Sequence[Any]) -> None:
        """Close the graph."""
        self.graph.output(tuple(self.node_of(value) for value in values))

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        answer = by_others(func, types, args, kwargs)
        if answer is not OURS:
            return answer
        if _is_copy_of_number(func, args):
            func, args, kwargs = _full(args[0], kwargs)
        try:
            decomposition = self._decomposition_by_op[func]
        except KeyError:
            decomposition = self._decomposition_by_op[func] = self._decomposition_of(func)
        if decomposition is not None:
            result = self.take_apart(func, decomposition, args, kwargs)
            if result is not NotImplemented:
                return result
        result = propagate(func, args, kwargs)
        if type(result) is bool:
            return result  # sizes say so: nothing is computed
        self._made.append(result)
        self.record(func, self.node_of(args), {name: self.node_of(value) for name, value in kwargs.items()}, result)
        if self._log is not None:
            self._log.note(func, args, kwargs, result)
        return result

    def take_apart(
        self, func: Any, decomposition: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """What a decomposition returns, with what it does recorded."""
        with self:
            return decomposition(*args, **kwargs)

    def _decomposition_of(self, func: Any) -> Callable[..., Any] | None:
        decomposition = self._decompositions.get(func) or self._decompositions.get(func._schema.name)
        return func.decompose if decomposition is None and is_composite(func) else decomposition

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Write one call, its arguments as nodes, into the graph and tie the fake tensors in `result` to it."""
        parts = self.write(func, args, kwargs, spec_of_value(result) if func._schema.returns else ())
        if isinstance(result, FakeTensor):
            result.node = parts[0]
        elif isinstance(result, tuple | list):
            for item, node in zip(result, parts, strict=True):
                if isinstance(item, FakeTensor):
                    item.node = node

    def write(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], spec: NodeSpec
    ) -> tuple[fx.Node | None, ...]:
        """Write one call, its arguments as nodes, into the graph: the node of each of its results that is a tensor."""
        node = add_node(self.graph, "call_function", func, args, kwargs, func.overloadpacket.__name__)
        set_spec(node, spec)
        if self._sparse and not self._sparse.isdisjoint(node.all_input_nodes):
            raise FakeTensorError(f"{func} computes with a sparse tensor")
        if yields_sparse(func, args, kwargs):
            self._sparse.add(node)
        if not isinstance(spec, tuple):
            return (node,)
        parts: list[fx.Node | None] = [None] * len(spec)
        for position, item in enumerate(spec):
            if item is not None:
                parts[position] = part = add_node(self.graph, "call_function", operator.getitem, (node, position), {})
                set_spec(part, item)
        return tuple(parts)

    def _constant(self, tensor: torch.Tensor) -> fx.Node:
        node = self._constant_nodes.get(id(tensor))
        if node is None:
            name = f"constant{len(self.constants)}"
            self.constants[name] = tensor  # also keeps the id alive
            node = self.graph.get_attr(name)
            set_spec(node, TensorSpec.of(tensor))
            self._constant_nodes[id(tensor)] = node
        return node


_composites: dict[Any, bool] = {}


def is_composite(func: Any) -> bool:
    """Whether `func` is nothing but a combination of other operators. Asked of all calls, so the answer is kept."""
    known = _composites.get(func)
    if known is None:
        try:
            implicit = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
            known = implicit and not torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CPU")
        except RuntimeError:  # of a method that asks for sizes, which is no operator for the dispatcher
            known = False
        _composites[func] = known
    return known
