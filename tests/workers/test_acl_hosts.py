"""Hosts of ACLs; what Kafka 4.4.0's CidrUtils said of the same texts."""

from __future__ import annotations

import pytest

from compactd.workers.acl_hosts import host_text, parse_host, parse_range

_HOSTS = (
    "10.1.2.3", "10.0.0.4", "10.0.0.5", "10.0.0.6", "10.0.0.7", "0.0.0.0", "255.255.255.255", "127.0.0.1", "200.1.1.1",
    "2001:db8:0:0:0:0:0:5", "0:0:0:0:0:0:0:1", "0:0:0:0:0:0:0:0", "fe80:0:0:0:0:0:0:1", "1:2:3:4:5:6:7:8",
)  # fmt: skip
_TENS = "10.1.2.3 10.0.0.4 10.0.0.5 10.0.0.6 10.0.0.7"
_TAKEN = {
    "10.0.0.0/8": _TENS,
    "10.1.2.3/8": _TENS,
    "010.0.0.0/8": _TENS,
    "10.0.0.0/08": _TENS,
    "0.0.0.0/0": f"{_TENS} 255.255.255.255 127.0.0.1 200.1.1.1",
    "1.2.3.4/0": f"{_TENS} 255.255.255.255 127.0.0.1 200.1.1.1",
    "0.0.0.0/1": f"{_TENS} 127.0.0.1",
    "128.0.0.0/1": "255.255.255.255 200.1.1.1",
    "10.0.0.5/32": "10.0.0.5",
    "10.0.0.4/31": "10.0.0.4 10.0.0.5",
    "10.0.0.4/30": "10.0.0.4 10.0.0.5 10.0.0.6 10.0.0.7",
    "2001:db8::/32": "2001:db8:0:0:0:0:0:5",
    "2001:db8::1/32": "2001:db8:0:0:0:0:0:5",
    "2001:DB8::/032": "2001:db8:0:0:0:0:0:5",
    "::/0": "2001:db8:0:0:0:0:0:5 0:0:0:0:0:0:0:1 0:0:0:0:0:0:0:0 fe80:0:0:0:0:0:0:1 1:2:3:4:5:6:7:8",
    "::/+5": "0:0:0:0:0:0:0:1 0:0:0:0:0:0:0:0 1:2:3:4:5:6:7:8",
    "::1/128": "0:0:0:0:0:0:0:1",
    "[::1]/128": "0:0:0:0:0:0:0:1",
    "0:0::1/127": "0:0:0:0:0:0:0:1 0:0:0:0:0:0:0:0",
    "fe80::/10": "fe80:0:0:0:0:0:0:1",
    "1:2:3:4:5:6:7:8/128": "1:2:3:4:5:6:7:8",
}
_REFUSED = {
    "300.0.0.0/8": "Value [300] not in range [0,255]",
    "10.0.0.0/33": "Value [33] not in range [0,32]",
    "2001:db8::/129": "Could not parse [2001:db8::/129] - prefix length must be between 0 and 128",
    "2001:db8::/-1": "Could not parse [2001:db8::/-1] - prefix length must be between 0 and 128",
    "2001:db8::/": "Could not parse [2001:db8::/] - invalid prefix length",
    "2001:db8::/ 32": "Could not parse [2001:db8::/ 32] - invalid prefix length",
    "::ffff:10.0.0.0/104": "Could not parse [::ffff:10.0.0.0] - not an IPv6 address",
    "2001:db8:::/32": "Could not parse [2001:db8:::]",
    "fe80::1%lo/64": "Could not parse [fe80::1%lo]",
    "1:2:3:4:5:6:7/128": "Could not parse [1:2:3:4:5:6:7]",
    "12345::/16": "Could not parse [12345::]",
    "localhost:1/8": "Could not parse [localhost:1]",
    **{
        text: f"Could not parse [{text}]"
        for text in ("10.0.0.0/-1", "10.0.0.0/008", "10.0.0/8", "10.0.0.0/255.0.0.0", "10.0.0.0/", "/8", "a/b",
                     " 10.0.0.0/8", "10.0.0.0/8 ", "10.0.0.0/8/8", "*/8", "10.0.0.0/+5", "١0.0.0.0/8")
    },
}  # fmt: skip


@pytest.mark.parametrize("text", _TAKEN)
def test_a_range_holds_the_addresses_that_it_holds_in_kafka(text: str) -> None:
    found = parse_range(text)
    addresses = [(host, parse_host(host)) for host in _HOSTS]
    inside = {host for host, address in addresses if address is not None and found.contains(address)}
    assert inside == set(_TAKEN[text].split())


@pytest.mark.parametrize("text", _REFUSED)
def test_a_range_that_kafka_does_not_take(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_range(text)
    assert str(caught.value) == _REFUSED[text]


@pytest.mark.parametrize(
    ("text", "java"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("2001:db8::00ff", "2001:db8:0:0:0:0:0:ff"),
        ("::ffff:192.168.1.9", "192.168.1.9"),
        ("fe80::1%eth0", "fe80:0:0:0:0:0:0:1%eth0"),
        ("unix", "unix"),
    ],
)
def test_an_address_is_written_as_java_writes_it(text: str, java: str) -> None:
    assert host_text(text) == java
