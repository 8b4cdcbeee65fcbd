from __future__ import annotations

from pathlib import Path

from compactd.config.document import settings_markdown
from compactd.config.table import SETTINGS

_FILE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_settings_page_is_current() -> None:
    assert _FILE.read_text("utf-8") == settings_markdown(), "run: python -m compactd.config.document > docs/settings.md"


def test_the_settings_page_names_every_setting() -> None:
    text = settings_markdown()
    for setting in SETTINGS:
        for name in (setting.topic, *(entry.name for entry in setting.broker)):
            assert name is None or f"`{name}`" in text
