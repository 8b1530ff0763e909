"""Names of models on the hub."""

import pytest

from protocol.hub_id import MAX_REPO, MAX_REVISION, HubId, not_hub_id, plain_name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", HubId("org/name")),
        ("org/name@v1.0", HubId("org/name", "v1.0")),
        ("org/name:Q4_K_M", HubId("org/name", "", "Q4_K_M")),
        ("org/name:UD-Q4_K_XL@v1.0", HubId("org/name", "v1.0", "UD-Q4_K_XL")),
        ("org/name@refs/pr/1", HubId("org/name", "refs/pr/1")),
        ("Qwen/Qwen3-0.6B_x", HubId("Qwen/Qwen3-0.6B_x")),
        ("o/" + "n" * (MAX_REPO - 2), HubId("o/" + "n" * (MAX_REPO - 2))),
        ("o/n@" + "r" * MAX_REVISION, HubId("o/n", "r" * MAX_REVISION)),
    ],
)
def test_an_id_is_a_repository_and_a_revision(text: str, expected: HubId) -> None:
    assert HubId.parse(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize(
    "prefix", ["hf.co/", "huggingface.co/", "https://huggingface.co/", "http://www.huggingface.co/", "https://hf.co/"]
)
def test_the_address_of_the_hub_may_come_before_an_id(prefix: str) -> None:
    assert HubId.parse(f"{prefix}org/name:Q4_K_M") == HubId("org/name", "", "Q4_K_M")
    assert HubId.parse(f"{prefix}org/name/") == HubId("org/name")
    assert HubId.parse(f"{prefix}org") is None
    assert plain_name(f"{prefix}org/name") == "org/name"
    assert plain_name(f"{prefix}org") == f"{prefix}org"


def test_the_error_about_a_bare_name_speaks_of_ollama() -> None:
    assert not_hub_id("llama3.2").startswith("'llama3.2' is not a hub id like ORG/NAME,")
    assert not_hub_id("llama3.2").endswith("; names of Ollama's library are not known here")
    assert not_hub_id("./x", "it") == "it is not a hub id like ORG/NAME, ORG/NAME@REVISION or ORG/NAME:Q4_K_M"


@pytest.mark.parametrize(
    "text",
    [
        *("https://example.com/org/name", "hf.co/a/b/c", "hf.co.evil/a/b", "hf.co//a/b", "hf.co/hf.co/a/b"),
        *("", "name", "a/b/c", "/a", "a/", "./a", "~/a", "a/..", "a/b..c", "a b/c", "org/näme", "org/name\n"),
        *("a--b/c", "a/b--c", "a/b.", "a-/b", "a/b.git", "a/b.git@v1"),  # which huggingface_hub refuses
        *("o/n@", "o/n@../x", "o/n@/etc", "o/n@a b", "o/n@-x"),
        *("o/n:", "o/n:a/b", "o/n:../x", "o/n:-x", "o/n@v:Q8_0", "o/n:" + "q" * 65),
        *("o/" + "n" * (MAX_REPO - 1), "o/n@" + "r" * (MAX_REVISION + 1)),
    ],
)
def test_anything_else_is_no_id(text: str) -> None:
    assert HubId.parse(text) is None
