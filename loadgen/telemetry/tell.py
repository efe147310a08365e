"""The telemetry of a run in a few lines for people. What is not known is written as `unknown`, never as 0."""

from collections.abc import Iterable, Mapping
from typing import Any


def telemetry_lines(document: Mapping[str, Any] | None) -> Iterable[str]:
    """Yield one line per engine and one per card.

    Args:
        document: `Telemetry.to_json()`, as it stands in the notes of a summary; None yields nothing.
    """
    if document is None:
        return
    engines = document["engines"]
    for number, engine in enumerate(engines, 1):
        name = "engine" if len(engines) == 1 else f"engine {number}"
        missing = f", {engine['missing']} of {engine['readings']} readings missing" if engine["missing"] else ""
        restarted = ", it was started again during the run" if engine["restarted"] else ""
        yield (
            f"{name}: KV cache peak {_percent(engine['kv_peak'])}, preemptions {_count(engine['preemptions'])}, "
            f"running up to {_count(engine['running_peak'])}, waiting up to {_count(engine['waiting_peak'])}, "
            f"prefix hits {_percent(engine['prefix_hit_share'])}{missing}{restarted}"
        )
    for card in document["cards"]:
        unhealthy = ", UNHEALTHY" if card["unhealthy"] else ""
        yield (
            f"card {card['chip']}: HBM peak {_count(card['hbm_peak_mb'])} of {_count(card['hbm_total_mb'])} MB, "
            f"AI core peak {_percent(card['ai_core_peak'])} (median {_percent(card['ai_core_median'])}), "
            f"HBM bandwidth peak {_percent(card['hbm_bandwidth_peak'])}{unhealthy}"
        )
    if document["cards_missing"]:
        yield f"cards: {document['cards_missing']} of {document['card_readings']} readings missing or stale"


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"


def _count(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f}"
