#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/check_arrows.py on a small tree: it passes what is allowed and names what is not."""

import contextlib
import io
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(REPOSITORY / "scripts"))
import check_arrows  # noqa: E402

TREE = {
    "include/convoy/convoy.hpp": "#pragma once\n",
    "src/core/core.hpp": '#include "convoy/convoy.hpp"\n',
    "src/core/CMakeLists.txt": "target_sources(convoy PRIVATE core.cpp)\n",
    "src/cpu/cpu.hpp": '#include "core/core.hpp"\n',
    "src/kernels/common/common.hpp": '#include "core/core.hpp"\n',
    "src/kernels/sm90/sm90.hpp": '// #include "kernels/sm100/sm100.hpp"\n#include <vector>\n'
                                 '#include "kernels/common/common.hpp"\n',
    "src/kernels/sm100/sm100.hpp": '#include <kernels/common/common.hpp>\n',
    "src/dispatch/backends.cpp": "cpu::register_kernels(list);\nsm90::register_kernels(list);\n",
    "cli/CMakeLists.txt": "add_executable(convoy_program main.cpp)\n"
                          "target_link_libraries(convoy_program PRIVATE convoy)\n",
    "cli/main.cpp": "#include <convoy/convoy.hpp>\n",
    "bench/sm90/bench.cpp": '#include "kernels/sm90/sm90.hpp"\n',
    "python/convoy/__init__.py": "import ctypes\nfrom . import _plan\n",
    "vgpu/src/memory.hpp": "#pragma once\n",
    "vgpu/src/run.cpp": '#include "memory.hpp"\n',
    "tests/support/support.hpp": '#include "core/core.hpp"\n',
}


class CheckArrowsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name).resolve()
        subprocess.run(["git", "init", "-q", self.root], check=True)
        for name, text in TREE.items():
            self.write(name, text)

    def write(self, name, text):
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def violations(self):
        return [str(violation) for violation in check_arrows.check(self.root)[0]]

    def planted(self, name, text):
        """What is said of one file that is added to the tree or put in place of one."""
        self.write(name, text)
        found = self.violations()
        self.assertEqual(len(found), 1, found)
        return found[0]

    def test_passes_what_is_allowed(self):
        violations, homeless, count = check_arrows.check(self.root)
        self.assertEqual(violations, [])
        self.assertEqual(homeless, [])
        # core; cpu; common; sm90; sm100; two registrations; CMake; main; bench/sm90
        self.assertEqual(count, 10)

    def test_names_file_line_and_what_is_legal(self):
        self.assertEqual(
            self.planted("src/core/bad.hpp", '#pragma once\n\n#include "cpu/cpu.hpp"\n'),
            "src/core/bad.hpp:3: src/core -> src/cpu is not allowed; legal: include/convoy")

    def test_one_architecture_does_not_see_the_other(self):
        self.assertIn("src/kernels/sm90 -> src/kernels/sm100 is not allowed",
                      self.planted("src/kernels/sm90/bad.cuh",
                                   "# include <kernels/sm100/sm100.hpp>"))

    def test_by_a_relative_path(self):
        self.assertIn("src/cpu -> src/kernels/common is not allowed",
                      self.planted("src/cpu/bad.cpp", '#include "../kernels/common/common.hpp"'))

    def test_by_a_header_that_is_not_there(self):
        self.assertIn("src/core -> src/cpu is not allowed",
                      self.planted("src/core/bad.hpp", '#include "cpu/gone.hpp"'))

    def test_by_a_registration(self):
        self.assertIn("src/kernels/composed/bad.cpp:2: src/kernels/composed -> src/kernels/sm90",
                      self.planted("src/kernels/composed/bad.cpp",
                                   "void f() {\n  convoy::sm90::register_kernels(list);\n}\n"))

    def test_by_a_linked_target(self):
        self.assertIn("cli/CMakeLists.txt:3: cli -> src/core is not allowed",
                      self.planted("cli/CMakeLists.txt",
                                   "add_executable(convoy_program main.cpp)\n"
                                   "target_link_libraries(convoy_program PRIVATE\n"
                                   "  convoy_internal)\n"))

    def test_by_another_folders_source(self):
        self.assertIn("src/reference/CMakeLists.txt:1: src/reference -> src/cpu is not allowed",
                      self.planted("src/reference/CMakeLists.txt",
                                   "add_library(r ${PROJECT_SOURCE_DIR}/src/cpu/onednn.cpp)\n"))
        self.write("src/reference/CMakeLists.txt", "add_library(r ../cpu/onednn.cpp)\n")
        self.assertEqual(len(self.violations()), 1)

    def test_by_a_python_import(self):
        self.write("bench/decode/layers.py", "import convoy.torch\n")
        self.assertEqual(self.violations(), [])
        self.assertIn("python -> bench is not allowed",
                      self.planted("python/convoy/_bad.py", "from bench.decode import layers\n"))

    def test_the_virtual_gpu_and_the_library_know_nothing_of_each_other(self):
        self.assertIn("vgpu -> include/convoy is not allowed; legal: nothing but itself",
                      self.planted("vgpu/src/bad.cpp", "#include <convoy/convoy.hpp>\n"))
        self.write("vgpu/src/bad.cpp", "")
        self.assertIn("src/dispatch -> vgpu is not allowed",
                      self.planted("src/dispatch/bad.cpp", '#include "vgpu/src/memory.hpp"\n'))

    def test_nothing_leans_on_the_tests(self):
        self.assertIn("cli -> tests is not allowed",
                      self.planted("cli/bad.cpp", '#include "tests/support/support.hpp"\n'))

    def test_a_folder_without_a_row(self):
        self.write("src/homeless/shard.cpp", '#include "core/core.hpp"\n')
        self.assertEqual(check_arrows.check(self.root)[1], ["src/homeless"])

    def test_the_table_has_no_circle(self):
        self.assertEqual(check_arrows.check_rows(), [])
        up = check_arrows.Folder("src/core", ("src/dispatch",))
        rows, check_arrows.FOLDERS = check_arrows.FOLDERS, (up, *check_arrows.FOLDERS[1:])
        self.addCleanup(setattr, check_arrows, "FOLDERS", rows)
        self.assertEqual(len(check_arrows.check_rows()), 1)

    def test_the_page_holds_the_table(self):
        self.write("docs/architecture.md", f"# x\n\n{check_arrows.BEGIN}\n{check_arrows.END}\n")
        self.assertIn("its table is not that of", check_arrows.check_page(self.root))
        check_arrows.write_page(self.root)
        self.assertIsNone(check_arrows.check_page(self.root))
        self.write("docs/architecture.md", "# x\n")
        self.assertIn("no table", check_arrows.check_page(self.root))

    def test_exit_status(self):
        self.write("docs/architecture.md", f"{check_arrows.BEGIN}\n{check_arrows.END}\n")
        check_arrows.write_page(self.root)
        self.assertEqual(self.main()[0], 0)
        self.write("src/core/bad.hpp", '#include "cpu/cpu.hpp"\n')
        status, told = self.main()
        self.assertEqual(status, 1)
        self.assertIn("src/core/bad.hpp:1: src/core -> src/cpu", told)

    def main(self):
        told = io.StringIO()
        arguments, sys.argv = sys.argv, ["check_arrows.py", "--root", str(self.root)]
        try:
            with contextlib.redirect_stdout(told):
                return check_arrows.main(), told.getvalue()
        finally:
            sys.argv = arguments


if __name__ == "__main__":
    unittest.main()
