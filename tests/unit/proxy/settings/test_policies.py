"""Length policies and repeats as an operator writes them."""

import re

import pytest
import yaml
from pydantic import ValidationError

from proxy.policy.classify import CapAction, LengthPolicy, OutputPolicy
from proxy.settings import Settings
from proxy.settings.policies import LengthRule, Repeats


def test_what_is_written_is_what_classify_reads():
    rule = LengthRule.model_validate(
        {
            "models": "a, b",
            "tenants": ["acme"],
            "lanes": "long",
            "prompt_tokens": "8k",
            "output": {"ceiling": 512, "total": "1k", "action": "reject"},
        }
    )
    assert rule.to_policy() == LengthPolicy(
        models=frozenset({"a", "b"}),
        tenants=frozenset({"acme"}),
        lanes=frozenset({"long"}),
        prompt_tokens=8000,
        output=OutputPolicy(ceiling=512, total=1000, action=CapAction.REJECT),
    )


@pytest.mark.parametrize("lanes", ["middle", ["short", "huge"], 3])
def test_a_lane_that_does_not_exist_is_refused(lanes):
    with pytest.raises(ValidationError, match='write a list of lanes: "short", "long" or both'):
        LengthRule.model_validate({"lanes": lanes})


def test_the_bare_word_off_is_no_false():
    assert Repeats.model_validate({"duplicates": False}).duplicates == "off"


@pytest.mark.parametrize("page", ["tenants", "length-policy", "repeats"])
def test_what_the_page_shows_is_taken(page, root):
    blocks = re.findall(r"```yaml\n(.*?)```", (root / f"docs/{page}.md").read_text(encoding="utf-8"), re.DOTALL)
    document = {"backends": ["http://127.0.0.1:1"]}
    for block in blocks:
        document |= yaml.safe_load(block)
    assert len(document) > 1
    assert Settings.model_validate(document).hash
