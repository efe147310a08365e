"""The status page as text: what stands in it, and what never does."""

import re

import pytest

from proxy.backends import Backends
from proxy.policy.dispatch import Dispatcher
from proxy.settings import Settings
from proxy.status import Status
from proxy.statuspage import ASSETS, CONTENT_SECURITY_POLICY, asset, page
from proxy.statuspage.words import LANGUAGES

SETTINGS = Settings.model_validate(
    {
        "backends": [{"url": "http://127.0.0.1:8000", "name": "npu-0"}],
        "lanes": {"short": {"queue": {"requests": 99}}, "long": {"queue": {"requests": 98}}},
        "why": {"lanes.short.queue.requests": "<i>clients give up</i>"},
    }
)
MINUTE = {"lane": "short", "finished": 7, "refused": 3, "failed": 0, "wait_p95_s": 0.25, "ttft_p95_s": 1.5}


@pytest.fixture
def document():
    """A status document of a real Dispatcher."""
    dispatcher = Dispatcher(SETTINGS.to_scheduling(), SETTINGS.to_backend_limits())
    backends = Backends(SETTINGS, lambda _name, _up: None)
    parts = {"snapshot": lambda: dispatcher.snapshot(10.0), "backends": backends, "last_minute": lambda: [MINUTE]}
    return Status(SETTINGS, **parts).document()


@pytest.mark.parametrize("language", LANGUAGES)
def test_scripts_and_styles_are_files_beside_it_and_nothing_comes_from_elsewhere(document, language):
    html = page(document, language)
    assert "//" not in html.replace("http://www.w3.org", "")
    assert re.findall(r"<(?:script|style)(?![^>]*\bsrc=)[^>]*>", html) == []
    assert re.findall(r"\son\w+=|\sstyle=|javascript:", html) == []
    named = set(re.findall(r'(?:src|href)="assets/([^"]+)"', html))
    assert named == set(ASSETS)
    assert all(asset(name) for name in named)


def test_the_policy_allows_nothing_inline_and_no_other_host():
    assert "default-src 'none'" in CONTENT_SECURITY_POLICY
    assert [word for word in ("unsafe", "http", "*", "data:") if word in CONTENT_SECURITY_POLICY] == []


def test_the_chart_library_is_there_with_its_licence():
    assert b"uPlot" in asset("uPlot.iife.min.js")[:200]
    from importlib.resources import files

    assert "MIT License" in files("proxy.statuspage").joinpath("assets/uPlot.LICENSE").read_text()


def test_a_file_that_is_not_part_of_the_page_is_not_given_out():
    for name in ("uPlot.LICENSE", "../words.py", ""):
        with pytest.raises(KeyError):
            asset(name)


def test_each_language_links_to_the_other(document):
    assert '<html lang="zh"' in page(document, "zh")
    assert 'href="?lang=en"' in page(document, "zh")
    assert 'href="?lang=zh"' in page(document, "en")
    assert "<h2>车道</h2>" in page(document, "zh")
    assert "<h2>Lanes</h2>" in page(document, "en")


def test_the_last_minute_stands_beside_the_lanes(document):
    row = re.search(r"<tr><td>short</td>.*?</tr>", page(document)).group()
    for cell in ('<td class="n">7</td>', '<span class="full">3</span>', "250 ms", "1.5 s"):
        assert cell in row


def test_what_was_configured_stands_there_with_its_reason_or_without_one(document):
    html = page(document)
    assert "<code>lanes.short.queue.requests</code></td><td><code>99</code></td><td>&lt;i&gt;clients give up" in html
    assert '<code>98</code></td><td><span class="quiet">no reason given</span>' in html


def test_without_a_script_it_loads_itself_again(document):
    assert '<noscript><meta http-equiv="refresh" content="6"></noscript>' in page(document, refresh_s=3.0)
