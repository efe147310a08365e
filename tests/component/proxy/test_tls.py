"""TLS in front and behind: who gets in with which certificate, and that a renewed one cuts no stream."""

import asyncio
import datetime as dt
import ssl
from contextlib import AsyncExitStack

import pytest
import trustme
from clients import Client, chat, request
from conftest import running, settings_for, until
from engines import DONE, PATIENCE_S, Engine, Peer, chat_chunk, chat_events, gated, healthy, silent

from proxy.credentials import read
from proxy.doctor.visit import Visit, gather
from proxy.policy.outcome import Outcome
from proxy.settings import ConfigurationError, Settings, warnings
from proxy.upstream.pool import ConnectError, Origin, Pool

NOW = dt.datetime.now(dt.UTC)
DAY = dt.timedelta(days=1)


@pytest.fixture(scope="module")
def ca():
    return trustme.CA()


@pytest.fixture
def folder(tmp_path, ca):
    """Writes certificates: `listener()` the two files of the listener, `authority()` the one of the authority."""

    class Folder:
        path = tmp_path

        def listener(self, cert=None):
            cert = cert or ca.issue_cert("localhost", "127.0.0.1")
            (tmp_path / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in cert.cert_chain_pems))
            (tmp_path / "key.pem").write_bytes(cert.private_key_pem.bytes())
            (tmp_path / "key.pem").chmod(0o600)
            return {"certificate": str(tmp_path / "cert.pem"), "key": str(tmp_path / "key.pem")}

        def authority(self, of=ca, name="ca.pem"):
            (tmp_path / name).write_bytes(of.cert_pem.bytes())
            return str(tmp_path / name)

    return Folder()


def trusting(ca, cert=None):
    context = ssl.create_default_context()
    ca.configure_trust(context)
    context.set_alpn_protocols(["h2", "http/1.1"])
    if cert is not None:
        cert.configure_cert(context)
    return context


async def connect(proxy, context):
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", proxy.port, ssl=context, server_hostname="localhost", limit=2**24
    )
    client = Client(reader, writer)
    proxy._clients.append(client)
    return client


def serial(client):
    return client.writer.get_extra_info("peercert")["serialNumber"]


class TlsEngine(Engine):
    """An engine behind TLS."""

    context: ssl.SSLContext

    async def __aenter__(self):
        self.arrived = asyncio.Event()
        self.names: list[str | None] = []
        self.context.sni_callback = lambda _socket, name, _context: self.names.append(name)
        self.server = await asyncio.get_running_loop().create_server(
            lambda: Peer(self), "127.0.0.1", 0, ssl=self.context
        )
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    @property
    def url(self):
        return f"https://localhost:{self.port}"


def behind_tls(cert, script=healthy):
    engine = TlsEngine(script)
    engine.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    engine.context.set_alpn_protocols(["h2", "http/1.1"])
    cert.configure_cert(engine.context)
    return engine


@pytest.fixture
async def behind():
    """Start a proxy in front of one engine behind TLS: `await behind(engine, **keys of the backend)`."""
    async with AsyncExitStack() as stack:

        async def begin(engine, *, sections=None, **keys):
            await stack.enter_async_context(engine)
            backend = {"url": engine.url, "name": "engine0", **keys}
            return await stack.enter_async_context(running(settings_for(backends=[backend], **(sections or {}))))

        yield begin


# -------------------------------------------------------------------- in front


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_client_is_served_over_tls(start, folder, ca, version):
    engine, proxy = await start(healthy, tls=folder.listener())
    context = trusting(ca)
    context.minimum_version = context.maximum_version = version
    client = await connect(proxy, context)
    assert client.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
    assert (await client.post(chat())).status == 200
    got = await client.post(chat(stream=True))
    assert (got.status, got.whole) == (200, True)
    assert got.body == b"".join(chat_events())
    assert engine.requests[0].header("x-forwarded-proto") == "https"


