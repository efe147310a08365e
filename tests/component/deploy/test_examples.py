"""The examples: lanewise accepts each configuration, and what stands beside it agrees with it."""

import asyncio
import re
import shutil
import subprocess
from contextlib import asynccontextmanager

import pytest

from loadgen.children import free_address
from proxy.cli import main
from proxy.settings import load
from proxy.wire.startflags import parse_flags

EXAMPLES = ("single-card", "several-cards", "several-nodes", "prefill-decode", "ray-serve", "nginx")
PATIENCE_S = 20


@pytest.fixture(scope="module")
def folder(root):
    return root / "deploy/examples"


def blocks(text):
    return re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_every_example_is_listed_and_has_a_page(folder):
    listed = set(re.findall(r"\]\(([a-z-]+)/README.md\)", (folder / "README.md").read_text()))
    found = {path.parent.name for path in folder.glob("*/lanewise.yaml")}
    assert listed == found == set(EXAMPLES)
    assert all((folder / name / "README.md").is_file() for name in EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_lanewise_accepts_the_example_with_every_why(folder, name):
    assert main(["validate", "--strict", "--config", str(folder / name / "lanewise.yaml")]) == 0


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_link_and_every_command_of_its_page_is_whole(folder, name):
    text = (folder / name / "README.md").read_text()
    missing = [link for link in re.findall(r"\]\(([^)#:]+)\)", text) if not (folder / name / link).exists()]
    assert missing == []
    for block in blocks(text):
        assert subprocess.run(["bash", "-n"], input=block, text=True, capture_output=True, check=False).stderr == ""


@pytest.mark.parametrize(("name", "first"), [("single-card", 0), ("several-cards", 0)])
def test_the_engine_is_started_with_the_limits_that_lanewise_is_told(folder, name, first):
    command = blocks((folder / name / "README.md").read_text())[first].split("vllm serve")[1].replace("\\\n", " ")
    flags = parse_flags(command.split("\n")[0].strip(" &"))
    settings = load([folder / name / "lanewise.yaml"], []).settings
    assert {backend.max_num_seqs for backend in settings.backends} == {flags.max_num_seqs}
    assert settings.scheduling.prefill_budget_tokens == flags.max_num_batched_tokens


def test_a_group_with_two_prefill_engines_gets_two_chunks(folder):
    settings = load([folder / "prefill-decode/lanewise.yaml"], []).settings
    command = blocks((folder / "prefill-decode/README.md").read_text())[0]
    hosts = re.search(r"--prefiller-hosts ((?:[\d.]+ )+)", command)
    assert settings.scheduling.prefill_budget_tokens == 2048 * len(hosts[1].split())


def test_the_ingress_is_a_manifest_that_kubernetes_knows(folder, check):
    done = check("kubernetes-validate", "--strict", "-k", "1.31", folder / "nginx/ingress.yaml")
    assert (done.code, done.out.count("\n"), done.out.startswith("INFO")) == (0, 1, True)


@asynccontextmanager
async def nginx(folder, tmp_path, upstream):
    """The example's nginx on a free port, in front of `upstream`."""
    program = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin")
    if program is None:
        pytest.skip("no nginx here")
    text = (folder / "nginx/nginx.conf").read_text()
    listen = free_address()
    assert text.count("127.0.0.1:8443") == text.count("server 127.0.0.1:8080") == 1
    text = text.replace("127.0.0.1:8443", listen).replace("server 127.0.0.1:8080", f"server {upstream}")
    own = "\n".join(
        f"{name}_temp_path {tmp_path}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = tmp_path / "nginx.conf"
    config.write_text(
        f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/error.log; user root;\n"
        f"events {{}}\nhttp {{ access_log off; {own}\n{text} }}\n"
    )
    tested = await asyncio.create_subprocess_exec(program, "-q", "-t", "-c", config, stderr=asyncio.subprocess.PIPE)
    _, said = await tested.communicate()
    assert (tested.returncode, said) == (0, b"")
    process = await asyncio.create_subprocess_exec(program, "-c", config, stderr=asyncio.subprocess.DEVNULL)
    try:
        yield listen
    finally:
        process.terminate()
        await process.wait()


async def connected(address):
    host, port = address.split(":")
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await asyncio.open_connection(host, int(port))
            except ConnectionRefusedError:
                await asyncio.sleep(0)


@asynccontextmanager
async def behind_nginx(folder, tmp_path, answer):
    """A connection to nginx, which has a server behind it that answers each connection as it is told."""

    async def serve(reader, writer):
        try:
            await answer(reader, writer)
            await writer.drain()
        finally:
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server, nginx(folder, tmp_path, f"{host}:{port}") as address:
        reader, writer = await connected(address)
        try:
            yield reader, writer
        finally:
            writer.close()
            await writer.wait_closed()


async def test_tokens_pass_nginx_one_by_one_and_the_client_is_named(folder, tmp_path):
    first_was_seen, heads = asyncio.Event(), []

    async def answer(reader, writer):
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"e\r\ndata: first\n\n \r\n")
        await first_was_seen.wait()
        writer.write(b"f\r\ndata: second\n\n \r\n0\r\n\r\n")

    async with asyncio.timeout(PATIENCE_S), behind_nginx(folder, tmp_path, answer) as (reader, writer):
        body = b'{"prompt": "x"}'
        head = f"POST /v1/completions HTTP/1.1\r\nHost: inference.example\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"X-Forwarded-For: 6.6.6.6\r\nAccept-Encoding: gzip\r\n\r\n" + body)
        await reader.readuntil(b"data: first")
        first_was_seen.set()
        await reader.readuntil(b"data: second")
    assert heads[0].startswith("POST /v1/completions HTTP/1.1\r\n")
    assert "X-Forwarded-For: 127.0.0.1\r\n" in heads[0]
    assert "6.6.6.6" not in heads[0]


async def test_a_refusal_passes_nginx_with_its_retry_after_and_is_not_sent_again(folder, tmp_path):
    asked = []

    async def answer(reader, writer):
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 3\r\nContent-Length: 4\r\n\r\nbusy")

    async with asyncio.timeout(PATIENCE_S), behind_nginx(folder, tmp_path, answer) as (reader, writer):
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: inference.example\r\nContent-Length: 0\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(4) == b"busy"
    assert (head.split(b" ")[1], b"Retry-After: 3" in head, len(asked)) == (b"503", True, 1)
