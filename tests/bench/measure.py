#!/usr/bin/env python3
"""Puts one reverse proxy through the stages and writes RESDIR/NAME.json (see run.sh). Only the standard library.

The proxy runs pinned to --proxy-cpu (default 0), mock upstream and client to --load-cpu (default 1). CPU is what the
scheduler accounts to the proxy's process tree (ns). A stage that is run again replaces its old result; --append keeps
the old one beside it. The stages of one call run while holding a lock file, so that two users of a machine who name the
same file do not disturb one another.
"""

import argparse
import contextlib
import fcntl
import json
import os
import re
import resource
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.abspath(os.environ.get("OUT", HERE + "/out"))
RES = os.path.abspath(os.environ.get("RESDIR", OUT + "/results"))
LOAD, MOCK = OUT + "/bin/load", OUT + "/bin/mock"
STAGES = ["lat1", "sat", "low", "big", "flat", "p200", "p1000", "burst", "sse_sat", "mem", "cancel"]
DEFAULT_STAGES = "lat1,sat,big,flat,p200,p1000,burst,sse_sat,mem,cancel"


def read(path):
    with open(path) as f:
        return f.read()


@contextlib.contextmanager
def lock(path):
    with open(path, "w") as f:  # not inherited by children: a server left behind cannot keep the lock
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def tree(pid):
    """The process and all its descendants."""
    kids = {}
    for p in os.listdir("/proc"):
        if p.isdigit():
            with contextlib.suppress(OSError):
                s = read(f"/proc/{p}/stat")
                kids.setdefault(int(s[s.rindex(")") + 2 :].split()[1]), []).append(int(p))
    out, todo = [], [pid]
    while todo:
        x = todo.pop()
        out.append(x)
        todo += kids.get(x, [])
    return out


def cpu(pid):
    """CPU seconds (ns resolution) of the process, its threads and its descendants."""
    t = 0
    for p in tree(pid):
        with contextlib.suppress(OSError):
            for th in os.listdir(f"/proc/{p}/task"):
                t += int(read(f"/proc/{p}/task/{th}/schedstat").split()[0])
    return t / 1e9


def ticks(pid):
    """User and system seconds (coarse: clock ticks)."""
    u = s = 0
    for p in tree(pid):
        with contextlib.suppress(OSError):
            f = read(f"/proc/{p}/stat")
            f = f[f.rindex(")") + 2 :].split()
            u += int(f[11])
            s += int(f[12])
    hz = os.sysconf("SC_CLK_TCK")
    return u / hz, s / hz


def pss_kb(pid):
    """Proportional set size of the tree. The kernel's socket buffers are not in it."""
    n = 0
    for p in tree(pid):
        with contextlib.suppress(OSError):
            for line in read(f"/proc/{p}/smaps_rollup").splitlines():
                if line.startswith("Pss:"):
                    n += int(line.split()[1])
    return n


def http(port, path, timeout=5):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=timeout) as r:
        return r.read()


