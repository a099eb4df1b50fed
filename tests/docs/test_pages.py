"""Every block of Python in the README and in docs/ runs, raises and prints what the page says."""

import re

import pytest
import torch

import smelt
from smelt.base.events import collect
from smelt.capture import BreakRecord
from smelt.capture.breaks import REASONS
from tests.docs.pages import PAGES, ROOT, Block, blocks_of, fresh, run

BREAKS = ROOT / "docs" / "breaks.md"


@pytest.mark.parametrize("page", [page for page in PAGES if page != BREAKS], ids=lambda page: page.name)
def test_the_code_of_a_page_runs(page: object) -> None:
    namespace = fresh()
    for block in blocks_of(page):  # type: ignore[arg-type]
        smelt.reset()
        run(block, namespace)


def _sections() -> dict[str, list[Block]]:
    """The blocks of breaks.md by the code they are an example of."""
    content = BREAKS.read_text(encoding="utf-8")
    codes = [(content.count("\n", 0, found.start()), found[1]) for found in re.finditer(r"(?m)^## (B\d+):", content)]
    sections: dict[str, list[Block]] = {code: [] for _, code in codes}
    for block in blocks_of(BREAKS):
        sections[[code for line, code in codes if line < block.line][-1]].append(block)
    return sections


SECTIONS = _sections()


def _codes(function: object) -> tuple[list[str], object]:
    """The codes of the breaks on a first call, and what came out: a result, or the class of what was raised."""
    smelt.reset()
    compiled = smelt.compile(function, backend="eager")  # type: ignore[arg-type]
    with collect() as events:
        try:
            result: object = compiled(torch.ones(3))
        except Exception as error:
            result = type(error)
    return [event.subject.code for event in events if isinstance(event.subject, BreakRecord)], result


def _plain(function: object) -> object:
    try:
        return function(torch.ones(3))  # type: ignore[operator]
    except Exception as error:
        return type(error)


def _same(mine: object, plain: object) -> None:
    if isinstance(mine, torch.Tensor):
        torch.testing.assert_close(mine, plain)
    else:
        assert mine is plain


@pytest.mark.parametrize("code", SECTIONS)
def test_an_example_of_a_break_breaks_and_its_mended_form_does_not(
    code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code in REASONS
    (block,) = SECTIONS[code]
    namespace = fresh()
    run(block, namespace)
    codes, result = _codes(namespace["breaks"])
    assert code in codes, f"{code} is not among {codes}"
    _same(result, _plain(namespace["breaks"]))
    codes, result = _codes(namespace["mended"])
    assert codes == [] and isinstance(result, torch.Tensor)
    _same(result, _plain(namespace["mended"]))
