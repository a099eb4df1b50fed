"""Function transforms of `torch.func`: the function is followed into a graph of its own, which a node transforms.

    vmap(f)(x)        body(t: f32[3]): …; return (y,)        vmap = Transform("vmap", body)(x: f32[4, 3]); vmap[0]

The body is followed with tensors as the function would see them: without the dimension that is mapped over, say. What
it uses beside its arguments is handed to it as well. It may have no side effects, as checkpointed functions may not.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from smelt.capture.calls.regions.checkpoint import follow
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.model.breaks import Raised, Unsupported
from smelt.capture.model.values import Constant, Mapping, Sequence, Tensor, Value, describe
from smelt.capture.polyfills import transforms
from smelt.capture.tape.subtape import RegionTape
from smelt.ir.graph import GraphLevel, Traced
from smelt.ir.nodes.transform import Transform
from smelt.ir.tensorspec import TensorSpec

Args = list[Value]
_KINDS = (list, tuple)


def _refused(what: str) -> Unsupported:
    return Unsupported("B025", what)


# Trees of tensors.


def _children(interp: Interpreter, value: Value) -> "list[tuple[Any, Value]] | None":
    """The items of a container that transforms look into; None for anything else, which is a leaf."""
    if isinstance(value, Sequence) and (value.kind in _KINDS or hasattr(value.kind, "_fields")):
        return list(enumerate(map(interp.externals.force, interp.externals.items(value))))
    if isinstance(value, Mapping) and value.kind is dict:
        interp.externals.complete(value)
        return [(key, interp.externals.force(item)) for key, item in value.items.items()]
    return None


def _leaves(interp: Interpreter, value: Value) -> list[Value]:
    children = _children(interp, value)
    return [value] if children is None else [leaf for _, item in children for leaf in _leaves(interp, item)]


def _tensors(interp: Interpreter, value: Value) -> list[Tensor]:
    return [leaf for leaf in _leaves(interp, value) if isinstance(leaf, Tensor)]


def _replaced(interp: Interpreter, value: Value, change: Callable[[Value], Value]) -> Value:
    """The same tree with other leaves."""
    children = _children(interp, value)
    if children is None:
        return change(value)
    items = [(key, _replaced(interp, item, change)) for key, item in children]
    if isinstance(value, Mapping):
        return Mapping(dict(items))
    assert isinstance(value, Sequence)
    return Sequence(value.kind, [item for _, item in items])


def _with_tensors(interp: Interpreter, value: Value, tensors: Iterator[Any]) -> Value:
    return _replaced(interp, value, lambda leaf: next(tensors) if isinstance(leaf, Tensor) else leaf)


# The body.


class _Body:
    """A function that is followed with new tensors in the place of some of its arguments'."""

    def __init__(self, interp: Interpreter, *, records: bool = False) -> None:
        self.interp = interp
        self.tape = RegionTape(interp.tape)
        if records:
            self.tape.enter(replace(self.tape.ambient, grad=True))
        self.given: list[Tensor] = []  # what the transformed function is given for each argument

    def argument(self, tensor: Tensor, spec: TensorSpec) -> Tensor:
        self.given.append(tensor)
        return self.tape.argument(f"argument{len(self.given)}", spec, spec.requires_grad)

    def call(self, function: Value, args: Args, kwargs: dict[str, Value]) -> Value:
        try:
            return follow(self.interp, self.tape, function, args, kwargs)
        except Raised:
            raise
        except Unsupported as stop:
            raise _refused(f"{describe(function)}, in which there is a break ({stop.reason}),") from stop

    def transform(self, kind: str, outputs: list[Tensor], last: list[Tensor], **options: Any) -> list[Value]:
        """The node that transforms the body. `last`: what it is given behind all else."""
        self.tape.graph.output(tuple(self.tape.inner(value) for value in outputs))
        body = Traced(self.tape.graph, GraphLevel.TORCH, {})
        args: Args = [*self.given, *self.tape.lifted.values(), *last]
        results = self.interp.tensor_call("call_function", Transform(kind, body, options), args)
        assert isinstance(results, Sequence)
        return list(results.items)


def _places(interp: Interpreter, argnums: Value, count: int) -> tuple[bool, list[int]]:
    """Whether one argument is meant, not a tuple of them, and which."""
    plain = interp.plain(argnums)
    numbers = [plain] if type(plain) is int else list(plain) if isinstance(plain, tuple) else []
    if not numbers or not all(type(number) is int and -count <= number < count for number in numbers):
        raise _refused("a transform by arguments that there are not")
    return type(plain) is int, [number % count for number in numbers]


