"""Specs of operators that compute a layer as a whole: cells of recurrent ones on CUDA, attention, sampling by cuDNN,
and whether a loss is cuDNN's.

    aten._thnn_fused_gru_cell(f32[3, 18], f32[3, 18], f32[3, 6])                  → f32[3, 6], f32[3, 30]
    aten._native_multi_head_attention(f32[2, 9, 32], …, need_weights=False)       → f32[2, 9, 32], None
    aten.cudnn_grid_sampler(f32[2, 3, 5, 5], f32[2, 4, 7, 2])                     → f32[2, 3, 4, 7]

PyTorch describes of the cells the LSTM's alone, and only with biases; attention without weights as if it returned an
empty tensor; and nothing of what is cuDNN's.
"""

from typing import Any

import torch

from smelt.meta.rules.specs import row_major

_KEPT = 5  # of a GRU's cell for its backward: three gates, the old state, and what the new one is made of


def _gru_cell(input_gates: Any, hidden_gates: Any, hx: Any, input_bias: Any = None, hidden_bias: Any = None) -> Any:
    rows, width = hx.shape
    if tuple(input_gates.shape) != (rows, 3 * width) or tuple(hidden_gates.shape) != (rows, 3 * width):
        return NotImplemented
    return row_major((rows, width), hx.dtype), row_major((rows, _KEPT * width), hx.dtype)


def _gru_cell_backward(grad_hy: Any, workspace: Any, has_bias: bool) -> Any:
    rows, width = workspace.shape[0], 3 * (workspace.shape[1] // _KEPT)
    gates, bias = row_major((rows, width), workspace.dtype), row_major((width,), workspace.dtype)
    grad_hx = row_major(tuple(grad_hy.shape), grad_hy.dtype)
    return (gates, gates, grad_hx, *((bias, bias) if has_bias else (None, None)))


def _lstm_cell(input_gates: Any, hidden_gates: Any, cx: Any, input_bias: Any = None, hidden_bias: Any = None) -> Any:
    rows, width = cx.shape
    if tuple(input_gates.shape) != (rows, 4 * width) or tuple(hidden_gates.shape) != (rows, 4 * width):
        return NotImplemented
    state = row_major((rows, width), cx.dtype)
    return state, state, row_major((rows, 4 * width), input_gates.dtype)


def _lstm_cell_backward(grad_hy: Any, grad_cy: Any, cx: Any, cy: Any, workspace: Any, has_bias: bool) -> Any:
    if grad_hy is None and grad_cy is None:
        return None, None, None
    gates, state = tuple(workspace.shape), row_major(tuple(cx.shape), cx.dtype)
    bias = row_major((gates[1],), workspace.dtype) if has_bias else None
    return row_major(gates, workspace.dtype), state, bias


def _attention(query: Any, key: Any, value: Any, width: int, heads: int, qkv_weight: Any, qkv_bias: Any, weight: Any,
               bias: Any, mask: Any = None, need_weights: bool = True, average_attn_weights: bool = True,
               mask_type: int | None = None) -> Any:  # fmt: skip
    if need_weights or query.dim() != 3 or 0 in query.shape:
        return NotImplemented
    return row_major((*query.shape[:2], weight.shape[0]), query.dtype), None


def _encoder_layer(src: Any, *arguments: Any, **more: Any) -> Any:
    return row_major(tuple(src.shape), src.dtype) if src.dim() == 3 and 0 not in src.shape else NotImplemented


def _grid_sampler(value: Any, grid: Any) -> Any:
    if value.dim() != 4 or grid.dim() != 4:
        return NotImplemented
    return row_major((*value.shape[:2], *grid.shape[1:3]), value.dtype)


def _grid_sampler_backward(value: Any, grid: Any, gradient: Any) -> Any:
    return row_major(tuple(value.shape), value.dtype), row_major(tuple(grid.shape), grid.dtype)


def _is_ctc_for_cudnn(log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int) -> Any:
    """Whether a loss is cuDNN's; `NotImplemented` where PyTorch looks at more than this."""
    may_be = blank == 0 and targets.dim() == 1 and targets.dtype is torch.int32 and log_probs.dtype is torch.float32
    return NotImplemented if may_be and torch._C._get_cudnn_enabled() else False


def _is_ctc_for_miopen(*arguments: Any) -> Any:
    return NotImplemented if torch.version.hip else False


RULES: dict[str, Any] = {
    "_use_cudnn_ctc_loss.default": _is_ctc_for_cudnn,
    "_native_multi_head_attention.default": _attention,
    "_transformer_encoder_layer_fwd.default": _encoder_layer,
    "cudnn_grid_sampler.default": _grid_sampler,
    "cudnn_grid_sampler_backward.default": _grid_sampler_backward,
    "_thnn_fused_lstm_cell.default": _lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl.default": _lstm_cell_backward,
    "_thnn_fused_gru_cell.default": _gru_cell,
    "_thnn_fused_gru_cell_backward.default": _gru_cell_backward,
}
if hasattr(torch.ops.aten, "_use_miopen_ctc_loss"):  # not in all versions
    RULES["_use_miopen_ctc_loss.default"] = _is_ctc_for_miopen
