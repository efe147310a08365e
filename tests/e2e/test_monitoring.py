"""A real Prometheus beside real servers: every panel has data, and alerts fire from what they name."""

import json
import resource
import signal
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

from loadgen.telemetry.exposed import NAMES
from tools.grafana.check import Screen, boards, findings
from tools.prometheus.render import documents
from tools.prometheus.server import prometheus, promtool

FACTOR = 60
"""What `for` and windows of the rules are divided by here."""
SCREEN = Screen(window="20s", over_s=40, step_s=2)
CARDS = """\
# TYPE npu_chip_info_hbm_used_memory gauge
npu_chip_info_hbm_used_memory{id="0"} 32255
npu_chip_info_hbm_used_memory{id="1",model_name="910B4",vdie_id="a",pod_name="vllm-0",namespace="llm"} 32255
npu_chip_info_hbm_total_memory{id="0"} 65536
npu_chip_info_hbm_total_memory{id="1",model_name="910B4",vdie_id="a",pod_name="vllm-0",namespace="llm"} 65536
npu_chip_info_utilization{id="0"} 57
npu_chip_info_utilization{id="1",model_name="910B4",vdie_id="a",pod_name="vllm-0",namespace="llm"} 61
npu_chip_info_temperature{id="0"} 48
npu_chip_info_temperature{id="1",model_name="910B4",vdie_id="a",pod_name="vllm-0",namespace="llm"} 51
npu_chip_info_power{id="0"} 92.5
npu_chip_info_power{id="1",model_name="910B4",vdie_id="a",pod_name="vllm-0",namespace="llm"} 94
npu_chip_info_health_status{id="0"} 1
npu_chip_info_health_status{id="1",model_name="910B4",vdie_id="a",pod_name="vllm-0",namespace="llm"} 1
"""


pytestmark = pytest.mark.usefixtures("promtools")


class Cards(BaseHTTPRequestHandler):
    """Text of an npu-exporter: one card as old releases label it, one as new ones do."""

    def do_GET(self):
        body = CARDS.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextmanager
def exporter():
    with ThreadingHTTPServer(("127.0.0.1", 0), Cards) as serving:
        thread = threading.Thread(target=serving.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{serving.server_address[1]}"
        serving.shutdown()
        thread.join()


def job(name, target, **labels):
    return {"job_name": name, "static_configs": [{"targets": [target], "labels": labels}]}


def scraping(*jobs, rules):
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": sorted(rules),
        "scrape_configs": list(jobs),
    }


def written_rules(folder):
    files = documents(FACTOR)
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    return files


def configured(folder, name, engine, listen, admin, **more):
    file = folder / f"{name}.yaml"
    whole = {
        "backends": [{"url": f"http://{engine}", "name": "engine"}],
        "listen": listen,
        "admin": admin,
        "state_dir": str(folder / f"{name}-state"),
        "metrics": {"experiment": name},
        "recorder": {"enabled": True, "directory": str(folder / f"{name}-trace")},
        **more,
    }
    file.write_text(yaml.safe_dump(whole))
    return file