def listening(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def listener_pid(port):
    out = subprocess.run(["ss", "-Hltnp", f"sport = :{port}"], check=False, capture_output=True, text=True).stdout
    m = re.search(r"pid=(\d+)", out)
    if not m:
        raise SystemExit(f"port {port} answers, but its process is not visible: stop it or use another --mock-port")
    return int(m[1])


@contextlib.contextmanager
def realtime(pids, on):
    """Round-robin real-time class for proxy, mock and client while stages run: background jobs cannot delay them."""

    def put(policy, priority):
        for p in [q for r in pids for q in tree(r)]:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                for th in os.listdir(f"/proc/{p}/task"):
                    with contextlib.suppress(ProcessLookupError):
                        os.sched_setscheduler(int(th), policy, os.sched_param(priority))

    if not on:
        yield
        return
    try:
        put(os.SCHED_RR, 1)
    except PermissionError:
        raise SystemExit("--rt needs root (or CAP_SYS_NICE)") from None
    try:
        yield
    finally:
        put(os.SCHED_OTHER, 0)


class Bench:
    def __init__(self, a):
        self.a = a
        self.file = f"{RES}/{a.name}.json"
        self.res = {}
        with contextlib.suppress(OSError, ValueError):
            self.res = json.loads(read(self.file))
        self.res.update(name=a.name, cmd=a.cmd)

    def mock(self, **kw):
        query = "&".join(f"{k}={v}" for k, v in kw.items())
        return json.loads(http(self.a.mock_port, "/_mock/config?" + query))

    def load(self, *args, sample=None, timeout=60):
        """Runs the client; its result plus the CPU that the proxy used meanwhile. sample: seconds until memory is read."""
        a = self.a
        c0, (u0, s0), t0 = cpu(self.pid), ticks(self.pid), time.time()
        cmd = ["chrt", "-r", "1"] if a.rt else ["nice", "-n", a.nice]
        cmd += ["taskset", "-c", a.load_cpu, LOAD, args[0], "-p", f"{a.port},{a.mock_port}", *map(str, args[1:])]
        cmd += (["-H", a.header] if a.header else []) + ["-P", a.path]
        p = subprocess.Popen(cmd, stdout=subprocess.PIPE, text=True)
        extra = {}
        if sample:
            time.sleep(sample)
            fds = sum(len(os.listdir(f"/proc/{q}/fd")) for q in tree(self.pid))
            extra = {"pss_kb": pss_kb(self.pid), "mock": self.mock(), "fds": fds}
        out, _ = p.communicate(timeout=timeout)
        if p.returncode:
            raise SystemExit(f"client failed ({p.returncode}): {shlex.join(cmd)}")
        r = json.loads(out)
        u1, s1 = ticks(self.pid)
        r.update(cpu_s=cpu(self.pid) - c0, user_s=round(u1 - u0, 2), sys_s=round(s1 - s0, 2), wall=time.time() - t0)
        r.update(extra)
        return r

    def start(self, log):
        """Starts the proxy and waits until a request goes through it."""
        a = self.a
        if listening(a.port):
            raise SystemExit(f"port {a.port} is taken: what answers there would be measured in place of {a.name}")
        conf = ""
        if a.conf:
            text = read(a.conf)
            for mark, value in (("@PORT@", a.port), ("@MOCK@", a.mock_port), ("@RUN@", RES)):
                text = text.replace(mark, str(value))
            conf = f"{RES}/{a.name}.{os.path.basename(a.conf)}"
            with open(conf, "w") as f:
                f.write(text)
        env = dict(os.environ, **dict(x.split("=", 1) for x in a.env))
        env.update(UP=f"http://127.0.0.1:{a.mock_port}", PORT=str(a.port))
        env["PATH"] += ":/usr/local/sbin:/usr/sbin:/sbin"
        cmd = shlex.split(a.cmd.format(port=a.port, mock=a.mock_port, here=HERE, conf=conf))
        px = subprocess.Popen(
            ["nice", "-n", a.nice, "taskset", "-c", a.proxy_cpu, *cmd],
            cwd=a.cwd, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        t0 = time.time()
        probe = [LOAD, "req", "-p", str(a.port), "-c", "1", "-d", "3", "-n", "1", "-P", a.path]
        probe += ["-H", a.header] if a.header else []
        while True:
            if listening(a.port):
                answer = subprocess.run(probe, check=False, capture_output=True, text=True).stdout
                if answer and json.loads(answer)["ok"]:
                    break
            if px.poll() is not None or time.time() - t0 > a.start_timeout:
                self.stop(px)
                raise SystemExit(f"{a.name}: did not become ready, see {log.name}")
            time.sleep(0.5)
        self.res["start_s"] = round(time.time() - t0, 1)
        return px

    def stop(self, px):
        with contextlib.suppress(OSError):
            os.kill(px.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            px.wait(2)
        with contextlib.suppress(OSError):
            os.killpg(px.pid, signal.SIGKILL)  # start_new_session: nothing else is in that group
        px.wait()

    def run(self):
        a = self.a
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 200000), hard))
        mk = px = None
        try:
            if not listening(a.mock_port):
                mk = subprocess.Popen(["nice", "-n", a.nice, "taskset", "-c", a.load_cpu, MOCK, str(a.mock_port)])
                while not listening(a.mock_port):
                    if mk.poll() is not None:
                        raise SystemExit("the mock did not start")
                    time.sleep(0.05)
            self.mock_pid = mk.pid if mk else listener_pid(a.mock_port)
            self.mock(interval_us=0, delay_us=0, pad=a.pad, sync=0)
            with open(f"{RES}/{a.name}.log", "w") as log:
                if a.cmd:
                    px = self.start(log)
                    self.pid = px.pid
                else:  # direct: the client straight at the mock; the CPU is the mock's
                    self.pid = self.mock_pid
                self.load("req", "-c", 8, "-d", 0.5, "-n", 300)  # warm-up: allocators, connection pools
                self.load("sse", "-c", 8, "-d", 0.5, "-k", 20)
                fresh = set()
                with lock(a.lock), realtime([self.pid, self.mock_pid], a.rt):
                    for st in a.stages.split(",") * a.repeat:
                        r = getattr(self, "st_" + st)()
                        if st not in fresh and not a.append:
                            self.res[st] = []
                        fresh.add(st)
                        self.res.setdefault(st, []).append(r)
                        self.res.setdefault("when", {})[st] = time.strftime("%F %T")
                        print(a.name, st, json.dumps(r)[:300], file=sys.stderr, flush=True)
                        with open(self.file, "w") as f:
                            json.dump(self.res, f, indent=1)
        finally:
            if px:
                self.stop(px)
            if mk:
                mk.terminate()
                mk.wait()
            elif listening(a.mock_port):
                self.mock(interval_us=0, delay_us=0, sync=0)

    def idle(self):
        """Waits until the mock has no open stream; how many are left."""
        for _ in range(60):
            if not self.mock()["active"]:
                break
            time.sleep(0.5)
        return self.mock()["active"]

    # -- stages -------------------------------------------------------------------------------------------------------

    def st_lat1(self):
        """Added latency: one connection each, requests alternate proxied / direct."""
        self.mock(interval_us=0, delay_us=0)
        return self.load("req", "-c", 1, "-n", self.a.lat_n, "-d", 5, "-b", self.a.body)

    def st_sat(self):
        """Saturation: 32 connections, closed loop, 3 s."""
        self.mock(interval_us=0, delay_us=0)
        return self.load("req", "-c", 32, "-d", 3, "-b", self.a.body)

    def st_low(self):
        """CPU per request at low load: 8 connections against 20 ms of upstream delay, at most 400 requests/s."""
        self.mock(interval_us=0, delay_us=20000)
        return self.load("req", "-c", 8, "-d", 4, "-b", self.a.body)

    def st_big(self):
        """100 KB bodies, 8 connections, closed loop, 3 s."""
        self.mock(interval_us=0, delay_us=0)
        return self.load("req", "-c", 8, "-d", 3, "-b", 100000)

    def st_flat(self):
        """SSE flat out: 16 streams without a pace; events coalesce in the socket buffers."""
        self.mock(interval_us=0, delay_us=0)
        return self.load("sse", "-c", 16, "-d", 3, "-k", 500, "-L", "-b", self.a.body)

    def st_p200(self):
        """200 streams at 20 events/s (4,000 events/s), opened within 1 s, 20 direct streams beside them."""
        self.mock(interval_us=50000, delay_us=20000)
        return self.load("sse", "-c", 200, "-r", 20, "-d", 15, "-k", 80, "-R", 1, "-b", self.a.body)

    def st_p1000(self):
        """1,000 streams at 20 events/s (20,000 events/s), opened within 2 s, 20 direct streams beside them."""
        self.mock(interval_us=50000, delay_us=20000)
        return self.load("sse", "-c", 1000, "-r", 20, "-d", 15, "-k", 80, "-R", 2, "-b", self.a.body)

    def st_burst(self):
        """256 streams whose events come at the same instant, 20 times a second (one decode step of an engine)."""
        self.mock(interval_us=50000, delay_us=20000, sync=1)
        try:
            return self.load("sse", "-c", 256, "-r", 4, "-d", 15, "-k", 80, "-R", 0.3, "-b", self.a.body)
        finally:
            self.mock(sync=0)

    def st_sse_sat(self):
        """200 streams, 100,000 events/s offered: what gets through."""
        self.mock(interval_us=2000, delay_us=0)
        return self.load("sse", "-c", 200, "-d", 4, "-k", 1500, "-L", "-R", 0.5, "-b", self.a.body)

    def st_mem(self):
        """Memory per open stream at 1,000 and 5,000 streams (one event every 2 s)."""
        self.mock(interval_us=2000000, delay_us=0)
        a0 = self.idle()
        out = {"idle_kb": pss_kb(self.pid)}
        for n, ramp, hold in ((1000, 2, 4), (5000, 7, 10)):
            r = self.load(
                "sse", "-c", n, "-d", hold, "-k", 1000, "-R", ramp, "-b", self.a.body, sample=hold - 0.6, timeout=90
            )
            time.sleep(1.5)
            out[str(n)] = {k: r[k] for k in ("pss_kb", "events", "err", "status", "fds", "cpu_s", "ttft")}
            out[str(n)]["active"] = r["mock"]["active"] - a0
            out[str(n)]["active_1.5s_after_close"] = self.mock()["active"] - a0
            if out[str(n)]["active"] < 0.9 * n:
                break
        return out

    def st_cancel(self):
        """50 clients leave (a) before the first event, (b) between two events: when does the upstream see it?"""
        out = {}
        for name, pace in (
            ("before_first_event", {"interval_us": 50000, "delay_us": 20_000_000}),
            ("between_events", {"interval_us": 10_000_000, "delay_us": 0}),
        ):
            a0 = self.idle()
            self.mock(**pace)
            self.load("sse", "-c", 50, "-d", 1.5, "-k", 10)
            t, left = time.time(), {}
            for s in (0.1, 0.5, 1, 2, 4):
                time.sleep(max(0, t + s - time.time()))
                left[str(s)] = self.mock()["active"] - a0
                if left[str(s)] <= 0:
                    break
            out[name] = left
        return out


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--name", required=True, help="name of the row")
    p.add_argument("--port", type=int, required=True, help="port that the proxy will listen on (127.0.0.1)")
    p.add_argument("--cmd", default="", help="start command; {port} {mock} {here} {conf} are filled in; empty = direct")
    p.add_argument("--conf", default="", help="template; @PORT@ @MOCK@ @RUN@ are filled in; its copy is {conf}")
    p.add_argument("--env", action="append", default=[], help="K=V for the proxy (UP and PORT are always set)")
    p.add_argument("--cwd", default=RES)
    p.add_argument("--mock-port", type=int, default=23001)
    p.add_argument("--path", default="/v1/chat/completions")
    p.add_argument("--header", default="", help='extra request header, with its "\\r\\n"')
    p.add_argument("--body", type=int, default=2000, help="bytes of the request body")
    p.add_argument("--pad", type=int, default=0, help="extra bytes in each event")
    p.add_argument("--stages", default=DEFAULT_STAGES, help="any of: " + " ".join(STAGES))
    p.add_argument("--repeat", type=int, default=1)
    p.add_argument("--append", action="store_true", help="keep earlier results of a stage (table.py takes the best)")
    p.add_argument("--lat-n", type=int, default=3000, help="pairs of stage lat1")
    p.add_argument("--proxy-cpu", default="0")
    p.add_argument("--load-cpu", default="1")
    p.add_argument("--lock", default=OUT + "/lock")
    p.add_argument("--rt", action="store_true", help="run the stages in the real-time class (needs root)")
    p.add_argument("--nice", default="-10")
    p.add_argument("--start-timeout", type=float, default=60)
    a = p.parse_args()
    a.header = a.header.encode().decode("unicode_escape")
    if bad := [s for s in a.stages.split(",") if s not in STAGES]:
        p.error(f"unknown stage {', '.join(bad)}; stages: {' '.join(STAGES)}")
    if not os.access(LOAD, os.X_OK) or not os.access(MOCK, os.X_OK):
        p.error(f"{OUT}/bin has no binaries: run run.sh once, it builds them")
    os.makedirs(RES, exist_ok=True)
    Bench(a).run()
