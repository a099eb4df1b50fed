"""The report: its data ties lines, nodes and kernels together; its page opens from disk and does what it should."""

import json
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.base.events import Event, collect
from smelt.explain.report import _PARTS
from smelt.explain.report_code import Codes
from smelt.explain.report_data import report_data
from smelt.runtime.program.profile import profiling

NODE = shutil.which("node")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        smelt.graph_break()
        return self.second(y).softmax(-1).square().sum()


@pytest.fixture(scope="module")
def data() -> Any:
    with collect() as events:
        smelt.compile(Net())(torch.randn(4, 8)).backward()
    codes = Codes()
    found = json.loads(json.dumps(report_data(events, "a net", codes)))
    found["codes"] = codes.texts()
    return found


def test_the_lines_of_the_program_are_there(data: Any) -> None:
    start = Net.forward.__code__.co_firstlineno
    text = data["files"][0]
    assert text["path"] == __file__ and not text["library"]  # the program's own file before those of torch
    assert all(each["library"] and "torch" in each["path"] for each in data["files"][1:])
    assert "torch.relu" in text["lines"][start + 1 - text["first"]]
    assert data["graphs"][0]["lines"]["0"] == [start + 1]
    assert data["breaks"][0]["line"] == start + 2 and data["breaks"][0]["file"] == 0 and data["summary"]["breaks"] == 1


def test_a_node_leads_to_its_line_its_partners_and_its_kernel(data: Any) -> None:
    captured, forward, backward, *programs = data["graphs"][1]["stages"]
    assert [stage["kind"] for stage in programs] == ["program", "program"]
    line = Net.forward.__code__.co_firstlineno + 3
    (softmax,) = (node for node in captured["nodes"] if node["label"] == "softmax")
    assert softmax["line"] == line and softmax["origin"] == softmax["id"]
    for stage in (forward, backward):
        partners = [node for node in stage["nodes"] if node.get("origin") == softmax["id"]]
        assert partners and all(node["line"] == line for node in partners)
    steps = {program["name"]: program["steps"] for program in data["graphs"][1]["programs"]}
    placed = [node for node in forward["nodes"] if "step" in node]
    assert placed
    for node in placed:
        program, number = node["step"]
        assert node["id"] in steps[program][number]["members"]
    kernels = [step for step in steps[placed[0]["step"][0]] if step["kind"] == "kernel"]
    texts = [data["codes"][step["code"]] for step in kernels]
    assert any(
        "exp" in form and "entry function @k0" in loops and "define" in llvm and "k0:" in assembly
        for form, loops, llvm, assembly in texts
    )


def test_steps_are_a_graph_too(data: Any) -> None:
    first = data["graphs"][0]
    (stage, _) = (stage for stage in first["stages"] if stage["kind"] == "program")
    (program,) = (each for each in first["programs"] if each["name"] == stage["name"])
    nodes = {node["id"]: node for node in stage["nodes"]}
    shown = [node for node in stage["nodes"] if node["op"] == "step"]
    assert [node["label"] for node in shown] == [step["name"] for step in program["steps"]]
    assert [step["kind"] for step in program["steps"]] == ["library", "kernel"]
    assert ["step 1", "step 2"] in stage["edges"] and nodes["step 1"]["shape"] == "float32[4, 16]"
    assert program["steps"][0]["why"].startswith("multiplies 4×16×8, ")


def test_memory_rises_in_the_forward_and_covers_both_halves(data: Any) -> None:
    memory = data["graphs"][1]["memory"]
    assert memory["turn"]
    for curve in (memory["ours"], memory["eager"], memory["saved"]):
        places = [place for place, _ in curve]
        assert places == sorted(places) and places[0] == 0 and places[-1] == 2
        assert max(size for _, size in curve) > 0
    for (_, saved), (_, alive) in zip(memory["saved"], memory["ours"], strict=True):
        assert saved <= alive
    assert memory["saved"][-1][1] == 0  # the backward lets go of all it was given
    recomputed = {node["id"] for node in data["graphs"][1]["stages"][2]["nodes"] if node.get("recomputed")}
    assert {each["name"] for each in memory["recomputed"]} <= recomputed


