#!/usr/bin/env python3
"""Checks the links of all pages: that a relative one names a file of these sources, and its anchor a heading there; and that
docs/README.md, the index, names every page of docs/."""

import subprocess
import sys
from urllib.parse import unquote

from pages import ROOT, anchors, links


def tracked():
    listing = subprocess.run(["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True)
    files = [ROOT / line for line in listing.stdout.splitlines()] if listing.returncode == 0 else list(ROOT.rglob("*"))
    return {path for path in files if path.is_file() and "target" not in path.relative_to(ROOT).parts}


def fault(page, target, files):
    """What is wrong with a link, or None."""
    place, _, anchor = target.partition("#")
    if ":" in place.split("/")[0]:
        return None
    path = (page.parent / unquote(place)).resolve() if place else page
    if path not in files and not any(path in file.parents for file in files):
        return "no such file"
    if anchor and path.suffix == ".md" and anchor not in anchors(path):
        return "no such heading"
    return None


def main():
    files = tracked()
    pages = sorted(path for path in files if path.suffix == ".md")
    found = [(page, line, target) for page in pages for line, target in links(page)]
    faults = [(page, line, target, why) for page, line, target in found if (why := fault(page, target, files))]
    for page, line, target, why in faults:
        print(f"{page.relative_to(ROOT)}:{line}: {target}: {why}")
    index = ROOT / "docs" / "README.md"
    named = {(index.parent / target.partition("#")[0]).resolve() for _, target in links(index)}
    left_out = [page for page in pages if index.parent in page.parents and page != index and page not in named]
    for page in left_out:
        print(f"docs/README.md: has no link to {page.relative_to(index.parent)}")
    if not faults and not left_out:
        print(f"links: {len(found)} in {len(pages)} pages")
    return 1 if faults or left_out else 0


if __name__ == "__main__":
    sys.exit(main())
