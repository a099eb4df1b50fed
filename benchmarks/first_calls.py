"""First calls of image models and of deep transformers, here and in another checkout of smelt: processor time, cold.

    python -m benchmarks.first_calls [--beside FOLDER] [--what efficientnet gpt2-12 gpt2-96] [--modes train infer]

Each is a process of its own with one thread and no disk cache; processes of the two checkouts take turns. `--beside`
is a checkout with its C part built (`git worktree add FOLDER COMMIT`, then `python setup.py build_ext --inplace`).
Image models are torchvision's and timm's; a torchvision without a library for this PyTorch will do. The last line is
how much longer GPT-2 takes with 96 layers than with 12. A first call has a later one in it, which is told beside it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
IMAGE_MODELS = ("efficientnet", "mobilenetv4", "maxvit", "deeplab", "fasterrcnn")
LAYERS = ("gpt2-12", "gpt2-96")
WHAT = (*IMAGE_MODELS, *LAYERS)

Step = Callable[[Callable[..., Any]], Any]


def build(what: str) -> tuple[Any, Step]:
    """A model, and its loss when called through what is given."""
    if what in LAYERS:
        return _gpt2(int(what.split("-")[1]))
    if what == "fasterrcnn":
        return _detector()
    return _image_model(what)


def _gpt2(layers: int) -> tuple[Any, Step]:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = {"n_embd": 64, "n_head": 2, "vocab_size": 256, "n_positions": 64}
    config = GPT2Config(n_layer=layers, use_cache=False, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, **sizes)
    ids = torch.randint(0, 256, (2, 32))
    return GPT2LMHeadModel(config), lambda model: model(input_ids=ids, labels=ids).loss


def _torchvision() -> Any:
    try:
        import torchvision
    except RuntimeError:  # its library is for another PyTorch
        from benchmarks.torchvision_operators import define

        define()
        import torchvision
    import torchvision.models

    return torchvision.models


def _image_model(what: str) -> tuple[Any, Step]:
    import torch

    images = torch.randn(2, 3, 224, 224)

    def step(model: Callable[..., Any]) -> Any:
        found = model(images)
        return (found["out"] if isinstance(found, dict) else found).square().mean()

    models = _torchvision()
    if what == "mobilenetv4":
        import timm

        return timm.create_model("mobilenetv4_conv_small"), step
    if what == "deeplab":
        return models.segmentation.deeplabv3_resnet50(weights=None, weights_backbone=None), step
    return {"efficientnet": models.efficientnet_b0, "maxvit": models.maxvit_t}[what](), step


def _detector() -> tuple[Any, Step]:
    import torch

    sizes = {"min_size": 224, "max_size": 320}
    make = _torchvision().detection.fasterrcnn_mobilenet_v3_large_fpn
    model = make(weights=None, weights_backbone=None, **sizes)
    images = [torch.rand(3, 224, 224) for _ in range(2)]
    boxes = torch.tensor([[10.0, 10.0, 60.0, 60.0], [50.0, 50.0, 150.0, 150.0]])
    targets = [{"boxes": boxes, "labels": torch.tensor([1, 2])} for _ in images]

    def step(called: Callable[..., Any]) -> Any:
        return sum(called(images, targets).values()) if model.training else called(images)[0]["boxes"].sum()

    return model, step


def once(what: str, mode: str) -> None:
    """The measured process: prints {"first": …, "later": …, "breaks": …, "kernels": …}."""
    import torch

    import smelt

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, step = build(what)
    model.train(mode == "train").requires_grad_(mode == "train")

    def run(called: Callable[..., Any]) -> float:
        before = time.process_time()
        loss = step(called)
        if mode == "train":
            loss.backward()
        return time.process_time() - before

    run(model)  # PyTorch's own first-time work is not counted
    compiled = smelt.compile(model)
    first = run(compiled)
    later = min(run(compiled) for _ in range(3))
    counts = {name: smelt.counters[name] for name in ("kernels_built", "graph_breaks")}
    print(json.dumps({"first": first, "later": later, **counts}))


def _measured(root: Path, what: str, mode: str) -> dict[str, float] | None:
    paths = [str(root / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "SMELT_CACHE": "0", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or each process would compile smelt's own files
    command = [sys.executable, "-m", "benchmarks.first_calls", "--once", what, mode]
    ran = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    if ran.returncode:
        print(f"{what}, {mode} failed in {root}: {ran.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    found: dict[str, float] = json.loads(ran.stdout.strip().splitlines()[-1])
    return found


def measure(what: str, mode: str, roots: list[Path], runs: int) -> list[float]:
    """The median first call in each checkout; prints a line."""
    figures: list[list[dict[str, float]]] = [[] for _ in roots]
    for _ in range(runs):
        for found, root in zip(figures, roots, strict=True):
            each = _measured(root, what, mode)
            if each is not None:
                found.append(each)
    if not all(figures):
        return []
    first = [statistics.median(each["first"] for each in found) for found in figures]
    later = [statistics.median(each["later"] for each in found) for found in figures]
    text = f"{what:13} {mode:6} first call {first[0]:6.2f} s, later ones {later[0]:.3f} s"
    if len(roots) > 1:
        text += f"; beside {first[1]:6.2f} s and {later[1]:.3f} s: {first[0] / first[1]:.2f}"
    print(f"{text}; kernels built {figures[0][0]['kernels_built']:.0f}", flush=True)
    return first


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.first_calls", description=__doc__.splitlines()[0])
    parser.add_argument("--what", nargs="+", choices=WHAT, default=list(WHAT))
    parser.add_argument("--modes", nargs="+", choices=("train", "infer"), default=["train", "infer"])
    parser.add_argument("--beside", type=Path, help="another checkout")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--once", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.once:
        once(*args.once)
        return 0
    roots = [ROOT, *([args.beside] if args.beside else [])]
    found = {(what, mode): measure(what, mode, roots, args.runs) for mode in args.modes for what in args.what}
    for mode in args.modes:
        few, many = (found.get((what, mode)) for what in LAYERS)
        if few and many:
            ratios = " and beside ".join(f"{b / a:.2f}" for a, b in zip(few, many, strict=True))
            print(f"GPT-2 of 96 layers over one of 12, {mode}: {ratios}")
    return int(not all(found.values()))


if __name__ == "__main__":
    sys.exit(main())
