#!/bin/sh
# Prints the tables about a GPU and keeps them as JSON: bench_cuda.sh MCSA DIRECTORY [REPEATS]
# A table that cannot be made is named at the end and the others still are; then, or after a wrong row, the exit is 1.
# cuDNN's row wants libcudnn.so.9 where the loader looks (LD_LIBRARY_PATH); without it the row says so.
set -u
mcsa=$1 directory=$2 repeats=${3:-11}
mkdir -p "$directory"
skipped=""

table()
{
    name=$1
    shift
    "$mcsa" bench "$@" --backend cuda --json "$directory/$name.json" || skipped="$skipped $name"
    echo
}

layer="--heads 40 --repeats $repeats"
table attend attend $layer --tokens 75600 --density 0.15,0.25
table attend_480p attend $layer --tokens 32760 --density 0.15,0.25
table attend_d64 attend $layer --tokens 32760 --density 0.15,0.25 --dim 64
table select select $layer --tokens 75600
table select_480p select $layer --tokens 32760
table group group $layer --tokens 75600
one="--repeats 1 --shape"
table model-wan2.1-1.3b-480p-s0.15 model $one wan2.1-1.3b-480p --density 0.15 --steps 50
table model-wan2.1-14b-480p-s0.10 model $one wan2.1-14b-480p --density 0.10
table model-wan2.1-14b-720p-s0.10 model $one wan2.1-14b-720p --density 0.10
table model-wan2.1-14b-720p-s0.15 model $one wan2.1-14b-720p --density 0.15
table model-wan2.1-14b-720p-s0.15-no-tail model $one wan2.1-14b-720p --density 0.15 --tail off
[ -z "$skipped" ] || { echo "bench_cuda: not made, or with a wrong row:$skipped"; exit 1; }
