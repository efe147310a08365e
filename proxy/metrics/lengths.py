"""What is known of prompt lengths, as metrics."""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.metrics_core import Metric

from proxy.lengths import Asked
from proxy.metrics.series import counter, gauge
from proxy.policy.length import LengthEstimator


def length_families(asked: Mapping[Asked, int], estimator: LengthEstimator, models: Iterable[str]) -> Iterator[Metric]:
    """Yield what became of questions for exact lengths, and how good the estimate is.

    Args:
        asked: how often which answer came.
        estimator: learns.
        models: those that get series of their own.
    """
    yield counter(
        "prompt_tokens_asked",
        "Prompts near the border of the lanes whose exact length was asked for: exact; moved (exact, and the lane was "
        "another); or the estimate stood: timeout, refused (no /tokenize, or not for this prompt), unreachable, busy "
        "(as many as allowed were asked for already).",
        ("result",),
        (((result.value,), float(asked.get(result, 0))) for result in Asked),
    )
    known = {name for name in models if estimator.observations(name)}
    yield gauge(
        "prompt_tokens_estimate_error_ratio",
        "Recent mean of |estimate / real prompt length - 1|; no series of a model before its first answer.",
        ("model",),
        (((name,), estimator.error(name)) for name in sorted(known)),
    )
    yield gauge(
        "prompt_tokens_estimate_observations",
        "Answers that the estimate of a model has learned from, before the last restart included.",
        ("model",),
        (((name,), float(estimator.observations(name))) for name in models),
    )
