from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from compactd.config.errors import SettingError
from compactd.config.flat import flatten, unflatten
from compactd.config.jaas import parse_jaas
from compactd.config.listener_security import ListenerSecurity, securities
from compactd.config.listener_settings import is_secret, listener_setting, shown
from compactd.config.load import load_file, parse_sets, resolve_daemon
from compactd.config.settings import CleanerConfig, DaemonConfig, StorageConfig
from compactd.config.tls import parse_rules

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
JAAS = f'{PLAIN_MODULE} required username="broker" password="own" user_alice="s3cret" user_bob=plain;'
PEM = {"ssl.keystore.type": "PEM", "ssl.keystore.location": "/keys/server.pem"}


def security(
    values: Mapping[str, str], listener: str = "OUTSIDE", protocol: str = "SASL_PLAINTEXT"
) -> ListenerSecurity:
    given = {
        "listeners": f"{listener}://:9094,PLAINTEXT://:9092",
        "listener.security.protocol.map": f"{listener}:{protocol},PLAINTEXT:PLAINTEXT",
        **values,
    }
    return securities(DaemonConfig.from_strings(given))[listener]


# ---- JAAS


def test_a_login_module_with_its_options() -> None:
    module = parse_jaas(JAAS)
    assert module.class_name == PLAIN_MODULE
    assert module.options == {"username": "broker", "password": "own", "user_alice": "s3cret", "user_bob": "plain"}
    assert "s3cret" not in repr(module)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("a.B REQUIRED;", {}),
        ("a.B optional /* of\nusers */ x=1 // end\n ;", {"x": "1"}),
        (r'a.B required x="say \"hi\"\n\101" y=' + "'single';", {"x": 'say "hi"\nA', "y": "single"}),
        ("a.B required x='\u00fc;=';", {"x": "\u00fc;="}),
    ],
)
def test_the_syntax_of_jaas(text: str, options: Mapping[str, str]) -> None:
    assert parse_jaas(text).options == options


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "no login module"),
        ("a.B;", "of the form"),
        ("a.B maybe x=hush;", "of the form"),
        ("a.B required x;", "option x has no value"),
        ("a.B required x=;", "option x has no value"),
        ("a.B required =hush;", "where the name of an option"),
        ('a.B required x="hush"', "semicolon"),
        ('a.B required x="hush', "out of place"),
        ("a.B required x=hush; c.D required;", "not several"),
    ],
)
def test_what_is_no_login_module_is_refused_without_repeating_it(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault) as caught:
        parse_jaas(text)
    assert "hush" not in str(caught.value)


# ---- names


def test_names_of_a_listeners_settings() -> None:
    for name in (
        "listener.name.outside.plain.sasl.jaas.config",
        "listener.name.outside.scram-sha-512.connections.max.reauth.ms",
        "listener.name.a.b-c.ssl.keystore.key",
        "listener.name.outside.max.connections",
    ):
        assert listener_setting(name) is not None
    for name in (
        "sasl.enabled.mechanisms",
        "listener.name.OUTSIDE.sasl.enabled.mechanisms",
        "listener.name.outside.sasl.jaas.config",
        "listener.name.outside.gssapi.sasl.jaas.config",
        "listener.name.outside",
        "listener.name..ssl.client.auth",
        "listener.name.outside.node.id",
    ):
        assert listener_setting(name) is None


def test_secrets_are_known_by_their_names() -> None:
    assert shown("listener.name.x.plain.sasl.jaas.config", "hush") == "[hidden]"
    assert shown("ssl.client.auth", "required") == "required"
    for name in ("ssl.key.password", "ssl.keystore.key", "listener.name.x.plain.sasl.jaas.confg", "ssl.keypassword"):
        assert is_secret(name)


# ---- SASL


def test_users_and_mechanisms_of_a_listener() -> None:
    found = security(
        {
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.outside.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.outside.plain.sasl.jaas.config": JAAS,
            "listener.name.outside.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
            "connections.max.reauth.ms": "1000",
            "listener.name.outside.connections.max.reauth.ms": "2000",
            "listener.name.outside.plain.connections.max.reauth.ms": "3000",
            "listener.name.outside.max.connections": "7",
        }
    )
    assert found.mechanisms == ("PLAIN", "SCRAM-SHA-256")
    assert found.users == {"alice": "s3cret", "bob": "plain"}
    assert found.reauth_ms == {"PLAIN": 3000, "SCRAM-SHA-256": 2000}
    assert (found.max_connections, found.max_receive, found.tls) == (7, 524_288, None)
    assert "s3cret" not in repr(found)


