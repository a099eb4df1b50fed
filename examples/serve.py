"""A small server of text: HTTP, streaming, and continuous batching over a paged cache of keys and values.

python examples/serve.py [MODEL] [--tokenizer tokenizer.json] [--port 8000]        needs transformers

    curl -N localhost:8000/generate -d '{"tokens": [3, 1, 4], "max_new_tokens": 8}'
    {"token": 27}
    {"token": 90}
    …

One line for each token, as soon as it is computed. With a tokenizer, a prompt may be `{"text": "Once upon"}`, and lines
have the text of the token, too. MODEL is a folder that `transformers` reads; without it, a small model has random
weights. Requests share one compiled program for tokens: each joins the batch as soon as it has a place and memory.
"""

import argparse
import json
import queue
import select
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

from smelt.generation.paged import PagedBatch, Text


class Request:
    """A prompt, and a queue of its new tokens; None or an error ends them."""

    def __init__(self, ids: list[int], room: int) -> None:
        self.ids, self.room = ids, room
        self.tokens: queue.Queue[int | Exception | None] = queue.Queue()
        self.is_cancelled = False


class Engine:
    """A thread that generates the texts of all requests."""

    def __init__(self, model: Any, blocks: int, places: int) -> None:
        self.batch = PagedBatch(model, blocks, places)
        stops = getattr(model.generation_config, "eos_token_id", None)
        self.stops = set(stops) if isinstance(stops, list) else {stops}
        self.capacity = min(self.batch.capacity, getattr(model.config, "max_position_embeddings", self.batch.capacity))
        self.vocabulary: int = model.config.vocab_size
        self.waiting: queue.Queue[Request] = queue.Queue()
        self.next: Request | None = None
        self.running: dict[Text, Request] = {}
        threading.Thread(target=self.run, daemon=True).start()

    def submit(self, ids: list[int], room: int) -> Request:
        """A request in the queue; an error if it can never run."""
        if not ids or not all(isinstance(token, int) and 0 <= token < self.vocabulary for token in ids):
            raise ValueError("tokens must be numbers of the vocabulary")
        if room < 1 or len(ids) + room > self.capacity:
            raise ValueError(f"a prompt and its new tokens must be 2 to {self.capacity} tokens")
        request = Request(ids, room)
        self.waiting.put(request)
        return request

    def run(self) -> None:
        while True:
            self.admit()
            try:
                for text, token in self.batch.step():
                    self.give(text, token)
            except Exception as error:  # ends all texts
                for text, request in self.running.items():
                    request.tokens.put(error)
                    self.batch.remove(text)
                self.running.clear()

    def admit(self) -> None:
        """Begin as many waiting requests as there is memory for; wait for one if nothing runs."""
        while True:
            if self.next is None:
                try:
                    self.next = self.waiting.get(block=not self.batch)
                except queue.Empty:
                    return
            request = self.next
            if not request.is_cancelled and not self.batch.fits(len(request.ids) + request.room):
                return
            self.next = None
            if request.is_cancelled:
                continue
            try:
                text = self.batch.add(request.ids, request.room)
            except Exception as error:
                request.tokens.put(error)
                continue
            self.running[text] = request
            self.give(text, text.tokens[-1])

    def give(self, text: Text, token: int) -> None:
        """Give a token to its request, and end the text where it is complete."""
        request = self.running[text]
        request.tokens.put(token)
        if token in self.stops or len(text.tokens) >= text.most or request.is_cancelled:
            request.tokens.put(None)
            self.batch.remove(text)
            del self.running[text]


def handler(engine: Engine, tokenizer: Any) -> type[BaseHTTPRequestHandler]:
    """The class that answers requests."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            try:
                data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.path != "/generate":
                    raise ValueError(f"there is no {self.path}")
                body = json.loads(data)
                ids = body["tokens"] if "tokens" in body else tokenizer.encode(body["text"]).ids
                request = engine.submit(list(ids), int(body.get("max_new_tokens", 64)))
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
                data = json.dumps({"error": str(error)}).encode()
                self.send_response(400)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
                return
            self.send_response(200)
            self.send_header("Content-Type", "application/x-ndjson")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                while (token := self.next_token(request)) is not None:
                    self.chunk(self.line(token))
                    if isinstance(token, Exception):
                        break
                self.chunk("")
            except OSError:  # the client has gone
                request.is_cancelled = self.close_connection = True

        def next_token(self, request: Request) -> int | Exception | None:
            """Waits for it as long as the client does."""
            while True:
                try:
                    return request.tokens.get(timeout=0.5)
                except queue.Empty:
                    if select.select([self.connection], [], [], 0)[0] and not self.connection.recv(1, socket.MSG_PEEK):
                        raise ConnectionResetError from None

        def line(self, token: int | Exception) -> str:
            if isinstance(token, Exception):
                return json.dumps({"error": str(token)}) + "\n"
            text = {"text": tokenizer.decode([token])} if tokenizer is not None else {}
            return json.dumps({"token": token} | text) + "\n"

        def chunk(self, text: str) -> None:
            data = text.encode()
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


def build(path: str) -> Any:
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    if path:
        return AutoModelForCausalLM.from_pretrained(path).eval()
    sizes: Any = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=1000, eos_token_id=2, **sizes)).eval()


def serve(model: Any, tokenizer: Any = None, port: int = 8000, blocks: int = 512, places: int = 8) -> Any:
    """A server; `serve_forever` answers requests."""
    return ThreadingHTTPServer(("127.0.0.1", port), handler(Engine(model, blocks, places), tokenizer))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="", help="a folder that transformers reads")
    parser.add_argument("--tokenizer", default="", help="a tokenizer.json; needs tokenizers")
    parser.add_argument("--port", type=int, default=8000)
    args = parser.parse_args()
    tokenizer = None
    if args.tokenizer:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(args.tokenizer)
    server = serve(build(args.model), tokenizer, args.port)
    print(f"http://127.0.0.1:{server.server_port}/generate", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