async def test_an_older_tls_is_refused(start, folder, ca):
    _engine, proxy = await start(healthy, tls=folder.listener())
    context = trusting(ca)
    with pytest.warns(DeprecationWarning, match="TLSVersion.TLSv1_1 is deprecated"):
        context.minimum_version = ssl.TLSVersion.TLSv1_1
    with pytest.warns(DeprecationWarning, match="TLSVersion.TLSv1_1 is deprecated"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("DEFAULT@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await connect(proxy, context)


async def test_a_client_that_speaks_no_tls_gets_nothing_and_the_others_are_served(start, folder, ca):
    engine, proxy = await start(healthy, tls=folder.listener())
    plain = await proxy.client()
    plain.send(request(chat()))
    assert b"HTTP/1.1" not in await plain.closed()
    assert (await (await connect(proxy, trusting(ca))).post(chat())).status == 200
    assert len(engine.requests) == 1


async def test_a_client_that_speaks_tls_to_a_plain_port_is_told_so_and_the_others_are_served(start, ca):
    _engine, proxy = await start(healthy)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await connect(proxy, trusting(ca))
    assert (await (await proxy.client()).post(chat())).status == 200


async def test_a_handshake_that_does_not_go_on_is_ended(start, folder):
    _engine, proxy = await start(healthy, tls=folder.listener(), timeouts={"header": "50ms"})
    mute = await proxy.client()
    assert await mute.closed() == b""


async def test_a_large_body_and_a_slow_reader_go_through_tls(start, folder, ca):
    events = [*(chat_chunk("x" * 10_000) for _ in range(300)), chat_chunk(None, "stop"), DONE]

    async def long(_request, peer):
        peer.stream_head()
        for one in events:
            await peer.flowing.wait()
            peer.chunk(one)
        peer.send(b"0\r\n\r\n")

    engine, proxy = await start(long, tls=folder.listener())
    client = await connect(proxy, trusting(ca))
    body = chat("word " * 9_000, stream=True)
    got = await client.post(body)
    assert (got.status, got.whole, len(got.body)) == (200, True, sum(map(len, events)))
    assert engine.requests[0].json["messages"] == body["messages"]


async def test_a_client_that_leaves_over_tls_frees_its_engine(start, folder, ca):
    engine, proxy = await start(silent, tls=folder.listener())
    client = await connect(proxy, trusting(ca))
    client.send(request(chat(stream=True)))
    await engine.request()
    client.leave()
    await until(lambda: not engine.open_peers)
    assert (await proxy.ended()).outcome is Outcome.CLIENT_GONE


async def test_only_clients_with_a_certificate_of_the_authority_get_in(start, folder, ca):
    theirs = trustme.CA()
    tls = {**folder.listener(), "client_ca": folder.authority(theirs, "clients.pem")}
    engine, proxy = await start(healthy, tls=tls)
    client = await connect(proxy, trusting(ca, theirs.issue_cert("client@example.org")))
    assert (await client.post(chat())).status == 200
    for stranger in (None, ca.issue_cert("client@example.org")):
        with pytest.raises((OSError, asyncio.IncompleteReadError)):  # noqa: PT012 - TLS 1.3 tells with the first read
            late = await connect(proxy, trusting(ca, stranger))
            await late.post(chat())
    assert len(engine.requests) == 1


async def test_a_renewed_certificate_counts_for_new_connections_and_cuts_no_stream(start, folder, ca):
    gate = asyncio.Event()

    async def halting(_request, peer):
        peer.stream_head()
        *first, last = chat_events()
        for one in first:
            peer.chunk(one)
        await gate.wait()
        peer.chunk(last)
        peer.send(b"0\r\n\r\n")

    _engine, proxy = await start(halting, tls=folder.listener())
    old = await connect(proxy, trusting(ca))
    old.send(request(chat(stream=True)))
    got = await old.head()
    await old.chunk(got)
    folder.listener()
    renewed, _ = await proxy.app.renew()
    assert set(renewed) == {"tls.certificate", "tls.key"}
    new = await connect(proxy, trusting(ca))
    assert serial(new) != serial(old)
    gate.set()
    await old._body(got)
    assert (got.whole, got.body) == (True, b"".join(chat_events()))
    assert (await old.post(chat())).status == 200  # and its connection stays


async def test_a_renewal_that_is_broken_changes_nothing(start, folder, ca):
    _engine, proxy = await start(healthy, tls=folder.listener())
    before = serial(await connect(proxy, trusting(ca)))
    folder.listener()
    (folder.path / "key.pem").write_bytes(ca.issue_cert("localhost").private_key_pem.bytes())
    with pytest.raises(ConfigurationError, match="is not the key of"):
        await proxy.app.renew()
    assert serial(await connect(proxy, trusting(ca))) == before


async def test_tls_can_be_switched_on_and_off_under_a_proxy_that_serves(start, folder, ca):
    _engine, proxy = await start(healthy)
    plain = await proxy.client()
    assert (await plain.post(chat())).status == 200
    whole = proxy.app.settings.model_dump(mode="json")
    await proxy.app.change_to(Settings.model_validate(whole | {"tls": folder.listener()}))
    assert (await (await connect(proxy, trusting(ca))).post(chat())).status == 200
    assert (await plain.post(chat())).status == 200  # it was let in before
    await proxy.app.change_to(Settings.model_validate(whole))
    assert (await (await proxy.client()).post(chat())).status == 200


async def test_an_end_that_is_near_is_told_and_shown(start, folder, ca, caplog):
    ends = NOW + 3 * DAY
    _engine, proxy = await start(healthy, tls=folder.listener(ca.issue_cert("localhost", not_after=ends)))
    assert "tls.certificate: it ends in 3 days, and then clients refuse it; renew it" in caplog.text
    text = "".join(str(sample) for family in proxy.app.metrics.families() for sample in family.samples)
    assert "lanewise_tls_certificate_expiry_timestamp_seconds" in text
    assert proxy.app.credentials.ends == pytest.approx(ends.timestamp(), abs=1)


def settings_with(**sections):
    return Settings.model_validate({"backends": ["http://127.0.0.1:1"], **sections})


def test_what_the_files_hold_must_be_a_certificate_and_its_key(folder, ca):
    tls = folder.listener()
    cert, key = folder.path / "cert.pem", folder.path / "key.pem"
    other = ca.issue_cert("localhost").private_key_pem.bytes()
    good = key.read_bytes()

    def sentence():
        with pytest.raises(ConfigurationError) as caught:
            read(settings_with(tls=tls), {})
        return caught.value.sentences[0]

    key.write_bytes(other)
    assert sentence() == f"tls.key: {key} is not the key of {cert}"
    key.write_bytes(b"nonsense")
    assert sentence().startswith(f"tls.certificate: {cert} does not hold a certificate in PEM form")
    key.write_bytes(good)
    key.chmod(0o644)
    assert sentence() == (
        f"tls.key: everybody on this machine may read {key} (mode 644): chmod o-rwx {key}"
    )  # fmt: skip
    key.unlink()
    assert sentence() == f"tls.key: {key} cannot be read: No such file or directory"


def test_a_key_with_a_passphrase_is_said_so(folder):
    from cryptography.hazmat.primitives import serialization as forms

    tls = folder.listener()
    key = folder.path / "key.pem"
    locked = forms.load_pem_private_key(key.read_bytes(), None).private_bytes(
        forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.BestAvailableEncryption(b"secret")
    )
    key.write_bytes(locked)
    with pytest.raises(ConfigurationError, match="has a passphrase, which nobody could type"):
        read(settings_with(tls=tls), {})


# -------------------------------------------------------------------- behind


async def test_an_engine_behind_tls_is_verified_and_its_connection_kept(behind, ca, folder):
    engine = behind_tls(ca.issue_cert("localhost"))
    proxy = await behind(engine, ca_file=folder.authority())
    client = await proxy.client()
    assert (await client.post(chat(stream=True))).body == b"".join(chat_events())
    assert (await client.post(chat())).status == 200
    assert [seen.connection for seen in engine.requests] == [0, 0]
    assert set(engine.names) == {"localhost"}
    assert engine.requests[0].header("host") == f"localhost:{engine.port}"
    chosen = engine.peers[0].transport.get_extra_info("ssl_object").selected_alpn_protocol()
    assert chosen == "http/1.1"


def bad_certificates(ca):
    return {
        "for another name": (ca.issue_cert("other.test"), "Hostname mismatch"),
        "that has ended": (
            ca.issue_cert("localhost", not_before=NOW - 9 * DAY, not_after=NOW - DAY),
            "certificate has expired",
        ),
        "of nobody that is trusted": (trustme.CA().issue_cert("localhost"), "unable to get local issuer certificate"),
    }


@pytest.mark.parametrize("which", ["for another name", "that has ended", "of nobody that is trusted"])
async def test_an_engine_with_a_certificate_that_is_no_good_gets_nothing(behind, ca, folder, which):
    cert, why = bad_certificates(ca)[which]
    engine = behind_tls(cert)
    proxy = await behind(engine, ca_file=folder.authority())
    (view,) = proxy.app.backends.views()
    assert not view.state.usable
    assert f"cannot connect: its certificate is not accepted: {why}" in view.error
    got = await (await proxy.client()).post(chat())
    assert (got.status, got.json["error"]["code"]) == (503, "no_backend")
    with pytest.raises(ConnectError, match="its certificate is not accepted"):
        await proxy.app._pools["engine0"].connect()
    assert engine.requests == []


async def test_the_authorities_of_the_system_do_not_know_a_private_one(behind, ca):
    proxy = await behind(behind_tls(ca.issue_cert("localhost")))
    assert "its certificate is not accepted" in proxy.app.backends.views()[0].error


async def test_insecure_takes_any_certificate_and_is_loud_about_it(behind, ca):
    engine = behind_tls(trustme.CA().issue_cert("other.test"))
    proxy = await behind(engine, insecure=True)
    assert (await (await proxy.client()).post(chat())).status == 200
    (told,) = [one for one in warnings(proxy.app.settings) if one.key == "backends[0].insecure"]
    assert "can read and change every prompt and answer" in told.text


async def test_an_engine_that_speaks_no_tls_is_said_so():
    class Plain(asyncio.Protocol):
        def connection_made(self, transport):
            transport.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n")
            transport.close()

    server = await asyncio.get_running_loop().create_server(Plain, "127.0.0.1", 0)
    backend = {"url": f"https://localhost:{server.sockets[0].getsockname()[1]}", "name": "engine0"}
    async with running(settings_for(backends=[backend])) as proxy:
        assert proxy.app.backends.views()[0].error == "cannot connect: it does not speak TLS"
        with pytest.raises(ConnectError, match="it does not speak TLS"):
            await proxy.app._pools["engine0"].connect()
    server.close()


async def test_the_time_to_connect_covers_the_handshake(ca):
    taken = asyncio.Event()

    class Mute(asyncio.Protocol):
        def connection_made(self, transport):
            taken.set()

    server = await asyncio.get_running_loop().create_server(Mute, "127.0.0.1", 0)
    pool = Pool(Origin(*server.sockets[0].getsockname(), tls=True), connect_timeout_s=0.05)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not taken.is_set():  # on a busy machine the time may be over before the connection is there
                with pytest.raises(ConnectError, match=r"no connection within 0\.05 s"):
                    await pool.connect()
    finally:
        pool.close()
        server.close()


async def test_an_engine_that_is_cut_off_over_tls_never_looks_like_success(behind, ca, folder):
    async def cut(_request, peer):
        peer.stream_head()
        peer.chunk(chat_chunk("Hello"))
        await asyncio.sleep(0)
        peer.close()

    proxy = await behind(behind_tls(ca.issue_cert("localhost"), cut), ca_file=folder.authority())
    got = await (await proxy.client()).post(chat(stream=True))
    assert (got.status, got.whole) == (200, False)
    assert b"[DONE]" not in got.body
    assert (await proxy.ended()).outcome is Outcome.TRUNCATED


async def test_a_renewed_authority_counts_for_new_connections_and_cuts_no_stream(behind, ca, folder):
    gate = asyncio.Event()
    engine = behind_tls(ca.issue_cert("localhost"), gated(gate))
    proxy = await behind(engine, ca_file=folder.authority())
    client = await proxy.client()
    client.send(request(chat()))
    await engine.request()
    folder.authority(trustme.CA())
    assert (await proxy.app.renew())[0] == ("backends[engine0].ca_file",)
    gate.set()
    assert (await client.answer()).status == 200
    with pytest.raises(ConnectError, match="its certificate is not accepted"):
        await proxy.app._pools["engine0"].connect()
    await proxy.app.backends.probe("engine0")
    assert "its certificate is not accepted" in proxy.app.backends.views()[0].error


async def test_the_doctor_comes_in_where_the_proxy_does(behind, ca, folder):
    engine = behind_tls(ca.issue_cert("localhost"))
    seen = []
    answer = engine.probed
    engine.probed = lambda peer, received: (seen.append(received), answer(peer, received))
    (folder.path / "engine-key").write_text("engine-key-0123456789\n")
    (folder.path / "engine-key").chmod(0o600)
    keys = {"ca_file": folder.authority(), "api_key_file": str(folder.path / "engine-key")}
    proxy = await behind(engine, sections={"timeouts": {"idle_connection": "10ms"}}, **keys)
    seen.clear()
    case = await gather(Visit(proxy.app.settings, proxy.app.admin_listen, apart_s=0.0), NOW.date(), None)
    (facts,) = case.engines
    assert (facts.error, facts.models) == (None, (("tiny", 16384),))
    assert case.guards.unread == ()
    asked = {one.path.partition("?")[0]: one.header("authorization") for one in seen if one.header("accept-encoding")}
    assert set(asked) >= {"/health", "/v1/models", "/metrics"}
    assert set(asked.values()) == {"Bearer engine-key-0123456789"}
    stranger = Settings.model_validate(
        proxy.app.settings.model_dump(mode="json") | {"backends": [{"url": engine.url, "name": "engine0"}]}
    )
    case = await gather(Visit(stranger, proxy.app.admin_listen, apart_s=0.0), NOW.date(), None)
    assert "cannot connect: its certificate is not accepted" in case.engines[0].error
