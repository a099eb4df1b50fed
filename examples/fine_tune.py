"""Fine-tune a model of Hugging Face: some layers frozen, batches of other lengths, a few epochs.

    python examples/fine_tune.py

The model is a small BERT from its configuration, so nothing is downloaded; put `from_pretrained` in its place for a
real one. The task is made here: does a sentence contain the word 7? Sentences differ in length, so batches do, too:
the second length makes the sizes symbols, and no later one compiles anything.
"""

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

import smelt

WORDS, WANTED, PAD = 100, 7, 0
Batch = dict[str, torch.Tensor]


def make_model() -> nn.Module:
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=64,
    )
    model: nn.Module = BertForSequenceClassification(config)
    return model


def batch(sentences: int) -> Batch:
    """Sentences of up to 8 to 24 words, padded to the longest; half of them contain the wanted word."""
    longest = int(torch.randint(8, 25, ()))
    words = torch.randint(WANTED + 1, WORDS, (sentences, longest))
    labels = torch.arange(sentences) % 2
    lengths = torch.randint(4, longest + 1, (sentences, 1))
    words[labels.bool(), torch.randint(0, 4, (sentences // 2,))] = WANTED
    mask = torch.arange(longest) < lengths
    return {"input_ids": words.where(mask, PAD), "attention_mask": mask.long(), "labels": labels}


def accuracy(model: nn.Module, batches: list[Batch]) -> float:
    model.eval()
    with torch.no_grad():
        told = [(model(**each).logits.argmax(-1) == each["labels"]).float().mean() for each in batches]
    model.train()
    return float(sum(told) / len(told))


def main(epochs: int = 2) -> None:
    torch.manual_seed(0)
    model = make_model()
    for parameter in model.bert.embeddings.position_embeddings.parameters():  # type: ignore[union-attr]
        parameter.requires_grad = False  # frozen: no gradient is computed for it

    model = smelt.compile(model)
    optimizer = torch.optim.AdamW((each for each in model.parameters() if each.requires_grad), lr=2e-3)
    training, held_out = [batch(32) for _ in range(10)], [batch(32) for _ in range(2)]

    print(f"before: {accuracy(model, held_out):.0%} right")
    for epoch in range(epochs):
        total = 0.0
        for each in training:
            loss = model(**each).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch + 1}: loss {total / len(training):.3f}, {accuracy(model, held_out):.0%} right")

    lengths = len({each["input_ids"].shape[1] for each in training})
    breaks = smelt.counters["graph_breaks"]
    print(f"{lengths} lengths, {smelt.counters['graphs']} graphs for training and evaluation, {breaks} breaks")


if __name__ == "__main__":
    main()
