"""What an artifact's file says to people and to Python, as JSON: trees of arguments and results, names, provenance.

The C runtime does not read it. `Signature.of(manifest)` is what `smelt.load` calls an artifact by; it needs no torch.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from smelt.base.fast_dataclass import dataclass
from smelt.ir.artifact.tree import Tree

FORMAT = 1
_ARGUMENTS = ("tensor", "number", "value")


def manifest_of(
    machine: Any, targets: Sequence[str], made_by: Mapping[str, str], ends: Mapping[tuple[int, int], Any]
) -> dict[str, Any]:
    """The manifest of a machine (`ir.artifact.machine.Machine`). `ends`: where variants end, by state and number, if
    that is in states of the file's own."""
    arguments = []
    for argument in machine.arguments:
        arguments.append({"name": argument.name, "kind": argument.kind.value, "choices": list(argument.choices)})
    returns = []
    for place, state in enumerate(machine.states):
        for number, variant in enumerate(state.variants):
            if hasattr(variant.next, "tree"):
                returns.append({"states": ends.get((place, number), [[place, number]]), **_returned(variant.next)})
    return {
        "format": FORMAT,
        "name": machine.name,
        "parameters": machine.parameters.to_data(),
        "arguments": arguments,
        "dimensions": [[each.name, each.least, each.most] for each in machine.dimensions],
        "returns": returns,
        "state": [each.name for each in machine.registers if str(each.kind) == "state"],
        "notes": list(machine.notes),
        "targets": list(targets),
        "made by": dict(made_by),
    }


def manifest_of_entries(name: str, manifests: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The manifest of a file with several entry points, from theirs by name."""
    shared = {key: next(iter(manifests.values()))[key] for key in ("targets", "made by")}
    entries = {entry: {key: of[key] for key in of if key not in shared} for entry, of in manifests.items()}
    return {"format": FORMAT, "name": name, "entries": entries, **shared}


def entry_manifests(manifest: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The manifests of a file's entry points by name; of a file without a list of them, its own. `ValueError` if they
    are of another file."""
    entries = manifest.get("entries", {names[0]: manifest})
    if not isinstance(entries, dict) or list(entries) != list(names):
        raise ValueError("the manifest is of another file: its entry points are not the file's")
    return entries


def _returned(end: Any) -> dict[str, Any]:
    leaves: list[Any] = []
    for value in end.values:
        kind = type(value).__name__
        if kind == "Literal":
            leaves.append(["literal", value.value])
        else:
            leaves.append(["tensor" if kind == "RegisterView" else "number"])
    return {"tree": end.tree.to_data(), "leaves": leaves}


@dataclass(frozen=True, slots=True)
class ArgumentForm:
    """One leaf of the arguments. `choices`: of what is one of some values."""

    name: str
    kind: str
    choices: tuple[Any, ...]

    @property
    def is_input(self) -> bool:
        """Whether the runtime is given it: None is nothing to give."""
        return self.kind != "value" or self.choices[0] is not None


@dataclass(frozen=True, slots=True)
class ReturnForm:
    """What a call returns that ends somewhere: a tree of tensors, numbers and values that are always the same."""

    tree: Tree
    leaves: tuple[tuple[Any, ...], ...]

    @property
    def outputs(self) -> tuple[str, ...]:
        """What the runtime returns: `tensor` or `number` each."""
        return tuple(leaf[0] for leaf in self.leaves if leaf[0] != "literal")

    def build(self, outputs: Sequence[Any]) -> Any:
        """The function's result, of what the runtime returned."""
        remaining = iter(outputs)
        leaves = [leaf[1] if leaf[0] == "literal" else next(remaining) for leaf in self.leaves]
        return self.tree.build(iter(leaves))


@dataclass(frozen=True, slots=True)
class Signature:
    """How an artifact is called."""

    name: str
    parameters: Tree
    arguments: tuple[ArgumentForm, ...]
    returns: dict[tuple[int, int], ReturnForm]
    state: tuple[str, ...]

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> "Signature":
        """Of a manifest; `ValueError` if it is none of ours."""
        try:
            arguments = tuple(
                ArgumentForm(str(each["name"]), str(each["kind"]), tuple(each["choices"]))
                for each in manifest["arguments"]
            )
            returns: dict[tuple[int, int], ReturnForm] = {}
            for each in manifest["returns"]:
                form = ReturnForm(Tree.from_data(each["tree"]), tuple(tuple(leaf) for leaf in each["leaves"]))
                if not all(leaf in (("tensor",), ("number",)) or leaf[:-1] == ("literal",) for leaf in form.leaves):
                    raise ValueError("the manifest is damaged: a result is neither a tensor nor a number nor a value")
                if form.tree.leaves != len(form.leaves):
                    raise ValueError("the manifest is damaged: a result has other leaves than its tree")
                returns |= {(int(state), int(variant)): form for state, variant in each["states"]}
            if any(each.kind not in _ARGUMENTS or (each.kind == "value" and not each.choices) for each in arguments):
                raise ValueError("the manifest is damaged: an argument is of no kind, or has no choices")
            parameters = Tree.from_data(manifest["parameters"])
            signature = cls(str(manifest["name"]), parameters, arguments, returns, tuple(map(str, manifest["state"])))
        except (KeyError, TypeError, IndexError, AttributeError, RecursionError, OverflowError) as error:
            raise ValueError(f"the manifest is damaged: {error!r}") from error
        if parameters.leaves != len(arguments):
            raise ValueError("the manifest is damaged: the arguments are not those of its tree")
        return signature

    def returned(self, state: int, variant: int, outputs: int) -> ReturnForm:
        """What a call returns that ended there; `outputs`: how many the file has."""
        form = self.returns.get((state, variant))
        if form is None or len(form.outputs) > outputs:
            raise ValueError(f"the manifest is damaged: state {state}, variant {variant} returns something else")
        return form

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The leaves of a call's arguments; `ValueError` if the call has another form than the exported one."""
        exported = self.parameters.items
        if len(exported) == 2 and (len(args) != len(exported[0].items) or set(kwargs) != set(exported[1].keys)):
            expected = _form(len(exported[0].items), map(str, exported[1].keys))
            raise ValueError(f"{self.name} was exported for calls with {expected}, not with {_form(len(args), kwargs)}")
        return list(self.parameters.flatten((args, dict(kwargs))))

    def inputs(self, leaves: Sequence[Any]) -> Iterator[tuple[ArgumentForm, Any]]:
        """What the runtime is given, in its order; `ValueError` for a value that no variant is for."""
        for argument, value in zip(self.arguments, leaves, strict=True):
            if argument.kind == "value" and not any(_same(value, each) for each in argument.choices):
                wanted = " or ".join(map(repr, argument.choices))
                raise ValueError(f"{argument.name} is {wanted} in this artifact, not {value!r}")
            if argument.is_input:
                yield argument, value


def _form(count: int, keywords: Iterable[str]) -> str:
    """`1 positional argument, mask=`."""
    return ", ".join([f"{count} positional argument{'' if count == 1 else 's'}", *(f"{name}=" for name in keywords)])


def _same(value: Any, choice: Any) -> bool:
    return type(value) is type(choice) and bool(value == choice)
