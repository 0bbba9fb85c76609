#!/bin/sh
# Plants each fault of tests/mutants/faults.txt into a copy of the tree, builds the test that must catch it, and runs
# it.  Exits 1 when a fault survives, no longer fits the source or does not compile, and when a test fails without one.
#
#     scripts/mutants.sh [FAULT...]
set -eu
cd "$(dirname "$0")/.."
jobs=$(nproc 2>/dev/null || echo 2)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
separator=$(printf '\037')

# One line per wanted fault: name, file, old, new, test, instruction set; separated by a control character.
awk -v wanted=" $* " '
    function flush() {
        if (name && (wanted ~ /^ *$/ || index(wanted, " " name " ")))
            print name "\037" file "\037" old "\037" new "\037" test "\037" needs
        name = file = old = new = test = needs = ""
    }
    /^#/ { next }
    { key = $1; value = $0; sub(/^[a-z]+ +/, "", value) }
    key == "fault" { flush(); name = value }
    key == "file" { file = value }
    key == "old" { old = value }
    key == "new" { new = value }
    key == "test" { test = value }
    key == "needs" { needs = value }
    END { flush() }' tests/mutants/faults.txt >"$scratch/faults"
[ -s "$scratch/faults" ] || { echo "mutants: no such fault" >&2; exit 2; }
tests=$(cut -d "$separator" -f 5 "$scratch/faults" | sort -u)

mkdir "$scratch/tree"
cp -r CMakeLists.txt cmake include src cli bench tests examples "$scratch/tree"
cd "$scratch/tree"

build() # the tests' executables
{
    cmake --build "$scratch/build" --parallel "$jobs" --target $(echo "$@" | tr / _) >"$scratch/log" 2>&1
}

passes()
{
    ctest --test-dir "$scratch/build" --timeout 600 --no-tests=error -R "^($(echo "$@" | tr ' ' '|'))\$" \
        >"$scratch/log" 2>&1
}

# Writes $1 with the one occurrence of $old replaced by $new.
plant()
{
    old=$old new=$new awk '
        {
            line = $0
            while ((at = index(line, ENVIRON["old"])) > 0) {
                found++
                line = substr(line, at + length(ENVIRON["old"]))
            }
            if ((at = index($0, ENVIRON["old"])) > 0)
                $0 = substr($0, 1, at - 1) ENVIRON["new"] substr($0, at + length(ENVIRON["old"]))
            print
        }
        END { exit found != 1 }' "$scratch/clean" >"$1"
}

# -O1 halves the time of all this; what is compared does not depend on it.
cmake -B "$scratch/build" -DMCSA_CUDA=OFF -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_FLAGS_RELWITHDEBINFO=-O1 \
    >"$scratch/log" 2>&1 &&
    build $tests && passes $tests || {
    tail -n 40 "$scratch/log"
    echo "mutants: the tree without faults does not build or does not pass"
    exit 1
}

bad=0
while IFS=$separator read -r name file old new test needs; do
    cp "$file" "$scratch/clean"
    if [ -n "$needs" ] && ! grep -qw "$needs" /proc/cpuinfo; then
        verdict="not tried, this machine has no $needs"
    elif ! plant "$file"; then
        verdict="DOES NOT FIT: \"$old\" is not in $file exactly once"
        bad=1
    elif ! build "$test" </dev/null; then
        verdict="DOES NOT COMPILE"
        tail -n 20 "$scratch/log"
        bad=1
    elif passes "$test" </dev/null; then
        verdict="SURVIVED $test"
        bad=1
    else
        verdict="caught by $test"
    fi
    printf '%-28s %-30s %s\n' "$name" "$file" "$verdict"
    cp "$scratch/clean" "$file"
done <"$scratch/faults"
exit $bad
