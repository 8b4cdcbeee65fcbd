"""The subject of a certificate as Kafka names it: RFC 2253, as Java's X500Principal.getName() writes it.

A certificate has been checked by OpenSSL before it comes here; lengths are checked all the same.
"""

from __future__ import annotations

from collections.abc import Iterator

#: Types of attributes that have a name; others are written with their numbers, and their values in hexadecimal.
_NAMES = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
#: Text types of DER, by tag.
_TEXTS = {
    0x0C: "utf-8",
    0x13: "ascii",
    0x14: "latin-1",
    0x16: "ascii",
    0x1B: "ascii",
    0x1C: "utf-32-be",
    0x1E: "utf-16-be",
}
_ESCAPED = frozenset(',=+<>#;"\\')
_SEQUENCE, _OID, _VERSION = 0x30, 0x06, 0xA0
#: Fields of a certificate before its subject, without the version: serial number, algorithm, issuer, validity.
_BEFORE_SUBJECT = 4


def subject_of(certificate: bytes) -> str:
    """`certificate`: DER. ValueError for what is none."""
    body = next(_items(next(_items(certificate, _SEQUENCE))[1], _SEQUENCE))[1]
    fields = [item for item in _items(body) if item[0] != _VERSION]
    if len(fields) <= _BEFORE_SUBJECT:
        raise ValueError("the certificate has no subject")
    names = []
    for _, name in _items(fields[_BEFORE_SUBJECT][1]):
        names.append("+".join(_attribute(attribute) for _, attribute in _items(name)))
    return ",".join(reversed(names))


def _attribute(data: bytes) -> str:
    parts = list(_items(data))
    if len(parts) != 2 or parts[0][0] != _OID:
        raise ValueError("an attribute of the subject is not a type and a value")
    oid, (tag, value) = _oid(parts[0][1]), parts[1]
    name = _NAMES.get(oid)
    if name is None or tag not in _TEXTS:
        encoded = data[len(data) - len(value) - _head_size(value) :]
        return f"{name or oid}=#{encoded.hex()}"
    return f"{name}={_escaped(value.decode(_TEXTS[tag], 'replace'))}"


def _escaped(text: str) -> str:
    inner = text.strip(" ")
    lead = len(text) - len(text.lstrip(" "))
    trail = len(text) - lead - len(inner)
    kept = "".join("\\00" if char == "\0" else f"\\{char}" if char in _ESCAPED else char for char in inner)
    return "\\ " * lead + kept + "\\ " * trail


def _oid(data: bytes) -> str:
    numbers: list[int] = []
    number = 0
    for byte in data:
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(number)
            number = 0
    if not numbers:
        raise ValueError("a type without a number")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _items(data: bytes, wanted: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Tags and contents, one after another."""
    position = 0
    while position < len(data):
        if position + 2 > len(data):
            raise ValueError("the certificate ends too early")
        tag, size = data[position], data[position + 1]
        position += 2
        if size & 0x80:
            count = size & 0x7F
            if not 0 < count <= 4 or position + count > len(data):
                raise ValueError("the certificate has a length that is none")
            size = int.from_bytes(data[position : position + count], "big")
            position += count
        if position + size > len(data) or (wanted is not None and tag != wanted):
            raise ValueError("the certificate is not one")
        yield tag, data[position : position + size]
        position += size
    if wanted is not None and not data:
        raise ValueError("the certificate is empty")


def _head_size(value: bytes) -> int:
    """Bytes of tag and length before a value."""
    size = len(value)
    return 2 if size < 0x80 else 2 + (size.bit_length() + 7) // 8
