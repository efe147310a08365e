"""`lanewise-load report`: a run, or two compared, as one HTML file."""

from pathlib import Path

from loadgen.cli import SloOptions
from loadgen.columns import columns_of
from loadgen.compare import Comparison, NotComparableError, compare
from loadgen.failure import Exit, StopError
from loadgen.journal import RunFolder
from loadgen.runpage import RunPage, Shown, render
from loadgen.runwords import Language, Words
from loadgen.summarise import summarise

_SLO = SloOptions()


def report(
    run: Path,
    after: Path | None = None,
    /,
    *,
    out: Path,
    lang: Language = Language.EN,
    slo: SloOptions = _SLO,
) -> int:
    """Write a run, or two runs of one plan side by side with the verdict, as one HTML file that needs no network.

    Parameters
    ----------
    run
        Run folder; of two, the one before.
    after
        A second run folder, compared with the first.
    out
        File to write.
    lang
        en or zh.
    """
    folders = [RunFolder(run), *([] if after is None else [RunFolder(after)])]
    shown = [Shown(summarise(folder, slo.slo()), columns_of(folder.results()), folder.manifest()) for folder in folders]
    comparison, refused = _compared(folders, slo)
    text = render(RunPage(shown, comparison, refused, Words(lang)))
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StopError(f"--out {out}: cannot be written: {error.strerror}") from None
    return Exit.DONE


def _compared(folders: list[RunFolder], slo: SloOptions) -> tuple[Comparison | None, str | None]:
    if len(folders) < 2:
        return None, None
    try:
        return compare(folders[0], folders[1], slo.slo()), None
    except NotComparableError as error:
        return None, str(error.document["why"])
