"""Operators in kernels, alone and with their neighbours, beside eager: `python -m benchmarks.operators [name …]`.

Each line: eager's time, ours, and eager over ours (above one: faster), the median of rounds in which both take turns.
A small size shows what a call costs, a large one what the loop does.
"""

import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import smelt
from benchmarks.measure import interleaved, ratio

Case = tuple[Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]]]


def _rows(count: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, count, shape, generator=torch.Generator().manual_seed(0))


def _of(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def _embedding(tokens: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return F.embedding(tokens, table)


def _summed(token: torch.Tensor, kind: torch.Tensor, tokens: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
    """As the first layer of an encoder has it."""
    found = F.embedding(tokens, token) + F.embedding(kinds, kind)
    return F.layer_norm(found, found.shape[-1:])


def _entropy(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, target)


def _step(function: Callable[..., torch.Tensor], args: tuple[torch.Tensor, ...]) -> Callable[[], object]:
    """A call, and the backward where something requires it."""
    wanted = [each for each in args if each.requires_grad]
    if not wanted:
        return lambda: function(*args)
    return lambda: torch.autograd.grad(function(*args).sum(), wanted)


CASES: dict[str, Case] = {
    "embedding 8×64 of 1000×64": (_embedding, lambda: (_rows(1000, 8), _of(1000, 64))),
    "embedding 8×128 of 30000×256": (_embedding, lambda: (_rows(30000, 8, 128), _of(30000, 256))),
    "embedding 16×512 of 30000×768": (_embedding, lambda: (_rows(30000, 16, 512), _of(30000, 768))),
    "two embeddings and a layer norm 16×512×768": (
        _summed,
        lambda: (_of(30000, 768), _of(2, 768), _rows(30000, 16, 512), _rows(2, 16, 512)),
    ),
    "gather 64×64": (lambda x, i: x.gather(1, i), lambda: (_of(64, 64), _rows(64, 64, 64))),
    "gather along rows 2048×1024": (lambda x, i: x.gather(1, i), lambda: (_of(2048, 1024), _rows(1024, 2048, 1024))),
    "gather along columns 2048×1024": (lambda x, i: x.gather(0, i), lambda: (_of(2048, 1024), _rows(2048, 2048, 1024))),
    "gather times 2 plus x 2048×1024": (
        lambda x, i: x.gather(1, i) * 2 + x,
        lambda: (_of(2048, 1024), _rows(1024, 2048, 1024)),
    ),
    "gather one a row 8192×1024": (lambda x, i: x.gather(1, i), lambda: (_of(8192, 1024), _rows(1024, 8192, 1))),
    "index_select rows 4096 of 8192×512": (
        lambda x, i: x.index_select(0, i),
        lambda: (_of(8192, 512), _rows(8192, 4096)),
    ),
    "index_select columns 256 of 4096×512": (
        lambda x, i: x.index_select(1, i),
        lambda: (_of(4096, 512), _rows(512, 256)),
    ),
    "index rows 4096 of 8192×512": (lambda x, i: x[i], lambda: (_of(8192, 512), _rows(8192, 4096))),
    "index columns 256 of 4096×512": (lambda x, i: x[:, i], lambda: (_of(4096, 512), _rows(512, 256))),
    "index by two 2048×64 of 1024×1024": (
        lambda x, i, j: x[i, j],
        lambda: (_of(1024, 1024), _rows(1024, 2048, 1), _rows(1024, 64)),
    ),
    "cross entropy 64×10": (_entropy, lambda: (_of(64, 10), _rows(10, 64))),
    "cross entropy 512×30000": (_entropy, lambda: (_of(512, 30000), _rows(30000, 512))),
    "cross entropy with gradient 512×30000": (_entropy, lambda: (_of(512, 30000).requires_grad_(), _rows(30000, 512))),
    "cross entropy of pixels 4×20×64×64": (_entropy, lambda: (_of(4, 20, 64, 64), _rows(20, 4, 64, 64))),
    "cross entropy of pixels with gradient 4×20×64×64": (
        _entropy,
        lambda: (_of(4, 20, 64, 64).requires_grad_(), _rows(20, 4, 64, 64)),
    ),
    "one-hot 8192×64": (
        lambda x, i: torch.zeros_like(x).scatter(1, i, 1.0),
        lambda: (_of(8192, 64), _rows(64, 8192, 1)),
    ),
    "scatter one a row 4096×1000": (lambda x, i: x.scatter(1, i, 1.0), lambda: (_of(4096, 1000), _rows(1000, 4096, 1))),
    "gather one a row with gradient 4096×1000": (
        lambda x, i: x.log_softmax(1).gather(1, i),
        lambda: (_of(4096, 1000).requires_grad_(), _rows(1000, 4096, 1)),
    ),
    "average pooling 3 by 2, 8×32×56×56": (lambda x: F.avg_pool2d(x, 3, 2), lambda: (_of(8, 32, 56, 56),)),
    "average pooling 2 with gradient 8×32×56×56": (
        lambda x: F.avg_pool2d(x, 2),
        lambda: (_of(8, 32, 56, 56).requires_grad_(),),
    ),
    "average pooling 2, channels last, 8×32×56×56": (
        lambda x: F.avg_pool2d(x, 2),
        lambda: (_of(8, 32, 56, 56).to(memory_format=torch.channels_last),),
    ),
    "max pooling 2, 8×32×56×56": (lambda x: F.max_pool2d(x, 2), lambda: (_of(8, 32, 56, 56),)),
    "max pooling 3 by 2 with edges, 8×32×56×56": (lambda x: F.max_pool2d(x, 3, 2, 1), lambda: (_of(8, 32, 56, 56),)),
    "max pooling 2 with gradient 8×32×56×56": (
        lambda x: F.max_pool2d(x, 2),
        lambda: (_of(8, 32, 56, 56).requires_grad_(),),
    ),
    "max pooling 3 by 2 with edges and gradient": (
        lambda x: F.max_pool2d(x, 3, 2, 1),
        lambda: (_of(8, 32, 56, 56).requires_grad_(),),
    ),
    "max pooling 3 by 2 with edges and gradient, channels last": (
        lambda x: F.max_pool2d(x, 3, 2, 1),
        lambda: (_of(8, 32, 56, 56).to(memory_format=torch.channels_last).requires_grad_(),),
    ),
    "bilinear twice 8×32×28×28": (
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        lambda: (_of(8, 32, 28, 28),),
    ),
    "bilinear twice with gradient 8×32×28×28": (
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        lambda: (_of(8, 32, 28, 28).requires_grad_(),),
    ),
    "bilinear to 50×50 with corners and gradient 8×32×28×28": (
        lambda x: F.interpolate(x, (50, 50), mode="bilinear", align_corners=True),
        lambda: (_of(8, 32, 28, 28).requires_grad_(),),
    ),
    "bilinear four times with gradient 4×32×16×16": (
        lambda x: F.interpolate(x, scale_factor=4, mode="bilinear"),
        lambda: (_of(4, 32, 16, 16).requires_grad_(),),
    ),
    "bilinear halved with gradient 8×32×56×56": (
        lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear"),
        lambda: (_of(8, 32, 56, 56).requires_grad_(),),
    ),
    "bilinear twice, channels last, with gradient 8×32×28×28": (
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        lambda: (_of(8, 32, 28, 28).to(memory_format=torch.channels_last).requires_grad_(),),
    ),
    "bilinear twice with gradient 1×3×8×8": (
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        lambda: (_of(1, 3, 8, 8).requires_grad_(),),
    ),
    "bicubic twice with gradient 8×32×28×28": (
        lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
        lambda: (_of(8, 32, 28, 28).requires_grad_(),),
    ),
    "linear twice with gradient 8×32×512": (
        lambda x: F.interpolate(x, scale_factor=2, mode="linear"),
        lambda: (_of(8, 32, 512).requires_grad_(),),
    ),
    "nearest twice 8×32×28×28": (lambda x: F.interpolate(x, scale_factor=2), lambda: (_of(8, 32, 28, 28),)),
    "nearest twice with gradient 8×32×28×28": (
        lambda x: F.interpolate(x, scale_factor=2),
        lambda: (_of(8, 32, 28, 28).requires_grad_(),),
    ),
    "embedding with gradient 8×128 of 30000×256": (
        _embedding,
        lambda: (_rows(30000, 8, 128), _of(30000, 256).requires_grad_()),
    ),
    "embedding with gradient 8×128 of 1000×256": (
        _embedding,
        lambda: (_rows(1000, 8, 128), _of(1000, 256).requires_grad_()),
    ),
    "two embeddings, a layer norm and gradient 8×128×256": (
        _summed,
        lambda: (_of(1000, 256).requires_grad_(), _of(2, 256), _rows(1000, 8, 128), _rows(2, 8, 128)),
    ),
    "index_add 4096 to 1000×256": (
        lambda x, i, s: x.index_add(0, i, s),
        lambda: (_of(1000, 256), _rows(1000, 4096), _of(4096, 256)),
    ),
    "index_add of a product 4096 to 1000×256": (
        lambda x, i, s: x.index_add(0, i, s.tanh() * s),
        lambda: (_of(1000, 256), _rows(1000, 4096), _of(4096, 256)),
    ),
    "index_add columns 256×1000": (
        lambda x, i, s: x.index_add(1, i, s),
        lambda: (_of(256, 1000), _rows(1000, 1024), _of(256, 1024)),
    ),
    "index_add of one dim 100000 to 1000": (
        lambda x, i, s: x.index_add(0, i, s),
        lambda: (_of(1000), _rows(1000, 100000), _of(100000)),
    ),
    "index_add 8 to 1000×64": (
        lambda x, i, s: x.index_add(0, i, s),
        lambda: (_of(1000, 64), _rows(1000, 8), _of(8, 64)),
    ),
    "index_put rows 1024 of 4096×256": (
        lambda x, i, s: x.index_put([i], s),
        lambda: (_of(4096, 256), torch.randperm(4096)[:1024], _of(1024, 256)),
    ),
    "index_put added, by two, 2048×64 of 1024×1024": (
        lambda x, i, j, s: x.index_put([i, j], s, True),
        lambda: (_of(1024, 1024), _rows(1024, 2048, 1), _rows(1024, 64), _of(2048, 64)),
    ),
    "index with gradient 4096 of 8192×512": (
        lambda x, i: x[i],
        lambda: (_of(8192, 512).requires_grad_(), _rows(8192, 4096)),
    ),
    "gather with gradient, rows, 2048×1024": (
        lambda x, i: x.gather(1, i),
        lambda: (_of(2048, 1024).requires_grad_(), _rows(1024, 2048, 1024)),
    ),
    "scatter_add rows 2048×1024": (
        lambda x, i, s: x.scatter_add(1, i, s),
        lambda: (_of(2048, 1024), _rows(1024, 2048, 1024), _of(2048, 1024)),
    ),
    "scatter_add columns 2048×1024": (
        lambda x, i, s: x.scatter_add(0, i, s),
        lambda: (_of(2048, 1024), _rows(2048, 2048, 1024), _of(2048, 1024)),
    ),
    "scatter_add expanded 8192×128 to 1000": (
        lambda x, i, s: x.scatter_add(0, i[:, None].expand(-1, 128), s),
        lambda: (_of(1000, 128), _rows(1000, 8192), _of(8192, 128)),
    ),
    "scatter 2048×256 of 2048×1024": (
        lambda x, i, s: x.scatter(1, i, s),
        lambda: (_of(2048, 1024), _rows(1024, 2048, 256), _of(2048, 256)),
    ),
    "scatter_reduce amax 2048×1024": (
        lambda x, i, s: x.scatter_reduce(1, i, s, "amax"),
        lambda: (_of(2048, 1024), _rows(1024, 2048, 1024), _of(2048, 1024)),
    ),
    "cumsum along rows 2048×1024": (lambda x: x.cumsum(1), lambda: (_of(2048, 1024),)),
    "cumsum down columns 2048×1024": (lambda x: x.cumsum(0), lambda: (_of(2048, 1024),)),
    "cumsum between 8×256×512": (lambda x: x.cumsum(1), lambda: (_of(8, 256, 512),)),
    "cumsum of softmax 2048×1024": (lambda x: x.softmax(1).cumsum(1), lambda: (_of(2048, 1024),)),
    "cumsum of a mask 16×512": (lambda x: (x > 0).cumsum(1), lambda: (_of(16, 512),)),
    "cumsum with gradient 2048×1024": (lambda x: x.cumsum(1), lambda: (_of(2048, 1024).requires_grad_(),)),
    "cumprod along rows 2048×1024": (lambda x: x.cumprod(1), lambda: (_of(2048, 1024),)),
    **{
        f"{name} 1024×1024": (lambda x, name=name: getattr(x, name)(), lambda: (_of(1024, 1024).sigmoid(),))
        for name in ("acos", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "tan")
    },
    "acosh 1024×1024": (lambda x: x.acosh(), lambda: (_of(1024, 1024).exp() + 1,)),
    "atan2 1024×1024": (lambda y, x: y.atan2(x), lambda: (_of(1024, 1024), _of(1024, 1024).t())),
    "asinh of a sum, times x 1024×1024": (lambda x: (x + 1).asinh() * x, lambda: (_of(1024, 1024),)),
    "cummax along rows 2048×1024": (lambda x: x.cummax(1), lambda: (_of(2048, 1024),)),
    "cummax down columns 2048×1024": (lambda x: x.cummax(0), lambda: (_of(2048, 1024),)),
    "cummin without places 2048×1024": (lambda x: x.cummin(1).values, lambda: (_of(2048, 1024),)),
    "cummax with gradient 512×1024": (lambda x: x.cummax(1).values, lambda: (_of(512, 1024).requires_grad_(),)),
    "cummax 8×64": (lambda x: x.cummax(1), lambda: (_of(8, 64),)),
    "logcumsumexp along rows 512×1024": (lambda x: x.logcumsumexp(1), lambda: (_of(512, 1024),)),
    "logcumsumexp down columns 512×1024": (lambda x: x.logcumsumexp(0), lambda: (_of(512, 1024),)),
    "logcumsumexp with gradient 512×1024": (
        lambda x: x.logcumsumexp(1),
        lambda: (_of(512, 1024).requires_grad_(),),
    ),
    "logcumsumexp 8×64": (lambda x: x.logcumsumexp(1), lambda: (_of(8, 64),)),
    "cumsum 8×64": (lambda x: x.cumsum(1), lambda: (_of(8, 64),)),
    "flip along rows 2048×1024": (lambda x: x.flip(1), lambda: (_of(2048, 1024),)),
    "flip down columns 2048×1024": (lambda x: x.flip(0), lambda: (_of(2048, 1024),)),
    "roll along rows 2048×1024": (lambda x: x.roll(3, 1), lambda: (_of(2048, 1024),)),
    "roll down columns 2048×1024": (lambda x: x.roll(3, 0), lambda: (_of(2048, 1024),)),
    "roll along both, as windows are shifted 4×56×56×96": (
        lambda x: x.roll((-3, -3), (1, 2)),
        lambda: (_of(4, 56, 56, 96),),
    ),
    "pad along rows 2048×1024": (lambda x: F.pad(x, (4, 4)), lambda: (_of(2048, 1024),)),
    "pad images 8×32×56×56": (lambda x: F.pad(x, (1, 1, 1, 1)), lambda: (_of(8, 32, 56, 56),)),
    "pad images, then relu 8×32×56×56": (lambda x: F.pad(x, (1, 1, 1, 1)).relu(), lambda: (_of(8, 32, 56, 56),)),
    "pad images with gradient 8×32×56×56": (
        lambda x: F.pad(x, (1, 1, 1, 1)),
        lambda: (_of(8, 32, 56, 56).requires_grad_(),),
    ),
    "pad images, reflected 8×32×56×56": (
        lambda x: F.pad(x, (3, 3, 3, 3), mode="reflect"),
        lambda: (_of(8, 32, 56, 56),),
    ),
    "pad images, reflected, with gradient 8×32×56×56": (
        lambda x: F.pad(x, (3, 3, 3, 3), mode="reflect"),
        lambda: (_of(8, 32, 56, 56).requires_grad_(),),
    ),
    "pad images, edges 8×32×56×56": (
        lambda x: F.pad(x, (3, 3, 3, 3), mode="replicate"),
        lambda: (_of(8, 32, 56, 56),),
    ),
    "pad 8×64": (lambda x: F.pad(x, (1, 1)), lambda: (_of(8, 64),)),
    "repeat 4 heads 16×64×256": (lambda x: x.repeat(1, 4, 1), lambda: (_of(16, 64, 256),)),
    "repeat along the last 16×64×64": (lambda x: x.repeat(1, 1, 4), lambda: (_of(16, 64, 64),)),
    "index by one of one, times 2, 64": (lambda x, i: x[i] * 2, lambda: (_of(64), _rows(64, 64))),
}


def main() -> None:
    names = sys.argv[1:]
    for name, (function, made) in CASES.items():
        if names and not any(each in name for each in names):
            continue
        args = made()
        steps = {"eager": _step(function, args), "smelt": _step(smelt.compile(function), args)}
        for step in steps.values():
            for _ in range(3):
                step()
        seconds = interleaved(steps, rounds=11, per_round=0.03)
        eager, mine = (statistics.median(seconds[which]) * 1e6 for which in ("eager", "smelt"))
        print(f"{name:49} {eager:10.1f} µs {mine:10.1f} µs {ratio(seconds, 'eager', 'smelt'):6.2f}", flush=True)


if __name__ == "__main__":
    main()
