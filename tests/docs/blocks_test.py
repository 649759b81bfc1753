#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles or runs the code blocks of the Markdown pages and of the public headers' comments.

usage: blocks_test.py [--cxx g++] [--cc gcc] [--nvcc nvcc] [--include FOLDER]... [--program convoy]
                      [--library libconvoy.so] [--cmake cmake] [--only LANGUAGE] [FILE...]

cpp, c   compiled with -fsyntax-only: prologue.hpp (prologue.h) declares what the pages call a, w,
         d, bias ...; the block's #include lines come first, its `struct` and `template` blocks stay
         outside, the rest becomes the body of a function.
cuda     as cpp, by nvcc, where there is one.
cmake    configured in a project with a target `engine`, against a stand-in of the package.
python   run after prologue.py, where numpy and the library are; blocks that need PyTorch only where
         that is; else parsed.
sh       read by bash; then every call of convoy, make, cmake --preset and scripts/ is checked: that
         the options are in --help, the targets in the Makefile, the files there. `convoy conv2d`,
         `conv3d`, `explain` and `info` are run, on small files of the names in the block.

A line `<!-- code: no, WHY -->` before a block leaves it out; blocks of other languages or of none
are text.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
sys.path.insert(0, str(HERE))
import sample_files  # noqa: E402

LANGUAGES = ("c", "cmake", "cpp", "cuda", "python", "sh")
LEFT_OUT = re.compile(r"<!-- code: no, (.+) -->\s*$")


@dataclass
class Block:
    file: str
    line: int  # of its first line
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass
class Outcome:
    faults: list[str] = field(default_factory=list)
    counts: Counter = field(default_factory=Counter)

    def note(self, block: Block, how: str) -> None:
        self.counts[f"{block.language} {how}"] += 1

    def fault(self, block: Block, why: str) -> None:
        self.faults.append(f"{block.place}: {block.language} block: {why.strip()}")


def blocks_of(file: str, text: str, comment: bool) -> list[Block]:
    """The fenced blocks of a page, or of the comments of a source."""
    found = []
    opened: Block | None = None
    lines: list[str] = []
    before = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if comment:
            match = re.match(r"\s*//[/!]? ?(.*)$", line)
            line = match[1] if match else ""
        fence = re.match(r"\s*```\s*([\w{}+-]*)", line)
        if fence and opened is None:
            opened = Block(file, number + 1, fence[1], "")
            if LEFT_OUT.search(before):
                opened.language = ""
            lines = []
        elif fence and opened is not None:
            opened.text = "\n".join(lines) + "\n"
            if opened.language in LANGUAGES:
                found.append(opened)
            opened = None
            before = ""
        elif opened is not None:
            lines.append(line)
        elif line.strip():
            before = line
    if opened is not None:
        sys.exit(f"{file}:{opened.line}: the block has no end")
    return found


def all_files() -> list[str]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md", "include"],
        cwd=REPOSITORY, check=True, capture_output=True, text=True,
    ).stdout.splitlines()
    return [name for name in listing if (REPOSITORY / name).is_file()
            and not name.startswith(("docs/lab/", ".github/"))]


def wrapped(block: Block, prologue: str, head: str, tail: str) -> str:
    """The block as a translation unit; messages name the page's lines."""
    includes, outside, inside = [], [], []
    if block.file.startswith("include/"):
        includes.append(f"#include <{block.file.removeprefix('include/')}>")
    lines = block.text.splitlines()
    at = 0
    while at < len(lines):
        place = f'#line {block.line + at} "{block.file}"'
        line = lines[at]
        at += 1
        if line.startswith("#include"):
            includes += [place, line]
        elif re.match(r"(struct|template|class|namespace(?! \w+ =))\b", line):
            outside += [place, line]
            while at < len(lines) and not re.match(r"\}", line):
                line = lines[at]
                outside.append(line)
                at += 1
        else:
            inside += [place, line]
    return "\n".join([*includes, f'#include "{prologue}"', *outside, head, *inside, tail, ""])


