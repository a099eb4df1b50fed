"""The page of examples/deploy/web in a real browser: it loads the model, and shows what PyTorch would say."""

import functools
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from examples.deploy.web.make_page import SHAPES, Shapes, drawn, make_page, trained
from tests.explain.browser import CHROMIUM, Browser

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no browser")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    extensions_map = http.server.SimpleHTTPRequestHandler.extensions_map | {
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def model() -> Shapes:
    torch.manual_seed(0)
    model = trained(1)
    with torch.no_grad():
        for parameter in model.parameters():  # so that it is of decided opinions
            parameter.mul_(3)
    return model


@pytest.fixture(scope="module")
def address(model: Shapes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("shapes")
    make_page(folder, model)
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/index.html"
        server.shutdown()
        thread.join()


def test_the_page_says_what_pytorch_says(model: Shapes, address: str) -> None:
    draw = torch.Generator().manual_seed(5)
    with Browser() as browser:
        page = browser.open(address)
        page.wait("document.querySelector('#answer').textContent === 'Ready'")
        for shape in range(len(SHAPES)):
            picture = drawn(shape, draw)
            with torch.no_grad():
                want = model(picture.reshape(1, 1, *picture.shape))[0]
            found = torch.tensor(page.value(f"classify(Float32Array.from({json.dumps(picture.flatten().tolist())}))"))
            torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-6)
        page.value("window.box = document.querySelector('#canvas').getBoundingClientRect(); 0")
        box = page.value("[box.x, box.y, box.width]")
        for kind, share in (("mousePressed", 0.2), ("mouseMoved", 0.5), ("mouseMoved", 0.8), ("mouseReleased", 0.8)):
            x, y = box[0] + share * box[2], box[1] + 0.5 * box[2]
            page.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        page.wait("document.querySelector('#answer').textContent !== 'Ready'")
        assert page.value("document.querySelector('#answer').textContent") in SHAPES
        assert page.errors() == []
