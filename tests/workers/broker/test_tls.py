"""TLS listeners: who gets in, what they are called, and that answers of every size arrive whole."""

from __future__ import annotations

import os
import random
import shutil
import socket
import ssl
import struct
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from compactd.config.listener_security import securities
from compactd.config.settings import DaemonConfig
from compactd.workers.broker.security.distinguished_names import subject_of
from compactd.workers.broker.security.login_counts import LoginCounts
from compactd.workers.broker.security.tls import TlsError, build_context
from tests.workers.broker.batches import FETCH, batch, fetch, fetch_body, produce, records_of
from tests.workers.broker.certificates import Certificates, make_certificates
from tests.workers.broker.harness import InProcessBroker, RawClient, request_frame
from tests.workers.broker.sasl_client import METADATA, log_in

_JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";'


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def settings_of(certificates: Certificates, **more: str) -> dict[str, str]:
    return {
        "listeners": "SSL://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.store("server")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.authority),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": _JAAS,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


class TlsClient(RawClient):
    """A raw client that speaks TLS."""

    def __init__(
        self, port: int, certificates: Certificates, name: str | None = None, version: ssl.TLSVersion | None = None
    ) -> None:
        super().__init__(port)
        context = ssl.create_default_context(cafile=str(certificates.authority))
        if name is not None:
            context.load_cert_chain(certificates.certificate(name), certificates.key(name))
        if version is not None:
            context.minimum_version = context.maximum_version = version
        try:
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        except BaseException:
            self.close()
            raise


@pytest.fixture
def broker(certificates: Certificates, fast_dir: Path) -> Iterator[InProcessBroker]:
    with InProcessBroker([fast_dir], settings_of(certificates, ssl_client_auth="requested")) as running:
        running.create("t", max_message_bytes=8 << 20)
        yield running


def _principals(broker: InProcessBroker) -> set[str]:
    """Of those who are connected."""
    return {each.principal for each in broker.peers()}


# ---- who gets in


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("name", "principal"), [(None, "User:ANONYMOUS"), ("client", "User:CN=client,OU=People,O=Tests")]
)
def test_clients_are_called_by_their_certificates(
    broker: InProcessBroker, certificates: Certificates, version: ssl.TLSVersion, name: str | None, principal: str
) -> None:
    with TlsClient(broker.ports["SSL"], certificates, name, version) as client:
        assert client.ask(METADATA, 9, {"topics": []}).brokers[0].port == broker.ports["SSL"]
        assert _principals(broker) == {principal}


def test_clients_that_log_in_are_called_by_their_users(broker: InProcessBroker, certificates: Certificates) -> None:
    with TlsClient(broker.ports["SASL_SSL"], certificates) as client:
        log_in(client, "alice", "secret")
        assert client.ask(METADATA, 9, {"topics": []}).brokers[0].port == broker.ports["SASL_SSL"]
        assert _principals(broker) == {"User:alice"}


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_strangers_and_clients_without_tls_do_not_get_in(
    broker: InProcessBroker, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "compactd.workers.broker.tls_connection")
    with (
        pytest.raises((ssl.SSLError, ConnectionError)),
        TlsClient(broker.ports["SSL"], certificates, "stranger") as client,
    ):
        client.ask(METADATA, 9, {"topics": []})
    frame = request_frame(METADATA, 9, 1, {"topics": []})
    metadata = len(frame).to_bytes(4, "big") + frame
    for sent, guess in ((metadata, "looks like a client without TLS"), (b"GET / HTTP/1.0\r\n\r\n", "it speaks HTTP")):
        caplog.clear()
        with RawClient(broker.ports["SSL"]) as client:
            client.send_bytes(sent)
            with suppress(ConnectionError):
                while client.socket.recv(100):
                    pass  # an alert
        assert guess in caplog.text
    with pytest.raises(ssl.SSLError):
        TlsClient(broker.ports["SSL"], certificates, version=ssl.TLSVersion.TLSv1_1)


