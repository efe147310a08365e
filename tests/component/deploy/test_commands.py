"""What helps at the command line: completion in three shells, help that ends like a manual, the shipped files."""

import shutil
import subprocess
from contextlib import redirect_stdout, suppress
from functools import cache
from io import StringIO

import pytest

from loadgen.cli import main as load_main
from proxy.cli import main

SCRIPTS = (("lanewise", "bash"), ("lanewise", "zsh"), ("lanewise", "fish"), ("lanewise-load", "bash"))
SECTIONS = ("FILES", "ENVIRONMENT", "EXIT CODES", "EXAMPLES")


@cache
def script_of(program, shell):
    """What a program prints for a shell; making that of the load generator takes all of its modules."""
    with redirect_stdout(StringIO()) as out, suppress(SystemExit):
        (main if program == "lanewise" else load_main)(["completion", shell])
    return out.getvalue()


def completed(script, program, *words):
    """What bash offers for the last of `words`."""
    line = " ".join(f"'{word}'" for word in words)
    ask = (
        f"{script}\nCOMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n"
        f"_{program.replace('-', '_')}\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(["bash"], input=ask, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_bash_completes_commands_and_options():
    script = script_of("lanewise", "bash")
    assert completed(script, "lanewise", "lanewise", "va") == ["validate"]
    assert completed(script, "lanewise", "lanewise", "validate", "--str") == ["--strict"]
    assert completed(script_of("lanewise-load", "bash"), "lanewise-load", "lanewise-load", "summ") == ["summarise"]


@pytest.mark.parametrize(("program", "shell"), SCRIPTS)
def test_each_shell_reads_its_script(program, shell):
    script = script_of(program, shell)
    assert "healthcheck" in script or "summarise" in script
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    assert subprocess.run([shell, "-n"], input=script, capture_output=True, text=True, check=False).stderr == ""


def test_an_unknown_shell_is_refused_with_the_ones_there_are(capsys):
    assert main(["completion", "csh"]) == 2
    assert "bash" in capsys.readouterr().err


def test_the_help_of_a_program_ends_like_a_manual_and_that_of_a_command_does_not(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert [word for word in (*SECTIONS, "SIGNALS") if f"\n{word}" not in text] == []
    assert main(["validate", "--help"]) == 0
    assert "EXIT CODES" not in capsys.readouterr().out


def test_the_load_generator_has_a_manual_too(capsys):
    with pytest.raises(SystemExit) as ended:
        load_main(["--help"])
    text = capsys.readouterr().out
    assert (ended.value.code, [word for word in SECTIONS if f"\n{word}" not in text]) == (0, [])


def test_the_shipped_files_are_found_in_the_source_tree_too(root, capsys):
    assert main(["files"]) == 0
    assert capsys.readouterr().out == f"{root}\n"
