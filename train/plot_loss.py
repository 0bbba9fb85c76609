"""Draws a run's loss.csv as a small PNG: training loss of each clip size over seconds, on a log scale.

Needs matplotlib, which nothing else here does.
"""

import argparse
import csv
from pathlib import Path
from statistics import mean

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

WINDOW = (
    9  # rows of 32 steps in a running mean: single rows of the large sizes hold two or three small batches
)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("csv", type=Path)
    p.add_argument("png", type=Path)
    args = p.parse_args()
    curves: dict[str, list[tuple[float, float]]] = {}
    with open(args.csv, newline="") as file:
        for row in csv.DictReader(file):
            curves.setdefault(row["size"], []).append((float(row["seconds"]), float(row["loss"])))
    figure, axes = plt.subplots(figsize=(6.4, 3.2), dpi=100)
    for size, points in curves.items():
        seconds, losses = zip(*points)
        smooth = [mean(losses[max(0, i - WINDOW // 2) : i + WINDOW // 2 + 1]) for i in range(len(losses))]
        axes.plot(seconds, smooth, label=size, linewidth=1.2)
    axes.set(xlabel="seconds of training", ylabel="flow-matching loss", yscale="log", ylim=(0.008, 0.3))
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.tight_layout()
    figure.savefig(args.png)


if __name__ == "__main__":
    main()
