"""The sweep as it is typed, against a simulated engine as a process."""

import json


def test_a_sweep_of_rates_tells_what_was_in_flight_at_each(server, call, address, until, tmp_path):
    engine, out = address(), tmp_path / "knee"
    with server("loadgen", "sim", "serve", "--listen", engine, "--speed", "32"):
        until(f"http://{engine}/health", 200)
        asked = ["--workload", "chat", "--by", "rate", "--from", 1, "--to", 1.25, "--requests", 50, "--speed", 32]
        asked += ["--slo-tpot", 1000]  # a busy machine must not end the sweep
        done = call("loadgen", "knee", *asked, "--target", f"http://{engine}", "--no-certify", "--out", out, "--json")
    assert done.code == 4, done.err  # two levels are no knee
    document = json.loads(done.out)
    assert document == json.loads((out / "knee.json").read_text())
    assert document["by"] == "rate"
    assert document["why"]
    assert [level["asked"] for level in document["levels"]] == [1, 1.25]
    for level in document["levels"]:
        assert level["in_flight"] > 1
        assert level["requests"] > 0
        manifest = json.loads((out / f"level-{level['asked']:g}/manifest.json").read_text())
        assert manifest["closed_loop"] is None
        assert manifest["plan"]["requests"] == 50
    assert not (out / "measured.yaml").exists()
