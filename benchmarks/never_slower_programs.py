"""Programs that compiling pays little or nothing for, as functions: (what to compile, its arguments).

    bigbird() → (module, (ids,))

`benchmarks/never_slower.py` measures them against eager. A library that is not installed raises ImportError; a program
of forty lines that is like what its users write is enough: many breaks, many small graphs, new objects at every call.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

Program = tuple[Callable[..., Any], tuple[Any, ...]]
PROGRAMS: dict[str, Callable[[], Program]] = {}


def _program(make: Callable[[], Program]) -> Callable[[], Program]:
    PROGRAMS[make.__name__] = make
    return make


# --- programs of libraries ------------------------------------------------------------------------------------------


@_program
def bigbird() -> Program:
    from transformers import BigBirdConfig, BigBirdModel

    config = BigBirdConfig(
        vocab_size=512,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=512,
        block_size=16,
        num_random_blocks=2,
        attention_type="block_sparse",
    )
    return BigBirdModel(config).eval(), (torch.randint(0, 512, (1, 256)),)


@_program
def dopri5() -> Program:
    from torchdiffeq import odeint

    layers = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 2))
    times = torch.linspace(0, 1, 10)

    def function(start: torch.Tensor) -> Any:
        return odeint(lambda t, y: layers(y**3), start, times, method="dopri5")

    return function, (torch.randn(20, 2),)


@_program
def botorch_posterior() -> Program:
    from botorch.acquisition.logei import qLogExpectedImprovement
    from botorch.models import SingleTaskGP
    from botorch.sampling.normal import SobolQMCNormalSampler

    x = torch.rand(20, 3, dtype=torch.float64)
    model = SingleTaskGP(x, (x.sum(-1, keepdim=True) * 3).sin())
    sampler = SobolQMCNormalSampler(torch.Size([32]))
    acquisition = qLogExpectedImprovement(model, best_f=0.5, sampler=sampler)
    candidates = torch.rand(4, 2, 3, dtype=torch.float64)
    acquisition(candidates)

    def function(candidates: torch.Tensor) -> Any:
        return acquisition(candidates)

    return function, (candidates,)


@_program
def torchao_float8() -> Program:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
    model = convert_to_float8_training(layers, config=Float8LinearConfig(emulate=True))
    x = torch.randn(32, 64, requires_grad=True)

    def function(x: torch.Tensor) -> Any:
        return model(x)

    return function, (x,)


@_program
def torchao_int8_dynamic() -> Program:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)).eval()
    quantize_(model, Int8DynamicActivationInt8WeightConfig())
    return model, (torch.randn(8, 64),)


@_program
def jaxtyping_beartype() -> Program:
    from beartype import beartype
    from jaxtyping import Float, jaxtyped

    queries, keys = Float[torch.Tensor, "b n d"], Float[torch.Tensor, "b m d"]

    def scores(q: Any, k: Any) -> Any:
        return (q @ k.transpose(1, 2)) / q.shape[-1] ** 0.5

    scores.__annotations__ = {"q": queries, "k": keys, "return": Float[torch.Tensor, "b n m"]}
    checked_scores: Any = jaxtyped(typechecker=beartype)(scores)

    def attend(q: Any, k: Any, v: Any) -> Any:
        return checked_scores(q, k).softmax(-1) @ v

    attend.__annotations__ = {"q": queries, "k": keys, "v": keys, "return": queries}
    x = torch.randn(8, 64, 64)
    return jaxtyped(typechecker=beartype)(attend), (x, x, x)


@_program
def torchrl_ppo() -> Program:
    from tensordict import TensorDict
    from tensordict.nn import NormalParamExtractor, ProbabilisticTensorDictSequential, TensorDictModule
    from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
    from torchrl.objectives import ClipPPOLoss

    policy = TensorDictModule(
        nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 4), NormalParamExtractor()),
        in_keys=["observation"],
        out_keys=["loc", "scale"],
    )
    actor = ProbabilisticActor(
        policy, in_keys=["loc", "scale"], distribution_class=TanhNormal, return_log_prob=True
    )
    assert isinstance(actor, ProbabilisticTensorDictSequential)
    value = ValueOperator(nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1)), in_keys=["observation"])
    loss = ClipPPOLoss(actor, value)
    with torch.no_grad():
        data = actor(TensorDict({"observation": torch.randn(16, 4)}, [16]))
    data["advantage"], data["value_target"] = torch.randn(16, 1), torch.randn(16, 1)

    def function(data: Any) -> Any:
        found = loss(data.copy())
        return found["loss_objective"] + found["loss_entropy"] + found["loss_critic"]

    return function, (data,)


# --- programs of a page ---------------------------------------------------------------------------------------------

_log = logging.getLogger("never_slower")


def _layers(count: int, width: int) -> nn.ModuleList:
    return nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(count))


@_program
def logs_in_every_layer() -> Program:
    layers = _layers(8, 64)

    def function(x: torch.Tensor) -> Any:
        for number, layer in enumerate(layers):
            x = layer(x)
            _log.debug("layer %d: mean %f", number, x.mean().item())
        return x

    return function, (torch.randn(16, 64),)


@_program
def one_cheap_operator_between_breaks() -> Program:
    def function(x: torch.Tensor) -> Any:
        total = 0.0
        for _ in range(20):
            x = x + 1
            total += x[0].item()
        return x, total

    return function, (torch.randn(16),)


@_program
def numpy_and_back() -> Program:
    def function(x: torch.Tensor) -> Any:
        y = torch.from_numpy(np.fft.fftshift(x.tanh().numpy()).copy())
        return torch.from_numpy(np.unwrap(y.cumsum(0).numpy(), axis=0)).relu()

    return function, (torch.randn(32, 32),)


@_program
def loop_until_converged() -> Program:
    matrix = torch.rand(32, 32) + 32 * torch.eye(32)
    right = torch.rand(32)

    def function(x: torch.Tensor) -> Any:
        while (residual := right - matrix @ x).norm() > 1e-5:
            x = x + residual / matrix.diagonal()
        return x

    return function, (torch.zeros(32),)


@_program
def random_augmentation() -> Program:
    def function(x: torch.Tensor) -> Any:
        if random.random() < 0.5:
            x = x.flip(-1)
        if random.random() < 0.5:
            x = x * random.uniform(0.8, 1.2)
        left = random.randrange(8)
        return (x[..., left : left + 56] - x.mean()) / x.std()

    return function, (torch.rand(4, 3, 64, 64),)


@_program
def greedy_suppression() -> Program:
    boxes, scores = torch.rand(64, 4), torch.rand(64)

    def function(boxes: torch.Tensor, scores: torch.Tensor) -> Any:
        order, kept = scores.argsort(descending=True), []
        while order.numel():
            kept.append(order[0].item())
            near = (boxes[order] - boxes[order[0]]).abs().amax(1) < 0.3
            order = order[~near]
        return kept

    return function, (boxes, scores)


@_program
def mixture_of_experts() -> Program:
    experts, gate = _layers(4, 64), nn.Linear(64, 4)

    def function(x: torch.Tensor) -> Any:
        weights, chosen = gate(x).softmax(-1).topk(2)
        result = torch.zeros_like(x)
        for number, expert in enumerate(experts):
            rows, place = torch.where(chosen == number)
            result.index_add_(0, rows, expert(x[rows]) * weights[rows, place, None])
        return result

    return function, (torch.randn(32, 64),)


@_program
def lists_of_results() -> Program:
    head = nn.Linear(64, 100)

    def function(x: torch.Tensor) -> Any:
        values, tokens = head(x).log_softmax(-1).topk(4)
        return sorted(zip(values.flatten().tolist(), tokens.flatten().tolist(), strict=True))[:4]

    return function, (torch.randn(4, 64),)


@_program
def gpt2() -> Program:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=512, n_positions=128, n_embd=64, n_layer=2, n_head=4)
    return GPT2LMHeadModel(config).eval(), (torch.randint(0, 512, (2, 64)),)


@_program
def training_step_with_a_log() -> Program:
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        _log.debug("loss %f", loss.item())
        return loss.detach()

    return function, (torch.randn(64, 64), torch.randint(0, 10, (64,)))
