"""The bill of materials is valid CycloneDX, and lists what the lock lists."""

import json
import re
from urllib.parse import unquote

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tools.sbom import main


def test_every_locked_package_is_listed_with_its_version_and_hashes(root, tmp_path, capfd):
    blocks = re.findall(r"(?m)^[a-z0-9._-]+==(?:.*\\\n)+.*\n", (root / "requirements.lock").read_text())
    lock, out = tmp_path / "requirements.lock", tmp_path / "sbom.cdx.json"
    lock.write_text("".join(blocks[::25]))  # validating all of it takes many seconds
    assert main(["--lock", str(lock), "--out", str(out)]) == 0
    assert capfd.readouterr().out.strip() == str(out)
    text = out.read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document = json.loads(text)
    assert document["metadata"]["component"]["name"] == "lanewise"
    assert "serialNumber" not in document  # the same lock gives the same bytes
    assert "timestamp" not in document["metadata"]
    listed = {(one["name"], one["version"]) for one in document["components"]}
    assert listed == set(re.findall(r"^([a-z0-9._-]+)==(\S+)", lock.read_text(), re.MULTILINE))
    assert len(listed) >= 4
    for one in document["components"]:
        assert unquote(one["purl"]) == f"pkg:pypi/{one['name']}@{one['version']}"
        assert one["externalReferences"][0]["hashes"]


def test_a_lock_that_is_not_there_is_an_error(tmp_path, capfd):
    assert main(["--lock", str(tmp_path / "none"), "--out", str(tmp_path / "sbom.json")]) == 2
    assert "is missing: make lock writes it" in capfd.readouterr().err
    assert not (tmp_path / "sbom.json").exists()
