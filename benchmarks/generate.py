"""Hugging Face's `generate`, eager and compiled: the tokens, the compilations, the time per token.

    python -m benchmarks.generate [--models gpt2 llama …] [--modes greedy static …] [--tokens 24] [--wrap forward]

Each model is small and has random float32 weights. Each mode generates from prompts of different lengths, then from the
first again. One line per model and mode: whether the tokens equal eager's, graphs compiled in each call (those of an
assistant in parentheses), processor seconds of the first call, tokens per second of eager and of smelt when the lengths
repeat, and what else was counted. At the end a table of models by modes and what went wrong: other tokens, graph breaks
(either makes the exit status 1), more than three graphs for one prompt. `--without-rates` skips the tokens per second.
"""

import argparse
import functools
import itertools
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import smelt
from benchmarks.generate_models import MODELS, Settings, prompt


class _Stream:
    """What `generate` hands tokens to one by one."""

    def __init__(self) -> None:
        self.tokens: list[torch.Tensor] = []

    def put(self, tokens: torch.Tensor) -> None:
        self.tokens.append(tokens.reshape(-1))

    def end(self) -> None: ...


def _padded(inputs: Settings) -> Settings:
    if "attention_mask" in inputs:
        inputs["attention_mask"][0, :3] = 0
        inputs["input_ids"][0, :3] = 0
    return inputs


def _quantized(inputs: Settings) -> Settings:
    return inputs | {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}}


MODES: dict[str, Callable[[Settings], Settings]] = {
    "greedy": lambda inputs: inputs,
    "padded": _padded,
    "sample": lambda inputs: inputs | {"do_sample": True, "top_k": 20, "top_p": 0.9, "temperature": 0.8},
    "beams": lambda inputs: inputs | {"num_beams": 3},
    "beam_sample": lambda inputs: inputs | {"num_beams": 2, "do_sample": True},
    "contrastive": lambda inputs: inputs | {"penalty_alpha": 0.6, "top_k": 4},
    "streamed": lambda inputs: inputs | {"streamer": _Stream()},
    "static": lambda inputs: inputs | {"cache_implementation": "static"},
    "static_padded": lambda inputs: _padded(inputs) | {"cache_implementation": "static"},
    "offloaded": lambda inputs: inputs | {"cache_implementation": "offloaded"},
    "offloaded_static": lambda inputs: inputs | {"cache_implementation": "offloaded_static"},
    "quantized": _quantized,
    "uncached": lambda inputs: inputs | {"use_cache": False},
    "assisted": lambda inputs: inputs | {"assistant_model": True},
    "lookup": lambda inputs: inputs | {"prompt_lookup_num_tokens": 3},
    "chunked": lambda inputs: inputs | {"prefill_chunk_size": 4},
}
ONE_ROW = ("streamed", "assisted", "lookup")
COUNTED = ("graphs", "recompiles", "graph_breaks", "sizes_compiled", "sizes_refused", "eager_graphs", "frames_skipped")


def generate(model: Any, kind: str, mode: str, tokens: int, length: int) -> tuple[torch.Tensor, float]:
    """The tokens, and the processor seconds they took."""
    arguments = MODES[mode](prompt(kind, length, 1 if mode in ONE_ROW else 2))
    if "assistant_model" in arguments:
        arguments["assistant_model"] = model.assistant[0]
    arguments |= {"max_new_tokens": tokens, "eos_token_id": None, "pad_token_id": 0}
    arguments.setdefault("do_sample", False)
    torch.manual_seed(length)
    start = time.process_time()
    output: torch.Tensor = model.generate(**arguments)
    return output, time.process_time() - start


class _Counting:
    """A compiled forward, and the graphs that its calls compiled."""

    def __init__(self, model: Any) -> None:
        self.graphs = 0
        compiled_forward = smelt.compile(model.forward)

        @functools.wraps(model.forward)
        def forward(*args: Any, **kwargs: Any) -> Any:
            before = smelt.counters["graphs"]
            try:
                return compiled_forward(*args, **kwargs)
            finally:
                self.graphs += smelt.counters["graphs"] - before

        model.forward = forward


def compiled(model: Any, wrap: str) -> Any:
    if wrap == "model":
        return smelt.compile(model)
    model.forward = smelt.compile(model.forward)
    return model


def counted() -> Settings:
    return {name: smelt.counters[name] for name in COUNTED}


MOST_GRAPHS = 3
FAULTS = ("other tokens", "graph breaks", f"more than {MOST_GRAPHS} graphs for one prompt")


