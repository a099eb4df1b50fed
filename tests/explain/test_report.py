"""The report: its data ties lines, nodes and kernels together; its page opens from disk and does what it should."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.base.events import collect
from smelt.explain.report_data import report_data

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


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
    return json.loads(json.dumps(report_data(events, "a net")))


def test_the_lines_of_the_program_are_there(data: Any) -> None:
    start = Net.forward.__code__.co_firstlineno
    text = data["files"][__file__]
    assert "torch.relu" in text["lines"][start + 1 - text["first"]]
    assert data["graphs"][0]["lines"][__file__] == [start + 1]
    assert data["breaks"][0]["line"] == start + 2 and data["summary"]["breaks"] == 1


def test_a_node_leads_to_its_line_its_partners_and_its_kernel(data: Any) -> None:
    captured, forward, backward = data["graphs"][1]["stages"]
    line = Net.forward.__code__.co_firstlineno + 3
    (softmax,) = (node for node in captured["nodes"] if node["label"] == "softmax")
    assert softmax["line"] == line and softmax["origin"] == softmax["id"]
    for stage in (forward, backward):
        partners = [node for node in stage["nodes"] if node["origin"] == softmax["id"]]
        assert partners and all(node["line"] == line for node in partners)
    steps = {program["name"]: program["steps"] for program in data["graphs"][1]["programs"]}
    placed = [node for node in forward["nodes"] if "step" in node]
    assert placed
    for node in placed:
        program, number = node["step"]
        assert node["id"] in steps[program][number]["members"]
    assert any(step["kind"] == "kernel" and "exp" in step["code"] for step in steps[placed[0]["step"][0]])


def test_memory_rises_in_the_forward_and_covers_both_halves(data: Any) -> None:
    for curve in (data["graphs"][1]["memory"], data["graphs"][1]["eager memory"]):
        places = [place for place, _ in curve]
        assert places == sorted(places) and places[0] == 0 and places[-1] == 2
        assert max(size for _, size in curve) > 0


def test_the_page_stands_alone(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    told = smelt.explain(Net())(torch.randn(4, 8))
    told.to_html(file, "a <net> & more")
    page = file.read_text(encoding="utf-8")
    assert "{{" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", page)
    assert "<title>smelt: a &lt;net> &amp; more</title>" in page
    assert "smelt: 2 graphs, 1 breaks" in told._repr_html_() and "<details>" in told._repr_html_()


def test_a_block_is_recorded_though_it_raises(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    with pytest.raises(ValueError, match="later"), smelt.record(file):
        smelt.compile(lambda x: x * 2)(torch.ones(3))
        raise ValueError("later")
    assert '"graphs":1' in file.read_text(encoding="utf-8")


# Put behind the page's own script: uses it as a person would, and leaves what was seen in an element of its own.
USE = """
<script>
window.Worker = undefined;  // no answer comes in the browser's virtual time; without one the page lays out itself
(async () => {
  const seen = { errors: [] }, wait = (time) => new Promise((resolve) => setTimeout(resolve, time));
  window.addEventListener("error", (event) => seen.errors.push(String(event.message)));
  const press = (id) => document.getElementById(id).click();
  const leave = () => document.body.append(make("template", { id: "seen", "data-seen": JSON.stringify(seen) }));
  window.addEventListener("unhandledrejection", (event) => { seen.errors.push(String(event.reason)); leave(); });
  press("tab-graphs");
  seen.stages = [];
  for (const option of document.getElementById("stage").options) {
    document.getElementById("stage").value = option.value;
    await drawStage();
    seen.stages.push([option.textContent, drawing.nodes().length]);
  }
  await openGraph(1, 0);
  document.getElementById("find").value = "softmax"; find();
  seen.found = document.getElementById("matches").textContent;
  await openGraph(1, 1);
  const placed = data.graphs[1].stages[1].nodes.find((node) => node.step && stepOf(node).kind === "kernel");
  choose(placed.id);
  seen.chosen = document.querySelector("#node h3").textContent;
  [...document.querySelectorAll("#node .link")].find((button) => button.textContent.includes(placed.step[0])).click();
  seen.kernel = document.querySelector("details.here pre").textContent.slice(0, 2000);
  seen.lines = document.querySelectorAll("details.here .link").length;
  document.querySelector("details.here .link").click();
  seen.line = document.querySelector(".source .here").textContent;
  press("tab-memory");
  seen.curves = document.querySelectorAll("#view-memory .u-series").length;
  seen.plots = document.querySelectorAll("#view-memory canvas").length;
  for (const name of Object.keys(views)) press("tab-" + name);
  seen.views = drawn.size;
  await wait(50);
  leave();
})();
</script>
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to open the page with")
def test_the_page_works_in_a_browser(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    with smelt.record(file, "a net"):
        smelt.compile(Net())(torch.randn(4, 8)).backward()
    page = file.read_text(encoding="utf-8")
    before, _, after = page.rpartition("</body>")  # one of the libraries has it in a text
    file.write_text(f"{before}{USE}</body>{after}", encoding="utf-8")
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom"]
    ended = subprocess.run([*command, file.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    found = re.findall(r'id="seen" data-seen="(.*?)"', ended.stdout)  # the page shows this file too, so the last one
    assert found, ended.stderr
    seen = json.loads(html.unescape(found[-1]))
    assert seen["errors"] == [] and seen["views"] == 7 and seen["found"] == "1 found"
    assert [text.split(" (")[0] for text, _ in seen["stages"]] == ["captured", "forward", "backward"]
    assert all(f"({count} nodes)" in text for text, count in seen["stages"])
    assert seen["kernel"].startswith("kernel") and seen["lines"] >= 1
    assert "F.linear(input, self.weight, self.bias)" in seen["line"]  # whose bias the kernel adds
    assert seen["plots"] >= 1 and seen["curves"] >= 3
