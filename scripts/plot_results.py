#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw a measured comparison (the CSV of convoy_vs_cudnn --csv) as SVG: a roofline and bars.

    scripts/plot_results.py bench/results/h200/cudnn.csv [--gemm 800] [--copy 4250] [--out FOLDER]
    scripts/plot_results.py bench/results/h200/cudnn.csv --markdown

--gemm (TFLOP/s) and --copy (GB/s) are the ceilings that the same run printed. Writes roofline.svg
and bars.svg beside the CSV; --markdown prints the tables of docs/performance.md instead. Needs
Python's standard library only.
"""

import argparse
import csv
import math
import pathlib
import re
import sys
from xml.sax.saxutils import escape

COLOURS = ["#1b6ca8", "#c8553d", "#4a8c5c", "#8a5fa8", "#b8860b", "#5f6b73"]
ELEMENT_BYTES = 2
# Kernels that have another name since a file was measured.
RENAMED = {
    "portable_halo": "few_filters",
    "portable_patch": "few_channels",
    "portable_pointwise": "pointwise",
    "portable_depthwise": "depthwise",
    "portable_grouped": "grouped",
    "portable_general": "general",
}


def parse_shape(text):
    """Extents of a shape string such as n1d4h480w832c96k3t3r3s3ph1pw1cache2."""
    fields = {key: int(value) for key, value in re.findall(r"([a-z]+)(\d+)", text)}
    if not {"h", "w", "c", "k"} <= fields.keys():
        raise ValueError(f"'{text}' is not a shape string: h, w, c or k is missing")
    return fields


def output_extent(f, extent, filter_key, axis):
    begin = f.get("p" + axis, 0)
    end = f.get("p" + axis + "e", begin)
    span = (f.get(filter_key, 1) - 1) * f.get("d" + axis, 1) + 1
    return (extent + begin + end - span) // f.get("s" + axis, 1) + 1


def work_of(text):
    """(FLOP, minimal bytes) of a shape: each input read once, the output written once."""
    f = parse_shape(text)
    n, c, k, groups = f.get("n", 1), f["c"], f["k"], f.get("g", 1)
    frames = f.get("d", 1) + f.get("cache", 0)
    taps = f.get("t", 1) * f.get("r", 1) * f.get("s", 1)
    outputs = (n * output_extent(f, frames, "t", "d") * output_extent(f, f["h"], "r", "h")
               * output_extent(f, f["w"], "s", "w") * k)
    flops = 2 * outputs * taps * c // groups
    elements = n * frames * f["h"] * f["w"] * c + k * taps * c // groups + outputs
    return flops, elements * ELEMENT_BYTES


class Svg:
    def __init__(self, width, height):
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
                      f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
                      f'<rect width="{width}" height="{height}" fill="white"/>']

    def line(self, x1, y1, x2, y2, colour="#999", width=1, dash=""):
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
                          f'stroke="{colour}" stroke-width="{width}"'
                          + (f' stroke-dasharray="{dash}"' if dash else "") + "/>")

    def rect(self, x, y, width, height, colour):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
                          f'height="{height:.1f}" fill="{colour}"/>')

    def circle(self, x, y, radius, colour, title, filled=True):
        fill = colour if filled else "none"
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{fill}" '
                          f'stroke="{colour}" fill-opacity="0.75"><title>{escape(title)}</title>'
                          "</circle>")

    def text(self, x, y, text, anchor="start", colour="#222", size=12):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" '
                          f'font-size="{size}">{escape(text)}</text>')

    def save(self, path):
        path.write_text("\n".join(self.parts + ["</svg>"]) + "\n")


def colours_of(rows):
    return {name: COLOURS[i % len(COLOURS)]
            for i, name in enumerate(dict.fromkeys(row["set"] for row in rows))}


def draw_roofline(rows, gemm_tflops, copy_gbs, path):
    width, height, left, bottom = 860, 560, 70, 500
    svg = Svg(width, height)
    x_range, y_range = (1.0, 4096.0), (0.5, 1024.0)

    def x_of(intensity):
        return left + (width - left - 190) * math.log(intensity / x_range[0]) / math.log(
            x_range[1] / x_range[0])

    def y_of(tflops):
        return bottom - (bottom - 40) * math.log(tflops / y_range[0]) / math.log(
            y_range[1] / y_range[0])

    for power in range(0, 13, 2):
        svg.line(x_of(2 ** power), bottom, x_of(2 ** power), 40, "#eee")
        svg.text(x_of(2 ** power), bottom + 18, str(2 ** power), "middle")
    for power in range(0, 11, 2):
        svg.line(left, y_of(2 ** power), x_of(x_range[1]), y_of(2 ** power), "#eee")
        svg.text(left - 8, y_of(2 ** power) + 4, str(2 ** power), "end")
    svg.text(x_of(64), bottom + 42, "FLOP per byte of compulsory traffic", "middle")
    svg.text(left, 24, "TFLOP/s: filled Convoy, hollow cuDNN", size=13)

    ridge = gemm_tflops * 1e3 / copy_gbs
    low = max(x_range[0], y_range[0] * 1e3 / copy_gbs)
    svg.line(x_of(low), y_of(low * copy_gbs / 1e3), x_of(ridge), y_of(gemm_tflops), "#444", 1.5)
    svg.line(x_of(ridge), y_of(gemm_tflops), x_of(x_range[1]), y_of(gemm_tflops), "#444", 1.5)
    svg.text(x_of(x_range[1]) + 6, y_of(gemm_tflops) + 4, f"GEMM {gemm_tflops:.0f} TFLOP/s")
    svg.text(x_of(low) + 8, y_of(low * copy_gbs / 1e3) - 6, f"copy {copy_gbs:.0f} GB/s")

    colours = colours_of(rows)
    for row in rows:
        flops, minimal = work_of(row["problem"])
        x = x_of(min(max(flops / minimal, x_range[0]), x_range[1]))
        for column, filled in (("cudnn_us", False), ("convoy_us", True)):
            tflops = flops / float(row[column]) * 1e-6
            title = f'{row["problem"]}: {tflops:.0f} TFLOP/s, '
            title += row["kernel"] if filled else "cuDNN"
            svg.circle(x, y_of(max(tflops, y_range[0])), 4, colours[row["set"]], title, filled)
    for i, (name, colour) in enumerate(colours.items()):
        svg.circle(x_of(x_range[1]) + 12, 200 + 20 * i, 5, colour, name)
        svg.text(x_of(x_range[1]) + 24, 204 + 20 * i, name.replace("_", " "))
    svg.save(path)


def draw_bars(rows, path):
    """Speed relative to cuDNN, one bar a shape, grouped by set; the line is parity."""
    bar, gap, left, limit = 13, 26, 330, 4.0
    sets = dict.fromkeys(row["set"] for row in rows)
    height = len(rows) * bar + len(sets) * (gap + 14) + 60
    width = 860
    scale = (width - left - 70) / limit
    svg = Svg(width, height)
    svg.text(left, 20, f"cuDNN time / Convoy time (bars end at {limit:.0f})", size=13)
    colours = colours_of(rows)
    y = 40
    for name in sets:
        group = [row for row in rows if row["set"] == name]
        geomean, convoy, cudnn = totals(group)
        svg.text(8, y + 10, f'{name.replace("_", " ")}: geomean {geomean:.2f}, '
                            f"by count {cudnn / convoy:.2f}", size=13)
        y += 18
        for row in group:
            ratio = float(row["ratio"])
            svg.text(left - 6, y + 10, row["problem"], "end", "#444", 9)
            svg.rect(left, y + 2, min(ratio, limit) * scale, bar - 3, colours[name])
            svg.text(left + min(ratio, limit) * scale + 4, y + 10, f"{ratio:.2f}", size=9)
            y += bar
        y += gap - 4
    svg.line(left + scale, 30, left + scale, y - 10, "#000", 1, "4 3")
    svg.save(path)


def totals(group):
    """(geometric mean of the ratios, Convoy ms, cuDNN ms), times weighted by count."""
    logs = [math.log(float(row["ratio"])) for row in group]
    convoy = sum(float(row["convoy_us"]) * int(row["count"]) for row in group) / 1e3
    cudnn = sum(float(row["cudnn_us"]) * int(row["count"]) for row in group) / 1e3
    return math.exp(sum(logs) / len(logs)), convoy, cudnn


def short_name(kernel):
    """A kernel's name of today; a Hopper instance's without what all share."""
    kernel = RENAMED.get(kernel, kernel)
    return re.sub(r"^sm90_fprop_(.*)_bf16$", r"\1", kernel)


def print_markdown(rows):
    sets = {name: [row for row in rows if row["set"] == name]
            for name in dict.fromkeys(row["set"] for row in rows)}
    print("| set | shapes | Convoy ms | cuDNN ms | by count | geomean | worst |")
    print("|---|---|---|---|---|---|---|")
    for name, group in sets.items():
        geomean, convoy, cudnn = totals(group)
        worst = min(float(row["ratio"]) for row in group)
        print(f"| {name} | {len(group)} | {convoy:.2f} | {cudnn:.2f} | {cudnn / convoy:.3f} | "
              f"{geomean:.3f} | {worst:.3f} |")
    for name, group in sets.items():
        print(f"\n### {name}\n")
        print("| shape | count | Convoy µs | cuDNN µs | × cuDNN | TFLOP/s | % of ceiling "
              "| kernel |")
        print("|---|---|---|---|---|---|---|---|")
        for row in group:
            print(f'| `{row["problem"]}` | {row["count"]} | {float(row["convoy_us"]):.1f} | '
                  f'{float(row["cudnn_us"]):.1f} | {float(row["ratio"]):.2f} | {row["tflops"]} | '
                  f'{row["pct_ceiling"]} | {short_name(row["kernel"])} |')


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("csv", type=pathlib.Path)
    parser.add_argument("--gemm", type=float, default=800.0, help="TFLOP/s of the GEMM ceiling")
    parser.add_argument("--copy", type=float, default=4250.0, help="GB/s of the copy ceiling")
    parser.add_argument("--markdown", action="store_true", help="print tables, draw nothing")
    parser.add_argument("--out", type=pathlib.Path, help="folder; default: that of the CSV")
    arguments = parser.parse_args()
    with arguments.csv.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        sys.exit(f"{arguments.csv}: holds no row")
    if arguments.markdown:
        print_markdown(rows)
        return
    folder = arguments.out or arguments.csv.parent
    folder.mkdir(parents=True, exist_ok=True)
    try:
        draw_roofline(rows, arguments.gemm, arguments.copy, folder / "roofline.svg")
        draw_bars(rows, folder / "bars.svg")
    except (KeyError, ValueError) as error:
        sys.exit(f"{arguments.csv}: {error}")


if __name__ == "__main__":
    main()
