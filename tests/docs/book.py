#!/usr/bin/env python3
"""Builds the pages as a book with mdBook: target/book/index.html, with a search and a table of contents.

The chapters are those that docs/README.md names, in its order and under its headings. The pages are taken as they are: what
they link to lies where it does in these sources. Afterwards all links of the book are checked.

usage: book.py [--sources DIR]
  --sources DIR  write mdBook's sources there, and build nothing

Exit code: 0, 1 if a link leads nowhere or mdBook failed, 2 if there is no mdBook.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

from pages import ROOT, links

INDEX = ROOT / "docs" / "README.md"
BOOK = ROOT / "target" / "book"
SETTINGS = """[book]
title = "profinfer"
language = "en"
src = "src"

[build]
build-dir = "html"
create-missing = false
# A README.md keeps its name: the pages link to it by that.
use-default-preprocessors = false

[output.html]
# Options begin with two hyphens, also in headings.
smart-punctuation = false

[output.html.search]
limit-results = 30
use-boolean-and = true

[output.html.fold]
enable = true
"""
# Pages of mdBook's own: of links relative to another place, or of all chapters at once.
NOT_CHECKED = {"404.html", "print.html", "toc.html"}


def title(page):
    """Its first heading, without marks."""
    heading = next(line for line in page.read_text().splitlines() if line.startswith("# "))
    return re.sub(r"[`*\[\]]", "", heading.removeprefix("# ")).strip()


def target(page, link):
    return (page.parent / unquote(link.partition("#")[0])).resolve()


def is_here(link):
    return not link.startswith("#") and ":" not in link.split("/")[0]


def chapters():
    """(heading of the index, its pages), each page once."""
    lines, seen = INDEX.read_text().splitlines(), {INDEX}
    heads = [(number, line.removeprefix("## ")) for number, line in enumerate(lines, 1) if line.startswith("## ")]
    parts = {0: ("Start", [])} | {number: (text, []) for number, text in heads}
    for number, link in links(INDEX):
        page = target(INDEX, link)
        if is_here(link) and page.suffix == ".md" and page not in seen:
            seen.add(page)
            parts[max(start for start in parts if start < number)][1].append(page)
    return [(text, pages) for text, pages in parts.values() if pages]


def summary(parts):
    lines = ["# Summary", "", f"[{title(ROOT / 'README.md')}](README.md)", f"[{title(INDEX)}](docs/README.md)"]
    for text, pages in parts:
        lines += ["", f"# {text}", "", *(f"- [{title(page)}]({page.relative_to(ROOT)})" for page in pages)]
    return "\n".join(lines) + "\n"


def write_sources(place):
    """What mdBook reads: the pages, and each file that one of them links to."""
    shutil.rmtree(place, ignore_errors=True)
    parts = chapters()
    pages = [ROOT / "README.md", INDEX, *(page for _, found in parts for page in found)]
    files = {target(page, link) for page in pages for _, link in links(page) if is_here(link)}
    for path in sorted({*pages, *(file for file in files if file.is_file() and file.suffix != ".md")}):
        copy = place / "src" / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    (place / "src" / "SUMMARY.md").write_text(summary(parts))
    (place / "book.toml").write_text(SETTINGS)
    return len(pages)


def broken(html):
    """Links of the book's pages to files or places that it does not have."""
    texts = {path: path.read_text() for path in sorted(html.rglob("*.html"))}
    names = {path: set(re.findall(r"\bid=\"([^\"]+)\"", text)) for path, text in texts.items()}
    for path, text in texts.items():
        if path.name in NOT_CHECKED:
            continue
        for link in re.findall(r"<(?:a|img)\b[^>]*?\b(?:href|src)=\"([^\"]+)\"", text):
            if link.startswith("#") or is_here(link):
                place, _, name = link.partition("#")
                to = (path.parent / unquote(place)).resolve() if place else path
                if not to.is_file():
                    yield f"{path.relative_to(html)}: {link}: no such file"
                elif name and to in names and unquote(name) not in names[to]:
                    yield f"{path.relative_to(html)}: {link}: no such heading"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", metavar="DIR", type=Path)
    args = parser.parse_args()
    if args.sources:
        write_sources(args.sources)
        return 0
    program = shutil.which("mdbook")
    if not program:
        print("book.py: no mdbook: get it by `cargo install mdbook`, and call this again", file=sys.stderr)
        return 2
    number = write_sources(BOOK)
    if subprocess.run([program, "build", BOOK]).returncode:
        return 1
    faults = list(broken(BOOK / "html"))
    print(*faults, f"{number} pages, {len(faults)} broken links: {BOOK / 'html' / 'index.html'}", sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
