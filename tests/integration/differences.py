"""Where compactd answers otherwise than Kafka 4.4.0, and why: the one table. docs/differences.md is written from it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "differences.md"


@dataclass(frozen=True)
class Difference:
    """`pattern` matches the lines of `script` (a name in test_answers.SCRIPTS) in which it is seen."""

    script: str
    pattern: str
    what: str
    why: str

    def explains(self, line: str) -> bool:
        return re.search(self.pattern, line) is not None


#: APIs that Kafka announces and compactd does not.
LEFT_OUT: dict[tuple[int, ...], tuple[str, str]] = {
    (38, 39, 40, 41): ("Create-, Renew-, Expire-, DescribeDelegationToken", "delegation tokens"),
    (64, 80, 81, 94): (
        "UnregisterBroker, AddRaftVoter, RemoveRaftVoter, UnregisterController",
        "there is one node, broker and controller both",
    ),
    (76, 77, 78, 79, 83, 84, 85, 86, 87, 90, 91, 92): (
        "ShareGroupHeartbeat, -Describe, ShareFetch, ShareAcknowledge, the states and offsets of share groups",
        "share groups",
    ),
}
#: Features that go with them.
LEFT_OUT_FEATURES = ("share.version",)

ANSWERS: tuple[Difference, ...] = (
    Difference(
        "cluster",
        r"API 3 v1[23], by neither",
        "Metadata 12 and 13 for a topic that is given neither by name nor by id",
        "Kafka fails (UNKNOWN_SERVER_ERROR); compactd says INVALID_TOPIC_EXCEPTION for that topic and answers the others.",
    ),
    Difference(
        "streams",
        r"API 88 v[01], endpoint without topics",
        "A streams group whose source topics are missing, with members that tell where they may be asked (application.server)",
        "Kafka 4.4.0 fails at their heartbeats (UNKNOWN_SERVER_ERROR); compactd says what is missing, and of the endpoints "
        "that they have no partitions.",
    ),
    Difference(
        "admin",
        r"API 19 v7, validated: topics\[0\]\.topic_id",
        "CreateTopics 7 that only validates",
        "Kafka makes up a topic id that nothing gets; compactd tells none.",
    ),
    Difference(
        "admin",
        r"API 32 v\d, 3 'x': results\[0\]\.error_message",
        "Text of DescribeConfigs about a kind of resource that there is not",
        "compactd names the kind; Kafka tells what INVALID_REQUEST may mean.",
    ),
    Difference(
        "groups",
        r"API 10 v\d, kind 9: (coordinators\[\d\]\.)?error_message",
        "Text of FindCoordinator for a type of coordinator that there is not",
        "compactd names the type; Kafka tells what INVALID_REQUEST may mean.",
    ),
    Difference(
        "records",
        r"API 0 v\d+, (no|two) batch(es)?: .*\.error_message",
        "Text of Produce without a batch, or with several",
        "compactd says what is wrong; Kafka says nothing beside the code.",
    ),
    Difference(
        "cluster",
        r"API 55 v2, quorum of __cluster_metadata-0: nodes\[0\]\.listeners\[0\]\.name",
        "DescribeQuorum 2 names the controller's listener",
        "There is no listener of a controller: compactd names its brokers' own.",
    ),
)  # fmt: skip

#: What the tests allow for without a line in a table of theirs.
GENERAL: tuple[tuple[str, str], ...] = (
    (
        "Texts of errors",
        "Those that the suite meets are Kafka's word for word, but for the rows above. Where it does not look, codes are the "
        "same, and the text is compactd's own in places, there also where Kafka sends none.",
    ),
    (
        "Index files of the active segment",
        "Kafka keeps them preallocated on disk; compactd keeps the entries in memory and writes the files when the "
        "segment is rolled or closed. Either rebuilds them after a crash.",
    ),
    (
        "`log.cleaner.threads` at run time",
        "Kafka takes from half to double of what it has, and never 0; compactd takes any number, and 0 to pause cleaning.",
    ),
    (
        "`listeners` and `listener.security.protocol.map` at run time",
        "compactd refuses them. Kafka 4.4.0 takes them where `advertised.listeners` is set, to little effect: a port of a "
        "listener that is there changes with the next start only, and a new listener tells its clients of no brokers, since "
        "`advertised.listeners` cannot be changed. Certificates and limits of a listener change in both.",
    ),
    (
        "A listener's certificate that is changed to one of another name",
        "Kafka refuses it without `ssl.allow.dn.changes` and `ssl.allow.san.changes`, for the sake of other brokers; compactd "
        "has none, and takes it. What cannot be used is refused by both.",
    ),
    (
        "Requests that Kafka never answers",
        "Produce with null in place of records, AlterConfigs that names a resource twice: Kafka 4.4.0 leaves the client "
        "waiting; compactd refuses them (INVALID_RECORD, INVALID_REQUEST).",
    ),
    (
        "A fetch that waits, and whose offset is deleted meanwhile",
        "compactd answers it at once (OFFSET_OUT_OF_RANGE), Kafka when its time is over.",
    ),
    (
        'As many members that ask for "range" as for "uniform"',
        "Kafka 4.4.0 raises the group's epoch at every heartbeat, for ever; compactd only when a member changes its "
        "assignor.",
    ),
    (
        "A streams member that is refused because another one has its instance id",
        "During a rebalance Kafka 4.4.0 gives it the other one's place in what it remembers of the assignment, so that the "
        "one that is there is told at its next heartbeat to run nothing; in compactd that gets its tasks.",
    ),
    (
        "Regular expressions of consumer groups",
        "compactd refuses what is nested deeper than 200 or needs more than 20,000 steps of an automaton, and one that "
        "takes too long to run matches no topics; Kafka has no such limits.",
    ),
    (
        "JoinGroup with a stale member id in an empty consumer group",
        "Kafka answers UNKNOWN_MEMBER_ID and loses the group in memory until it loads it anew; compactd answers the same "
        "and keeps it.",
    ),
    (
        "DeleteGroups of more groups than one batch has room for",
        "Kafka refuses all of a partition of `__consumer_offsets` (UNKNOWN_SERVER_ERROR); compactd then writes one batch "
        "for each group. What fits is one batch for each partition, in both.",
    ),
    (
        "A partition that moved to another log dir",
        "Kafka appends its records anew; compactd keeps segments, times of files and producers as they were.",
    ),
    (
        "A move to a log dir without room",
        "compactd waits for room, and where the disk fills up meanwhile (ENOSPC) ends the move and keeps the log dir; "
        "Kafka takes the log dir offline.",
    ),
    (
        "A permission that is taken back while a fetch waits",
        "compactd looks again before it answers, and gives nothing; Kafka decided when the fetch came, answers it with "
        "records, and refuses the next one.",
    ),
    (
        "EndTxn",
        "compactd's answer waits for the markers, for 100 ms at most, so that the next transaction mostly finds its way "
        "clear (no CONCURRENT_TRANSACTIONS); Kafka answers before it writes them.",
    ),
    (
        "A marker that a partition refuses as fenced (INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED)",
        "It will never be written. Kafka leaves the transaction in PrepareCommit or PrepareAbort, and its id without use, "
        "also after a restart; compactd logs a warning and completes the transaction: what a newer producer has in that "
        "partition is not touched by either.",
    ),
    (
        "A transaction that is open in a partition when it is loaded, and that its coordinator does not know",
        "Power cuts make such. Kafka leaves it open until somebody ends it by hand (KIP-664); compactd ends it as it was "
        "decided, or aborts it (docs/durability.md).",
    ),
    (
        "InitProducerId after a stop that was not orderly",
        "compactd gives a transactional id a fresh producer id, since records of larger epochs may be lost; Kafka raises "
        "the epoch that is left.",
    ),
    (
        "A damaged record in `__transaction_state`",
        "compactd does not serve that partition, and tries to load it again; Kafka goes on with what it could read, and "
        "forgets the transactions behind it.",
    ),
    (
        "A segment whose offsets span more than 2^31 - 1",
        "Split in two, as in Kafka, which loses its transaction index: aborted records are then committed ones to readers "
        "and to the cleaner. compactd's parts keep it.",
    ),
    (
        "A produced batch with more than 100,000 faulty records",
        "compactd names the first 100,000 in its refusal; Kafka all.",
    ),
    (
        "Order of rows",
        "Kafka answers in the order of its hash maps, compactd in that of the request or of names; no client relies on it.",
    ),
)


def document() -> str:
    """Markdown."""
    lines = [
        "# Where compactd differs from Kafka 4.4.0",
        "",
        "Found by asking both the same in every version of every API, by running Kafka's tools on both, and with seven client",
        "libraries (`tests/integration`). What is not listed here is answered alike, field by field. This file is written from",
        "the table that the tests use: `python -m tests.integration.differences`.",
        "",
        "## Not announced",
        "",
        "A client that needs one of these says that the broker is too old for it; to ask all the same closes the connection.",
        "",
        "| numbers | APIs | what for |",
        "|---|---|---|",
        *(f"| {', '.join(map(str, apis))} | {which} | {why} |" for apis, (which, why) in LEFT_OUT.items()),
        "",
        f"The feature {' and '.join(f'`{name}`' for name in LEFT_OUT_FEATURES)} is left out with them.",
        "",
        "## Answered otherwise",
        "",
        "| what | why |",
        "|---|---|",
        *(f"| {each.what} | {each.why} |" for each in ANSWERS),
        *(f"| {what} | {why} |" for what, why in GENERAL),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(document())
