"""Models of `transformers` trained on the lazy device: eager's losses, one graph a step, nothing left to PyTorch."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import smelt


def train(device: str, steps: int = 4) -> list[float]:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2, eos_token_id=0)
    model: torch.nn.Module = GPT2LMHeadModel(config)
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, 1.0, 4)
    losses = []
    for step in range(steps):
        tokens = torch.randint(0, 50, (2, 8), generator=torch.Generator().manual_seed(step)).to(device)
        optimizer.zero_grad()
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def test_gpt2_trains_as_eager() -> None:
    wanted = train("cpu")
    before = smelt.lazy.explain()
    torch.testing.assert_close(torch.tensor(train("lazy")), torch.tensor(wanted), rtol=1e-5, atol=1e-5)
    after = smelt.lazy.explain()
    runs = after.runs[before.run_count - after.run_count :]
    assert [run.reason for run in runs] == ["an optimizer's step"] * 4
    assert [run.how for run in runs] == ["compiled", "compiled", "cached", "cached"]
    assert after.fallbacks == before.fallbacks
