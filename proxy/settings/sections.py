"""The sections of the configuration. Each field's description is its user documentation (docs/configuration.md)."""

import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    WithJsonSchema,
    model_validator,
)

from proxy.policy.classify import CapAction, OutputPolicy
from proxy.policy.limits import BudgetMode, LaneOrder, QueueOrder
from proxy.settings.units import Count, Duration, OptionalCount, Size, parse_backend_url

PRESETS: dict[str, dict[str, Any]] = {
    "strict": {"lane_order": "short_first", "drop_factor": 1.0},
    "gentle": {"lane_order": "deadline", "drop_factor": 5.0},
}
"""What `scheduling.preset` stands for. A key written beside the preset wins over it."""

NEVER = "never"


class Section(BaseModel):
    """A frozen mapping of the configuration that knows all its keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, defer_build=True
    )


def read_drop_factor(value: Any) -> float | None:
    """Read a number from 1 up, or `never` (also null).

    Raises:
        ValueError: anything else.
    """
    if value is None or value == NEVER:
        return None
    try:
        factor = float(value)
    except (TypeError, ValueError):
        factor = 0.0
    if isinstance(value, bool) or not 1.0 <= factor < float("inf"):
        raise ValueError(f'write a number from 1 up, or "{NEVER}"')
    return factor


DropFactor = Annotated[
    float | None,
    BeforeValidator(read_drop_factor),
    PlainSerializer(lambda value: NEVER if value is None else value, when_used="json"),
]


def split_names(value: Any) -> Any:
    """Let one comma-separated text stand for a list of names: environment and flags have no lists."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(split_names)]

Network = IPv4Network | IPv6Network


def read_networks(value: Any) -> Any:
    """Read networks in CIDR notation, as a list or as one comma-separated text.

    Raises:
        ValueError: one of them is no network.
    """
    listed = split_names(value)
    if not isinstance(listed, list | tuple):
        raise ValueError('write a list of networks, for example ["10.0.0.0/8", "fd00::/8"]')  # noqa: TRY004
    return tuple(_network(one) for one in listed)


def _network(value: Any) -> Network:
    try:
        return ip_network(value if isinstance(value, str) else str(value))
    except ValueError as error:
        raise ValueError(f'{error}; write an address with its prefix length, for example "10.0.0.0/8"') from None


Networks = Annotated[
    tuple[Network, ...],
    BeforeValidator(read_networks),
    PlainSerializer(lambda networks: [str(one) for one in networks], when_used="json"),
    WithJsonSchema({"type": "array", "items": {"type": "string", "examples": ["10.0.0.0/8"]}}),
]


_KEYS = re.compile(r"(--api[-_]key(?:=|\s+))(?!-)\S+(?:\s+(?!-)\S+)*|(\bVLLM_API_KEY=)\S+")


def without_keys(value: Any) -> Any:
    """Leave the values of API keys out of a start command: it is shown, and remembered, as it is written."""
    return _KEYS.sub(lambda found: f"{found[1] or found[2]}(hidden)", value) if isinstance(value, str) else value


