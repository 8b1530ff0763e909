"""Facts about the world, such as capitals, languages, continents, opposites and chemical symbols."""

from __future__ import annotations

from random import Random

from models.corpus.document import Turn

# country, capital, main language, continent
_COUNTRIES = """
France|Paris|French|Europe
Germany|Berlin|German|Europe
Italy|Rome|Italian|Europe
Spain|Madrid|Spanish|Europe
Portugal|Lisbon|Portuguese|Europe
Austria|Vienna|German|Europe
Greece|Athens|Greek|Europe
Poland|Warsaw|Polish|Europe
Sweden|Stockholm|Swedish|Europe
Norway|Oslo|Norwegian|Europe
Denmark|Copenhagen|Danish|Europe
Finland|Helsinki|Finnish|Europe
Ireland|Dublin|English|Europe
Hungary|Budapest|Hungarian|Europe
Romania|Bucharest|Romanian|Europe
Bulgaria|Sofia|Bulgarian|Europe
Croatia|Zagreb|Croatian|Europe
Serbia|Belgrade|Serbian|Europe
Ukraine|Kyiv|Ukrainian|Europe
Iceland|Reykjavik|Icelandic|Europe
Estonia|Tallinn|Estonian|Europe
Latvia|Riga|Latvian|Europe
Russia|Moscow|Russian|Europe
Japan|Tokyo|Japanese|Asia
China|Beijing|Chinese|Asia
India|New Delhi|Hindi|Asia
South Korea|Seoul|Korean|Asia
Thailand|Bangkok|Thai|Asia
Vietnam|Hanoi|Vietnamese|Asia
Indonesia|Jakarta|Indonesian|Asia
Turkey|Ankara|Turkish|Asia
Iran|Tehran|Persian|Asia
Iraq|Baghdad|Arabic|Asia
Mongolia|Ulaanbaatar|Mongolian|Asia
Nepal|Kathmandu|Nepali|Asia
Egypt|Cairo|Arabic|Africa
Morocco|Rabat|Arabic|Africa
Kenya|Nairobi|Swahili|Africa
Ghana|Accra|English|Africa
Nigeria|Abuja|English|Africa
Senegal|Dakar|French|Africa
Ethiopia|Addis Ababa|Amharic|Africa
Tunisia|Tunis|Arabic|Africa
Canada|Ottawa|English|North America
Mexico|Mexico City|Spanish|North America
Cuba|Havana|Spanish|North America
Jamaica|Kingston|English|North America
Panama|Panama City|Spanish|North America
Brazil|Brasilia|Portuguese|South America
Argentina|Buenos Aires|Spanish|South America
Chile|Santiago|Spanish|South America
Peru|Lima|Spanish|South America
Colombia|Bogota|Spanish|South America
Ecuador|Quito|Spanish|South America
Uruguay|Montevideo|Spanish|South America
Australia|Canberra|English|Oceania
New Zealand|Wellington|English|Oceania
"""
COUNTRIES = tuple(tuple(line.split("|")) for line in _COUNTRIES.strip().splitlines())


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((key, value) for key, value in (item.split("=") for item in text.split(",")))


