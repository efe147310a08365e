"""The chart and the plain manifests: rendered, checked against Kubernetes' own schemas, tried on lanewise itself."""

import copy
import json
import subprocess
from pathlib import Path

import pytest
import yaml

from loadgen.cli import app
from proxy.cli import main
from tools.deploy.render import BASE, base

CHART = "deploy/helm/lanewise"
OLDEST, NEWEST = "1.31", "1.37"
EVERYTHING = (
    "serviceMonitor.enabled=true,prometheusRule.enabled=true,dashboards.enabled=true,autoscaling.enabled=true,"
    "sharing.mode=redis,sharing.store=redis://redis:6379/0,existingSecret=secrets,service.type=LoadBalancer"
)
VARIANTS = {
    "defaults": (),
    "everything": ("--set", EVERYTHING),
    "volume": ("--set", "persistence.enabled=true,persistence.storageClass=fast,rolloutOnConfigChange=false"),
    "static": ("--set", "replicaCount=3,sharing.mode=static,podDisruptionBudget.enabled=false"),
}
SCHEMAS = Path(__file__).parent / "schemas"
OVERLAYS = ("base", "demo", "load")


@pytest.fixture(scope="module")
def helm(root, check):
    """Renders the chart: the documents, or what helm says against it."""

    def render(*arguments, release="edge"):
        done = check("helm", "template", release, root / CHART, *arguments)
        return list(yaml.load_all(done.out, Loader=yaml.CSafeLoader)) if done.code == 0 else done.err

    return render


@pytest.fixture(scope="module")
def rendered(helm):
    return {name: helm(*arguments) for name, arguments in VARIANTS.items()}


@pytest.fixture(scope="module")
def plain(root, check):
    """What kustomize makes of each folder."""
    made = {}
    for name in OVERLAYS:
        done = check("kubectl", "kustomize", root / "deploy/kubernetes" / name)
        assert (done.code, done.err) == (0, "")
        made[name] = list(yaml.load_all(done.out, Loader=yaml.CSafeLoader))
    made["merge"] = list(yaml.safe_load_all((root / "deploy/kubernetes/load/merge.yaml").read_text()))
    return made


def of_kind(documents, kind):
    return [one for one in documents if one["kind"] == kind]


def container(documents, kind="Deployment", name=None):
    found = [one for one in of_kind(documents, kind) if name is None or one["metadata"]["name"] == name]
    return found[0]["spec"]["template"]["spec"]["containers"][0]


def test_helm_finds_nothing_wrong_with_the_chart(root, check):
    done = check("helm", "lint", "--strict", root / CHART)
    assert (done.code, "0 chart(s) failed" in done.out) == (0, True)


def test_kubernetes_knows_every_field_of_every_manifest(rendered, plain, check, tmp_path):
    ours = unlike(one for made in (*rendered.values(), *plain.values()) for one in made)
    assert {one["kind"] for one in ours} > {"Deployment", "Job", "HorizontalPodAutoscaler", "PersistentVolumeClaim"}
    assert_valid(ours, OLDEST, check, tmp_path)


def test_the_newest_kubernetes_still_has_every_kind(rendered, plain, check, tmp_path):
    kinds = {one["kind"]: one for made in (*plain.values(), *rendered.values()) for one in reversed(made)}
    assert_valid(unlike(kinds.values()), NEWEST, check, tmp_path)


def unlike(documents):
    """Those that say different things, without the kinds that Kubernetes itself does not have."""
    kept = {}
    for one in documents:
        if not one["apiVersion"].startswith("monitoring."):
            kept.setdefault(json.dumps({**one, "metadata": sorted(one["metadata"])}), one)
    return list(kept.values())


def assert_valid(documents, version, check, folder):
    file = folder / "all.yaml"
    file.write_text(yaml.dump_all(documents, Dumper=yaml.CSafeDumper))
    done = check("kubernetes-validate", "--strict", "-k", version, file)
    said = (done.out + done.err).splitlines()
    assert done.code == 0, said
    assert [line for line in said if not line.startswith("INFO")] == []  # a WARN is a kind that nobody looked at
    assert len(said) == len(documents)


