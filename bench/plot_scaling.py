#!/usr/bin/env python3
"""Draws docs/plots/scaling.svg: time of attention and of a model's steps over threads and over tokens.

    build/release/mcsa bench scaling --model models/tiny-t2v --frames 24 --height 96 --width 96 --json scaling.json
    python3 bench/plot_scaling.py scaling.json

Rows at the most tokens make the left half, rows at the most threads the right one.
"""
import argparse
import json
import pathlib

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot  # noqa: E402 (the backend comes first)

STYLES = {  # what stands before the first comma of a row's name
    "dense step": ("model, dense step", "tab:blue", "s-"),
    "reuse step": ("model, reuse step", "tab:orange", "s-"),
    "dense": ("attention, dense", "tab:blue", "o--"),
    "sparse": ("attention, sparse", "tab:orange", "o--"),
}


def series(rows, name, x):
    """[x], [seconds] of the rows called `name`."""
    points = sorted((row[x], row["median_ms"] / 1e3) for row in rows if row["case"].split(",")[0] == name)
    return [p[0] for p in points], [p[1] for p in points]


def draw(axes, rows, x, label, slope):
    """slope: of the dotted lines of ideal scaling; they leave one thread, and end at the most tokens."""
    for name, (text, colour, style) in STYLES.items():
        at, seconds = series(rows, name, x)
        if at:
            axes.loglog(at, seconds, style, color=colour, label=text, base=2)
    at = sorted({row[x] for row in rows})
    for name in STYLES:
        where, seconds = series(rows, name, x)
        if where:
            end = 0 if slope < 0 else -1
            ideal = [seconds[end] * (a / where[end]) ** slope for a in at]
            axes.loglog(at, ideal, ":", color="0.7", linewidth=1, zorder=0)
    axes.set_xticks(at, [str(a) for a in at])
    axes.minorticks_off()
    axes.set_xlabel(label)
    axes.grid(True, color="0.9")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("json", type=pathlib.Path, help="written by mcsa bench scaling --json")
    parser.add_argument("--out", type=pathlib.Path,
                        default=pathlib.Path(__file__).parents[1] / "docs" / "plots" / "scaling.svg")
    args = parser.parse_args()
    table = json.loads(args.json.read_text())
    rows = [row for row in table["rows"] if row["correct"]]
    tokens, threads = max(row["tokens"] for row in rows), max(row["threads"] for row in rows)

    pyplot.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "mcsa", "font.size": 9})
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8.5, 3.6), layout="constrained")
    draw(left, [row for row in rows if row["tokens"] == tokens], "threads", f"threads, N = {tokens}", -1)
    draw(right, [row for row in rows if row["threads"] == threads], "tokens", f"tokens N, {threads} threads", 2)
    left.set_ylabel("seconds (dotted: ∝ 1 / threads, ∝ N²)")
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)
    figure.suptitle(table["title"], fontsize=8, y=-0.02, va="top")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out, metadata={"Date": None}, bbox_inches="tight")
    print(args.out, args.out.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
