"""The pipeline as data: the passes of a graph in order, each with the reason for its position.

    torch-level graph ── TRACE ──► ATen graph, or a joint graph that is split into two ── SIMPLIFY ──► the same, simpler
                      ── LOWER ──► kernel program ──► machine code ──► a callable

Every pass names its input form and its output form. With `check_specs`, the rules of the output form are checked.
"fuse" and "generate" have tables of their own (`fuse/fusion_passes.py`, and each target's); `smelt info stages` prints
the whole map.
"""

from smelt.pipeline.passes import (
    Form,
    Pass,
    run_align_products,
    run_draw_in_kernels,
    run_fuse,
    run_generate,
    run_keep_masks,
    run_lay_images,
    run_share_heads,
    run_split,
    run_split_biases,
    run_trace_forward,
    run_trace_joint,
    simplifier,
)
from smelt.simplify import PASSES

# A graph whose gradients nobody needs.
TRACE_FORWARD = (
    Pass(
        "trace forward",
        Form.TORCH,
        Form.PURE,
        run_trace_forward,
        "decompositions apply while recording: one walk, not two",
    ),
    Pass("channels last", Form.PURE, Form.PURE, run_lay_images, "while convolutions are still to be seen as such"),
    Pass("convolution biases", Form.PURE, Form.PURE, run_split_biases, "where it is done in training"),
    Pass("share heads", Form.PURE, Form.PURE, run_share_heads, "where it is done in training"),
    Pass("aligned products", Form.PURE, Form.PURE, run_align_products, "where it is done in training"),
    Pass("draw in kernels", Form.PURE, Form.PURE, run_draw_in_kernels, "before masks are kept: these need not be"),
    Pass("keep masks", Form.PURE, Form.PURE, run_keep_masks, "for a backward inside: it keeps less until then"),
)

# A graph that is trained through.
TRACE_JOINT = (
    Pass(
        "trace joint",
        Form.TORCH,
        Form.JOINT,
        run_trace_joint,
        "the engine runs on fake tensors, so every formula is eager's own",
    ),
    Pass(
        "channels last", Form.JOINT, Form.JOINT, run_lay_images, "before the split: saved in the layout it is read in"
    ),
    Pass(
        "convolution biases",
        Form.JOINT,
        Form.JOINT,
        run_split_biases,
        "after images are laid out: sums and products then have the layout of the image",
    ),
    Pass("share heads", Form.JOINT, Form.JOINT, run_share_heads, "before the split: what is saved is what heads share"),
    Pass(
        "aligned products",
        Form.JOINT,
        Form.JOINT,
        run_align_products,
        "before the split: what a product gives is saved with its padding, and a padded weight serves both halves",
    ),
    Pass(
        "draw in kernels",
        Form.JOINT,
        Form.JOINT,
        run_draw_in_kernels,
        "before the split: the backward computes masks again",
    ),
    Pass("keep masks", Form.JOINT, Form.JOINT, run_keep_masks, "before the split: masks are saved, not what they made"),
    Pass(
        "split",
        Form.JOINT,
        Form.HALVES,
        run_split,
        "after decomposition: small pieces can be recomputed, whole operators cannot",
    ),
)

# Either half, or the forward alone.
SIMPLIFY = tuple(Pass(name, Form.PURE, Form.PURE, simplifier(run), why) for name, run, why in PASSES)

LOWER = (
    Pass("fuse", Form.PURE, Form.PROGRAM, run_fuse, "last view of the graph as a whole: groups, buffers, memory"),
    Pass(
        "generate",
        Form.PROGRAM,
        Form.EXECUTABLE,
        run_generate,
        "all kernels of a program in one module: fixed costs once",
    ),
)
