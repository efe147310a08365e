"""Every alert fires from the situation that it names, produced for real under a real Prometheus.

The rules are the shipped ones with `for` and windows divided by FACTOR, or by one of FACTORS where the shipped times
are much longer or shorter; bounds stay as they are. promtool proves the times (tests/component/monitoring).
"""

import json
import resource
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
import yaml
from watching import ask, configured, job, scraping, written_rules

from tools.prometheus.render import documents
from tools.prometheus.server import prometheus

FACTOR = 60
FACTORS = {
    "LanewiseEstimateDrift": 360,
    "LanewiseCapTruncationHigh": 360,
    "LanewiseQueueFull": 300,  # a machine that is busy misses a scrape in five, which begins the wait anew
    "LanewiseLimitFlapping": 15,  # a limit moves every two seconds, however short the window
}
PATIENCE_S = 90
"""Metrics count as stale after 30 s, which is no window and not divided."""
SENTENCE = "The quick brown fox jumps over the lazy dog. " * 20
COUNTED_TOKENS = (60, 400)
"""What the two models say of that sentence, in turn."""

pytestmark = pytest.mark.usefixtures("promtools")


class Exchanged(BaseHTTPRequestHandler):
    """Two models under one name and address; their /metrics answers once and fails from then on."""

    metrics_read = False
    answered = 0

    def do_GET(self):
        if self.path == "/metrics":
            self.answer(500 if Exchanged.metrics_read else 200, "text/plain", "vllm:num_requests_waiting 0\n")
            Exchanged.metrics_read = True
        else:
            self.answer(200, "application/json", json.dumps({"object": "list", "data": [{"id": "exchanged"}]}))

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        Exchanged.answered += 1
        tokens = COUNTED_TOKENS[Exchanged.answered % 2]
        usage = {"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1}
        whole = {"id": "1", "object": "text_completion", "created": 1, "model": "exchanged"}
        events = [{**whole, "choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]}]
        events.append({**whole, "choices": [], "usage": usage})
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        self.answer(200, "text/event-stream", text)

    def answer(self, status, kind, text):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


@contextmanager
def exchanged_engine():
    Exchanged.metrics_read = False
    with ThreadingHTTPServer(("127.0.0.1", 0), Exchanged) as serving:
        thread = threading.Thread(target=serving.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{serving.server_address[1]}"
        serving.shutdown()
        thread.join()


class Watch:
    """Prometheus, and the alerts that have fired so far."""

    def __init__(self, prometheus):
        self.prometheus = prometheus
        self.fired = []

    def look(self):
        alerts = self.prometheus.get("/api/v1/alerts")["alerts"]
        self.fired += [one["labels"] for one in alerts if one["state"] == "firing" and one["labels"] not in self.fired]

    def wait(self, situation, meanwhile=lambda: None, **alerts):
        """Until each alert has fired with these labels; `meanwhile` keeps the situation up."""

        def silent():
            return [
                name
                for name, labels in alerts.items()
                if not any(one["alertname"] == name and labels.items() <= one.items() for one in self.fired)
            ]

        def met():
            meanwhile()
            self.look()
            return not silent()

        try:
            self.prometheus.wait(situation, met, PATIENCE_S)
        except TimeoutError:
            raise AssertionError(f"{situation}: silent: {silent()}; fired: {self.fired}") from None


@pytest.fixture
def started(tmp_path, server, address, until):
    """Starts a proxy under a name, in front of an engine."""
    with ExitStack() as stack:

        def start(name, engine, **more):
            listen, admin = address(), address()
            file = configured(tmp_path, name, engine, listen, admin, **more)
            running = stack.enter_context(server("proxy", "serve", "--config", file))
            until(f"http://{admin}/readyz", 200)
            return SimpleNamespace(listen=listen, admin=admin, file=file, running=running)

        yield start


def test_every_alert_fires_from_what_it_names(tmp_path, server, address, until, started):
    steady, one_at_a_time = address(), address()
    fixed = {"adaptive": {"enabled": False}, "drop_factor": "never"}
    with ExitStack() as stack:
        engine = stack.enter_context(server("loadgen", "sim", "serve", "--listen", steady, "--model", "sim"))
        narrow = ("--listen", one_at_a_time, "--model", "sim", "--max-num-seqs", 1)
        stack.enter_context(server("loadgen", "sim", "serve", *narrow))
        until(f"http://{steady}/health", 200)
        until(f"http://{one_at_a_time}/health", 200)
        odd = started("odd", stack.enter_context(exchanged_engine()), metrics={"models": ["exchanged"]})
        main = started(
            "main",
            steady,
            scheduling={"concurrency": 1, **fixed},
            lanes={"short": {"queue": {"requests": 2}}},
            probes={"interval": "500ms", "down_after": 4},
        )
        crowded = started(
            "crowded",
            one_at_a_time,
            scheduling={"concurrency": 100, "drop_factor": "never"},
            lanes={"short": {"tpot_slo": "1ms", "output": {"ceiling": 100}}},
        )
        rules = written_rules(tmp_path / "prometheus", FACTOR, **FACTORS)
        targets = [(one.admin, {"experiment": name}) for name, one in (("main", main), ("crowded", crowded))]
        config = scraping(job("lanewise", *targets, odd.admin), rules=rules)
        watched = stack.enter_context(prometheus(tmp_path / "prometheus", address(), config))
        watch = Watch(watched)
        watched.wait("all are scraped", lambda: len(watched.series("lanewise_build_info")) == 3)
        watched.wait("nothing fires", lambda: not watched.firing())

        pool = stack.enter_context(ThreadPoolExecutor(32))
        stack.callback(crowded.running.stop)
        stack.callback(main.running.stop)
        # Sixteen at an engine that runs one: what it may not run waits inside it, past its time.
        for _ in range(16):
            pool.submit(ask, crowded.listen, 3000)

        def full():
            """One runs, two wait; what comes over that is refused."""
            pool.submit(ask, main.listen, 3000)
            return bool(watched.series('lanewise_queue_depth{lane="short"} == 2'))

        watched.wait("the queue is full", full)
        assert ask(main.listen, 5) == 429
        # The disk of the recorder takes no more: no file of the process may grow.
        resource.prlimit(main.running.process.pid, resource.RLIMIT_FSIZE, (0, 0))
        main.file.write_text("backends: [")
        main.running.process.send_signal(signal.SIGHUP)
        here, there = {"instance": main.admin}, {"backend": "engine-of-crowded"}

        def go_on():
            pool.submit(ask, main.listen, 3000)
            ask(odd.listen, 1, prompt=SENTENCE, model="exchanged")

        watch.wait(
            "queue full, disk full, configuration broken",
            go_on,
            LanewiseQueueFull={**here, "lane": "short"},
            LanewiseRejectionsHigh={"experiment": "main"},
            LanewiseRecorderDropping={**here, "reason": "disk_error"},
            LanewiseConfigReloadFailed=here,
        )
        engine.process.kill()
        watch.wait(
            "engine killed",
            go_on,
            LanewiseNoBackend=here,
            LanewiseBreakerOpen={**here, "backend": "engine-of-main"},
            LanewiseAvailabilityBudgetBurn={"experiment": "main", "severity": "page"},
        )
        main.running.stop()
        watch.wait(
            "proxy gone, engine crowded, answers cut, two models under one name, engine's metrics gone",
            go_on,
            LanewiseProxyDown=here,
            LanewiseQueueBypassed=there,
            LanewiseTTFTBudgetBurn={"experiment": "crowded", "severity": "page"},
            LanewiseCapTruncationHigh={"experiment": "crowded"},
            LanewiseLimitFlapping=there,
            LanewiseEstimateDrift={"model": "exchanged"},
            LanewiseMetricsStale={"instance": odd.admin},
        )
        shipped = yaml.safe_load(documents()["alerts.yaml"])["groups"][0]["rules"]
        assert {rule["alert"] for rule in shipped} == {labels["alertname"] for labels in watch.fired}
