"""What the trace commands say to people: lines of text, never the notation of a programming language."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

WIDTH = 24


def pairs(document: Mapping[str, Any], indent: str = "") -> str:
    """Write any result as lines of `name  value`; what is inside another value is indented under its name."""
    lines = []
    for name, value in document.items():
        label = f"{indent}{name.replace('_', ' ')}"
        if isinstance(value, Mapping) and value:
            lines += [label, pairs(value, indent + "  ").rstrip("\n")]
        elif (
            isinstance(value, Sequence)
            and not isinstance(value, str)
            and any(isinstance(one, Mapping) for one in value)
        ):
            lines.append(label)
            lines += [pairs(one, indent + "  ").rstrip("\n") for one in value]
        else:
            lines.append(f"{label:<{WIDTH}} {plain(value)}")
    return "\n".join(lines) + "\n"


def plain(value: Any) -> str:
    """Write one value as people do."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {plain(one)}" for name, one in value.items()) or "-"
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ", ".join(map(plain, value)) or "none"
    return str(value)


def share(value: float) -> str:
    """Write a share as per cent."""
    return f"{100 * value:.1f} %"


def info(found: Mapping[str, Any]) -> str:
    """Write what `trace info` found."""
    lines = [_file(file) for file in found["files"]]
    lines += list(_arrivals(found)) + list(_clock(found)) + list(_lengths(found)) + list(_prefixes(found))
    lines += [_line("border", text) for text in _border(found["lane_border"])]
    for cap in found["output_caps"]:
        cut, saved = share(cap["requests_cut_share"]), share(cap["tokens_cut_share"])
        lines.append(_line(f"output cap {cap['cap']}", f"would cut {cut} of the answers, {saved} of all output tokens"))
    bad = found["bad_lines"]
    if bad["skipped"]:
        lines.append(_line("bad lines", f"{bad['skipped']} passed over; the first: {bad['examples'][0]}"))
    lines.append(_line("plan", found["plan_hash"]))
    return "\n".join(lines) + "\n"


def _line(name: str, text: str) -> str:
    return f"{name:<{WIDTH}} {text}"


def _file(file: Mapping[str, Any]) -> str:
    notes = [f"{file['format']}, time is {file['time_unit']}", f"sha256 {file['sha256'][:16]}"]
    if file["assumed_outputs"]:
        notes.append(f"{file['assumed_outputs']} output lengths assumed")
    if file.get("origin"):
        notes.append("made by " + ", then ".join(step["command"] for step in file["origin"]))
    return _line(file["name"], "; ".join(notes))


def _arrivals(found: Mapping[str, Any]) -> Iterable[str]:
    rate = "" if found["rate"] is None else f", {found['rate']:.3g} requests/s"
    span = "without times" if found["span_s"] is None else f"in {found['span_s']:,.1f} s"
    yield _line("requests", f"{found['rows']:,} {span}{rate}")
    if found["gap_cv"] is not None:
        yield _line("burstiness", f"CV of the gaps {found['gap_cv']:.2f} (independent arrivals have 1)")
    for peak in found["peaks"]:
        times = "" if peak["times_the_mean"] is None else f", {peak['times_the_mean']:.1f} times the mean"
        yield _line(f"fullest {peak['window_s']} s", f"{peak['requests']} requests{times}")


def _clock(found: Mapping[str, Any]) -> Iterable[str]:
    if found["coarse_clock_s"] is not None:
        yield _line(
            "clock",
            f"coarse: steps of {found['coarse_clock_s']:g} s with several requests each; --dequantise spreads them",
        )
    back = found["out_of_order"]
    if back["rows"]:
        yield _line(
            "order", f"{back['rows']} rows come before the one above them, the first in line {back['first_line']}"
        )
    talks = found["conversations"]
    if talks:
        yield _line(
            "conversations",
            f"{talks['conversations']:,}, with {talks['later_turns']:,} later turns; the longest has "
            f"{talks['longest_turns']} turns",
        )


def _lengths(found: Mapping[str, Any]) -> Iterable[str]:
    for name, key in (("prompt tokens", "prompt_tokens"), ("output tokens", "output_tokens")):
        one = found[key]
        yield _line(
            name,
            f"mean {one['mean']:,.0f}, p50 {one['p50']:,}, p90 {one['p90']:,}, p99 {one['p99']:,}, max {one['max']:,}",
        )
    yield _line("long", f"{share(found['long_share'])} of the prompts are over {found['border']} tokens")


def _prefixes(found: Mapping[str, Any]) -> Iterable[str]:
    if found["shared_prefix_share"] is None:
        yield _line("shared prefixes", "not recorded in this format")
        return
    about = "" if found["shared_prefix_exact"] else "about "
    yield _line(
        "shared prefixes", f"{about}{share(found['shared_prefix_share'])} of the prompt tokens repeat an earlier prefix"
    )
    repeated = found["duplicates"]
    yield _line("duplicates", f"{repeated['rows']:,} prompts ({share(repeated['share'])}) repeat an earlier one whole")


def _border(border: Mapping[str, Any]) -> Iterable[str]:
    yield (
        f"P70 {border['p70']:,}, P75 {border['p75']:,}, P80 {border['p80']:,}, P85 {border['p85']:,}; thinnest between "
        f"them: {border['suggested']:,} tokens"
    )
    valley = border["valley"]
    if valley is None:
        yield "the prompt lengths have one hill, no valley"
    else:
        yield f"valley at {valley['tokens']:,} tokens, {share(valley['share_below'])} of the prompts below it"
