"""The load generator's cases of runs that are interrupted, starved, or asked for what they must not do."""

import asyncio
import json
import resource
import signal
import ssl
import tempfile
from pathlib import Path
from typing import Any

from tests.faults import upstream
from tests.faults.case import NotRunError, case
from tests.faults.loadgen_streams import WHOLE, every_other, stream, text, usage
from tests.faults.operations import _in_namespace, _need_namespace
from tests.faults.replaying import Asked, Replay, azure, command, ended, mooncake, run_to_end, running, seen, summary
from tests.faults.station import ROOT, Options, spawn
from tests.faults.upstream import DONE, Connection, Seen, Upstream, slow_stream


@case(
    "LG-00",
    "Ctrl-C halfway",
    {
        "exit": 130,
        "complete": False,
        "shots": 200,
        "outcomes": {"ok": {"at_least": 10}, "cancelled": {"at_least": 10}},
        "summary": {"warned": True},
    },
    why="the part that ran is written and marked as a part; every planned request has an outcome",
)
async def _interrupt() -> dict[str, Any]:
    async with running(Asked(trace=mooncake(200, 50)), WHOLE) as replay:
        await _sent(replay, 20)
        replay.process.signal(signal.SIGINT)
        await ended(replay)
        told = await summary(replay)
        return seen(replay) | {"summary": {"warned": "incomplete" in json.dumps(told.get("warnings", told))}}


async def _sent(replay: Replay, shots: int, within: float = 60.0) -> None:
    """Wait until the journal holds some lines."""
    async with asyncio.timeout(within):
        while len(replay.shots) < shots and replay.process.popen.poll() is None:
            await asyncio.sleep(0.05)


@case(
    "LG-01",
    "kill -9 halfway",
    {
        "shots": {"at_least": 20},
        "broken_lines": 0,
        "complete": False,
        "summary_exit": {"one_of": [0, 4]},
        "again": {"exit": 2, "words": {"contains": "not empty"}},
    },
    why="what was flushed can be read, and a second run does not mix with it",
)
async def _kill() -> dict[str, Any]:
    async with running(Asked(trace=mooncake(200, 50)), WHOLE) as replay:
        await _sent(replay, 20)
        replay.process.signal(signal.SIGKILL)
        await ended(replay)
        told = await summary(replay)
        arguments = ("replay", str(replay.folder / "trace.jsonl"), "--target", "http://127.0.0.1:9")
        out = str(replay.folder / "run")
        again = spawn(command(*arguments, "--out", out), replay.folder, Options({"PYTHONPATH": str(ROOT)}))
        code = await again.exit(20.0)
        return seen(replay) | {
            "broken_lines": replay.broken_lines,
            "summary_exit": told["exit"],
            "again": {"exit": code, "words": again.log[-300:]},
        }


@case(
    "LG-03",
    "the disk is full (a tmpfs of 16 kB)",
    {"exit": 1, "words": {"matches": r"(?i)space|disk"}, "readable": {"at_least": 1}, "traceback": False},
    why="it says so and stops; what is on the disk can be read",
)
async def _full_disk() -> dict[str, Any]:
    await _need_namespace()
    # The mount is seen by the program alone, so it hands a copy of the folder back when it ends.
    script = (
        'mkdir -p run && mount -t tmpfs -o size=16k none run && "$@"; code=$?; mkdir kept; cp run/* kept/; exit $code'
    )
    prefix = ("unshare", "-rm", "sh", "-c", script, "sh")
    async with running(Asked(trace=mooncake(300, 5), prefix=prefix), WHOLE) as replay:
        await ended(replay)
        kept = replay.folder / "kept/shots.jsonl"
        lines = kept.read_bytes().split(b"\n")[:-1] if kept.exists() else []
        readable = sum(isinstance(json.loads(line), dict) for line in lines)
        return {
            "exit": replay.code,
            "words": replay.words[-300:],
            "readable": readable,
            "traceback": "Traceback" in replay.words,
        }


_RECORD = {"schema": "lanewise.trace/1", "arrived_s": 5.0, "request_id": "a", "endpoint": "chat", "outcome": "ok"}
_BAD_LINES: dict[str, str] = {
    "truncated": '{"timestamp": 75, "input_le',
    "no JSON": "this is no JSON",
    "a list": "[1, 2]",
    "unknown version": json.dumps(_RECORD | {"schema": "lanewise.trace/99"}),
    "negative time": '{"timestamp": -5, "input_length": 10, "output_length": 3, "hash_ids": [1]}',
    "missing field": '{"timestamp": 75, "output_length": 3, "hash_ids": [1]}',
    "prompt of length 0": '{"timestamp": 75, "input_length": 0, "output_length": 3, "hash_ids": [1]}',
}


