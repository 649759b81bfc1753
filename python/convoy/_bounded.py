# SPDX-License-Identifier: Apache-2.0
"""Caches of what calls look like. NOTE: they forget everything at once, since who is asked at each
call has no time to note when."""


class Bounded(dict):
    """A dictionary of at most so many entries: the next one empties it first."""

    def __init__(self, most):
        super().__init__()
        self._most = most

    def _make_room(self, key):
        if len(self) >= self._most and key not in self:
            self.clear()

    def __setitem__(self, key, value):
        self._make_room(key)
        super().__setitem__(key, value)

    def setdefault(self, key, default=None):
        self._make_room(key)
        return super().setdefault(key, default)

    def copy(self):
        made = Bounded(self._most)
        made.update(self)
        return made
