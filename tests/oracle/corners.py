"""Scenarios that a comparison with Kafka has to have met, whatever hypothesis draws."""

from __future__ import annotations

from tests.oracle.scenario import Append, Clean, End, Payload, Rec, Roll, Round, Scenario


def _put(key: bytes, producer: int | None = None) -> Append:
    return Append((Rec(key, Payload(3)),), producer=producer, transactional=producer is not None)


CORNERS: dict[str, Scenario] = {
    # The second round starts behind the abort, and reads its marker again: the producer's later commits count.
    "abort before the first dirty offset": Scenario(
        (
            Round(
                (
                    _put(b"a", 0),
                    End(0, False),
                    _put(b"b", 0),
                    End(0, True),
                    _put(b"c"),
                    _put(b"d"),
                    _put(b"b", 0),
                    End(0, True),
                    Roll(),
                ),
                Clean(slots=3),
            ),
            Round(()),
        ),
    ),
}

#: Of a machine that went down with nothing but the .log files on disk.
LOST_INDEX_CORNERS: dict[str, Scenario] = {
    # The index entry of the abort, in the active segment, is gone: were a@1 taken for committed, a@0 would be lost with it.
    "abort known from its marker alone": Scenario((Round((_put(b"a"), Roll(), _put(b"a", 0), Roll(), End(0, False))),)),
}
