"""Engine profiles from YAML: by the name of a shipped one, or by path."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from loadgen.failure import UsageError
from loadgen.shipped import locate, shipped_names
from loadgen.sim.nouns import EngineProfile, SchedulingPolicy

_FOLDER = "config/sim"


class _StepTime(BaseModel):
    """Constants in milliseconds, as people write them."""

    model_config = ConfigDict(extra="forbid", strict=True)

    a_ms: float = Field(gt=0)
    b_ms: float = Field(ge=0)
    c_ms: float = Field(ge=0)
    d_ms: float = Field(ge=0)
    e_ms: float = Field(ge=0)
    noise_sigma: float = Field(default=0.0, ge=0, le=2)


class _File(BaseModel):
    """One profile as its file says it; limits that are left out are vLLM's defaults."""

    model_config = ConfigDict(extra="forbid")

    source: str = Field(min_length=1)
    step_time: _StepTime
    kv_blocks: int = Field(ge=1)
    block_size: int = Field(default=128, ge=1)
    max_num_batched_tokens: int = Field(default=2048, ge=1)
    max_num_seqs: int = Field(default=256, ge=1)
    long_prefill_token_threshold: int = Field(default=0, ge=0)
    max_model_len: int = Field(default=32768, ge=1)
    prefix_caching: bool = True
    reserve_full_isl: bool = True
    scheduling_policy: SchedulingPolicy = SchedulingPolicy.FCFS
    max_num_queued_reqs: int | None = Field(default=None, ge=0)
    max_num_queued_tokens: int | None = Field(default=None, ge=0)
    concurrency_cap: int = Field(ge=1)
    kv_fraction: float = Field(default=0.9, gt=0, le=1)


def profile_names() -> list[str]:
    """Return the names of the shipped engine profiles, sorted."""
    return shipped_names(_FOLDER)


def load_profile(name: str) -> EngineProfile:
    """Read an engine profile.

    Args:
        name: of a shipped profile (`8b`), or a path to a file in the same format.

    Raises:
        UsageError: no such profile, not YAML, an unknown or missing key, a value out of range; with file and key.
    """
    path = locate(_FOLDER, name)
    return parse_profile(_document(path), path)


def parse_profile(document: Any, path: Path) -> EngineProfile:
    """Check a decoded profile document; `path` names it in errors and gives the profile its name.

    Raises:
        UsageError: as `load_profile`.
    """
    if not isinstance(document, Mapping):
        raise UsageError(f"{path}: an engine profile is a mapping of keys, this is not")
    try:
        file = _File.model_validate(dict(document))
        return _profile(file, path.stem)
    except ValidationError as error:
        raise UsageError(f"{path}: {_sentence(error)}") from None
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None


def _document(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" line {where.line + 1}" if where is not None else ""
        raise UsageError(f"{path}:{line} is not YAML: {getattr(error, 'problem', error)}") from None


def _profile(file: _File, name: str) -> EngineProfile:
    step, rest = file.step_time, file.model_dump(exclude={"step_time"})
    return EngineProfile(
        name=name,
        a=step.a_ms / 1000,
        b=step.b_ms / 1000,
        c=step.c_ms / 1000,
        d=step.d_ms / 1000,
        e=step.e_ms / 1000,
        noise_sigma=step.noise_sigma,
        **rest,
    )


def _sentence(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        fields = _StepTime.model_fields if len(first["loc"]) > 1 else _File.model_fields
        return f"unknown key {key!r}; allowed here are {', '.join(fields)}"
    if first["type"] == "missing":
        return f"key {key!r} is missing"
    return f"{key}: {first['msg'][0].lower()}{first['msg'][1:]}, got {first['input']!r}"
