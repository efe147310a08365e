"""What the result of a run depends on, as parameters with names and classes, and what differs between two runs. Pure.

Parameters are of three classes. *hardware*: what the engine runs on and how it is spread over it. *load*: how much
work it takes at once; what tuning is about. *model*: what computes the answers; changing it changes the answers, so it
is out of bounds for tuning.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """Class of a parameter."""

    HARDWARE = "hardware"
    LOAD = "load"
    MODEL = "model"


_HARDWARE = frozenset(
    {
        "card",
        "cards",
        "version",
        "device",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "prefill_context_parallel_size",
        "decode_context_parallel_size",
        "enable_expert_parallel",
        "distributed_executor_backend",
        "nnodes",
        "node_rank",
        "target",
    }
)
_MODEL = frozenset(
    {
        "model",
        "size",
        "served_model_name",
        "quantisation",
        "quantization",
        "dtype",
        "kv_cache_dtype",
        "cache_dtype",
        "mamba_cache_dtype",
        "mamba_ssm_cache_dtype",
        "revision",
        "tokenizer",
        "load_format",
        "rope_scaling",
        "hf_overrides",
        "speculative_config",
        "enable_lora",
        "lora_modules",
        "chat_template",
        "generation_config",
        "override_generation_config",
        "trust_remote_code",
        "seed",
    }
)
"""Names as vLLM's flags have them, and our own of the premises. What is in neither set is of class load."""

CONSEQUENCES = frozenset(
    {
        "engine.num_gpu_blocks",
        "engine.num_cpu_blocks",
        "engine.kv_cache_size_tokens",
        "engine.kv_cache_max_concurrency",
        "engine.kv_cache_memory_bytes",
        "engine.effective_attention_block_size",
        "engine._block_size_resolved",
        "engine.user_specified_block_size",
        "engine.engine",
        "proxy.version",
    }
)
"""What the engine works out for itself at its start. It is shown, and it is nobody's change."""
_PARALLEL = ("engine.tensor_parallel_size", "engine.pipeline_parallel_size", "engine.data_parallel_size")
_SAME = {"engine.quantization": "premise.quantisation", "engine.cache_dtype": "engine.kv_cache_dtype"}
"""Two names of one thing: the first follows the second."""
PREMISES = ("card", "cards", "model", "size", "quantisation")


@dataclass(frozen=True, slots=True)
class Change:
    """One parameter that two runs have different values of."""

    name: str
    """`engine.` and a flag in vLLM's name, `proxy.` and a key of lanewise, `premise.` and one of the premises, or what
    was declared with `--set`."""
    before: Any
    """None: not set, or not known."""
    after: Any
    kind: Kind
    counts: bool = True
    """Whether somebody changed it; False: it follows from another change."""

    def __str__(self) -> str:
        return f"{self.name}: {_said(self.before)} → {_said(self.after)}"


def kind_of(name: str) -> Kind:
    """Return the class of a parameter by its name, with or without what precedes the dot."""
    flag = name.rpartition(".")[2].replace("-", "_")
    if name.startswith("proxy."):
        return Kind.LOAD
    if flag in _HARDWARE:
        return Kind.HARDWARE
    return Kind.MODEL if flag in _MODEL else Kind.LOAD


