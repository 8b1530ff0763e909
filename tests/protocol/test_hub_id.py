"""Names of models on the hub."""

import pytest

from protocol.hub_id import MAX_REPO, MAX_REVISION, HubId


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
    "text",
    [
        *("", "name", "a/b/c", "/a", "a/", "./a", "~/a", "a/..", "a/b..c", "a b/c", "org/näme", "org/name\n"),
        *("a--b/c", "a/b--c", "a/b.", "a-/b", "a/b.git", "a/b.git@v1"),  # which huggingface_hub refuses
        *("o/n@", "o/n@../x", "o/n@/etc", "o/n@a b", "o/n@-x"),
        *("o/n:", "o/n:a/b", "o/n:../x", "o/n:-x", "o/n@v:Q8_0", "o/n:" + "q" * 65),
        *("o/" + "n" * (MAX_REPO - 1), "o/n@" + "r" * (MAX_REVISION + 1)),
    ],
)
def test_anything_else_is_no_id(text: str) -> None:
    assert HubId.parse(text) is None
