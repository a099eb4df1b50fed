"""The report of a GPT-2 training step in a browser: it opens from disk and does what it should, for hands and ears."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from tests.explain.browser import CHROMIUM, Browser, Page

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here to open the page with")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of two training steps of four layers."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=4, n_embd=32, n_head=2, vocab_size=50, n_positions=16, bos_token_id=0, eos_token_id=0,
        attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, loss_type="ForCausalLM",
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    path = tmp_path_factory.mktemp("report") / "report.html"
    with smelt.record(path, "GPT-2, 4 layers", profile=True):
        compiled = smelt.compile(model)
        for _ in range(2):
            ids = torch.randint(0, 50, (2, 16))
            compiled(ids, labels=ids).loss.backward()
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as found:
        yield found


@pytest.fixture
def page(browser: Browser, file: Path) -> Iterator[Page]:
    opened = browser.open(file)
    yield opened
    assert opened.errors() == [] and opened.requests() == []
    opened.close()


def stages(page: Page) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = page.value(
        "data.graphs.flatMap((graph, at) => graph.stages.map((stage, number) =>"
        "({graph: at, number, kind: stage.kind, nodes: stage.nodes.length, edges: stage.edges.length})))"
    )
    return found


def open_stage(page: Page, kind: str) -> None:
    (found, *_) = (each for each in stages(page) if each["kind"] == kind)
    page.value(f"openGraph({found['graph']}, {found['number']})")


def test_every_graph_is_drawn(page: Page) -> None:
    found = stages(page)
    assert [each["kind"] for each in found] == ["captured", "forward", "backward", "program", "program"]
    assert found[0]["nodes"] > 100 and found[2]["nodes"] > 300
    for each in found:
        page.value(f"openGraph({each['graph']}, {each['number']})")
        assert page.value("[drawing.nodes().length, drawing.edges().length]") == [each["nodes"], each["edges"]]
        assert page.value("stageOf().items.length") == each["nodes"]  # the list beside it has them all
        spots = page.value("drawing.nodes().map((node) => JSON.stringify(node.position()))")
        assert len(set(spots)) > 0.95 * len(spots)  # and they do not lie on each other


def test_who_asks_for_several_graphs_at_once_gets_the_last(page: Page) -> None:
    page.value("Promise.all([openGraph(0, 1), openGraph(0, 0), openGraph(0, 1)]).then(() => 0)")
    assert page.value("drawing.nodes().length === data.graphs[0].stages[1].nodes.length")
    assert page.value("document.querySelectorAll('#canvas canvas').length") == 3  # of one drawing


def test_search_finds_a_node(page: Page) -> None:
    page.click("#tab-graphs")
    page.wait("Boolean(drawing)")
    page.click("#find")
    page.type("layer_norm")
    assert page.value("document.getElementById('matches').textContent") == "9 found"  # two a layer, and the last
    page.press("Enter")
    assert page.value("document.querySelector('#node h3').textContent") == "layer_norm"
    assert page.value("drawing.nodes(':selected').map((node) => node.id())") == ["layer_norm"]
    assert page.value("drawing.nodes('.match').length") == 9
    page.press("Enter")
    assert page.value("document.querySelector('#node h3').textContent") == "layer_norm_1"
    shown = page.value("[...document.querySelectorAll('#nodes li')].filter((item) => !item.hidden).length")
    assert shown == 9 + 1  # and the heading of the inputs


def click_on_node(page: Page, node: str) -> None:
    """With the mouse, where it is drawn."""
    page.value(f"drawing.stop().zoom(1), drawing.center(drawing.getElementById({node!r})), 0")
    x, y = page.value(
        f"(({{x, y}}, box) => [box.x + x, box.y + y])(drawing.getElementById({node!r}).renderedPosition(),"
        "drawing.container().getBoundingClientRect())"
    )
    page.click_at(x, y)


def test_a_click_on_a_kernel_shows_its_lines_and_its_code(page: Page) -> None:
    open_stage(page, "program")
    kernel = page.value("stageOf().nodes.find((node) => node.step && stepOf(node).members.includes('tanh')).id")
    click_on_node(page, kernel)
    assert page.value("document.querySelector('#node h3').textContent").startswith(kernel)
    text = "document.querySelector('#node').innerText"
    assert "activations.py:" in page.value(text) and "torch.tanh(" in page.value(text)
    assert " a call" in page.value(text)  # how long it takes
    assert "Neighbours are not in it because" in page.value(text) or "Computes" in page.value(text)
    code = "document.querySelector('#node pre.text').textContent"
    page.wait(f"{code}.startsWith('kernel')")
    assert "tanh" in page.value(code)
    for number, part in ((2, "entry function @k0"), (3, "define"), (4, "k0:")):
        page.click(f"#node .codes button:nth-child({number})")
        page.wait(f"{code}.includes('{part}')")


def test_a_node_leads_to_its_line_its_partner_and_its_kernel(page: Page) -> None:
    open_stage(page, "forward")
    click_on_node(page, "tanh")
    link = "[...document.querySelectorAll('#node .link')].find((button) => button.textContent.{})"
    page.value(link.format("startsWith('backward: tanh_backward')") + ".click()")
    page.wait("drawing && stageOf().kind === 'backward' && drawing.nodes(':selected').length === 1")
    assert page.value("drawing.nodes(':selected')[0].id()").startswith("tanh_backward")
    page.value(link.format("match(/^backward\\d+/)") + ".click()")
    assert page.value("document.querySelector('#view-kernels').hidden") is False
    page.wait("document.querySelector('details.here pre').textContent.startsWith('kernel')")
    page.click("details.here .list .link")
    assert page.value("document.querySelector('#view-source').hidden") is False
    assert page.value("document.querySelectorAll('.source .here').length") == 1


def test_a_line_leads_to_its_nodes(page: Page) -> None:
    page.click("#tab-source")
    page.click(".source .chip")
    page.wait("drawing && drawing.nodes(':selected').length === 1")
    assert page.value("matches.length") >= 1


# How many pixels of the plot have a colour of the page.
PIXELS = """(name) => {
  const plot = document.querySelector("#view-memory canvas");
  const copy = make("canvas", { width: plot.width, height: plot.height });
  const context = copy.getContext("2d", { willReadFrequently: true });
  context.drawImage(plot, 0, 0);
  const wanted = [1, 3, 5].map((at) => parseInt(color(name).slice(at, at + 2), 16));
  const pixels = context.getImageData(0, 0, copy.width, copy.height).data;
  let count = 0;
  for (let at = 0; at < pixels.length; at += 4) count += wanted.every((part, i) => Math.abs(pixels[at + i] - part) < 3);
  return count;
}"""


def test_memory_has_both_curves(page: Page) -> None:
    page.click("#tab-memory")
    labels = page.value("[...document.querySelectorAll('#view-memory .u-label')].map((each) => each.textContent)")
    assert labels == ["place", "smelt", "of it saved for the backward", "eager"]
    for color in ("--one", "--two"):
        assert page.value(f"({PIXELS})('{color}')") > 200  # both are really drawn
    assert page.value("document.querySelector('#view-memory [role=img]').ariaLabel").startswith("Bytes alive")


def test_guards_and_times_are_there(page: Page) -> None:
    page.click("#tab-guards")
    text = page.value("document.querySelector('#view-guards').innerText")
    assert "must stay int64 of shape (2, 16)" in text and "gradient recording must stay on" in text
    assert "self must keep" in text and "Recompiles" in text
    page.click("#tab-time")
    text = page.value("document.querySelector('#view-time').innerText")
    assert "Where compile time went" in text and "generate" in text and "averages over 2 calls" in text


def test_every_view_has_a_link(page: Page, browser: Browser, file: Path) -> None:
    shown = "[...document.querySelectorAll('main > section')].filter((each) => !each.hidden).map((each) => each.id)"
    assert page.value(shown) == ["view-overview"]
    page.click("#tab-guards")
    assert page.value("location.hash") == "#guards" and page.value(shown) == ["view-guards"]
    page.click("#tab-time")
    page.value("history.back()")
    page.wait("location.hash === '#guards' && !document.querySelector('#view-guards').hidden")
    for name in ("source", "graphs", "time"):
        opened = browser.open(file, f"#{name}")
        assert opened.value(shown) == [f"view-{name}"] and opened.errors() == []
        assert opened.value(f"document.querySelector('#tab-{name}').getAttribute('href')") == f"#{name}"
        opened.close()


def test_it_can_be_used_by_keys_alone(page: Page) -> None:
    page.press("Tab")
    assert page.value("document.activeElement.id") == "tab-overview"
    for name in ("source", "graphs"):
        page.press("ArrowRight")
        assert page.value("document.activeElement.id") == f"tab-{name}"
        assert page.value(f"document.querySelector('#view-{name}').hidden") is False
    page.wait("Boolean(drawing)")
    reached = []
    for _ in range(9):
        page.press("Tab")
        reached.append(page.value("document.activeElement.id"))
    assert reached == ["view-graphs", "graph", "stage", "find", "closer", "farther", "fit", "canvas", ""]
    assert page.value("document.activeElement.closest('#nodes') !== null")
    page.press("Enter")
    assert page.value("document.querySelector('#node h3') !== null")
    page.value("document.querySelector('#canvas').focus()")
    page.wait("!drawing.animated()")
    before = page.value("drawing.pan()")
    page.press("ArrowDown")
    assert page.value("drawing.pan()")["y"] == before["y"] - 80


def test_a_screen_reader_finds_its_way(page: Page) -> None:
    spoken = page.spoken()
    tabs = [name for role, name in spoken if role == "tab"]
    assert tabs == ["Overview", "Source", "Graphs", "Kernels", "Memory", "Guards", "Time"]
    assert ("tabpanel", "Overview") in spoken and ("heading", "What to change") in spoken
    page.click("#tab-graphs")
    page.wait("Boolean(drawing)")
    spoken = page.spoken()
    assert {name for role, name in spoken if role == "combobox"} == {"Graph", "Stage"}
    assert ("searchbox", "Find") in spoken and ("button", "layer_norm") in spoken
    unnamed = [role for role, name in spoken if role in ("button", "tab", "combobox", "searchbox", "link") and not name]
    assert unnamed == []


def contrast(page: Page, text: str, back: str) -> float:
    def light(name: str) -> float:
        digits = page.value(f"color('{name}')").lstrip("#")
        digits = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
        parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dim, bright = sorted((light(text), light(back)))
    return (bright + 0.05) / (dim + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read_in_light_and_dark(page: Page, dark: bool) -> None:
    page.click("#tab-graphs")
    page.wait("Boolean(drawing)")
    page.look(1280, 860, dark)
    assert page.value("color('--panel')") == ("#24221e" if dark else "#fff")
    for text in ("--text", "--quiet", "--one", "--three", "--warn", "--mark"):
        for back in ("--back", "--panel"):
            assert contrast(page, text, back) >= 4.5, (text, back)
    plain = ".replaceAll(' ', '')"  # what is drawn follows too
    drawn = f"drawing.nodes('.call_function')[0].style('color'){plain}"
    page.wait(f"{drawn} === getComputedStyle(document.body).color{plain}")


def test_a_narrow_window_needs_no_scrolling_sideways(page: Page) -> None:
    page.look(420, 800)
    for name in page.value("Object.keys(views)"):
        page.value(f"show({name!r})")
        assert page.value("document.documentElement.scrollWidth") <= 420, name
