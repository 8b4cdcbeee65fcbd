"""Expected results are those of java.util.Properties.load on the same bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactd.config.errors import SettingError
from compactd.config.properties import parse_properties, properties_dict

_TEXT = (
    b"a=1\n  b : 2\n c   3\nd\n#x=1\n!y=2\ne=one,\\\n   two,\\\n   three\nf\\=g=h\\\\\ni=\\u0041\\t|\nj==x\nk=a\\\n"
    b"#notcomment\nl = trailing  \r\nm=\\q\\:\n\\#n=5\no=cr\rp=q\nr=end\\"
)


def test_syntax_is_javas() -> None:
    assert properties_dict(_TEXT, "t") == {
        "a": "1",
        "b": "2",
        "c": "3",
        "d": "",
        "e": "one,two,three",
        "f=g": "h\\",
        "i": "A\t|",
        "j": "=x",
        "k": "a#notcomment",
        "l": "trailing  ",
        "m": "q:",
        "#n": "5",
        "o": "cr",
        "p": "q",
        "r": "end",
    }


def test_lines_are_those_the_property_begins_on() -> None:
    lines = {entry.key: entry.line for entry in parse_properties(_TEXT, "t")}
    assert (lines["a"], lines["d"], lines["e"], lines["f=g"], lines["p"]) == (1, 4, 7, 10, 19)


def test_bytes_are_latin_1_and_the_last_of_a_repeated_key_counts() -> None:
    assert properties_dict(b"dir=/gr\xfcn\ndir=/\xe9", "t") == {"dir": "/é"}


def test_a_broken_unicode_escape_is_refused_with_its_line() -> None:
    with pytest.raises(SettingError, match=r"server.properties:2.*four hex digits"):
        parse_properties(b"a=1\nb=\\u00g1", "server.properties")


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_by_name(data: bytes) -> None:
    try:
        entries = parse_properties(data, "t")
    except SettingError:
        return
    lines = [entry.line for entry in entries]
    assert lines == sorted(set(lines))
