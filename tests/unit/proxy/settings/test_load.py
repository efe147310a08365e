"""Flags win over the environment, the environment over the file, the file over the defaults."""

import pytest

from proxy.settings import ConfigurationError, Flag, admin_address, load


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    """No variable of the machine takes part."""
    import os

    for name in [name for name in os.environ if name.upper().startswith("LANEWISE")]:
        monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path):
    """A file that sets three keys."""
    path = tmp_path / "lanewise.yaml"
    path.write_text(
        "backends: [http://file:1]\nscheduling:\n  concurrency: 10\n  ageing: 11\ntimeouts:\n  drain: 10s\n"
    )
    return path


def flag(path, value, name="--flag"):
    return Flag(name, tuple(path.split(".")), value)


def test_a_backend_is_all_that_is_needed():
    settings = load(flags=[flag("backends", ["http://127.0.0.1:8000"])]).settings
    assert [backend.url for backend in settings.backends] == ["http://127.0.0.1:8000"]
    assert settings.scheduling.preset == "strict"


def test_each_source_wins_over_the_next(file, monkeypatch):
    monkeypatch.setenv("LANEWISE_SCHEDULING__CONCURRENCY", "20")
    monkeypatch.setenv("LANEWISE_TIMEOUTS__DRAIN", "20s")
    loaded = load(file, [flag("scheduling.concurrency", "30", "--concurrency")])
    assert (loaded.settings.scheduling.concurrency, loaded.settings.timeouts.drain) == (30, 20.0)
    assert loaded.settings.scheduling.ageing == 11
    shown = {
        key: loaded.origins[key] for key in ("scheduling.concurrency", "timeouts.drain", "scheduling.ageing", "listen")
    }
    assert shown == {
        "scheduling.concurrency": "--concurrency",
        "timeouts.drain": "LANEWISE_TIMEOUTS__DRAIN",
        "scheduling.ageing": f"{file}:4",
        "listen": "default",
    }


def test_the_environment_can_name_the_file(file, monkeypatch):
    monkeypatch.setenv("LANEWISE_CONFIG", str(file))
    assert load().settings.scheduling.concurrency == 10


def test_a_list_in_the_environment_has_commas(monkeypatch):
    monkeypatch.setenv("LANEWISE_BACKENDS", "http://a:1, http://b:2")
    monkeypatch.setenv("LANEWISE_METRICS__MODELS", "qwen,glm")
    settings = load().settings
    assert [backend.label for backend in settings.backends] == ["a:1", "b:2"]
    assert settings.model_labels == ("qwen", "glm")


def test_a_list_in_the_environment_may_be_json(monkeypatch):
    monkeypatch.setenv("LANEWISE_BACKENDS", '[{"url": "http://a:1", "concurrency": 4}]')
    assert load().settings.backends[0].concurrency == 4


def test_a_list_from_a_later_source_replaces_the_earlier_one_whole(file):
    loaded = load(file, [flag("backends", ["http://flag:1", "http://flag:2"], "--backend")])
    assert [backend.label for backend in loaded.settings.backends] == ["flag:1", "flag:2"]
    assert loaded.origins["backends"] == "--backend"


def test_a_misspelt_variable_is_named_and_not_passed_over(monkeypatch):
    monkeypatch.setenv("LANEWISE_LISTN", "127.0.0.1:1")
    monkeypatch.setenv("LANEWISE_BACKENDS", "http://a:1")
    with pytest.raises(ConfigurationError, match=r'^LANEWISE_LISTN: unknown key "listn"; did you mean "listen"'):
        load()


def test_a_misspelt_variable_inside_a_section_is_named(monkeypatch):
    monkeypatch.setenv("LANEWISE_TIMEOUTS__DRAINN", "1s")
    with pytest.raises(
        ConfigurationError, match=r'LANEWISE_TIMEOUTS__DRAINN: unknown key "timeouts.drainn"; did you mean'
    ):
        load(flags=[flag("backends", "http://a:1")])


def test_variables_that_kubernetes_makes_for_a_service_are_not_ours(monkeypatch):
    for name in (
        "LANEWISE_SERVICE_HOST",
        "LANEWISE_PORT",
        "LANEWISE_PORT_8080_TCP_ADDR",
        "LANEWISE_ADMIN_SERVICE_PORT",
    ):
        monkeypatch.setenv(name, "10.0.0.1")
    assert load(flags=[flag("backends", "http://a:1")]).settings.admin.port == 9100


