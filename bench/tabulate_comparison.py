#!/usr/bin/env python3
"""Tables of docs/COMPARISON.md from a report of `mcsa compare` and the costs of `mcsa bench methods`.

    scripts/compare_methods.sh 1 build/release/mcsa build/compare-4096
    build/release/mcsa bench methods --tokens 4096 --density 0.10,0.15,0.25 --json build/costs-4096.json
    python3 bench/tabulate_comparison.py build/compare-4096/methods.json build/costs-4096.json

First all methods: PSNR and SSIM against dense, and the attention of a run of 40 steps over 40 dense calls.  Then each
method against the run of MC-Sparse that is nearest to dense among those whose attention takes no longer.
"""
import argparse
import json
import re
import statistics

STEPS = 40


def fidelity(report):
    """{(name, density): clips}, names without their density."""
    made = {}
    for clip in report["clips"]:
        if clip["method"] != "dense":
            name = re.sub(r" *\bs=[0-9.]+", "", clip["run"])
            made.setdefault((name, round(clip["density_requested"], 3)), []).append(clip)
    return made


def schedule_of(settings):
    """(dense, anchor, reuse) steps of a run of MC-Sparse."""
    text = re.search(r"schedule=(\S+)", settings).group(1)
    if text == "ramp":
        anchors = [3, 5, 8, 12, 17, 23, 30]
    elif text == "paper":
        anchors = [7, 18]
    else:
        anchors = [int(a) for a in text.removeprefix("list:").split(",")]
    return anchors[0], len(anchors), STEPS - anchors[0] - len(anchors)


class Costs:
    """Attention of a run of 40 steps over 40 dense calls."""

    def __init__(self, bench):
        self.rows = {}
        for row in bench["rows"]:
            density, name = row["case"].split(" ", 1)
            self.rows[name, float(density)] = row

    def of(self, name, density, clip):
        if not name.startswith("mc-sparse"):
            row = self.rows.get((name, density))
            return row and row["run_40_share"]
        tail = "+tail" if "tail=means" in clip["settings"] else ""
        shared = " shared" if "branches=shared" in clip["settings"] else ""
        row = self.rows.get((f"mc-sparse{tail}{shared} paper", density))
        if not row:
            return None
        dense, anchors, reuse = schedule_of(clip["settings"])
        return (dense + anchors * (1 + row["anchor_share"]) +
                reuse * (row["choose_share"] + row["attend_share"])) / STEPS


def mean(clips, key):
    return statistics.mean(clip[key] for clip in clips)


def psnr_cell(clips):
    """Mean (lowest..highest) over clips; of several seeds with the standard deviation of their means."""
    levels, seeds = [clip["psnr_db"] for clip in clips], {}
    for clip in clips:
        seeds.setdefault(clip["seed"], []).append(clip["psnr_db"])
    means = [statistics.mean(of_seed) for of_seed in seeds.values()]
    spread = f" ± {statistics.stdev(means):.2f}" if len(means) > 1 else ""
    return f"{statistics.mean(levels):.2f}{spread} ({min(levels):.1f}..{max(levels):.1f})"


def print_methods(made, costs, densities, given):
    """In the order given, or best first."""
    print("| method | " + " | ".join(f"PSNR dB, s = {d:.2f}" for d in densities) + " | SSIM | s executed | align. |" +
          (" attention of 40 steps |" if costs else "") + "\n| --- |" + " ---: |" * (len(densities) + 3 + bool(costs)))
    names = list(dict.fromkeys(name for name, _ in made))
    names.sort(key=lambda name: given.index(name) if given else -mean(made[name, densities[0]], "psnr_db"))
    for name in names:
        rows = [made.get((name, d)) for d in densities]
        cells = [psnr_cell(clips) if clips else "-" for clips in rows]
        rows = [clips for clips in rows if clips]
        cells.append(" / ".join(f"{mean(clips, 'ssim'):.3f}" for clips in rows))
        cells.append(" / ".join(f"{mean(clips, 'density_executed'):.3f}" for clips in rows))
        cells.append(f"{mean(rows[0], 'density_executed') / mean(rows[0], 'density_nominal'):.2f}")
        if costs:
            cost = [costs.of(name, d, made[name, d][0]) if (name, d) in made else None for d in densities]
            cells.append(" / ".join("-" if c is None else f"{c:.3f}" for c in cost))
        print(f"| {name} | " + " | ".join(cells) + " |")


def print_gaps(made, costs, densities):
    ours = []
    for (name, d), clips in made.items():
        cost = costs.of(name, d, clips[0]) if name.startswith("mc-sparse") and "shared" in name else None
        if cost is not None:
            label = f"{name.removeprefix('mc-sparse').strip()}, s = {d:.2f}"
            ours.append((cost, mean(clips, "psnr_db"), label))
    print("| against | s | its dB | its attention | MC-Sparse that takes no longer | dB | attention | gap dB |\n"
          "| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: |")
    for name in sorted({name for name, _ in made if not name.startswith("mc-sparse")}):
        for d in densities:
            if (name, d) not in made or costs.of(name, d, None) is None:
                continue
            level, cost = mean(made[name, d], "psnr_db"), costs.of(name, d, None)
            best = max((row for row in ours if row[0] <= cost), key=lambda row: row[1], default=None)
            if best:
                print(f"| {name} | {d:.2f} | {level:.2f} | {cost:.3f} | {best[2]} | {best[1]:.2f} | {best[0]:.3f} | "
                      f"{best[1] - level:+.2f} |")
            else:
                print(f"| {name} | {d:.2f} | {level:.2f} | {cost:.3f} | none | | | |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report")
    parser.add_argument("costs", nargs="?")
    parser.add_argument("--methods", help="only these", metavar="NAME,NAME")
    parser.add_argument("--as-given", action="store_true", help="rows in the order of --methods, not best first")
    options = parser.parse_args()
    with open(options.report) as file:
        made = fidelity(json.load(file))
    if options.methods:
        made = {key: clips for key, clips in made.items() if key[0] in options.methods.split(",")}
    costs = None
    if options.costs:
        with open(options.costs) as file:
            costs = Costs(json.load(file))
    densities = sorted({density for _, density in made})
    print_methods(made, costs, densities, options.methods.split(",") if options.as_given else None)
    if costs:
        print()
        print_gaps(made, costs, densities)


if __name__ == "__main__":
    main()
