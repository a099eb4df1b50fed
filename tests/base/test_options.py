"""Options and config: what is accepted, and that every mistake is answered at once with the choices."""

import dataclasses
from typing import Any

import pytest

from smelt.base.errors import SmeltError
from smelt.base.options import Config, Options, describe


def test_nothing_given_is_the_defaults() -> None:
    assert Options.from_user(None) == Options() == Options.from_user({})


def test_given_values_are_kept() -> None:
    options = Options.from_user({"max_rewrites": 3, "check_specs": True, "recompute": False})
    assert (options.max_rewrites, options.check_specs, options.recompute) == (3, True, False)


def test_options_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().max_rewrites = 1  # type: ignore[misc]


def test_unknown_option_names_every_choice() -> None:
    with pytest.raises(SmeltError, match="unknown option 'feul'") as caught:
        Options.from_user({"feul": 3})
    assert caught.value.code == "SM003"
    for field in dataclasses.fields(Options):
        assert field.name in caught.value.hint


@pytest.mark.parametrize(
    ("name", "value", "wanted", "given"),
    [
        ("max_rewrites", "3", "int", "str"),
        ("max_rewrites", True, "int", "bool"),
        ("max_rewrites", 1.5, "int", "float"),
        ("max_rewrites", None, "int", "NoneType"),
        ("check_specs", 1, "bool", "int"),
        ("recompute", "yes", "bool", "str"),
    ],
)
def test_wrong_type_names_both_types(name: str, value: Any, wanted: str, given: str) -> None:
    with pytest.raises(SmeltError) as caught:
        Options.from_user({name: value})
    assert caught.value.code == "SM003"
    assert f"option {name!r} must be {wanted}, not {given}" in str(caught.value)


def test_config_starts_with_its_defaults_and_takes_values() -> None:
    config = Config()
    config.cache_size_limit = 2
    config.verbose = True
    assert (config.cache_size_limit, config.verbose, config.check_specs) == (2, True, False)


def test_config_rejects_an_unknown_setting() -> None:
    with pytest.raises(SmeltError, match="unknown setting 'cache_limit'") as caught:
        Config().cache_limit = 2
    assert caught.value.code == "SM003"
    assert "cache_size_limit" in caught.value.hint and "verbose" in caught.value.hint


def test_config_rejects_a_wrong_type_and_keeps_the_old_value() -> None:
    config = Config()
    with pytest.raises(SmeltError, match="setting 'cache_size_limit' must be int, not str"):
        config.cache_size_limit = "many"  # type: ignore[assignment]
    assert config.cache_size_limit == 8


@pytest.mark.parametrize("kind", [Options, Config])
def test_every_field_says_what_it_does(kind: type) -> None:
    described = describe(kind)
    assert [name for name, _, _ in described] == [field.name for field in dataclasses.fields(kind)]
    assert all(len(doc) > 20 for _, _, doc in described)
    assert all(isinstance(field.metadata["in_key"], bool) for field in dataclasses.fields(kind))
