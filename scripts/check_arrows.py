#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on an arrow between folders that is not in the table below.

An arrow goes from the folder of a file to the folder of what it names: by an #include line, by a
registration (`X::register_kernels`), by a Python import, or in a CMakeLists.txt by a linked target
or by a path into another folder.

    scripts/check_arrows.py           checks the sources and the table in docs/architecture.md
    scripts/check_arrows.py --table   prints the table as Markdown
    scripts/check_arrows.py --write   writes the table into docs/architecture.md

To add a folder, give it a row in FOLDERS. An arrow is allowed by naming its end in the row of its
beginning; no arrow follows from two others.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = "docs/architecture.md"
BEGIN = "<!-- arrows: scripts/check_arrows.py --write -->"
END = "<!-- arrows end -->"


@dataclass(frozen=True)
class Folder:
    """A row of the table: what the files below `path` may name, themselves aside."""

    path: str
    reaches: tuple[str, ...] = ()


BASE = ("include/convoy", "src/core")
KERNEL = (*BASE, "src/kernels/common")
ARCHITECTURES = ("src/kernels/sm90", "src/kernels/sm100", "src/kernels/mma")

# In the direction of the arrows: a row reaches only into rows above it.
FOLDERS = (
    Folder("include/convoy"),
    Folder("src/core", ("include/convoy",)),
    Folder("src/onednn", BASE),
    Folder("src/cpu", (*BASE, "src/onednn")),
    Folder("src/reference", (*BASE, "src/onednn")),
    Folder("src/kernels/common", BASE),
    Folder("src/kernels/sm90", KERNEL),
    Folder("src/kernels/sm100", KERNEL),
    Folder("src/kernels/mma", KERNEL),
    Folder("src/kernels/small", KERNEL),
    Folder("src/kernels/norm", KERNEL),
    Folder("src/kernels/elementwise", KERNEL),
    Folder("src/kernels/peer", KERNEL),
    Folder("src/kernels/composed", KERNEL),
    Folder(
        "include/convoy/device",
        (*KERNEL, *ARCHITECTURES, "src/kernels/composed"),
    ),
    Folder(
        "src/dispatch",
        (
            *KERNEL,
            "src/cpu",
            *ARCHITECTURES,
            "src/kernels/small",
            "src/kernels/norm",
            "src/kernels/elementwise",
            "src/kernels/composed",
        ),
    ),
    Folder("src/shard", (*KERNEL, "src/kernels/peer", "src/dispatch")),
    Folder("cli", ("include/convoy", "src/reference")),
    Folder("python", ("include/convoy",)),
    # The benchmarks share the program's readers and its way to measure.
    Folder("bench", ("include/convoy", "src/reference", "cli", "python")),
    # For those who change a backend.
    Folder("bench/cpu", (*BASE, "src/onednn")),
    Folder("bench/sm90", (*KERNEL, "src/kernels/sm90", "src/dispatch", "cli", "bench")),
    Folder("bench/sm100", (*KERNEL, "src/kernels/sm100", "cli", "bench")),
    Folder(
        "bench/choice",
        (
            *KERNEL,
            "src/kernels/sm90",
            "src/kernels/sm100",
            "src/kernels/mma",
            "src/kernels/composed",
            "src/dispatch",
            "src/reference",
            "cli",
            "bench",
        ),
    ),
    Folder("vgpu"),
)
PATHS = tuple(folder.path for folder in FOLDERS)

# Targets that no folder declares, and the folder that linking them opens.
TARGETS: dict[str, str] = {
    "convoy": "include/convoy",
    "convoy::convoy": "include/convoy",
    "convoy_internal": "src/core",
    "convoy_headers": "src/core",
}

# Files of these folders are read, not built in.
DATA = ("bench/shapes/", "cmake/", "data/", "docs/")

