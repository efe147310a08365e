"""The doctor on real sockets: each finding has a planted case in which it fires, and is silent on a healthy one."""

import asyncio
import datetime as dt
import json
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from aiohttp import web

from loadgen.sim.profile import load_profile
from loadgen.sim.server import EngineServer, ServerOptions
from proxy import cli
from proxy.doctor.finding import Severity, diagnosis
from proxy.doctor.visit import Visit, gather, judge
from proxy.floors import installed_version, too_old
from proxy.settings import Address, Settings

TODAY = dt.date(2026, 11, 30)
GOOD_FLAGS = "vllm serve m --max-num-seqs 256 --max-num-batched-tokens 2048 --enable-prompt-tokens-details"
HISTOGRAM = "lanewise_request_prompt_tokens_bucket"


@dataclass(frozen=True)
class World:
    """One engine, one proxy in front of it and one configuration; healthy as it stands."""

    running: float = 4
    waiting: tuple[float, float] = (0, 0)
    """At the two looks."""
    preemptions: tuple[float, float] = (0, 0)
    rejections: float | None = None
    kv_usage: float = 0.2
    blocked: str | None = None
    """What the head of the long lane waits for."""
    caching: str = "True"
    ranks: int = 1
    version: str | None = "0.32.0"
    context: int | None = 32768
    health: int = 200
    metrics: bool = True
    keeps_open: bool = True
    flags: str = GOOD_FLAGS
    settings: dict = field(default_factory=dict)
    backend: dict = field(default_factory=dict)
    twice: bool = False
    """The same engine under a second address."""
    proxy: dict | None = field(default_factory=dict)
    """What the proxy says of the backend; None: no proxy runs."""
    other_config: bool = False
    reload: dict = field(default_factory=lambda: {"succeeded": True, "said": []})
    prompts: tuple[int, int, int] = (1000, 0, 0)
    """How many, how many of them over 2048 tokens, how many over 8192."""
    parts: int = 0
    variables: dict = field(default_factory=dict)
    """Of the environment that the doctor runs in."""
    packages: dict = field(default_factory=dict)
    """Versions that are installed, where they are others than here."""
    estimates: tuple[int, int] = (0, 1000)
    """How many were below 0.75 and below 1.25 of the truth, of a thousand."""

    def page(self, look: int) -> str:
        gauge = '{engine="0",model_name="m"}'
        lines = [
            f"vllm:num_requests_running{gauge} {self.running}",
            f"vllm:num_requests_waiting{gauge} {self.waiting[look]}",
            f"vllm:num_preemptions_total{gauge} {self.preemptions[look]}",
            f"vllm:kv_cache_usage_perc{gauge} {self.kv_usage}",
            "process_start_time_seconds 1764500000.25",
        ]
        if self.rejections is not None:
            lines.append(f'vllm:admission_rejections_total{{reason="max_num_queued_reqs"}} {self.rejections}')
        lines += [
            f'vllm:cache_config_info{{block_size="128",enable_prefix_caching="{self.caching}",engine="{rank}",'
            f'num_gpu_blocks="1950"}} 1.0'
            for rank in range(self.ranks)
        ]
        return "\n".join(lines) + "\n"

    def seen(self) -> str:
        total, long, giants = self.prompts
        lines = [
            f'{HISTOGRAM}{{lane="short",le="{bound}"}} {count}'
            for bound, count in ((2048, total - long), (8192, total - giants), ("+Inf", total))
        ]
        lines += [
            f'lanewise_prompt_tokens_estimate_ratio_bucket{{le="0.75",model="m"}} {self.estimates[0]}',
            f'lanewise_prompt_tokens_estimate_ratio_bucket{{le="1.25",model="m"}} {self.estimates[1]}',
            'lanewise_prompt_tokens_estimate_ratio_count{model="m"} 1000',
            f'lanewise_installments_total{{backend="e",outcome="hit"}} {self.parts}',
            'lanewise_prompt_tokens_total{lane="long",model="m"} 100000',
        ]
        return "\n".join(lines) + "\n"

    def engine(self) -> web.Application:
        looks = iter((0, 1))

        async def serve(request: web.Request) -> web.Response:
            if request.path == "/health":
                answer = web.Response(status=self.health)
                if not self.keeps_open:
                    answer.force_close()
                return answer
            if request.path == "/metrics" and self.metrics:
                return web.Response(text=self.page(min(1, next(looks, 1))))
            if request.path == "/version" and self.version is not None:
                return web.json_response({"version": self.version})
            if request.path == "/v1/models":
                return web.json_response({"data": [{"id": "m", "max_model_len": self.context}]})
            return web.json_response({"detail": "Not Found"}, status=404)

        app = web.Application()
        app.router.add_get("/{path:.*}", serve)
        return app

    def admin(self, settings: Settings) -> web.Application:
        told = {"name": "e", "in_flight": 4, "concurrency": 32, "installments": "on", "recomputed_tokens": 0}
        status = {
            "lanes": [{"name": "long", "head_blocked": self.blocked}],
            "config": "0" if self.other_config else settings.hash,
            "reload": self.reload,
            "backends": [{**told, **(self.proxy or {})}],
        }

        async def serve(request: web.Request) -> web.Response:
            if request.path == "/status.json":
                return web.json_response(status)
            return web.Response(text=self.seen())

        app = web.Application()
        app.router.add_get("/{path:.*}", serve)
        return app


