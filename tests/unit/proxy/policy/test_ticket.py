from proxy.policy.ticket import Ticket


def test_a_ticket_that_goes_whole_is_the_same_but_for_that() -> None:
    ticket = Ticket(7, 1, 9000, 20, sequences=2, model="m", splittable=True, tenant="t", priority=-1)
    assert ticket.whole() == ticket._replace(splittable=False)
    assert ticket.whole().whole() == ticket.whole()
