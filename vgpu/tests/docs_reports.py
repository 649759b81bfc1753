#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the reports that the documents show with what the programs give now.

  docs_reports.py VGPU PROGRAM_FOLDER [--update]

A block of a document belongs to a report when this comment stands in front of it:
  <!-- report: OPTION... -- PROGRAM [ARGUMENT...], LINES lines -->
Numbers of PTX lines and registers depend on the compiler and are not compared.
"""
import pathlib
import re
import subprocess
import sys

DOCUMENTS = ("README.md", "CHECKS.md")
BLOCK = re.compile(r"<!-- report: (.*) -- (\w+) (.*), (\d+) lines -->\n```\n(.*?)```\n", re.DOTALL)


def report(vgpu, folder, options, program, arguments, lines):
    """The first lines of the report, behind the line that names the error and the kernel."""
    run = subprocess.run([vgpu, "run", *options, "--", str(folder / program), *arguments],
                         capture_output=True, text=True, check=False)
    text = run.stderr.splitlines()
    first = re.compile(r"\[vgpu\] cuda\w+ in kernel")
    start = next((i for i, line in enumerate(text) if first.match(line)), None)
    if start is None:
        raise SystemExit(f"{program} {' '.join(arguments)}: no report in\n{run.stderr}")
    return "\n".join(text[start + 1:start + 1 + lines]) + "\n"


def comparable(text):
    text = re.sub(r"PTX line \d+", "PTX line N", text)
    text = re.sub(r"_GLOBAL__N__[0-9a-f]{8}", "_GLOBAL__N_", text)  # nvcc's, of the build.
    return re.sub(r"%[a-z]+\d+", "%r", text)


def main():
    vgpu, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    update = sys.argv[3:] == ["--update"]
    blocks = wrong = 0
    for name in DOCUMENTS:
        path = pathlib.Path(__file__).resolve().parent.parent / name
        parts, end = [], 0
        document = path.read_text()
        for match in BLOCK.finditer(document):
            options, program, arguments, lines, shown = match.groups()
            now = report(vgpu, folder, options.split(), program, arguments.split(), int(lines))
            blocks += 1
            if comparable(now) == comparable(shown):
                continue
            wrong += 1
            print(f"{name}: `{program} {arguments}` now reports\n{now}and not\n{shown}")
            parts += [document[end:match.start(5)], now]
            end = match.end(5)
        if update:
            path.write_text("".join(parts) + document[end:])
    print(f"{blocks} reports, {wrong} differ")
    return 1 if blocks < 2 or (wrong and not update) else 0


if __name__ == "__main__":
    sys.exit(main())