def test_a_misspelt_field_would_be_noticed(rendered, check, tmp_path):
    wrong = copy.deepcopy(of_kind(rendered["defaults"], "PodDisruptionBudget")[0])
    wrong["spec"]["maxUnavailible"] = 1
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(wrong))
    assert check("kubernetes-validate", "--strict", "-k", OLDEST, tmp_path / "wrong.yaml").code != 0


def test_what_the_prometheus_operator_gets_has_the_keys_that_it_knows(rendered, check, tmp_path):
    theirs = [one for one in rendered["everything"] if one["apiVersion"].startswith("monitoring.")]
    assert sorted(one["kind"] for one in theirs) == ["PrometheusRule", "PrometheusRule", "ServiceMonitor"]
    files = [tmp_path / f"{n}.json" for n in range(len(theirs))]
    for file, one in zip(files, theirs, strict=True):
        file.write_text(json.dumps(one))
    done = check(
        "jsonschema", *(word for file in files for word in ("-i", file)), SCHEMAS / "monitoring.coreos.com_v1.json"
    )
    assert (done.code, done.out + done.err) == (0, "")


def test_a_key_that_the_prometheus_operator_does_not_know_would_be_noticed(rendered, check, tmp_path):
    wrong = copy.deepcopy(of_kind(rendered["everything"], "ServiceMonitor")[0])
    wrong["spec"]["endpoints"][0]["scrape_every"] = "15s"
    (tmp_path / "wrong.json").write_text(json.dumps(wrong))
    done = check("jsonschema", "-i", tmp_path / "wrong.json", SCHEMAS / "monitoring.coreos.com_v1.json")
    assert (done.code, "scrape_every" in done.err) == (1, True)


def test_the_rules_of_the_chart_are_those_that_are_shipped_and_promtool_takes_them(rendered, root, promtools, tmp_path):
    for one in of_kind(rendered["everything"], "PrometheusRule"):
        name = one["metadata"]["name"].rpartition("-")[2]
        assert one["spec"] == yaml.safe_load((root / f"config/prometheus/{name}.yaml").read_text())
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(one["spec"]))
        command = [Path(promtools) / "promtool", "check", "rules", tmp_path / f"{name}.yaml"]
        assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_the_dashboards_of_the_chart_are_those_that_are_shipped(rendered, root):
    found = next(
        one for one in of_kind(rendered["everything"], "ConfigMap") if one["metadata"]["name"].endswith("boards")
    )
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    shipped = {f"lanewise-{path.name}": json.loads(path.read_text()) for path in root.glob("grafana/dashboards/*.json")}
    assert {name: json.loads(text) for name, text in found["data"].items()} == shipped


@pytest.mark.parametrize("variant", VARIANTS)
def test_lanewise_accepts_what_the_chart_tells_it(rendered, monkeypatch, tmp_path, variant):
    documents = rendered[variant]
    file = tmp_path / "lanewise.yaml"
    file.write_text(of_kind(documents, "ConfigMap")[0]["data"]["lanewise.yaml"])
    for one in container(documents)["env"]:
        monkeypatch.setenv(one["name"], one["value"])
    assert main(["validate", "--config", str(file)]) == 0


