"""What an artifact's file says to people and to Python, as JSON: trees of arguments and results, names, provenance.

The C runtime does not read it. `Signature.of(manifest)` is what `smelt.load` calls an artifact by; it needs no torch.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from smelt.base.fast_dataclass import dataclass
from smelt.ir.artifact.tree import Tree

FORMAT = 1


def manifest_of(machine: Any, targets: Sequence[str], made_by: Mapping[str, str]) -> dict[str, Any]:
    """The manifest of a machine (`ir.artifact.machine.Machine`)."""
    arguments = []
    for argument in machine.arguments:
        arguments.append({"name": argument.name, "kind": argument.kind.value, "choices": list(argument.choices)})
    ends = [variant.next for state in machine.states for variant in state.variants]
    returns = [_returned(end) for end in ends if hasattr(end, "tree")]
    return {
        "format": FORMAT,
        "name": machine.name,
        "parameters": machine.parameters.to_data(),
        "arguments": arguments,
        "dimensions": [[each.name, each.least, each.most] for each in machine.dimensions],
        "returns": returns[0] if returns else None,
        "state": [each.name for each in machine.registers if each.kind.value == "state"],
        "notes": list(machine.notes),
        "targets": list(targets),
        "made by": dict(made_by),
    }


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
class Signature:
    """How an artifact is called."""

    name: str
    parameters: Tree
    arguments: tuple[ArgumentForm, ...]
    result: Tree
    leaves: tuple[tuple[Any, ...], ...]
    state: tuple[str, ...]

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> "Signature":
        """Of a manifest; `ValueError` if it is none of ours."""
        try:
            arguments = tuple(
                ArgumentForm(str(each["name"]), str(each["kind"]), tuple(each["choices"]))
                for each in manifest["arguments"]
            )
            returned = manifest["returns"]
            tree, leaves = Tree.from_data(returned["tree"]), tuple(tuple(each) for each in returned["leaves"])
            parameters = Tree.from_data(manifest["parameters"])
            found = cls(str(manifest["name"]), parameters, arguments, tree, leaves, tuple(map(str, manifest["state"])))
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(f"the manifest is damaged: {error}") from error
        if parameters.leaves != len(arguments) or tree.leaves != len(leaves):
            raise ValueError("the manifest is damaged: trees and leaves do not fit")
        return found

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The leaves of a call's arguments. Positional arguments may be given by name, as in Python."""
        return list(self.parameters.flatten((args, dict(kwargs))))

    def inputs(self, leaves: Sequence[Any]) -> Iterator[tuple[ArgumentForm, Any]]:
        """What the runtime is given, in its order; `ValueError` for a value that no variant is for."""
        for argument, value in zip(self.arguments, leaves, strict=True):
            if argument.kind == "value" and not any(value is each or value == each for each in argument.choices):
                wanted = " or ".join(map(repr, argument.choices))
                raise ValueError(f"{argument.name} is {wanted} in this artifact, not {value!r}")
            if argument.is_input:
                yield argument, value

    def build(self, outputs: Sequence[Any]) -> Any:
        """The function's result, of what the runtime returned: a tensor or a number each."""
        given = iter(outputs)
        leaves = [leaf[1] if leaf[0] == "literal" else next(given) for leaf in self.leaves]
        return self.result.build(iter(leaves))
