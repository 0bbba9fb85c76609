#!/usr/bin/env python3
"""Makes one report of `mcsa compare` of several that were made side by side, each with captions of its own.

    python3 bench/merge_reports.py --fidelity build/1/methods.json build/2/methods.json > methods.json

Reports must agree in all settings.  --fidelity leaves out seconds and speed-ups, which mean nothing where processes
shared a processor, and how many threads there were, which changes no bit of a clip.
"""
import argparse
import json
import statistics
import sys

SECONDS = ("denoise_s", "attention_s", "linear_s", "denoise_speedup", "attention_speedup")


def summary(run, clips):
    """As the command makes it: means over clips, medians of seconds and of speed-ups; null what a clip does not tell."""
    made = dict(run, clips=len(clips))
    for key in dict.fromkeys(key for clip in clips for key in clip):
        values = [clip.get(key) for clip in clips]
        if key not in run or any(isinstance(value, str) for value in values):
            continue
        told = None not in values
        made[key] = round((statistics.median if key in SECONDS else statistics.mean)(values), 6) if told else None
    levels = [clip["psnr_db"] for clip in clips if clip["psnr_db"] is not None]
    if levels:
        made["psnr_db_low"], made["psnr_db_high"] = min(levels), max(levels)
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", nargs="+")
    parser.add_argument("--fidelity", action="store_true")
    parser.add_argument("--only", help="keep runs whose name, without its density, is one of these", metavar="NAME,NAME")
    options = parser.parse_args()
    reports = [json.load(open(path)) for path in options.report]
    if options.fidelity:
        for report in reports:
            report["settings"].pop("threads", None)
    settings = reports[0]["settings"]
    for path, report in zip(options.report, reports):
        if report["settings"] != settings:
            sys.exit(f"merge_reports: {path} has other settings than {options.report[0]}")
    clips, runs = {}, {}
    for report in reports:
        clips.update({(c["caption"], c["seed"], c["run"]): c for c in report["clips"]})
        runs.update({run["name"]: run for run in report["runs"]})
    wanted = options.only.split(",") if options.only else None
    for key in [k for k in clips if wanted and k[2].split(" s=")[0] not in wanted]:
        del clips[key]
    by_run = {}
    for clip in clips.values():
        if options.fidelity:
            clip = {key: value for key, value in clip.items() if key not in SECONDS}
        by_run.setdefault(clip["run"], []).append(clip)
    some = next(iter(runs.values()))
    made = [summary(runs.get(name, dict.fromkeys(some) | {"name": name, "method": c[0]["method"],
                                                          "settings": c[0]["settings"]}), c)
            for name, c in by_run.items()]
    if options.fidelity:
        made = [{key: value for key, value in run.items() if key not in SECONDS} for run in made]
    json.dump({"version": reports[0]["version"], "settings": settings, "runs": made,
               "clips": [clip for c in by_run.values() for clip in c]}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
