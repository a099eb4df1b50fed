"""The variants of transformers that x-transformers' README names, each as a function that gives a callable and its
arguments.

    VARIANTS["x-transformers-macaron"]() → (model, (tokens,))

`benchmarks/library_programs.py` has them among its programs. Each is small, and of two layers.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

_SIZES = {"dim": 32, "depth": 2, "heads": 2, "attn_dim_head": 16}

_DECODERS: dict[str, dict[str, Any]] = {
    "": {},
    "flash": {"attn_flash": True},
    "t5": {"rel_pos_bias": True},
    "rotary": {"rotary_pos_emb": True, "ff_glu": True, "use_rmsnorm": True},
    "alibi": {"alibi_pos_bias": True, "attn_flash": True},
    "kv-heads": {"attn_one_kv_head": True, "attn_qk_norm": True},
    "grouped-heads": {"attn_kv_heads": 1},
    "persistent-memory": {"attn_num_mem_kv": 4},
    "scalenorm": {"use_scalenorm": True},
    "simple-rmsnorm": {"use_simple_rmsnorm": True},
    "swiglu": {"ff_swish": True, "ff_glu": True, "ff_no_bias": True},
    "relu-squared": {"ff_relu_squared": True, "ff_post_act_ln": True},
    "sparse-topk": {"attn_sparse_topk": 4, "attn_sparse_topk_straight_through": True},
    "hard": {"attn_hard": True},
    "talking-heads": {"attn_pre_talking_heads": True, "attn_post_talking_heads": True},
    "attention-on-attention": {"attn_on_attn": True},
    "gated-values": {"attn_gate_values": True},
    "sandwich": {"sandwich_coef": 1},
    "weight-tied": {"weight_tie_layers": True},
    "macaron": {"macaron": True},
    "residual-attention": {"residual_attn": True},
    "gated-residual": {"gate_residual": True},
    "xpos": {"rotary_xpos": True},
    "dynamic-bias": {"dynamic_pos_bias": True, "dynamic_pos_bias_log_distance": False},
    "shifted-tokens": {"shift_tokens": 1},
    "sandwich-norm": {"sandwich_norm": True},
    "head-scale": {"attn_head_scale": True},
    "scaled-residual": {"scale_residual": True},
    "qk-norm": {"attn_qk_norm": True, "attn_qk_norm_groups": 2},
    "qk-rmsnorm": {"attn_qk_norm": True, "attn_qk_norm_dim_scale": True},
    "dropout": {"attn_dropout": 0.1, "ff_dropout": 0.1},
}

_WRAPPERS: dict[str, dict[str, Any]] = {
    "memory-tokens": {"num_memory_tokens": 4},
    "l2norm-embedding": {"l2norm_embed": True, "post_emb_norm": True},
    "no-positions": {"use_abs_pos_emb": False},
}


def _tokens() -> torch.Tensor:
    return torch.randint(0, 64, (2, 16))


def _decoder(settings: dict[str, Any], around: dict[str, Any]) -> Any:
    from x_transformers import Decoder, TransformerWrapper

    torch.manual_seed(0)
    layers = Decoder(**_SIZES, **settings)
    return TransformerWrapper(num_tokens=64, max_seq_len=32, attn_layers=layers, **around)


def _decoder_program(settings: dict[str, Any], around: dict[str, Any]) -> Any:
    return _decoder(settings, around), (_tokens(),)


def _encoder() -> Any:
    from x_transformers import Encoder, TransformerWrapper

    torch.manual_seed(0)
    model = TransformerWrapper(num_tokens=64, max_seq_len=32, attn_layers=Encoder(**_SIZES))
    mask = torch.arange(16)[None] < torch.tensor([[16], [9]])
    return functools.partial(model, mask=mask), (_tokens(),)


def _vit() -> Any:
    from x_transformers import Encoder, ViTransformerWrapper

    torch.manual_seed(0)
    model = ViTransformerWrapper(image_size=16, patch_size=4, num_classes=10, attn_layers=Encoder(**_SIZES))
    return model, (torch.randn(2, 3, 16, 16),)


def _captioner() -> Any:
    from x_transformers import Encoder, ViTransformerWrapper

    torch.manual_seed(0)
    encoder = ViTransformerWrapper(image_size=16, patch_size=4, attn_layers=Encoder(**_SIZES))
    decoder = _decoder({"cross_attend": True}, {})

    def caption(image: torch.Tensor, tokens: torch.Tensor) -> Any:
        return decoder(tokens, context=encoder(image, return_embeddings=True))

    return caption, (torch.randn(2, 3, 16, 16), _tokens())


def _encoder_decoder() -> Any:
    from x_transformers import XTransformer

    torch.manual_seed(0)
    sides = {"num_tokens": 64, "depth": 2, "heads": 2, "max_seq_len": 32}
    settings = {f"{side}_{name}": number for side in ("enc", "dec") for name, number in sides.items()}
    model = XTransformer(dim=32, tie_token_emb=True, **settings)
    source = _tokens()
    return functools.partial(model, mask=torch.ones_like(source).bool()), (source, _tokens())


def _recurrent() -> Any:
    from x_transformers import Decoder, TransformerWrapper

    torch.manual_seed(0)
    layers = Decoder(**_SIZES, rel_pos_bias=True)
    model = TransformerWrapper(num_tokens=64, max_seq_len=16, max_mem_len=32, attn_layers=layers)

    def two_segments(first: torch.Tensor, second: torch.Tensor) -> Any:
        _, memories = model(first, return_mems=True)
        logits, _ = model(second, mems=memories, return_mems=True)
        return logits

    return two_segments, (_tokens(), _tokens())


def _continuous(autoregressive: bool) -> Any:
    from x_transformers import ContinuousAutoregressiveWrapper, ContinuousTransformerWrapper, Decoder

    torch.manual_seed(0)
    model = ContinuousTransformerWrapper(dim_in=8, dim_out=8, max_seq_len=32, attn_layers=Decoder(**_SIZES))
    if autoregressive:
        model = ContinuousAutoregressiveWrapper(model)
    return functools.partial(model, mask=torch.ones(2, 16).bool()), (torch.randn(2, 16, 8),)


def _xval() -> Any:
    from x_transformers import Decoder, XValAutoregressiveWrapper, XValTransformerWrapper

    torch.manual_seed(0)
    layers = Decoder(**_SIZES)
    model = XValTransformerWrapper(num_tokens=4, numerical_token_id=3, max_seq_len=32, attn_layers=layers)
    return XValAutoregressiveWrapper(model), (torch.randint(0, 4, (2, 16)), torch.randn(2, 16))


def _autoregressive(mask_prob: float) -> Any:
    from x_transformers import AutoregressiveWrapper

    return AutoregressiveWrapper(_decoder({}, {}), mask_prob=mask_prob), (_tokens(),)


_OTHERS: dict[str, Callable[[], Any]] = {
    "encoder": _encoder,
    "vit": _vit,
    "captions": _captioner,
    "encoder-decoder": _encoder_decoder,
    "recurrence": _recurrent,
    "continuous": functools.partial(_continuous, False),
    "continuous-loss": functools.partial(_continuous, True),
    "xval": _xval,
    "loss": functools.partial(_autoregressive, 0.0),
    "masked-loss": functools.partial(_autoregressive, 0.15),
}

_MADE: dict[str, Callable[[], Any]] = {
    **{name: functools.partial(_decoder_program, settings, {}) for name, settings in _DECODERS.items()},
    **{name: functools.partial(_decoder_program, {}, around) for name, around in _WRAPPERS.items()},
    **_OTHERS,
}

VARIANTS: dict[str, Callable[[], Any]] = {f"x-transformers-{name}".rstrip("-"): make for name, make in _MADE.items()}
