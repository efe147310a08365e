"""Every bad configuration is answered with exactly the sentences of one table; every good one is taken."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.settings import ConfigurationError, Settings, load
from proxy.settings.tree import keys

GOLDEN = Path(__file__).resolve().parents[4] / "tests/golden/config"
MESSAGES = yaml.safe_load((GOLDEN / "messages.yaml").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def in_the_golden_folder(monkeypatch):
    """File names in messages are then short."""
    monkeypatch.chdir(GOLDEN)


def test_the_table_names_every_bad_file():
    assert sorted(MESSAGES) == sorted(path.name.removesuffix(".bad.yaml") for path in GOLDEN.glob("*.bad.yaml"))


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_a_bad_configuration_is_answered_with_its_sentences(name):
    with pytest.raises(ConfigurationError) as caught:
        load(Path(f"{name}.bad.yaml"))
    assert list(caught.value.sentences) == MESSAGES[name]


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.glob("*.good.yaml")))
def test_a_good_configuration_is_taken(name):
    assert load(Path(name)).settings.backends


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["1s", "2k"])
NAMES = st.sampled_from(sorted({key.path.rpartition(".")[2] for key in keys(Settings)})) | st.text(max_size=8)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(NAMES, VALUES, max_size=6))
def test_whatever_a_file_says_it_is_taken_or_answered_with_sentences(document):
    text = yaml.safe_dump(document, allow_unicode=True)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "any.yaml"
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        sentences = problems_of(path)
    assert all(sentence.isprintable() for sentence in sentences)


def problems_of(path):
    try:
        load(path)
    except ConfigurationError as error:
        return error.sentences
    return ("none",)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60))
def test_whatever_bytes_a_file_holds_it_is_answered(data):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "any.yaml"
        path.write_bytes(data)
        with pytest.raises(ConfigurationError):
            load(path)


@pytest.mark.parametrize(
    "tenants",
    [
        {"named": [{"name": "a", "keys": ["sk-secret"]}]},
        {"named": [{"name": "a", "keys": "sk-secret"}]},
        {"named": [{"name": "a", "keys": {"sk": "sk-secret"}}]},
        {"named": [{"name": "a", "keys": [["sk-secret"]]}]},
        {"named": ["sk-secret"]},
        {"named": "[{sk-secret"},
        {"named": {"a": {"keys": ["sk-secret"]}}},
        [{"name": "a", "keys": ["sk-secret"]}],
        {"salt": ["sk-secret"]},
    ],
)
def test_an_api_key_that_was_written_in_the_wrong_place_is_not_repeated(tmp_path, tenants):
    path = tmp_path / "any.yaml"
    path.write_text(yaml.safe_dump({"backends": ["http://a:1"], "tenants": tenants}))
    sentences = problems_of(path)
    assert sentences
    assert all("tenants" in one and "(hidden)" in one for one in sentences)
    assert "sk-secret" not in "".join(sentences)
