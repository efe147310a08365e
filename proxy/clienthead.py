"""The head of a request, read once for all requests of a connection that have the same.

A client that keeps its connection sends the same head again and again, but for the length of its body. What follows
from a head and from the configuration alone is therefore kept beside the connection, and made anew only when another
head comes or the configuration changes.
"""

from aiohttp import web

from proxy.policy.limits import Mode
from proxy.wire.headers import UpstreamFields
from proxy.wire.paths import Route

_LENGTH = b"content-length"


class ClientHead:
    """What one head says.

    Args:
        request: has it.
        under: the settings that it was read by; it is not to be used under others.
        route: its route.
        mode: how its request is treated.
        explained: its answer says what was decided.
        fields: what of it goes to an engine.
        client: address for the log; None: the log does not say it.
    """

    __slots__ = (
        "_after",
        "_at",
        "_before",
        "_count",
        "_method",
        "_target",
        "_version",
        "client",
        "explained",
        "fields",
        "mode",
        "route",
        "tenant",
        "under",
    )

    def __init__(
        self,
        request: web.BaseRequest,
        under: object,
        *,
        route: Route,
        mode: Mode,
        explained: bool,
        fields: UpstreamFields,
        client: str | None = None,
    ) -> None:
        raw = request.raw_headers
        self._count = len(raw)
        self._at = next((at for at, (name, _) in enumerate(raw) if name.lower() == _LENGTH), self._count)
        self._before, self._after = raw[: self._at], raw[self._at + 1 :]
        self._method, self._target, self._version = request.method, request.raw_path, request.version
        self.under = under
        self.route = route
        self.mode = mode
        self.explained = explained
        self.fields = fields
        self.client = client
        self.tenant: str | None = ""
        """Label of who sends it; "": nobody has asked yet."""

    def __repr__(self) -> str:
        return f"<ClientHead {self._method} {self.route.upstream_path}>"

    def covers(self, request: web.BaseRequest) -> bool:
        """Return whether a request has the same head, the value of Content-Length apart."""
        raw, at = request.raw_headers, self._at
        return (
            len(raw) == self._count
            and raw[:at] == self._before
            and raw[at + 1 :] == self._after
            and (at == self._count or raw[at][0].lower() == _LENGTH)
            and request.raw_path == self._target
            and request.method == self._method
            and request.version == self._version
        )
