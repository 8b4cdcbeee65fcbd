from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

_SCRIPT = """
import logging, sys
from compactd.workers import log_output
log_output.configure("cleaner-0", sys.argv[1], "info")
log = logging.getLogger("x")
log.debug("not shown")
log.info("two\\nlines", extra={"fields": {"partition": "users-0", "level": "taken", "odd": {1, 2} and "ok\\x1b[2J"}})
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed")
log_output.set_level("error")
log.warning("not shown")
"""


def said(form: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", _SCRIPT, form], capture_output=True, text=True, check=True, env=os.environ
    )
    return ran.stderr


@pytest.mark.parametrize("form", ["json", "auto"])
def test_json_lines_where_no_terminal_reads_them(form: str) -> None:
    first, second = (json.loads(line) for line in said(form).splitlines())
    assert (first["level"], first["process"], first["message"]) == ("info", "cleaner-0", "two\nlines")
    assert (first["partition"], first["odd"]) == ("users-0", "ok\x1b[2J")
    assert first["time"].endswith("Z")
    assert "ZeroDivisionError" in second["traceback"]


def test_text_for_a_person() -> None:
    text = said("text")
    assert "INFO    cleaner-0: two\n    lines partition=users-0" in text
    assert r" odd=ok\x1b[2J" in text
    assert "ERROR   cleaner-0: failed\nTraceback" in text
    assert "not shown" not in text
