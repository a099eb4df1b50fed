"""How long the report of a model takes: to write, to open, to draw.

    python -m benchmarks.report_page [--layers 12] [--step] [--keep report.html]

A training step of GPT-2 (width 256) is recorded, with `--step` the whole step with its optimizer as one graph. The page
is opened from disk in a headless Chromium a few times: what counts is its own first contentful paint, in milliseconds
from the start of loading, and then the time until each stage's graph is drawn.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

import smelt
from tests.explain.browser import CHROMIUM, Browser


def write(path: Path, layers: int, whole: bool) -> tuple[float, float]:
    """Record a training step: seconds it took with its compilation, and seconds to write the page."""
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=layers, n_embd=256, n_head=4, vocab_size=1000, n_positions=64, bos_token_id=0, eos_token_id=0,
        attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
    )  # fmt: skip
    config.loss_type = "ForCausalLM"
    model = transformers.GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = torch.randint(0, 1000, (2, 64))

    def step() -> None:
        optimizer.zero_grad()
        model(ids, labels=ids).loss.backward()
        optimizer.step()

    compiled = smelt.compile(step) if whole else smelt.compile(model)
    began = time.perf_counter()
    with smelt.record(path, f"GPT-2, {layers} layers"):
        if whole:
            compiled()
        else:
            compiled(ids, labels=ids).loss.backward()
        ran = time.perf_counter()
    return ran - began, time.perf_counter() - ran


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--step", action="store_true", help="the whole step as one graph")
    parser.add_argument("--opens", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="where to leave the page")
    given = parser.parse_args()
    if CHROMIUM is None:
        parser.exit(1, "there is no Chromium here to open the page with\n")
    with tempfile.TemporaryDirectory() as folder:
        path = given.keep or Path(folder) / "report.html"
        ran, wrote = write(path.absolute(), given.layers, given.step)
        print(f"compiled and ran in {ran:.1f} s, page written in {wrote:.1f} s, {path.stat().st_size / 1e6:.2f} MB")
        with Browser() as browser:
            paints = []
            for _ in range(given.opens):
                page = browser.open(path.absolute())
                paints.append(page.first_paint())
                page.close()
            print(f"first paint after {statistics.median(paints):.0f} ms (from {min(paints):.0f} to {max(paints):.0f})")
            page = browser.open(path.absolute())
            page.value("show('graphs')")
            for number, name in enumerate(page.value("data.graphs[0].stages.map((stage) => stage.name)")):
                began = time.perf_counter()
                page.value(f"openGraph(0, {number})")
                nodes = page.value("drawing.nodes().length")
                print(f"{name}: {nodes} nodes drawn after {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
