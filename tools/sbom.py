"""Write the bill of materials of a release: what requirements.lock installs, as CycloneDX JSON in dist/sbom.cdx.json.

The packages, versions and hashes are those of the lock; nothing is resolved, downloaded or asked for. The document is
the same for the same lock: it has neither a time nor a random serial number.
"""

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = "1.6"


def main(arguments: list[str] | None = None) -> int:
    """Write the document.

    Args:
        arguments: `--out FILE` and `--lock FILE`; None: those of the process.

    Returns:
        The exit code: 0, 2 when there is no lock, or that of cyclonedx-py, which also validates what it writes.
    """
    reader = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    reader.add_argument("--out", type=Path, default=ROOT / "dist/sbom.cdx.json")
    reader.add_argument("--lock", type=Path, default=ROOT / "requirements.lock")
    given = reader.parse_args(arguments)
    if not given.lock.is_file():
        print(f"{given.lock} is missing: make lock writes it", file=sys.stderr)
        return 2
    given.out.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-W", "ignore::UserWarning", "-m", "cyclonedx_py", "requirements", str(given.lock)]
    command += ["--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "application"]
    command += ["--output-reproducible", "--sv", SCHEMA, "--of", "JSON", "--validate", "-o", str(given.out)]
    done = subprocess.run(command, check=False)
    if done.returncode == 0:
        print(given.out)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