@case(
    "LG-04",
    "a trace with a bad line (" + ", ".join(_BAD_LINES) + "), with times out of order, a byte order mark, and CRLF",
    {
        **{
            name: {
                "refused": {"exit": 2, "words": {"matches": r"trace\.jsonl:4"}},
                "skipping": {"requests": 6, "skipped": 1},
            }
            for name in _BAD_LINES
        },
        "times out of order": {"any_of": [{"requests": 6, "sorted": True}, {"exit": 2}]},
        "byte order mark and CRLF": {"any_of": [{"requests": 6}, {"exit": 2}]},
    },
    why="named with its line, and refused, or counted when skipping was asked for; never dropped in silence",
)
async def _bad_traces() -> dict[str, Any]:
    good = mooncake(6).splitlines()
    traces = {name: "\n".join([*good[:3], line, *good[3:]]) + "\n" for name, line in _BAD_LINES.items()}
    mixed = "\n".join([good[0], good[3], *good[1:3], *good[4:]]) + "\n"
    refused = await asyncio.gather(*(_plan(trace) for trace in traces.values()))
    skipping = await asyncio.gather(*(_plan(trace, "--bad-lines", "skip") for trace in traces.values()))
    out_of_order = await _plan(mixed)
    return {
        **{
            name: {
                "refused": {"exit": no["exit"], "words": no["words"]},
                "skipping": {"requests": yes["requests"], "skipped": yes["skipped"], "words": yes["words"]},
            }
            for name, no, yes in zip(traces, refused, skipping, strict=True)
        },
        "times out of order": out_of_order | {"sorted": out_of_order["span_s"] == 0.125},
        "byte order mark and CRLF": await _plan("\ufeff" + "\r\n".join(good) + "\r\n"),
    }


async def _plan(trace: str, *arguments: str) -> dict[str, Any]:
    """What `--dry-run --json` makes of a trace."""
    async with running(Asked(("--dry-run", "--json", *arguments), trace)) as replay:
        await ended(replay)
        lines = [line for line in replay.words.splitlines() if line.startswith("{")]
    document = json.loads(lines[0]) if lines else {}
    return {
        "exit": replay.code,
        "words": replay.words[-200:] if replay.code else "",
        "requests": document.get("requests"),
        "skipped": (document.get("bad_lines") or {}).get("skipped"),
        "span_s": document.get("span_s"),
    }


@case(
    "LG-05",
    "a trace of a million rows",
    {"exit": 0, "requests": 1_000_000, "peak_rss_mb": {"at_most": 500}},
)
async def _million() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        file = Path(name) / "trace.csv"
        await asyncio.to_thread(azure, file, 1_000_000)
        async with running(Asked(("--dry-run", "--json"), file=file)) as replay:
            peak = 0.0
            while replay.process.popen.poll() is None:
                peak = max(peak, _peak_mb(replay.process.popen.pid))
                await asyncio.sleep(0.5)
            await ended(replay)
            lines = [line for line in replay.words.splitlines() if line.startswith("{")]
    return {
        "exit": replay.code,
        "requests": json.loads(lines[0])["requests"] if lines else replay.words[-200:],
        "peak_rss_mb": round(peak),
    }


def _peak_mb(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text("ascii")
    except OSError:
        return 0.0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return int(found[0]) / 1000 if found else 0.0


@case(
    "LG-07",
    "a load generator that is held up for 0.3 s again and again",
    {"client_limited": True, "lag_p99_s": {"at_least": 0.1}, "loop_lag_max_s": {"at_least": 0.1}, "warned": True},
    why="it measures its own lateness and says that the run is not worth much",
)
async def _held_up() -> dict[str, Any]:
    async with running(Asked(trace=mooncake(150, 20)), WHOLE) as replay:
        await _sent(replay, 1)
        for _ in range(3):
            replay.process.signal(signal.SIGSTOP)
            await asyncio.sleep(0.3)
            replay.process.signal(signal.SIGCONT)
            await asyncio.sleep(0.3)
        await ended(replay)
        told = await summary(replay)
        manifest = replay.manifest
    return {
        "client_limited": manifest.get("client_limited"),
        "lag_p99_s": told.get("lag", {}).get("p99"),
        "loop_lag_max_s": manifest.get("loop_lag_max_s"),
        "warned": "client_limited" in json.dumps(told.get("warnings")),
        "exit": replay.code,
    }


@case(
    "LG-08",
    "600 requests within half a second to an engine that takes 1.5 s; and an event of 3 MB",
    {"most_at_once": 600, "outcomes": {"ok": 600}, "large": {"outcomes": {"ok": 1}}},
    why="no limit on connections, and none on the length of an event",
    alone=True,
)
async def _no_limit() -> dict[str, Any]:
    now = most = 0

    async def slow(seen: Seen, connection: Connection) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(1.5)
        now -= 1
        await WHOLE(seen, connection)

    trace = mooncake(600, 1)
    got = await run_to_end(Asked(trace=trace), slow)
    large = await run_to_end(
        Asked(trace=mooncake(1)), stream([text("x" * 3_000_000), text("", "stop"), usage(10, 3), DONE])
    )
    return got | {"most_at_once": most, "large": {"outcomes": large["outcomes"]}}


@case(
    "LG-09",
    "64 descriptors for a plan that needs more",
    {
        "exit": {"one_of": [1, 2]},
        "words": {"matches": r"\d{2,}.*(files|descriptors)|(files|descriptors).*\d{2,}"},
        "shots": 0,
    },
    why="refused before the first request, with the number that is needed",
)
async def _descriptors() -> dict[str, Any]:
    limit = 64
    asked = Asked(trace=mooncake(400, 1), before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)))
    return await run_to_end(asked, slow_stream(3, 0.5, 1.0))