def test_the_number_of_all_connections_is_not_a_listeners() -> None:
    found = security({"sasl.enabled.mechanisms": "SCRAM-SHA-256", "max.connections": "5"})
    assert found.max_connections == 2**31 - 1


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({}, "GSSAPI cannot be had"),
        ({"sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER"}, "OAUTHBEARER cannot be had"),
        ({"sasl.enabled.mechanisms": ""}, "a SASL listener needs one"),
        ({"sasl.enabled.mechanisms": "PLAIN"}, "outside.plain.sasl.jaas.config.*has to name the users"),
        (
            {"sasl.enabled.mechanisms": "PLAIN", "listener.name.outside.plain.sasl.jaas.config": "my.Module required;"},
            "classes of your own",
        ),
        (
            {"sasl.enabled.mechanisms": "PLAIN", "listener.name.outside.plain.sasl.jaas.config": "x hush=y"},
            "of the form",
        ),
        (
            {
                "sasl.enabled.mechanisms": "SCRAM-SHA-256",
                "listener.name.outside.scram-sha-256.sasl.server.callback.handler.class": "my.Handler",
            },
            "sasl.server.callback.handler.class.*classes of your own",
        ),
        ({"principal.builder.class": "my.Builder"}, "principal.builder.class.*classes of your own"),
        (
            {"sasl.enabled.mechanisms": "SCRAM-SHA-256", "listener.name.inside.ssl.client.auth": "none"},
            "no such listener; there are outside, plaintext",
        ),
        (
            {"sasl.enabled.mechanisms": "SCRAM-SHA-256", "listener.name.outside.of.ssl.client.auth": "none"},
            "no such listener",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(values: Mapping[str, str], fault: str) -> None:
    with pytest.raises(SettingError, match=fault) as caught:
        security(values)
    assert "hush" not in str(caught.value)


def test_a_listener_of_the_quorum_may_have_settings() -> None:
    values = {"controller.listener.names": "CONTROLLER", "listener.name.controller.ssl.client.auth": "required"}
    assert securities(DaemonConfig.from_strings(values))["PLAINTEXT"].mechanisms == ()


def test_settings_of_listeners_travel_to_the_workers() -> None:
    config = DaemonConfig.from_strings({"listener.name.plaintext.max.connections": "4"})
    flat = flatten(StorageConfig(), CleanerConfig(), config)
    assert unflatten(flat)[2] == config
    secret = DaemonConfig.from_strings({"ssl.key.password": "hush", "listener.name.plaintext.ssl.key.password": "hush"})
    assert "hush" not in repr(secret)
    # Reconfigure tells of a setting that is gone with an empty value.
    assert unflatten({**flat, "listener.name.plaintext.max.connections": ""})[2].listener_settings == {}


def test_files_and_sets_may_hold_them(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(
        "listeners=OUTSIDE://:9094\nlistener.security.protocol.map=OUTSIDE:SASL_PLAINTEXT\n"
        "sasl.enabled.mechanisms=PLAIN\nlistener.name.outside.oauthbearer.sasl.jaas.config=hush\n"
        f'listener.name.outside.plain.sasl.jaas.config={PLAIN_MODULE} \\\n  required \\\n  user_alice="x";\n'
    )
    raw = load_file(path)
    assert [(each.name, each.source) for each in raw.unused] == [
        ("listener.name.outside.oauthbearer.sasl.jaas.config", "server.properties:4")
    ]
    found = resolve_daemon((), raw, None)
    name = "listener.name.outside.plain.sasl.jaas.config"
    assert found.sources[name] == "server.properties:5"
    assert securities(found.config)["OUTSIDE"].users == {"alice": "x"}
    given = parse_sets([f'{name}={PLAIN_MODULE} required user_bob="y";'])
    assert securities(resolve_daemon(given, raw, None).config)["OUTSIDE"].users == {"bob": "y"}
    with pytest.raises(SettingError, match=r"server\.properties:2.*KERBEROS") as caught:
        path.write_text(path.read_text().replace("OUTSIDE:SASL_PLAINTEXT", "OUTSIDE:KERBEROS"))
        resolve_daemon(parse_sets(["sasl.enabled.mechanisms=PLAIN"]), load_file(path), None)
    assert "hush" not in str(caught.value)
    with pytest.raises(SettingError, match=r"\[hidden\]"):
        parse_sets(["listener.name.outside.plain.sasl.jaas.confg=hush"])


# ---- TLS


def test_keys_and_certificates_in_pem() -> None:
    found = security(PEM, protocol="SSL").tls
    assert found is not None
    assert (found.keystore_location, found.client_auth, found.files) == ("/keys/server.pem", "none", PEM_FILES)
    inline = security(
        {
            "ssl.keystore.type": "PEM",
            "listener.name.outside.ssl.keystore.key": "KEY",
            "listener.name.outside.ssl.keystore.certificate.chain": "CHAIN",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": "TRUSTED",
            "ssl.client.auth": "required",
        },
        protocol="SSL",
    ).tls
    assert inline is not None
    assert (inline.key, inline.certificate_chain, inline.trusted) == ("KEY", "CHAIN", "TRUSTED")
    assert "KEY" not in repr(inline)


PEM_FILES = ("/keys/server.pem",)


def test_who_logs_in_needs_a_certificate_only_where_the_listener_says_so() -> None:
    values = {
        **PEM,
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/keys/trusted.pem",
        "ssl.client.auth": "required",
    }
    found = security(values, protocol="SASL_SSL").tls
    assert found is not None
    assert found.client_auth == "none"
    found = security({**values, "listener.name.outside.ssl.client.auth": "requested"}, protocol="SASL_SSL").tls
    assert found is not None
    assert found.client_auth == "requested"


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({}, "needs ssl.keystore.location"),
        ({"ssl.keystore.location": "/keys/server.jks"}, "ssl.keystore.type.*keytool -importkeystore"),
        ({**PEM, "ssl.keystore.type": "PKCS12"}, "only PEM can be read"),
        ({**PEM, "ssl.keystore.key": "hush", "ssl.keystore.certificate.chain": "x"}, "give them once"),
        ({**PEM, "ssl.keystore.password": "hush"}, "that of the key is ssl.key.password"),
        ({**PEM, "ssl.client.auth": "required"}, "who may vouch"),
        ({**PEM, "ssl.truststore.location": "/t.jks"}, "ssl.truststore.type"),
        ({**PEM, "ssl.enabled.protocols": "TLSv1"}, "TLSv1.2 and TLSv1.3"),
        ({**PEM, "ssl.cipher.suites": "TLS_NULL"}, "TLS_NULL is not known"),
        ({**PEM, "ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"}, "all or none"),
        (
            {
                **PEM,
                "ssl.cipher.suites": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
                "ssl.enabled.protocols": "TLSv1.3",
            },
            "belong to TLSv1.2",
        ),
        ({**PEM, "ssl.principal.mapping.rules": "RULE:x"}, "not DEFAULT or RULE"),
        ({**PEM, "ssl.engine.factory.class": "my.Engine"}, "classes of your own"),
    ],
)
def test_tls_that_cannot_be_had_is_refused(values: Mapping[str, str], fault: str) -> None:
    with pytest.raises(SettingError, match=fault) as caught:
        security(values, protocol="SSL")
    assert "hush" not in str(caught.value)


