from proxy.inforce import InForce
from proxy.settings import Settings
from proxy.statussettings import ShownSettings


def test_the_status_shows_what_differs_from_the_defaults_and_hides_secrets():
    settings = Settings.model_validate(
        {
            "backends": ["http://a:1"],
            "scheduling": {"preset": "gentle", "concurrency": 40},
            "recorder": {"salt": "secret"},
            "why": {"scheduling.concurrency": "the knee"},
        }
    )
    in_force, shown = InForce(settings), ShownSettings()
    found = shown.of(in_force)
    assert found["scheduling.concurrency"] == 40
    assert (found["scheduling.preset"], found["scheduling.drop_factor"]) == ("gentle", 5.0)
    assert "secret" not in str(found)
    assert {"why", "backends"}.isdisjoint(found)


def test_another_configuration_shows_its_own():
    shown = ShownSettings()
    in_force = InForce(Settings.model_validate({"backends": ["http://a:1"]}))
    assert shown.of(in_force) == {}
    in_force.take(Settings.model_validate({"backends": ["http://a:1"], "mode": "observe"}), ())
    assert shown.of(in_force) == {"mode": "observe"}
