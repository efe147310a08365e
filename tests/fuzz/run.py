"""Runs in a process of its own, with atheris: fuzz one target for a while.

    python run.py TARGET SECONDS SEEDS FOUND

`SEEDS` is a folder with the kept inputs, `FOUND` one where new ones and what breaks go.
"""

import sys
from pathlib import Path

import atheris  # type: ignore[import-not-found]

with atheris.instrument_imports(include=["proxy", "loadgen"]):
    import loadgen.tracefile.files  # noqa: F401 - as below
    import proxy.accept
    import proxy.settings.load
    import proxy.upstream.framing
    import proxy.upstream.head
    import proxy.wire.caps
    import proxy.wire.sse  # noqa: F401 - imported so that their branches are counted

from tests.fuzz.targets import TARGETS, tokens


def main() -> None:
    target, seconds, seeds, found = sys.argv[1:]
    words = Path(found) / "words.dict"
    lines = ['"' + "".join(f"\\x{byte:02x}" for byte in word) + '"' for word in tokens()[target]]
    words.write_text("\n".join(lines) + "\n", "ascii")
    corpus = Path(found) / "corpus"
    corpus.mkdir(exist_ok=True)
    options = [f"-max_total_time={seconds}", "-max_len=1024", "-timeout=20", "-rss_limit_mb=2048", f"-dict={words}"]
    options += [f"-artifact_prefix={found}/", "-print_final_stats=1", str(corpus), seeds]
    atheris.Setup([sys.argv[0], *options], TARGETS[target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
