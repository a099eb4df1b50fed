"""Words that were replaced by the field's own do not come back, in code, comments, messages or pages.

`REPLACED` has a line per word: what must not occur any more, and what is said instead. A word is matched as a whole,
with its case: `heed` is found in `tape.heed(…)` and in a sentence, not in `unheeded`. Phrases may span two lines.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.structure import files

REPLACED = {
    # files and classes
    "Fuel": "RewriteBudget",
    "GhostMode": "FakeMode",
    "GhostTensor": "FakeTensor",
    "GraphStory": "GraphReport",
    "Halves": "ForwardBackward",
    "Story": "CompilationReport",
    "fuel": "rewrite budget, max_rewrites",
    "ghost": "fake tensor",
    "ghosts": "fake tensors",
    "kept aside": "staged, spilled",
    "kept_aside": "staged, spilled",
    "taken apart": "decomposed, split, unpacked",
    "taken_apart": "decomposed, split, unpacked",
    "Abandoned": "SkipFrame",
    "Awaited": "DeferredScalar",
    "Begun": "Preallocated",
    "Deliver": "AccumulateGrads",
    "DeliverByEngine": "AccumulateByEngine",
    "Entrance": "EntryState",
    "Lookout": "GradObservers",
    "PausedJoined": "PausedZip",
    "Recaller": "PersistentCompiler",
    "Rehearsal": "PeakSimulator",
    "Shelf": "CaptureStore",
    "Shortcut": "FastPath",
    "Unwritten": "NothingWritten",
    "Varying": "SymSize",
    "Wish": "RecomputePolicy",
    # capture
    "LEFT_TO_PYTHON": "UNSUPPORTED",
    "at_risk": "backed_up",
    "begin_with": "preallocate",
    "foretell": "speculate",
    "given_up": "cleared_grads",
    "heed": "depend on, sync_ambient",
    "heeded": "depended on",
    "heeds": "depends on",
    "left_to_python": "unsupported, skipped_frames",
    "lie_apart": "have_distinct_bases",
    "may_pin": "may_guard_identity",
    "met_again": "input_aliases",
    "nothing_waits": "nothing_deferred",
    "only_apart": "requires_no_overlap",
    "pin_tensor": "guard_tensor_identity",
    "pinned": "identity_guarded",
    "recall": "load",
    "recalled": "loaded",
    "singled_out": "grad_targets",
    "stand_up": "materialize",
    "tell_apart": "guard_distinct",
    "tells_apart": "checks_overlap",
    "touch_end": "before_append",
    "undraws": "restores_rng",
    # between capture and code
    "accumulable_again": "accumulable_create_graph",
    "computed again": "recomputed",
    "set_wish": "set_recompute_policy",
    "settled": "specialized, resolved, dense_spec",
    "surroundings": "environment_key, ambient_key",
    "wish_of": "recompute_policy_of",
    # the C part
    "anchored": "identity_proved",
    "deliver": "accumulate_grads",
    "delivered": "accumulated",
    "install_shelter": "install_preserved_state",
    "shelter": "preserved_state",
    "sheltered": "preserving_state",
    "shortcut": "fast path",
    "shortcut_arm": "fastpath_build",
    "teach_guards": "install_tensor_layout",
    "teach_shelter": "install_preserved_state",
    # sentences
    "compile again": "recompile",
    "in the world": "in the process",
    "run by PyTorch": "falls back to eager",
    "the peer": "torch.compile",
    # what people are told of graph breaks and captures
    "a kind not followed": "unsupported type",
    "only known by running": "data-dependent",
}


# They say how a value came about, not what it contains.
UNNAMED = {"found", "made", "given"}


def _pages() -> list[Path]:
    return [*(files.ROOT / "docs").glob("*.md"), files.ROOT / "README.md", files.ROOT / "CONTRIBUTING.md"]


def _sources() -> list[Path]:
    found = [path for top in (files.SOURCE, files.ROOT / "plugins") for path in top.rglob("*")]
    return [path for path in found if path.suffix in (".py", ".pyi", ".c", ".h")]


def _pattern(word: str) -> re.Pattern[str]:
    """A word as a whole; between those of a phrase a line may end and another comment begin."""
    return re.compile(r"(?<!\w)" + r"\s+(?:[#*] )?".join(map(re.escape, word.split())) + r"(?!\w)")


_PATTERNS = {word: (word.split()[0], _pattern(word)) for word in REPLACED}


def found_in(text: str) -> list[tuple[int, str]]:
    """The lines with words that were replaced, and which."""
    return sorted(
        (text.count("\n", 0, match.start()) + 1, word)
        for word, (first, pattern) in _PATTERNS.items()
        if first in text  # most words are in few files
        for match in pattern.finditer(text)
    )


def test_replaced_words_do_not_come_back() -> None:
    found = [
        f"{path.relative_to(files.ROOT)}:{line}: {word!r}, say {REPLACED[word]!r}"
        for path in (*_sources(), *_pages())
        for line, word in found_in(path.read_text(encoding="utf-8"))
    ]
    assert found == [], "\n".join(found)


def _names_bound_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name


def test_variables_are_named_for_what_they_contain() -> None:
    unnamed = [
        f"{path.relative_to(files.ROOT)}:{line}: {name}"
        for path in _sources()
        if path.suffix == ".py" and path.is_relative_to(files.SOURCE)
        for line, name in _names_bound_in(ast.parse(path.read_text(encoding="utf-8")))
        if name in UNNAMED
    ]
    assert unnamed == [], "\n".join(unnamed)


def test_words_are_found_whole_and_across_lines() -> None:
    text = "value.pinned = True\nunpinned\n# it is in the\n# world heeded"
    assert found_in(text) == [(1, "pinned"), (3, "in the world"), (4, "heeded")]
