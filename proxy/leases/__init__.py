"""Limits that several proxies keep together: the store client, the heartbeat, and what is told of them.

What to ask for and when is decided in `proxy.policy.leases`; this package does it, with sockets and clocks.
"""

from pathlib import Path

from proxy.admission import Admission
from proxy.leases.bookstore import SCHEME, BookStore
from proxy.leases.keeper import Keeper
from proxy.leases.store import NoClientError, RedisStore, Store
from proxy.settings import Settings

__all__ = ["Keeper", "NoClientError", "join"]


def join(settings: Settings, admission: Admission) -> Keeper | None:
    """Make the keeper of a proxy that shares its limits; None where it does not.

    Raises:
        NoClientError: the client of the store is not installed.
    """
    sharing = settings.sharing
    if sharing.store is None:
        return None
    scheme, _, path = sharing.store.partition("://")
    store: Store = BookStore(Path(path), sharing.timeout) if scheme == SCHEME else RedisStore(sharing)
    return Keeper(settings, store, admission)
