"""`smelt.export_generation`: a language model of `transformers` as a file that generates text without Python.

    prefill(ids: int64[batch, 1..])   →   token: int64[batch], logits: float32[batch, words]
    decode(token: int64[batch])       →   the same for the next token

Both append to one key-value cache, which is state of the file, as is `position`, the number of tokens in it. `token`
is the likeliest next token; programs that sample use `logits`.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from smelt.deploy.artifact import Artifact, Entry, export_entries
from smelt.deploy.errors import ExportError
from smelt.ir.artifact.machine import Dimension

GENERATION = "generation"  # of the manifest: what a program that generates needs to know


def export_generation(
    model: torch.nn.Module,
    *,
    max_length: int = 1024,
    batch: int = 1,
    tokenizer: str | os.PathLike[str] | None = None,
    targets: Sequence[str] | None = None,
    name: str | None = None,
) -> Artifact:
    """Export a causal language model of `transformers` as an artifact that generates text without Python.

    The artifact has two entry points over one set of weights and one key-value cache, which is state:
    `prefill(ids)` takes a prompt, `decode(token)` one token. Both append to the cache, and return the likeliest next
    token and the logits. `position` of the state is the number of tokens in the cache: set it to 0 for a new text.

    - `model` is in evaluation mode, for example a `LlamaForCausalLM`.
    - `max_length` is the number of tokens that the cache has room for, prompt included.
    - `batch` is the number of texts, whose prompts have one length.
    - `tokenizer` is a `tokenizer.json` of the `tokenizers` package, which `smelt chat` uses. The file contains it.
    - `targets` are the targets of the code, as in `smelt.export`.
    - `name` is the artifact's name, by default the model's type.
    """
    if max_length < 2 or batch < 1:
        raise ExportError(f"max_length is {max_length} and batch {batch}; they must be at least 2 and 1")
    if model.training:
        raise ExportError("the model is in training mode", hint="call model.eval()")
    from smelt.deploy.generation.steps import GenerationSteps  # imports transformers

    _refuse_others(model)
    steps = GenerationSteps(model, max_length, batch)
    device = steps.position.device
    ids = torch.zeros(batch, min(5, max_length - 1), dtype=torch.int64, device=device)
    lengths = {"ids": {1: Dimension("tokens", 1, max_length - 1)}} if max_length > 2 else {}
    artifact = export_entries(
        {
            "prefill": Entry(steps.prefill, (ids,), dynamic=lengths),
            "decode": Entry(steps.decode, (ids[:, 0].contiguous(),)),
        },
        targets=targets,
        name=name or str(getattr(model.config, "model_type", "") or type(model).__name__).replace(".", "_"),
    )
    artifact.metadata[GENERATION] = {"max_length": max_length, "batch": batch, "end": _end_tokens(model)}
    if tokenizer is not None:
        text = Path(tokenizer).read_text(encoding="utf-8")
        try:
            json.loads(text)
        except ValueError as error:
            raise ExportError(f"{os.fspath(tokenizer)} is no tokenizer.json: {error}") from None
        artifact.metadata[GENERATION]["tokenizer"] = text
    return artifact


def _refuse_others(model: Any) -> None:
    """Only layers of attention have caches that are written in place here."""
    text_config = getattr(getattr(model, "config", None), "get_text_config", None)
    if text_config is None:
        raise ExportError(f"{type(model).__name__} is no causal language model of transformers")
    config = text_config(decoder=True)
    kinds = getattr(config, "layer_types", None) or ()
    strange = sorted({kind for kind in kinds if "attention" not in kind or "linear" in kind})
    if strange or model.config.is_encoder_decoder:
        what = ", ".join(strange) or "an encoder"
        raise ExportError(
            f"{type(model).__name__} has {what}: only decoders of attention layers are exported",
            hint="export its forward with smelt.export_entries, its state in buffers",
        )


def _end_tokens(model: Any) -> list[int]:
    """Tokens that end a text, as the model's configuration has them."""
    config = getattr(model, "generation_config", None)
    end = getattr(config, "eos_token_id", None)
    if end is None:
        end = model.config.get_text_config(decoder=True).eos_token_id
    return [] if end is None else [int(each) for each in (end if isinstance(end, list | tuple) else [end])]
