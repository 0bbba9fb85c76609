#!/bin/sh
# Line coverage of src/ by the tests: a table by file, the lines that no test runs with --missed, and status 1 below the
# limit.  gcov alone, no other program: a line of a header counts once, covered where any of its inclusions is.
#
#     scripts/coverage.sh BUILD_DIRECTORY LIMIT_PERCENT [--missed]      after the tests ran there (make coverage)
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "$1" && pwd)
limit=$2
missed=${3-}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

# Objects of src/ only; -t prints "count:line:text", "#####" for a line that never ran, "-" for one without code.
find "$build" -name '*.gcda' -path '*/src/*' | xargs ${GCOV:-gcov} -t 2>/dev/null |
    awk -F: -v root="$root/src/" -v limit="$limit" -v missed="$missed" '
    $3 == "Source" {
        name = $4
        wanted = index(name, root) == 1
        sub(root, "", name)
        next
    }
    !wanted || $1 ~ /^ *-$/ || $2 + 0 == 0 || NF < 3 { next }
    {
        key = name SUBSEP ($2 + 0)
        if (!(key in ran)) { lines[name]++; ran[key] = 0 }
        if ($1 !~ /[#=]/ && !ran[key]) { ran[key] = 1; covered[name]++ }
        text[key] = $0
    }
    function percent(part, whole) { return whole ? 100 * part / whole : 100 }
    END {
        for (name in lines) {
            all += lines[name]
            hit += covered[name]
            printf "%-28s %6d of %6d  %5.1f %%\n", name, covered[name], lines[name],
                percent(covered[name], lines[name]) | "sort"
        }
        close("sort")
        if (missed)
            for (key in ran)
                if (!ran[key]) {
                    split(key, at, SUBSEP)
                    sub(/^[^:]*:[^:]*:/, "", text[key])
                    printf "src/%s:%d: %s\n", at[1], at[2], text[key] | "sort -t: -k1,1 -k2,2n"
                }
        if (missed) close("sort -t: -k1,1 -k2,2n")
        if (!all) { print "no coverage data below " root; exit 1 }
        printf "%-28s %6d of %6d  %5.1f %%, at least %s wanted\n", "src", hit, all, percent(hit, all), limit
        exit percent(hit, all) < limit
    }'