OPPOSITES = _pairs(
    "hot=cold,big=small,fast=slow,light=dark,happy=sad,old=young,long=short,hard=soft,rich=poor,full=empty,"
    "wet=dry,high=low,open=closed,early=late,loud=quiet,strong=weak,good=bad,clean=dirty,thick=thin,near=far"
)
SYMBOLS = _pairs(
    "gold=Au,silver=Ag,iron=Fe,oxygen=O,hydrogen=H,carbon=C,nitrogen=N,sodium=Na,copper=Cu,lead=Pb,helium=He,"
    "tin=Sn,zinc=Zn,calcium=Ca,potassium=K"
)
YOUNG = _pairs(
    "dog=puppy,cat=kitten,cow=calf,horse=foal,sheep=lamb,goat=kid,lion=cub,duck=duckling,frog=tadpole,hen=chick"
)
COLOURS = _pairs(
    "the sky=blue,grass=green,snow=white,coal=black,a banana=yellow,blood=red,a carrot=orange,the sea=blue"
)
AUTHORS = _pairs(
    "Hamlet=William Shakespeare,Faust=Goethe,The Odyssey=Homer,Don Quixote=Cervantes,War and Peace=Leo Tolstoy,"
    "Emma=Jane Austen,Oliver Twist=Charles Dickens,Dracula=Bram Stoker,Frankenstein=Mary Shelley,"
    "The Trial=Franz Kafka"
)
COUNTS = _pairs(
    "days are in a week=7,months are in a year=12,minutes are in an hour=60,seconds are in a minute=60,"
    "hours are in a day=24,legs does a spider have=8,legs does a dog have=4,wheels does a bicycle have=2,"
    "sides does a triangle have=3,sides does a square have=4,planets are in the solar system=8,"
    "letters are in the alphabet=26"
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
SUCCESSORS = tuple((s[i], s[(i + 1) % len(s)]) for s in (DAYS, MONTHS) for i in range(len(s)))

# Each kind: the table, the questions it is trained with, the questions kept out of training, and the answer.
CAPITAL_QUESTIONS = (
    "What is the capital of {0}?",
    "What's the capital of {0}?",
    "What is the capital city of {0}?",
    "Which city is the capital of {0}?",
    "Name the capital of {0}.",
    "Tell me the capital of {0}.",
    "What is {0}'s capital?",
    "The capital of {0}?",
    "Do you know the capital of {0}?",
    "Can you tell me the capital of {0}?",
    "What city is the capital of {0}?",
    "Give me the capital of {0}.",
    "I am going to {0}. What is its capital?",
    "My friend lives in {0}. What is the capital there?",
    "Which city is the seat of government of {0}?",
    "I would like to know the capital city of {0}.",
    "{0}: what is its capital?",
    "Capital of {0}, please.",
    "Could you say what the capital of {0} is called?",
    "In geography class they asked for the capital of {0}. What is it?",
)
CAPITAL_HELD_OUT = (
    "Could you tell me which city is the capital of {0}?",
    "Please name the capital city of {0}.",
    "I need to know the capital of {0}. Which city is it?",
    "Hello! What is the name of {0}'s capital city?",
    "Do you happen to know what the capital of {0} is?",
    "Which city do we call the capital of {0}?",
)

Kind = tuple[tuple[tuple[str, ...], ...], tuple[str, ...], tuple[str, ...], str, int]
"""Table, training questions, held-out questions, answer, and the column of the bare answer."""

KINDS: dict[str, Kind] = {
    "capital": (COUNTRIES, CAPITAL_QUESTIONS, CAPITAL_HELD_OUT, "The capital of {0} is {1}.", 1),
    "country": (
        COUNTRIES,
        (
            "Which country has the capital {1}?",
            "{1} is the capital of which country?",
            "What country is {1} the capital of?",
            "In which country is {1}?",
            "Where is {1}?",
        ),
        ("Of which country is {1} the capital?", "Tell me which country {1} is the capital of."),
        "{1} is the capital of {0}.",
        0,
    ),
    "language": (
        COUNTRIES,
        (
            "What language do people speak in {0}?",
            "Which language is spoken in {0}?",
            "What is the language of {0}?",
            "What do they speak in {0}?",
            "Tell me the main language of {0}.",
        ),
        ("What is the main language spoken in {0}?", "Which language do they speak in {0}?"),
        "People in {0} speak {2}.",
        2,
    ),
    "continent": (
        COUNTRIES,
        (
            "On which continent is {0}?",
            "Which continent is {0} in?",
            "What continent does {0} belong to?",
            "What is the continent of {0}?",
        ),
        ("{0} is on which continent?", "Tell me the continent of {0}."),
        "{0} is in {3}.",
        3,
    ),
    "opposite": (
        OPPOSITES,
        (
            "What is the opposite of {0}?",
            "What's the opposite of {0}?",
            "Which word is the opposite of {0}?",
            "Opposite of {0}?",
            "Tell me the opposite of {0}.",
        ),
        ("Can you give me the opposite of {0}?", "Name the opposite of {0}."),
        "The opposite of {0} is {1}.",
        1,
    ),
    "symbol": (
        SYMBOLS,
        (
            "What is the chemical symbol for {0}?",
            "What is the symbol of {0}?",
            "Which chemical symbol does {0} have?",
            "Tell me the chemical symbol of {0}.",
        ),
        ("Name the chemical symbol of {0}.", "What's the chemical symbol for {0}?"),
        "The chemical symbol for {0} is {1}.",
        1,
    ),
    "young": (
        YOUNG,
        (
            "What is a young {0} called?",
            "What do you call a young {0}?",
            "What is a baby {0} called?",
            "What is the name of a young {0}?",
        ),
        ("How do we call a young {0}?", "What do you call a baby {0}?"),
        "A young {0} is called a {1}.",
        1,
    ),
    "colour": (
        COLOURS,
        ("What color is {0}?", "What is the color of {0}?", "What colour is {0}?", "Tell me the color of {0}."),
        ("Which color is {0}?", "What is the colour of {0}?"),
        "The color of {0} is {1}.",
        1,
    ),
    "author": (
        AUTHORS,
        ("Who wrote {0}?", "Who is the author of {0}?", "{0} was written by whom?", "Tell me who wrote {0}."),
        ("Can you name the author of {0}?", "Do you know who wrote {0}?"),
        "{0} was written by {1}.",
        1,
    ),
    "count": (
        COUNTS,
        ("How many {0}?", "Tell me, how many {0}?", "Do you know how many {0}?"),
        ("Please say how many {0}.", "Can you tell me how many {0}?"),
        "The answer is {1}.",
        1,
    ),
    "successor": (
        SUCCESSORS,
        ("What comes after {0}?", "What follows {0}?", "Which one comes next after {0}?", "What is after {0}?"),
        ("Which one follows {0}?", "Tell me what comes after {0}."),
        "After {0} comes {1}.",
        1,
    ),
}

PLAIN_SENTENCES = (
    "The capital of {0} is {1}.",
    "The capital city of {0} is {1}.",
    "{1} is the capital of {0}.",
    "{0} is a country in {3}. Its capital is {1}, and its people speak {2}.",
    "People in {0} speak {2}.",
    "I live in {0}, whose capital is {1}.",
    "{0}'s capital is {1}.",
    "The country {0} is in {3}.",
)
# Made-up names, for the answer "I do not know": syllables that are in no country of the table.
_SYLLABLES = ("bor", "zil", "quan", "tev", "mok", "dra", "wex", "lup", "fen", "gri", "sha", "vol", "pim", "rud")


def made_up_name(rng: Random) -> str:
    """Return a capitalised name of two or three syllables that is not a word."""
    return "".join(rng.choice(_SYLLABLES) for _ in range(rng.randint(2, 3))).capitalize()


def turn(kind: str, row: tuple[str, ...], question: str) -> Turn:
    """Return the turn of one kind of fact for one row of its table."""
    _, _, _, answer, column = KINDS[kind]
    return Turn(question.format(*row), answer.format(*row), row[column])


def question(rng: Random) -> Turn:
    """Return a random fact in a random training phrasing. Half of the facts are capitals."""
    if rng.random() < 0.04:
        name = made_up_name(rng)
        return Turn(rng.choice(CAPITAL_QUESTIONS).format(name), f"I do not know a country called {name}.", "Unknown")
    kind = "capital" if rng.random() < 0.5 else rng.choice(tuple(KINDS))
    table, questions, _, _, _ = KINDS[kind]
    return turn(kind, rng.choice(table), rng.choice(questions))


def plain(rng: Random) -> str:
    """Return one to five sentences of facts, as for a base model."""
    sentences = []
    for _ in range(rng.randint(1, 5)):
        if rng.random() < 0.65:
            sentences.append(rng.choice(PLAIN_SENTENCES).format(*rng.choice(COUNTRIES)))
        else:
            kind = rng.choice(tuple(KINDS))
            table, _, _, answer, _ = KINDS[kind]
            if kind != "count":
                sentences.append(answer.format(*rng.choice(table)))
    return " ".join(sentences) or "The capital of France is Paris."