def _differentiated(body: _Body, args: Args, places: list[int]) -> Args:
    """The arguments with new tensors, which require grad, in those at `places`."""
    arguments = list(args)
    for place in places:
        leaves = _leaves(body.interp, args[place])
        if not leaves or not all(isinstance(leaf, Tensor) and _is_differentiable(leaf) for leaf in leaves):
            raise _refused("a transform by what is no tensor of floats")

        def entered(leaf: Value) -> Value:
            assert isinstance(leaf, Tensor)
            return body.argument(leaf, replace(TensorSpec.of(leaf.fake), requires_grad=True))

        arguments[place] = _replaced(body.interp, args[place], entered)
    return arguments


def _is_differentiable(value: Tensor) -> bool:
    return value.fake.dtype.is_floating_point


def _by_argument(interp: Interpreter, args: Args, one: bool, places: list[int], tensors: Iterator[Any]) -> Value:
    """Something for each argument that was asked for."""
    trees = [_with_tensors(interp, args[place], tensors) for place in places]
    return trees[0] if one else Sequence(tuple, list(trees))


def _beside(interp: Interpreter, result: Value, has_aux: bool) -> tuple[Value, Value]:
    if not has_aux:
        return result, Constant(None)
    if not isinstance(result, Sequence) or result.kind is not tuple or len(result.items) != 2:
        raise _refused("has_aux=True of a function that does not return two")
    value, aux = map(interp.externals.force, result.items)
    return value, aux


def _items(interp: Interpreter, value: Value) -> Args:
    if not isinstance(value, Sequence) or value.kind not in _KINDS:
        raise _refused(f"arguments in {describe(value)}")
    return [interp.externals.force(item) for item in interp.externals.items(value)]


def _named(interp: Interpreter, value: Value) -> dict[str, Value]:
    assert isinstance(value, Mapping)
    return {key: interp.externals.force(item) for key, item in value.items.items()}


def _bound(function: Callable[..., Any], args: Args, kwargs: dict[str, Value]) -> Args:
    assert not kwargs, function  # the polyfills pass all by position
    return args


def _differentiate(interp: Interpreter, args: Args, kwargs: dict[str, Value]) -> Value:
    function, argnums, has_aux, arguments, named = _bound(transforms.differentiate, args, kwargs)
    operands = _items(interp, arguments)
    one, places = _places(interp, argnums, len(operands))
    body = _Body(interp, records=True)
    result = body.call(function, _differentiated(body, operands, places), _named(interp, named))
    value, aux = _beside(interp, result, bool(interp.plain(has_aux)))
    if not isinstance(value, Tensor) or value.fake.dim() or not _is_differentiable(value):
        raise _refused("the gradient of what is no tensor of one float")
    others = _tensors(interp, aux)
    results = iter(body.transform("grad", [value, *others], [], places=tuple(range(len(body.given)))))
    gradients = _by_argument(interp, operands, one, places, results)
    return Sequence(tuple, [gradients, next(results), _with_tensors(interp, aux, results)])


def _dims(interp: Interpreter, dims: Any, value: Value) -> list[int | None]:
    """The dimension that each leaf is mapped over, by a tree of them that may end earlier."""
    children = _children(interp, value)
    if dims is None or type(dims) is int:
        return [dims for _ in _leaves(interp, value)]
    if children is None or not isinstance(dims, tuple | list | dict) or len(dims) != len(children):
        raise _refused("vmap with dimensions in another structure than the arguments")
    if isinstance(dims, dict):
        return [each for key, item in children for each in _dims(interp, dims.get(key), item)]
    return [each for part, (_, item) in zip(dims, children, strict=True) for each in _dims(interp, part, item)]


def _batch(interp: Interpreter, args: Args, kwargs: dict[str, Value]) -> Value:
    function, in_dims, out_dims, randomness, chunk_size, arguments, named = _bound(transforms.batch, args, kwargs)
    if interp.plain(randomness) != "error":
        raise _refused("vmap with random numbers")
    operands, names = Sequence(tuple, _items(interp, arguments)), _named(interp, named)
    dims = interp.plain(in_dims)
    places = iter([*_dims(interp, tuple(dims) if isinstance(dims, list) else dims, operands)])
    body, mapped = _Body(interp), []

    def entered(leaf: Value) -> Value:
        dim = next(places)
        if dim is None:
            return leaf
        if not isinstance(leaf, Tensor) or not -leaf.fake.dim() <= dim < leaf.fake.dim():
            raise _refused("vmap over a dimension that an argument has not")
        mapped.append(dim % leaf.fake.dim())
        return body.argument(leaf, _without(TensorSpec.of(leaf.fake), mapped[-1]))

    entered_args = _replaced(interp, operands, entered)
    places = iter([0 for value in names.values() for _ in _leaves(interp, value)])  # keywords are mapped over the first
    entered_names = {name: _replaced(interp, value, entered) for name, value in names.items()}
    assert isinstance(entered_args, Sequence)
    result = body.call(function, list(entered_args.items), entered_names)
    leaves = _leaves(interp, result)
    outputs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if not outputs or len(outputs) < len(leaves) or not mapped:
        raise _refused("vmap of a function that returns something else than tensors, or over nothing")
    wanted = interp.plain(out_dims)
    out = _dims(interp, wanted, result)
    options = {"randomness": "error", "chunk_size": interp.plain(chunk_size)}
    results = body.transform("vmap", outputs, [], in_dims=tuple(mapped), out_dims=tuple(out), **options)
    return _with_tensors(interp, result, iter(results))


