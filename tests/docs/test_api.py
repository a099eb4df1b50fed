"""Everything public says what it is: docstrings, each argument named in them, and a page of the docs made of them."""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import smelt
from smelt.base.events import COUNTERS
from smelt.base.options import Config, describe
from smelt.capture import BreakRecord
from smelt.deploy.loaded import LoadedArtifact, LoadedEntry
from smelt.explain.explanation import Explanation, GraphReport
from smelt.explain.verify import Found, Verdict, Verification
from tests.docs.pages import ROOT
from tests.golden import golden

# The page's sections: public names, and the classes of what they give back.
SECTIONS: dict[str, tuple[str, ...]] = {
    "Compiling": ("compile", "disable", "graph_break", "mark_dynamic", "is_compiling", "reset"),
    "Text generation": ("generate",),
    "Reports and checks": ("explain", "record", "verify", "counters"),
    "Deploying": ("export", "export_entries", "Entry", "export_generation", "Artifact", "Dimension", "load", "sign"),
    "Backends": ("register_backend", "list_backends", "register_chip"),
    "Lazy tensors": ("lazy",),
    "Chips": ("chips",),
    "Ahead-of-time autograd": ("aot_function", "aot_module", "aot_module_simplified", "partition", "compiled_autograd"),
    "Quantized weights": ("quantize",),
    "Settings": ("Options", "config"),
    "Errors and warnings": ("SmeltError", "GraphBreakError", "SmeltWarning"),
}
MODULES = {
    "partition": ("default", "min_cut"),
    "compiled_autograd": ("enable", "disable"),
    "lazy": ("enable", "tensor", "step", "explain"),
    "chips": ("list_chips", "device_named", "fallbacks", "host_target"),
}
PUBLIC = (*smelt.__all__, "chips", "lazy")
GIVEN_BACK: dict[str, tuple[type, ...]] = {
    "explain": (Explanation, GraphReport, BreakRecord),
    "verify": (Verification, Verdict, Found),
    "load": (LoadedArtifact, LoadedEntry),
}


def of_name(name: str) -> Any:
    return import_module("smelt.chips") if name == "chips" else getattr(smelt, name)


def functions() -> Iterator[tuple[str, Any]]:
    """Every public function by its name."""
    for name in PUBLIC:
        value = of_name(name)
        for part in MODULES.get(name, ()):
            yield f"{name}.{part}", getattr(value, part)
        if inspect.isfunction(value):
            yield name, value


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class of ours defines."""
    for name, value in vars(kind).items():
        if not name.startswith("_") and isinstance(value, property | classmethod | staticmethod | type(members)):
            yield name, value


FUNCTIONS = dict(functions())


def test_the_page_has_every_public_name() -> None:
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(PUBLIC)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_a_docstring_that_names_its_arguments(name: str) -> None:
    text = inspect.getdoc(FUNCTIONS[name]) or ""
    assert text
    for argument in inspect.signature(FUNCTIONS[name]).parameters:
        assert re.search(rf"`[^`]*\b{argument}\b[^`]*`", text), f"smelt.{name} does not speak of {argument}"


CLASSES = [
    *(getattr(smelt, name) for name in smelt.__all__ if inspect.isclass(getattr(smelt, name))),
    Config,
    *(kind for kinds in GIVEN_BACK.values() for kind in kinds),
]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_class_and_its_members_have_docstrings(kind: type) -> None:
    assert kind.__doc__ and not kind.__doc__.startswith(f"{kind.__name__}(")  # that one dataclasses make
    silent = [name for name, member in members(kind) if not inspect.getdoc(member)]
    assert not silent


def test_every_option_and_setting_says_what_it_does() -> None:
    for kind in (smelt.Options, Config):
        assert all(len(doc) > 10 for _, _, doc in describe(kind))


def test_every_counter_is_documented() -> None:
    counted = re.compile(r'(?:count\(|counters\[)"(\w+)"')
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "src" / "smelt").rglob("*.py")]
    assert {name for text in sources for name in counted.findall(text)} == set(COUNTERS)


def signature(value: Any) -> str:
    """How it is called, without types and without strings for them."""
    found = inspect.signature(value)
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in found.parameters.values()]
    return str(found.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def entry(name: str, value: Any) -> list[str]:
    """The part of the page about one public name."""
    if name == "counters":
        rows = [f"| `{key}` | {text} |" for key, text in COUNTERS.items()]
        words = "What happened so far, a `collections.Counter`; `smelt.reset()` clears it."
        return ["### `smelt.counters`", "", words, "", "| name | counts |", "|---|---|", *rows]
    if name in MODULES:
        lines = [f"### `smelt.{name}`", "", (inspect.getdoc(value) or "").split("\n\n")[0]]
        for part in MODULES[name]:
            function = getattr(value, part)
            lines += ["", *of_function(f"#### `smelt.{name}.{part}`", f"{name}.{part}", function)]
        return lines
    if inspect.isfunction(value):
        lines = of_function(f"### `smelt.{name}`", name, value)
        for kind in GIVEN_BACK.get(name, ()):
            lines += ["", *of_class(kind)]
        return lines
    return [f"### `smelt.{name}`", "", inspect.getdoc(value) or "", *settings(value)]


def of_function(title: str, name: str, function: Any) -> list[str]:
    called = f"smelt.{name}{signature(function)}"
    return [title, "", f"**`{called}`**", "", inspect.getdoc(function) or ""]


def settings(value: Any) -> list[str]:
    names = fields_of(value)
    described = ": [Settings and logs](settings.md)" if value in (smelt.Options, smelt.config) else ""
    return ["", f"Fields: {names}{described}."] if names else []


def fields_of(value: Any) -> str:
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    return ", ".join(f"`{field.name}`" for field in fields)


def of_class(kind: type) -> list[str]:
    """A class of what is given back: its fields and members."""
    lines = [f"#### `{kind.__name__}`", "", inspect.getdoc(kind) or ""]
    names = fields_of(kind)
    lines += ["", f"Fields: {names}."] if names else []
    found = list(members(kind))
    lines += ["", "| member | what it is |", "|---|---|"] if found else []
    for name, member in found:
        call = "" if isinstance(member, property) else re.sub(r"\(self,? ?", "(", signature(member))
        first = (inspect.getdoc(member) or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
        lines.append(f"| `{name}{call}` | {first} |")
    return lines


def page() -> str:
    lines = ["# Python interface", "", "Written from the docstrings by `pytest --update-golden`; edit those instead."]
    for title, names in SECTIONS.items():
        lines += ["", f"## {title}"]
        for name in names:
            lines += ["", *entry(name, of_name(name))]
    return "\n".join(lines)


def test_the_page_is_made_of_the_docstrings() -> None:
    golden("api.md", page(), root=Path(ROOT / "docs"))
