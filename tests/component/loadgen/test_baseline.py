"""floor and baseline on real sockets."""

import asyncio
import json
import sys

import pytest

from loadgen.baseline import judged
from loadgen.client import read_target
from loadgen.failure import StopError
from loadgen.floor import Way, measure
from loadgen.premises import PremisesOptions, read_floor
from loadgen.replay import replay_in_loop
from loadgen.sides import read_repeat
from loadgen.summary import Slo


def way(url, name="direct"):
    return Way(name, read_target(url), None, {})


async def test_the_floors_of_both_ways_are_measured_and_kept_with_a_run(engine, asking, tmp_path):
    ways = [way(engine.url), way(engine.url, "proxy")]
    document = await asyncio.to_thread(measure, ways, 3, None)
    direct = document["paths"]["direct"]
    assert {kind: direct[kind]["n"] for kind in ("tcp", "http", "one_token")} == {"tcp": 3, "http": 3, "one_token": 3}
    assert 0 < direct["one_token"]["p50_s"] <= direct["one_token"]["p99_s"]
    assert set(document["proxy_adds_p50_s"]) == {"tcp", "http", "one_token"}
    assert [request.body["max_tokens"] for request in engine.asked] == [1] * 6
    assert len({request.body["prompt"] for request in engine.asked}) == 6
    file = tmp_path / "floor.json"
    file.write_text(json.dumps(document))
    run = await replay_in_loop(asking(engine.url, premises=PremisesOptions(card="910B4", floor=file)))
    manifest = run.manifest()
    assert manifest["floor"] == read_floor(file)
    assert manifest["premises"]["card"] == {"value": "910B4", "source": "told"}
    assert manifest["premises"]["model"] == {"value": "tiny", "source": "engine"}


async def test_a_way_that_does_not_answer_is_named(engine):
    await engine.stop()
    with pytest.raises(StopError, match=r"direct path: .* does not answer"):
        await asyncio.to_thread(measure, [way(engine.url)], 1, None)


async def test_repeats_of_a_replay_differ_in_their_salt_alone(engine, asking):
    runs = [await replay_in_loop(asking(engine.url, rows=12, name=f"run-{number}")) for number in range(3)]
    repeats = [read_repeat(run, Slo()) for run in runs]
    assert len({repeat.manifest["salt"] for repeat in repeats}) == 3
    document = judged("base", repeats, Slo(), most_spread=0.99)
    assert len(document["spread"]["all TTFT p50"]["values"]) == 3


async def call(*arguments):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadgen", *map(str, arguments), stdout=asyncio.subprocess.PIPE, stderr=-1
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_the_command_writes_a_folder_that_compare_takes_or_says_why_it_is_no_baseline(engine, asking, tmp_path):
    trace, out = asking(engine.url, rows=12).source.traces[0], tmp_path / "base"
    code, printed, told = await call("baseline", trace, "--target", engine.url, "--out", out, "--json")
    document = json.loads(printed)
    assert document == json.loads((out / "baseline.json").read_text())
    assert (code == 0) == document["accepted"]
    assert code in (0, 4)
    assert ("This is a baseline" in told) == document["accepted"]
    assert [(out / name / "manifest.json").is_file() for name in document["repeats"]] == [True] * 3
    code, printed, _ = await call("compare", out, out / "run-2", "--json")
    refused = json.loads(printed)
    assert (code, refused["verdict"]) == (4, "refused")
    assert any("same prompts" in condition for condition in refused["conditions_differ"])


async def test_a_baseline_of_two_is_refused(asking, tmp_path):
    trace = asking("http://127.0.0.1:1").source.traces[0]
    code, out, err = await call(
        "baseline", trace, "--target", "http://127.0.0.1:1", "--out", tmp_path / "b", "--repeats", 2
    )
    assert (code, out) == (2, "")
    assert "--repeats 2: a spread needs at least 3" in err
