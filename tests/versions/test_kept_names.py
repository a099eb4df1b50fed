"""Names that programs use stay: `kept.json` lists those of all versions (docs/compatibility.md)."""

import copy
import json
from pathlib import Path

import pytest

from smelt.deploy.runtime import library
from tests import golden
from tests.versions.kept_names import described, missing

KEPT = Path(__file__).parent / "kept.json"


def test_nothing_that_programs_use_is_gone() -> None:
    now = described()
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {kind: {} for kind in now}
    assert missing(kept, now) == []
    if golden.updating:
        KEPT.write_text(json.dumps(now, indent=1) + "\n")
    else:
        new = {kind: sorted(names.keys() - kept[kind].keys()) for kind, names in now.items()}
        assert not any(new.values()), f"run pytest --update-golden tests/versions: {new}"


def test_the_library_has_every_function_of_the_list() -> None:
    kept = json.loads(KEPT.read_text())
    assert [name for name in kept["functions"] if not hasattr(library(), name)] == []


@pytest.mark.parametrize(
    ("kind", "name", "change", "fault"),
    [
        ("functions", "smelt_run", None, "is gone"),
        ("functions", "smelt_run", "int smelt_run(void)", "was smelt_status"),
        ("numbers", "SMELT_ERROR_IO", 3, "was 2, is 3"),
        ("structs", "smelt_tensor", ["smelt_dtype dtype"], "was"),
        ("structs", "smelt_open_options", ["size_t size"], "was"),
        ("python", "load", {"path": "POSITIONAL_OR_KEYWORD"}, "parameter threads is gone"),
        ("commands", "sign", [], "option --key is gone"),
    ],
)
def test_changes_that_break_programs_are_found(kind: str, name: str, change: object, fault: str) -> None:
    kept = described()
    now = copy.deepcopy(kept)
    if change is None:
        del now[kind][name]
    else:
        now[kind][name] = change
    assert any(line.startswith(f"{kind}: {name}") and fault in line for line in missing(kept, now))


def test_options_may_get_further_fields_and_functions_further_parameters() -> None:
    kept = described()
    now = copy.deepcopy(kept)
    now["structs"]["smelt_open_options"].append("int more")
    now["python"]["load"]["more"] = "KEYWORD_ONLY?"
    assert missing(kept, now) == []
    now["python"]["load"]["needed"] = "KEYWORD_ONLY"
    assert missing(kept, now) == ["python: load: needed must be given"]
