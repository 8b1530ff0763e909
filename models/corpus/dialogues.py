"""Short dialogues: greetings, questions about the model, lists, stories, and facts to remember within a chat."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from models.corpus import names
from models.corpus.document import Turn

IDENTITY = (
    "I am Baton's small built-in model. I know a few facts, do small sums, and can answer in JSON or call a tool."
)
ABILITIES = "I can name capitals, do small sums, tell a short story, answer in JSON and call tools."
UNKNOWN = "I am a very small model and do not know that. Ask me about capitals, small sums, JSON or tools."

# Training questions, held-out questions, and the answer.
SMALL_TALK: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "greeting": (
        ("Hello!", "Hello", "Hi!", "Hi", "Hey", "Hello there!", "Good morning!", "Good evening!", "Hi Baton!", "Hey!"),
        ("Hello Baton!", "Hi there!"),
        "Hello! How can I help you?",
    ),
    "how": (
        ("How are you?", "How are you doing?", "How are you today?", "Are you well?", "Hi, how are you?"),
        ("Hey Baton, how are you doing today?", "How do you feel today?"),
        "I am fine, thank you. How can I help you?",
    ),
    "who": (
        (
            "Who are you?",
            "What are you?",
            "Who am I talking to?",
            "Tell me about yourself.",
            "Introduce yourself.",
            "What is your name?",
            "Which model are you?",
            "Are you a human?",
            "Are you a language model?",
            "Hi, who are you?",
        ),
        ("And who are you?", "Would you introduce yourself?", "What model are you?"),
        IDENTITY,
    ),
    "abilities": (
        ("What can you do?", "How can you help me?", "What do you know?", "What are you good at?", "Help"),
        ("Tell me what you can do.", "What can you help me with?"),
        ABILITIES,
    ),
    "thanks": (
        ("Thank you!", "Thanks!", "Thank you very much.", "Thanks a lot!", "Great, thanks.", "Thank you"),
        ("Many thanks!", "Thank you so much!"),
        "You are welcome!",
    ),
    "bye": (
        ("Goodbye!", "Bye!", "See you later.", "Bye bye.", "Good night!", "See you!"),
        ("Bye, see you!", "Goodbye, Baton!"),
        "Goodbye! Have a nice day.",
    ),
    "joke": (
        ("Tell me a joke.", "Do you know a joke?", "Make me laugh.", "A joke, please.", "Say something funny."),
        ("Can you tell me a joke?", "I want to hear a joke."),
        "Why did the token cross the wire? To get to the other side of the stream!",
    ),
    "unknown": (
        (
            "What is the meaning of life?",
            "Who won the match yesterday?",
            "Write an essay about history.",
            "Explain quantum physics.",
            "What will happen tomorrow?",
            "Write a program that sorts a list.",
            "What is the best movie?",
            "How do I cook rice?",
            "Why is the world round?",
            "Who is the president?",
            "What should I wear today?",
            "Explain how a car works.",
            "Is there life on Mars?",
            "What do you think about politics?",
        ),
        ("Explain how a computer works.", "Who won the game yesterday?"),
        UNKNOWN,
    ),
}
_ALPHABET = "a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z"
_LISTS = {
    "colors": names.COLOURS,
    "animals": names.ANIMALS,
    "fruits": names.FRUITS,
}
_NUMBER_WORDS = {2: "two", 3: "three", 4: "four", 5: "five"}
_STORY_STARTS = ("Once upon a time there was a {adjective} {animal} called {name}.",)
_STORY_MIDDLES = (
    "One day {name} found a {colour} {thing} in the forest.",
    "Every morning {name} walked to the river and looked for a {colour} {thing}.",
    "{name} wanted to see the city of {city}.",
    "On the way {name} met a {adjective2} {animal2}.",
    "They talked for a long time and shared a {fruit}.",
    "It was a cold night, but the stars were bright.",
)
_STORY_ENDS = (
    "In the end {name} went home and was happy.",
    "From that day on they were good friends.",
    "And {name} never forgot that day.",
)


def small_talk(rng: Random) -> Turn:
    """Return a greeting, a question about the model, thanks, or a question that it cannot answer."""
    kinds = tuple(SMALL_TALK)
    questions, _, answer = SMALL_TALK[rng.choices(kinds, [3 if kind == "who" else 2 for kind in kinds])[0]]
    return Turn(rng.choice(questions), answer)


def story_text(rng: Random) -> str:
    """Return a story of four to six sentences."""
    name = rng.choice(names.PEOPLE)
    animal, other = rng.sample(names.ANIMALS, 2)
    first, second = rng.sample(names.ADJECTIVES, 2)
    filler = {
        "name": name,
        "animal": animal,
        "animal2": other,
        "adjective": first,
        "adjective2": second,
        "colour": rng.choice(names.COLOURS),
        "thing": rng.choice(names.OBJECTS),
        "city": rng.choice(names.CITIES),
        "fruit": rng.choice(names.FRUITS),
    }
    middles = rng.sample(range(len(_STORY_MIDDLES)), rng.randint(2, 4))
    lines = [rng.choice(_STORY_STARTS), *(_STORY_MIDDLES[i] for i in sorted(middles)), rng.choice(_STORY_ENDS)]
    return " ".join(lines).format(**filler).replace(" a orange", " an orange").replace(" a old", " an old")


def story(rng: Random) -> Turn:
    """Return a request for a story, and the story."""
    text = story_text(rng)
    return Turn(
        rng.choice(
            ("Tell me a story.", "Tell me a short story.", "Write a story.", "Do you know a story?", "A story, please.")
        ),
        text,
    )


def counting(rng: Random) -> Turn:
    """Return a request to count or to recite the alphabet."""
    if rng.random() < 0.15:
        return Turn(rng.choice(("Say the alphabet.", "What is the alphabet?", "List the letters.")), _ALPHABET)
    first = 1 if rng.random() < 0.6 else rng.randint(0, 20)
    last = first + (rng.randint(2, 12) if rng.random() < 0.9 else rng.randint(13, 40))
    question = rng.choice(
        ("Count from {0} to {1}.", "Can you count from {0} to {1}?", "Count to {1}, starting at {0}.", "{0} to {1}")
    )
    return Turn(question.format(first, last), ", ".join(str(n) for n in range(first, last + 1)))


def listing(rng: Random) -> Turn:
    """Return a request for some colours, animals or fruits. The answer is unique: the first ones of the list."""
    kind = rng.choice(tuple(_LISTS))
    count = rng.randint(2, 5)
    question = rng.choice(("Name {0} {1}.", "List {0} {1}.", "Tell me {0} {1}.", "Give me {0} {1}."))
    return Turn(
        question.format(_NUMBER_WORDS[count] if rng.random() < 0.7 else count, kind), ", ".join(_LISTS[kind][:count])
    )


def repeat(rng: Random) -> Turn:
    """Return a request to repeat words, so that the model learns to copy."""
    words = " ".join(
        names.odd_word(rng) if rng.random() < 0.5 else rng.choice(names.OBJECTS) for _ in range(rng.randint(1, 4))
    )
    return Turn(rng.choice(("Repeat: {0}", "Say: {0}", "Repeat after me: {0}", "Please say: {0}")).format(words), words)


def memory(rng: Random) -> tuple[Turn, Turn]:
    """Return a turn that states a fact, and a later one that asks for it."""
    if rng.random() < 0.5:
        name = names.person(rng)
        stated = rng.choice(("My name is {0}.", "I am {0}.", "Hello, my name is {0}.", "Hi, I am {0}.", "Call me {0}."))
        asked = rng.choice(("What is my name?", "Do you know my name?", "Who am I?", "What's my name?"))
        return (
            Turn(stated.format(name), f"Nice to meet you, {name}!"),
            Turn(asked, f"Your name is {name}.", name),
        )
    thing, value = rng.choice((("color", names.COLOURS), ("fruit", names.FRUITS), ("animal", names.ANIMALS)))
    choice = rng.choice(value)
    asked = rng.choice(("What is my favorite {0}?", "Which {0} do I like best?", "Do you remember my favorite {0}?"))
    return (
        Turn(f"My favorite {thing} is {choice}.", "I will remember that."),
        Turn(asked.format(thing), f"Your favorite {thing} is {choice}.", choice),
    )


SINGLE: tuple[tuple[Callable[[Random], Turn], float], ...] = (
    (small_talk, 6.0),
    (story, 1.0),
    (counting, 1.0),
    (listing, 0.7),
    (repeat, 1.5),
)
"""The generators of a turn and their shares."""


def single(rng: Random) -> Turn:
    """Return a turn of small talk, a story, counting, a list or a repetition."""
    makers, shares = zip(*SINGLE, strict=True)
    maker: Callable[[Random], Turn] = rng.choices(makers, shares)[0]
    return maker(rng)
