"""The requests of a trial."""

from cli.chaos.workload import streaming_requests


def test_requests_differ_from_each_other() -> None:
    requests = streaming_requests("m", 64, 10, chat=True)
    assert len({str(request) for request in requests}) == 64
    assert {request.path for request in requests} == {"/v1/completions", "/v1/chat/completions"}
    assert {request.body["temperature"] for request in requests} == {0.0, 0.9}
    assert {request.path for request in streaming_requests("m", 9, 10)} == {"/v1/completions"}