# Where a header is looked for, after the folder of the file that names it.
ROOTS = ("include", "src", "cli", "bench", "bench/common", "vgpu/src", "vgpu", "python", "")
VGPU_ROOTS = ("vgpu/src", "vgpu/cli", "vgpu/probe", "vgpu/tests", "vgpu", *ROOTS)

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
REGISTRATION = re.compile(r"\b(\w+)::register_kernels\s*\(")
IMPORT = re.compile(r"^\s*(?:from\s+(\w[\w.]*)\s+import\b|import\s+([\w.]+))")
DECLARATION = re.compile(r"\b(add_library|add_executable|convoy_add_\w+)\s*\(\s*(\w+)")
LINK = re.compile(r"\btarget_link_libraries\s*\(([^)]*)\)")
LISTED_PATH = re.compile(
    r"\$\{(?:PROJECT|CMAKE)_SOURCE_DIR\}/([\w./]+)|\s((?:\.\./)+[\w./]+)")

SOURCE_SUFFIXES = {".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".py"}


@dataclass(frozen=True)
class Violation:
    file: str
    line: int
    begin: str
    end: str
    legal: tuple[str, ...]

    def __str__(self) -> str:
        legal = ", ".join(self.legal) or "nothing but itself"
        return (
            f"{self.file}:{self.line}: {self.begin} -> {self.end} is not allowed; legal: {legal}"
        )


def folder_of(path: str) -> str | None:
    """The row that `path` belongs to: the longest one that it lies below."""
    rows = [row for row in PATHS if path == row or path.startswith(row + "/")]
    return max(rows, key=len, default=None)


def checked_files(root: Path) -> list[str]:
    """The files that git tracks or would add, below the folders of the table and below src."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    below = tuple(f"{top}/" for top in (*PATHS, "src"))
    return [name for name in listing if name.startswith(below) and (root / name).is_file()]


def resolve(root: Path, file: str, name: str, quoted: bool) -> str | None:
    """The file of the repository that an #include of `name` in `file` means, if it is one."""
    bases = [Path(file).parent] if quoted else []
    bases += [Path(base) for base in (VGPU_ROOTS if file.startswith("vgpu/") else ROOTS)]
    for base in bases:
        found = (root / base / name).resolve()
        if found.is_file() and found.is_relative_to(root):
            return found.relative_to(root).as_posix()
    # What is generated, or gone, still names its folder.
    for top in ("include", "src"):
        if "/" in name and (root / top / name).parent.is_dir():
            return f"{top}/{name}"
    return None


def without_comments(text: str) -> str:
    """C++ with comments blanked and its lines kept. Strings that hold // go too: no arrow."""
    text = re.sub(r"/\*.*?\*/", lambda match: "\n" * match[0].count("\n"), text, flags=re.DOTALL)
    return re.sub(r"//[^\n]*", "", text)


def arrows_of_source(root: Path, file: str, text: str) -> list[tuple[int, str]]:
    """Line and end of each arrow that a C++ or CUDA file begins."""
    arrows = []
    for number, line in enumerate(without_comments(text).splitlines(), start=1):
        if include := INCLUDE.match(line):
            target = resolve(root, file, include[2], include[1] == '"')
            if target is not None:
                arrows.append((number, target))
        for name in REGISTRATION.findall(line):
            rows = [path for path in PATHS if path.startswith("src/")]
            arrows += [(number, path) for path in rows if path.split("/")[-1] == name]
    return arrows


def arrows_of_python(root: Path, file: str, text: str) -> list[tuple[int, str]]:
    arrows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if match := IMPORT.match(line):
            path = (match[1] or match[2]).replace(".", "/")
            for base in (Path(file).parent, Path("python"), Path(".")):
                found = root / base / path.split("/")[0]
                if found.is_dir() or found.with_suffix(".py").is_file():
                    arrows.append((number, (base / path).as_posix()))
                    break
    return arrows


def arrows_of_cmake(file: str, text: str, targets: dict[str, str]) -> list[tuple[int, str]]:
    text = re.sub(r"#[^\n]*", "", text)
    arrows = []
    for link in LINK.finditer(text):
        for word in re.finditer(r"[\w:]+", link[1]):
            if word[0] in targets:
                position = link.start(1) + word.start()
                arrows.append((text.count("\n", 0, position) + 1, targets[word[0]]))
    for path in LISTED_PATH.finditer(text):
        # The virtual GPU is a project of its own.
        top = "vgpu/" if file.startswith("vgpu/") else ""
        target = top + path[1] if path[1] else os.path.normpath(Path(file).parent / path[2])
        arrows.append((text.count("\n", 0, path.start(1 if path[1] else 2)) + 1, target))
    return arrows


def declared_targets(root: Path, files: list[str]) -> dict[str, str]:
    """The targets of the folders' CMakeLists.txt, and which folder each is declared in."""
    targets = dict(TARGETS)
    for file in files:
        if file.endswith("CMakeLists.txt"):
            text = re.sub(r"#[^\n]*", "", (root / file).read_text(encoding="utf-8"))
            for command, name in DECLARATION.findall(text):
                target = f"convoy_{name}" if command.startswith("convoy_") else name
                targets.setdefault(target, str(Path(file).parent))
    return targets


def check(root: Path) -> tuple[list[Violation], list[str], int]:
    """Violations; folders without a row; the number of arrows between different rows."""
    reaches = {folder.path: folder.reaches for folder in FOLDERS}
    files = checked_files(root)
    targets = declared_targets(root, files)
    violations: list[Violation] = []
    homeless: set[str] = set()
    count = 0
    for file in files:
        path = Path(file)
        cmake = path.name == "CMakeLists.txt"
        if not cmake and path.suffix not in SOURCE_SUFFIXES:
            continue
        begin = folder_of(file)
        if begin is None:
            homeless.add(path.parent.as_posix())
            continue
        text = (root / file).read_text(encoding="utf-8")
        if cmake:
            arrows = arrows_of_cmake(file, text, targets)
        elif path.suffix == ".py":
            arrows = arrows_of_python(root, file, text)
        else:
            arrows = arrows_of_source(root, file, text)
        for line, target in arrows:
            # What no row owns (tests) is nothing that the house may lean on.
            end = folder_of(target) or (target.split("/")[0] if "/" in target else None)
            if end is None or end == begin or target.startswith(DATA):
                continue
            count += 1
            if end not in reaches[begin]:
                violations.append(Violation(file, line, begin, end, reaches[begin]))
    return violations, sorted(homeless), count


def check_rows() -> list[str]:
    """Each row reaches only into rows above it: then the arrows have no circle."""
    faults = []
    for index, folder in enumerate(FOLDERS):
        for end in folder.reaches:
            if end not in PATHS[:index]:
                faults.append(f"table: {folder.path} -> {end}, which is no row above it")
    return faults


def short_name(path: str) -> str:
    """The row as the table names it at the end of an arrow."""
    return path.removeprefix("src/").removeprefix("kernels/").removesuffix("/convoy")


def table() -> str:
    """The table as Markdown."""
    lines = ["| folder | reaches into |", "|---|---|"]
    for folder in FOLDERS:
        reaches = ", ".join(short_name(end) for end in folder.reaches) or "nothing"
        lines.append(f"| `{folder.path}/` | {reaches} |")
    return "\n".join(lines)


def check_page(root: Path) -> str | None:
    """What is wrong with the copy of the table in docs/architecture.md."""
    page = (root / PAGE).read_text(encoding="utf-8")
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        return f"{PAGE}: no table between the lines `{BEGIN}` and `{END}`"
    if page.split(BEGIN)[1].split(END)[0].strip() != table():
        return f"{PAGE}: its table is not that of {Path(__file__).name}: run it with --write"
    return None


def write_page(root: Path) -> None:
    page = (root / PAGE).read_text(encoding="utf-8")
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        sys.exit(f"{PAGE}: no place for the table: put the lines `{BEGIN}` and `{END}` there")
    head, rest = page.split(BEGIN)
    tail = rest.split(END)[1]
    (root / PAGE).write_text(f"{head}{BEGIN}\n\n{table()}\n\n{END}{tail}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="print the table as Markdown")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE}")
    parser.add_argument("--root", type=Path, default=REPOSITORY, help="the repository")
    options = parser.parse_args()
    root = options.root.resolve()
    if options.table:
        print(table())
        return 0
    if options.write:
        write_page(root)
        return 0
    violations, homeless, count = check(root)
    faults = [str(violation) for violation in violations]
    faults += [f"{folder}: no row of the table in scripts/check_arrows.py" for folder in homeless]
    faults += check_rows()
    if (fault := check_page(root)) is not None:
        faults.append(fault)
    for fault in faults:
        print(fault)
    print(f"arrows: {count} between folders, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