def test_what_eager_writes_in_place_takes_no_memory() -> None:
    def step(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        total.add_(x.sin())
        return total.sum()

    with collect() as events:
        smelt.compile(step)(torch.zeros(1000), torch.randn(1000))
    (graph,) = report_data(events, "", Codes())["graphs"]
    assert not graph["memory"]["turn"] and max(size for _, size in graph["memory"]["eager"]) == 4000  # the sine


def test_sizes_that_vary_are_shown_and_stay_open() -> None:
    compiled = smelt.compile(lambda x: (x.tanh() * 2).sum(-1), dynamic=True)
    with collect() as events:
        compiled(torch.randn(6, 5))
        (graph,) = report_data(events, "", Codes())["graphs"]
        assert graph["stages"][1]["nodes"][0]["shape"] == "float32[s0, s1]"
        before = len(events)
        for rows in (7, 9, 11):
            compiled(torch.randn(rows, 5))
    assert not [event for event in events[before:] if event.channel == "kernels"]


def test_times_of_steps_are_there_when_asked_for(tmp_path: Path) -> None:
    with collect() as events, profiling() as times:
        compiled = smelt.compile(Net())
        for _ in range(2):
            compiled(torch.randn(4, 8)).backward()
    plain = report_data(events, "", Codes())["graphs"]
    assert not any("time" in step for graph in plain for program in graph["programs"] for step in program["steps"])
    for taken in times():
        events.append(Event("timing", "", taken))
    for graph in report_data(events, "", Codes())["graphs"]:
        for program in graph["programs"]:
            assert program["calls"] == 2 and all(step["time"] > 0 for step in program["steps"])
    file = tmp_path / "report.html"
    with smelt.record(file, profile=True):
        smelt.compile(Net())(torch.randn(4, 8)).backward()
    assert '"calls":1' in file.read_text(encoding="utf-8")


@pytest.mark.skipif(NODE is None, reason="there is no node here to run the page's scripts with")
def test_the_address_names_a_view_and_an_advice_stands_once(tmp_path: Path) -> None:
    """What `test_page.py` sees in a browser, by a few lines that stand for one."""

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        print("first")
        y = y.cos()
        print("again")
        return y + 1

    with collect() as events:
        smelt.compile(f, backend="eager")(torch.ones(3))
    data = tmp_path / "data.json"
    data.write_text(json.dumps(report_data(events, "prints", Codes())), encoding="utf-8")
    scripts = [str(files("smelt.explain").joinpath("assets", name)) for name in _PARTS["script"]]
    stand_in = str(Path(__file__).with_name("without_browser.js"))
    for hash, view in (("", "overview"), ("#graphs", "graphs"), ("#nothing", "overview")):
        command = [str(NODE), stand_in, str(data), hash, *scripts]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 0, ended.stderr
        found = json.loads(ended.stdout)
        assert found["start"] == [view] and found["clicked"] == [["guards"], "#guards"]
        assert found["followed"] == ["time"] and found["href"] == "#memory"
        if view == "overview":
            assert found["overview"].count("Move the call out of the compiled function") == 1
            assert 'print("first")' in found["overview"] and 'print("again")' in found["overview"]


def test_the_page_stands_alone(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    told = smelt.explain(Net())(torch.randn(4, 8))
    told.to_html(file, "a <net> & more")
    page = file.read_text(encoding="utf-8")
    assert "{{" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", page)
    assert "<title>smelt: a &lt;net> &amp; more</title>" in page
    assert "smelt: 2 graphs, 1 break," in told._repr_html_() and "<details>" in told._repr_html_()


def test_marks_of_the_template_in_a_program_are_left_alone(tmp_path: Path) -> None:
    said = "{{codes}} {{title}} </script>"
    told = smelt.explain(lambda x: x * len(said))(torch.ones(3))
    told.to_html(tmp_path / "report.html", said)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None and json.loads(found[1])["title"] == said


def test_a_block_is_recorded_though_it_raises(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    with pytest.raises(ValueError, match="later"), smelt.record(file):
        smelt.compile(lambda x: x * 2)(torch.ones(3))
        raise ValueError("later")
    assert '"graphs":1' in file.read_text(encoding="utf-8")
