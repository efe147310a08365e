"""`lanewise-load sim`: the simulated engine as a server."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import orjson
from cyclopts import App, Parameter

from loadgen.failure import UsageError
from loadgen.sim.nouns import EngineProfile
from loadgen.sim.profile import load_profile, profile_names

app = App(name="sim", help="The simulated engine: vLLM's HTTP dialect over a step model with stated constants.")


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """vLLM's own flags, in its names; what is left out stays as the profile says."""

    max_num_seqs: int | None = None
    """Sequences that may run at once."""
    max_num_batched_tokens: int | None = None
    """Tokens of one step: the size of a prefill chunk."""
    long_prefill_token_threshold: int | None = None
    """Most tokens of one prompt in a step that it shares with others; 0: no limit."""
    max_model_len: int | None = None
    """Context length, tokens."""
    kv_blocks: int | None = None
    """Size of the KV cache in blocks."""
    prefix_caching: bool | None = None
    """Whether prompts find their prefix in the KV cache."""
    max_num_queued_reqs: int | None = None
    """Requests in flight above which the engine answers 503."""
    max_num_queued_tokens: int | None = None
    """Prompt tokens in prefill above which the engine answers 503."""


app.command("loadgen.sim.replaying:run", name="run", help="Replay a window of a study in virtual time.")


@app.command
def serve(
    *,
    profile: str = "8b",
    listen: str = "127.0.0.1:8000",
    speed: float = 1.0,
    model: str | None = None,
    seed: int = 0,
    prompt_tokens_details: bool = True,
    ledger: Path | None = None,
    flags: Flags | None = None,
    json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Serve a simulated engine until it is stopped.

    Args:
        profile: name of a shipped engine profile, or path of a YAML file.
        listen: HOST:PORT to listen on; port 0 takes a free one.
        speed: how many times faster than the profile says, 0.01 to 1000.
        model: served model name; the profile's name when absent.
        seed: decides texts, natural answer lengths and step noise.
        prompt_tokens_details: tell cached tokens in `usage`.
        ledger: file that takes size and checksum of every answer, to be compared with what arrived.
        flags: the engine's flags.
        json: print one document with the address and the profile on stdout once the server listens.
    """
    chosen = overridden(load_profile(profile), flags or Flags())
    host, port = address(listen)
    if not 0.01 <= speed <= 1000:
        raise UsageError(f"--speed {speed}: must be from 0.01 to 1000; 1 is the speed of the profile")
    from loadgen.sim.server import ServerOptions  # noqa: PLC0415  (aiohttp costs 0.2 s that --help need not wait for)
    from loadgen.sim.serving import run  # noqa: PLC0415

    options = ServerOptions(
        model=model or chosen.name,
        speed=speed,
        seed=seed,
        prompt_tokens_details=prompt_tokens_details,
        ledger=ledger,
    )
    run(chosen, options, host, port, lambda url: _announce(url, chosen, options.model, speed, as_json=json))


@app.command
def profiles(*, json: Annotated[bool, Parameter(name="--json", negative="")] = False) -> None:
    """List the shipped engine profiles and where their constants come from.

    Args:
        json: print one document on stdout.
    """
    known = [load_profile(name) for name in profile_names()]
    if json:
        _print_document({one.name: one.source for one in known})
        return
    for one in known:
        sys.stdout.write(f"{one.name:12} {one.source}\n")


def overridden(profile: EngineProfile, flags: Flags) -> EngineProfile:
    """Return the profile with the flags that were given.

    Raises:
        UsageError: no engine could run so.
    """
    names = flags.__dataclass_fields__
    given = {name: value for name in names if (value := getattr(flags, name)) is not None}
    try:
        return replace(profile, **given)
    except ValueError as error:
        raise UsageError(f"profile {profile.name} with these flags: {error}") from None


def address(listen: str) -> tuple[str, int]:
    """Split HOST:PORT; the host may be an IPv6 address in brackets.

    Raises:
        UsageError: it is something else.
    """
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"--listen {listen}: must be HOST:PORT, like 127.0.0.1:8000")
    return host, int(port)


def _announce(url: str, profile: EngineProfile, model: str, speed: float, *, as_json: bool) -> None:
    if as_json:
        _print_document({"url": url, "profile": profile.name, "model": model, "speed": speed, "source": profile.source})
    sys.stderr.write(
        f"Simulated engine {profile.name} serves model {model} at {url}, {speed:g} times as fast as its profile.\n"
        f"Constants: {profile.source}.\n"
    )
    sys.stderr.flush()


def _print_document(document: Any) -> None:
    sys.stdout.write(orjson.dumps(document).decode() + "\n")
    sys.stdout.flush()
