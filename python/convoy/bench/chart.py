# SPDX-License-Identifier: Apache-2.0
"""Stacked bars of where a model's device time goes, as SVG: for each model and part a bar of each
way, eager's as long as the page is wide."""

import csv
from xml.sax.saxutils import escape

KINDS = {"convolution": "#1b6ca8", "norm": "#4a8c5c", "attention": "#8a5fa8", "copy": "#c8553d",
         "other": "#5f6b73"}
_IDLE = "#d9dde0"
_WIDTH, _LEFT, _RIGHT, _BAR, _GAP = 960, 190, 90, 13, 10


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def _number(row, key):
    value = row.get(key)
    return float(value) if value not in (None, "") else None


def drawn(rows):
    """The SVG of rows with `median_ms` and, where they were profiled, milliseconds of each kind."""
    groups: dict[tuple[str, str], list[dict]] = {}
    for row in rows:
        if _number(row, "median_ms") is not None:
            groups.setdefault((row["name"], row["part"]), []).append(row)
    out: list[str] = []
    x, y = float(_LEFT), 34
    for kind, colour in {**KINDS, "not the GPU": _IDLE}.items():
        out.append(f'<rect x="{x:.0f}" y="10" width="11" height="11" fill="{colour}"/>'
                   f'<text x="{x + 16:.0f}" y="20">{kind}</text>')
        x += 110
    for (name, part), group in groups.items():
        longest = max(_number(row, "median_ms") or 0.0 for row in group)
        out.append(f'<text x="8" y="{y + 10}" font-weight="bold">'
                   f'{escape(f"{name} {part}")}</text>')
        for row in group:
            spent = _number(row, "median_ms") or 0.0
            out.append(f'<text x="{_LEFT - 8}" y="{y + 10}" text-anchor="end">'
                       f'{escape(row["way"])}</text>')
            scale = (_WIDTH - _LEFT - _RIGHT) / longest
            x = float(_LEFT)
            parts = {kind: _number(row, f"{kind}_ms") or 0.0 for kind in KINDS}
            whole = sum(parts.values())
            shrink = min(1.0, spent / whole) if whole else 1.0  # Kernels beside each other.
            for kind, milliseconds in parts.items():
                width = milliseconds * shrink * scale
                out.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" '
                           f'fill="{KINDS[kind]}"/>')
                x += width
            rest = max(spent - whole * shrink, 0.0) * scale
            out.append(f'<rect x="{x:.1f}" y="{y}" width="{rest:.1f}" height="{_BAR}" '
                       f'fill="{_IDLE}"/>'
                       f'<text x="{x + rest + 6:.1f}" y="{y + 11}">{spent:.3g} ms</text>')
            y += _BAR + 3
        y += _GAP
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y}" '
            f'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" '
            'fill="white"/>\n' + "\n".join(out) + "\n</svg>\n")
