#!/usr/bin/env python3
"""Draws docs/plots/analysis.svg: figures 2 to 5 of the paper from a report of `mcsa analyze`.

    mcsa analyze --model models/tiny-t2v --report analysis.json
    python3 bench/plot_analysis.py analysis.json

Reuse and drift are drawn at the recommended density, from the captured step a third of the way through the list of them.
"""
import argparse
import json
import pathlib

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot  # noqa: E402 (the backend comes first)

SELECTIONS = {
    "pooled-blocks": ("blocks by pooled scores", "tab:gray", "s-"),
    "exact-blocks": ("block oracle", "tab:blue", "s-"),
    "exact-tokens": ("token oracle", "tab:orange", "o-"),
    "pddp-tokens": ("PDDP, tokens", "tab:red", "o-"),
    "per-query": ("own keys of each query", "tab:green", "^-"),
}
PARTS = {
    "selection": ("selection", "tab:gray"),
    "key_binding": ("binding of keys", "tab:blue"),
    "query_binding": ("binding of queries", "tab:orange"),
    "discarded_tail": ("discarded tail", "tab:green"),
}
REUSED = {
    "fresh-pooled-blocks": ("pooled blocks, chosen anew", "tab:gray", "s-"),
    "old-exact-blocks": ("exact blocks of the earlier step", "tab:blue", "s-"),
    "old-pddp-tokens": ("PDDP tokens of the earlier step", "tab:red", "o-"),
}


def draw_oracles(axes, report):
    for name, (label, colour, style) in SELECTIONS.items():
        points = [p for p in report["oracles"] if p["selection"] == name]
        axes.plot([p.get("density_executed", p["density"]) for p in points], [p["recall"] for p in points], style,
                  color=colour, label=label)
    axes.set(xlabel="density", ylabel="attention mass kept", ylim=(0, 1))


def draw_split(axes, report):
    places = range(len(report["split"]))
    bottom = [0.0] * len(places)
    for name, (label, colour) in PARTS.items():
        heights = [p["mass"][name] for p in report["split"]]
        axes.bar(places, heights, 0.7, bottom, color=colour, label=label)
        bottom = [b + h for b, h in zip(bottom, heights)]
    axes.set_xticks(places, [f"{p['density']:g}" for p in report["split"]])
    axes.set(xlabel="density", ylabel="mass that pooled blocks lose")


def line(points, field):
    """[step], [value of the field]"""
    points = sorted(points, key=lambda p: p["step"])
    return [p["step"] for p in points], [p[field] for p in points]


def draw_reuse(axes, points, field, ylabel):
    for name, (label, colour, style) in REUSED.items():
        axes.plot(*line([p for p in points if p["selection"] == name], field), style, color=colour, label=label)
    axes.set(xlabel=f"denoising step, after step {points[0]['anchor']}", ylabel=ylabel)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("json", type=pathlib.Path, help="written by mcsa analyze --report")
    parser.add_argument("--out", type=pathlib.Path,
                        default=pathlib.Path(__file__).parents[1] / "docs" / "plots" / "analysis.svg")
    args = parser.parse_args()
    report = json.loads(args.json.read_text())
    density = report["recommendation"]["density"]
    anchors = sorted({p["anchor"] for p in report["output_drift"]})
    anchor = anchors[len(anchors) // 3]
    reuse = [p for p in report["reuse"] if p["density"] == density and p["anchor"] == anchor]
    made = [p for p in report["mc_sparse"] if p["density"] == density and p["anchor"] == anchor]
    drift = [p for p in report["output_drift"] if p["anchor"] == anchor]

    pyplot.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "mcsa", "font.size": 8})
    figure, axes = pyplot.subplots(2, 2, figsize=(8.5, 6.2), layout="constrained")
    draw_oracles(axes[0][0], report)
    draw_split(axes[0][1], report)
    draw_reuse(axes[1][0], reuse, "recall", f"attention mass kept, s = {density:g}")
    draw_reuse(axes[1][1], reuse, "rel_l2_with_residual", f"drift (relative L2), s = {density:g}")
    axes[1][1].plot(*line(made, "rel_l2"), "o-", color="tab:purple", label="MC-Sparse: groups, clusters, means")
    axes[1][1].plot(*line(drift, "rel_l2"), "k:", label="of the output itself")
    axes[1][0].set_ylim(0)
    axes[1][1].set_ylim(0)
    for panel, title in zip(axes.flat, ("what is kept", "where it is lost", "an old selection", "an old residual")):
        panel.set_title(title, fontsize=9)
        panel.grid(True, color="0.9")
        panel.set_axisbelow(True)
        panel.legend(fontsize=7, frameon=False)
    figure.suptitle(report["title"], fontsize=8, y=-0.02, va="top")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out, metadata={"Date": None}, bbox_inches="tight")
    print(args.out, args.out.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
