# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of one name in one process: test_NAME.py and every test_NAME_*.py.

  tests/python/run.py NAME [OPTION...]      options are unittest's: -v, -f, -k batch_norm
"""

import pathlib
import sys
import unittest

FOLDER = pathlib.Path(__file__).resolve().parent


def modules(name):
    return sorted(path.stem for pattern in (f"test_{name}.py", f"test_{name}_*.py")
                  for path in FOLDER.glob(pattern))


def main(name="", *options):
    found = modules(name)
    if not found:
        legal = ", ".join(sorted(path.stem.split("_", 1)[1] for path in FOLDER.glob("test_*.py")))
        sys.exit(f"no tests are called {name!r}; legal: {legal}, or the first word of one")
    unittest.main(module=None, argv=[sys.argv[0], *options, *found])


if __name__ == "__main__":
    main(*sys.argv[1:])
