"""Our own records (`proxy.wire.trace`) as rows: what the proxy saw becomes load again."""

import hashlib

from loadgen.tracefile.row import LineError, Row
from proxy.wire import trace

TIME_UNIT = "wall clock (Unix seconds)"


class Parser:
    """Reads records; counts those whose output length is not known and had to be assumed.

    Args:
        assume_output_tokens: the length then, where no cap is recorded either.
        bodies: rows carry their bodies, which must be of this endpoint; None: they carry none.
    """

    def __init__(self, assume_output_tokens: int, bodies: str | None = None) -> None:
        self._assume = assume_output_tokens
        self._bodies = bodies
        self.assumed = 0

    def parse(self, line: str, number: int) -> Row | None:
        """Read one line; None for a record that is no generation request.

        Raises:
            LineError: the line is no record of a version known here, has no prompt length, or bodies are asked for and
                it has none that can be sent.
        """
        try:
            record = trace.decode(line)
        except ValueError as error:
            raise LineError(str(error)) from None
        if record.endpoint not in GENERATES:
            return None
        return self._row(record, number)

    def _row(self, record: trace.Record, number: int) -> Row:
        prompt = record.prompt_tokens or record.prompt_tokens_estimated
        if prompt is None:
            raise LineError("has neither prompt_tokens nor prompt_tokens_estimated")
        blocks = tuple(map(_id63, record.hash_ids)) if record.block_tokens else ()
        known = record.outcome == "ok" and record.output_tokens
        return Row(
            number,
            round(record.arrived_s * 1e6) * 1000,  # records hold microseconds
            prompt,
            self._output(record),
            blocks,
            (record.block_tokens or 0) if blocks else 0,
            assumed=not known,
            body=self._body(record) if self._bodies else None,
        )

    def _output(self, record: trace.Record) -> int:
        if record.outcome == "ok" and record.output_tokens:
            return record.output_tokens
        self.assumed += 1
        return record.output_cap_sent or record.output_cap or self._assume

    def _body(self, record: trace.Record) -> bytes:
        if record.text is None:
            raise LineError("has no text: it was recorded without recorder.text, so its body cannot be sent again")
        if record.endpoint != self._bodies:
            raise LineError(f"is a request to {record.endpoint}; its body cannot be sent to {self._bodies}")
        if not record.stream:
            raise LineError("asked for no stream; a replay measures streams")
        return record.text.encode("utf-8", "surrogatepass")


GENERATES = frozenset({"chat", "completions", "responses", "messages"})


def _id63(text: str) -> int:
    """An id of 16 hexadecimal digits is its own number, so that it can be written again; any other text is hashed."""
    try:
        number = int(text, 16) if len(text) == 16 else None
    except ValueError:
        number = None
    if number is None:
        number = int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
    return number & ((1 << 63) - 1)
