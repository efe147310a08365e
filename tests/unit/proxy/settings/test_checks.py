"""What works but is probably not meant is said; what is meant is not."""

from proxy.settings import Settings, warnings


def keys(**more):
    return [found.key for found in warnings(Settings.model_validate({"backends": ["http://a:8000"], **more}))]


def test_the_defaults_need_no_warning():
    assert keys() == []


def test_an_admin_listener_on_the_network_is_pointed_out():
    assert keys(admin="0.0.0.0:9100") == ["admin"]


def test_deadlines_beyond_the_patience_of_clients_are_pointed_out():
    assert keys(scheduling={"drop_factor": 40}) == ["scheduling.drop_factor", "scheduling.drop_factor"]
    assert keys(scheduling={"drop_factor": "never"}) == []


def test_keeping_connections_longer_than_the_engine_does_is_pointed_out():
    assert keys(timeouts={"idle_connection": "5s"}) == ["timeouts.idle_connection"]


def test_parts_beside_an_engine_that_cuts_long_prefills_itself_are_pointed_out():
    assert keys(installments="on", scheduling={"budget_mode": "separate"}) == ["installments.mode"]
    assert keys(scheduling={"budget_mode": "separate"}) == keys(installments="on") == []


def test_recording_text_is_pointed_out():
    assert keys(recorder={"text": True}) == []
    assert keys(recorder={"enabled": True, "text": True}) == ["recorder.text"]
