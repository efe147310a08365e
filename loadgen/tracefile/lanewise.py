"""Our own records (`proxy.wire.trace`) as rows: what the proxy saw becomes load again."""

import hashlib

from loadgen.tracefile.row import LineError, Row
from proxy.wire import trace

TIME_UNIT = "wall clock (Unix seconds)"


class Parser:
    """Reads records; counts those whose output length is not known and had to be assumed."""

    def __init__(self, assume_output_tokens: int) -> None:
        self._assume = assume_output_tokens
        self.assumed = 0

    def parse(self, line: str, number: int) -> Row | None:
        """Read one line; None for a record that is no generation request.

        Raises:
            LineError: the line is no record of a version known here, or has no prompt length.
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
        blocks = tuple(map(_id64, record.hash_ids)) if record.block_tokens else ()
        return Row(
            number,
            round(record.arrived_s * 1e6) * 1000,  # records hold microseconds
            prompt,
            self._output(record),
            blocks,
            (record.block_tokens or 0) if blocks else 0,
        )

    def _output(self, record: trace.Record) -> int:
        if record.outcome == "ok" and record.output_tokens:
            return record.output_tokens
        self.assumed += 1
        return record.output_cap_sent or record.output_cap or self._assume


GENERATES = frozenset({"chat", "completions", "responses", "messages"})


def _id64(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
