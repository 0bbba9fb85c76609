#!/bin/sh
# What must hold of the compiled kernels in BUILD, a build directory with MCSA_CUDA=ON; no GPU is needed.
#   - ptxas spilled no register and did not serialise wgmma or ignore setmaxnreg (C7508, C7510 and their kin)
#   - every kernel of the files of src named in `matrix` multiplies with HGMMA, Hopper's own tensor core instruction
#
#     scripts/check_cuda.sh BUILD
set -eu
cd "$(dirname "$0")/.."
build=$1
matrix='cuda/attend_dense cuda/attend_tokens cuda/group_direction cuda/group_leaf cuda/mass cuda/nearest rivals/cuda/attend'
status=0
kernels=0
objects=$(find "$build/cuda/src" -name '*.cu.o' | sort)
[ -n "$objects" ] || { echo "check_cuda: $build has no compiled kernels; configure it with -DMCSA_CUDA=ON"; exit 1; }

breach()
{
    echo "check_cuda: $1"
    status=1
}

for object in $objects; do
    log=$object.ptxas
    [ -s "$log" ] || { breach "$log is missing or empty"; continue; }
    kernels=$((kernels + $(grep -c 'Compiling entry function' "$log" || true)))
    if grep -E '(^|[^0-9])[1-9][0-9]* bytes spill' "$log"; then breach "$object spills registers"; fi
    if grep -iE 'C75[0-9][0-9]|serializ|setmaxnreg.*ignored' "$log"; then breach "$object: ptxas gave up on wgmma or registers"; fi
done
[ "$kernels" -gt 0 ] || breach "no report of ptxas names a kernel"
echo "check_cuda: $kernels kernels in $(echo "$objects" | wc -l) files: spills and serialised wgmma looked for"

PATH=$PATH:/usr/local/cuda/bin:$PWD/build/cuda/nvidia/cu13/bin
if ! command -v cuobjdump >/dev/null; then
    echo "check_cuda: skipped: HGMMA in the machine code, because there is no cuobjdump (scripts/dependencies.sh --cuda)"
    exit $status
fi
for name in $matrix; do
    object=$build/cuda/src/$name.cu.o
    cuobjdump --dump-sass "$object" >"$object.sass" || { breach "cuobjdump cannot read $object"; continue; }
    counts=$(awk '
        /Function :/ { all++; seen = 0 }
        /HGMMA/ && !seen { seen = 1; with++ }
        END { print with + 0, all + 0 }' "$object.sass")
    echo "check_cuda: $name: HGMMA in ${counts% *} of ${counts#* } kernels"
    if [ "$counts" = "0 0" ] || [ "${counts% *}" != "${counts#* }" ]; then breach "$name has kernels without HGMMA"; fi
done
exit $status
