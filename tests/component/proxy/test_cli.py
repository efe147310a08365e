"""The `lanewise` command: what it prints, where, and how it ends. `serve` runs as a process of its own."""

import http.client
import importlib.metadata
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from proxy import cli

BACKEND = "http://127.0.0.1:1"
PATIENCE_S = 20.0


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    """No variable of the machine takes part."""
    for name in [name for name in os.environ if name.upper().startswith("LANEWISE")]:
        monkeypatch.delenv(name)


@pytest.fixture
def run(capsys):
    """Run a command in this process: exit code, stdout, stderr."""

    def command(*arguments):
        code = cli.main([str(argument) for argument in arguments])
        return (code, *capsys.readouterr())

    return command


@pytest.fixture
def bad_file(tmp_path):
    """A configuration with two problems."""
    path = tmp_path / "bad.yaml"
    path.write_text(f"backends: [{BACKEND}]\nlisten: 8080\nlimits: {{body: 5}}\n")
    return path


def test_a_valid_configuration_is_called_valid(run):
    code, out, err = run("validate", "--backend", BACKEND)
    assert (code, err) == (0, "")
    assert out.startswith("valid: configuration ")


def test_every_problem_is_one_line_on_stderr_and_the_exit_code_is_2(run, bad_file):
    code, out, err = run("validate", "--config", bad_file)
    assert (code, out) == (2, "")
    assert [line.split(": ")[1] for line in err.splitlines()] == [f"{bad_file}:2", f"{bad_file}:3"]


def test_validate_as_json_is_one_document(run, bad_file):
    code, out, _ = run("validate", "--config", bad_file, "--json")
    document = json.loads(out)
    assert (code, document["valid"], len(document["problems"])) == (2, False, 2)
    code, out, _ = run("validate", "--backend", BACKEND, "--json")
    assert (code, json.loads(out)["valid"]) == (0, True)


def test_warnings_do_not_make_a_configuration_invalid_unless_strict(run):
    arguments = ("validate", "--backend", BACKEND, "--admin", "0.0.0.0:9100")
    code, _, err = run(*arguments)
    assert (code, err.startswith("lanewise: warning: admin: 0.0.0.0:9100 can be reached")) == (0, True)
    code, _, err = run(*arguments, "--strict")
    assert (code, "asks for no key" in err) == (2, True)


def test_strict_asks_why_a_key_differs(run):
    code, _, err = run("validate", "--backend", BACKEND, "--set", "scheduling.drop_factor=5", "--strict")
    assert (code, err) == (2, "lanewise: scheduling.drop_factor: differs from its default and no `why` says so\n")


def test_config_show_prints_only_what_differs(run):
    code, out, _ = run("config", "show", "--backend", BACKEND, "--set", "timeouts.drain=1m")
    assert (code, out) == (0, f"backends:\n  - {BACKEND}\ntimeouts:\n  drain: 1m\n")


def test_config_show_resolved_names_sources(run):
    code, out, _ = run("config", "show", "--backend", BACKEND, "--resolved", "--json")
    settings = json.loads(out)["settings"]
    assert (code, settings["backends"]["source"], settings["listen"]["source"]) == (0, "--backend", "default")


def test_the_schema_is_json(run):
    code, out, _ = run("config", "schema")
    assert (code, "backends" in json.loads(out)["properties"]) == (0, True)


