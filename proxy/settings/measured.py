"""`measured`: when and on what the limits of this configuration were measured, so that `lanewise doctor` can object."""

import datetime as dt

from pydantic import Field

from proxy.settings.sections import Names, Section
from proxy.settings.units import Count, Duration


class Measured(Section):
    """The conditions of a measurement, as `lanewise-load knee` writes them beside the concurrency that it found.

    A knee moves with the model, the cards and the engine. Nothing here steers anything: `lanewise doctor` compares it
    with what the engines say today.
    """

    date: dt.date | None = Field(
        default=None, description="Day of the measurement, `2026-11-30`. Default: nothing was measured."
    )
    valid_for: Duration = Field(
        default=30 * 86400.0, gt=0, description="How long it holds; afterwards `lanewise doctor` asks for a new one."
    )
    concurrency: Count | None = Field(
        default=None, ge=1, description="Sequences per backend that were found to be best, with their margin."
    )
    backends: Names = Field(
        default=(), description="Names of the backends that it was measured on, or holds for. Default: all."
    )
    model: str = Field(default="", description="Model that was served then.")
    engine_version: str = Field(default="", description="Version of the engine then, as its `/version` says.")
    cards: str = Field(default="", description="Cards behind one backend, in your words: `2 x 910B4`.")
    kv_tokens: Count | None = Field(
        default=None,
        ge=1,
        description="Size of the engine's KV cache then, tokens: it changes with cards, quantisation and memory share.",
    )
    max_num_seqs: Count | None = Field(default=None, ge=1, description="The engine's `--max-num-seqs` then.")
    max_num_batched_tokens: Count | None = Field(
        default=None, ge=1, description="The engine's `--max-num-batched-tokens` then."
    )
    quantisation: str = Field(default="", description="Quantisation of the weights then, such as `w8a8`.")
    trace: str = Field(default="", description="Traffic of the measurement: the hash of its plan.")
    tpot_slo: Duration | None = Field(
        default=None, gt=0, description="TPOT at p95 that `concurrency` was measured to keep."
    )
    by: str = Field(default="", description="How it was measured: a command, a run folder, a link.")