def test_several_proxies_share_what_one_may_take(rendered):
    told = {name: {one["name"]: one["value"] for one in container(made)["env"]} for name, made in rendered.items()}
    assert "LANEWISE_SHARE" not in told["defaults"]
    assert told["static"]["LANEWISE_SHARE"] == "1/3"
    assert told["everything"]["LANEWISE_SHARE"] == "1/4"  # while Redis cannot be reached there may be as many as four
    assert told["everything"]["LANEWISE_SHARING__STORE"] == "redis://redis:6379/0"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("replicaCount=2", "set sharing.mode to static or redis"),
        ("autoscaling.enabled=true", "autoscaling needs sharing.mode redis"),
        ("autoscaling.enabled=true,sharing.mode=static,replicaCount=2", "autoscaling needs sharing.mode redis"),
        ("sharing.mode=redis", "sharing.mode redis needs sharing.store"),
        ("persistence.enabled=true,replicaCount=2,sharing.mode=static", "persistence keeps the state of one proxy"),
        ("listen.port=80", "additional properties 'listen' not allowed"),
        ("service.port=http", "/service/port"),
        ("config.listen=0.0.0.0:80", "/config"),
    ],
)
def test_values_that_would_do_harm_are_refused(helm, values, said):
    told = helm("--set", values)
    assert isinstance(told, str)
    assert said in told


def test_a_pod_ends_later_than_its_streams(rendered):
    pod = of_kind(rendered["defaults"], "Deployment")[0]["spec"]["template"]["spec"]
    drain_s = 300  # timeouts.drain
    pause_s = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= drain_s + pause_s


def test_liveness_asks_the_process_and_readiness_the_backends(rendered):
    one = container(rendered["defaults"])
    assert one["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert one["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_every_container_runs_without_root_and_writes_to_volumes_alone(rendered, plain):
    pods = [
        one["spec"]["template"]["spec"]
        for made in (*rendered.values(), *plain.values())
        for one in made
        if one["kind"] in {"Deployment", "Job"}
    ]
    assert len(pods) > 8
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        limits = pod["containers"][0]["securityContext"]
        assert (limits["readOnlyRootFilesystem"], limits["allowPrivilegeEscalation"]) == (True, False)


def test_the_data_service_does_not_lead_to_the_admin_port(rendered):
    data, admin = of_kind(rendered["defaults"], "Service")
    assert [port["targetPort"] for port in data["spec"]["ports"]] == ["http"]
    assert [port["targetPort"] for port in admin["spec"]["ports"]] == ["admin"]


def test_the_plain_manifests_say_what_the_chart_says(check):
    assert check("helm", "version").code == 0
    assert BASE.read_text() == base()


def test_another_configuration_is_another_name_so_that_new_pods_start(plain):
    name = of_kind(plain["base"], "ConfigMap")[0]["metadata"]["name"]
    assert name.startswith("lanewise-")
    volumes = of_kind(plain["base"], "Deployment")[0]["spec"]["template"]["spec"]["volumes"]
    assert [one["configMap"]["name"] for one in volumes if "configMap" in one] == [name]


def test_the_configuration_of_the_plain_manifests_is_valid(root):
    assert main(["validate", "--strict", "--config", str(root / "deploy/kubernetes/base/configuration.yaml")]) == 0


def test_every_generator_of_the_job_sends_a_share_of_one_plan(plain, capsys):
    job = of_kind(plain["load"], "Job")[0]["spec"]
    assert job["completionMode"] == "Indexed"
    asked = container(plain["load"], "Job")["args"]
    requests = []
    for index in range(job["completions"]):
        names = {"$(JOB_COMPLETION_INDEX)": str(index), "$(RUN)": "first"}
        given = [expanded(one, names) for one in asked]
        given = [one for one in given if not one.startswith("--rows")]
        app([*given, "--rows=40", "--dry-run", "--json"], exit_on_error=False, result_action="return_value")
        requests.append(json.loads(capsys.readouterr().out)["requests"])
    assert (sum(requests), min(requests)) == (40, 10)


def test_the_folders_that_are_merged_are_those_that_are_written(plain):
    job = of_kind(plain["load"], "Job")[0]["spec"]
    out = next(one for one in container(plain["load"], "Job")["args"] if one.startswith("--out="))[6:]
    merged = [one for one in container(plain["merge"], "Job")["args"] if one.startswith("/runs/")]
    assert merged == [out.replace("$(JOB_COMPLETION_INDEX)", str(index)) for index in range(job["completions"])]


def expanded(text, names):
    for name, value in names.items():
        text = text.replace(name, value)
    return text
