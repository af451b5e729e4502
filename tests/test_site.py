"""The documentation's site: it builds without a warning, its links lead somewhere, and it needs no other host."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

import polynext

ROOT = Path(__file__).parent.parent
# Building writes pages of the reference into docs: two at once would take them away from each other.
pytestmark = pytest.mark.xdist_group("site")

LOADED = {("link", "href"), ("script", "src"), ("img", "src"), ("source", "src"), ("iframe", "src")}


class Page(HTMLParser):
    """What a page names, links to and loads."""

    def __init__(self, file: Path):
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            if name in ("href", "src") and value is not None:
                self.links.add(value)
                if (tag, name) in LOADED and ("rel", "canonical") not in attrs:
                    self.loaded.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Page]:
    """Built as `make docs` builds it."""
    out = tmp_path_factory.mktemp("site")
    arguments = ["-W", "--keep-going", "-q", "-b", "html", "-d", str(out / "doctrees"), "docs", str(out / "html")]
    built = subprocess.run([sys.executable, "-m", "sphinx", *arguments], cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return {file: Page(file) for file in (out / "html").rglob("*.html")}


def test_links_and_anchors_are_there(site: dict[Path, Page]) -> None:
    missing = []
    for file, page in site.items():
        for link in page.links:
            if re.match(r"[a-z]+:", link):
                continue
            path, anchor = urldefrag(link)
            target = (file.parent / unquote(path.split("?")[0])).resolve() if path else file
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (anchor and target in site and unquote(anchor) not in site[target].anchors):
                missing.append(f"{file.name}: {link}")
    assert not missing


def test_nothing_is_loaded_from_another_host(site: dict[Path, Page]) -> None:
    assert not {link for page in site.values() for link in page.loaded if re.match(r"(https?:)?//", link)}
    styles = "".join(file.read_text() for file in next(iter(site)).parent.rglob("*.css"))
    assert not re.findall(r"url\(['\"]?(?:https?:)?//[^)]*", styles)


def test_every_public_name_has_an_entry(site: dict[Path, Page]) -> None:
    entries = {anchor for file, page in site.items() if file.parent.name == "reference" for anchor in page.anchors}
    described = {name.rsplit(".", 1)[-1] for name in entries}
    packages = [name for name in polynext.__all__ if (ROOT / "polynext" / name).is_dir()]
    for front in (polynext, *(getattr(polynext, package) for package in packages)):
        assert {name for name in front.__all__ if name not in packages} <= described, front.__name__
