"""What the naive forwarder is known to get wrong. The suite must see it, or it sees nothing.

The set is what the recorded outcomes of nine servers say of a naive forwarder, with these differences of the one that
is used here (`tests/bench/proxies/aiohttp_naive.py`): it parses JSON, so a body compressed twice and that of a GET end
in 500 (RAW-172, RAW-193); it accepts 64 MiB, so the bomb is inflated (RAW-171); it forwards `path_qs`, so the absolute
form is served (RAW-071, RAW-072). aiohttp logs a traceback for each request that is no HTTP; that is no matter of the
wire and does not count here.
"""

from tests.faults.case import Row

_NUMBERS = """
    0421 073 076 082 083 0900 0901 0902 0903 0904 0906 0907 0908 0909 0910 105 115 126 130 131 132 133
    142 143 144 145 160 170 171 172 173 174 192 193 194
"""
NAIVE_FAILS = frozenset(f"RAW-{number}" for number in _NUMBERS.split())


def differences(rows: list[Row]) -> list[str]:
    """Return one sentence for each row where the naive forwarder did other than it is known to do."""
    found = []
    for row in rows:
        wrong = [text for text in row.unmet if not text.startswith("got.traceback")]
        if bool(wrong) != (row.case.id in NAIVE_FAILS):
            verb = "failed, and is known to pass" if wrong else "passed, and is known to fail"
            found.append(f"{row.case.id} {verb}: {'; '.join(wrong)[:200]}")
    return found