def test_every_panel_of_every_dashboard_has_data_under_a_replay(tmp_path, server, address, until, call, get):  # noqa: PLR0917 - fixtures
    names = ("baseline", "candidate")
    listen, admin = ({name: address() for name in names} for _ in range(2))
    engine, shown, asked = address(), address(), address()
    with ExitStack() as stack:
        cards = stack.enter_context(exporter())
        stack.enter_context(server("loadgen", "sim", "serve", "--listen", engine, "--speed", 2))
        until(f"http://{engine}/health", 200)
        for name in names:
            # Nothing is dropped for its deadline, or on a slow machine everything could be.
            more = {"mode": "passthrough"} if name == "baseline" else {"scheduling": {"drop_factor": "never"}}
            file = configured(tmp_path, name, engine, listen[name], admin[name], **more)
            stack.enter_context(server("proxy", "serve", "--config", file))
            until(f"http://{admin[name]}/readyz", 200)
        files = written_rules(tmp_path / "prometheus")
        jobs = [job("lanewise", admin[name], experiment=name) for name in names]
        jobs[0]["static_configs"] += jobs.pop()["static_configs"]
        jobs += [job("vllm", engine), job("npu-exporter", cards), job("lanewise-load", shown)]
        watched = stack.enter_context(prometheus(tmp_path / "prometheus", asked, scraping(*jobs, rules=files)))
        options = ("--workload", "mixed", "--rows", 30, "--rate", 4, "--max-output", 100, "--speed", 2, "--no-certify")
        with ThreadPoolExecutor() as pool:
            runs = [
                pool.submit(
                    call,
                    "loadgen",
                    "replay",
                    *options,
                    *("--target", f"http://{listen[name]}", "--out", tmp_path / f"run-{name}"),
                    *(("--prometheus", shown) if name == "candidate" else ()),
                )
                for name in names
            ]
            page = until(f"http://{shown}/metrics", 200)
            missing = {}

            def complete():
                """Every panel has had data at some moment: what is sent and what is answered move at different ones."""
                for name, board in boards().items():
                    lines = set(findings(watched, board, SCREEN))
                    missing[name] = missing.get(name, lines) & lines
                return not any(missing.values())

            try:
                watched.wait("every panel has data", complete, patience_s=60)
            except TimeoutError:
                raise AssertionError("\n".join(line for lines in missing.values() for line in lines)) from None
            assert [run.result().err for run in runs if run.result().code] == []
        assert {
            target["health"]
            for target in watched.get("/api/v1/targets")["activeTargets"]
            if target["labels"]["job"] != "lanewise-load"
        } == {"up"}
        assert all(f"lanewise_load_{name}" in page for name in NAMES)
        now = time.time()
        exemplars = watched.get(
            "/api/v1/query_exemplars", query="lanewise_time_to_first_token_seconds_bucket", start=now - 60, end=now
        )
        assert any(one["labels"]["request_id"] for of in exemplars for one in of["exemplars"])
        for text in (get(f"http://{admin['candidate']}/metrics")[1], page):
            code, said = promtool("check", "metrics", given=text)
            assert code == 0, said


def ask(listen, max_tokens, timeout=60):
    """Send one streamed request and return its status; None when the connection fails."""
    asked = {"prompt": [1] * 50, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
    body = json.dumps({"model": "sim", **asked}).encode()
    request = urllib.request.Request(
        f"http://{listen}/v1/completions", data=body, headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            answer.read()
            return answer.status
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code
    except OSError:
        return None


def test_alerts_fire_from_what_they_name(tmp_path, server, address, until):
    engine, listen, admin, asked = (address() for _ in range(4))
    tight = {
        "scheduling": {"concurrency": 1, "drop_factor": "never", "adaptive": {"enabled": False}},
        "lanes": {"short": {"queue": {"requests": 2}}},
        "probes": {"interval": "500ms", "down_after": 2},
    }
    file = configured(tmp_path, "candidate", engine, listen, admin, **tight)
    with ExitStack() as stack:
        running = stack.enter_context(server("loadgen", "sim", "serve", "--listen", engine, "--model", "sim"))
        until(f"http://{engine}/health", 200)
        proxy = stack.enter_context(server("proxy", "serve", "--config", file))
        until(f"http://{admin}/readyz", 200)
        files = written_rules(tmp_path / "prometheus")
        config = scraping(job("lanewise", admin), rules=files)
        watched = stack.enter_context(prometheus(tmp_path / "prometheus", asked, config))
        watched.wait("it is scraped", lambda: bool(watched.series("lanewise_build_info")))
        assert watched.firing() == set()

        def fires(*alerts, meanwhile=lambda: None):
            silent = set(alerts)

            def met():
                meanwhile()
                silent.difference_update(watched.firing())
                return not silent

            try:
                watched.wait("alerts fire", met)
            except TimeoutError:
                raise AssertionError(f"silent: {silent}; fired: {watched.firing()}") from None

        pool = stack.enter_context(ThreadPoolExecutor(8))
        stack.callback(proxy.stop)
        for _ in range(3):  # one runs, two wait: the queue is full
            pool.submit(ask, listen, 3000)
        watched.wait("the queue is full", lambda: bool(watched.series('lanewise_queue_depth{lane="short"} == 2')))
        assert ask(listen, 5) == 429
        # The disk of the recorder takes no more: no file of the process may grow.
        resource.prlimit(proxy.process.pid, resource.RLIMIT_FSIZE, (0, 0))
        file.write_text("backends: [")
        proxy.process.send_signal(signal.SIGHUP)
        fires(
            "LanewiseQueueFull",
            "LanewiseRejectionsHigh",
            "LanewiseRecorderDropping",
            "LanewiseConfigReloadFailed",
            meanwhile=lambda: ask(listen, 5),
        )
        running.process.kill()
        fires(
            "LanewiseNoBackend",
            "LanewiseBreakerOpen",
            "LanewiseAvailabilityBudgetBurn",
            meanwhile=lambda: ask(listen, 5),
        )
        proxy.stop()
        fires("LanewiseProxyDown")
