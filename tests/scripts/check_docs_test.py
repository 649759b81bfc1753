#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/check_docs.py on a page of its own: it passes what is legal and names what is not."""

import sys
import tempfile
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(REPOSITORY / "scripts"))
import check_docs  # noqa: E402

PAGE = """# Heading

[Times][times], by [two\nlines](other.md#over-there), of [`code`][code and more]; `[text][no]`.

| a | b |
|---|---|
| 1 | `x|y` |

```
[text][no reference in code]
```

[times]: other.md
[Code  and more]: https://example.com
"""


class CheckDocsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name).resolve()
        (self.root / "other.md").write_text("## Over there\n")
        self.addCleanup(setattr, check_docs, "ROOT", check_docs.ROOT)
        check_docs.ROOT = self.root

    def complaints(self, text):
        page = self.root / "page.md"
        page.write_text(text)
        return check_docs.check(page)

    def named(self, text, *words):
        found = self.complaints(text)
        self.assertEqual(len(found), 1, found)
        for word in words:
            self.assertIn(word, found[0])

    def test_a_legal_page(self):
        self.assertEqual(self.complaints(PAGE), [])

    def test_a_reference_defined_twice(self):
        self.named(PAGE + "[TIMES]: other.md\n", "page.md:16", "[times]", "line 14")

    def test_a_reference_to_nothing(self):
        self.named(PAGE + "\nSee [that][there].\n", "page.md:17", "[there] is not defined")

    def test_a_reference_that_nothing_uses(self):
        self.named(PAGE + "[left]: other.md\n", "page.md:16", "[left] is used nowhere")

    def test_a_definition_of_a_file_that_is_not_there(self):
        self.named(PAGE.replace("[times]: other.md", "[times]: gone.md"), ":14", "gone.md")

    def test_an_anchor_that_is_not_there(self):
        self.named(PAGE.replace("#over-there", "#nowhere"), "no heading of that anchor")

    def test_a_row_of_three_cells(self):
        self.named(PAGE.replace("| 1 |", "| 1 | 2 |"), "3 cells")

    def test_an_open_fence(self):
        self.named(PAGE + "\n```\n", "a fence that nothing closes")


if __name__ == "__main__":
    unittest.main()
