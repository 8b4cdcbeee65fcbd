"""The syntax of RE2, in which members say what topics they read (RE2/J 1.8, with Perl's classes and without look-around).

Only names of a known alphabet are ever matched, so a class of characters is the set of those that it has.
"""

from __future__ import annotations

import string
import unicodedata
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

#: What a topic name may be made of.
ALPHABET = frozenset(string.ascii_letters + string.digits + "._-")

Node: TypeAlias = "Chars | Series | Choice | Repeat | Assertion"

_MOST_REPEATS = 1000
_DEEPEST = 200
_WORD = frozenset(string.ascii_letters + string.digits + "_")
_PERL = {"d": frozenset(string.digits), "s": frozenset(" \t\n\f\r"), "w": _WORD}
_POSIX = {
    "alnum": frozenset(string.ascii_letters + string.digits),
    "alpha": frozenset(string.ascii_letters),
    "ascii": frozenset(map(chr, range(128))),
    "blank": frozenset("\t "),
    "cntrl": frozenset(map(chr, [*range(32), 127])),
    "digit": frozenset(string.digits),
    "graph": frozenset(map(chr, range(33, 127))),
    "lower": frozenset(string.ascii_lowercase),
    "print": frozenset(map(chr, range(32, 127))),
    "punct": frozenset(string.punctuation),
    "space": frozenset("\t\n\v\f\r "),
    "upper": frozenset(string.ascii_uppercase),
    "word": _WORD,
    "xdigit": frozenset(string.hexdigits),
}
_CATEGORY_NAMES = """
C Cc Cf Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps S Sc Sk Sm So Z Zl Zp Zs
"""
_CATEGORIES = frozenset(_CATEGORY_NAMES.split())
#: Only these two have characters of topic names; of the others it is known that they exist.
_LATIN, _COMMON = "Latin", "Common"
_SCRIPT_NAMES = """
Arabic Armenian Avestan Balinese Bamum Batak Bengali Bopomofo Brahmi Braille Buginese Buhid Canadian_Aboriginal
Carian Cham Cherokee Common Coptic Cuneiform Cypriot Cyrillic Deseret Devanagari Egyptian_Hieroglyphs Ethiopic
Georgian Glagolitic Gothic Greek Gujarati Gurmukhi Han Hangul Hanunoo Hebrew Hiragana Imperial_Aramaic Inherited
Inscriptional_Pahlavi Inscriptional_Parthian Javanese Kaithi Kannada Katakana Kayah_Li Kharoshthi Khmer Lao Latin
Lepcha Limbu Linear_B Lisu Lycian Lydian Malayalam Mandaic Meetei_Mayek Mongolian Myanmar New_Tai_Lue Nko Ogham
Ol_Chiki Old_Italic Old_Persian Old_South_Arabian Old_Turkic Oriya Osmanya Phags_Pa Phoenician Rejang Runic
Samaritan Saurashtra Shavian Sinhala Sundanese Syloti_Nagri Syriac Tagalog Tagbanwa Tai_Le Tai_Tham Tai_Viet Tamil
Telugu Thaana Thai Tibetan Tifinagh Ugaritic Vai Yi
"""
_SCRIPTS = frozenset(_SCRIPT_NAMES.split())
_SIMPLE_ESCAPES = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_LARGEST = 0x10FFFF


class RegexError(ValueError):
    """The expression is none; says why, as RE2/J does."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One of these characters."""

    chars: frozenset[str]


