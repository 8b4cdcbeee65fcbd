"""Makes docs/metrics.md from the table of metrics: `python -m compactd.coordinator.metrics.document > docs/metrics.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from compactd.coordinator.metrics.table import METRICS, PARTITION_METRICS, Metric

_HEAD = """# Metrics

<!-- Made from coordinator/metrics/table.py by: python -m compactd.coordinator.metrics.document > docs/metrics.md -->

`metrics.listener=HOST:PORT` serves them at `/metrics`, in Prometheus' text form or as OpenMetrics, whichever the scraper
asks for. They are as of the last five seconds at most. `metrics.partitions=false` leaves the series of single partitions
out, while running, too.

`/healthz` answers 200 while compactd serves and 503 while it does not: at its stop, while a broker worker is away, and when
the coordinator's loop stands still. Nobody listens before all partitions are loaded. Its body is JSON: `status` is `ok`,
`degraded` (it serves, but a log dir or a partition is offline, a partition is in quarantine, or a worker was given up) or
`failing`; `reasons` says why, in words.
"""

_TAIL = """## Not kept

`kafka.log:type=LogCleanerManager,name=time-since-last-run-ms` has no counterpart: a Kafka cleaner thread looks for work when
it is idle, and this says when it last did. Here the coordinator looks whenever something changes, and
`compactd_cleans_running`, `compactd_cleaning_held` and `compactd_worker_silent_seconds` say whether it gets on. Of
`remainingLogsToRecover` and `remainingSegmentsToRecover` the log tells.
"""


def metrics_markdown() -> str:
    """The text of docs/metrics.md."""
    whole = [metric for metric in METRICS if metric not in PARTITION_METRICS]
    kafka = [metric for metric in whole if metric.kafka]
    own = [metric for metric in whole if not metric.kafka]
    parts = [_HEAD]
    parts += _section(
        "Kafka's",
        "They mean what they mean in Apache Kafka 4.4.0, and are named as its JMX exporter names them in lower case. "
        "*The last cleans* are as many as there are cleaners. What Kafka remembers of the last time that it chose a log, "
        "max-dirty-percent and max-compaction-delay-secs, is here as of now.",
        kafka,
    )
    parts += _section("compactd's own", "All counters start at 0 with the coordinator.", own)
    parts += _section("Of single partitions", "Left out with `metrics.partitions=false`.", PARTITION_METRICS)
    return "\n".join([*parts, _TAIL])


def _section(title: str, lead: str, metrics: Iterable[Metric]) -> list[str]:
    rows = [_row(metric) for metric in metrics]
    return [
        f"## {title}\n",
        f"{lead}\n",
        "| metric | type | labels | Kafka's | meaning |",
        "|---|---|---|---|---|",
        *rows,
        "",
    ]


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    kafka = f"`{metric.kafka}`" if metric.kafka else ""
    return f"| `{metric.name}` | {metric.kind} | {labels} | {kafka} | {metric.meaning} |"


if __name__ == "__main__":
    sys.stdout.write(metrics_markdown())
