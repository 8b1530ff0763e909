"""The requests whose streams a trial observes."""

from typing import Any

from cli.chaos.http_client import ClientRequest

SUBJECTS = ("river", "clock", "market", "garden", "letter", "engine", "island", "winter", "bridge", "teacher")


def streaming_requests(
    model: str, count: int, tokens: int, *, words: int = 8, chat: bool = False
) -> list[ClientRequest]:
    """Return distinct streaming requests for `tokens` tokens each; half are greedy, half sampled with a seed.

    With `chat`, every second one is a chat completion.
    """
    found = []
    for index in range(count):
        prompt = " ".join(SUBJECTS[(index * 7 + word * (index % 9 + 1)) % len(SUBJECTS)] for word in range(words))
        body: dict[str, Any] = {"model": model, "max_tokens": tokens, "ignore_eos": True, "return_token_ids": True}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        body |= {"temperature": 0.0} if index // 2 % 2 else {"temperature": 0.9, "seed": index}
        prompt = f"{index}: {prompt}"
        if chat and index % 2:
            body["messages"] = [{"role": "user", "content": prompt}]
            found.append(ClientRequest("/v1/chat/completions", body))
        else:
            found.append(ClientRequest("/v1/completions", body | {"prompt": prompt}))
    return found
