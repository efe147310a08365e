"""What `config show` prints can be loaded again and gives the same settings."""

import json

import pytest
import yaml

from proxy.settings import Flag, load, show
from proxy.settings.model import Settings
from proxy.settings.tree import leaves


@pytest.fixture
def written(tmp_path):
    """A loaded file that differs from the defaults in several ways."""
    path = tmp_path / "lanewise.yaml"
    path.write_text(
        "backends:\n- http://a:8000\n- {url: 'http://b:8000', name: b, weight: 2}\n"
        "lanes: {short: {ttft_slo: 750ms}}\n"
        "scheduling: {preset: gentle, drop_factor: 3}\n"
        "recorder: {salt: grain}\n"
        "why: {lanes.short.ttft_slo: 'voice: needs it'}\n"
    )
    return load(path)


def again(text, tmp_path):
    path = tmp_path / "again.yaml"
    path.write_text(text)
    return load(path).settings


def test_the_minimal_form_holds_only_what_differs(written):
    shown = yaml.safe_load(show.minimal(written))
    assert shown == {
        "backends": ["http://a:8000", {"url": "http://b:8000", "name": "b", "weight": 2.0}],
        "lanes": {"short": {"ttft_slo": "750ms"}},
        "scheduling": {"preset": "gentle", "drop_factor": 3.0},
        "recorder": None,
        "why": {"lanes.short.ttft_slo": "voice: needs it"},
    }


def test_the_minimal_form_gives_each_why_beside_its_key(written):
    assert "ttft_slo: 750ms  # why: voice: needs it" in show.minimal(written)


@pytest.mark.parametrize("form", [show.minimal, show.resolved])
def test_a_printed_configuration_loads_to_the_same_settings(written, tmp_path, form):
    assert again(form(written), tmp_path).hash == written.settings.hash


def test_secrets_are_said_to_be_set_and_not_shown(written):
    for text in (show.minimal(written), show.resolved(written), json.dumps(show.as_document(written, resolved=True))):
        assert "grain" not in text
    assert "# salt is set, and hidden" in show.minimal(written)


def test_the_resolved_form_names_the_source_of_every_value(written):
    text = show.resolved(written)
    assert "lane_order: deadline  # preset gentle" in text
    assert "queue_order: shortest_first  # default" in text
    assert f"drop_factor: 3.0  # {written.file}:5" in text


def test_the_json_form_holds_every_leaf_with_its_source(written):
    document = show.as_document(written, resolved=True)
    assert set(document["settings"]) == set(leaves(Settings)) - {"why"}
    assert document["settings"]["lanes.short.ttft_slo"] == {
        "value": "750ms",
        "source": f"{written.file}:4",
        "why": "voice: needs it",
    }


def test_keys_without_a_why_are_found(written):
    assert show.missing_whys(written) == ("scheduling.preset", "scheduling.drop_factor", "backends[b].weight")


def test_the_full_file_is_the_defaults(tmp_path):
    full = again(show.full_file(), tmp_path)
    plain = load(flags=[Flag("--backend", ("backends",), [show.EXAMPLE_BACKEND])]).settings
    assert full.hash == plain.hash


def test_every_key_has_a_description():
    assert [key.path for key, _, _ in show.reference() if not key.field.description and key.is_leaf] == []


def test_the_schema_knows_every_section_and_takes_backends_as_text():
    document = show.schema()
    assert set(document["properties"]) == set(Settings.model_fields)
    assert document["properties"]["backends"]["items"]["anyOf"][0] == {"type": "string", "format": "uri"}
    assert json.loads(json.dumps(document)) == document


def test_each_key_of_a_backend_asks_for_a_why_of_its_own(tmp_path):
    path = tmp_path / "backends.yaml"
    path.write_text(
        "backends:\n- {url: 'http://a:1', name: a, concurrency: 4, weight: 2}\n- {url: 'http://b:1', kv_tokens: 9}\n"
        "why: {'backends[].weight': by throughput, 'backends[b:1].kv_tokens': log of the engine}\n"
    )
    loaded = load(path)
    assert show.missing_whys(loaded) == ("backends[a].concurrency",)
    assert "backends:  # why: weight: by throughput; kv_tokens: log of the engine" in show.minimal(loaded)


