"""torchvision's operators in Python, for a torchvision whose library was built for another PyTorch.

`define()` registers `nms` and `roi_align` under the names and schemas of the library, then imports torchvision: its own
meta functions say what they return, so a capture meets the same operators.
"""

import sys
from typing import Any

import torch


def _nms(boxes: torch.Tensor, scores: torch.Tensor, threshold: float) -> torch.Tensor:
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    order = scores.argsort(descending=True, stable=True).tolist()
    kept: list[int] = []
    for index in order:
        if kept:
            others = boxes[kept]
            low, high = torch.maximum(others[:, :2], boxes[index, :2]), torch.minimum(others[:, 2:], boxes[index, 2:])
            shared = (high - low).clamp(min=0).prod(1)
            if bool((shared / (areas[kept] + areas[index] - shared) > threshold).any()):
                continue
        kept.append(index)
    return torch.tensor(kept, dtype=torch.int64)


def _roi_align(
    images: torch.Tensor, rois: torch.Tensor, scale: float, height: int, width: int, ratio: int, aligned: bool
) -> torch.Tensor:
    """One sample in the middle of each bin: enough for counting breaks, and differentiable."""
    shift = 0.5 if aligned else 0.0
    batch = rois[:, 0].long()
    x1, y1, x2, y2 = (rois[:, 1:] * scale - shift).unbind(1)
    columns = x1[:, None] + (x2 - x1)[:, None] * (torch.arange(width) + 0.5) / width
    lines = y1[:, None] + (y2 - y1)[:, None] * (torch.arange(height) + 0.5) / height
    columns = columns.round().long().clamp(0, images.shape[3] - 1)
    lines = lines.round().long().clamp(0, images.shape[2] - 1)
    return images.permute(0, 2, 3, 1)[batch[:, None, None], lines[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


_library = torch.library.Library("torchvision", "DEF")


def define() -> None:
    """Registers the operators, and imports torchvision."""
    _library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _library.define(
        "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
        "int sampling_ratio, bool aligned) -> Tensor"
    )
    for name in ("ps_roi_align", "roi_pool", "ps_roi_pool", "deform_conv2d", "qnms", "_roi_align_backward"):
        _library.define(f"{name}(Tensor input) -> Tensor")
    _library.impl("nms", _nms, "CPU")
    _library.impl("roi_align", _roi_align, "CompositeImplicitAutograd")
    import torchvision.extension
    import torchvision.ops

    modules: list[Any] = [torchvision.extension, sys.modules["torchvision.ops.roi_align"]]
    for module in modules:
        module._has_ops = lambda: True
