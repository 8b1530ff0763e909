"""Images by URL: from public addresses of allowed hosts alone, whole, in time, and nowhere else."""

import ssl

import anyio
import anyio.lowlevel
import pytest
import trustme
from anyio.abc import SocketStream
from anyio.streams.tls import TLSStream

from gateway.body_budget import BodyBudget, HeldBody
from gateway.errors import RequestError
from gateway.images.addresses import is_public
from gateway.images.fetching import MAX_AT_ONCE, ImageFetcher
from gateway.images.image_url import parse_image_url
from gateway.images.sources import GivenImage
from tests.gateway.images.files import PNG
from tests.gateway.images.sites import FIELD, Answer, drip, endless, silent, site, whole


@pytest.mark.parametrize(
    "address",
    [
        *("0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.255.255.254"),
        *("169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.168.1.1", "198.18.0.1"),
        *("198.51.100.1", "203.0.113.9", "224.0.0.1", "240.0.0.1", "255.255.255.255", "192.88.99.1"),
        *("::", "::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::7f00:1"),
        *("100::1", "2001::1", "2001:db8::1", "2002:7f00:1::", "3fff::1", "fc00::1", "fd00:ec2::254", "fe80::1"),
        *("fe80::1%eth0", "fec0::1", "ff02::1", "5f00::1", "localhost", "127.1", "0x7f.1", "2130706433", ""),
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "8.8.8.8", "100.128.0.1", "172.32.0.1", "2606:4700::1111", "2a00::1"])
def test_addresses_that_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    ("url", "allowed", "problem"),
    [
        ("http://example.org/a.png", ("example.com", "*.example.org"), "'example.org' are not fetched"),
        ("http://example.org.evil.test/", ("example.org",), "are not fetched"),
        ("http://user@example.org/", ("*",), "user or a password"),
        ("http://example.org@127.0.0.1/", ("*",), "user or a password"),
        ("http://example.org:x@/", ("*",), "not a valid URL|user or a password|not a URL"),
        ("http://example.org\\@127.0.0.1/", ("*",), "not a valid URL"),
        ("http://exa mple.org/", ("*",), "not a valid URL"),
        ("http://example.org/\r\nHost: x", ("*",), "not a valid URL"),
        ("http:///a.png", ("*",), "not a URL of http"),
        ("httpx://example.org/", ("*",), "not a URL of http"),
        ("http://[::1", ("*",), "not a valid URL"),
        ("http://2130706433/", ("*",), "four decimal parts"),
        ("http://0x7f000001/", ("*",), "four decimal parts"),
        ("http://0177.0.0.1/", ("*",), "not a valid URL|four decimal parts"),
        ("http://127.1/", ("*",), "four decimal parts"),
        ("http://1.2.3.4.5/", ("*",), "four decimal parts"),
        ("http://example.org:70000/", ("*",), "not a valid URL"),
    ],
)
def test_urls_that_are_refused(url: str, allowed: tuple[str, ...], problem: str) -> None:
    with pytest.raises(RequestError, match=problem) as caught:
        parse_image_url(url, FIELD, allowed)
    assert (caught.value.status, caught.value.field) == (400, FIELD)


def test_hosts_are_compared_without_case_and_trailing_dot_and_as_punycode() -> None:
    assert parse_image_url("HTTPS://EXAMPLE.org./a?b", FIELD, ("example.org",)).host == "example.org"
    assert parse_image_url("http://bücher.example/", FIELD, ("*.example",)).host == "xn--bcher-kva.example"
    assert parse_image_url("http://[2606:4700::1]:81/", FIELD, ("*",)).port == 81


@pytest.mark.anyio
async def test_an_image_is_fetched_from_the_address_that_was_checked_under_its_own_name() -> None:
    async with site(whole()) as made:
        assert await made.fetch(path="/a.png?b=c#d") == PNG
        (request,) = made.requests
        lines = request.decode().lower().split("\r\n")
        assert lines[0] == "get /a.png?b=c http/1.1"
        assert f"host: images.test:{made.port}" in lines
        assert "accept-encoding: identity" in lines
        assert not any(line.startswith(("cookie", "authorization", "referer")) for line in lines)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "most", "problem"),
    [
        pytest.param(whole(status="500 No"), 1 << 20, "status 500", id="status"),
        pytest.param(
            whole(PNG, "image/png", "Location: http://127.0.0.1/", status="302 Found"),
            1 << 20,
            "redirects",
            id="redirect",
        ),
        pytest.param(whole(status="404 Not Found"), 1 << 20, "status 404", id="missing"),
        pytest.param(whole(kind="text/html"), 1 << 20, "'text/html'", id="type"),
        pytest.param(whole(PNG, "image/png", "Content-Encoding: gzip"), 1 << 20, "compresses", id="gzip bomb"),
        pytest.param(whole(), len(PNG) - 1, "have over", id="length"),
        pytest.param(endless, 1 << 20, "have over", id="endless"),
    ],
)
async def test_answers_that_are_refused(answer: Answer, most: int, problem: str) -> None:
    async with site(answer) as made:
        with pytest.raises(RequestError, match=problem) as caught:
            await made.fetch(most=most)
        assert (caught.value.status, caught.value.field) == (400, FIELD)