def _without(spec: TensorSpec, dim: int) -> TensorSpec:
    shape, stride = ((*sizes[:dim], *sizes[dim + 1 :]) for sizes in (spec.shape, spec.stride))
    return replace(spec, shape=shape, stride=stride)


def _pull_back(interp: Interpreter, args: Args, kwargs: dict[str, Value]) -> Value:
    function, primals, has_aux, cotangents = _bound(transforms.pull_back, args, kwargs)
    operands = _items(interp, primals)
    places = list(range(len(operands)))
    body = _Body(interp, records=True)
    result = body.call(function, _differentiated(body, operands, places), {})
    value, _ = _beside(interp, result, bool(interp.plain(has_aux)))
    outputs, arriving = _tensors(interp, value), _tensors(interp, cotangents)
    if not outputs or len(outputs) != len(arriving) or len(outputs) != len(_leaves(interp, value)):
        raise _refused("vjp with another number of cotangents than results")
    numbers = tuple(range(len(body.given)))
    options = {"places": numbers, "cotangents": len(arriving), "differentiated": len(outputs)}
    gradients = body.transform("vjp", outputs, arriving, **options)
    return _by_argument(interp, operands, False, places, iter(gradients))


def _push_forward(interp: Interpreter, args: Args, kwargs: dict[str, Value]) -> Value:
    function, primals, tangents, strict, has_aux = _bound(transforms.push_forward, args, kwargs)
    operands, aux = _items(interp, primals), bool(interp.plain(has_aux))
    if interp.plain(strict):
        raise _refused("jvp with strict=True")
    body = _Body(interp)

    def entered(leaf: Value) -> Value:
        if not isinstance(leaf, Tensor) or not _is_differentiable(leaf):
            raise _refused("jvp by what is no tensor of floats")
        return body.argument(leaf, TensorSpec.of(leaf.fake))

    result = body.call(function, [_replaced(interp, each, entered) for each in operands], {})
    value, beside = _beside(interp, result, aux)
    outputs, arriving = _tensors(interp, value), _tensors(interp, tangents)
    if not outputs or len(arriving) != len(body.given) or len(outputs) != len(_leaves(interp, value)):
        raise _refused("jvp with another number of tangents than arguments")
    options = {"places": tuple(range(len(body.given))), "differentiated": len(outputs)}
    results = iter(body.transform("jvp", [*outputs, *_tensors(interp, beside)], arriving, **options))
    parts = [_with_tensors(interp, value, results), _with_tensors(interp, value, results)]
    return Sequence(tuple, [*parts, _with_tensors(interp, beside, results)] if aux else parts)


def _jacobian(interp: Interpreter, args: Args, kwargs: dict[str, Value]) -> Value:
    name, function, argnums, has_aux, arguments = _bound(transforms.jacobian, args, kwargs)
    operands = _items(interp, arguments)
    one, places = _places(interp, argnums, len(operands))
    kind = interp.plain(name)
    body = _Body(interp, records=kind == "jacrev")
    result = body.call(function, _differentiated(body, operands, places), {})
    value, aux = _beside(interp, result, bool(interp.plain(has_aux)))
    outputs = _tensors(interp, value)
    if not outputs or not all(map(_is_differentiable, outputs)) or len(outputs) != len(_leaves(interp, value)):
        raise _refused("derivatives of what are no tensors of floats")
    options = {"transforms": (kind,), "places": tuple(range(len(body.given))), "differentiated": len(outputs)}
    results = iter(body.transform("jacobian", [*outputs, *_tensors(interp, aux)], [], **options))
    derivatives = _replaced(interp, value, lambda leaf: _by_argument(interp, operands, one, places, results))
    return Sequence(tuple, [derivatives, _with_tensors(interp, aux, results)])


TRANSFORM_CALLS: dict[Any, Callable[[Interpreter, Args, dict[str, Value]], Value]] = {
    transforms.differentiate: _differentiate,
    transforms.batch: _batch,
    transforms.pull_back: _pull_back,
    transforms.push_forward: _push_forward,
    transforms.jacobian: _jacobian,
}