@pytest.mark.parametrize("key", [path for path in leaves(Settings) if path not in {"why", "backends"}])
def test_every_key_that_differs_asks_for_a_why_or_explains_itself(key):
    secrets = {"recorder.salt", "probes.api_key", "tenants.salt", "sharing.password"}
    files = {f"auth.{name}" for name in ("keys_file", "keys_env", "admin_key_file", "admin_key_env")}
    files |= {"tls.certificate", "tls.key", "tls.client_ca"}
    explains_itself = {"listen", "admin", "state_dir", "recorder.directory", *secrets, *files}
    flags = [Flag("--backend", ("backends",), ["http://a:1"]), Flag("--set", tuple(key.split(".")), _other(key))]
    # What contradicts the odd value is moved out of its way.
    around = {
        "limits.body": [("lanes.short.queue.bytes", "1TiB"), ("lanes.long.queue.bytes", "1TiB")],
        "lanes.short.max_prompt_tokens": [("lanes.short.queue.tokens", "5m")],
        "tls.key": [("tls.certificate", "here")],
        "sharing.store": [("share", "1/2")],
        "tls.client_ca": [("tls.certificate", "here")],
        "priority.tenants": [("tenants.by", "key"), ("tenants.named", '[{"name": "acme"}]')],
    }
    flags += [Flag("--set", tuple(path.split(".")), value) for path, value in around.get(key, [])]
    if key.startswith("measured."):
        flags.append(Flag("--set", ("measured", "date"), "2026-11-30"))
        explains_itself.add(key)
    assert (key in show.missing_whys(load(flags=flags))) is (key not in explains_itself)


def _other(key):
    """A value that this key can have and does not have by default."""
    special = {
        "mode": "observe",
        "listen": "127.0.0.1:1",
        "admin": "127.0.0.1:2",
        "trusted_networks": "10.0.0.0/8",
        "trusted_proxies": "10.0.0.0/8",
        "auth.keys_env": "KEYS",
        "auth.admin_key_env": "KEY",
        "one_change": "strict",
        "tenants.named": '[{"name": "acme"}]',
        "tenants.told_apart": 64,
        "tenants.by": "key",
        "priority.allowed": "anyone",
        "priority.step": "30s",
        "priority.high_at_most": -9,
        "priority.tenants": "acme",
        "length_policies": '[{"models": ["m"], "output": {"ceiling": 9}}]',
        "estimate.timeout": "300ms",
        "measured.date": "2026-11-30",
        "tracing.endpoint": "http://127.0.0.1:4318/v1/traces",
        "limits.prompt_tokens": "1m",
        "share": "1/3",
        "sharing.store": "redis://127.0.0.1:6379/0",
        "sharing.timeout": "60ms",
        "sharing.lease": "2s",
        "sharing.recovery": "40s",
        "limits.body": "300MiB",
        "scheduling.drop_factor": 3,
        "scheduling.adaptive.floor": 9,
        "scheduling.adaptive.ceiling": 99,
        "lanes.short.ttft_slo": "2s",
        "lanes.long.ttft_slo": "9s",
        "recorder.keep_size": "11GiB",
        "lanes.short.queue.bytes": "512MiB",
        "lanes.long.queue.bytes": "512MiB",
    }
    if key in special:
        return special[key]
    default = show.defaults()[key]
    kind = next(kind for found, kind, _ in show.reference() if found.path == key)
    if kind == "boolean":
        return not default
    if " | " in kind and not kind.startswith(("count", "number")):
        return next(word for word in kind.split(" | ") if word != default)
    samples = {"duration": "3h", "size": "1MiB", "number": 0.5, "list of names": ["m"], "path": "there", "text": "x-r"}
    return {**samples, "secret": "s"}.get(kind, 4_000)
