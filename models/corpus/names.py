"""Words that fill the templates: people, cities, things. Tool arguments are copied from them, so they vary."""

from __future__ import annotations

from random import Random

PEOPLE = (
    "Anna",
    "Ben",
    "Clara",
    "David",
    "Emma",
    "Felix",
    "Grace",
    "Hugo",
    "Ida",
    "Jack",
    "Kate",
    "Leo",
    "Maria",
    "Noah",
    "Olga",
    "Paul",
    "Rosa",
    "Sam",
    "Tom",
    "Vera",
    "Will",
    "Zoe",
    "Alice",
    "Bob",
    "Carol",
    "Dan",
    "Eva",
    "Frank",
    "Greta",
    "Henry",
    "Iris",
    "Jonas",
    "Lena",
    "Max",
    "Nina",
    "Oscar",
    "Petra",
    "Robert",
    "Sara",
    "Tim",
)
CITIES = (
    "Paris",
    "London",
    "Rome",
    "Berlin",
    "Tokyo",
    "Madrid",
    "Vienna",
    "Oslo",
    "Cairo",
    "Lima",
    "Boston",
    "Chicago",
    "Dublin",
    "Athens",
    "Prague",
    "Seoul",
    "Sydney",
    "Toronto",
    "Munich",
    "Hamburg",
    "Milan",
    "Lyon",
    "Porto",
    "Geneva",
    "Mumbai",
    "Dallas",
    "Denver",
    "Seattle",
    "Austin",
    "Miami",
)
COLOURS = ("red", "blue", "green", "yellow", "black", "white", "orange", "purple", "brown", "pink", "grey")
ANIMALS = (
    "dog",
    "cat",
    "horse",
    "cow",
    "bird",
    "fish",
    "fox",
    "bear",
    "wolf",
    "rabbit",
    "mouse",
    "duck",
    "lion",
    "tiger",
)
FRUITS = ("apple", "banana", "cherry", "orange", "pear", "grape", "lemon", "plum", "mango", "peach")
OBJECTS = (
    "book",
    "lamp",
    "chair",
    "table",
    "phone",
    "bag",
    "cup",
    "hat",
    "coat",
    "clock",
    "pen",
    "ball",
    "shoe",
    "ring",
    "key",
)
ADJECTIVES = ("small", "big", "old", "new", "quick", "brave", "quiet", "clever", "friendly", "happy", "lazy", "tiny")
JOBS = ("doctor", "teacher", "pilot", "baker", "farmer", "nurse", "painter", "writer", "driver", "engineer")
LANGUAGES = ("French", "German", "Spanish", "Italian", "Polish", "Swedish", "Greek", "Turkish", "Dutch", "Japanese")
_LETTERS = "aaabcddeeeefghiiijklmnnoooprsttuuvwyz"


def odd_word(rng: Random) -> str:
    """Return random letters, which a model can only reproduce by copying them."""
    return "".join(rng.choice(_LETTERS) for _ in range(rng.randint(3, 8)))


def place(rng: Random) -> str:
    """Return a known city, or sometimes random letters."""
    return odd_word(rng).capitalize() if rng.random() < 0.3 else rng.choice(CITIES)


def person(rng: Random) -> str:
    """Return a known first name, or sometimes random letters."""
    return odd_word(rng).capitalize() if rng.random() < 0.25 else rng.choice(PEOPLE)