@pytest.mark.parametrize(
    "arguments", [("frobnicate",), ("serve", "--frob"), ("validate", "--set", "x"), ("status", "extra")]
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(run, arguments):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "Traceback" not in err


def test_a_running_proxy_that_is_not_there_is_exit_code_1(run, unused_tcp_port):
    for command in ("status", "healthcheck"):
        code, out, err = run(command, "--admin", f"127.0.0.1:{unused_tcp_port}")
        assert (code, out) == (1, "")
        assert (
            err == f"lanewise: no answer from the admin listener at 127.0.0.1:{unused_tcp_port}: Connection refused\n"
        )


def test_another_owner_of_the_import_name_is_named(run, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "packages_distributions", lambda: {"proxy": ["lanewise", "proxy.py"]})
    code, _, err = run("serve", "--backend", BACKEND)
    assert (code, len(err.splitlines())) == (1, 1)
    assert "the package proxy.py is installed into the same environment" in err


def test_a_trace_directory_that_cannot_be_used_is_exit_code_1(run, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = run("serve", "--backend", BACKEND, "--record", tmp_path / "file")
    assert (code, err.startswith("lanewise: recorder.directory")) == (1, True)


def test_help_and_validation_do_not_load_the_server(tmp_path):
    code = (
        "import sys; from proxy.cli import main; "
        f"assert main(['validate', '--backend', '{BACKEND}']) == 0; "
        "servers = ('aiohttp', 'uvloop', 'prometheus_client', 'pydantic_settings'); "
        "print([name for name in servers if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "[]"


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Served:
    """`lanewise serve` as a process."""

    def __init__(self, *arguments, backend=BACKEND, **environment):
        self.listen, self.admin = free_port(), free_port()
        command = [sys.executable, "-m", "proxy", "serve", "--backend", backend]
        command += ["--listen", f"127.0.0.1:{self.listen}", "--admin", f"127.0.0.1:{self.admin}", *arguments]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=PATIENCE_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def wait_until_it_serves(self):
        for line in self.process.stderr:
            if "listens on" in line:
                return line
        raise AssertionError("it ended before it served")

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, err


@contextmanager
def served(*arguments, **more):
    one = Served(*arguments, **more)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()


def test_serve_starts_without_its_backend_and_says_so(run):
    with served() as proxy:
        proxy.wait_until_it_serves()
        status, body = proxy.get("/readyz")
        assert (status, json.loads(body)["reason"]) == (503, "no backend answers")
        assert run("healthcheck", "--admin", f"127.0.0.1:{proxy.admin}")[0] == 0
        code, _, err = run("healthcheck", "--ready", "--admin", f"127.0.0.1:{proxy.admin}")
        assert (code, err) == (1, "lanewise: /readyz answered 503: no backend answers\n")
        code, out, _ = run("status", "--admin", f"127.0.0.1:{proxy.admin}", "--json")
        assert (code, json.loads(out)["ready"]) == (0, False)
        code, out, _ = run("status", "--admin", f"127.0.0.1:{proxy.admin}")
        assert (code, "not ready: no backend answers" in out) == (0, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_ends_with_0(number):
    with served() as proxy:
        proxy.wait_until_it_serves()
        code, err = proxy.end(number)
        assert code == 0
        assert "draining: 0 requests to finish" in err
        assert "Traceback" not in err


@pytest.mark.parametrize("flag", ["--listen", "--admin"])
def test_a_port_in_use_is_exit_code_1_and_names_the_address(run, flag):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        other = "--admin" if flag == "--listen" else "--listen"
        code, out, err = run("serve", "--backend", BACKEND, flag, address, other, "127.0.0.1:0")
    assert (code, out) == (1, "")
    assert address in err
    assert "address already in use" in err.lower()
    assert "Traceback" not in err


def test_without_the_strict_parser_it_does_not_start():
    with served(AIOHTTP_NO_EXTENSIONS="1") as proxy:
        _, err = proxy.process.communicate(timeout=PATIENCE_S)
        assert proxy.process.returncode == 1
        assert "AIOHTTP_NO_EXTENSIONS" in err
        assert "Traceback" not in err


def test_a_bad_configuration_starts_nothing(bad_file, run):
    port = free_port()
    code, out, err = run("serve", "--config", bad_file, "--admin", f"127.0.0.1:{port}")
    assert (code, out, len(err.splitlines())) == (2, "", 2)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


# ---------------------------------------------------------------- another configuration while it runs


@pytest.fixture
def file(tmp_path):
    """A configuration that a process is started from."""
    path = tmp_path / "lanewise.yaml"
    path.write_text(f"backends: [{BACKEND}]\nscheduling: {{concurrency: 8}}\nstate_dir: {tmp_path / 'state'}\n")
    return path


def next_line(proxy, words):
    for line in proxy.process.stderr:
        if words in line:
            return line
    raise AssertionError(f"it ended without saying {words!r}")


def test_reload_rollback_and_verdict_tell_what_they_did_and_exit_as_they_ended(run, file):
    with served("--config", str(file)) as proxy:
        proxy.wait_until_it_serves()
        where = ("--admin", f"127.0.0.1:{proxy.admin}")
        file.write_text(file.read_text().replace("concurrency: 8", "concurrency: 9"))
        code, out, err = run("reload", *where)
        assert (code, err) == (0, "")
        assert out.splitlines()[0] == "scheduling.concurrency: 8 -> 9"
        assert out.splitlines()[1].endswith("is in force, generation 2")
        code, out, _ = run("verdict", "keep", "--reason", "p99 halved", *where, "--json")
        assert (code, json.loads(out)["sentences"][0].endswith("is judged keep: p99 halved")) == (0, True)
        good = file.read_text()
        file.write_text(good.replace("concurrency", "concurency"))
        code, out, err = run("reload", *where)
        assert (code, out) == (2, "")
        assert f'lanewise: {file}:2: unknown key "scheduling.concurency"; did you mean "concurrency"?' in err
        code, out, _ = run("reload", *where, "--json", "--config", file)
        assert (code, json.loads(out)["done"]) == (2, False)
        code, out, _ = run("rollback", "--reason", "too slow", *where)
        assert (code, out.splitlines()[0]) == (0, "scheduling.concurrency: 9 -> 8")
        assert f"in-force-{proxy.admin}.yaml" in out
        code, out, err = run("rollback", *where)
        assert (code, out) == (2, "")
        assert "no configuration is known that was in force before this one" in err
        _, body = proxy.get("/status.json")
        told = json.loads(body)["reload"]
        assert (told["generation"], told["succeeded"]) == (3, True)  # nothing to return to is no failed change


def test_a_backend_is_drained_and_resumed_from_a_shell(run, file):
    with served("--config", str(file)) as proxy:
        proxy.wait_until_it_serves()
        where, name = ("--admin", f"127.0.0.1:{proxy.admin}"), BACKEND.removeprefix("http://")
        code, out, err = run("backends", "drain", name, *where)
        assert (code, out) == (0, f"backend {name} gets nothing new; 0 requests to finish there\n")
        code, out, _ = run("backends", "list", *where, "--json")
        assert (code, [line["state"] for line in json.loads(out)["backends"]]) == (0, ["drained"])
        assert run("backends", "list", *where)[1].startswith(f"{name}: drained, 0/")
        assert run("backends", "resume", name, *where)[:2] == (0, f"backend {name} serves again\n")
        code, out, err = run("backends", "drain", "nobody", *where)
        assert (code, out) == (2, "")
        assert err == f'lanewise: no backend is called "nobody"; there are {name}\n'


def test_sighup_reloads_and_a_broken_file_is_said_in_the_log(file):
    with served("--config", str(file)) as proxy:
        proxy.wait_until_it_serves()
        good = file.read_text()
        file.write_text(good + "nonsense: 1\n")
        proxy.process.send_signal(signal.SIGHUP)
        assert 'unknown key "nonsense"' in next_line(proxy, "configuration not changed")
        file.write_text(good.replace("concurrency: 8", "concurrency: 7"))
        proxy.process.send_signal(signal.SIGHUP)
        assert "scheduling.concurrency: 8 -> 7" in next_line(proxy, "generation 2")
        assert proxy.end()[0] == 0


def test_flags_and_environment_are_read_again_as_they_were_given(run, file):
    with served("--config", str(file), LANEWISE_SCHEDULING__AGEING="5") as proxy:
        proxy.wait_until_it_serves()
        file.write_text("backends: [http://127.0.0.1:2]\nlisten: 127.0.0.1:1\n" + file.read_text().split("\n", 1)[1])
        code, out, _ = run("reload", "--admin", f"127.0.0.1:{proxy.admin}")
        assert (code, out.splitlines()[0].startswith("nothing differs")) == (0, True)


def test_orders_without_a_proxy_are_exit_code_1(run, unused_tcp_port):
    for command in (("reload",), ("rollback",), ("verdict", "bad")):
        code, out, err = run(*command, "--admin", f"127.0.0.1:{unused_tcp_port}")
        assert (code, out) == (1, "")
        assert f"admin listener on port {unused_tcp_port} takes orders here: Connection refused" in err


def test_a_verdict_is_one_of_two(run):
    code, _, err = run("verdict", "perhaps")
    assert (code, len(err.splitlines())) == (2, 1)