def test_a_wrong_value_in_the_environment_names_the_variable(monkeypatch):
    monkeypatch.setenv("LANEWISE_SCHEDULING__DROP_FACTOR", "0.1")
    with pytest.raises(ConfigurationError, match=r"^LANEWISE_SCHEDULING__DROP_FACTOR: scheduling.drop_factor is"):
        load(flags=[flag("backends", "http://a:1")])


def test_a_section_as_one_variable_is_refused_with_its_keys(monkeypatch):
    monkeypatch.setenv("LANEWISE_TIMEOUTS", '{"drain": "1s"}')
    with pytest.raises(
        ConfigurationError, match=r"^LANEWISE_TIMEOUTS: timeouts is .* must be a mapping with keys among: header"
    ):
        load(flags=[flag("backends", "http://a:1")])


def test_a_wrong_flag_is_named():
    with pytest.raises(ConfigurationError, match=r'^--listen: listen is "x": not an address'):
        load(flags=[flag("backends", "http://a:1"), flag("listen", "x", "--listen")])


def test_an_unknown_key_of_a_flag_is_named():
    with pytest.raises(ConfigurationError, match=r'^--set a.b: unknown key "a"'):
        load(flags=[flag("backends", "http://a:1"), flag("a.b", 1, "--set a.b")])


def test_problems_of_all_sources_are_reported_together(file, monkeypatch):
    file.write_text("backends: [http://file:1]\nlisten: 1\n")
    monkeypatch.setenv("LANEWISE_ADMIN", "2")
    monkeypatch.setenv("LANEWISE_NOTHING", "3")
    with pytest.raises(ConfigurationError) as caught:
        load(file, [flag("scheduling.preset", "x", "--preset")])
    places = [sentence.split(": ")[0] for sentence in caught.value.sentences]
    assert places == ["LANEWISE_NOTHING", f"{file}:2", "LANEWISE_ADMIN", "--preset"]


def test_a_preset_is_a_source_of_its_own():
    loaded = load(flags=[flag("backends", "http://a:1"), flag("scheduling.preset", "gentle", "--preset")])
    assert loaded.origins["scheduling.lane_order"] == "preset gentle"
    assert loaded.settings.scheduling.drop_factor == 5.0


def test_a_key_beside_a_preset_wins_over_it():
    flags = [flag("backends", "http://a:1"), flag("scheduling.preset", "gentle"), flag("scheduling.drop_factor", 2)]
    settings = load(flags=flags).settings
    assert (settings.scheduling.drop_factor, settings.scheduling.lane_order.value) == (2.0, "deadline")


def test_the_admin_address_is_found_in_a_broken_file(tmp_path, monkeypatch):
    broken = tmp_path / "broken.yaml"
    broken.write_text("admin: 127.0.0.1:9999\nscheduling: {concurrency: many}\n")
    assert str(admin_address(broken)) == "127.0.0.1:9999"
    broken.write_text("admin: [127\n")
    assert str(admin_address(broken)) == "127.0.0.1:9100"
    monkeypatch.setenv("LANEWISE_ADMIN", "127.0.0.1:9101")
    assert str(admin_address(broken)) == "127.0.0.1:9101"
    assert str(admin_address(broken, [flag("admin", "127.0.0.1:9102")])) == "127.0.0.1:9102"
    with pytest.raises(ConfigurationError, match="--admin: admin is 'x': not an address"):
        admin_address(broken, [flag("admin", "x", "--admin")])


def test_a_section_written_as_one_word_has_its_source_and_does_not_hide_its_other_keys(file, monkeypatch):
    file.write_text(file.read_text() + "installments: off\n")
    loaded = load(file)
    assert (loaded.settings.installments.mode, loaded.origins["installments.mode"]) == ("off", f"{file}:7")
    with_pause = load(file, [flag("installments.pause", "1", "--set installments.pause")])
    assert (with_pause.settings.installments.mode, with_pause.settings.installments.pause) == ("off", 1.0)
    monkeypatch.setenv("LANEWISE_INSTALLMENTS", "on")
    louder = load(file)
    assert (louder.settings.installments.mode, louder.origins["installments.mode"]) == ("on", "LANEWISE_INSTALLMENTS")
