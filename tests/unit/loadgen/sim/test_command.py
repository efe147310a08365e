"""The options of `lanewise-load sim serve`."""

import json

import pytest

from loadgen.cli import main
from loadgen.failure import UsageError
from loadgen.sim.command import Flags, address, overridden
from loadgen.sim.profile import load_profile, profile_names


@pytest.mark.parametrize(
    ("listen", "host", "port"),
    [("127.0.0.1:80", "127.0.0.1", 80), ("[::1]:0", "::1", 0), ("localhost:65535", "localhost", 65535)],
)
def test_an_address_is_host_and_port(listen, host, port):
    assert address(listen) == (host, port)


@pytest.mark.parametrize("listen", ["8000", "host:", ":8000", "host:70000", "host:-1", "host:http", "host:٣"])
def test_anything_else_is_a_usage_error(listen):
    with pytest.raises(UsageError, match="HOST:PORT"):
        address(listen)


def test_flags_change_the_profile_and_nothing_else():
    profile = load_profile("8b")
    changed = overridden(profile, Flags(long_prefill_token_threshold=256, prefix_caching=False))
    assert (changed.long_prefill_token_threshold, changed.prefix_caching) == (256, False)
    assert changed.max_num_seqs == profile.max_num_seqs
    assert overridden(profile, Flags()) == profile


def test_flags_that_no_engine_runs_with_are_a_sentence():
    with pytest.raises(UsageError, match="max_num_batched_tokens"):
        overridden(load_profile("8b"), Flags(max_num_batched_tokens=16))


def test_the_profiles_are_listed_with_their_sources(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["sim", "profiles", "--json"])
    assert ended.value.code == 0
    assert set(json.loads(capsys.readouterr().out)) == set(profile_names())


@pytest.mark.parametrize(
    "arguments", [["--profile", "none"], ["--speed", "0"], ["--listen", "x"], ["--kv-blocks", "0"], ["--seed", "x"]]
)
def test_a_wrong_option_ends_with_two_before_anything_starts(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["sim", "serve", *arguments])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") >= 1
