"""Probing real servers: what makes a backend usable, what is learned from it, and what does not disturb."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from proxy.backends import Backends, Model, PrefixCaching, State
from proxy.settings import Settings

MODELS = {"object": "list", "data": [{"id": "qwen", "max_model_len": 32768}, {"id": "lora"}]}
METRICS = (
    'vllm:num_requests_running{engine="0"} 3.0\n'
    'vllm:num_requests_waiting{engine="0"} 2.0\n'
    'vllm:num_requests_waiting{engine="1"} 1.0\n'
    'vllm:kv_cache_usage_perc{engine="0"} 0.5\n'
)
PATIENCE_S = 5.0


class FakeEngine:
    """Answers what the test says, and notes what it was asked."""

    def __init__(self):
        self.answers = {
            "/health": (200, ""),
            "/v1/models": (200, MODELS),
            "/version": (200, {"version": "0.33.0"}),
            "/metrics": (200, METRICS),
        }
        self.asked = []
        self.release = asyncio.Event()
        self.url = ""

    async def answer(self, request):
        self.asked.append((request.path, request.headers.get("Authorization")))
        status, body = self.answers.get(request.path, (404, ""))
        if body == "hang":
            await self.release.wait()
        if isinstance(body, str):
            return web.Response(status=status, text=body)
        return web.json_response(body, status=status)


@asynccontextmanager
async def serving(engine):
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", engine.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield
    finally:
        engine.release.set()
        await runner.cleanup()


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


class Watch:
    """Backends under test, with what they told."""

    def __init__(self, *urls, clock=None, **probes):
        self.changes = []
        self.changed = asyncio.Event()
        self.models_changed = 0
        settings = Settings.model_validate(
            {
                "backends": [{"url": url, "name": f"b{n}"} for n, url in enumerate(urls)],
                "probes": {"interval": "1h", **probes},
            }
        )
        extra = {"clock": clock} if clock else {}
        self.backends = Backends(settings, self._on_change, self._on_models, **extra)

    def _on_change(self, name, up):
        self.changes.append((name, up))
        self.changed.set()

    def _on_models(self):
        self.models_changed += 1

    @property
    def view(self):
        return self.backends.views()[0]


@pytest.fixture
async def engine():
    """A healthy engine."""
    fake = FakeEngine()
    async with serving(fake):
        yield fake


@pytest.fixture
async def watch():
    """Make `Watch`es that are closed after the test."""
    made = []

    def make(*urls, **more):
        made.append(Watch(*urls, **more))
        return made[-1]

    yield make
    for one in made:
        await one.backends.close()


async def test_a_healthy_engine_is_up_and_described(engine, watch):
    watched = watch(engine.url)
    await watched.backends.start()
    view = watched.view
    assert watched.changes == [("b0", False), ("b0", True)]
    assert (view.state, view.version, view.error) == (State.UP, "0.33.0", None)
    assert view.models == (Model("qwen", 32768), Model("lora"))
    assert (view.waiting, view.running, view.kv_usage) == (3.0, 3.0, 0.5)
    assert watched.backends.max_model_len("qwen") == 32768
    assert watched.backends.max_model_len("lora") is None
    assert watched.models_changed == 1
    assert watched.backends.limits()[0].models == frozenset({"qwen", "lora"})


KV_SIZE = 'vllm:cache_config_info{block_size="128",num_gpu_blocks="%d"} 1.0\n'


async def test_the_kv_guard_has_the_size_that_the_engine_tells_and_follows_it(engine, watch):
    engine.answers["/metrics"] = (200, METRICS + KV_SIZE % 100)
    watched = watch(engine.url)
    await watched.backends.start()
    assert watched.backends.limits()[0].kv_tokens == 12_800
    told = watched.models_changed
    await watched.backends.probe("b0")
    assert watched.models_changed == told, "nothing new"
    engine.answers["/metrics"] = (200, METRICS + KV_SIZE % 50)
    await watched.backends.probe("b0")
    assert (watched.backends.limits()[0].kv_tokens, watched.models_changed) == (6_400, told + 1)
    engine.answers["/metrics"] = (404, "")
    await watched.backends.probe("b0")
    assert watched.backends.limits()[0].kv_tokens == 6_400, "what cannot be read is not zero"


async def test_a_configured_kv_size_counts_before_what_the_engine_tells(engine):
    engine.answers["/metrics"] = (200, KV_SIZE % 100)
    settings = Settings.model_validate({"backends": [{"url": engine.url, "kv_tokens": 9_000}]})
    backends = Backends(settings, lambda _name, _up: None)
    await backends.probe(settings.backends[0].label)
    await backends.close()
    assert backends.limits()[0].kv_tokens == 9_000


async def test_models_named_in_the_configuration_stay_what_is_served(engine):
    settings = Settings.model_validate({"backends": [{"url": engine.url, "models": ["qwen"]}]})
    backends = Backends(settings, lambda _name, _up: None)
    await backends.probe(settings.backends[0].label)
    await backends.close()
    assert backends.limits()[0].models == frozenset({"qwen"})


async def test_an_engine_that_is_not_there_is_down_with_the_reason(watch, unused_tcp_port):
    watched = watch(f"http://127.0.0.1:{unused_tcp_port}")
    await watched.backends.start()
    assert watched.view.state is State.DOWN
    assert watched.view.error == "cannot connect: Connection refused"
    assert not watched.backends.any_up


async def test_one_failed_probe_does_not_take_an_engine_down(engine, watch):
    watched = watch(engine.url, down_after=2)
    await watched.backends.probe("b0")
    engine.answers["/health"] = (503, "")
    await watched.backends.probe("b0")
    assert (watched.view.state, watched.view.error) == (State.UP, "/health answered 503")
    await watched.backends.probe("b0")
    assert watched.view.state is State.DOWN
    assert watched.changes == [("b0", True), ("b0", False)]


async def test_failed_connections_of_requests_count_as_failed_probes(engine, watch):
    watched = watch(engine.url, down_after=2)
    await watched.backends.probe("b0")
    watched.backends.report_failure("b0")
    watched.backends.report_failure("b0")
    watched.backends.report_failure("unknown")
    assert (watched.view.state, watched.view.reported_failures) == (State.DOWN, 2)
    await watched.backends.probe("b0")
    assert watched.view.state is State.SLOW_START


async def test_a_failure_before_the_first_probe_decides_nothing(engine, watch):
    watched = watch(engine.url)
    watched.backends.report_failure("b0")
    assert watched.view.state is State.STARTING


async def test_a_server_without_a_health_path_is_judged_by_its_models(engine, watch):
    del engine.answers["/health"]
    watched = watch(engine.url)
    await watched.backends.probe("b0")
    assert watched.view.state is State.UP
    engine.answers["/v1/models"] = (500, "")
    again = watch(engine.url)
    await again.backends.probe("b0")
    assert again.view.state is State.DOWN


async def test_an_engine_that_does_not_answer_in_time_is_down(engine, watch):
    engine.answers["/health"] = (200, "hang")
    watched = watch(engine.url, timeout="20ms")
    await watched.backends.probe("b0")
    assert (watched.view.state, watched.view.error) == (State.DOWN, "no answer in time")


@pytest.mark.parametrize("path", ["/v1/models", "/version", "/metrics"])
@pytest.mark.parametrize("answer", [(401, ""), (200, "[1, 2"), (200, {"data": 7})])
async def test_an_engine_that_describes_itself_badly_is_still_up(engine, watch, path, answer):
    engine.answers[path] = answer
    watched = watch(engine.url)
    await watched.backends.probe("b0")
    assert watched.view.state is State.UP


@pytest.mark.parametrize("path", ["/v1/models", "/version", "/metrics"])
async def test_an_engine_is_up_before_it_has_described_itself(engine, watch, path):
    engine.answers[path] = (200, "hang")
    watched = watch(engine.url)
    probing = asyncio.ensure_future(watched.backends.probe("b0"))
    async with asyncio.timeout(PATIENCE_S):
        while path not in dict(engine.asked):  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert watched.view.state is State.UP
    engine.release.set()
    await probing


async def test_old_engine_metrics_are_unknown_and_never_zero(engine, watch):
    clock = Clock()
    watched = watch(engine.url, clock=clock, interval="2s")
    await watched.backends.probe("b0")
    clock.now += 10.0
    assert watched.view.waiting == 3.0
    clock.now += 0.1
    view = watched.view
    assert (view.waiting, view.running, view.kv_usage) == (None, None, None)
    assert view.scrape_age_s == pytest.approx(10.1)


async def test_models_are_asked_for_again_after_a_while(engine, watch):
    clock = Clock()
    watched = watch(engine.url, clock=clock)
    await watched.backends.probe("b0")
    engine.answers["/v1/models"] = (200, {"data": [{"id": "new"}]})
    await watched.backends.probe("b0")
    assert [model.name for model in watched.backends.models] == ["qwen", "lora"]
    clock.now += 30.0
    await watched.backends.probe("b0")
    assert [model.name for model in watched.backends.models] == ["new"]


async def test_the_key_is_shown_to_the_models_path_alone(engine, watch):
    watched = watch(engine.url, api_key="secret")
    await watched.backends.probe("b0")
    assert dict(engine.asked)["/v1/models"] == "Bearer secret"
    assert {key for path, key in engine.asked if path != "/v1/models"} == {None}


async def test_without_scraping_the_metrics_path_is_left_alone(engine, watch):
    watched = watch(engine.url, scrape_metrics=False)
    await watched.backends.probe("b0")
    assert "/metrics" not in dict(engine.asked)


CACHE = 'vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="%d"} 1.0\n'


async def test_what_an_engine_says_of_its_prefix_cache_is_told_once_and_again_after_a_restart(engine, watch):
    told = []
    watched = watch(engine.url)
    watched.backends._learner._on_caching = lambda name, caching: told.append((name, caching))
    await watched.backends.probe("b0")
    assert told == [("b0", PrefixCaching())]
    engine.answers["/metrics"] = (200, CACHE % 0 + CACHE % 1 + "process_start_time_seconds 100.0\n")
    await watched.backends.probe("b0")
    await watched.backends.probe("b0")
    assert told[1:] == [("b0", PrefixCaching(enabled=True, block_tokens=16, engines=2, started_s=100.0))]
    engine.answers["/metrics"] = (200, CACHE % 0 + "process_start_time_seconds 200.0\n")
    await watched.backends.probe("b0")
    assert told[2:] == [("b0", PrefixCaching(enabled=True, block_tokens=16, engines=1, started_s=200.0))]


async def test_the_counter_of_cache_hits_is_read_when_asked_for(engine, watch):
    watched = watch(engine.url)
    engine.answers["/metrics"] = (200, 'vllm:prefix_cache_hits_total{engine="0"} 1024.0\n')
    assert await watched.backends.prefix_hits("b0") == 1024.0
    engine.answers["/metrics"] = (500, "")
    assert await watched.backends.prefix_hits("b0") is None
    assert await watched.backends.prefix_hits("gone") is None
    assert await watch(engine.url, scrape_metrics=False).backends.prefix_hits("b0") is None


async def test_only_backends_that_are_up_and_serve_a_model_are_named_for_it(engine, watch):
    watched = watch(engine.url, "http://127.0.0.1:9")
    assert watched.backends.up_for("qwen") == []
    for name in ("b0", "b1"):
        await watched.backends.probe(name)
    assert watched.backends.up_for("qwen") == watched.backends.up_for(None) == ["b0"]
    assert watched.backends.up_for("another") == []


async def test_an_answer_without_end_is_cut_off(engine, watch):
    engine.answers["/metrics"] = (200, "x" * (9 * 2**20))
    watched = watch(engine.url, timeout="5s")
    await watched.backends.probe("b0")
    assert (watched.view.state, watched.view.scrape_age_s) == (State.UP, None)


async def test_an_engine_that_comes_up_later_is_noticed(engine, watch):
    engine.answers["/health"] = (503, "")
    watched = watch(engine.url, interval="50ms")
    await watched.backends.start()
    assert watched.view.state is State.DOWN
    engine.answers["/health"] = (200, "")
    async with asyncio.timeout(PATIENCE_S):
        while not watched.backends.any_up:
            watched.changed.clear()
            await watched.changed.wait()
    assert watched.changes[-1] == ("b0", True)


# ---------------------------------------------------------------- another configuration


def fleet(*engines, **probes):
    return Settings.model_validate(
        {
            "backends": [{"url": engine.url, "name": name} for name, engine in engines],
            "probes": {"interval": "1h", "scrape_metrics": False, **probes},
        }
    )


@asynccontextmanager
async def two_engines():
    first, second = FakeEngine(), FakeEngine()
    async with serving(first), serving(second):
        yield first, second


async def test_a_newcomer_is_probed_before_anybody_hears_of_it():
    async with two_engines() as (first, second):
        told = []
        backends = Backends(fleet(("a", first)), lambda name, up: told.append((name, up)))
        await backends.start()
        wanted = fleet(("a", first), ("b", second))
        met = await backends.meet(wanted)
        assert [(one.name, one.up) for one in met] == [("b", True)]
        assert told == [("a", False), ("a", True)]
        assert [view.name for view in backends.views()] == ["a"]
        backends.change(wanted, met)
        assert [limits.models for limits in backends.limits()] == [frozenset({"qwen", "lora"})] * 2
        backends.introduce(met)
        assert told[2:] == [("b", True)]
        await backends.close()


async def test_one_that_stays_is_not_probed_again_and_one_that_moved_is_a_newcomer():
    async with two_engines() as (first, second):
        backends = Backends(fleet(("a", first)), lambda _name, _up: None)
        await backends.start()
        asked = len(first.asked)
        assert await backends.meet(fleet(("a", first), down_after=9)) == ()
        assert len(first.asked) == asked
        assert [one.name for one in await backends.meet(fleet(("a", second)))] == ["a"]
        await backends.close()


async def test_one_that_is_gone_is_watched_no_more():
    async with two_engines() as (first, second):
        backends = Backends(fleet(("a", first), ("b", second)), lambda _name, _up: None)
        await backends.start()
        watching = backends._watched["b"].task
        backends.change(fleet(("a", first)), ())
        await asyncio.gather(watching, return_exceptions=True)
        assert watching.cancelled()
        backends.report_failure("b")
        assert [view.name for view in backends.views()] == ["a"]
        await backends.close()


async def test_a_shorter_interval_holds_at_once_and_not_after_the_old_one():
    async with two_engines() as (first, _):
        backends = Backends(fleet(("a", first)), lambda _name, _up: None)
        await backends.start()
        asked = len(first.asked)
        backends.change(fleet(("a", first), interval="50ms"), ())
        async with asyncio.timeout(PATIENCE_S):
            while len(first.asked) < asked + 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert backends.views()[0].state is State.UP
        await backends.close()


async def test_how_many_probes_must_agree_follows():
    async with two_engines() as (first, _):
        changes = []
        backends = Backends(fleet(("a", first), down_after=9), lambda name, up: changes.append((name, up)))
        await backends.start()
        backends.change(fleet(("a", first), down_after=1), ())
        backends.report_failure("a")
        assert changes[-1] == ("a", False)
        await backends.close()