class Checker:
    def __init__(self, options: argparse.Namespace, folder: Path):
        self.options = options
        self.folder = folder
        self.outcome = Outcome()
        self.helps: dict[str, str] = {}

    def run(self, command: list[str], **more) -> subprocess.CompletedProcess:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=300, check=False, **more)

    def check(self, block: Block) -> None:
        getattr(self, f"check_{block.language}")(block)

    # ---- C, C++, CUDA ----

    def folders(self) -> list[str]:
        return [f"-I{folder}" for folder in (REPOSITORY / "include", HERE, *self.options.include)]

    def compile(self, block: Block, command: list[str], source: str, suffix: str) -> None:
        path = self.folder / f"block{suffix}"
        path.write_text(source, encoding="utf-8")
        done = self.run([*command, *self.folders(), str(path)])
        if done.returncode != 0:
            self.outcome.fault(block, done.stdout)
        else:
            self.outcome.note(block, "compiled")

    def check_together(self, blocks: list[Block]) -> list[Block]:
        """Compile all blocks of C++ as one file, which reads the headers once; those left to check:
        none of them, or all where that file does not compile."""
        sources = [self.cpp_source(block, f"page::block{i}") for i, block in enumerate(blocks)]
        path = self.folder / "blocks.cpp"
        path.write_text("\n".join(sources), encoding="utf-8")
        if self.run([*self.cpp_command(), *self.folders(), str(path)]).returncode != 0:
            return blocks
        for block in blocks:
            self.outcome.note(block, "compiled")
        return []

    def cpp_command(self) -> list[str]:
        return [self.options.cxx, "-std=c++20", "-fsyntax-only", "-Wall", "-Wno-unused"]

    def cpp_source(self, block: Block, page: str) -> str:
        return wrapped(block, "prologue.hpp", f"namespace {page} {{\nvoid example() {{", "}\n}")

    def check_cpp(self, block: Block) -> None:
        self.compile(block, self.cpp_command(), self.cpp_source(block, "page"), ".cpp")

    def check_c(self, block: Block) -> None:
        source = wrapped(block, "prologue.h", "int example(void) {", "return 0; }")
        self.compile(block, [self.options.cc, "-std=c11", "-fsyntax-only", "-Wall", "-Wno-unused",
                             "-Werror"], source, ".c")

    def check_cuda(self, block: Block) -> None:
        if not self.options.nvcc:
            self.outcome.note(block, "left out: no nvcc")
            return
        source = wrapped(block, "prologue.cuh", "namespace page {\nvoid example() {", "}\n}")
        architecture = "100f" if "sm100" in block.text + block.file else "90a"
        # NOTE: -O0 of the device code: it is compiled, not run, and that takes a third of the time.
        self.compile(block, [
            self.options.nvcc, "-std=c++20", "--expt-relaxed-constexpr", "-ptx", "-Xcicc", "-O0",
            f"-arch=compute_{architecture}", f"-I{REPOSITORY / 'src'}", "-o",
            str(self.folder / "block.ptx")], source, ".cu")

    # ---- CMake ----

    def check_cmake(self, block: Block) -> None:
        project = self.folder / "cmake"
        project.mkdir(exist_ok=True)
        (project / "convoyConfig.cmake").write_text(
            "add_library(convoy::convoy INTERFACE IMPORTED)\n", encoding="utf-8")
        (project / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(page LANGUAGES NONE)\n"
            "add_library(engine INTERFACE)\n"
            "macro(target_link_libraries target)\n"
            "  foreach(library ${ARGN})\n"
            "    if(library MATCHES :: AND NOT TARGET ${library})\n"
            "      message(FATAL_ERROR \"no target ${library}\")\n"
            "    endif()\n  endforeach()\nendmacro()\n" + block.text, encoding="utf-8")
        done = self.run([self.options.cmake, "-S", str(project), "-B", str(project / "build"),
                         f"-Dconvoy_DIR={project}"])
        if done.returncode != 0:
            self.outcome.fault(block, done.stdout)
        else:
            self.outcome.note(block, "configured")

    # ---- Python ----

    def check_python(self, block: Block) -> None:
        try:
            compile(block.text, block.place, "exec")
        except SyntaxError as error:
            self.outcome.fault(block, str(error))
            return
        needs = ["numpy"] + (["torch"] if "torch" in block.text else [])
        missing = [name for name in needs if importlib.util.find_spec(name) is None]
        if not self.options.library:
            missing.append("the library")
        if missing:
            self.outcome.note(block, f"parsed: no {', '.join(missing)}")
            return
        prologue = "prologue_torch.py" if "torch" in needs else "prologue.py"
        source = (HERE / prologue).read_text(encoding="utf-8") + block.text
        environment = dict(os.environ, CONVOY_LIBRARY=str(self.options.library),
                           PYTHONPATH=str(REPOSITORY / "python"))
        done = self.run([sys.executable, "-c", source], env=environment, cwd=self.folder)
        if done.returncode != 0:
            self.outcome.fault(block, done.stdout)
        else:
            self.outcome.note(block, "run")

    # ---- Shell ----

    def check_sh(self, block: Block) -> None:
        done = self.run(["bash", "-n", "-c", block.text])
        if done.returncode != 0:
            self.outcome.fault(block, done.stdout)
            return
        before = len(self.outcome.faults)
        text = block.text.replace("\\\n", " ")
        for line in text.splitlines():
            for words in commands_of(line):
                if (why := self.check_command(words)) is not None:
                    self.outcome.fault(block, f"`{shlex.join(words)}`: {why}")
        if len(self.outcome.faults) == before:
            self.outcome.note(block, "checked")

    def check_command(self, words: list[str]) -> str | None:
        """What is wrong with one command, or None."""
        name, arguments = words[0], words[1:]
        if name == "convoy":
            return self.check_convoy(arguments)
        if name == "make":
            makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
            for target in arguments:
                if "=" not in target and not re.search(rf"^{re.escape(target)}:", makefile,
                                                       re.MULTILINE):
                    return f"the Makefile has no target {target}"
        elif name in ("cmake", "ctest") and "--preset" in arguments:
            preset = arguments[arguments.index("--preset") + 1]
            if f'"name": "{preset}"' not in (REPOSITORY / "CMakePresets.json").read_text():
                return f"CMakePresets.json has no preset {preset}"
        elif "/" in name and not name.startswith(("/", "build/", "../")):
            return None if os.access(REPOSITORY / name, os.X_OK) else "no such program"
        return None

    def check_convoy(self, arguments: list[str]) -> str | None:
        if not self.options.program:
            self.outcome.counts["convoy commands left out: no program"] += 1
            return None
        program = str(self.options.program)
        subcommand = arguments[0]
        if subcommand not in self.helps:
            told = self.run([program, subcommand, "--help"])
            if told.returncode != 0:
                return told.stdout
            self.helps[subcommand] = told.stdout
        known = set(re.findall(r"--[a-z][\w-]*", self.helps[subcommand]))
        for word in arguments[1:]:
            if word.startswith("--") and word.split("=")[0] not in known:
                return f"no option {word}"
        if subcommand in ("bench", "tune"):
            name = arguments[1]
            if re.fullmatch(r"[a-z]+[0-9]*(_\w+)?", name) and not (
                    REPOSITORY / "bench/shapes" / f"{name}.txt").is_file():
                return f"no shape set {name}"
        if subcommand in ("conv2d", "conv3d", "explain", "info"):
            work = self.folder / "convoy"
            sample_files.write(work, rank=3 if subcommand == "conv3d" else 2)
            if subcommand in ("conv2d", "conv3d") and "--device" not in arguments:
                arguments = [*arguments, "--device", "cpu"]
            done = self.run([program, *arguments], cwd=work)
            if done.returncode != 0:
                return f"exit status {done.returncode}: {done.stdout}"
            self.outcome.counts["convoy commands run"] += 1
        return None