class Row(NamedTuple):
    """What was measured of a model in a mode."""

    is_same: bool  # whether all tokens equal eager's
    graphs: tuple[int, ...]  # that the first prompt compiled, a longer one, and the first again
    assistant_graphs: int  # that an assistant compiled beside them
    counts: Settings
    first_seconds: float
    rates: tuple[float, ...]  # tokens per second, eager's and smelt's, if they were asked for

    @property
    def faults(self) -> list[str]:
        shown = (not self.is_same, self.counts["graph_breaks"] > 0, self.graphs[0] > MOST_GRAPHS)
        return [fault for fault, is_shown in zip(FAULTS, shown, strict=True) if is_shown]

    @property
    def cell(self) -> str:
        """The graphs of the first prompt and of a longer one, and what is wrong."""
        assistant = f" ({self.assistant_graphs})" if self.assistant_graphs else ""
        wrong = "".join(f" {fault.upper()}" for fault in self.faults)
        return f"{self.graphs[0]}+{sum(self.graphs[1:])}{assistant}{wrong}"


def measure(name: str, mode: str, tokens: int, lengths: tuple[int, ...], wrap: str, rates: bool) -> Row:
    """Generates eagerly and compiled, from prompts of these lengths, then from the first again."""
    smelt.reset()
    chosen = MODELS[name]
    eager, ours = chosen.build(), chosen.build()
    for model in (eager, ours):
        model.assistant = [chosen.build()]  # in a list: no submodule
    expected = [generate(eager, chosen.prompt, mode, tokens, length)[0] for length in (*lengths, lengths[0])]
    assistant = _Counting(ours.assistant[0])
    ours = compiled(ours, wrap)
    results, totals = [], [0]
    for length in (*lengths, lengths[0]):
        results.append(generate(ours, chosen.prompt, mode, tokens, length))
        totals.append(smelt.counters["graphs"] - assistant.graphs)
    counts = counted()
    seconds = []
    if rates:
        seconds = [generate(model, chosen.prompt, mode, tokens, lengths[-1])[1] for model in (eager, ours)]
    return Row(
        is_same=all(torch.equal(theirs, found[0]) for theirs, found in zip(expected, results, strict=True)),
        graphs=tuple(after - before for before, after in itertools.pairwise(totals)),
        assistant_graphs=assistant.graphs,
        counts=counts,
        first_seconds=results[0][1],
        rates=tuple(tokens / each for each in seconds),
    )


def line_of(name: str, mode: str, row: Row) -> str:
    speed = "tokens/s {:6.0f} → {:6.0f}  ".format(*row.rates) if row.rates else ""
    others = " ".join(f"{key}={row.counts[key]}" for key in COUNTED[1:] if row.counts[key])
    verdict = "same" if row.is_same else "OTHER TOKENS"
    graphs = "+".join(map(str, row.graphs)) + (f" ({row.assistant_graphs})" if row.assistant_graphs else "")
    return f"{name:12} {mode:16} {verdict:12} graphs {graphs:10} first {row.first_seconds:6.2f} s  {speed}{others}"


def table_of(cells: dict[tuple[str, str], str]) -> str:
    """Models by modes: graphs of the first prompt + of others (of an assistant); "-" where eager refuses the mode."""
    names = list(dict.fromkeys(name for name, _ in cells))
    modes = list(dict.fromkeys(mode for _, mode in cells))
    lines = [["model", *modes], ["---"] * (len(modes) + 1)]
    lines += [[name, *[cells.get((name, mode), "") for mode in modes]] for name in names]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def why_eager_refuses(name: str, mode: str) -> str:
    model = MODELS[name].build()
    model.assistant = [MODELS[name].build()]
    try:
        generate(model, MODELS[name].prompt, mode, 2, 5)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120]}"
    return ""


def main() -> int:
    import transformers

    parser = argparse.ArgumentParser(prog="benchmarks.generate", description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=list(MODES))
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--lengths", type=int, nargs="+", default=[7, 11])
    parser.add_argument("--wrap", choices=("forward", "model"), default="forward")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--without-rates", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore", FutureWarning)
    cells, faults = dict[tuple[str, str], str](), dict[str, list[str]]()
    for name in args.models:
        for mode in args.modes:
            reason = why_eager_refuses(name, mode)
            if reason:
                cells[name, mode] = "-"
                print(f"{name:12} {mode:16} eager refuses: {reason}", flush=True)
                continue
            row = measure(name, mode, args.tokens, tuple(args.lengths), args.wrap, not args.without_rates)
            cells[name, mode] = row.cell
            print(line_of(name, mode, row), flush=True)
            for fault in row.faults:
                faults.setdefault(fault, []).append(f"{name} {mode}")
    print(f"\n{table_of(cells)}\n")
    for fault in FAULTS:
        print(f"{fault}: {', '.join(faults.get(fault, ['none']))}")
    return 1 if faults.keys() & set(FAULTS[:2]) else 0


if __name__ == "__main__":
    sys.exit(main())
