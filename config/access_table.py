"""Settings of who clients are and what they may do: logins, TLS, permissions, quotas. Part of `config.table`."""

from __future__ import annotations

from compactd.config.authorization import STANDARD_AUTHORIZER
from compactd.config.daemon_rows import kafka, plug_in
from compactd.config.setting import Dynamic, Kind, Setting, Unit

_PRINCIPALS = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"
_P = Dynamic.PER_BROKER

#: Each listener may have its own, under listener.name.NAME. (see config.listener_settings).
AUTHENTICATION: tuple[Setting, ...] = (
    kafka(
        "sasl.enabled.mechanisms",
        Kind.LIST,
        ("GSSAPI",),
        "how clients of SASL listeners log in: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512; has to be set, GSSAPI cannot be had",
        _P,
    ),
    kafka(
        "connections.max.reauth.ms",
        Kind.LONG,
        0,
        "clients have to log in again within this; 0: never",
        unit=Unit.MS,
    ),
    kafka(
        "connection.failed.authentication.delay.ms",
        Kind.INT,
        100,
        "a client that failed to log in is told, and disconnected, after this",
        unit=Unit.MS,
        low=0,
    ),
    kafka(
        "sasl.server.max.receive.size",
        Kind.INT,
        524_288,
        "largest request of a client that has not logged in",
        unit=Unit.BYTES,
    ),
    kafka("principal.builder.class", Kind.CLASS, _PRINCIPALS, "Kafka's own is the only one", _P),
    kafka("sasl.server.callback.handler.class", Kind.CLASS, None, "cannot be had; unset: Kafka's own"),
    kafka(
        "ssl.client.auth",
        Kind.STRING,
        "none",
        "whether clients of TLS listeners show a certificate",
        _P,
        choices=("required", "requested", "none"),
    ),
    kafka("ssl.enabled.protocols", Kind.LIST, ("TLSv1.2", "TLSv1.3"), "versions of TLS", _P),
    kafka(
        "ssl.cipher.suites", Kind.LIST, (), "cipher suites of TLS, by their standard names; empty: OpenSSL's choice", _P
    ),
    kafka("ssl.keystore.type", Kind.STRING, "JKS", "PEM is the only type that can be read", _P),
    kafka("ssl.keystore.location", Kind.STRING, None, "file with the private key and the certificates", _P),
    kafka("ssl.keystore.certificate.chain", Kind.PASSWORD, None, "certificates, in place of the file", _P),
    kafka("ssl.keystore.key", Kind.PASSWORD, None, "private key, in place of the file", _P),
    kafka("ssl.key.password", Kind.PASSWORD, None, "password of the private key", _P),
    kafka("ssl.keystore.password", Kind.PASSWORD, None, "a PEM file as a whole has none", _P),
    kafka("ssl.truststore.type", Kind.STRING, "JKS", "PEM is the only type that can be read", _P),
    kafka("ssl.truststore.location", Kind.STRING, None, "file with the certificates of who vouches for clients", _P),
    kafka("ssl.truststore.certificates", Kind.PASSWORD, None, "these certificates, in place of the file", _P),
    kafka("ssl.truststore.password", Kind.PASSWORD, None, "a PEM file as a whole has none", _P),
    kafka("ssl.principal.mapping.rules", Kind.STRING, "DEFAULT", "what the owner of a certificate is called"),
    kafka("ssl.engine.factory.class", Kind.CLASS, None, "cannot be had; unset: Kafka's own", _P),
)

AUTHORISATION: tuple[Setting, ...] = (
    kafka(
        "authorizer.class.name",
        Kind.STRING,
        "",
        f"{STANDARD_AUTHORIZER}: clients may do what ACLs allow; unset: everybody may do everything",
    ),
    plug_in("super.users", Kind.STRING, "", "principals that may do everything: `User:admin;User:alice`"),
    plug_in(
        "allow.everyone.if.no.acl.found",
        Kind.BOOLEAN,
        False,
        "everybody may do everything with a topic, group or other resource that no ACL is about",
    ),
)

QUOTAS: tuple[Setting, ...] = (
    kafka("quota.window.num", Kind.INT, 11, "windows over which the rates of client quotas are taken", low=1),
    kafka("quota.window.size.seconds", Kind.INT, 1, "length of each of these windows, in seconds", low=1),
    kafka(
        "controller.quota.window.num",
        Kind.INT,
        11,
        "windows whose permits to make and delete partitions are saved up",
        low=1,
    ),
    kafka("controller.quota.window.size.seconds", Kind.INT, 1, "length of each of these windows, in seconds", low=1),
)
