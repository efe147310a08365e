"""What is told about a static share: at the start, and in `/status.json`."""

from typing import Any

from proxy.settings import Settings


def share_document(settings: Settings) -> dict[str, Any] | None:
    """Return what this proxy takes of its engines by its static share, ready for JSON; None while it takes all."""
    if settings.share == 1 or settings.leased:
        return None
    whole = settings.model_copy(update={"share": 1})
    budgets = (settings.to_scheduling().prefill_budget_tokens, whole.to_scheduling().prefill_budget_tokens)
    return {
        "by": "share",
        "share": f"1/{settings.share}",
        "prefill_budget_tokens": budgets[0],
        "prefill_budget_tokens_of": budgets[1],
        "backends": [
            {"name": mine.name, "concurrency": mine.concurrency, "of": full.concurrency}
            for mine, full in zip(settings.to_backend_limits(), whole.to_backend_limits(), strict=True)
        ],
    }


def share_sentence(settings: Settings) -> str | None:
    """Return the same as a sentence for the log."""
    document = share_document(settings)
    if document is None:
        return None
    parts = [f"{of['concurrency']} of {of['of']} sequences on {of['name']}" for of in document["backends"]]
    if document["prefill_budget_tokens"] is not None:
        parts.append(
            f"{document['prefill_budget_tokens']} of {document['prefill_budget_tokens_of']} prefill tokens on each"
        )
    return f"share {document['share']}: this proxy takes {', '.join(parts)}; the other proxies are to take the rest"