class Backend(Section):
    """One engine: a vLLM or vLLM-Ascend server, or a prefill/decode proxy in front of several."""

    url: Annotated[str, BeforeValidator(parse_backend_url)] = Field(
        description="Base URL of the engine, without a path: `http://HOST:PORT` or `https://HOST:PORT`.",
    )
    name: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9._:\[\]-]{0,64}$",
        description="What metrics, logs and traces call it. Default: HOST:PORT of the URL.",
    )
    models: Names = Field(
        default=(),
        description="Model names it serves. Default: what its `/v1/models` lists. Write them when the engine lists "
        "more than should be used.",
    )
    concurrency: Count | None = Field(
        default=None,
        ge=1,
        description="Sequences that may run there at once; all lanes share it. Default: `scheduling.concurrency`. "
        "Set it to the knee of that engine, and not above its `--max-num-seqs`. It is where adaptive concurrency "
        "starts.",
    )
    max_num_seqs: Count | None = Field(
        default=None,
        ge=1,
        description="The engine's `--max-num-seqs`: adaptive concurrency never goes above it, because what is over "
        "it would wait inside the engine. Default: `scheduling.adaptive.ceiling`.",
    )
    weight: float = Field(
        default=1.0,
        ge=0.001,
        le=1000,
        description="Relative speed, for choosing among backends: 2 takes twice the work of 1.",
    )
    kv_tokens: Count | None = Field(
        default=None,
        ge=1,
        description="Size of its KV cache in tokens. Default: what the engine says in its metrics "
        "(`cache_config_info`); no guard where it says nothing. Set it where that is wrong (context parallel, sliding "
        "window), or higher where prompts share long beginnings: the guard counts each of them in full.",
    )
    engine_flags: Annotated[str, BeforeValidator(without_keys)] = Field(
        default="",
        max_length=8192,
        description="The flags that the engine was started with, as in its start command: `--max-num-seqs 128 "
        "--scheduling-policy priority`. Most of them cannot be asked of an engine; only `lanewise doctor` reads them "
        "here. API keys in it are left out.",
    )
    ca_file: Path | None = Field(
        default=None,
        description="PEM file of the authorities that its certificate may come from, for an https:// URL. Default: "
        "those of the system.",
    )
    insecure: bool = Field(
        default=False,
        description="Take whatever certificate it shows, or one for another name: whoever is in between can then read "
        "and change everything. For a first try alone; name its authority in `ca_file` instead.",
    )
    api_key_file: Path | None = Field(
        default=None,
        description="File whose first line is the API key that this engine gets, as `Authorization: Bearer`, instead "
        "of whatever key the client sent. Only its owner and group may be able to read it. Read again with each "
        "reload. Default: the client's own header goes to the engine.",
    )
    api_key_env: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$",
        description="Name of an environment variable with that key, instead of a file.",
    )

    @model_validator(mode="before")
    @classmethod
    def _url_alone(cls, value: Any) -> Any:
        return {"url": value} if isinstance(value, str) else value

    @property
    def label(self) -> str:
        """Return its name, or host and port where none was given."""
        return self.name or self.url.partition("://")[2]


class Queue(Section):
    """What may wait in a lane: a safety bound, not the scheduling. Over any of them: rejected at once."""

    requests: Count = Field(ge=1, description="Requests that may wait.")
    tokens: Count = Field(ge=1, description="Prompt tokens that may wait, estimated.")
    bytes: Size = Field(ge=1, description="Body bytes that may wait: the memory that a full lane holds.")


class Output(Section):
    """How long an answer may become. All knobs are off by default: the client's request is then left as it is."""

    default: Count | None = Field(
        default=None,
        ge=1,
        description="Output tokens to ask for when the client named no limit. Default: none, the engine decides "
        "(often the whole context). Set it when clients forget `max_tokens`.",
    )
    ceiling: Count | None = Field(
        default=None,
        ge=1,
        description="Most output tokens per sequence, whatever the client asks for. Default: none.",
    )
    action: Literal["clamp", "reject"] = Field(
        default="clamp",
        description="What happens to a request over the ceiling: `clamp` lowers its limit and says so in a response "
        "header; `reject` answers 400.",
    )
    clamp_to_context: bool = Field(
        default=False,
        description="Lower the output limit to what the context still holds beside the prompt, instead of letting "
        "the engine answer 400.",
    )
    total: Count | None = Field(
        default=None,
        ge=1,
        description="Most output tokens of all sequences of a request together: `n` and lists of prompts share it "
        "evenly, each sequence getting at least 1. Default: none. `action` holds for it too.",
    )

    def to_policy(self) -> OutputPolicy:
        """Convert to what classify reads."""
        return OutputPolicy(self.default, self.ceiling, CapAction(self.action), self.clamp_to_context, self.total)


class Lane(Section):
    """One class of requests by prompt length."""

    ttft_slo: Duration = Field(gt=0, description="Deadline of the first token, from arrival at lanewise.")
    tpot_slo: Duration = Field(
        default=0.1,
        gt=0,
        description="Longest mean time per output token of a good answer. It is what `lanewise_slo_good_total` "
        "counts by, and the smallest of the lanes is what adaptive concurrency keeps the engines under.",
    )
    first_byte_timeout: Duration = Field(
        gt=0,
        description="How long the engine may take from dispatch to the first byte of a stream before the request "
        "ends as `backend_timeout`.",
    )
    queue: Queue
    output: Output = Output()

    @model_validator(mode="before")
    @classmethod
    def _rest_of_the_queue(cls, value: Any) -> Any:
        default = cls.model_fields["queue"].default
        if not isinstance(value, dict) or not isinstance(value.get("queue"), dict) or not isinstance(default, Queue):
            return value
        return {**value, "queue": {**default.model_dump(mode="json"), **value["queue"]}}


