"""`smelt chat`: a file of `export_generation` in a terminal."""

import argparse
import itertools
import sys
import time
from collections.abc import Iterator

from smelt.base.errors import SmeltError
from smelt.deploy.generation.chat import Generator, Sampling, Words

RESET = "/reset"


def add_chat(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="model.smelt, written by smelt.export_generation")
    parser.add_argument("--tokens", type=int, default=200, help="the most tokens of a reply (default: 200)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 takes the likeliest token (default: 0)")
    parser.add_argument("--top-k", type=int, default=40, help="how many tokens to sample from (default: 40)")
    parser.add_argument("--seed", type=int, default=0, help="of sampling (default: 0)")
    parser.add_argument("--threads", type=int, default=0, help="that a call uses (default: one for each processor)")
    parser.add_argument("--ids", action="store_true", help="read and print numbers of tokens, not text")


def do_chat(args: argparse.Namespace) -> int:
    if args.tokens < 1:
        raise SmeltError("SM052", f"a reply of {args.tokens} tokens is none")
    generator = Generator(args.file, args.threads)
    words = Words(None if args.ids else generator.tokenizer)
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        kind = "text" if generator.tokenizer and not args.ids else "numbers of tokens"
        about = f"{generator.name}, {generator.max_length} tokens. Type {kind}; {RESET} begins a new text."
        print(about, file=sys.stderr)
    for line in _lines(is_terminal):
        if line == RESET:
            generator.reset()
            continue
        try:
            _answer(generator, words, words.encode(line), args)
        except SmeltError as error:
            print(f"{error.message}{f' ({error.hint})' if error.hint else ''}", file=sys.stderr)
            if not is_terminal:
                return 1
    return 0


def _lines(is_terminal: bool) -> Iterator[str]:
    while True:
        try:
            line = input("> " if is_terminal else "").strip()
        except (EOFError, KeyboardInterrupt):
            return
        if line:
            yield line


def _answer(generator: Generator, words: Words, prompt: list[int], args: argparse.Namespace) -> None:
    """Print a reply as it comes, then how fast it came."""
    times = [time.perf_counter()]

    def timed(tokens: Iterator[int]) -> Iterator[int]:
        for token in tokens:
            times.append(time.perf_counter())
            yield token

    reply = generator.reply(prompt, Sampling(args.temperature, args.top_k, args.seed))
    try:
        for text in words.streamed(timed(itertools.islice(reply, args.tokens))):
            print(text, end="", flush=True)
    except KeyboardInterrupt:
        pass
    print(flush=True)
    count = len(times) - 2  # intervals between tokens
    if count > 0:
        speed = count / (times[-1] - times[1])
        first = 1000 * (times[1] - times[0])
        print(f"{count + 1} tokens, {speed:.1f} tokens/s; the first after {first:.0f} ms", file=sys.stderr)
