#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""links.py - checks that every link between the pages of this repository leads to a file, and to a heading in the file;
and that every test that a page names, as `directory/file.rs::name`, exists.

Prints each wrong link and missing test, and then ends with 1. Does not follow links to other hosts. With --files it
only prints the pages, and all files that they link to.
"""

import re
import subprocess
import sys
from pathlib import Path

FENCE = re.compile(r"^ *(```|~~~)")
ANCHOR = re.compile(r'<a id="([^"]+)">')
HEADING = re.compile(r"^#{1,6} +(.*?)#* *$")
TEST = re.compile(r"`([\w./-]+\.rs)::(\w+)`")
LINK = re.compile(r"\[[^\]]*\]\(<?([^)\s>]+)>?(?: +\"[^\"]*\")?\)")


def prose(page):
    """Yields the lines of a page outside of fenced code, with their numbers."""
    fenced = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            yield number, line


def anchors(page):
    """Returns the names that GitHub gives the headings of a page (a repeated name gets a number), and the names of the
    page's own anchors."""
    found = set()
    for _, line in prose(page):
        found.update(ANCHOR.findall(line))
        heading = HEADING.match(line)
        if heading:
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower().strip()
            name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            again, number = name, 0
            while again in found:
                number += 1
                again = f"{name}-{number}"
            found.add(again)
    return found


def broken(page):
    """Yields a message for each wrong link of a page."""
    for number, line in prose(page):
        for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            to = (page.parent / path) if path else page
            if not to.exists():
                yield f"{page}:{number}: {target}: there is no {to}"
            elif anchor and to.suffix == ".md" and anchor not in anchors(to):
                yield f"{page}:{number}: {target}: {to} has no such heading"


def missing_tests(page):
    """Yields a message for each test that a page names and that does not exist."""
    for number, line in prose(page):
        for file, name in TEST.findall(line):
            text = Path(file).read_text() if Path(file).exists() else ""
            if not re.search(rf"#\[(tokio::)?test\b[^\]]*\](\s*#\[[^\]]*\])*\s+(async )?fn {name}\(", text):
                yield f"{page}:{number}: {file} has no test that is called {name}"


def linked(page):
    """Yields the files that a page links to; for a directory, the files in the directory."""
    for _, line in prose(page):
        for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            path = target.partition("#")[0]
            if path and not re.match(r"[a-z]+:", target):
                to = (page.parent / path).resolve().relative_to(Path.cwd())
                yield from to.rglob("*") if to.is_dir() else [to]


def main():
    listed = subprocess.run(
        ["git", "ls-files", "-z", "*.md"], check=True, capture_output=True, text=True
    ).stdout
    pages = [Path(name) for name in listed.split("\0") if name]
    if sys.argv[1:] == ["--files"]:
        files = {file for page in pages for file in linked(page) if file.is_file()}
        print(*sorted(files | set(pages)), sep="\n")
        return 0
    wrong = [line for page in pages for line in (*broken(page), *missing_tests(page))]
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"{len(pages)} pages, {len(wrong)} wrong links or missing tests")
    return 1 if wrong or not pages else 0


if __name__ == "__main__":
    sys.exit(main())
