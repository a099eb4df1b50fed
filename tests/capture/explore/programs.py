"""Programs with control flow; a module of its own, as pytest rewrites the `assert`s of tests."""

import torch
from torch import nn


def checked(x: torch.Tensor) -> torch.Tensor:
    assert (x > -3).all(), "too small"
    if x.sum() > 5:
        raise ValueError(f"too large: {3}")
    n = int(x.sum())
    if n == 4:
        raise IndexError(f"not {n} of {x.mean():.2f}")
    return x


@torch.inference_mode()
def without_gradients(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        while x.sum() > 1:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = torch.outer(x, x) @ torch.eye(3)
                if x.max() > 3:
                    x = x - (torch.eye(3) @ x[:, None])[:, 0]
                    x = x + y[0].abs().clamp(max=0.3)
            x = x / 2 + torch.eye(3) @ x / 8
    return x


def keeps_shapes(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, int]:
    rows = x[:, None]
    while n > 0:
        before = rows.shape
        rows = torch.cat([rows, rows[:1] + n])
        if rows.sum() > 1000:
            break
        rows = rows[: before[0] + 1].reshape(before[0] + 1, -1)
        n = n - 1
    return rows.sum(0), len(rows)


def halves(x: torch.Tensor) -> torch.Tensor:
    while x.abs().max() > 1:
        x = x / 2
    return x


def counts(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, int]:
    i = 0
    while i < n:
        x = x + i
        i += 1
    return x, i


def counts_down(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    left = int(n)
    while left > 0:
        x = x * 0.5 + left
        left = left - 1
    return x


def solves(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Jacobi's method."""
    x = torch.zeros_like(b)
    d = torch.diagonal(a)
    r = a - torch.diag(d)
    rounds = 0
    while (a @ x - b).abs().max() > 1e-4 and rounds < 200:
        x = (b - r @ x) / d
        rounds += 1
    return x, rounds


def ranges(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    for i in range(int(n)):
        x = x + i * 0.5
    return x


def steps_down(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    for i in range(int(n), 0, -2):
        if x.sum() > 100:
            break
        x = x + i
    else:
        x = -x
    return x


def fixed_range(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(())
    for i in range(40):
        if x[i % 3] > 0:
            total = total + i
        x = x - 0.25
    return total


def continues(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    for _ in range(10):
        x = x - 1
        if x.sum() < 0:
            continue
        if y.max() > 3:
            break
        y = y + x.relu()
    return y


def swaps(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Fibonacci: each round's values are the other's of the last."""
    a, b = x, x + 1
    while n > 0:
        a, b = b, a + b
        n = n - 1
    return a, b


def rotates(x: torch.Tensor, n: torch.Tensor) -> list[torch.Tensor]:
    held = [x, x + 1, x + 2]
    while n > 0:
        held = [held[1], held[2], held[0]]
        n = n - 1
    return held


def nested_loops(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    i = 0
    while i < n:
        j = 0
        while j < i:
            x = x + j
            j += 1
        x = x * 1.5
        i += 1
    return x


def in_place(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    i = 0
    while i < n:
        y[i % 3] += i
        y.mul_(1.25)
        i += 1
    return y


def keeps_old(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the loop began with is read behind it."""
    first, last = x, x
    while n > 0:
        last, x = x, x * 2
        n = n - 1
    return first + last, x


def recursive(x: torch.Tensor, depth: int = 0) -> torch.Tensor:
    if depth < 5 and x.sum() > 1:
        return recursive(x / 2, depth + 1) + 1
    return x


class Refining(nn.Module):
    """A loop inside a module that calls modules."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
        self.stop = nn.Linear(3, 1)

    def step(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
            if x.norm() > 4:
                return x / x.norm()
        return x

    def forward(self, x: torch.Tensor, limit: int = 20) -> tuple[torch.Tensor, int]:
        rounds = 0
        while torch.sigmoid(self.stop(x)) < 0.9 and rounds < limit:
            x = self.step(x)
            rounds += 1
        return x, rounds


class Indexing(nn.Module):
    """A loop whose counter chooses a layer: unrolled."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i in range(4):
            x = torch.tanh(self.layers[i](x))
            if x.sum() > 1:
                break
        return x


def generates(prompt: torch.Tensor, table: torch.Tensor, limit: int) -> torch.Tensor:
    """Text generation as it is written: tokens are concatenated until one says stop."""
    tokens = prompt
    while tokens.shape[1] < limit:
        state = table[tokens].mean(1)
        token = (state @ table.t()).argmax(-1, keepdim=True)
        tokens = torch.cat([tokens, token], dim=1)
        if token == 0:
            break
    return tokens


class Attention(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(size, size) for _ in range(3))

    def forward(
        self, x: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor] | None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        k, v = self.k(x), self.v(x)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 1), torch.cat([cache[1], v], 1)
        scores = self.q(x) @ k.transpose(1, 2)
        return torch.softmax(scores, -1) @ v, (k, v)


class Generator(nn.Module):
    """Greedy generation with a key-value cache."""

    def __init__(self, words: int = 11, size: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, size)
        self.blocks = nn.ModuleList(Attention(size) for _ in range(2))
        self.head = nn.Linear(size, words)

    def step(self, tokens: torch.Tensor, caches: list) -> tuple[torch.Tensor, list]:
        x = self.embed(tokens)
        new = []
        for block, cache in zip(self.blocks, caches, strict=True):
            y, cache = block(x, cache)
            x = x + y
            new.append(cache)
        return self.head(x[:, -1]).argmax(-1, keepdim=True), new

    def forward(self, prompt: torch.Tensor, max_new: int, eos: int = 3) -> tuple[torch.Tensor, int]:
        token, caches = self.step(prompt, [None, None])
        out = torch.cat([prompt, token], 1)
        made = 1
        for _ in range(max_new - 1):
            if token.item() == eos:
                break
            token, caches = self.step(token, caches)
            out = torch.cat([out, token], 1)
            made += 1
        return out, made


def beams(logits: torch.Tensor, table: torch.Tensor, width: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Beam search over a table of transitions, until the best beam has ended or six words are there."""
    scores, last = torch.log_softmax(logits, -1).topk(width)
    history = torch.zeros(width, 6, dtype=torch.int64)
    history[:, 0] = last
    length = 1
    while length < 6 and not bool((history[scores.argmax()] == 0).any()):
        after = torch.log_softmax(table[last], -1) + scores[:, None]
        scores, flat = after.flatten().topk(width)
        parents, last = flat // table.shape[0], flat % table.shape[0]
        history = history[parents]
        history[:, length] = last
        length += 1
    return history[scores.argmax()], scores.max()


class CachedGenerator(nn.Module):
    """Greedy generation with a cache as long as it ever gets, which is written by index."""

    def __init__(self, words: int = 11, size: int = 8, longest: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, size)
        self.q, self.k, self.v = (nn.Linear(size, size) for _ in range(3))
        self.head = nn.Linear(size, words)
        self.longest = longest

    def forward(self, token: torch.Tensor, max_new: int, eos: int) -> tuple[torch.Tensor, int]:
        keys = torch.zeros(self.longest, self.embed.embedding_dim)
        values = torch.zeros_like(keys)
        out = torch.full((self.longest,), -1)
        made = 0
        while made < max_new and made < self.longest:
            x = self.embed(token)
            keys[made] = self.k(x)[0]
            values[made] = self.v(x)[0]
            scores = self.q(x) @ keys.t()
            scores = scores.masked_fill(torch.arange(self.longest) > made, float("-inf"))
            x = x + torch.softmax(scores, -1) @ values
            token = self.head(x).argmax(-1)
            out[made] = token[0]
            made += 1
            if token == eos:
                break
        return out, made