def test_cipher_suites_by_their_standard_names() -> None:
    suites = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,TLS_DHE_RSA_WITH_AES_128_CBC_SHA256"
    found = security({**PEM, "ssl.cipher.suites": suites}, protocol="SSL").tls
    assert found is not None
    assert found.ciphers == ("ECDHE-RSA-AES256-GCM-SHA384", "DHE-RSA-AES128-SHA256")
    assert found.protocols == ("TLSv1.2",)


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        ("DEFAULT", "CN=a,O=b", "CN=a,O=b"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,DEFAULT", "CN=alice,OU=ServiceUsers,O=x", "alice"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,DEFAULT", "CN=alice,OU=Admin", "CN=alice,OU=Admin"),
        ("RULE:^CN=(.*?),OU=(.*?),O=.*$/$1@$2/L", "CN=Alice,OU=Sales,O=x", "alice@sales"),
        ("RULE:^cn=(.*?)$/$1/U", "cn=alice", "ALICE"),
        (r"RULE:^CN=(.*)$/\$\/$1/", "CN=a", "$/a"),
        ("RULE:^CN=(a)$/$1/", "CN=b", None),
    ],
)
def test_what_the_owner_of_a_certificate_is_called(rules: str, subject: str, name: str | None) -> None:
    found = next((each for rule in parse_rules(rules) if (each := rule.name_of(subject)) is not None), None)
    assert found == name


@pytest.mark.parametrize("text", ["", "RULE:(/x/", "RULE:a/$1/", "DEFAULT;DEFAULT", "rule:a/b/"])
def test_rules_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"rule|pattern|group|RULE"):
        parse_rules(text)


