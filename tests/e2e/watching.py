"""What tests with a running Prometheus share: its configuration, faster rules, proxies under watch, requests."""

import json
import urllib.error
import urllib.request

import yaml

from tools.prometheus.render import documents


def job(name, *targets):
    """A scrape job; each target an address, or an address with labels."""
    pairs = [target if isinstance(target, tuple) else (target, {}) for target in targets]
    return {"job_name": name, "static_configs": [{"targets": [at], "labels": labels} for at, labels in pairs]}


def scraping(*jobs, rules):
    """A Prometheus that looks every second."""
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": sorted(rules),
        "scrape_configs": list(jobs),
    }


def written_rules(folder, factor, **factors):
    """The shipped rules with `for` and windows divided by a factor; alerts may have one of their own, by name."""
    folder.mkdir()
    files = documents(factor)
    for own in set(factors.values()):
        alerts = yaml.safe_load(documents(own)["alerts.yaml"])
        group = alerts["groups"][0]
        group["name"] = f"divided-by-{own}"
        group["rules"] = [rule for rule in group["rules"] if factors.get(rule["alert"]) == own]
        files[f"alerts-{own}.yaml"] = yaml.safe_dump(alerts, allow_unicode=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return list(files)


def configured(folder, name, engine, listen, admin, **more):
    """The file of a proxy in front of one engine; engine and experiment carry its name."""
    file = folder / f"{name}.yaml"
    whole = {
        "backends": [{"url": f"http://{engine}", "name": f"engine-of-{name}"}],
        "listen": listen,
        "admin": admin,
        "state_dir": str(folder / f"{name}-state"),
        "metrics": {"experiment": name},
        "recorder": {"enabled": True, "directory": str(folder / f"{name}-trace")},
        **more,
    }
    file.write_text(yaml.safe_dump(whole))
    return file


def ask(listen, max_tokens, timeout=180, *, prompt=(1,) * 50, model="sim"):
    """Send one streamed request and return its status; None when the connection fails."""
    asked = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
    body = json.dumps({"model": model, **asked}).encode()
    request = urllib.request.Request(
        f"http://{listen}/v1/completions", data=body, headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            answer.read()
            return answer.status
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code
    except OSError:
        return None
