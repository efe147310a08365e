"""Telemetry for people: unknown is said."""

from loadgen.telemetry.digest import CardDigest, EngineDigest, Telemetry
from loadgen.telemetry.tell import telemetry_lines


def test_unknown_is_written_out():
    told = Telemetry(engines=(EngineDigest(readings=4, missing=2),)).to_json()
    (line,) = telemetry_lines(told)
    assert "KV cache peak unknown, preemptions unknown" in line
    assert "2 of 4 readings missing" in line


def test_known_numbers_and_cards_are_shown():
    engine = EngineDigest(readings=4, kv_peak=0.5, preemptions=0.0, running_peak=3, waiting_peak=0, restarted=True)
    card = CardDigest("2", 4, hbm_peak_mb=300, hbm_total_mb=400, ai_core_peak=0.91, unhealthy=True)
    lines = list(telemetry_lines(Telemetry((engine,), (card,), cards_missing=1, card_readings=5).to_json()))
    assert "KV cache peak 50.0%, preemptions 0" in lines[0]
    assert "started again" in lines[0]
    assert "card 2: HBM peak 300 of 400 MB, AI core peak 91.0%" in lines[1]
    assert "UNHEALTHY" in lines[1]
    assert lines[2] == "cards: 1 of 5 readings missing or stale"


def test_a_run_without_telemetry_has_no_line():
    assert list(telemetry_lines(None)) == []
