"""Passes over functional ATen graphs that reduce the work to be done. `PASSES` lists them in order.

    mul = mul(x, 1.0); view = view(mul, [4, 8]); view_1 = view(view, [32]); return exp(view_1)
    →  view = view(x, [32]); return exp(view)

A pass is a function of a `Traced` and a `RewriteBudget`. It edits the graph in place and returns it. A rewrite keeps
the specs that other nodes see, never makes two results share memory that they did not share, and counts against the
opt-bisect limit. `lay_images`, `split_biases`, `share_heads`, `align_products`, `keep_masks` and the passes of
`philox_masks` are not in the list: they run on the graph of a whole training step, before it is split.
"""

from collections.abc import Callable

from smelt.base.rewrite_budget import RewriteBudget
from smelt.ir.graph import Traced
from smelt.simplify.aligned_products import align_products
from smelt.simplify.bool_masks import draw_masks
from smelt.simplify.constants import fold_constants
from smelt.simplify.convolutions.biases import split_biases
from smelt.simplify.convolutions.channels_last import lay_images
from smelt.simplify.cse import share_common
from smelt.simplify.dce import drop_dead
from smelt.simplify.dropout_masks import keep_masks
from smelt.simplify.few_elements import look_up_first
from smelt.simplify.gqa_heads import share_heads
from smelt.simplify.host_copies import await_copies
from smelt.simplify.host_scalars import place_scalars
from smelt.simplify.identities import fold_identities
from smelt.simplify.matmul_layouts import transpose_matrices
from smelt.simplify.one_hot import sum_one_hot
from smelt.simplify.scalar_operands import numbers_as_operands, why_not_operands
from smelt.simplify.views import compose_views
from smelt.simplify.wide_pads import widen_padded

SimplifyPass = Callable[[Traced, RewriteBudget], Traced]

PASSES: tuple[tuple[str, SimplifyPass, str], ...] = (
    ("host copies", await_copies, "before all: what the program waits by may go in what follows"),
    ("scalar operands", numbers_as_operands, "next: the other passes and the fuser know tensors only"),
    ("fold constants", fold_constants, "first: tensors of one value become numbers, which the identities look for"),
    ("bool masks", draw_masks, "before identities: the casts it makes meet the casts of what is kept for the backward"),
    ("matmul layouts", transpose_matrices, "before identities: a copy of what was transposed may be redundant"),
    ("fold identities", fold_identities, "before views: a copy that goes may bring two views together"),
    ("few elements", look_up_first, "after identities: a cast that does nothing is not looked through"),
    ("compose views", compose_views, "before sharing: equal views are then spelled alike"),
    ("one-hot sums", sum_one_hot, "after constants: it looks for zeros"),
    ("wide pads", widen_padded, "after one-hot sums, whose rows are then computed point by point"),
    ("host scalars", place_scalars, "after identities, which would take the copy of an input for redundant"),
    ("cse", share_common, "one node for each value, so that the fuser sees it once"),
    ("dce", drop_dead, "last: the passes above leave what they replaced behind"),
)

__all__ = [
    "PASSES",
    "SimplifyPass",
    "align_products",
    "await_copies",
    "compose_views",
    "draw_masks",
    "drop_dead",
    "fold_constants",
    "fold_identities",
    "keep_masks",
    "lay_images",
    "look_up_first",
    "numbers_as_operands",
    "place_scalars",
    "share_common",
    "share_heads",
    "split_biases",
    "sum_one_hot",
    "transpose_matrices",
    "why_not_operands",
    "widen_padded",
]