def test_handshakes_count_where_nobody_logs_in(
    broker: InProcessBroker, certificates: Certificates
) -> None:  # fmt: skip
    with TlsClient(broker.ports["SSL"], certificates) as client:
        client.ask(METADATA, 9, {"topics": []})
    with TlsClient(broker.ports["SASL_SSL"], certificates) as client:
        log_in(client, "alice", "secret")
    with RawClient(broker.ports["SSL"]) as client:
        client.send(METADATA, 9, {"topics": []})
        with suppress(ConnectionError):
            while client.socket.recv(100):
                pass
    counted = broker.in_loop(lambda context: context.part(LoginCounts).take())
    assert counted == {"SSL": [1, 1, 0, 0], "SASL_SSL": [1, 0, 0, 0]}


def test_a_client_that_never_shakes_hands_holds_up_nobody(broker: InProcessBroker, certificates: Certificates) -> None:
    with RawClient(broker.ports["SSL"]) as silent:
        silent.send_bytes(b"\x16\x03\x01")
        with TlsClient(broker.ports["SSL"], certificates) as client:
            assert client.ask(METADATA, 9, {"topics": []}).cluster_id


def test_a_certificate_may_be_required(certificates: Certificates, fast_dir: Path) -> None:
    settings = settings_of(
        certificates,
        ssl_client_auth="required",
        ssl_principal_mapping_rules="RULE:^CN=(client),.*$/$1/U,RULE:^CN=x$/x/",
    )
    certificates.make("unnamed", "/CN=unnamed")
    with InProcessBroker([fast_dir], settings) as broker:
        with TlsClient(broker.ports["SSL"], certificates, "client") as client:
            assert client.ask(METADATA, 9, {"topics": []}).cluster_id
            assert _principals(broker) == {"User:CLIENT"}
        for name in (None, "unnamed"):
            with (
                pytest.raises((ssl.SSLError, ConnectionError)),
                TlsClient(broker.ports["SSL"], certificates, name, ssl.TLSVersion.TLSv1_2) as client,
            ):
                client.ask(METADATA, 9, {"topics": []})
        # Who logs in needs none, unless the listener says so itself.
        with TlsClient(broker.ports["SASL_SSL"], certificates) as client:
            log_in(client, "alice", "secret")


# ---- answers


def test_large_requests_and_answers_arrive_whole(broker: InProcessBroker, certificates: Certificates) -> None:
    value = random.Random(5).randbytes(5 << 20)
    with TlsClient(broker.ports["SSL"], certificates) as client:
        assert produce(client, batch([value])).error_code == 0
        for number in range(50):
            assert produce(client, batch([b"%d" % number])).error_code == 0
        found: list[bytes | None] = []
        while len(found) < 51:
            found += [each.value for each in records_of(fetch(client, len(found)).records)]
        assert found[0] == value
        assert found[1:] == [b"%d" % number for number in range(50)]


def test_a_farewell_right_behind_a_request_is_noticed(broker: InProcessBroker, certificates: Certificates) -> None:
    """The end of TLS without that of the connection, in one piece with what came before."""
    context = ssl.create_default_context(cafile=str(certificates.authority))
    arrived, leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(arrived, leaving, server_hostname="localhost")
    with RawClient(broker.ports["SSL"]) as client:
        while True:
            with suppress(ssl.SSLWantReadError):
                tls.do_handshake()
                break
            client.send_bytes(leaving.read())
            arrived.write(client.socket.recv(1 << 16))
        frame = request_frame(METADATA, 9, 1, {"topics": []}, "a")
        tls.write(struct.pack(">i", len(frame)) + frame)
        with suppress(ssl.SSLWantReadError):
            tls.unwrap()
        client.send_bytes(leaving.read())
        while data := client.socket.recv(1 << 16):
            arrived.write(data)


