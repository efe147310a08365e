"""Refusals of the simulated engine, with the bodies that vLLM 0.32 sends for the same requests."""

from typing import Any


class ApiError(Exception):
    """A request that is answered with an error instead of tokens.

    Attributes:
        status: HTTP status, also the `code` of the body.
        kind: the `type` of the body.
        param: the field that is wrong, or None.
    """

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param

    @property
    def body(self) -> dict[str, Any]:
        """Return the error document."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}}


def about(param: str, message: str, value: object = None, *, shown: bool = True) -> ApiError:
    """Return a 400 about one parameter whose message ends with its name and, when `shown`, its value."""
    tail = f"parameter={param}, value={value}" if shown else f"parameter={param}"
    return ApiError(400, f"{message} ({tail})", param=param)


def malformed(kind: str, where: str, message: str, given: str, context: str = "") -> ApiError:
    """Return the 400 of a body that is not what the endpoint's schema says.

    Args:
        kind: name of the rule that was broken.
        where: path inside the body, `body.max_tokens`.
        message: what the rule wants.
        given: what came instead.
        context: more about it, already in the form of the message.
    """
    detail = f"{{'type': '{kind}', 'loc': '{where}', 'msg': '{message}', 'input': '{given}'{context}}}"
    return ApiError(400, f"1 validation error:\n  {detail}", kind="Bad Request", param=where)


def not_json() -> ApiError:
    """Return the 400 of a body whose content type is not JSON."""
    return ApiError(
        400,
        "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
        kind="Bad Request",
    )


def unknown_model(asked: object, served: str) -> ApiError:
    """Return the 404 of a model that is not served."""
    message = f"The model `{asked}` does not exist. Valid aliases: {served}."
    return ApiError(404, message, kind="NotFoundError", param="model")


def too_many_tokens(context: int, tokens: int, *, exact: bool) -> ApiError:
    """Return the 400 of a prompt that is longer than the context.

    Args:
        context: `max_model_len`.
        tokens: length of the prompt.
        exact: the prompt came as token ids. A text is only counted up to one token over the context.
    """
    count = str(tokens) if exact else f"at least {context + 1}"
    return about(
        "input_tokens",
        f"This model's maximum context length is {context} tokens. However, your prompt contains {count} input tokens, "
        "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt.",
        tokens if exact else context + 1,
    )


def too_many_characters(context: int, characters: int, limit: int) -> ApiError:
    """Return the 400 of a text so long that it is refused before it is tokenised."""
    return about(
        "input_text",
        f"This model's maximum context length is {context} tokens. However, your prompt contains {characters} "
        f"characters (more than {limit} characters, which is the upper bound for {context} input tokens). "
        "Please reduce the length of the input prompt.",
        characters,
    )


def queue_full() -> ApiError:
    """Return the 503 of an engine at `--max-num-queued-reqs`."""
    return _busy("The engine is currently busy and cannot accept new requests.")


def backlog_full() -> ApiError:
    """Return the 503 of an engine at `--max-num-queued-tokens`."""
    return _busy("The engine has reached its prefill token backlog limit.")


def _busy(reason: str) -> ApiError:
    message = f"{reason} Please try again later or on a different instance."
    return ApiError(503, message, kind="Service Unavailable")
