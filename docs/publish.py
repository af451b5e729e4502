"""Puts a built site among the published versions: `python docs/publish.py BUILT PAGES REF`.

PAGES has a folder for each version and `versions.json`, which the site's version switch reads; the newest release, or
`latest` before there is one, is where its front page leads.
"""

import json
import shutil
import sys
from pathlib import Path

FRONT = """<!doctype html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={0}/">
<a href="{0}/">polynext {0}</a>
"""


def publish(built: Path, pages: Path, ref: str) -> list[str]:
    """Adds or replaces the version that a branch or tag stands for, and returns all versions, the newest first."""
    version = ref.removeprefix("v") if ref.startswith("v") else "latest"
    shutil.rmtree(pages / version, ignore_errors=True)
    shutil.copytree(built, pages / version)
    releases = [p.name for p in pages.iterdir() if p.is_dir() and p.name[0].isdigit()]
    releases.sort(key=lambda name: [int(part) for part in name.split(".")], reverse=True)
    versions = [*releases, *(["latest"] if (pages / "latest").is_dir() else [])]
    (pages / "versions.json").write_text(json.dumps(versions))
    (pages / "index.html").write_text(FRONT.format(versions[0]))
    (pages / ".nojekyll").touch()
    return versions


if __name__ == "__main__":
    print("\n".join(publish(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])))