def test_the_end_of_a_request_that_openssl_has_read_already_is_not_waited_for(
    broker: InProcessBroker, certificates: Certificates
) -> None:
    """All of the request lies there when it is received, and its last record does not fit what one receive takes whole."""
    with TlsClient(broker.ports["SSL"], certificates) as client:
        client.ask(METADATA, 9, {"topics": []})
        frame = request_frame(METADATA, 9, 77, {"topics": []})
        frame += bytes((256 << 10) + 300 - 4 - len(frame))
        data = struct.pack(">i", len(frame)) + frame
        holding, held = threading.Event(), threading.Event()

        def hold(_: object) -> None:
            holding.set()
            held.wait(30)

        with ThreadPoolExecutor(1) as thread:
            done = thread.submit(broker.in_loop, hold)
            assert holding.wait(30)
            client.send_bytes(data[:300])
            client.send_bytes(data[300:])
            held.set()
            done.result()
        assert client.receive_frame()[:4] == struct.pack(">i", 77)


def test_pipelined_requests_are_answered_in_order(broker: InProcessBroker, certificates: Certificates) -> None:
    with TlsClient(broker.ports["SSL"], certificates) as client:
        sent = [client.send(METADATA, 9, {"topics": []}) for _ in range(300)]
        seen = [int.from_bytes(client.receive_frame()[:4], "big") for _ in sent]
        assert seen == sent


def test_a_reader_that_does_not_read_keeps_nobody_else_waiting(
    broker: InProcessBroker, certificates: Certificates
) -> None:
    with TlsClient(broker.ports["SSL"], certificates) as writer:
        assert produce(writer, batch([bytes(4 << 20)])).error_code == 0
        with TlsClient(broker.ports["SSL"], certificates) as slow:
            slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            for _ in range(4):
                slow.send(FETCH, 11, fetch_body())
            for _ in range(20):
                assert writer.ask(METADATA, 9, {"topics": []}).cluster_id


# ---- stores


def test_keys_and_certificates_may_stand_in_the_settings(certificates: Certificates, fast_dir: Path) -> None:
    in_one_line = " ".join(certificates.certificate("server").read_text().split("\n"))
    values = settings_of(certificates)
    del values["ssl.keystore.location"]
    values |= {
        "ssl.keystore.key": certificates.key("server").read_text(),
        "ssl.keystore.certificate.chain": in_one_line,
    }
    with InProcessBroker([fast_dir], values) as broker, TlsClient(broker.ports["SSL"], certificates) as client:
        assert client.ask(METADATA, 9, {"topics": []}).cluster_id


def test_a_key_may_have_a_password(certificates: Certificates, fast_dir: Path) -> None:
    certificates.make("locked", "/CN=localhost", password="open sesame")
    values = settings_of(
        certificates, ssl_keystore_location=str(certificates.store("locked")), ssl_key_password="open sesame"
    )
    with InProcessBroker([fast_dir], values) as broker, TlsClient(broker.ports["SSL"], certificates) as client:
        assert client.ask(METADATA, 9, {"topics": []}).cluster_id
    with pytest.raises(TlsError, match=r"another ssl\.key\.password"):
        build_context(_tls({**values, "ssl.key.password": "hush"}))


def _tls(values: Mapping[str, str]) -> Any:
    found = securities(DaemonConfig.from_strings(values))["SSL"].tls
    assert found is not None
    return found


def test_stores_that_cannot_be_used_are_named(certificates: Certificates, tmp_path: Path) -> None:
    mixed = tmp_path / "mixed.pem"
    mixed.write_text(certificates.key("client").read_text() + certificates.certificate("server").read_text())
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing\n")
    for path, fault in (
        (tmp_path / "absent.pem", "absent.pem: No such file"),
        (mixed, "mixed.pem: the key is not that of"),
        (empty, "empty.pem: "),
        (certificates.certificate("server"), "server.crt: "),
    ):
        with pytest.raises(TlsError, match=fault):
            build_context(_tls(settings_of(certificates, ssl_keystore_location=str(path))))
    with pytest.raises(TlsError, match=r"ssl.truststore.location .*empty.pem"):
        build_context(_tls(settings_of(certificates, ssl_truststore_location=str(empty), ssl_client_auth="required")))
    values = settings_of(certificates)
    del values["ssl.keystore.location"]
    with pytest.raises(TlsError, match=r"ssl\.keystore\.key with") as caught:
        build_context(_tls({**values, "ssl.keystore.key": "hush", "ssl.keystore.certificate.chain": "hush"}))
    assert "hush" not in str(caught.value)