@dataclass(frozen=True, slots=True)
class Series:
    """One after another."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of them."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """So many times; `most` None: any number."""

    node: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Assertion:
    """No character, but a place."""

    kind: Literal["begin", "end", "word", "not word"]


@dataclass(frozen=True, slots=True)
class _Flags:
    """Those that make a difference for topic names, which have no lines."""

    fold: bool = False


def parse(pattern: str, alphabet: frozenset[str] = ALPHABET) -> Node:
    """`alphabet`: what the names that it will be matched with are made of. RegexError."""
    return _Parser(pattern, alphabet).parse()


class _Parser:
    def __init__(self, pattern: str, alphabet: frozenset[str]) -> None:
        self._text = pattern
        self._alphabet = alphabet
        self._at = 0
        self._flags = _Flags()
        self._names: set[str] = set()

    # ---- structure

    def parse(self) -> Node:
        stack: list[tuple[list[Node], list[Node], _Flags]] = []
        options: list[Node] = []
        parts: list[Node] = []
        #: Whether the part before is the result of a repetition.
        repeated = False
        while self._at < len(self._text):
            char = self._text[self._at]
            was_repeated, repeated = repeated, False
            if char == "(":
                opened = self._group_flags()
                if opened is None:  # only flags
                    continue
                if len(stack) >= _DEEPEST:
                    raise RegexError("expression nests too deeply")
                stack.append((options, parts, opened))
                options, parts = [], []
            elif char == ")":
                if not stack:
                    # So RE2/J says.
                    raise RegexError("regexp/syntax: internal error")
                self._at += 1
                node = _chosen([*options, Series(tuple(parts))])
                options, parts, self._flags = stack.pop()
                parts.append(node)
            elif char == "|":
                self._at += 1
                options.append(Series(tuple(parts)))
                parts = []
            elif char in "*+?" or (char == "{" and self._counts() is not None):
                least, most = self._repetition()
                if not parts:
                    raise RegexError("missing argument to repetition operator")
                if was_repeated:
                    raise RegexError("invalid nested repetition operator")
                if least > _MOST_REPEATS or (most is not None and (most > _MOST_REPEATS or least > most)):
                    raise RegexError("invalid repeat count")
                if self._text[self._at : self._at + 1] == "?":
                    self._at += 1
                parts.append(Repeat(parts.pop(), least, most))
                repeated = True
            elif self._text.startswith("\\Q", self._at):
                self._at += 2
                end = self._text.find("\\E", self._at)
                quoted = self._text[self._at : end if end >= 0 else None]
                self._at += len(quoted) + (2 if end >= 0 else 0)
                parts += [self._literal(each) for each in quoted]
            else:
                parts.append(self._atom(char))
                # To RE2/J a brace that counts nothing is a repetition all the same, for what follows it.
                repeated = char == "{"
        if stack:
            raise RegexError("missing closing )")
        return _chosen([*options, Series(tuple(parts))])

    def _group_flags(self) -> _Flags | None:
        """Behind the opening of a group: the flags to go back to at its end; None: it only sets flags."""
        before = self._flags
        self._at += 1
        if not self._text.startswith("?", self._at):
            return before
        for opening in ("?P<", "?<"):
            if self._text.startswith(opening, self._at):
                end = self._text.find(">", self._at)
                name = self._text[self._at + len(opening) : end]
                if end < 0 or not name or not set(name) <= _WORD or name in self._names:
                    raise RegexError(
                        "invalid named capture" if name not in self._names else "duplicate capture group name"
                    )
                self._names.add(name)
                self._at = end + 1
                return before
        self._at += 1
        value, seen = True, False
        while self._at < len(self._text):
            char = self._text[self._at]
            self._at += 1
            if char == "i":
                self._flags, seen = replace(self._flags, fold=value), True
            elif char in "smU":  # lines, and greediness
                seen = True
            elif char == "-" and value:
                value, seen = False, False
            elif char in ":)" and (value or seen):
                return before if char == ":" else None
            else:
                break
        raise RegexError("invalid or unsupported Perl syntax")

    def _counts(self) -> tuple[int, int | None, int] | None:
        """`{n}`, `{n,}`, `{n,m}` and where it ends; None: the brace is a character."""
        end = self._text.find("}", self._at)
        if end < 0:
            return None
        low, comma, high = self._text[self._at + 1 : end].partition(",")
        if not _is_number(low) or (comma and high and not _is_number(high)):
            return None
        # Of many digits, any number that is too large.
        least = int(low[:9])
        most = least if not comma else int(high[:9]) if high else None
        return least, most, end + 1

    def _repetition(self) -> tuple[int, int | None]:
        char = self._text[self._at]
        if char == "{":
            counts = self._counts()
            assert counts is not None
            self._at = counts[2]
            return counts[0], counts[1]
        self._at += 1
        return {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]

    # ---- single characters

    def _atom(self, char: str) -> Node:
        if char == "[":
            return self._class()
        if char == "\\":
            return self._escape()
        self._at += 1
        if char == ".":
            return Chars(self._alphabet - {"\n"})
        if char == "^":
            return Assertion("begin")
        if char == "$":
            return Assertion("end")
        return self._literal(char)

    def _literal(self, char: str) -> Chars:
        return Chars(self._folded(frozenset(char)) & self._alphabet)

    def _folded(self, chars: frozenset[str]) -> frozenset[str]:
        if not self._flags.fold:
            return chars
        both = {each for char in chars for each in (char.lower(), char.upper())}
        # Two characters outside of ASCII fold to letters of it.
        both |= {ascii_char for char, ascii_char in (("\u017f", "s"), ("\u212a", "k")) if char in chars}
        return frozenset(both | {char.upper() for char in both})

    def _escape(self) -> Node:
        following = self._text[self._at + 1 : self._at + 2]
        place: dict[str, Literal["begin", "end", "word", "not word"]] = {
            "A": "begin",
            "z": "end",
            "b": "word",
            "B": "not word",
        }
        if following in place and following:
            self._at += 2
            return Assertion(place[following])
        if following == "C":
            raise RegexError("invalid escape sequence")
        found = self._escaped_class()
        if found is not None:
            return Chars(found & self._alphabet)
        return self._literal(self._escaped_char())

    def _escaped_class(self) -> frozenset[str] | None:
        """`\\d` and its kind, `\\pL` and its kind; None: another escape."""
        following = self._text[self._at + 1 : self._at + 2]
        if following and following.lower() in _PERL:
            self._at += 2
            chars = _PERL[following.lower()]
            return self._alphabet - chars if following.isupper() else chars
        if following not in ("p", "P"):
            return None
        negated = following == "P"
        self._at += 2
        name = self._text[self._at : self._at + 1]
        if name == "{":
            end = self._text.find("}", self._at)
            if end < 0:
                raise RegexError("invalid character class range")
            name = self._text[self._at + 1 : end]
            self._at = end + 1
        else:
            self._at += 1
        if name.startswith("^"):
            negated, name = not negated, name[1:]
        chars = _unicode_class(name, self._alphabet)
        chars = self._folded(chars) & self._alphabet
        return self._alphabet - chars if negated else chars

    def _escaped_char(self) -> str:
        text, at = self._text, self._at + 1
        if at >= len(text):
            raise RegexError("trailing backslash at end of expression")
        char = text[at]
        self._at = at + 1
        if char in "1234567" and text[at + 1 : at + 2] not in tuple("01234567"):
            raise RegexError("invalid escape sequence")
        if char in "01234567":
            end = at + 1
            while end < min(at + 3, len(text)) and text[end] in "01234567":
                end += 1
            self._at = end
            return chr(int(text[at:end], 8))
        if char == "x":
            return self._hexadecimal()
        if char in _SIMPLE_ESCAPES:
            return _SIMPLE_ESCAPES[char]
        if ord(char) >= 0x80 or not char.isalnum():
            return char
        raise RegexError("invalid escape sequence")

    def _hexadecimal(self) -> str:
        """Behind `\\x`."""
        if self._text.startswith("{", self._at):
            end = self._text.find("}", self._at)
            digits = self._text[self._at + 1 : end] if end >= 0 else ""
            after = end + 1
        else:
            digits = self._text[self._at : self._at + 2]
            after = self._at + 2
            if len(digits) < 2:
                digits = ""
        if not digits or not set(digits) <= set(string.hexdigits) or int(digits, 16) > _LARGEST:
            raise RegexError("invalid escape sequence")
        self._at = after
        return chr(int(digits, 16))

    # ---- classes

    def _class(self) -> Chars:
        self._at += 1
        negated = self._text.startswith("^", self._at)
        self._at += negated
        chars: frozenset[str] = frozenset()
        first = True
        while first or not self._text.startswith("]", self._at):
            if self._at >= len(self._text):
                raise RegexError("missing closing ]")
            first = False
            chars |= self._class_item()
        self._at += 1
        return Chars(self._alphabet - chars if negated else chars & self._alphabet)

    def _class_item(self) -> frozenset[str]:
        if self._text.startswith("[:", self._at):
            end = self._text.find(":]", self._at + 2)
            if end >= 0:
                name = self._text[self._at + 2 : end]
                inverse = name.startswith("^")
                if name.removeprefix("^") not in _POSIX:
                    raise RegexError("invalid character class range")
                self._at = end + 2
                chars = self._folded(_POSIX[name.removeprefix("^")])
                return self._alphabet - chars if inverse else chars
        if self._text.startswith("\\", self._at):
            found = self._escaped_class()
            if found is not None:
                return found
        low = self._class_char()
        high = low
        if self._text.startswith("-", self._at) and self._text[self._at + 1 : self._at + 2] not in ("", "]"):
            self._at += 1
            high = self._class_char()
            if high < low:
                raise RegexError("invalid character class range")
        chars = frozenset(char for char in self._alphabet.union(_UP_TO_128) if low <= char <= high)
        if self._flags.fold:
            chars |= {ascii_char for char, ascii_char in (("\u017f", "s"), ("\u212a", "k")) if low <= char <= high}
        return self._folded(chars)

    def _class_char(self) -> str:
        if self._at >= len(self._text):
            raise RegexError("missing closing ]")
        if self._text[self._at] == "\\":
            return self._escaped_char()
        self._at += 1
        return self._text[self._at - 1]


_UP_TO_128 = [chr(code) for code in range(128)]


def _unicode_class(name: str, alphabet: frozenset[str]) -> frozenset[str]:
    if name == "Any":
        return alphabet
    if name in _CATEGORIES:
        return frozenset(char for char in alphabet if unicodedata.category(char).startswith(name))
    if name not in _SCRIPTS:
        raise RegexError("invalid character class range")
    if name == _LATIN:
        return _POSIX["alpha"]
    return alphabet - _POSIX["alpha"] if name == _COMMON else frozenset()


def _is_number(text: str) -> bool:
    """As RE2 counts: no sign, no leading zeros."""
    return text.isascii() and text.isdigit() and (text == "0" or not text.startswith("0"))


def _chosen(options: list[Node]) -> Node:
    return options[0] if len(options) == 1 else Choice(tuple(options))