@case(
    "LG-16",
    "the wall clock jumps an hour ahead in the middle of a run",
    {"outcomes": {"ok": 40}, "longest_s": {"at_least": 0, "at_most": 2.0}, "jumped": True},
    why="planted in time.time; durations come from another clock",
)
async def _clock() -> dict[str, Any]:
    async with running(Asked(trace=mooncake(40, 50), env={"FAULT_CLOCK_JUMP": "3600"}), WHOLE) as replay:
        await _sent(replay, 5)
        replay.process.signal(signal.SIGUSR2)
        await ended(replay)
        shots, manifest = replay.shots, replay.manifest
        return seen(replay) | {
            "longest_s": max((shot.get("end") or 0) - shot["due"] for shot in shots) if shots else None,
            "jumped": str(manifest.get("started_at"))[:13] != str(manifest.get("ended_at"))[:13],
        }


def _refused_target(identity: str, given: str, target: str, host: str) -> None:
    async def observe() -> dict[str, Any]:
        return await run_to_end(Asked(trace=mooncake(3), target=target))

    rule = {"exit": 2, "words": {"contains": host}, "shots": 0}
    case(identity, given, rule, why="refused before a packet is sent, and the host is named")(observe)


_refused_target("LG-17", "a target that is not this machine", "http://192.0.2.7:8000", "192.0.2.7")
_refused_target("LG-18", "a target by the name of a production host", "https://llm.prod.example", "llm.prod.example")

_KEY = "sk-canary-51c2"


@case(
    "LG-19",
    "an API key in the environment: in a run that goes well, one whose target dies, and one that is wrong",
    {"found_in": [], "sent": True, "runs": 3},
    why="it reaches the target, and no file, output or error",
)
async def _key() -> dict[str, Any]:
    env = {"LANEWISE_API_KEY": _KEY}
    texts: dict[str, str] = {}
    async with Upstream(every_other(WHOLE, upstream.raw(b""))) as engine:
        for name, asked in {
            "well": Asked(("--json",), mooncake(6), env=env),
            "dead": Asked((), mooncake(2), env=env, target="http://127.0.0.1:9"),
            "wrong": Asked(("--rate", "many"), mooncake(2), env=env),
        }.items():
            async with running(asked, upstream=engine) as replay:
                await ended(replay)
                files = [file for file in (replay.folder / "run").rglob("*") if file.is_file()]
                texts[name] = replay.words + "".join(file.read_text("utf-8") for file in files)
        sent = any(_KEY in ",".join(one.all("authorization")) for one in engine.requests)
    return {"found_in": [name for name, found in texts.items() if _KEY in found], "sent": sent, "runs": len(texts)}


