#!/bin/sh
# A shared library exports what the public header declares with MCSA_API, or the one SYMBOL: no more, no less.
# Usage: exports.sh LIBRARY HEADER|SYMBOL NM
set -eu
library=$1 header=$2 nm=$3

declared=$header
if [ -f "$header" ]; then
    declared=$(sed -n 's/^MCSA_API [^(]*[ *]\(mcsa_[a-z0-9_]*\)(.*/\1/p' "$header" | sort)
fi
exported=$("$nm" -D --defined-only "$library" | awk '{ print $3 }' | sort)
[ -n "$declared" ] || { echo "no declaration was found in $header"; exit 1; }
if [ "$declared" != "$exported" ]; then
    printf 'declared:\n%s\nexported:\n%s\n' "$declared" "$exported"
    exit 1
fi
