"""Examples of every public class of `torch.nn`: how it is built, what it is called with, what is known of it.

`EXAMPLES` is the table; `NOT_CALLABLE` lists the public classes of which there is nothing to run, with the reason.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Example:
    """A module, its inputs (float tensors want gradients), and the breaks it is known to have."""

    covers: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, ...]]
    note: str = ""  # told apart from other examples of the same class by this
    training: int = 0  # breaks in training mode, and …
    evaluation: int = 0
    why: str = ""
    settles: bool = True  # whether a second call with the same input captures nothing any more
    modes: tuple[bool, ...] = (True, False)  # training, evaluation

    @property
    def name(self) -> str:
        return f"{self.covers}-{self.note}" if self.note else self.covers


def floats(*shape: int) -> Tensor:
    return torch.randn(*shape).requires_grad_()


def ints(high: int, *shape: int) -> Tensor:
    return torch.randint(high, shape)


def positive(*shape: int) -> Tensor:
    return (torch.rand(*shape) * 0.8 + 0.1).requires_grad_()


def signs(*shape: int) -> Tensor:
    return (torch.randint(2, shape) * 2 - 1).float()


def example(
    covers: str, *arguments: Any, shapes: Any, note: str = "", known: dict[str, Any] | None = None, **keywords: Any
) -> Example:
    """A class called with float tensors of the given shapes, or with what the function `shapes` gives."""
    make = shapes if callable(shapes) else lambda: tuple(floats(*shape) for shape in shapes)
    return Example(covers, lambda: getattr(nn, covers)(*arguments, **keywords), make, note, **(known or {}))


# --- modules written round the classes that hold others -----------------------------------------------


class UsesList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)])
        self.layers.append(nn.LayerNorm(6))

    def forward(self, x: Tensor) -> Tensor:
        for place, layer in enumerate(self.layers):
            x = layer(x) + place
        return self.layers[-1](x) + len(self.layers) + self.layers[1:][0](x)


class UsesDict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"one": nn.Linear(6, 4), "two": nn.Linear(6, 4)})
        self.parts["last"] = nn.GELU()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        found = {name: part(x) for name, part in self.parts.items()}
        if "two" in self.parts:
            found["sum"] = self.parts["one"](x) + self.parts["two"](x)
        return found


class UsesParameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.listed = nn.ParameterList([nn.Parameter(torch.randn(6)) for _ in range(3)])
        self.named = nn.ParameterDict({"scale": nn.Parameter(torch.randn(6)), "shift": nn.Parameter(torch.randn(6))})

    def forward(self, x: Tensor) -> Tensor:
        for place, parameter in enumerate(self.listed):
            x = x * parameter + self.listed[place // 2]
        for name, parameter in self.named.items():
            x = x + parameter if name == "shift" else x * parameter
        return x * self.named["scale"] + len(self.listed) + len(self.named)


class OwnModule(nn.Module):
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))
        self.register_buffer("scale", torch.ones(6))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.scale = self.scale * 0.9 + x.detach().mean(0) * 0.1
            self.seen += 1
        return torch.tanh(x @ self.weight) * self.scale


class Unpooling(nn.Module):
    """A MaxUnpool with the pool that gives it its indices."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.pool = getattr(nn, f"MaxPool{dimensions}d")(2, stride=2, return_indices=True)
        self.unpool = getattr(nn, f"MaxUnpool{dimensions}d")(2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        pooled, places = self.pool(x)
        found: Tensor = self.unpool(pooled * 2, places, output_size=x.shape)
        return found


def seeded(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A norm with its scale and running values away from 1 and 0, so that they count."""

    def made() -> nn.Module:
        module = build()
        with torch.no_grad():
            for value in (*module.parameters(), *module.buffers()):
                if value.is_floating_point() and not isinstance(value, nn.parameter.UninitializedTensorMixin):
                    value.copy_(torch.rand_like(value) + 0.5)
        return module

    return made


def norm(
    covers: str,
    *arguments: Any,
    shape: tuple[int, ...],
    note: str = "",
    known: dict[str, Any] | None = None,
    **keywords: Any,
) -> Example:
    return Example(
        covers,
        seeded(lambda: getattr(nn, covers)(*arguments, **keywords)),
        lambda: (floats(*shape),),
        note,
        **(known or {}),
    )


# --- the rows, by the file of torch.nn.modules they come from ------------------------------------------


def breaks(number: int, why: str, **more: Any) -> dict[str, Any]:
    return {"training": number, "evaluation": number, "why": why, **more}


OLD_FUNCTION = breaks(4, "it is an autograd.Function, which only Python can call")
NEGATIVE = breaks(1, "it raises if any variance is negative, so it reads the data")
LENGTHS = breaks(1, "how far it goes is read from the tensors of lengths")
CLUSTERS = breaks(6, "how many rows fall into each cluster is in the data")

ACTIVATIONS = [
    example(name, shapes=[(5, 7)])
    for name in [
        "ReLU",
        "ReLU6",
        "SELU",
        "SiLU",
        "Sigmoid",
        "Tanh",
        "Softsign",
        "Tanhshrink",
        "LogSigmoid",
        "Mish",
        "Hardsigmoid",
        "Hardswish",
        "Hardtanh",
        "Hardshrink",
        "Softshrink",
        "CELU",
        "ELU",
        "GELU",
        "LeakyReLU",
        "Softplus",
        "RReLU",
        "PReLU",
    ]
] + [
    example("ReLU", inplace=True, shapes=[(5, 7)], note="inplace"),
    example("SiLU", inplace=True, shapes=[(5, 7)], note="inplace"),
    example("RReLU", 0.1, 0.4, inplace=True, shapes=[(5, 7)], note="inplace"),
    example("GELU", "tanh", shapes=[(5, 7)], note="tanh"),
    example("Softplus", 2.0, 0.5, shapes=[(5, 7)], note="threshold"),
    example("PReLU", 7, shapes=[(5, 7)], note="channels"),
    example("Threshold", 0.1, 20.0, shapes=[(5, 7)]),
    example("GLU", shapes=[(5, 8)]),
    example("Softmax", 1, shapes=[(5, 7)]),
    example("Softmax2d", shapes=[(2, 3, 4, 5)]),
    example("Softmin", 0, shapes=[(5, 7)]),
    example("LogSoftmax", 1, shapes=[(5, 7)]),
    example("MultiheadAttention", 8, 2, batch_first=True, shapes=[(2, 5, 8), (2, 6, 8), (2, 6, 8)]),
    example("MultiheadAttention", 8, 2, dropout=0.2, shapes=[(5, 2, 8), (6, 2, 8), (6, 2, 8)], note="dropout"),
    example(
        "MultiheadAttention",
        8,
        2,
        kdim=4,
        vdim=6,
        add_bias_kv=True,
        add_zero_attn=True,
        shapes=[(5, 2, 8), (7, 2, 4), (7, 2, 6)],
        note="kdim",
    ),
]

CONVOLUTIONS = [
    example("Conv1d", 3, 4, 3, padding="same", shapes=[(2, 3, 9)]),
    example("Conv2d", 4, 6, 3, stride=2, padding=1, groups=2, shapes=[(2, 4, 7, 8)]),
    example(
        "Conv2d", 3, 4, (3, 2), dilation=2, padding=2, padding_mode="circular", shapes=[(2, 3, 7, 8)], note="circular"
    ),
    example("Conv2d", 3, 4, 3, padding=1, padding_mode="reflect", bias=False, shapes=[(3, 7, 8)], note="unbatched"),
    example("Conv3d", 2, 3, 2, shapes=[(2, 2, 4, 5, 4)]),
    example("ConvTranspose1d", 3, 4, 3, stride=2, shapes=[(2, 3, 6)]),
    example("ConvTranspose2d", 4, 6, 3, stride=2, padding=1, output_padding=1, groups=2, shapes=[(2, 4, 5, 4)]),
    example(
        "ConvTranspose2d",
        3,
        4,
        3,
        stride=2,
        shapes=lambda: (floats(2, 3, 5, 4), [12, 10]),
        note="output_size",
    ),
    example("ConvTranspose3d", 2, 3, 2, shapes=[(2, 2, 3, 3, 4)]),
    example("LazyConv1d", 4, 3, shapes=[(2, 3, 9)]),
    example("LazyConv2d", 4, 3, shapes=[(2, 3, 6, 7)]),
    example("LazyConv3d", 3, 2, shapes=[(2, 2, 4, 5, 4)]),
    example("LazyConvTranspose1d", 4, 3, shapes=[(2, 3, 6)]),
    example("LazyConvTranspose2d", 4, 3, shapes=[(2, 3, 5, 4)]),
    example("LazyConvTranspose3d", 3, 2, shapes=[(2, 2, 3, 3, 4)]),
    example("Unfold", (2, 3), padding=1, shapes=[(2, 3, 5, 6)]),
    example("Fold", (4, 5), (2, 2), shapes=[(2, 12, 12)]),
]

POOLS = [
    example("AvgPool1d", 3, 2, shapes=[(2, 3, 9)]),
    example("AvgPool2d", 3, 2, padding=1, count_include_pad=False, ceil_mode=True, shapes=[(2, 3, 8, 9)]),
    example("AvgPool3d", 2, shapes=[(2, 2, 4, 5, 6)]),
    example("MaxPool1d", 3, 2, shapes=[(2, 3, 9)]),
    example("MaxPool2d", 3, 2, padding=1, dilation=2, ceil_mode=True, shapes=[(2, 3, 9, 10)]),
    example("MaxPool2d", 2, return_indices=True, shapes=[(2, 3, 6, 8)], note="indices"),
    example("MaxPool3d", 2, shapes=[(2, 2, 4, 5, 6)]),
    *(
        Example(f"MaxUnpool{n}d", lambda n=n: Unpooling(n), lambda n=n: (floats(2, 2, *(4, 5, 6)[:n]),))
        for n in (1, 2, 3)
    ),
    example("FractionalMaxPool2d", 2, output_size=(3, 4), shapes=[(2, 3, 7, 8)]),
    example("FractionalMaxPool2d", 3, output_ratio=0.5, return_indices=True, shapes=[(2, 3, 7, 8)], note="ratio"),
    example("FractionalMaxPool3d", 2, output_size=(2, 3, 2), shapes=[(2, 2, 5, 6, 5)]),
    *(example(f"LPPool{n}d", 2, 2, shapes=lambda n=n: (positive(2, 3, *(6, 5, 4)[:n]),)) for n in (1, 2, 3)),
    example("AdaptiveAvgPool1d", 3, shapes=[(2, 3, 8)]),
    example("AdaptiveAvgPool2d", (3, None), shapes=[(2, 3, 8, 7)]),
    example("AdaptiveAvgPool2d", 1, shapes=[(2, 3, 8, 7)], note="global"),
    example("AdaptiveAvgPool1d", 1, shapes=lambda: (floats(2, 8, 3).mT,), note="strided"),
    example(
        "AdaptiveAvgPool2d",
        1,
        shapes=lambda: (floats(2, 3, 8, 7).to(memory_format=torch.channels_last),),
        note="channels-last",
    ),
    example("AdaptiveAvgPool3d", 2, shapes=[(2, 3, 5, 4, 6)]),
    example("AdaptiveMaxPool1d", 3, shapes=[(2, 3, 8)]),
    example("AdaptiveMaxPool2d", (3, None), shapes=[(2, 3, 8, 7)]),
    example("AdaptiveMaxPool3d", 2, return_indices=True, shapes=[(2, 3, 5, 4, 6)]),
]

SPATIAL = {1: (2, 3, 6), 2: (2, 3, 5, 6), 3: (2, 3, 4, 5, 6)}
PADS = {1: (2, 1), 2: (1, 2, 2, 1), 3: (1, 2, 2, 1, 0, 1)}
PADDINGS = [
    *(
        example(f"{kind}Pad{n}d", PADS[n], shapes=[SPATIAL[n]])
        for kind in ("Circular", "Reflection", "Replication", "Zero")
        for n in PADS
    ),
    *(example(f"ConstantPad{n}d", PADS[n], 1.5, shapes=[SPATIAL[n]]) for n in PADS),
    example("ZeroPad2d", (-1, 2, 0, -1), shapes=[(2, 3, 5, 6)], note="negative"),
]

NORMS = [
    *(norm(f"BatchNorm{n}d", 3, shape=SPATIAL[n]) for n in SPATIAL),
    norm("BatchNorm1d", 5, momentum=None, shape=(6, 5), note="averaging"),
    norm("BatchNorm2d", 3, affine=False, track_running_stats=False, shape=SPATIAL[2], note="bare"),
    *(norm(f"InstanceNorm{n}d", 3, shape=SPATIAL[n]) for n in SPATIAL),
    norm("InstanceNorm2d", 3, affine=True, track_running_stats=True, shape=SPATIAL[2], note="tracking"),
    *(norm(f"LazyBatchNorm{n}d", shape=SPATIAL[n]) for n in SPATIAL),
    *(norm(f"LazyInstanceNorm{n}d", shape=SPATIAL[n]) for n in SPATIAL),
    norm("SyncBatchNorm", 3, shape=SPATIAL[2], known={"modes": (False,)}),
    norm("LayerNorm", (5, 6), shape=(2, 3, 5, 6)),
    norm("LayerNorm", 6, bias=False, shape=(4, 6), note="unbiased"),
    norm("RMSNorm", 6, shape=(2, 5, 6)),
    norm("GroupNorm", 2, 6, shape=(2, 6, 5)),
    norm("LocalResponseNorm", 2, shape=(2, 5, 4, 4)),
    norm("CrossMapLRN2d", 2, shape=(2, 5, 4, 4), known=OLD_FUNCTION),
]

RECURRENT = [
    example("RNN", 4, 6, 2, nonlinearity="relu", shapes=[(5, 2, 4)]),
    example("LSTM", 4, 6, 2, batch_first=True, bidirectional=True, shapes=[(2, 5, 4)]),
    example(
        "LSTM",
        4,
        6,
        2,
        dropout=0.3,
        proj_size=3,
        shapes=lambda: (floats(5, 2, 4), (floats(2, 2, 3), floats(2, 2, 6))),
        note="projection",
    ),
    example("GRU", 4, 6, 2, dropout=0.3, shapes=[(5, 2, 4), (2, 2, 6)]),
    example("GRU", 4, 6, shapes=[(5, 4)], note="unbatched"),
    example("RNNCell", 4, 6, shapes=[(3, 4), (3, 6)]),
    example("LSTMCell", 4, 6, shapes=lambda: (floats(3, 4), (floats(3, 6), floats(3, 6)))),
    example("LSTMCell", 4, 6, shapes=[(4,)], note="unbatched"),
    example("GRUCell", 4, 6, shapes=[(3, 4)]),
]


def parallel() -> nn.Module:
    """On one device, whatever others there are: then it calls its module."""
    module = nn.DataParallel(nn.Linear(4, 3))
    module.device_ids = []
    return module.to(torch.get_default_device())


SMALL: dict[str, Any] = {"nhead": 2, "dim_feedforward": 12, "batch_first": True}


def encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, dropout=0.1, **SMALL), 2)


def decoder() -> nn.Module:
    return nn.TransformerDecoder(nn.TransformerDecoderLayer(8, norm_first=True, **SMALL), 2, nn.LayerNorm(8))


TRANSFORMERS = [
    example(
        "Transformer",
        8,
        2,
        1,
        1,
        12,
        batch_first=True,
        shapes=[(2, 5, 8), (2, 4, 8)],
    ),
    Example("TransformerEncoder", encoder, lambda: (floats(2, 5, 8),)),
    Example("TransformerDecoder", decoder, lambda: (floats(2, 4, 8), floats(2, 5, 8))),
    example("TransformerEncoderLayer", 8, 2, 12, activation="gelu", shapes=[(5, 2, 8)]),
    example("TransformerDecoderLayer", 8, 2, 12, shapes=[(4, 2, 8), (5, 2, 8)]),
]

LINEARS = [
    example("Identity", shapes=[(3, 4)]),
    example("Linear", 5, 7, shapes=[(2, 3, 5)]),
    example("Bilinear", 4, 5, 6, shapes=[(3, 4), (3, 5)]),
    example("LazyLinear", 6, shapes=[(3, 4)]),
    example("Flatten", 1, shapes=[(2, 3, 4)]),
    example("Unflatten", 1, (2, 3), shapes=[(4, 6)]),
    example("Embedding", 10, 6, padding_idx=0, shapes=lambda: (ints(10, 4, 5),)),
    example("Embedding", 10, 6, max_norm=0.5, shapes=lambda: (ints(10, 4, 5),), note="renormalised"),
    example("Embedding", 10, 6, sparse=True, shapes=lambda: (ints(10, 4, 5),), note="sparse"),
    example("Embedding", 10, 6, scale_grad_by_freq=True, shapes=lambda: (ints(10, 4, 5),), note="frequency"),
    *(
        example("EmbeddingBag", 10, 6, mode=mode, shapes=lambda: (ints(10, 12), torch.tensor([0, 3, 7])), note=mode)
        for mode in ("sum", "mean", "max")
    ),
    example(
        "EmbeddingBag",
        10,
        6,
        mode="sum",
        sparse=True,
        shapes=lambda: (ints(10, 4, 3), None, floats(4, 3).detach()),
        note="weighted",
    ),
    *(example(name, shapes=[(4, 5, 6)]) for name in ("Dropout", "Dropout1d", "AlphaDropout", "FeatureAlphaDropout")),
    example("Dropout", 0.3, inplace=True, shapes=[(4, 5)], note="inplace"),
    example("Dropout2d", shapes=[(2, 4, 3, 3)]),
    example("Dropout3d", shapes=[(2, 4, 3, 3, 2)]),
    example("ChannelShuffle", 2, shapes=[(2, 4, 3, 3)]),
    example("PixelShuffle", 2, shapes=[(2, 8, 3, 4)]),
    example("PixelUnshuffle", 2, shapes=[(2, 3, 4, 6)]),
    example("Upsample", scale_factor=2, shapes=[(2, 3, 4)]),
    *(
        example("Upsample", scale_factor=1.5, mode=mode, shapes=[(2, 3, 4, 5)], note=mode)
        for mode in ("bilinear", "bicubic")
    ),
    example(
        "Upsample", size=(4, 5, 6), mode="trilinear", align_corners=True, shapes=[(2, 3, 2, 3, 4)], note="trilinear"
    ),
    example("UpsamplingBilinear2d", scale_factor=2, shapes=[(2, 3, 4, 5)]),
    example("UpsamplingNearest2d", (7, 9), shapes=[(2, 3, 4, 5)]),
    example("CosineSimilarity", shapes=[(4, 6), (4, 6)]),
    example("PairwiseDistance", keepdim=True, shapes=[(4, 6), (4, 6)]),
    Example(
        "Sequential",
        lambda: nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Dropout(0.2), nn.BatchNorm1d(6)),
        lambda: (floats(4, 5),),
    ),
    Example("ModuleList", UsesList, lambda: (floats(4, 6),)),
    Example("ModuleDict", UsesDict, lambda: (floats(4, 6),)),
    Example("ParameterList", UsesParameters, lambda: (floats(4, 6),)),
    Example("ParameterDict", UsesParameters, lambda: (floats(4, 6),)),
    Example("Module", OwnModule, lambda: (floats(4, 6),)),
    Example("DataParallel", parallel, lambda: (floats(2, 4),)),
]


def probabilities(*shape: int) -> Tensor:
    return torch.rand(*shape)


LOSSES = [
    example("L1Loss", shapes=[(4, 5), (4, 5)]),
    example("MSELoss", shapes=[(4, 5), (4, 5)]),
    example("MSELoss", reduction="none", shapes=[(4, 5), (4, 5)], note="none"),
    example("SmoothL1Loss", beta=0.7, shapes=[(4, 5), (4, 5)]),
    example("HuberLoss", delta=0.7, reduction="sum", shapes=[(4, 5), (4, 5)]),
    example("CrossEntropyLoss", shapes=lambda: (floats(6, 5), ints(5, 6))),
    example(
        "CrossEntropyLoss",
        label_smoothing=0.1,
        ignore_index=1,
        shapes=lambda: (floats(2, 5, 3), ints(5, 2, 3)),
        note="smoothed",
    ),
    example(
        "CrossEntropyLoss",
        torch.rand(5),
        label_smoothing=0.1,
        shapes=lambda: (floats(6, 5), torch.rand(6, 5).softmax(1)),
        note="probabilities",
    ),
    example("LinearCrossEntropyLoss", 5, 6, shapes=lambda: (floats(7, 5), ints(6, 7))),
    example("NLLLoss", torch.rand(5), shapes=lambda: (floats(6, 5), ints(5, 6))),
    example("NLLLoss2d", shapes=lambda: (floats(2, 5, 3, 4), ints(5, 2, 3, 4))),
    example("PoissonNLLLoss", full=True, shapes=lambda: (floats(4, 5), torch.rand(4, 5) * 5)),
    example("GaussianNLLLoss", shapes=lambda: (floats(4, 5), floats(4, 5), positive(4, 5)), known=NEGATIVE),
    example("KLDivLoss", reduction="batchmean", shapes=lambda: (floats(4, 5), probabilities(4, 5))),
    example("KLDivLoss", log_target=True, shapes=[(4, 5), (4, 5)], note="log"),
    example("BCELoss", shapes=lambda: (positive(4, 5), probabilities(4, 5))),
    example("BCEWithLogitsLoss", pos_weight=torch.rand(5), shapes=lambda: (floats(4, 5), probabilities(4, 5))),
    example("MarginRankingLoss", 0.3, shapes=lambda: (floats(6), floats(6), signs(6))),
    example("HingeEmbeddingLoss", shapes=lambda: (floats(4, 5), signs(4, 5))),
    example("SoftMarginLoss", shapes=lambda: (floats(4, 5), signs(4, 5))),
    example("MultiLabelMarginLoss", shapes=lambda: (floats(2, 4), torch.tensor([[3, 0, -1, 1], [1, -1, 0, 2]]))),
    example("MultiLabelSoftMarginLoss", shapes=lambda: (floats(4, 5), ints(2, 4, 5).float())),
    example("MultiMarginLoss", shapes=lambda: (floats(6, 5), ints(5, 6))),
    example("CosineEmbeddingLoss", 0.1, shapes=lambda: (floats(4, 5), floats(4, 5), signs(4))),
    example("TripletMarginLoss", swap=True, shapes=[(4, 5), (4, 5), (4, 5)]),
    Example(
        "TripletMarginWithDistanceLoss",
        lambda: nn.TripletMarginWithDistanceLoss(
            distance_function=lambda a, b: 1 - nn.functional.cosine_similarity(a, b)
        ),
        lambda: (floats(4, 5), floats(4, 5), floats(4, 5)),
    ),
    example("TripletMarginWithDistanceLoss", shapes=[(4, 5), (4, 5), (4, 5)], note="plain"),
    example(
        "CTCLoss",
        shapes=lambda: (floats(8, 2, 5).log_softmax(2), 1 + ints(4, 2, 3), torch.tensor([8, 7]), torch.tensor([3, 2])),
        known=LENGTHS,
    ),
    example(
        "AdaptiveLogSoftmaxWithLoss",
        6,
        12,
        [3, 7],
        shapes=lambda: (floats(5, 6), torch.tensor([0, 11, 2, 5, 8])),
        known=CLUSTERS,
    ),
]

# --- torch.nn.utils: what changes a module rather than being one ---------------------------------------


def pruned() -> nn.Module:
    from torch.nn.utils import prune

    return prune.random_unstructured(nn.Linear(5, 4), "weight", 0.3)


def weight_norm_of_old() -> nn.Module:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(nn.Linear(5, 4))


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).mT


def parametrized() -> nn.Module:
    layer = nn.Linear(5, 5)
    nn.utils.parametrize.register_parametrization(layer, "weight", Symmetric())
    return layer


UTILITIES = [
    Example("utils.weight_norm", weight_norm_of_old, lambda: (floats(3, 5),)),
    Example("utils.spectral_norm", lambda: nn.utils.spectral_norm(nn.Linear(5, 4)), lambda: (floats(3, 5),)),
    Example(
        "utils.parametrizations.weight_norm",
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(5, 4)),
        lambda: (floats(3, 5),),
    ),
    Example(
        "utils.parametrizations.spectral_norm",
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(5, 4)),
        lambda: (floats(3, 5),),
    ),
    Example(
        "utils.parametrizations.orthogonal",
        lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)),
        lambda: (floats(3, 4),),
    ),
    Example("utils.parametrize", parametrized, lambda: (floats(3, 5),)),
    Example("utils.prune", pruned, lambda: (floats(3, 5),)),
]

ALL = [
    *ACTIVATIONS,
    *CONVOLUTIONS,
    *POOLS,
    *PADDINGS,
    *NORMS,
    *RECURRENT,
    *TRANSFORMERS,
    *LINEARS,
    *LOSSES,
    *UTILITIES,
]
ALL_NOT_CALLABLE = {
    "Container": "deprecated and empty: a Module under an older name",
    "RNNBase": "has no forward: RNN, LSTM and GRU are its callable forms",
    "RNNCellBase": "has no forward: RNNCell, LSTMCell and GRUCell are its callable forms",
    "LinearCrossEntropyOptions": "settings of LinearCrossEntropyLoss, not a module",
}

# An older PyTorch lacks some; a name that is none at all shows as a public class without an example.
EXAMPLES: list[Example] = [row for row in ALL if "." in row.covers or hasattr(nn, row.covers)]
NOT_CALLABLE: dict[str, str] = {name: why for name, why in ALL_NOT_CALLABLE.items() if hasattr(nn.modules, name)}