class ShortLane(Lane):
    """Short prompts, whose first token must come fast."""

    max_prompt_tokens: Count = Field(
        default=2048,
        ge=1,
        description="Longest prompt of the short lane, estimated tokens. Default: one engine chunk, "
        "`max_num_batched_tokens` of most deployments.",
    )
    ttft_slo: Duration = Field(default=1.0, gt=0, description=Lane.model_fields["ttft_slo"].description)
    first_byte_timeout: Duration = Field(
        default=60.0, gt=0, description=Lane.model_fields["first_byte_timeout"].description
    )
    queue: Queue = Queue.model_validate({"requests": 1024, "tokens": "1m", "bytes": "256MiB"})


class LongLane(Lane):
    """Everything longer than the short lane takes."""

    ttft_slo: Duration = Field(default=5.0, gt=0, description=Lane.model_fields["ttft_slo"].description)
    first_byte_timeout: Duration = Field(
        default=300.0, gt=0, description=Lane.model_fields["first_byte_timeout"].description
    )
    queue: Queue = Queue.model_validate({"requests": 256, "tokens": "4m", "bytes": "256MiB"})


class Lanes(Section):
    """The two lanes. A request goes into the first whose prompts are long enough for it."""

    short: ShortLane = ShortLane()
    long: LongLane = LongLane()


class Adaptive(Section):
    """Concurrency that follows the engine's time per output token.

    Every 2 s, while answers stream: 5 % fewer sequences when the mean is above 95 % of the smallest `tpot_slo` of the
    lanes; else one more, when all that may run do. When no tokens are seen it stays.
    """

    enabled: bool = Field(
        default=True,
        description="Let the concurrency of each backend move. Off: it stays at `concurrency`, which then has to be "
        "the knee.",
    )
    floor: Count | None = Field(
        default=None,
        ge=1,
        description="Sequences that may run however slow the engine is. Default: 8, or the backend's `concurrency` "
        "where that is lower.",
    )
    ceiling: Count | None = Field(
        default=None,
        ge=1,
        description="Most sequences that may ever run on a backend that names no `max_num_seqs`. Default: 256 (what "
        "vLLM's `--max-num-seqs` often is), or the backend's `concurrency` where that is higher.",
    )


