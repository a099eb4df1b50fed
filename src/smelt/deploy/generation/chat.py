"""Text generation from a file of `export_generation`, token by token; needs neither torch nor NumPy.

    generator = Generator("llama.smelt")
    for token in generator.reply([464, 3290, 318], Sampling(temperature=0.8)): …     appends to the texts so far
    Words("llama.smelt's tokenizer").encode("the dog")  →  [464, 3290]
"""

import ctypes
import heapq
import math
import os
import random
from collections.abc import Iterator, Sequence
from typing import Any

from smelt.base.errors import SmeltError
from smelt.base.fast_dataclass import dataclass
from smelt.deploy.runtime import TRUST_WEIGHTS, Model, Session, TensorAt


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen: the likeliest one at temperature 0, else one of the `top_k` likeliest, by the
    softmax of their logits divided by the temperature."""

    temperature: float = 0.0
    top_k: int = 40
    seed: int = 0


class Generator:
    """A file with the entry points `prefill` and `decode`, and the text in its cache."""

    def __init__(self, path: str | os.PathLike[str], threads: int = 0) -> None:
        self._model = Model(path, TRUST_WEIGHTS)
        self._session = Session(self._model, threads)
        places = {entry.name: number for number, entry in enumerate(self._model.entries)}
        about = self._model.manifest.get("generation")
        if not isinstance(about, dict) or not {"prefill", "decode"} <= set(places):
            hint = "smelt.export_generation writes files that generate text"
            raise SmeltError("SM052", f"{os.fspath(path)} has no entry points prefill and decode", hint=hint)
        if about.get("batch") != 1:
            raise SmeltError("SM052", f"{os.fspath(path)} is for {about.get('batch')} texts, a chat is one")
        self._prefill, self._decode = places["prefill"], places["decode"]
        self.name = self._model.name
        self.max_length = int(about["max_length"])
        self.end = frozenset(about.get("end", ()))
        self.tokenizer: str | None = about.get("tokenizer")
        self._position = [info.name for info in self._model.state].index("position")
        self._last: tuple[int, int] | None = None  # the last token, and its place in the cache once it is there

    @property
    def length(self) -> int:
        """Tokens in the cache, as the file's state has it: a call that Ctrl-C meets is done before Python sees it."""
        held = ctypes.c_int64()
        self._session.read_state(self._position, ctypes.addressof(held), ctypes.sizeof(held))
        return held.value

    def reset(self) -> None:
        """Begin a new text."""
        zero = ctypes.c_int64(0)
        self._session.write_state(self._position, ctypes.addressof(zero), ctypes.sizeof(zero))
        self._last = None

    def reply(self, tokens: Sequence[int], sampling: Sampling | None = None) -> Iterator[int]:
        """Append tokens to the text, then one token after the other, up to one that ends a text or until the cache is
        full."""
        sampling = sampling or Sampling()
        if sampling.top_k < 1 or math.isnan(sampling.temperature):
            raise SmeltError("SM052", f"a token is one of at least 1, at a temperature; this is {sampling}")
        chance = random.Random(sampling.seed)
        length = self.length
        prompt = [*((self._last[0],) if self._last and self._last[1] == length else ()), *tokens]
        if not prompt:
            raise SmeltError("SM052", "a text begins with at least one token")
        if not all(0 <= token < 1 << 63 for token in prompt):
            raise SmeltError("SM052", "the number of a token is negative, or has more than 63 bits")
        if length + len(prompt) >= self.max_length:
            room = self.max_length - length
            what = f"the cache has room for {room} more, and a reply takes one"
            raise SmeltError("SM052", f"{len(prompt)} tokens do not fit: {what}")
        self._run(self._prefill, prompt, (1, len(prompt)))
        while True:
            token, length = self._chosen(sampling, chance), self.length
            self._last = token, length
            yield token
            if token in self.end or length + 1 >= self.max_length:
                return
            self._run(self._decode, [token], (1,))

    def _run(self, entry: int, tokens: Sequence[int], sizes: tuple[int, ...]) -> None:
        held = (ctypes.c_int64 * len(tokens))(*tokens)
        self._session.choose(entry)
        self._session.run([TensorAt("int64", sizes, None, ctypes.addressof(held))])

    def _chosen(self, sampling: Sampling, chance: random.Random) -> int:
        if sampling.temperature <= 0:
            return int(ctypes.c_int64.from_address(self._session.output(0).address).value)
        output = self._session.output(1)
        logits = (ctypes.c_float * output.sizes[-1]).from_address(output.address)[:]
        best = heapq.nlargest(sampling.top_k, range(len(logits)), key=logits.__getitem__)
        weights = [math.exp((logits[word] - logits[best[0]]) / sampling.temperature) for word in best]
        return chance.choices(best, weights)[0]


class Words:
    """Text as tokens, by the package `tokenizers`; without a tokenizer, tokens are numbers."""

    def __init__(self, tokenizer: str | None) -> None:
        self._tokenizer: Any = None
        if tokenizer is not None:
            try:
                from tokenizers import Tokenizer
            except ImportError:
                hint = "pip install tokenizers, or give the prompt as numbers with --ids"
                raise SmeltError("SM052", "the file's tokenizer needs the package tokenizers", hint=hint) from None
            self._tokenizer = Tokenizer.from_str(tokenizer)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text; of numbers, those numbers."""
        if self._tokenizer is not None:
            return list(self._tokenizer.encode(text).ids)
        try:
            return [int(word) for word in text.split()]
        except ValueError:
            hint = "smelt.export_generation(model, tokenizer='tokenizer.json') puts one into it"
            raise SmeltError("SM052", "the file has no tokenizer: a prompt is numbers of tokens", hint=hint) from None

    def streamed(self, tokens: Iterator[int]) -> Iterator[str]:
        """What each token adds to the text. A character of several tokens comes with its last."""
        held: list[int] = []
        shown = ""
        for token in tokens:
            if self._tokenizer is None:
                yield f"{token} "
                continue
            held.append(token)
            text = self._tokenizer.decode(held)
            if not text.endswith("\N{REPLACEMENT CHARACTER}"):
                yield text[len(shown) :]
                shown = text
