"""Test TLS with test certificates: which are trusted, what is negotiated, how a connection ends."""

import asyncio
import ssl
from pathlib import Path

import pytest

from dragoman import HttpTransport, NetworkError, Registry, StreamInterruptedError
from dragoman.transport.connect import make_context
from dragoman.validate.yaml import ConfigError

from ..waiting import arrival, settle, until
from .certificates import Authority, server_context
from .raw import RawServer, call, listen, read_request, replying

REPLY = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), "another authority")


async def test_trusted_certificate_is_accepted(authority: Authority) -> None:
    context = server_context(authority.issue("127.0.0.1"))
    async with listen(replying(REPLY), ssl=context) as server:
        for ca in (authority.path, ssl.create_default_context(cafile=authority.path)):
            transport = HttpTransport(ca=ca)
            for stream in (False, True, False):  # streams over TLS reuse the connection
                assert (await call(transport, server.url, stream=stream))[2] == b"hi"
            await transport.close()
        assert server.connections <= 4


async def test_streams_over_tls_reuse_one_connection(authority: Authority) -> None:
    transport = HttpTransport(ca=authority.path)
    async with listen(replying(REPLY), ssl=server_context(authority.issue("127.0.0.1"))) as server:
        for stream in (True, False, True):
            await call(transport, server.url, stream=stream)
        assert server.connections == 1
        await transport.close()


async def test_only_known_certificate_authorities_are_trusted_by_default(
    authority: Authority,
) -> None:
    async with listen(replying(REPLY), ssl=server_context(authority.issue("127.0.0.1"))) as server:
        transport = HttpTransport()
        with pytest.raises(NetworkError, match="certificate"):
            await call(transport, server.url)
        await transport.close()


