"""The page of features by API agrees with the code, in which no feature is dropped silently."""

import msgspec
import pytest

from gateway.errors import RequestError
from gateway.generation.request import GenerationRequest, SequenceRequest
from gateway.openai.answer import OpenAIAnswer
from gateway.streaming.dialect import Decoded
from protocol.errors import ErrorCode
from protocol.request import Limits, Sampling, TextInput
from tests.docs.clients.features import FEATURES
from tests.docs.clients.sample import ALWAYS, NO_FIELD, Cell, Column, Sample, ignored, of
from tests.docs.clients.table import BLOCK, COLUMNS, PAGE, block

EVERY = [feature for features in FEATURES.values() for feature in features]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.title.strip("`"))
def test_a_feature_is_honoured_or_refused_by_name(column: Column) -> None:
    problems = {feature: problem for feature in EVERY if (problem := column.cell(feature).problem)}
    assert not problems
    assert set(column.samples) <= set(EVERY), "samples of features that are not listed"


def test_the_page_has_the_tables_that_the_code_makes() -> None:
    stated = BLOCK.search(PAGE.read_text())
    assert stated
    assert stated[1] == block(), "`python -m tests.docs.clients` writes them"


def decode(raw: bytes) -> Decoded:
    """A body whose field `dropped` does nothing, `shape` does, and `late` is refused under another name."""
    body = msgspec.json.decode(raw)
    if "late" in body:
        raise RequestError(ErrorCode.INVALID, "no", field="elsewhere")
    sequence = SequenceRequest(TextInput(body.get("shape", "")), Sampling(), Limits())
    return Decoded(GenerationRequest("tiny", (sequence,)), OpenAIAnswer(chat=False))


@pytest.mark.parametrize(
    ("sample", "cell"),
    [
        (of(shape="x"), Cell("`shape`")),
        (ignored(dropped=1), Cell("ignored: `dropped`")),
        (NO_FIELD, Cell("no field")),
        (ALWAYS, Cell("always")),
        (of(dropped=1), Cell("ignored: `dropped`", "has no effect and is not refused")),
        (of(shape="x", dropped=1), Cell("`shape`, `dropped`", "has no effect of ['dropped']")),
        (ignored(shape="x"), Cell("`shape`", "changes the answer, but is said to be ignored")),
        (of(late=1), Cell("refused: `elsewhere`", "is refused at 'elsewhere': no")),
    ],
)
def test_a_cell_states_what_is_wrong_with_it(sample: Sample, cell: Cell) -> None:
    assert Column("", lambda: decode, {}, {"a": sample}).cell("a") == cell
    assert Column("", lambda: decode, {}, {}).cell("a").problem == "has no sample"
