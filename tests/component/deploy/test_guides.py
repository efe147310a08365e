"""The operations guide: both languages say the same, and its commands are what the programs take.

Commands of containers, clusters and systemd are not run: they are marked so in the text, read by the shell, and given
to those programs that can judge them without a cluster.
"""

import re
import shlex
import subprocess

import pytest

from loadgen.cli import app as load_app
from proxy.cli import app as proxy_app

TWINS = ("docs/operations", "docs/capacity", "docs/runbook")
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
FOREIGN = {"docker", "helm", "kubectl", "systemctl", "tar"}
MARKS = ("not run here", "测试不运行", "测试并不照原样运行")


def headings(text):
    return [line.split(" ")[0] for line in re.findall(r"^#+ .*", BLOCK.sub("", text), re.MULTILINE)]


def links(text):
    return [link.replace(".zh.md", ".md") for link in re.findall(r"\]\(([^)#]+)", text)]


def anchors(text):
    """How the headings of a page are linked to."""
    titles = re.findall(r"^#+ (.*)", BLOCK.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def commands(root, page):
    return [
        line
        for kind, body in BLOCK.findall((root / page).read_text())
        if kind in {"sh", "bash"}
        for line in body.replace("\\\n", " ").splitlines()
    ]


@pytest.mark.parametrize("page", TWINS)
def test_both_languages_have_the_same_sections_commands_and_links(root, page):
    english, chinese = (root / f"{page}.md").read_text(), (root / f"{page}.zh.md").read_text()
    assert headings(english) == headings(chinese)
    assert BLOCK.findall(english) == BLOCK.findall(chinese)
    assert links(english)[1:] == links(chinese)[1:]  # the first leads to the other language


@pytest.mark.parametrize("page", [f"{page}{language}" for page in TWINS for language in (".md", ".zh.md")])
def test_every_link_leads_to_a_page_and_a_section_that_exist(root, page):
    for target, section in re.findall(r"\]\(([^)#:]*)#?([^):]*)\)", (root / page).read_text()):
        found = (root / page).parent / target if target else root / page
        assert found.exists(), target
        assert not section or section in anchors(found.read_text()), f"{target}#{section}"


@pytest.mark.parametrize("page", ["docs/operations.md", "docs/operations.zh.md", "README.md", "README.zh.md"])
def test_what_is_not_run_here_is_marked_so(root, page):
    text = (root / page).read_text()
    marked = 0
    for found in re.finditer(r"([^\n]*\n[^\n]*\n[^\n]*)\n\n```(?:sh|bash)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if {word for line in found[2].splitlines() for word in line.split()[:1]} & FOREIGN:
            assert any(mark in " ".join(found[1].lower().split()) for mark in MARKS), found[2]
            marked += 1
    assert marked >= (4 if "operations" in page else 1)


@pytest.mark.parametrize("page", ["docs/operations.md", "README.md"])
def test_the_shell_reads_every_command(root, page):
    script = "\n".join(commands(root, page))
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_lanewise_takes_every_command_of_its_own_in_the_guide(root):
    text = (root / "docs/operations.md").read_text()
    inline = re.findall(r"`((?:lanewise|lanewise-load) [^`]*)`", " ".join(text.split()))
    blocks = [re.split(r" > ", line)[0] for line in commands(root, "docs/operations.md") if line.startswith("lanewise")]
    checked = 0
    for line in (*inline, *blocks):
        words = shlex.split(line.replace("keep|bad", "keep"))
        program = load_app if words[0] == "lanewise-load" else proxy_app
        if words[1:] in (["baseline"], ["knee"]):  # named, not written out: their target is asked for
            assert program[words[1]] is not None
        elif words[1:] != ["--version"]:
            program.parse_args(words[1:], exit_on_error=False, print_error=False)
        checked += 1
    assert checked > 20


def test_helm_renders_what_the_guides_install(root, check):
    lines = [
        line for page in ("docs/operations.md", "README.md") for line in commands(root, page) if "helm upg" in line
    ]
    assert len(lines) == 2
    for line in lines:
        words = shlex.split(line)
        assert words[:3] == ["helm", "upgrade", "--install"]
        done = check("helm", "template", *words[3:], cwd=root)
        assert done.code == 0, done.err


def test_kustomize_and_compose_find_what_the_guides_name(root, check):
    lines = [*commands(root, "docs/operations.md"), *commands(root, "README.md")]
    applied = [shlex.split(line)[-1] for line in lines if line.startswith("kubectl apply")]
    assert [check("kubectl", "kustomize", root / folder).code for folder in applied] == [0]
    stacks = [shlex.split(line)[2:-1] for line in lines if line.startswith("docker compose")]
    assert [check("docker-compose", *words, "config", "--quiet", cwd=root).code for words in stacks] == [0, 0]