async def _self_signed(folder: Path) -> ssl.SSLContext:
    """A certificate that nobody signed, made for this run."""
    try:
        made = await asyncio.create_subprocess_exec(
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")),
            stderr=asyncio.subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise NotRunError("the program openssl, to make a certificate") from None
    await made.wait()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


@case(
    "LG-20",
    "a TLS target whose certificate nobody signed",
    {
        "refused": {"exit": {"one_of": [1, 2]}, "words": {"matches": r"(?i)certificate"}, "shots": 0},
        "insecure": {"exit": 0, "recorded": True},
    },
    why="refused; going on is explicit (--insecure) and recorded in the run",
)
async def _tls() -> dict[str, Any]:
    async with Upstream(WHOLE) as engine:
        await engine.stop()
        secure = _TlsUpstream(WHOLE)
        async with secure:
            refused = await run_to_end(Asked(trace=mooncake(3), target=secure.url))
            async with running(Asked(("--insecure",), mooncake(3), target=secure.url), upstream=engine) as replay:
                await ended(replay)
                insecure = seen(replay) | {"recorded": replay.manifest.get("insecure") is True}
    return {"refused": refused, "insecure": insecure}


class _TlsUpstream(Upstream):
    """An upstream with a certificate of its own making."""

    async def start(self) -> None:
        with tempfile.TemporaryDirectory(prefix="faults-") as name:
            self.context = await _self_signed(Path(name))
        self._server = await asyncio.start_server(self._connected, self.host, self.port, ssl=self.context)
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"


@case(
    "LG-21",
    "30 requests one after the other",
    {"connections": {"at_most": 3}, "reported": {"at_most": 3}, "outcomes": {"ok": 30}},
    why="connections are used again, and the run says how many there were",
)
async def _reuse() -> dict[str, Any]:
    async with Upstream(WHOLE) as engine:
        async with running(Asked(trace=mooncake(30, 60)), upstream=engine) as replay:
            await ended(replay)
            got = seen(replay) | {"reported": replay.manifest.get("connections")}
        carrying = {one.connection.number for one in engine.requests if one.method == "POST"}
        return got | {"connections": len(carrying)}


def _write_name() -> None:
    Path("hosts").write_text("127.0.0.1 engine.test\n", "utf-8")


@case(
    "LG-22",
    "a target by name whose name is gone after the first requests, each on a connection of its own",
    {"outcomes": {"ok": 40}},
    why="looked up once, not for every request",
)
async def _name() -> dict[str, Any]:
    await _need_namespace()
    async with Upstream(WHOLE) as engine:
        asked = Asked(
            ("--fresh-connections", "--allow-target", "engine.test"),
            mooncake(40, 100),
            prefix=_in_namespace("mount --bind hosts /etc/hosts"),
            before=_write_name,
            target=f"http://engine.test:{engine.port}",
        )
        async with running(asked, upstream=engine) as replay:
            await _sent(replay, 5)
            (replay.folder / "hosts").write_text("# nothing\n", "utf-8")
            await ended(replay)
            return seen(replay)


@case(
    "LG-23",
    "the same trace, seed and salt twice",
    {"same_bytes": True, "same_order": True, "same_hash": True, "requests": 30},
    why="the same requests in the same order, and a hash that says so",
)
async def _same() -> dict[str, Any]:
    bodies: list[list[bytes]] = []
    hashes: list[Any] = []
    orders: list[list[Any]] = []
    for _ in range(2):
        async with Upstream(WHOLE) as engine:
            async with running(Asked(("--seed", "5", "--salt", "x"), rows=30, rate=30.0), upstream=engine) as replay:
                await ended(replay)
                hashes.append(replay.manifest.get("plan", {}).get("hash"))
            # Two that leave within a millisecond may arrive in either order; the journal keeps the order of the plan.
            bodies.append(sorted(one.body for one in engine.requests if one.method == "POST"))
            orders.append([(shot["index"], shot["prompt_tokens"]) for shot in sorted(replay.shots, key=_index)])
    return {
        "same_bytes": bodies[0] == bodies[1],
        "same_order": orders[0] == orders[1],
        "same_hash": hashes[0] == hashes[1] is not None,
        "requests": len(bodies[0]),
        "hashes": hashes,
    }


def _index(shot: dict[str, Any]) -> int:
    return int(shot["index"])


@case(
    "LG-24",
    "two runs of different traces, compared",
    {"exit": 4, "words": {"matches": r"(?i)plan|trace|differ"}},
    why="refused, with the reason",
)
async def _different() -> dict[str, Any]:
    async with (
        Upstream(WHOLE) as engine,
        running(Asked(trace=mooncake(20)), upstream=engine) as first,
        running(Asked(trace=mooncake(21)), upstream=engine) as second,
    ):
        await ended(first)
        await ended(second)
        runs = (str(first.folder / "run"), str(second.folder / "run"))
        compare = spawn(command("compare", *runs), first.folder, Options({"PYTHONPATH": str(ROOT)}))
        return {"exit": await compare.exit(20.0), "words": compare.log[-300:]}


@case(
    "LG-25",
    "pauses of the interpreter",
    {"loop_lag_p99_s": {"at_least": 0, "at_most": 0.05}, "loop_lag_max_s": {"at_least": 0}},
    why="the longest pause of the event loop, the collector's included, is in the manifest",
)
async def _pauses() -> dict[str, Any]:
    async with running(Asked(trace=mooncake(40)), WHOLE) as replay:
        await ended(replay)
        return {key: replay.manifest.get(key) for key in ("loop_lag_p99_s", "loop_lag_max_s")}
