"""Which topics a regular expression of RE2 stands for, in time that grows with the names only, whatever the expression.

The expression becomes a nondeterministic automaton, and that a deterministic one, as far as names lead through it. What an
expression may cost is limited: any client may send one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from compactd.workers.broker.groups.consumer.regex_syntax import (
    ALPHABET,
    Assertion,
    Chars,
    Choice,
    Node,
    RegexError,
    Repeat,
    Series,
    parse,
)

#: Steps of an automaton: room for a choice of a thousand names. A thousand repetitions of a thousand are a mistake.
MOST_STEPS = 20_000
#: Steps that are gone through for the names of one question before it is given up: some seconds of one thread.
MOST_WORK = 5_000_000
#: What is repeated more often than a name has characters is repeated often enough.
_MOST_TURNS = 250
#: Steps in all the states that are remembered; then it begins anew.
_MOST_REMEMBERED = 200_000

_States = frozenset[int]


@dataclass(slots=True)
class _Step:
    """What leads on from a state: a character, or nothing where the place is right."""

    chars: frozenset[str] | None = None
    place: Literal["begin", "end", "word", "not word"] | None = None
    next: list[int] = field(default_factory=list)


class TopicPattern:
    """A compiled expression; RegexError where it is none, or too large a one."""

    def __init__(self, pattern: str, alphabet: frozenset[str] = ALPHABET) -> None:
        """`alphabet`: the characters of the names."""
        self.pattern = pattern
        self._work_left = MOST_WORK
        self._steps: list[_Step] = []
        self._end = self._new()
        self._start = self._compiled(parse(pattern, alphabet), self._end)
        self._seen: dict[tuple[_States, bool | None, str | None], _States | bool] = {}
        self._remembered = 0

    def matches(self, name: str) -> bool:
        """Whether it stands for the whole name."""
        states: _States = frozenset((self._start,))
        before: bool | None = None
        for char in name:
            key = (states, before, char)
            following = self._seen.get(key)
            if following is None:
                following = self._remember(key, self._after(states, before, char))
            if not following:
                return False
            assert isinstance(following, frozenset)
            states, before = following, _is_word(char)
        end = (states, before, None)
        found = self._seen.get(end)
        if found is None:
            found = self._remember(end, self._end in self._reached(states, before, None))
        return bool(found)

    def topics(self, names: Iterable[str]) -> frozenset[str]:
        """Those of the names that it stands for. RegexError where that takes too long."""
        self._work_left = MOST_WORK
        return frozenset(name for name in names if self.matches(name))

    def _remember(self, key: tuple[_States, bool | None, str | None], value: _States | bool) -> _States | bool:
        self._remembered += len(key[0]) + 1
        if self._remembered > _MOST_REMEMBERED:
            self._seen.clear()
            self._remembered = len(key[0]) + 1
        self._seen[key] = value
        return value

    # ---- running

    def _after(self, states: _States, before: bool | None, char: str) -> _States:
        reached = self._reached(states, before, char)
        return frozenset(
            following
            for state in reached
            if (chars := self._steps[state].chars) is not None and char in chars
            for following in self._steps[state].next
        )

    def _reached(self, states: _States, before: bool | None, char: str | None) -> set[int]:
        """With all that can be reached without a character."""
        reached = set(states)
        todo = list(states)
        while todo:
            step = self._steps[todo.pop()]
            if step.chars is not None or (step.place is not None and not _is_at(step.place, before, char)):
                continue
            for following in step.next:
                if following not in reached:
                    reached.add(following)
                    todo.append(following)
        self._work_left -= len(reached)
        if self._work_left < 0:
            raise RegexError("expression takes too long")
        return reached

    # ---- compiling

    def _new(self, chars: frozenset[str] | None = None, to: Iterable[int] = ()) -> int:
        if len(self._steps) >= MOST_STEPS:
            raise RegexError("expression too large")
        self._steps.append(_Step(chars, None, list(to)))
        return len(self._steps) - 1

    def _compiled(self, node: Node, end: int) -> int:
        """The state from which the node leads to `end`."""
        if isinstance(node, Chars):
            return self._new(node.chars, (end,))
        if isinstance(node, Assertion):
            state = self._new(None, (end,))
            self._steps[state].place = node.kind
            return state
        if isinstance(node, Series):
            for part in reversed(node.parts):
                end = self._compiled(part, end)
            return end
        if isinstance(node, Choice):
            return self._new(None, [self._compiled(option, end) for option in node.options])
        return self._repeated(node, end)

    def _repeated(self, node: Repeat, end: int) -> int:
        least = min(node.least, _MOST_TURNS)
        if node.most is None:
            loop = self._new()
            self._steps[loop].next = [self._compiled(node.node, loop), end]
            end = loop
        else:
            last = end
            for _ in range(min(node.most, _MOST_TURNS) - least):
                end = self._new(None, (self._compiled(node.node, end), last))
        for _ in range(least):
            end = self._compiled(node.node, end)
        return end


def _is_word(char: str | None) -> bool:
    return char is not None and (char.isalnum() or char == "_")


def _is_at(place: str, before: bool | None, char: str | None) -> bool:
    """`before`: whether the character in front is one of words, None: there is none."""
    if place == "begin":
        return before is None
    if place == "end":
        return char is None
    return (bool(before) != _is_word(char)) == (place == "word")


@lru_cache(maxsize=64)
def compiled(pattern: str) -> TopicPattern | RegexError:
    """The pattern, or why there is none; members of a group say the same one again and again."""
    try:
        return TopicPattern(pattern)
    except RegexError as error:
        return error
