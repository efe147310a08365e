"""Checks across `tenants`, `priority` and `length_policies`: names that nobody has, and doors that nobody may open."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from proxy.settings.problem import Problem

if TYPE_CHECKING:
    from proxy.settings.model import Settings

RESERVED = ("other", "none")
_HASHED = re.compile(r"t-[0-9a-f]{8}")


def sender_problems(settings: "Settings") -> tuple[Problem, ...]:
    """Return what cannot work."""
    return (*_named(settings), *_salts(settings), *_trust(settings), *_references(settings), *_lengths(settings))


def _named(settings: "Settings") -> Iterator[Problem]:
    named = settings.tenants.named
    for name, times in Counter(one.name for one in named).items():
        if times > 1:
            yield Problem("tenants.named", f'{times} tenants have the name "{name}"; each needs its own')
        if name in RESERVED or _HASHED.fullmatch(name):
            yield Problem("tenants.named", f'"{name}" is a name that lanewise gives itself; choose another')
    for digest, times in Counter(digest for one in named for digest in one.keys).items():
        if times > 1:
            yield Problem("tenants.named", f"the key {digest[:8]}... is listed {times} times; it belongs to one tenant")


def _salts(settings: "Settings") -> Iterator[Problem]:
    for key, salt in (("tenants.salt", settings.tenants.salt), ("recorder.salt", settings.recorder.salt)):
        if salt is not None and not salt.get_secret_value():
            yield Problem(
                key, "it is empty, so anybody could try out what is hashed; leave the key out for a random one"
            )


def _trust(settings: "Settings") -> Iterator[Problem]:
    networks, tenants, priority = settings.trusted_networks, settings.tenants, settings.priority
    if tenants.by == "header" and not networks:
        text = "header: the header counts only from trusted_networks, and there are none; name those of your gateway"
        yield Problem("tenants.by", text, other="trusted_networks")
    if priority.allowed == "trusted" and not networks and not priority.tenants:
        text = "trusted: there are neither trusted_networks nor priority.tenants, so nobody may ask"
        yield Problem("priority.allowed", text, other="trusted_networks")
    if priority.low_from <= priority.high_at_most:
        text = f"{priority.low_from} is not above high_at_most ({priority.high_at_most})"
        yield Problem("priority.low_from", text, other="priority.high_at_most")


def _references(settings: "Settings") -> Iterator[Problem]:
    known = {one.name for one in settings.tenants.named} | set(RESERVED)
    used = [("priority.tenants", settings.priority.tenants)]
    used += [(f"length_policies[{i}].tenants", rule.tenants) for i, rule in enumerate(settings.length_policies)]
    for key, names in used:
        unknown = [name for name in names if name not in known]
        if unknown:
            yield Problem(key, f'"{unknown[0]}" is no tenant of tenants.named', other="tenants.named")
        elif names and settings.tenants.by == "off":
            yield Problem(key, "nobody is told apart while tenants.by is off", other="tenants.by")


def _lengths(settings: "Settings") -> Iterator[Problem]:
    for index, rule in enumerate(settings.length_policies):
        output, key = rule.output, f"length_policies[{index}]"
        if rule.prompt_tokens is None and output == type(output)():
            yield Problem(key, "it limits nothing; give it prompt_tokens, or a limit under output")
        if output.default and output.ceiling and output.default > output.ceiling:
            yield Problem(f"{key}.output.default", f"{output.default} is above ceiling ({output.ceiling})")
