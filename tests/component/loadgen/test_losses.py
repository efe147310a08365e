"""What takes a run down leaves a clear reason: names, open files, a target that dies."""

import asyncio
import sys

import pytest

from loadgen.failure import StopError
from loadgen.journal import RunFolder
from loadgen.replay import replay_in_loop


async def test_a_name_without_an_address_is_told_and_nothing_is_written(asking):
    options = asking("http://no-such-host.invalid:8000", allow_targets=("no-such-host.invalid",))
    with pytest.raises(StopError, match=r"no-such-host\.invalid:8000 does not answer") as stopped:
        await replay_in_loop(options)
    assert stopped.value.code == 1
    assert not options.out.exists()


async def test_a_run_that_has_no_open_file_left_ends_with_that_reason(engine, asking):
    """Requests that stay open pile up: the limit is met under way, which nobody can foresee."""

    async def never(request, writer):
        await writer.wait_closed()
        return False

    engine.answer = never
    options = asking(engine.url, rows=150, gap=0.015)
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (110, 110)); "
        "from loadgen.cli import main; main()"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, "replay", options.source.traces[0], "--target", engine.url),
        *("--out", options.out, "--timeout", "3s", "--no-certify"),
        stderr=asyncio.subprocess.PIPE,
    )
    _, told = await process.communicate()
    run = RunFolder(options.out)
    assert process.returncode == 1
    assert b"no open file was left for request" in told
    assert b"ulimit -n" in told
    found = sorted(run.results(), key=lambda result: result.index)
    assert [result.index for result in found] == list(range(150))
    assert found[-1].reason == "unsent"
    assert run.manifest()["complete"] is False
    assert "Too many open files" in next(result.detail for result in found if result.outcome == "error")


async def test_a_target_that_dies_under_way_fails_each_later_request_and_the_run_ends(engine, asking):
    replaying = asyncio.ensure_future(replay_in_loop(asking(engine.url, rows=60, gap=0.02)))
    await engine.asked_for(10)
    await engine.stop()
    run = await replaying
    found = sorted(run.results(), key=lambda result: result.index)
    assert len(found) == 60
    assert found[0].outcome == "ok"
    assert (found[-1].outcome, found[-1].reason) == ("error", "connect")
    assert "refused" in found[-1].detail.lower() or "Connect call failed" in found[-1].detail
