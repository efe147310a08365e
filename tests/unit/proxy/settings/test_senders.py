"""Names that nobody has, and doors that nobody may open."""

import pytest
from pydantic import ValidationError

from proxy.settings import Settings

DIGEST = "ab" * 32


def problems(**sections):
    """(key, text) of what is wrong with these sections."""
    try:
        Settings.model_validate({"backends": ["http://127.0.0.1:1"], **sections})
    except ValidationError as error:
        found = error.errors()[0]["ctx"]["problems"]
        return [(one.key, one.text) for one in found]
    return []


NAMED = {"by": "key", "named": [{"name": "acme", "keys": [DIGEST]}]}


@pytest.mark.parametrize(
    ("sections", "key", "text"),
    [
        ({"tenants": {"named": [{"name": "a"}, {"name": "a"}]}}, "tenants.named", '2 tenants have the name "a"'),
        ({"tenants": {"named": [{"name": "other"}]}}, "tenants.named", '"other" is a name that lanewise gives itself'),
        ({"tenants": {"named": [{"name": "t-0123abcd"}]}}, "tenants.named", "lanewise gives itself"),
        (
            {"tenants": {"named": [{"name": "a", "keys": [DIGEST]}, {"name": "b", "keys": [DIGEST]}]}},
            "tenants.named",
            "the key abababab... is listed 2 times",
        ),
        ({"request_id_header": "Content-Length"}, "request_id_header", "content-length means something else"),
        ({"request_id_header": "x-api-key"}, "request_id_header", "choose another"),
        ({"tenants": {"salt": ""}}, "tenants.salt", "it is empty"),
        ({"recorder": {"salt": ""}}, "recorder.salt", "it is empty"),
        ({"tenants": {"by": "header"}}, "tenants.by", "counts only from trusted_networks, and there are none"),
        ({"priority": {"allowed": "trusted"}}, "priority.allowed", "nobody may ask"),
        ({"priority": {"high_at_most": 1}}, "priority.low_from", "1 is not above high_at_most (1)"),
        ({"priority": {"tenants": ["acme"]}}, "priority.tenants", '"acme" is no tenant of tenants.named'),
        (
            {"length_policies": [{"tenants": ["acme"], "prompt_tokens": 5}]},
            "length_policies[0].tenants",
            '"acme" is no tenant of tenants.named',
        ),
        (
            {"tenants": {**NAMED, "by": "off"}, "length_policies": [{"tenants": ["acme"], "prompt_tokens": 5}]},
            "length_policies[0].tenants",
            "nobody is told apart while tenants.by is off",
        ),
        ({"length_policies": [{"models": ["m"]}]}, "length_policies[0]", "it limits nothing"),
        (
            {"length_policies": [{"output": {"default": 9, "ceiling": 8}}]},
            "length_policies[0].output.default",
            "9 is above ceiling (8)",
        ),
    ],
)
def test_what_cannot_work_is_said_with_its_key(sections, key, text):
    found = problems(**sections)
    assert [where for where, _ in found] == [key]
    assert text in found[0][1]


def test_what_can_work_passes():
    assert problems(tenants=NAMED, priority={"allowed": "trusted", "tenants": ["acme"]}) == []
    assert problems(tenants={"by": "header"}, trusted_networks=["10.0.0.0/8"]) == []
    assert problems(tenants=NAMED, length_policies=[{"tenants": ["other"], "prompt_tokens": 5}]) == []
