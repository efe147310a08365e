"""What the environment of the proxy lacks, and what its keys and certificates are about to do."""

from collections.abc import Iterator

from proxy.doctor.facts import Guards
from proxy.doctor.finding import Finding, Said, Severity, Unknown


def check_guards(guards: Guards) -> Iterator[Said]:
    """Yield what is wrong with packages, keys and certificates."""
    for sentence in guards.old:
        seen, _, step = sentence.rpartition(": ")
        package = seen.partition(" ")[0]
        why = "older versions lack fixes that lanewise relies on; the proxy does not start on them"
        yield Finding("old_dependency", Severity.ERROR, package, seen, why, step)
    for sentence in guards.unread:
        about = sentence.partition(":")[0]
        if not guards.own:
            yield Unknown("credentials_unreadable", about, f"the right to read it: {sentence}")
            continue
        why = "the proxy does not start with it, and a reload changes nothing"
        step = "put the file or the variable right, then lanewise validate"
        yield Finding("credentials_unreadable", Severity.ERROR, about, sentence, why, step)
    for sentence in guards.doubts:
        about, _, seen = sentence.partition(": ")
        why = "a certificate that has ended is refused by clients; keys that mean nothing mislead"
        yield Finding("credentials_doubtful", Severity.WARNING, about, seen, why, "mend it, then lanewise reload")