@asynccontextmanager
async def serving(app: web.Application):
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def settings_of(world: World, port: int) -> Settings:
    backends = [{"url": f"http://127.0.0.1:{port}", "name": "e", "engine_flags": world.flags, **world.backend}]
    if world.twice:
        backends.append({"url": f"http://localhost:{port}", "name": "f", "engine_flags": world.flags})
    return Settings.model_validate(
        {"backends": backends, "timeouts": {"idle_connection": "40ms"}, "measured": MEASURED, **world.settings}
    )


MEASURED = {"date": "2026-11-20", "concurrency": 32, "engine_version": "0.32.0", "model": "m"}


def examined(world: World):
    """What the doctor says of a world."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in world.variables.items():
            patch.setenv(name, value)
        patch.setattr("proxy.doctor.visit.too_old", lambda: too_old(lambda name: _version_in(world, name)))
        return asyncio.run(_examined(world))  # one loop is enough: the command makes its own


def _version_in(world: World, package: str) -> str:
    return world.packages.get(package) or installed_version(package)


async def _examined(world: World):
    async with serving(world.engine()) as port:
        settings = settings_of(world, port)
        async with serving(world.admin(settings)) as admin:
            address = Address("127.0.0.1", admin if world.proxy is not None else 1)
            return diagnosis(judge(await gather(Visit(settings, address, apart_s=0.0), TODAY, None)))


HEALTHY = World()
LONG = {"prompts": (1000, 100, 50)}
OFF = {"proxy": {"installments": "off"}}
NO_PARTS = {"settings": {"installments": "off"}}
SEPARATE = {"settings": {"scheduling": {"budget_mode": "separate"}}}
THRESHOLD = f"{GOOD_FLAGS} --long-prefill-token-threshold 256"

PLANTED = {
    "engine_unreachable": World(health=503),
    "engine_queue_grows": World(waiting=(9, 12), running=32, proxy={"in_flight": 44}),
    "other_traffic": World(running=20, proxy={"in_flight": 4}),
    "short_request_first": World(
        flags=GOOD_FLAGS
        + """ --additional-config '{"scheduler_config":{"short_request_first_config":{"enabled":true}}}'"""
    ),
    "priority_scheduling": World(flags=f"{GOOD_FLAGS} --scheduling-policy priority"),
    "engine_queue_limits": World(flags=f"{GOOD_FLAGS} --max-num-queued-reqs 300"),
    "keep_alive_short": World(keeps_open=False),
    "preemptions": World(preemptions=(3, 5)),
    "engine_version": World(version="0.71.0"),
    "context_unknown": World(context=None),
    "dead_flags": World(flags=f"{GOOD_FLAGS} --max-num-partial-prefills 4"),
    "chunked_prefill_off": World(flags=f"{GOOD_FLAGS} --no-enable-chunked-prefill"),
    "same_engine_twice": World(twice=True),
    "caps_over_max_num_seqs": World(flags="--max-num-seqs 16"),
    "kv_tokens_differ": World(backend={"kv_tokens": 400_000}),
    "kv_guard_too_tight": World(blocked="kv", proxy={"kv_tokens": 210_000, "kv_limit": 224_640}),
    "caps_beyond_context": World(settings={"lanes": {"long": {"output": {"ceiling": 40_000}}}}),
    "separate_without_threshold": World(**SEPARATE),
    "threshold_with_installments": World(flags=THRESHOLD),
    "threshold_without_separate": World(flags=THRESHOLD, **NO_PARTS, **LONG),
    "threshold_advisable": World(**NO_PARTS, **LONG),
    "threshold_not_advisable": World(flags=THRESHOLD, **SEPARATE),
    "knee_too_old": World(settings={"measured": {**MEASURED, "date": "2026-09-01"}}),
    "knee_other_conditions": World(settings={"measured": {**MEASURED, "engine_version": "0.20.2"}}),
    "knee_not_in_force": World(settings={"measured": {**MEASURED, "concurrency": 48}}),
    "start_values_guessed": World(settings={"measured": {}}),
    "other_configuration": World(other_config=True),
    "reload_failed": World(reload={"succeeded": False, "said": ["lanewise.yaml:3: unknown key"]}),
    "prefix_caching_off": World(caching="False", **LONG),
    "ranks_not_pinned": World(ranks=4, **OFF),
    "prompt_tokens_details_off": World(flags="--max-num-seqs 256"),
    "installments_do_not_pay": World(parts=100, proxy={"installment_hit_ratio": 0.6, "recomputed_tokens": 9000}),
    "old_dependency": World(packages={"aiohttp": "3.9.0"}),
    "credentials_unreadable": World(settings={"auth": {"keys_env": "KEYS_THAT_NOBODY_SET"}}),
    "credentials_doubtful": World(
        settings={"auth": {"keys_env": "SOME_KEYS"}}, variables={"SOME_KEYS": "sk-0123456789-client search"}
    ),
    "estimate_poor": World(estimates=(200, 700)),
}


def ids(result):
    return [found.id for found in result.findings]


def test_nothing_is_found_where_all_is_well():
    result = examined(replace(HEALTHY, parts=100, proxy={"installment_hit_ratio": 1.0}))
    assert (ids(result), result.unknown) == ([], ())
    assert [(one.id, one.seen) for one in result.good] == [
        ("installments_pay", "100% of what was sent before was found again in 100 parts, 0.0% computed twice")
    ]


@pytest.mark.parametrize("finding", sorted(PLANTED))
def test_a_planted_fault_is_found_with_its_next_step(finding):
    found = [one for one in (examined(PLANTED[finding])).findings if one.id == finding]
    assert found
    assert all(one.seen and one.why and one.next for one in found)


@pytest.mark.parametrize(("preemptions", "severity"), [((0, 0), "info"), ((0, 3), "error")])
def test_more_kv_than_the_engine_tells_is_an_error_only_where_it_preempts(preemptions, severity):
    world = World(backend={"kv_tokens": 400_000}, preemptions=preemptions)
    assert [one.severity for one in examined(world).findings if one.id == "kv_tokens_differ"] == [severity]


def test_every_finding_of_the_source_is_planted_and_documented(root):
    sources = "".join(path.read_text() for path in (root / "proxy/doctor").glob("*.py"))
    known = set(re.findall(r'Finding\(\s*"([a-z_]+)"', sources))
    assert known == set(PLANTED)
    documented = set(re.findall(r"^\| `([a-z_]+)` \|", (root / "docs/doctor.md").read_text(), re.MULTILINE))
    assert documented == known


@pytest.mark.parametrize(
    ("world", "finding"),
    [
        (World(flags=THRESHOLD, **SEPARATE, prompts=(1000, 100, 50)), "threshold_not_advisable"),
        (World(**LONG), "threshold_advisable"),  # installments do that already
        (World(flags=GOOD_FLAGS, **NO_PARTS, prompts=(1000, 900, 50)), "threshold_advisable"),  # nobody short gains
        (World(waiting=(1, 2), running=4, proxy={"in_flight": 6}), "engine_queue_grows"),
        (World(preemptions=(3, 3), backend={"kv_tokens": 249_600}), "preemptions"),
        (World(preemptions=(3, 3)), "preemptions"),  # the engine tells the size: the guard has it
        (World(blocked="kv", kv_usage=0.8, proxy={"kv_tokens": 210_000, "kv_limit": 224_640}), "kv_guard_too_tight"),
        (World(blocked="cap", proxy={"kv_tokens": 210_000, "kv_limit": 224_640}), "kv_guard_too_tight"),
        (World(ranks=4, proxy={"installments": "on"}), "ranks_not_pinned"),  # it is seen to hit
        (World(ranks=4, proxy=None), "ranks_not_pinned"),  # each part names its rank: nothing says that this fails
        (World(caching="False", prompts=(1000, 0, 0)), "prefix_caching_off"),
        (World(settings={"measured": {**MEASURED, "backends": ["g"], "concurrency": 48}}), "knee_not_in_force"),
    ],
)
def test_what_looks_like_a_fault_and_is_none_is_passed_over(world, finding):
    assert finding not in ids(examined(world))


@pytest.mark.parametrize(
    ("world", "unknown"),
    [
        (World(metrics=False), "engine_metrics"),
        (World(flags=""), "engine_scheduling"),
        (World(flags=""), "caps_over_max_num_seqs"),
        (World(proxy=None), "proxy"),
        (World(proxy=None), "other_traffic"),
        (World(prompts=(10, 1, 0)), "traffic"),
        (World(version=None), "engine_version"),
        (World(parts=3), "installments_pay"),
    ],
)
def test_what_nobody_says_is_unknown_and_never_a_finding(world, unknown):
    result = examined(world)
    assert unknown in [one.id for one in result.unknown]
    assert unknown not in ids(result)


def test_only_errors_make_it_unhealthy():
    assert not (examined(PLANTED["keep_alive_short"])).healthy
    warned = examined(PLANTED["priority_scheduling"])
    assert warned.healthy
    assert [found.severity for found in warned.findings] == [Severity.WARNING]


async def test_the_simulated_engine_behind_a_real_proxy_is_healthy(start):
    server = EngineServer(load_profile("8b"), ServerOptions(model="8b", speed=100.0))
    async with serving(server.application()) as port:
        named = [{"url": f"http://127.0.0.1:{port}", "name": "sim", "engine_flags": GOOD_FLAGS}]
        tenants = {"by": "key", "named": [{"name": "search", "keys": ["59" * 32]}]}  # not told, and so not hashed again
        proxy = await start(backends=named, timeouts={"idle_connection": "40ms"}, tenants=tenants)
        called = Visit(None, proxy[-1].app.admin_listen, apart_s=0.0)
        case = await gather(called, TODAY, None)
        result = diagnosis(judge(case))
    assert case.config == proxy[-1].app.settings.hash
    assert [found.id for found in result.findings] == ["start_values_guessed"]
    assert {one.id for one in result.unknown} == {"traffic", "installments_pay"}


def test_the_command_ends_with_3_when_an_engine_is_not_there(capsys, tmp_path):
    trace = tmp_path / "trace.jsonl"
    arguments = ("doctor", "--backend", "http://127.0.0.1:1", "--admin", "127.0.0.1:2", "--apart", "0s", "--json")
    assert cli.main(arguments) == 3
    document = json.loads(capsys.readouterr().out)
    assert (document["healthy"], document["findings"][0]["id"]) == (False, "engine_unreachable")
    assert cli.main(("doctor", "--backend", "http://127.0.0.1:1", "--trace", str(trace))) == 2
    assert str(trace) in capsys.readouterr().err
    assert cli.main(("doctor", "--backend", "http://127.0.0.1:1", "--apart", "2")) == 2


def test_with_neither_a_configuration_nor_a_proxy_it_says_what_to_give(capsys, monkeypatch):
    for name in ("LANEWISE_CONFIG", "LANEWISE_BACKENDS"):
        monkeypatch.delenv(name, raising=False)
    assert cli.main(("doctor", "--admin", "127.0.0.1:2")) == 1
    assert "give the configuration" in capsys.readouterr().err


def test_for_people_the_worst_comes_first(capsys):
    assert cli.main(("doctor", "--backend", "http://127.0.0.1:1", "--admin", "127.0.0.1:2", "--apart", "0s")) == 3
    out = capsys.readouterr().out.splitlines()
    assert out[2] == "error: 127.0.0.1:1: engine_unreachable"
    assert out[5].startswith("  next  ")
    assert out[-1].startswith("not healthy: 1 error, ")


def test_the_trace_that_it_reads_is_the_recorders_own(tmp_path: Path):
    from proxy.doctor.lengths import read_trace
    from proxy.wire.trace import Record, encode

    lengths = [100] * 60 + [3000] * 30 + [20_000] * 10
    records = [
        Record(1.0, str(n), "chat", "m", "short", "ok", prompt_tokens=tokens) for n, tokens in enumerate(lengths)
    ]
    (tmp_path / "trace-1.jsonl").write_bytes(b"".join(encode(one) + b"\n" for one in records) + b'{"schema": "lane')
    traffic = read_trace(tmp_path)
    assert (traffic.requests, traffic.enough, traffic.over(2048), traffic.over(8192)) == (100, True, 0.4, 0.1)
