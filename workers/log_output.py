"""The daemon's own log: every process writes whole lines to stderr, text for a terminal, JSON for everything else.

Take a logger with `logging.getLogger(__name__)`, write a sentence, and give what a program would look for as
`extra={"fields": {...}}`: it becomes `name=value` behind the sentence, or members of the JSON object.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from datetime import UTC, datetime

import msgspec

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_encode = msgspec.json.Encoder(enc_hook=str).encode

TEXT = "text"
JSON = "json"

#: Characters that a terminal acts on.
_ESCAPED = {number: f"\\x{number:02x}" for number in (*range(0x20), *range(0x7F, 0xA0))} | {
    ord("\t"): "\t",
    # What follows can't be taken for a line of its own.
    ord("\n"): "\n    ",
}


def configure(process: str, form: str, level: str) -> None:
    """Sends all logging of this process to stderr. `form`: "auto", "text" or "json"; `level` as in setting log.level."""
    if form == "auto":
        form = TEXT if sys.stderr.isatty() else JSON
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    lines = _Lines()
    lines.setFormatter(_JsonLine(process) if form == JSON else _TextLine(process))
    root.addHandler(lines)
    set_level(level)
    logging.captureWarnings(True)


def set_level(level: str) -> None:
    """`level` as in setting log.level."""
    logging.getLogger().setLevel(_LEVELS[level])


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}


class _Lines(logging.Handler):
    """One write for each line, so that the lines of several processes don't mix."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record).encode("utf-8", "backslashreplace") + b"\n"
        except Exception:
            self.handleError(record)
            return
        # Nobody reads our stderr any more: that must not stop a log from being kept.
        with contextlib.suppress(OSError):
            os.write(2, line)


class _TextLine(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        text = f"{time} {record.levelname:<7} {self._process}: {record.getMessage()}"
        text += "".join(f" {name}={value}" for name, value in _fields(record).items())
        # Names that clients chose may be in it.
        text = text.translate(_ESCAPED)
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


class _JsonLine(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "process": self._process,
            "pid": os.getpid(),
            "message": record.getMessage(),
        }
        line.update({name: value for name, value in _fields(record).items() if name not in line})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return _encode(line).decode()
