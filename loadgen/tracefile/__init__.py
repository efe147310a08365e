"""Trace files of several formats, read line by line into `Row`s.

A reader is chosen by the content of the file or by name. A line that cannot be read is named by file, line number
and reason; the caller decides whether it stops everything or is counted.
"""

from loadgen.tracefile.detect import FORMATS, Format
from loadgen.tracefile.files import Reading, Skipped, Trace, open_trace
from loadgen.tracefile.row import LineError, Row

__all__ = ["FORMATS", "Format", "LineError", "Reading", "Row", "Skipped", "Trace", "open_trace"]
