"""What Kafka's tools print when they are run on a broker, made comparable with what they print on another."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field

from tests.integration.servers import METADATA, Server, until
from tests.integration.tools import Run, Tools

DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS = 32, 44
#: A topic whose settings change when nothing else does.
_MARKER = "settled"
_EXCEPTION = re.compile(r"\b[a-z]+(?:\.[a-z]+)+\.([A-Z]\w+(?:Exception|Error))\b")
_ID = re.compile(r"(?:(?<=TopicId: )|(?<=Cluster ID: )|(?<=ClusterId: )|(?<=--topic-id ))[A-Za-z0-9_-]{22}")
_CONSOLE = re.compile(r"\bconsole-consumer-\d+\b *")
_MEMBER = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\b1[789]\d{11}\b")


@dataclass
class Step:
    """One run of a tool."""

    command: str
    code: int
    lines: list[str]
    errors: list[str]

    def text(self) -> list[str]:
        return [f"$ {self.command} -> {self.code} {' '.join(self.errors)}", *self.lines]


@dataclass
class Transcript:
    """Runs tools on one broker and writes down what they say: ids by the order in which they came, times and addresses left out."""

    server: Server
    tools: Tools
    steps: list[Step] = field(default_factory=list)
    _ids: dict[str, str] = field(default_factory=dict)

    def run(self, name: str, *arguments: str, given: str = "", ordered: bool = True, ignored: str | None = None) -> str:
        """A tool that has to succeed; what it printed. `ignored`: a pattern of lines that are each broker's own."""
        done = self.tools.ran(self.server, name, *arguments, given=given)
        # Kafka's answer is what the test is about; the other's is compared with it, whatever it is.
        assert done.code == 0 or not self.server.is_kafka, f"{name} {arguments}: {done.err} {done.out}"
        self.note(name, arguments, done, ordered, ignored)
        return done.out

    def fails(self, name: str, *arguments: str, given: str = "") -> Run:
        """A tool that has to fail; of what it says, the exceptions are written down."""
        done = self.tools.ran(self.server, name, *arguments, given=given)
        assert done.code != 0 or not self.server.is_kafka, f"{name} {arguments}: {done.out}"
        errors = list(dict.fromkeys(_EXCEPTION.findall(done.err + done.out)))
        self.steps.append(Step(self.plain(f"{name} {' '.join(arguments)}"), done.code, [], errors))
        return done

    def note(self, name: str, arguments: tuple[str, ...], done: Run, ordered: bool, ignored: str | None = None) -> None:
        """Writes down a run."""
        # A trace of the stack names what the JVM has compiled meanwhile.
        kept = [line for line in done.lines if not line.startswith("\tat ")]
        lines = [self.plain(line) for line in kept if ignored is None or not re.search(ignored, line)]
        errors = list(dict.fromkeys(_EXCEPTION.findall(done.err)))
        command = self.plain(f"{name} {' '.join(arguments)}")
        self.steps.append(Step(command, done.code, lines if ordered else sorted(lines), errors))

    def plain(self, text: str) -> str:
        """Without what is each broker's own."""
        text = text.replace(self.server.bootstrap, "<broker>").replace(f" {self.server.port} ", " <port>")
        for number, log_dir in enumerate(self.server.log_dirs):
            text = text.replace(str(log_dir), f"<dir {number}>").replace(str(log_dir.parent), "<home>")
        for pattern in (_ID, _MEMBER):
            text = pattern.sub(lambda found: self._ids.setdefault(found[0], f"#{len(self._ids)}"), text)
        return _TIME.sub("<time>", _CONSOLE.sub("console-consumer-<n> ", text)).rstrip()

    def settle(self) -> None:
        """Until the broker has heard of all changes so far: they reach it in order, so one more is made and waited for."""
        value = str(1_000_000_000 + len(self.steps))
        with self.server.connect() as raw:
            if raw.ask(METADATA, 9, {"topics": [{"name": _MARKER}]}).topics[0].error_code != 0:
                self.server.create(_MARKER)
            setting = {"name": "retention.ms", "config_operation": 0, "value": value}
            marker = {"resource_type": 2, "resource_name": _MARKER, "configs": [setting]}
            altered = raw.ask(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [marker], "validate_only": False})
            assert altered.responses[0].error_code == 0, altered
            asked = {"resource_type": 2, "resource_name": _MARKER, "configuration_keys": ["retention.ms"]}
            until(
                lambda: raw.ask(DESCRIBE_CONFIGS, 4, {"resources": [asked]}).results[0].configs[0].value == value,
                "the last change",
            )

    def lines(self) -> list[str]:
        return [line for step in self.steps for line in step.text()]


def assert_same(kafka: Transcript, ours: Transcript) -> None:
    """Fails with the lines that differ, Kafka's marked with -, ours with +."""
    expected, found = kafka.lines(), ours.lines()
    if expected != found:
        shown = "\n".join(difflib.unified_diff(expected, found, "kafka", "compactd", lineterm="", n=1))
        raise AssertionError(f"the tools say other things:\n{shown}")
