#!/bin/sh
# Runs every fuzz target for some time, one after the other, from the corpus in the tree; new inputs go to a scratch
# directory and are forgotten.  A finding ends the script with status 1; its input stays in build/fuzz/findings.
#
#     scripts/fuzz.sh SECONDS [TARGET...]      after cmake --build --preset fuzz
set -eu
cd "$(dirname "$0")/.."
root=$PWD
seconds=$1
shift
[ $# -gt 0 ] || set -- $(ls tests/fuzz/corpus)

# The targets write each input to a file: in memory that is ten times faster.
scratch=$(mktemp -d -p /dev/shm mcsa-fuzz.XXXXXX 2>/dev/null || mktemp -d)
trap 'rm -rf "$scratch"' EXIT
findings=$root/build/fuzz/findings
mkdir -p "$findings"
cd "$scratch"

status=0
for target; do
    options="-max_total_time=$seconds -timeout=10 -rss_limit_mb=2048 -max_len=4096 -print_final_stats=1"
    if [ -f "$root/tests/fuzz/$target.dict" ]; then options="$options -dict=$root/tests/fuzz/$target.dict"; fi
    mkdir -p "new/$target"
    if "$root/build/fuzz/tests/fuzz_$target" $options -artifact_prefix="$findings/$target-" "new/$target" \
        "$root/tests/fuzz/corpus/$target" >log 2>&1; then
        awk -v target="$target" -v seconds="$seconds" '
            /number_of_executed_units/ { runs = $2 }
            / cov: / { for (i = 1; i < NF; i++) if ($i == "cov:") edges = $(i + 1) }
            END { printf "%-12s %4d s  %10d runs  %5d edges  no finding\n", target, seconds, runs, edges }' log
    else
        status=1
        tail -n 40 log
        echo "$target: a finding, see $findings"
    fi
done
exit $status