@pytest.mark.anyio
@pytest.mark.parametrize("answer", [drip, silent])
async def test_a_slow_server_has_one_deadline_for_all(answer: Answer) -> None:
    async with site(answer) as made:
        with pytest.raises(RequestError, match=r"within 0\.15 s"):
            await made.fetch(made.fetcher(deadline_s=0.15))


@pytest.mark.anyio
async def test_a_name_is_resolved_once_and_none_of_its_addresses_may_be_private() -> None:
    async with site(whole()) as made:
        fetcher = made.fetcher()
        assert await made.fetch(fetcher) == PNG
        assert made.resolved == ["images.test"]
        made.addresses = ["127.0.0.1", "127.0.0.2"]
        for _ in range(2):
            with pytest.raises(RequestError, match="has no public address"):
                await made.fetch(fetcher)
        made.addresses = []
        with pytest.raises(RequestError, match="has no public address"):
            await made.fetch(fetcher)
        made.addresses = ["127.0.0.1"]
        with pytest.raises(RequestError, match="has no public address"):
            await made.fetch(made.fetcher(public=is_public))
        assert len(made.requests) == 1


@pytest.mark.anyio
@pytest.mark.parametrize(
    "url", ["http://localhost/", "http://127.0.0.1/", "http://[::1]/", "http://[::ffff:127.0.0.1]/"]
)
async def test_the_real_resolver_leads_to_nothing_of_this_machine(url: str) -> None:
    with pytest.raises(RequestError, match="has no public address"):
        await ImageFetcher(("*",)).fetch(GivenImage(FIELD, "url", url), "", 1, HeldBody(BodyBudget(1, 1)))


@pytest.mark.anyio
async def test_rebinding_after_the_check_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that answers differently the second time is not asked again."""

    def asked(*_: object, **__: object) -> object:
        raise AssertionError("the name was resolved again")

    async with site(whole()) as made:
        fetcher = made.fetcher()
        monkeypatch.setattr("socket.getaddrinfo", asked)
        assert await made.fetch(fetcher) == PNG


@pytest.mark.anyio
async def test_a_client_has_so_many_fetches_at_once_and_leaves_nothing_behind() -> None:
    go = anyio.Event()

    async def answer(stream: SocketStream) -> None:
        await go.wait()
        await whole()(stream)

    async with site(answer) as made, anyio.create_task_group() as group:
        fetcher = made.fetcher()
        for _ in range(MAX_AT_ONCE + 3):
            group.start_soon(made.fetch, fetcher)
        while made.open < MAX_AT_ONCE:
            await anyio.lowlevel.checkpoint()
        assert made.most == MAX_AT_ONCE
        go.set()
    assert made.most == MAX_AT_ONCE
    assert len(made.requests) == MAX_AT_ONCE + 3
    assert not fetcher._turns


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["images.test", "other.test"])
async def test_a_certificate_must_have_the_name_of_the_url_and_not_the_address(name: str) -> None:
    authority, names = trustme.CA(), []
    server, trusted = (ssl.SSLContext(kind) for kind in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT))
    authority.issue_cert(name, "127.0.0.1").configure_cert(server)
    authority.configure_trust(trusted)
    server.sni_callback = lambda _, sni, __: names.append(sni)

    async def answer(stream: SocketStream) -> None:
        try:
            async with await TLSStream.wrap(stream, server_side=True, ssl_context=server) as secure:
                await secure.receive()
                await whole()(secure)  # type: ignore[arg-type]
        except (ssl.SSLError, anyio.BrokenResourceError, anyio.EndOfStream):
            pass  # the client does not trust it

    async with site(answer, secure=True) as made:
        fetcher = made.fetcher(trusted=trusted)
        if name == "images.test":
            assert await made.fetch(fetcher) == PNG
        else:
            with pytest.raises(RequestError, match="could not be fetched"):
                await made.fetch(fetcher)
    assert names == ["images.test"]
