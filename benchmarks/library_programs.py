"""Programs of popular libraries, each as a function that gives a callable and its arguments.

    PROGRAMS["einops"]() → (function, (tensor,))

`benchmarks/graph_breaks.py` counts what breaks in them. What is imported is imported by the program itself: a library
that is absent leaves its programs out, and no others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.x_transformers_programs import VARIANTS

Program = tuple[Callable[..., Any], tuple[Any, ...]]

PROGRAMS: dict[str, Callable[[], Program]] = {}

DECIDED_BY_DATA = frozenset(
    {
        *("faster-rcnn", "faster-rcnn-training", "retinanet", "retinanet-training"),
        *("pyg-gcn", "pyg-gat", "kornia-canny", "x-transformers-continuous-loss", "x-transformers-xval"),
    }
)
"""Programs in which data tell sizes, or which way a branch goes."""


def _program(make: Callable[[], Program]) -> Callable[[], Program]:
    PROGRAMS[make.__name__.replace("_", "-")] = make
    return make


@_program
def einops() -> Program:
    from einops import einsum, pack, rearrange, reduce, repeat, unpack

    def function(x: torch.Tensor) -> Any:
        y = rearrange(x, "b c (h p) (w q) -> b (h w) (c p q)", p=2, q=2)
        z = repeat(reduce(y, "b n d -> b d", "mean"), "b d -> b n d", n=y.shape[1])
        both, shapes = pack([y, z], "b * d")
        first, second = unpack(both, shapes, "b * d")
        return einsum(first, second, "b n d, b m d -> b n m")

    return function, (torch.randn(2, 3, 8, 8),)


@_program
def einops_layers() -> Program:
    from einops.layers.torch import EinMix, Rearrange, Reduce

    return nn.Sequential(
        Rearrange("b c (h p) (w q) -> b (h w) (c p q)", p=2, q=2),
        EinMix("b n d -> b n e", weight_shape="d e", bias_shape="e", d=12, e=16),
        nn.LayerNorm(16),
        Reduce("b n d -> b d", "max"),
    ), (torch.randn(2, 3, 8, 8),)


@_program
def einx() -> Program:
    import einx

    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = einx.dot("b n [d], [d] e -> b n e", x, w)
        return einx.sum("b [n] e", einx.id("b n (h e) -> b h n e", y, h=4).flatten(1, 2))

    return function, (torch.randn(2, 5, 8), torch.randn(8, 16))


@_program
def sdpa_kernel() -> Program:
    from torch.nn.attention import SDPBackend
    from torch.nn.attention import sdpa_kernel as chosen

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        with chosen([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]):
            first = nn.functional.scaled_dot_product_attention(q, k, v)
        with chosen(SDPBackend.MATH):
            return first + nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    return function, (torch.randn(2, 4, 8, 16), torch.randn(2, 4, 8, 16), torch.randn(2, 4, 8, 16))


PROGRAMS |= VARIANTS


@_program
def kornia_filters() -> Program:
    import kornia

    def function(x: torch.Tensor) -> Any:
        y = kornia.filters.gaussian_blur2d(x, (5, 5), (1.5, 1.5))
        magnitude = kornia.filters.sobel(y)
        return kornia.color.rgb_to_hsv(x) + magnitude

    return function, (torch.rand(2, 3, 16, 16),)


@_program
def kornia_geometry() -> Program:
    import kornia

    def function(x: torch.Tensor, angle: torch.Tensor) -> Any:
        y = kornia.geometry.rotate(x, angle)
        return kornia.geometry.resize(y, (8, 8), antialias=True)

    return function, (torch.rand(2, 3, 16, 16), torch.tensor([10.0, 20.0]))


@_program
def kornia_canny() -> Program:
    import kornia

    return kornia.filters.Canny(), (torch.rand(2, 3, 16, 16),)


@_program
def kornia_losses() -> Program:
    import kornia

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return kornia.losses.ssim_loss(x, y, 5) + kornia.losses.total_variation(x).mean()

    return function, (torch.rand(2, 3, 16, 16), torch.rand(2, 3, 16, 16))


def _graph() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(10, 8), torch.randint(0, 10, (2, 30))


@_program
def pyg_gcn() -> Program:
    from torch_geometric.nn import GCN

    return GCN(8, 16, 2, 4), _graph()


@_program
def pyg_gat() -> Program:
    from torch_geometric.nn import GAT

    return GAT(8, 16, 2, 4, heads=2), _graph()


@_program
def pyg_sage() -> Program:
    from torch_geometric.nn import GraphSAGE

    return GraphSAGE(8, 16, 2, 4), _graph()


@_program
def pyg_gin() -> Program:
    from torch_geometric.nn import GIN, global_mean_pool

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = GIN(8, 16, 2, 4)

        def forward(self, x: torch.Tensor, edges: torch.Tensor, batch: torch.Tensor) -> Any:
            return global_mean_pool(self.layers(x, edges), batch, 2)

    return Net(), (*_graph(), torch.tensor([0] * 5 + [1] * 5))


@_program
def torchao_int8_weights() -> Program:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
    quantize_(model, Int8WeightOnlyConfig(version=2))
    return model, (torch.randn(4, 32),)


@_program
def torchao_int8_dynamic() -> Program:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
    quantize_(model, Int8DynamicActivationInt8WeightConfig(version=2))
    return model, (torch.randn(4, 32),)


def _one_process() -> None:
    import torch.distributed as dist

    if not dist.is_initialized():
        store = torch._C._distributed_c10d.HashStore()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)


@_program
def functional_collectives() -> Program:
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as funcol

    _one_process()
    group: Any = dist.group

    def function(x: torch.Tensor) -> Any:
        y = funcol.all_reduce(x.sin(), "sum", group.WORLD)
        gathered = funcol.all_gather_tensor(y + 1, 0, group.WORLD)
        part = funcol.reduce_scatter_tensor(gathered * 2, "avg", 0, group.WORLD)
        return part.cos() + y

    return function, (torch.randn(4, 8),)


@_program
def tensor_parallel() -> Program:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    _one_process()
    mesh = init_device_mesh("cpu", (1,))
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return model, (torch.randn(4, 8),)


@_program
def dtensor() -> Program:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    _one_process()
    mesh = init_device_mesh("cpu", (1,))

    def function(x: Any, w: Any) -> Any:
        y = (x @ w).relu()
        return y.redistribute(mesh, [Replicate()]).to_local().sum(-1)

    return function, (
        distribute_tensor(torch.randn(4, 8), mesh, [Shard(0)]),
        distribute_tensor(torch.randn(8, 8), mesh, [Replicate()]),
    )


@_program
def fsdp2_whole() -> Program:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    _one_process()
    mesh = init_device_mesh("cpu", (1,))
    plain = [nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)) for _ in range(2)]
    blocks: list[Any] = [fully_shard(block, mesh=mesh) for block in plain]
    whole: Any = fully_shard(nn.Sequential(*blocks), mesh=mesh)
    return whole, (torch.randn(4, 8),)


def _detection() -> None:
    """torchvision's operators in Python where its library was built for another PyTorch: capture sees no difference."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        from benchmarks.torchvision_operators import define

        define()


def _images() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.rand(3, 48, 64), torch.rand(3, 64, 48)]


def _targets() -> list[dict[str, torch.Tensor]]:
    boxes = torch.tensor([[4.0, 4.0, 30.0, 40.0], [10.0, 8.0, 40.0, 30.0]])
    return [{"boxes": boxes, "labels": torch.tensor([1, 2])} for _ in range(2)]


def _detector(name: str, train: bool) -> Program:
    _detection()
    from torchvision.models import detection

    torch.manual_seed(0)
    model = getattr(detection, name)(weights=None, weights_backbone=None, num_classes=4, min_size=64, max_size=64)
    return (model.train(), (_images(), _targets())) if train else (model.eval(), (_images(),))


@_program
def faster_rcnn() -> Program:
    return _detector("fasterrcnn_mobilenet_v3_large_320_fpn", train=False)


@_program
def faster_rcnn_training() -> Program:
    return _detector("fasterrcnn_mobilenet_v3_large_320_fpn", train=True)


@_program
def retinanet() -> Program:
    return _detector("retinanet_resnet50_fpn", train=False)


@_program
def retinanet_training() -> Program:
    return _detector("retinanet_resnet50_fpn", train=True)