class Scheduling(Section):
    """How waiting requests are chosen. What each knob does to the tail is measured in docs/algorithm.md."""

    preset: Literal["strict", "gentle"] = Field(
        default="strict",
        description="`strict`: short lane first, a request that cannot meet its deadline is refused at once (best "
        "tail of what is served). `gentle`: nearest deadline first, late requests step back and are refused at five "
        "times their deadline (nobody starves). Sets `lane_order` and `drop_factor` where they are not written.",
    )
    lane_order: LaneOrder = Field(
        default=LaneOrder.SHORT_FIRST,
        description="Which lane goes first when both have an on-time request: `short_first`, or `deadline` (the one "
        "that would be late first).",
    )
    drop_factor: DropFactor = Field(
        default=1.0,
        description="A request is refused when it cannot meet this multiple of its deadline. 1 sheds as soon as it "
        "would be late; above 1 it steps behind on-time requests first; `never` switches deadlines off. Keep factor "
        "x deadline below the clients' own timeout.",
    )
    queue_order: QueueOrder = Field(
        default=QueueOrder.SHORTEST_FIRST,
        description="Order inside a lane: `shortest_first` (with ageing) or `fifo`.",
    )
    ageing: float = Field(
        default=10.0,
        ge=0,
        description="Weight of a request's expected work against its waiting time under `shortest_first`. "
        "Insensitive from 1 to 100; leave it.",
    )
    concurrency: Count = Field(
        default=32,
        ge=1,
        description="Sequences that may run at once on a backend that names no number of its own. The default is a "
        "guess (the knee of an 8B-like model on one card); measure yours with `lanewise-load knee`. It is where "
        "adaptive concurrency starts.",
    )
    adaptive: Adaptive = Adaptive()
    prefill_budget_tokens: OptionalCount = Field(
        default=2048,
        description="Prompt tokens sent to a backend whose first token is still to come, at most. One engine chunk: "
        "the engine's `--max-num-batched-tokens`. `unlimited` removes the budget, and with it most of the effect.",
    )
    budget_mode: BudgetMode = Field(
        default=BudgetMode.SHARED,
        description="`shared`: one budget for both lanes. `separate`: only for an engine that runs with "
        "`--long-prefill-token-threshold`; short prompts then get four chunks, long ones one request.",
    )
    deadline_margin: Duration = Field(
        default=0.05,
        ge=0,
        description="Safety margin before a deadline, about two decode steps of the engine.",
    )
    decode_weight: float = Field(
        default=8.0,
        ge=0,
        description="Cost of one output token in units of one prompt token, for the work estimate. Insensitive.",
    )
    kv_fraction: float = Field(
        default=0.9,
        gt=0,
        le=1,
        description="Share of a backend's KV cache (`backends[].kv_tokens`) that granted requests may be expected to "
        "fill.",
    )
    prefill_time_per_token: Duration = Field(
        default=0.00009,
        gt=0,
        description="Start value of the engine time per prompt token (slope of TTFT over prompt length at "
        "concurrency 1). A guess of an 8B-like model; learned from the first requests on.",
    )
    step_time: Duration = Field(
        default=0.02,
        gt=0,
        description="Start value of one empty engine step (intercept of the same line). A guess of an 8B-like model.",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_preset(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        preset = value.get("preset", "strict")
        return {**PRESETS.get(preset if isinstance(preset, str) else "", {}), **value}


SHORT_FORMS = {"installments": "mode"}
"""Sections that may be written as one word: section, and the key that the word is for."""


def read_switch(value: Any) -> Any:
    """Let the bare words `on` and `off` stay words: YAML reads them as true and false."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


class Installments(Section):
    """Feeding long prompts in parts through the engine's prefix cache, so that short requests pass between them.

    docs/installments.md explains when it pays and what it costs. `installments: off` alone is a short form of the mode.
    """

    mode: Annotated[Literal["auto", "on", "off"], BeforeValidator(read_switch)] = Field(
        default="auto",
        description="`auto`: on every engine whose prefix cache is seen to work, found out with the first long prompts "
        "and watched from then on; not together with `budget_mode: separate`. `on`: also where that cannot be seen. "
        "`off`: never.",
    )
    part_tokens: Count = Field(
        default=1024,
        ge=16,
        description="Smallest part of a prompt, in tokens; rounded up to the engine's KV block. About 0.1 to 0.2 s of "
        "engine time is right: 512 on an engine half as fast as an 8B model on one card.",
    )
    parts_at_most: Count = Field(
        default=16,
        ge=2,
        description="Requests that one prompt may become: a longer prompt gets larger parts.",
    )
    pause: float = Field(
        default=0.25,
        ge=0,
        le=4,
        description="Pause after each part before that engine gets more of a long prompt, while others run there, as a "
        "share of the time the part took. Protects the time per token of what runs.",
    )

    @model_validator(mode="before")
    @classmethod
    def _mode_alone(cls, value: Any) -> Any:
        return {SHORT_FORMS["installments"]: value} if isinstance(value, (str, bool)) else value


class Limits(Section):
    """What one request may be. Over a limit it is answered 4xx before it costs anything."""

    body: Size = Field(
        default=32 * 2**20, ge=1024, description="Largest request body, inflated. Over it: 413. Memory per request."
    )
    request_line: Size = Field(default=8 * 2**10, ge=1024, le=2**20, description="Longest request line. Over it: 414.")
    header: Size = Field(
        default=32 * 2**10,
        ge=1024,
        le=2**20,
        description="Longest single header field; 128 of them at most. Over it: 431.",
    )
    prompt_tokens: OptionalCount = Field(
        default=None,
        description="Longest prompt, estimated tokens. Over it: 400 `too_long`. Default: what the engines' "
        "`max_model_len` allows.",
    )


class Timeouts(Section):
    """How long each step may take."""

    header: Duration = Field(
        default=20.0, gt=0, description="For the head of a request, and how long an idle client connection is kept."
    )
    body: Duration = Field(default=30.0, gt=0, description="For the whole body of a request to arrive. Over it: 408.")
    connect: Duration = Field(default=2.0, gt=0, description="For a TCP connection to a backend.")
    answer: Duration = Field(
        default=900.0,
        gt=0,
        description="For the first byte of an answer that is not streamed: the engine sends nothing until it is "
        "complete.",
    )
    idle_stream: Duration = Field(
        default=60.0,
        gt=0,
        description="Between two lines of a stream; bytes inside one event do not count. Over it the stream ends as "
        "`backend_timeout`.",
    )
    idle_connection: Duration = Field(
        default=4.0,
        gt=0,
        description="How long an unused connection to a backend is kept. Below the engine's own 5 s "
        "(`VLLM_HTTP_TIMEOUT_KEEP_ALIVE`), or requests meet closed connections.",
    )
    drain: Duration = Field(
        default=300.0,
        gt=0,
        description="How long running streams may go on after SIGTERM. Longer than your longest answer, shorter "
        "than the supervisor's patience.",
    )


class Probes(Section):
    """How backends are watched."""

    interval: Duration = Field(default=2.0, ge=0.05, description="Time between two probes of a backend.")
    timeout: Duration = Field(
        default=3.0,
        gt=0,
        description="How long a probe may take. Not too short: an engine that reads long prompts answers its probes "
        "late.",
    )
    down_after: Count = Field(
        default=3,
        ge=1,
        description="Failed probes in a row (or failed connections of requests) until it counts as down.",
    )
    up_after: Count = Field(default=1, ge=1, description="Good probes in a row until a backend counts as up again.")
    scrape_metrics: bool = Field(
        default=True,
        description="Read the engine's `/metrics` beside each probe: shown in lanewise's own metrics. Scheduling has "
        "only the size of the KV cache from it, and whether its prefix cache is on.",
    )
    api_key: SecretStr | None = Field(
        default=None,
        description="Key for the engines' `/v1/models` when they run with `--api-key`. Better in the environment: "
        "`LANEWISE_PROBES__API_KEY`.",
    )


class Recorder(Section):
    """The trace of what came by: lengths, times and salted hashes, one line per finished request."""

    enabled: bool = Field(default=False, description="Write a trace. It is what `lanewise-load replay` reads.")
    directory: Path = Field(
        default=Path("lanewise-trace"), description="Where the files `trace-*.jsonl` go; made when it is missing."
    )
    rotate_size: Size = Field(default=64 * 2**20, ge=4096, description="Start a new file at this size.")
    rotate_age: Duration = Field(default=3600.0, ge=1, description="Start a new file at this age.")
    keep_files: Count = Field(default=168, ge=1, description="Files that are kept; the oldest go first.")
    keep_size: Size = Field(default=10 * 2**30, ge=4096, description="Size of all kept files together.")
    queue_records: Count = Field(
        default=10_000,
        ge=1,
        description="Records that may wait for the disk. Over it they are dropped and counted; requests never wait.",
    )
    block_tokens: Count = Field(
        default=512, ge=16, description="Size of one hashed prefix block, in tokens (512 is also what Mooncake uses)."
    )
    salt: SecretStr | None = Field(
        default=None,
        description="Salt of the prefix hashes. Better in the environment: `LANEWISE_RECORDER__SALT`. Default: a "
        "random one in `salt_file`. Proxies whose traces are to be compared need the same.",
    )
    salt_file: Path | None = Field(
        default=None,
        description="File that holds the salt, made with mode 0600 at the first start. Default: `salt` in the "
        "directory.",
    )
    text: bool = Field(
        default=False,
        description="Also write the request bodies: what people asked, in plain text. Only where everyone concerned "
        "knows.",
    )


class Metrics(Section):
    """What `/metrics` of the admin listener shows."""

    models: Names = Field(
        default=(),
        description="Model names that get series of their own; others count as `other`. Default: the models named "
        "under `backends`. Each adds about 90 series per lane.",
    )
    experiment: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9_.-]{0,64}$",
        description="Arm of an experiment that this proxy is, such as `baseline` or `candidate`: shown by "
        "`lanewise_config_info`. Letters, digits, `_`, `.` and `-`. Dashboards compare by the label `experiment` of "
        "the scrape target; where the two differ, the target is labelled wrongly.",
    )
