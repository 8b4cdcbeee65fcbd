"""Keys and values as text, hex or JSON: for people on a line, for programs in a JSON object."""

from __future__ import annotations

import json
from typing import Any

import msgspec

_SHORT = {0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r"}

#: What --key and --value take.
FORMATS = ("text", "hex", "json")


def json_fields(name: str, data: bytes | None, form: str) -> dict[str, Any]:
    """`data` as fields of a JSON object, so that no byte is lost and nothing is ambiguous.

    null is `{name: null}`. As text: `{name: "…"}`, or `{nameHex: "…"}` where the bytes are not UTF-8. As hex:
    `{nameHex: "…"}`. As json: the document itself under `name`, digits and repeated names as they were written; what is
    not JSON is text under `nameText`, or `nameHex`.
    """
    if data is None:
        return {name: None}
    if form == "hex":
        return {f"{name}Hex": data.hex()}
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return {f"{name}Hex": data.hex()}
    if form == "text":
        return {name: text}
    document = _document(data)
    return {f"{name}Text": text} if document is None else {name: msgspec.Raw(document)}


def one_line(data: bytes | None, form: str) -> str:
    """`data` on one line: quoted text with escapes, `0x…`, or compact JSON; `null` without quotes for no bytes at all.

    Bytes that are not UTF-8 show as hex whatever was asked; text that is not JSON shows quoted.
    """
    if data is None:
        return "null"
    if form == "hex":
        return f"0x{data.hex()}"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    document = _document(data) if form == "json" else None
    return quoted(text) if document is None else printable(document.decode())


def _document(utf8: bytes) -> bytes | None:
    """The JSON document without white space between its tokens (so it fits on a line), None where it is not one."""
    try:
        return msgspec.json.format(utf8, indent=-1)
    except (msgspec.DecodeError, RecursionError):
        return None


def quoted(text: str) -> str:
    """In quotes (single ones around text that holds double ones), everything escaped that could hide in a terminal."""
    quote = "'" if '"' in text and "'" not in text else '"'
    escaped = text.replace("\\", "\\\\")
    if quote == '"':
        escaped = escaped.replace('"', '\\"')
    return quote + printable(escaped) + quote


def printable(text: str) -> str:
    """Control, format and unassigned characters escaped: names and values come from files that anybody may have written."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(ord(c)) for c in text)


def _escape(code: int) -> str:
    if code in _SHORT:
        return _SHORT[code]
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def compact_json(value: Any) -> str:
    """One line of JSON, safe for a terminal."""
    return printable(json.dumps(plain(value), ensure_ascii=False, separators=(",", ":")))


def plain(value: Any) -> Any:
    """A decoder's result as JSON can hold it: bytes as hex, tuples as lists, sets sorted."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(plain, value), key=repr)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)
