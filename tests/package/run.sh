#!/bin/sh
# Installs the build tree BUILD under SCRATCH, moves the result, and builds and runs tests/package/use.c against it
# twice: with find_package(mcsa) and with pkg-config.  The move proves that no installed file holds the place it was
# built for.  Where the build has libmcsa_cuda, library and command have to find the installed one.
# Usage: run.sh BUILD SCRATCH CC CMAKE
set -eu
build=$1 scratch=$2 cc=$3 cmake=$4
here=$(cd "$(dirname "$0")" && pwd)

rm -rf "$scratch"
mkdir -p "$scratch"
"$cmake" --install "$build" --prefix "$scratch/first" >/dev/null
mv "$scratch/first" "$scratch/prefix"
prefix=$scratch/prefix

"$cmake" -S "$here" -B "$scratch/build" -DCMAKE_C_COMPILER="$cc" -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
"$cmake" --build "$scratch/build"
"$scratch/build/use"

pc=$(find "$prefix" -name mcsa.pc)
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH
mkdir "$scratch/outside"
cd "$scratch/outside"
# shellcheck disable=SC2046 # the flags are words
"$cc" -std=c11 "$here/use.c" $(pkg-config --cflags --libs mcsa) -o use
LD_LIBRARY_PATH=$(pkg-config --variable=libdir mcsa) ./use

[ -e "$build/libmcsa_cuda.so" ] || exit 0
[ -n "$(find "$prefix" -name libmcsa_cuda.so)" ] || { echo "libmcsa_cuda was not installed"; exit 1; }
# Away from the build, and without help from the environment.
for program in "$scratch/build/use" "$prefix/bin/mcsa info"; do
    [ -x "${program% info}" ] || continue
    if $program | grep 'could not be loaded'; then
        echo "$program does not find the installed libmcsa_cuda"
        exit 1
    fi
done
