#!/usr/bin/env python3
"""Draws docs/plots/comparison.svg: fidelity against what attention costs, for all methods in reports of `mcsa compare`.

    scripts/compare_methods.sh 1 build/release/mcsa build/compare-4096
    python3 bench/plot_comparison.py build/compare-4096/methods.json
    python3 bench/plot_comparison.py build/compare-4096/methods.json --costs costs-4096.json

One column for each report, in the order given: above PSNR over seconds of attention (dotted: dense), below over the
share of all query-key pairs that the run computed.  With --costs, files of `mcsa bench methods --json`, one for each
report, above over what the attention of 40 steps costs beside dense attention instead.  Points that differ in density
alone are joined; a hollow one missed the density asked by more than half a point.  Up and to the left is better.
"""
import argparse
import collections
import json
import pathlib
import re
import statistics

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot, ticker  # noqa: E402 (the backend comes first)

from tabulate_comparison import Costs  # noqa: E402

MARKS = "os^vD<>Pph*X"
ROWS = (("attention_s", "attention, seconds a clip"),
        ("density_run", "query-key pairs of the whole run, share of dense"))


def lines_of(report, chosen, costs):
    """{name without the density: [numbers of one run, ...] by density}, and where dense attention is on the axis."""
    clips = collections.defaultdict(list)
    for clip in report["clips"]:
        clips[clip["run"]].append(clip)
    lines, dense = collections.defaultdict(list), None
    for run, made in clips.items():
        name = re.sub(r" *\bs=[0-9.]+", "", run)
        point = {"density_run": statistics.mean(clip["density_run"] for clip in made)}
        if not costs:
            point["attention_s"] = statistics.median(clip["attention_s"] for clip in made)
        elif made[0]["method"] != "dense":
            point["attention_s"] = costs.of(name, round(made[0]["density_requested"], 3), made[0])
        if made[0]["method"] == "dense":
            dense = None if costs else point["attention_s"]
            continue
        if chosen and name not in chosen:
            continue
        point["psnr_db"] = statistics.mean(clip["psnr_db"] for clip in made)
        point["density"] = made[0]["density_requested"]
        executed = statistics.mean(clip["density_executed"] for clip in made)
        point["missed"] = abs(executed - point["density"]) > 0.005
        lines[name].append(point)
    for points in lines.values():
        points.sort(key=lambda point: point["density"])
    return lines, dense


def style(name, names):
    """MC-Sparse in black, red and gray above all others, which take colours and marks in turn."""
    if name.startswith("mc-sparse"):
        ours = [n for n in names if n.startswith("mc-sparse")]
        at = ours.index(name)
        return {"color": ("black", "tab:red", "tab:gray")[at % 3], "linestyle": ("-", ":")[at // 3 % 2], "marker": "*",
                "markersize": 8, "linewidth": 2, "zorder": 3}
    at = [n for n in names if not n.startswith("mc-sparse")].index(name)
    return {"color": pyplot.cm.tab20(at % 20), "marker": MARKS[at % len(MARKS)], "markersize": 4, "linewidth": 1}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("json", type=pathlib.Path, nargs="+", help="written by mcsa compare --report")
    parser.add_argument("--costs", type=pathlib.Path, nargs="+", help="written by mcsa bench methods --json")
    parser.add_argument("--methods", help="names to draw, commas between; default all in the reports")
    parser.add_argument("--out", type=pathlib.Path,
                        default=pathlib.Path(__file__).parents[1] / "docs" / "plots" / "comparison.svg")
    args = parser.parse_args()
    chosen = args.methods and args.methods.split(",")
    reports = [json.loads(path.read_text()) for path in args.json]
    costs = [Costs(json.loads(path.read_text())) for path in args.costs or ()] or [None] * len(reports)
    drawn = [lines_of(report, chosen, cost) for report, cost in zip(reports, costs, strict=True)]
    names = list(dict.fromkeys(name for lines, _ in drawn for name in lines))

    pyplot.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "mcsa", "font.size": 9})
    figure, axes = pyplot.subplots(2, len(reports), figsize=(4.6 * len(reports) + 0.6, 7.2), squeeze=False,
                                   layout="constrained")
    for column, (report, (lines, dense)) in enumerate(zip(reports, drawn)):
        settings = report["settings"]
        for row, (key, label) in enumerate(ROWS):
            panel = axes[row][column]
            if args.costs and key == "attention_s":
                label = "attention of 40 steps beside dense, measured on a CPU"
            for name, points in lines.items():
                look = style(name, names)
                panel.plot([p[key] for p in points], [p["psnr_db"] for p in points], label=name, **look)
                missed = [p for p in points if p["missed"]]
                panel.plot([p[key] for p in missed], [p["psnr_db"] for p in missed],
                           **look | {"linestyle": "", "markerfacecolor": "white", "zorder": 4})
            panel.set_xlabel(label)
            panel.grid(True, color="0.9")
        if dense:
            axes[0][column].axvline(dense, color="0.5", linestyle=":")
            axes[0][column].set_xscale("log", base=2)
            axes[0][column].xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
        axes[0][column].set_title(f"{settings['tokens']:,} tokens, {settings['steps']} steps, "
                                  f"{settings['processor']}", fontsize=9)
    for row in axes:
        row[0].set_ylabel("PSNR against dense, dB")
    entries = {}
    for panel in axes[0]:
        entries.update(zip(*panel.get_legend_handles_labels()[::-1]))
    figure.legend([entries[name] for name in names], names, loc="outside lower center", ncols=4, frameon=False)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out, metadata={"Date": None})
    print(args.out, args.out.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
