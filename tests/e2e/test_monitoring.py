"""A real Prometheus beside real servers: every panel of every dashboard has data."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from watching import configured, job, scraping, written_rules

from loadgen.telemetry.exposed import NAMES
from tools.grafana.check import Screen, boards, findings
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
        files = written_rules(tmp_path / "prometheus", FACTOR)
        jobs = [job("lanewise", *((admin[name], {"experiment": name}) for name in names))]
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
