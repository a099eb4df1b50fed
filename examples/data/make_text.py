"""Writes `forge.txt`, the text the demo learns: short original pieces about metal work, and sentences from a grammar.

    python examples/data/make_text.py      rewrites examples/data/forge.txt, the same every time

The pieces are written for this project; the grammar below spins their vocabulary into some fifty kilobytes, regular
enough for a small model to learn in a minute and varied enough that it must learn spelling, grammar and sense.
"""

import random
from pathlib import Path

PIECES = """
The furnace keeps no diary. It remembers each charge only as a colour, and the colour goes with the morning. Whoever
wants to know what was melted yesterday must read the slag, which lies in grey tongues behind the shed and forgets
nothing.

A smith does not fight the iron. She waits for it. There is a short season between the heat that is too much and the
heat that is not enough, and all the work of the day has to live inside it. When the season ends she puts the bar
back among the coals and stands still, and this standing still is also a part of the craft.

We had two bellows and one boy. The left bellows sighed, the right one coughed, and the boy sang so that he would
not count. By the time the copper ran he had used up every verse he knew and had begun to make new ones about the
copper.

Ore is a promise made by a mountain. Most of it is kept.

Take the crucible by the waist and not by the lip. Pour as if the mould were asleep. A thin stream that never breaks
is better than a thick one that stutters, for every stutter is a seam, and every seam is a place where the bell will
one day decide to be two bells.

They asked the old founder how he knew that the bronze was ready. He said that it stopped arguing. First it spits,
then it mutters, then the skin goes quiet and bright like a pond before rain, and then you have as long as it takes
to say your own name slowly, and after that you have a worse bell.

The apprentice swept the floor for a year before he was given a hammer, and complained of it. In the second year he
could tell by the sound of the scale under his broom which heat had been too hot. In the third he no longer
complained.

Tin is soft, copper is soft, and together they are hard. My grandmother used to say this at weddings.

Hammer, hammer, who has bent the bar?
I, said the hammer, for I came from far.
Anvil, anvil, who has held it still?
I, said the anvil, and I hold it still.
Fire, fire, who has made it mild?
I, said the fire, and I burned and smiled.
Water, water, who has made it true?
I, said the water, and the work is through.

Lead runs at the heat of a candle, tin a little sooner. Zinc wants more, and leaves in white smoke if it is kept
waiting. Silver is patient. Gold is patient and vain. Copper drinks the air and must be covered. Iron sits in the
fire all day with its arms crossed, and then, all at once, it is on your side.

On the last night of the year the foundry lets its fire go out, the only time. The bricks tick as they cool. In the
dark somebody always says that it will not start again, and in the morning it always starts again.

What is slag but the part of the stone that did not want to come? Let it go. It will make a good road.
"""

SMITHS = ["the smith", "the founder", "the apprentice", "the old master", "her sister", "the bellows boy", "the miner"]
METALS = ["iron", "copper", "bronze", "silver", "tin", "lead", "steel", "brass", "gold", "zinc"]
THINGS = ["the blade", "the bell", "the hinge", "the nail", "the kettle", "the gate", "the chain", "the plough"]
TOOLS = ["the hammer", "the tongs", "the anvil", "the bellows", "the crucible", "the ladle", "the file", "the mould"]
COLOURS = ["dull red", "cherry red", "orange", "straw yellow", "white", "blue", "grey"]
TIMES = ["At dawn", "Before noon", "In the evening", "After the rain", "On the third day", "When the wind turned"]
ACTS = ["heated", "hammered", "quenched", "folded", "filed", "poured", "weighed", "drew out", "turned over", "polished"]
STATES = ["cold", "soft", "bright", "brittle", "quiet", "heavy", "ready", "stubborn", "thin", "true"]
PLACES = ["by the furnace", "under the hill", "in the long shed", "beside the river", "behind the chimney", "upstairs"]
ENDS = [
    "and nobody spoke",
    "and the sparks went up",
    "and it rang like a bell",
    "and the slag was left behind",
    "and the water hissed",
    "and the work was good",
    "and the fire sank a little",
]

FORMS = [
    "{time} {smith} {act} the {metal} until it was {colour}, {end}.",
    "{smith} {act} {thing} {place}, for the {metal} was still {state}.",
    "If the {metal} is {colour} it is {state}; if it is {colour2} it is {state2}.",
    "{smith} asked for {tool}, and {smith2} brought {tool2}.",
    "{time} {tool} was {state}, so {smith} {act} {thing} with {tool2}.",
    "Never put {metal} into the fire with {metal2}, said {smith}, unless you want {metal3}.",
    "{thing} was made of {metal}, and {thing2} of {metal2}, {end}.",
    "How do you know that the {metal} is {state}? It is {colour}, said {smith}.",
    "{smith} {act} it once, {smith2} {act2} it twice, {end}.",
    "There was {metal} {place}, {state} and {colour}, {end}.",
]

VERSES = [
    "{metal} in the morning, {metal2} at night,\n{tool} is heavy and {thing} is bright.",
    "Blow on the embers and turn them to {colour},\nthe {metal} is {state} and the evening is duller.",
    "{smith} has {tool} and {smith2} has the fire,\nthe {metal} runs low and the smoke rises higher.",
]


def sentence(form: str, dice: random.Random) -> str:
    """One form with its blanks filled; `{metal2}` differs from `{metal}`."""
    pools = {
        "smith": SMITHS, "metal": METALS, "thing": THINGS, "tool": TOOLS, "colour": COLOURS,
        "time": TIMES, "act": ACTS, "state": STATES, "place": PLACES, "end": ENDS,
    }  # fmt: skip
    words: dict[str, str] = {}
    for name, pool in pools.items():
        drawn = dice.sample(pool, 3)
        words |= {name: drawn[0], f"{name}2": drawn[1], f"{name}3": drawn[2]}
    text = form.format(**words)
    return text[0].upper() + text[1:]


def compose(size: int, seed: int = 7) -> str:
    """The hand-written pieces, each followed by paragraphs and verses of the grammar, up to about `size` characters."""
    dice = random.Random(seed)
    pieces = [piece.replace("\n", " ") if "?\n" not in piece else piece for piece in PIECES.strip().split("\n\n")]
    parts: list[str] = []
    while sum(map(len, parts)) < size:
        parts.append(pieces[len(parts) // 6 % len(pieces)] if len(parts) % 6 == 0 else "")
        if parts[-1] == "":
            forms = VERSES if dice.random() < 0.15 else FORMS
            count = 1 if forms is VERSES else dice.randint(3, 6)
            parts[-1] = " ".join(sentence(dice.choice(forms), dice) for _ in range(count))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    (Path(__file__).parent / "forge.txt").write_text(compose(48_000), encoding="utf-8")