def test_slips_in_the_names_of_a_listeners_settings_are_told(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(
        "listener.name.outside.sasl.enabled.mechanism=PLAIN\n"
        "listener.name.outside.plain.sasl.jaas.confg=hush\n"
        "listener.name.outside.num.network.threads=3\n"
        "listener.name.outside.oauthbearer.sasl.jaas.config=hush\n"
        "listener.name.outside.node.id=3\n"
        "listener.name.outside.my.plugin=3\n"
    )
    found = [(each.unknown, each.reason) for each in load_file(path).unused]
    assert found[0] == (
        True,
        "not a setting of Kafka 4.4; did you mean listener.name.outside.sasl.enabled.mechanisms?",
    )
    assert found[1] == (
        True,
        "not a setting of Kafka 4.4; did you mean listener.name.outside.plain.sasl.jaas.config?",
    )
    assert [unknown for unknown, _ in found[2:]] == [False, False, False, True]
    with pytest.raises(SettingError, match=r"the nearest is listener\.name\.outside\.plain\.sasl\.jaas\.config"):
        parse_sets(["listener.name.outside.plain.sasl.jaas.confg=hush"])


# ---- what clients stored


class _Stored:
    """A catalogue with settings of broker 1."""

    topic_configs: Mapping[str, Mapping[str, str]] = {}
    node_id = 1

    def __init__(self, **configs: str) -> None:
        self.broker_configs: Mapping[str, Mapping[str, str]] = {
            "1": {name.replace("__", "-").replace("_", "."): value for name, value in configs.items()}
        }

    def config_source(self, kind: str, resource: str, name: str) -> str:
        return f"{kind} {resource}: {name}"


def test_stored_settings_of_listeners_count_behind_those_that_were_given() -> None:
    stored = _Stored(
        sasl_enabled_mechanisms="PLAIN",
        listener_name_plaintext_max_connections="5",
        listener_name_outside_plain_sasl_jaas_config=f'{PLAIN_MODULE} required user_alice="x";',
    )
    given = [
        "listeners=OUTSIDE://:1,PLAINTEXT://:2",
        "listener.security.protocol.map=OUTSIDE:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT",
    ]
    found = resolve_daemon(given, None, stored)
    assert securities(found.config)["OUTSIDE"].users == {"alice": "x"}
    assert securities(found.config)["PLAINTEXT"].max_connections == 5
    assert (
        found.sources["listener.name.plaintext.max.connections"] == "broker 1: listener.name.plaintext.max.connections"
    )
    again = resolve_daemon([*given, "listener.name.plaintext.max.connections=6"], None, stored)
    assert securities(again.config)["PLAINTEXT"].max_connections == 6


@pytest.mark.parametrize(
    "stored",
    [
        _Stored(sasl_enabled_mechanisms="GSSAPI"),
        _Stored(listener_name_outside_plain_sasl_jaas_config="hush"),
        _Stored(listener_name_nowhere_max_connections="5"),
        _Stored(listeners="SSL://:1"),
    ],
)
def test_stored_settings_that_do_not_fit_keep_nobody_from_starting(stored: _Stored) -> None:
    given = [
        "listeners=OUTSIDE://:1",
        "listener.security.protocol.map=OUTSIDE:SASL_PLAINTEXT",
        f'listener.name.outside.plain.sasl.jaas.config={PLAIN_MODULE} required user_alice="x";',
        "sasl.enabled.mechanisms=PLAIN",
    ]
    kept = resolve_daemon(given, None, stored)
    assert securities(kept.config)["OUTSIDE"].users == {"alice": "x"}
    # Without what was given it would not start at all.
    fewer = given[:2] if "sasl.enabled.mechanisms" not in stored.broker_configs["1"] else given[:3]
    with pytest.raises(SettingError):
        resolve_daemon(fewer, None, stored)


def test_stored_settings_that_do_not_fit_are_named() -> None:
    found = resolve_daemon((), None, _Stored(listener_name_nowhere_ssl_key_password="hush", ssl_client_auth="none"))
    assert list(found.unused) == ["listener.name.nowhere.ssl.key.password", "ssl.client.auth"]
    assert "no such listener" in found.unused["ssl.client.auth"]
    assert "hush" not in str(found.unused)
    assert found.config == DaemonConfig()


def test_a_failed_login_is_told_before_the_connection_is_idle() -> None:
    with pytest.raises(SettingError, match=r"must be less than connections\.max\.idle\.ms"):
        DaemonConfig.from_strings({"connection.failed.authentication.delay.ms": 100, "connections.max.idle.ms": 100})
