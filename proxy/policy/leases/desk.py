"""Between the Dispatcher's board and the leases: what is in use at each place, and the terms that it has to follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from proxy.policy.backend import Backend
from proxy.policy.board import Board
from proxy.policy.leases.book import UNLIMITED
from proxy.policy.leases.hold import Amounts, Hold, Need, Stir, Terms
from proxy.policy.leases.member import Use
from proxy.policy.limits import LaneOrder
from proxy.policy.tenants import NOTHING_YET, Account

BACKEND = "b/"
TENANT = "t/"


def uses(board: Board) -> dict[str, Use]:
    """Return what is in use at every place, and what is lacking; peaks and needs begin anew."""
    lane_order = board.matcher.lane_order
    found = {BACKEND + backend.name: _of_backend(board, backend, lane_order) for backend in board.backends}
    for account, hold in _accounts(board):
        if account.running or account.backlog:
            found[TENANT + account.name] = _of_tenant(account, hold, lane_order)
    return found


def follow(board: Board, terms: Mapping[str, Terms]) -> None:
    """Let every backend and tenant follow the terms of its place; one without any keeps what it has."""
    for backend in board.backends:
        place = terms.get(BACKEND + backend.name)
        if backend.hold_of is not None and place is not None:
            backend.hold_of.terms = place
    for account, hold in _accounts(board):
        hold.terms = terms.get(TENANT + account.name, NOTHING_YET)


def stirred(board: Board) -> Stir:
    """Return whether the store should be asked before the next heartbeat. Cheap: it is asked after each event."""
    most = Stir.NOTHING
    for backend in board.backends:
        if backend.hold_of is not None:
            most = max(most, backend.hold_of.stirred(backend.used))
    for account, hold in _accounts(board):
        most = max(most, hold.stirred((account.running,)))
    return most


def _accounts(board: Board) -> Iterator[tuple[Account, Hold]]:
    if board.ledger is not None and board.ledger.leased:
        for account in board.ledger.accounts.values():
            if account.hold is not None:
                yield account, account.hold


def _of_backend(board: Board, backend: Backend, lane_order: LaneOrder) -> Use:
    hold, used = backend.hold_of, backend.used
    up = sum(other.up for other in board.backends) or 1
    waiting = (
        -(-sum(lane.waiting_requests for lane in board.lanes) // up),
        -(-sum(lane.waiting_tokens for lane in board.lanes) // up),
        -(-sum(lane.waiting_tokens for lane in board.lanes) // up),
    )
    return Use(
        used=used,
        peak=used if hold is None else hold.take_peak(used),
        limits=(backend.limiter.cap, _budget(board), UNLIMITED if backend.kv_limit is None else backend.kv_limit),
        waiting=waiting,
        need=None if hold is None else _ranked(hold.take_need(), lane_order),
        adapts=backend.limiter.adapts,
    )


def _of_tenant(account: Account, hold: Hold, lane_order: LaneOrder) -> Use:
    used: Amounts = (account.running,)
    limit = account.limits.sequences
    return Use(
        used=used,
        peak=hold.take_peak(used),
        limits=(UNLIMITED if limit is None else limit,),
        waiting=(account.backlog,),
        need=_ranked(hold.take_need(), lane_order),
    )


def _ranked(need: Need | None, lane_order: LaneOrder) -> Need | None:
    """Return a need as others see it: lanes go before each other only where they do so here."""
    return need if need is None or lane_order is LaneOrder.SHORT_FIRST else Need(0, need.amounts)


def _budget(board: Board) -> int:
    """Return the prefill tokens that may be outstanding on a backend; -1 without a budget."""
    budgets = [lane.budget for lane in board.lanes]
    known = [budget for budget in budgets if budget is not None]
    if len(known) < len(budgets):
        return UNLIMITED
    return sum(known) if board.lanes[0].separate else max(known)