REFUSED = {
    "wrong host": ({"hosts": ("other.test",)}, "mismatch"),
    "wrong address": ({"hosts": ("127.0.0.2",)}, "mismatch"),
    "expired": ({"hosts": ("127.0.0.1",), "expired": True}, "expired"),
    "self-signed": ({"hosts": ("127.0.0.1",), "itself": True}, "self-signed|self signed"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_invalid_certificates_are_rejected(name: str, authority: Authority) -> None:
    settings, why = REFUSED[name]
    files = authority.issue(
        *settings["hosts"], **{key: True for key in settings if key != "hosts"}
    )  # type: ignore[misc]
    transport = HttpTransport(ca=authority.path)
    async with listen(replying(REPLY), ssl=server_context(files)) as server:
        with pytest.raises(NetworkError, match="certificate") as caught:
            await call(transport, server.url)
        assert caught.value.message.startswith(f"the certificate of {server.url} was refused: ")
        assert _matches(why, caught.value.message)
        assert caught.value.__cause__ is not None
        assert caught.value.__cause__.__traceback__ is None
        await transport.close()


def _matches(pattern: str, text: str) -> bool:
    return any(each in text.lower() for each in pattern.split("|"))


async def test_removed_certificate_authority_is_no_longer_trusted(
    authority: Authority, stranger: Authority
) -> None:
    async with listen(replying(REPLY), ssl=server_context(authority.issue("127.0.0.1"))) as server:
        transport = HttpTransport(ca=stranger.path)
        with pytest.raises(NetworkError, match="certificate"):
            await call(transport, server.url)
        await transport.close()


@pytest.mark.parametrize("revoked", [True, False])
async def test_certificate_revocation_lists_are_applied(
    authority: Authority, revoked: bool
) -> None:
    mine = authority.issue("127.0.0.1")
    other = authority.issue("127.0.0.1")
    transport = HttpTransport(ca=authority.revoke((mine if revoked else other)[0]))
    async with listen(replying(REPLY), ssl=server_context(mine)) as server:
        if revoked:
            with pytest.raises(NetworkError, match="was refused: certificate revoked"):
                await call(transport, server.url)
        else:
            assert (await call(transport, server.url))[0] == 200
        await transport.close()


async def test_missing_revocation_list_rejects_the_certificate(
    authority: Authority, stranger: Authority
) -> None:
    """The only revocation list comes from another authority, so the certificate is rejected."""
    both = Path(authority.path).with_name("both.pem")
    both.write_text(Path(authority.path).read_text() + Path(stranger.revoke()).read_text())
    transport = HttpTransport(ca=str(both))
    async with listen(replying(REPLY), ssl=server_context(authority.issue("127.0.0.1"))) as server:
        with pytest.raises(NetworkError, match="unable to get certificate CRL"):
            await call(transport, server.url)
        await transport.close()


@pytest.mark.parametrize(
    "text", ["junk", "-----BEGIN X509 CRL-----\njunk\n-----END X509 CRL-----\n"]
)
def test_unreadable_certificates_and_revocation_lists_are_reported(
    tmp_path: Path, authority: Authority, text: str
) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text(Path(authority.path).read_text() + text if "CRL" in text else text)
    with pytest.raises(ConfigError, match=r"junk\.pem: ca: cannot be used: "):
        HttpTransport(ca=str(junk))
    with pytest.raises(ConfigError, match=r"junk\.pem: cert: cannot be used: "):
        HttpTransport(cert=str(junk))
    with pytest.raises(ConfigError, match=r"missing\.pem: ca: cannot be used: No such file"):
        HttpTransport(ca=str(tmp_path / "missing.pem"))
    file = tmp_path / "models.yaml"
    file.write_text("adapters: {openai: {ca: junk.pem}}\n")
    with pytest.raises(
        ConfigError, match=r"models\.yaml:1: adapters\.openai\.ca: cannot be used: "
    ):
        Registry.load(file)


async def test_server_without_tls_is_reported(authority: Authority) -> None:
    async def plain(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()

    transport = HttpTransport(ca=authority.path)
    async with listen(plain) as server:
        with pytest.raises(NetworkError):
            await call(transport, server.url.replace("http:", "https:"))
        await transport.close()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_old_tls_versions_are_rejected(authority: Authority) -> None:
    assert make_context(None, None).minimum_version == ssl.TLSVersion.TLSv1_2
    context = server_context(authority.issue("127.0.0.1"))
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    transport = HttpTransport(ca=authority.path)
    async with listen(replying(REPLY), ssl=context) as server:
        with pytest.raises(
            NetworkError, match=r"TLS with https://127\.0\.0\.1:\d+ failed|before TLS was set up"
        ):
            await call(transport, server.url)
        await transport.close()


async def test_sni_and_alpn_are_sent(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str | None] = []
    protocols: list[str | None] = []
    context = server_context(authority.issue("rivers.test"))
    context.set_alpn_protocols(["h2", "http/1.1"])
    context.sni_callback = lambda link, name, _: names.append(name)

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        protocols.append(writer.get_extra_info("ssl_object").selected_alpn_protocol())
        await read_request(reader)
        writer.write(REPLY)
        await reader.read()

    loop = asyncio.get_running_loop()
    look_up = loop.getaddrinfo

    async def resolve(host: str, *args: object, **kwargs: object) -> object:
        return await look_up("127.0.0.1" if host == "rivers.test" else host, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "getaddrinfo", resolve)
    transport = HttpTransport(ca=authority.path, proxy=None)
    async with listen(handler, ssl=context) as server:
        port = server.url.rpartition(":")[2]
        assert (await call(transport, f"https://rivers.test:{port}"))[2] == b"hi"
        await transport.close()
    assert names == ["rivers.test"]
    assert protocols == ["http/1.1"]


@pytest.mark.parametrize("password", ["", "secret"])
async def test_client_certificates_are_sent(
    authority: Authority, password: str, tmp_path: Path
) -> None:
    context = server_context(authority.issue("127.0.0.1"))
    context.load_verify_locations(authority.path)
    context.verify_mode = ssl.CERT_REQUIRED
    files = authority.issue("client", password=password)
    together = tmp_path / "both.pem"
    together.write_bytes(b"".join(Path(file).read_bytes() for file in files))
    async with listen(replying(REPLY), ssl=context) as server:
        transport = HttpTransport(ca=authority.path)
        # With TLS 1.3 the server's rejection arrives after the handshake.
        with pytest.raises(NetworkError):
            await call(transport, server.url)
        await transport.close()
        shown = [(*files, password)] if password else [files, str(together)]
        for cert in shown:
            transport = HttpTransport(ca=authority.path, cert=cert)  # type: ignore[arg-type]
            assert (await call(transport, server.url))[2] == b"hi"
            await transport.close()
    with pytest.raises(ValueError, match="cert"):
        HttpTransport(ca=make_context(None, None), cert=files)


async def test_system_certificates_are_trusted(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    # OpenSSL reads the path of its trust store from this variable.
    monkeypatch.setenv("SSL_CERT_FILE", authority.path)
    transport = HttpTransport(ca="system")
    async with listen(replying(REPLY), ssl=server_context(authority.issue("127.0.0.1"))) as server:
        assert (await call(transport, server.url))[2] == b"hi"
        await transport.close()


# --- the end of a TLS connection ---------------------------------------------------------------


async def _read_until_eof(
    transport: HttpTransport, authority: Authority, *, notify: bool
) -> bytes:
    """Return the body of a reply without a length, which ends when the connection ends. With
    ``notify`` the server sends ``close_notify`` first, otherwise only a FIN.
    """

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhi")
        await writer.drain()
        await settle()
        if notify:
            writer.close()
        else:
            writer.transport.abort()

    async with listen(handler, ssl=server_context(authority.issue("127.0.0.1"))) as server:
        try:
            return (await call(transport, server.url))[2]
        finally:
            await transport.close()


async def test_tls_reply_without_a_length_must_end_with_close_notify(authority: Authority) -> None:
    assert await _read_until_eof(HttpTransport(ca=authority.path), authority, notify=True) == b"hi"
    with pytest.raises(StreamInterruptedError):
        await _read_until_eof(HttpTransport(ca=authority.path), authority, notify=False)


async def test_closing_a_tls_connection_sends_close_notify(authority: Authority) -> None:
    ends: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(REPLY)
        ends.append(await reader.read())
        link: ssl.SSLObject = writer.get_extra_info("ssl_object")
        try:
            link.read(1)
        except ssl.SSLZeroReturnError:
            ends.append(b"close_notify")

    server: RawServer
    transport = HttpTransport(ca=authority.path)
    async with listen(handler, ssl=server_context(authority.issue("127.0.0.1"))) as server:
        await call(transport, server.url)
        await transport.close()
        await arrival(server.closed.wait(), "the connection to close")
    assert ends == [b"", b"close_notify"]


async def test_cancelling_the_tls_handshake_closes_the_socket(transport: HttpTransport) -> None:
    async def mute(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with listen(mute) as server:
        task = asyncio.ensure_future(call(transport, server.url.replace("http:", "https:")))
        await until(lambda: server.connections, "the connection")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await arrival(server.closed.wait(), "the connection to close")
        assert transport.open_pool().sizes == (0, 0)
