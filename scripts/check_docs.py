#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks every Markdown page of the repository, or those named.

Lines have at most 120 columns, fences are closed, tables are whole (a header, a rule, the same
number of cells in each row), links and their anchors are there, references are defined once and
used.

A block behind a line `<!-- report: ... -->` is what a program prints, word for word, and may be
wider.
"""

import pathlib
import re
import subprocess
import sys
import urllib.parse

COLUMNS = 120
ROOT = pathlib.Path(__file__).resolve().parents[1]

FENCE = re.compile(r"^\s*(```+|~~~+)")
HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*$")
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
DEFINITION = re.compile(r"^ {0,3}\[([^\]]+)\]:\s+(\S+)\s*$")
REFERENCE = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])+\]\[([^\[\]]+)\]")
REPORT = re.compile(r"<!-- report: [^\n]* -->\n(```\n.*?\n```)", re.DOTALL)
RULE = re.compile(r"^\|(\s*:?-+:?\s*\|)+$")


def prose(text):
    """(number, line) of the lines outside fenced code; the number of a fence left open, or 0."""
    fence, opened, lines = "", 0, []
    for number, line in enumerate(text.splitlines(), 1):
        mark = FENCE.match(line)
        if fence:
            if mark and line.strip() == mark[1] and mark[1].startswith(fence):
                fence = ""
            continue
        if mark:
            fence, opened = mark[1], number
            continue
        lines.append((number, line))
    return lines, opened if fence else 0


def cells(row):
    """Cells of a table's row; a bar in code or behind a backslash separates nothing."""
    return len(re.sub(r"`[^`]*`|\\\|", "", row).strip().strip("|").split("|"))


def anchors(path):
    """Anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    seen: dict[str, int] = {}
    for _, line in prose(path.read_text(encoding="utf-8"))[0]:
        heading = HEADING.match(line)
        if heading:
            words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[2])
            words = words.replace("`", "").replace("*", "")
            slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
            count = seen.get(slug, 0)
            seen[slug] = count + 1
            found.add(f"{slug}-{count}" if count else slug)
        found.update(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", line))
    return found


def check_tables(lines, complain):
    block: list[tuple[int, str]] = []
    for number, line in lines + [(lines[-1][0] + 2, "")] if lines else []:
        if line.lstrip().startswith("|"):
            if block and number != block[-1][0] + 1:
                check_table(block, complain)
                block = []
            block.append((number, line))
            continue
        if re.search(r"\|\s*:?-{3,}:?\s*\|", line):
            complain(number, "a table's rule inside a line")
        if block:
            check_table(block, complain)
            block = []


def check_table(block, complain):
    block = [(number, row.strip()) for number, row in block]
    first = block[0][0]
    if len(block) < 2 or not RULE.match(block[1][1]):
        complain(first, "rows of a table without a header and a rule above them")
        return
    wanted = cells(block[0][1])
    for number, row in block:
        if cells(row) != wanted:
            complain(number, f"{cells(row)} cells; the table's header has {wanted}")


def check_links(path, lines, complain):
    numbers, text = [], ""
    defined: dict[str, int] = {}
    for number, line in lines:  # Joined, since a link's text may go over two lines.
        definition = DEFINITION.match(line)
        if definition:
            name = fold(definition[1])
            if name in defined:
                complain(number, f"reference [{name}] is defined in line {defined[name]} too")
            defined.setdefault(name, number)
            check_target(path, number, definition[2], complain)
            continue
        numbers.append((len(text), number))
        text += re.sub(r"`[^`\n]*`", lambda code: "`" * len(code[0]), line) + "\n"

    def line_of(offset):
        return max(line for start, line in numbers if start <= offset)

    for link in LINK.finditer(text):
        check_target(path, line_of(link.start(1)), link[1], complain)
    used, folded = set(), fold(text)
    for reference in REFERENCE.finditer(text):
        name = fold(reference[1])
        used.add(name)
        if name not in defined:
            complain(line_of(reference.start(1)), f"reference [{name}] is not defined")
    for name, number in defined.items():
        if name not in used and f"[{name}]" not in folded:
            complain(number, f"reference [{name}] is used nowhere")


def fold(name):
    """A reference's name as Markdown compares it: case and runs of blanks do not count."""
    return " ".join(name.lower().split())


def check_target(path, number, target, complain):
    if re.match(r"[a-z]+:", target):
        return
    file, _, anchor = target.partition("#")
    place = path if not file else (path.parent / urllib.parse.unquote(file)).resolve()
    if not place.exists():
        complain(number, f"link to {target}, which is not there")
    elif anchor and place.suffix == ".md" and anchor not in anchors(place):
        complain(number, f"link to {target}: {place.name} has no heading of that anchor")


def check(path):
    """The complaints about one page."""
    complaints = []

    def complain(number, what):
        complaints.append(f"{path.relative_to(ROOT)}:{number}: {what}")

    text = path.read_text(encoding="utf-8")
    printed: set[int] = set()
    for report in REPORT.finditer(text):
        first = text.count("\n", 0, report.start(1)) + 2
        printed.update(range(first, text.count("\n", 0, report.end()) + 1))
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > COLUMNS and number not in printed:
            complain(number, f"{len(line)} columns; legal: at most {COLUMNS}")
        if line != line.rstrip():
            complain(number, "blanks at the end of the line")
    lines, opened = prose(text)
    if opened:
        complain(opened, "a fence that nothing closes")
    check_tables(lines, complain)
    check_links(path, lines, complain)
    return complaints


def main():
    names = sys.argv[1:]
    if not names:
        listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
        listed = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True)
        names = listed.stdout.split()
    pages = [(ROOT / name).resolve() for name in names]
    pages = [page for page in pages if page.is_file()]
    if not pages:
        sys.exit("check_docs: no page to check")
    complaints = [complaint for page in pages for complaint in check(page)]
    print("\n".join(complaints), end="\n" if complaints else "")
    print(f"check_docs: {len(pages)} pages, {len(complaints)} complaints")
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