def test_new_certificates_are_taken_when_their_file_changes(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compactd.workers.broker.security.tls._LOOK_SECONDS", 0)
    store = tmp_path / "server.pem"
    shutil.copy(certificates.store("server"), store)
    log_dir = tmp_path / "log"
    log_dir.mkdir()
    certificates.make("renewed", "/O=Tests/CN=renewed")
    with InProcessBroker([log_dir], settings_of(certificates, ssl_keystore_location=str(store))) as broker:
        assert _server_subject(broker, certificates) == "CN=localhost,O=Tests"
        # What cannot be used changes nothing.
        store.write_text("broken")
        os.utime(store, (1, 1))
        assert _server_subject(broker, certificates) == "CN=localhost,O=Tests"
        shutil.copy(certificates.store("renewed"), store)
        assert _server_subject(broker, certificates) == "CN=renewed,O=Tests"


def _server_subject(broker: InProcessBroker, certificates: Certificates) -> str:
    with TlsClient(broker.ports["SSL"], certificates) as client:
        certificate = client.socket.getpeercert(binary_form=True)  # type: ignore[attr-defined]
    return subject_of(certificate)


# ---- names


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        # Made by Java's X500Principal, with the name that its getName() gives them.
        (
            "303a310b3009060355040613025345310d300b060355040a13046c656164311c301a06035504030c13"
            "613d6223632b642c653b663c673e6822695c6a",
            'CN=a\\=b\\#c\\+d\\,e\\;f\\<g\\>h\\"i\\\\j,O=lead,C=SE',
        ),
        (
            "308196310a30080603550404130173310a3008060355042a130167310f300d060355040b0c066fc3a4e4b8ad310a300806035504"
            "0713016c310a300806035504081301733111300f060a0992268993f22c64010113017531173015060a0992268993f22c64011916"
            "076578616d706c65310a30080603550409130178310e300c060355040c13057469746c65310b3009060355040513023132",
            "2.5.4.5=#13023132,2.5.4.12=#13057469746c65,STREET=x,DC=example,UID=u,ST=s,L=l,OU=o\u00e4\u4e2d,"
            "2.5.4.42=#130167,2.5.4.4=#130173",
        ),
        ("3022310a3008060355040a1301783114300806035504031301613008060355040b130162", "CN=a+OU=b,O=x"),
        ("3018310b3009060355040a0c0223613109300706035504031300", "CN=,O=\\#a"),
    ],
)
def test_subjects_are_named_as_java_names_them(subject: str, name: str) -> None:
    assert subject_of(_certificate(bytes.fromhex(subject))) == name


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    length = bytes([size]) if size < 128 else bytes([0x82]) + size.to_bytes(2, "big")
    return bytes([tag]) + length + content


def _certificate(subject: bytes) -> bytes:
    """As much of one as matters."""
    fields = _der(0xA0, _der(2, b"\2")) + _der(2, b"\1") + _der(0x30, b"") * 3 + subject + _der(0x30, b"")
    return _der(0x30, _der(0x30, fields) + _der(0x30, b"") + _der(3, b"\0"))


def test_spaces_around_a_name_are_kept() -> None:
    subject = _der(0x30, _der(0x31, _der(0x30, bytes.fromhex("0603550403") + _der(0x0C, b" a "))))
    assert subject_of(_certificate(subject)) == "CN=\\ a\\ "


def test_what_is_no_certificate_is_refused() -> None:
    whole = _certificate(_der(0x30, b""))
    for end in range(len(whole)):
        with pytest.raises(ValueError, match=r"certificate|subject"):
            subject_of(whole[:end])
    for data in (b"", b"\x31\0", _der(0x30, _der(0x30, b"")), b"\x30\x85\1\1\1\1\1"):
        with pytest.raises(ValueError, match=r"certificate|subject"):
            subject_of(data)