def parameters(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return every parameter that a manifest knows, flat, by name."""
    engine = manifest.get("engine") or {}
    proxy = manifest.get("proxy") or {}
    found: dict[str, Any] = {"target": manifest.get("target"), "engine.version": engine.get("version")}
    found |= {f"engine.{_flag(name)}": value for name, value in (engine.get("cache_config") or {}).items()}
    found |= {f"engine.{_flag(name)}": value for name, value in (engine.get("flags") or {}).items()}
    found |= {f"premise.{name}": value for name in PREMISES if (value := premise(manifest, name)) is not None}
    if proxy:
        found["proxy.config"] = proxy.get("config")
        found["proxy.version"] = proxy.get("version")
        found |= {f"proxy.{name}": value for name, value in (proxy.get("settings") or {}).items()}
    return found | dict(manifest.get("parameters") or {})


def premise(manifest: Mapping[str, Any], name: str) -> Any:
    """Return the value of a premise (card, cards, model, size, quantisation); None: not known."""
    held = (manifest.get("premises") or {}).get(name)
    return held.get("value") if isinstance(held, dict) else held


def changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Change]:
    """Return what differs between two manifests, those that count first.

    What one run does not know is no change, except what was declared. A proxy that one of them has and the other has
    not is one change, whatever its configuration says; so is another target, and only when nothing else explains it.
    """
    before, after = parameters(a), parameters(b)
    declared = (a.get("parameters") or {}).keys() | (b.get("parameters") or {}).keys()
    flags = _flags_known(a) and _flags_known(b)
    found = []
    for name in sorted(before.keys() | after.keys()):
        pair = before.get(name), after.get(name)
        known = name in declared or None not in pair or (flags and name.startswith("engine."))
        if known and not _equal(*pair):
            found.append(Change(name, *pair, kind_of(name)))
    found = _proxy_as_one(a, b, found)
    return sorted(_counted(found), key=lambda change: not change.counts)


def _flags_known(manifest: Mapping[str, Any]) -> bool:
    """Whether the start flags are known, so that one that is absent is at its default."""
    return bool((manifest.get("engine") or {}).get("flags"))


def _proxy_as_one(a: Mapping[str, Any], b: Mapping[str, Any], found: list[Change]) -> list[Change]:
    ours, theirs = a.get("proxy"), b.get("proxy")
    if bool(ours) == bool(theirs):
        return found
    rest = [change for change in found if not change.name.startswith("proxy.")]
    return [Change("proxy", _proxy_name(ours), _proxy_name(theirs), Kind.LOAD), *rest]


def _proxy_name(proxy: Any) -> str | None:
    if not proxy:
        return None
    return f"lanewise {proxy['config']}" if proxy.get("config") else str(proxy.get("name", "lanewise"))


def _counted(found: list[Change]) -> list[Change]:
    """Say which of the changes follow from others."""
    names = {change.name for change in found}
    settings = any(name.startswith("proxy.") and name not in {"proxy.config", "proxy.version"} for name in names)
    own = {
        change.name
        for change in found
        if change.name not in CONSEQUENCES
        and not (change.name == "proxy.config" and settings)
        and not (change.name == "premise.cards" and names.intersection(_PARALLEL))
        and not (change.name in _SAME and _SAME[change.name] in names)
    }
    if len(own) > 1:
        own.discard("target")
    return [Change(one.name, one.before, one.after, one.kind, one.name in own) for one in found]


def _equal(a: Any, b: Any) -> bool:
    """Flags and labels are texts in one place and numbers in another."""
    return bool(a == b) or (a is not None and b is not None and str(a).lower() == str(b).lower())


def _flag(name: str) -> str:
    return name.strip().lstrip("-").replace("-", "_")


def _said(value: Any) -> str:
    return "not set" if value is None else str(value)


_WORD = re.compile(r"--?([A-Za-z][\w.-]*)(?:=(.*))?")


def read_flags(words: list[str]) -> dict[str, str]:
    """Read the start flags of a server from the words of its command line.

    Args:
        words: everything from `vllm serve` (or the interpreter) on. What precedes the first flag is passed over, except
            the model that `vllm serve MODEL` names.

    Returns:
        Values by flag in vLLM's own name with underscores; a switch is `True`, and `--no-x` is x `False`.
    """
    found: dict[str, str] = {}
    name = None
    if "serve" in words:
        named = words[words.index("serve") + 1 :]
        if named and not named[0].startswith("-"):
            found["model"] = named[0]
    for word in words:
        match = _WORD.fullmatch(word)
        if match is not None and not _is_number(word):
            name = _flag(match.group(1))
            if match.group(2) is not None:
                found[name], name = match.group(2), None
            elif name.startswith("no_"):
                found[name.removeprefix("no_")], name = "False", None
            else:
                found[name] = "True"
        elif name is not None:
            found[name] = word if found[name] == "True" else f"{found[name]} {word}"
    return {_LONG.get(flag, flag): value for flag, value in found.items() if flag not in _NOT_PARAMETERS}


_LONG = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dp": "data_parallel_size", "q": "quantization"}
_NOT_PARAMETERS = frozenset(
    {
        "host",
        "port",
        "api_key",
        "hf_token",
        "ssl_keyfile",
        "ssl_certfile",
        "uvicorn_log_level",
        "disable_log_requests",
        "m",
        "c",
    }
)
"""Where it listens, who may ask and what it logs change no latency, and a key is no one's business."""


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def told_by_flags(flags: Mapping[str, str]) -> dict[str, Any]:
    """Return the premises that start flags say: cards (product of the parallel sizes) and quantisation."""
    sizes = [flags.get(name.partition(".")[2], "1") for name in _PARALLEL]
    found: dict[str, Any] = {}
    if any(name.partition(".")[2] in flags for name in _PARALLEL) and all(size.isdecimal() for size in sizes):
        product = 1
        for size in sizes:
            product *= int(size)
        found["cards"] = product
    if flags.get("quantization"):
        found["quantisation"] = flags["quantization"]
    return found


_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?[BbMm](?:-[Aa]\d+(?:\.\d+)?[Bb])?)(?![A-Za-z0-9])")
_QUANTISED = re.compile(r"(?i)(?<![a-z0-9])(w\d+a\d+(?:c\d+)?|awq|gptq|fp8|int8|int4|nvfp4|mxfp4)(?![a-z0-9])")


def told_by_name(model: str) -> dict[str, Any]:
    """Return the premises that a model's name says: size (`32B`, `30B-A3B`) and quantisation (`w8a8`, `awq`)."""
    name = model.replace("_", "-")
    size, quantised = _SIZE.search(name), _QUANTISED.search(name)
    found: dict[str, Any] = {}
    if size is not None:
        found["size"] = size.group(1).upper()
    if quantised is not None:
        found["quantisation"] = quantised.group(1).lower()
    return found
