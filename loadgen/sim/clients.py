"""How clients behave in a study, beside giving up: they try again, and some of them send far more than others."""

from dataclasses import dataclass
from random import Random

ABUSER = "abuser"


@dataclass(frozen=True, slots=True)
class Clients:
    """Behaviour of all clients of a run."""

    retries: int = 0
    """How often a client asks again after a refusal or a lost patience."""
    retry_after_s: float = 2.0
    abuser: float = 0.0
    """Share of the requests that one tenant sends; the rest is spread evenly over `others`."""
    others: int = 4
    """Tenants beside that one."""

    def tenant(self, index: int) -> str | None:
        """Return who sends request `index`, the same whenever it is asked; None where nobody is told apart."""
        if self.abuser <= 0:
            return None
        draw = Random(index).random()
        if draw < self.abuser:
            return ABUSER
        return f"tenant-{int((draw - self.abuser) / (1 - self.abuser) * self.others)}"


PATIENT = Clients()
