"""Settings of the authorizer."""

from __future__ import annotations

import pytest

from compactd.config.authorization import STANDARD_AUTHORIZER, parse_super_users
from compactd.config.errors import SettingError
from compactd.config.settings import DaemonConfig


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", set()),
        (" ; ", set()),
        ("User:admin", {"User:admin"}),
        (" User:admin ;User:CN=a,O=b; ", {"User:admin", "User:CN=a,O=b"}),
        ("Group:x:y", {"Group:x:y"}),
    ],
)
def test_super_users_are_separated_by_semicolons(text: str, expected: set[str]) -> None:
    assert parse_super_users(text) == expected


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("super.users", "User:a;bob", "'bob' is not of the form TYPE:NAME"),
        ("super.users", "admin", "User:admin"),
        ("authorizer.class.name", "kafka.security.authorizer.AclAuthorizer", "ZooKeeper"),
        ("authorizer.class.name", "com.example.Mine", STANDARD_AUTHORIZER),
        ("allow.everyone.if.no.acl.found", "yes", "true or false"),
    ],
)
def test_refusals_say_what_to_write(name: str, value: str, part: str) -> None:
    with pytest.raises(SettingError, match=name) as caught:
        DaemonConfig.from_strings({name: value})
    assert part in str(caught.value)


def test_no_authorizer_unless_one_is_named() -> None:
    config = DaemonConfig.from_strings({})
    assert (config.authorizer_class_name, config.super_users, config.allow_everyone_if_no_acl_found) == ("", "", False)
    assert DaemonConfig.from_strings({"authorizer.class.name": STANDARD_AUTHORIZER}).authorizer_class_name