def commands_of(line: str) -> list[list[str]]:
    """The commands of a line of shell, without redirections, settings and comments."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;<>")
    lexer.commenters = "#"
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    skip = False
    for word in lexer:
        if skip:
            skip = False
        elif word in ("&&", "||", "|", ";", "&"):
            commands.append([])
        elif set(word) <= set("<>&"):
            skip = True
        elif not commands[-1] and re.match(r"\w+=", word):
            pass
        else:
            commands[-1].append(word)
    return [command for command in commands if command]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cxx", default="c++")
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--nvcc", default="")
    parser.add_argument("--cmake", default="cmake")
    parser.add_argument("--include", action="append", default=[], type=Path)
    parser.add_argument("--program", type=lambda name: Path(name).resolve())
    parser.add_argument("--library", type=lambda name: Path(name).resolve())
    parser.add_argument("--only", choices=LANGUAGES)
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    names = options.files or all_files()
    blocks = []
    for name in names:
        text = (REPOSITORY / name).read_text(encoding="utf-8")
        blocks += blocks_of(name, text, comment=not name.endswith(".md"))
    if options.only:
        blocks = [block for block in blocks if block.language == options.only]
    if not blocks:
        print("no code block found")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        checker = Checker(options, Path(folder))
        cpp = [block for block in blocks if block.language == "cpp"]
        for block in checker.check_together(cpp):
            checker.check(block)
        for block in blocks:
            if block.language != "cpp":
                checker.check(block)
    outcome = checker.outcome
    for fault in outcome.faults:
        print(fault, end="\n\n")
    print(f"{len(blocks)} blocks of {len({block.file for block in blocks})} files: "
          + ", ".join(f"{count} {what}" for what, count in sorted(outcome.counts.items())))
    if outcome.faults:
        print(f"{len(outcome.faults)} do not hold")
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main())
