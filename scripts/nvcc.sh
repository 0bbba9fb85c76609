#!/bin/sh
# Runs a compiler command, keeps what it says in LOG, and shows all of it but the reports of ptxas (-Xptxas -v), which
# scripts/check_cuda.sh reads from LOG.
#
#     scripts/nvcc.sh LOG NVCC [arguments]
set -eu
log=$1
shift
status=0
"$@" >"$log" 2>&1 || status=$?
grep -vE '^ptxas info +: ([0-9]+ bytes gmem|Compiling entry|Function properties|Used |Compile time)|^ +[0-9]+ bytes stack' \
    "$log" >&2 || true
exit $status
