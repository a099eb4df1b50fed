"""The picture of the README and the tables of docs/benchmarks.md are those of benchmarks/results.json."""

import json
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from benchmarks import plot, table
from tests import golden

FOUND: dict[str, Any] = json.loads(plot.RESULTS.read_text(encoding="utf-8"))
NAMES = list(plot.pictures(FOUND))


@pytest.mark.parametrize("name", NAMES)
def test_the_picture_is_of_the_results(name: str) -> None:
    golden.golden(name, plot.pictures(FOUND)[name], root=plot.ASSETS)


@pytest.mark.parametrize("name", NAMES)
def test_the_picture_has_a_name_words_and_a_row_per_model(name: str) -> None:
    root = ElementTree.fromstring(plot.pictures(FOUND)[name])
    words = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert root.get("role") == "img" and root[0].text and root[1].text
    trained = [r["model"] for r in FOUND["results"] if (r["mode"], r["dtype"]) == ("train", "float32")]
    assert len(trained) == 9
    assert all(words.count(plot.LABELS[model]) == 2 for model in trained)
    width, height = map(float, (root.get("viewBox") or "").split()[2:])
    for element in root.iter("{http://www.w3.org/2000/svg}circle"):
        assert 0 < float(element.get("cx") or -1) < width and 0 < float(element.get("cy") or -1) < height


def test_an_axis_grows_with_its_figures() -> None:
    result = {**FOUND["results"][0], "first": {"smelt": 0.02, "torch.compile": 900.0}}
    panel = plot.first_steps([result])
    assert min(panel.ticks) <= 0.02 and panel.place(0.02) >= plot.LEFT
    assert panel.place(900.0) <= plot.WIDTH - plot.RIGHT + 40


def test_results_without_torch_compile_are_not_drawn() -> None:
    result = {**FOUND["results"][0], "first": {"smelt": 0.1, "eager": 0.1}}
    assert plot.pictures({**FOUND, "results": [result]}) == {}


def test_what_make_bench_measured_is_drawn() -> None:
    """There the rounds were kept, and speeds are medians of quotients within a round."""

    def rounds(*seconds: float) -> list[dict[str, float]]:
        return [{"seconds": each, "processor": each} for each in seconds]

    steady = {"eager": rounds(2, 4, 6), "smelt": rounds(1, 2, 3), "torch.compile": rounds(3, 6, 9)}
    result = {**FOUND["results"][0], "steady": steady}
    del result["speed"]
    (row,) = plot.later_steps([result]).rows
    assert (row.smelt, round(row.other, 3), row.ratio) == (2.0, 0.667, "3.00×")
    assert len(plot.pictures({"machine": {"torch": "2.13", "processor": "aarch64"}, "results": [result]})) == 2


def test_the_page_has_the_tables_of_the_results() -> None:
    page = (plot.ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    tables = re.findall(r"(?:^\|.*\n)+", table.markdown(FOUND["results"], "seconds") + "\n", re.MULTILINE)
    assert len(tables) == 4
    assert [each.splitlines()[0] for each in tables if each not in page] == []


def test_the_picture_in_words_is_that_of_the_results() -> None:
    """What a reader is told who does not see the picture."""
    readme = (plot.ROOT / "README.md").read_text(encoding="utf-8")
    trained = [r for r in FOUND["results"] if (r["mode"], r["dtype"]) == ("train", "float32")]
    first = [ratio for r in trained if (ratio := table.quotient(r["first"], "torch.compile")) is not None]
    later = [r["speed"]["torch.compile"] for r in trained]
    assert f"{min(first):.0f} to {max(first):.0f} times shorter" in readme
    assert f"{min(later):g} to {max(later):g} times as fast" in readme
