"""What an index shows of the project: README with links that work there, and addresses.

scikit-build-core asks for both when it makes metadata (pyproject.toml). An index has the text of
README and no files, so its links to files lead to the repository, at the version's tag. Where that
is: a release knows it from GitHub's variables, any other build from POSENC_REPOSITORY, the address
of the repository's page. Without either README stays as it is and there are no addresses.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
# [text](target) and <img src="target">, the target not an address or a heading of the page.
_LINK = re.compile(r'(\]\(|<img src=")(?![a-z]+:|#)([^()\s"]+)')


def repository(environment: Mapping[str, str] = os.environ) -> str:
    """The address of the repository's page, or ""."""
    if given := environment.get("POSENC_REPOSITORY"):
        return given.rstrip("/")
    if "GITHUB_SERVER_URL" in environment and "GITHUB_REPOSITORY" in environment:
        return f"{environment['GITHUB_SERVER_URL']}/{environment['GITHUB_REPOSITORY']}"
    return ""


def readme(page: str, tag: str) -> str:
    """README, with links into the repository whose page that is."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    if not page:
        return text

    def whole(link: re.Match[str]) -> str:
        kind = "raw" if link[1].startswith("<img") else "blob"
        return f"{link[1]}{page}/{kind}/{tag}/{link[2]}"

    return _LINK.sub(whole, text)


def urls(page: str, tag: str) -> dict[str, str]:
    """Addresses under the names that an index knows."""
    if not page:
        return {}
    return {
        "Source": page,
        "Documentation": f"{page}/blob/{tag}/docs/index.md",
        "Changelog": f"{page}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{page}/issues",
    }


def dynamic_metadata(
    _settings: Mapping[str, object], project: Mapping[str, object]
) -> dict[str, object]:
    """What scikit-build-core asks for."""
    page, tag = repository(), f"v{project['version']}"
    return {
        "readme": {"content-type": "text/markdown", "text": readme(page, tag)},
        "urls": urls(page, tag),
    }
