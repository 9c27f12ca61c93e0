"""What worlds of people ask: conversations of everyday length, each with a way of drawing and a seed of its own."""

import random
from dataclasses import dataclass

from protocol.serving import GenerateCommand, Sampling

KINDS = {
    "greedy": Sampling(temperature=0),
    "drawn": Sampling(),
    "top_p": Sampling(1.0, 0, 0.9),
    "top_k": Sampling(0.7, 40, 1.0),
}
ANSWERS = 3  # Of a world: those of a new node that are always checked.
_QUESTIONS = (
    "Can you explain {thing} to my daughter, who is nine?",
    "Write a short, friendly email to {person} to say that I will be late because of {thing}.",
    "What are three things that I should know about {thing} before I travel?",
    "Give me a recipe that fits on a card. I have rice, two eggs and something like {thing}.",
    "My code says 'list index out of range' when I count {thing}. What does that mean?",
    "Is {thing} good for a dog? Answer in one word.",
    "Write the first lines of a story about {person} and {thing}.",
    "Which is older, {thing} or writing? Say why in a sentence.",
    "Translate into French: I have told {person} about {thing}.",
    "Hello!",
    "Make a list of five questions that {person} could ask about {thing} in an interview.",
    "What is the capital of Portugal, and what has it to do with {thing}?",
)
_THINGS = (
    "the tides",
    "compound interest",
    "a lemon tree",
    "sourdough",
    "the moon landing",
    "bicycles",
    "glass",
    "snow",
)
_PEOPLE = ("my landlord", "Mrs. Okafor", "an old friend", "the new colleague", "my grandmother", "a beekeeper")
_BEFORE = (
    ("How long do potatoes take?", "Small ones take about fifteen minutes in boiling water, large ones twenty-five."),
    ("I slept badly.", "I am sorry to hear that. Did something keep you awake, or was it hard to fall asleep at all?"),
)
_REPORT = (
    "In {month} {person} wrote that the water beside the mill had risen by {number} centimetres since {thing} came up last.",
    "Of the {number} households that were asked, most had heard of {thing}, and few could say what it would cost them.",
    "{person} replied, not without humour, that a committee had looked at {thing} {number} times and found nothing wrong.",
    "The minutes of {month} say otherwise: there the repair is put at {number},400 crowns, to be paid over three years.",
)
_MONTHS = ("January", "March", "June", "September", "November")
_SENTENCES = 26  # Of a text that is asked about: with its question more tokens than an engine computes at a time.


@dataclass(frozen=True)
class AskedWorld:
    """What one new node is asked. ``long``: has a prompt that is read in parts."""

    asked: tuple[GenerateCommand, ...]
    long: GenerateCommand

    @property
    def all(self) -> tuple[GenerateCommand, ...]:
        """Together."""
        return (*self.asked, self.long)


def world(number: int, tokens: int, template: bool) -> AskedWorld:
    """One of them. ``template``: the model has one for conversations."""
    chance = random.Random(number)

    def command(name: str, kind: str, text: str) -> GenerateCommand:
        sampling = KINDS[kind]
        drawn = Sampling(sampling.temperature, sampling.top_k, sampling.top_p, chance.getrandbits(40))
        if not template:
            return GenerateCommand(f"{number} {name}", text, tokens=tokens, sampling=drawn)
        before = chance.choice(_BEFORE) if chance.random() < 0.25 else ()
        talk = [{"role": role, "content": said} for role, said in zip(("user", "assistant"), before, strict=False)]
        messages = (*talk, {"role": "user", "content": text})
        return GenerateCommand(f"{number} {name}", messages=messages, tokens=tokens, sampling=drawn)

    kinds, questions = chance.sample(list(KINDS), ANSWERS), chance.sample(_QUESTIONS, ANSWERS)
    short = (command(str(at), kind, _filled(chance, questions[at])) for at, kind in enumerate(kinds))
    report = " ".join(_filled(chance, chance.choice(_REPORT)) for _ in range(_SENTENCES))
    asked = f"{report}\n\nWhat is this about? Sum it up in two sentences."
    return AskedWorld(tuple(short), command("long", chance.choice(list(KINDS)), asked))


def kind_of(command: GenerateCommand) -> str:
    """Its way of drawing."""
    drawn = command.sampling
    return next(
        name
        for name, one in KINDS.items()
        if (one.temperature, one.top_k, one.top_p) == (drawn.temperature, drawn.top_k, drawn.top_p)
    )


def _filled(chance: random.Random, text: str) -> str:
    return text.format(
        thing=chance.choice(_THINGS),
        person=chance.choice(_PEOPLE),
        month=chance.choice(_MONTHS),
        number=chance.randrange(3, 90),
    )
