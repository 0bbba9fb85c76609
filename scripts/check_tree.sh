#!/bin/sh
# The rules about the tree that no compiler checks; prints each breach and exits 1 if there was one.
#   - no tracked text names a home directory or the place where this checkout lies
#   - no source file is over 600 lines
#   - the public header compiles alone, as C11 and as C++ where a C++ compiler is installed
set -eu
cd "$(dirname "$0")/.."
status=0

breach()
{
    echo "check_tree: $1"
    status=1
}

if git grep -InE '/(home|root|Users)/[A-Za-z]' -- . ':!scripts/check_tree.sh'; then breach "a path of one machine"; fi
if [ "$PWD" != / ] && git grep -InF -e "$PWD/" -- .; then breach "a path of this checkout"; fi

for file in $(git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.py' '*.sh' '*.cmake'); do
    lines=$(wc -l <"$file")
    [ "$lines" -le 600 ] || breach "$file has $lines lines; 600 is the limit"
done

flags='-Iinclude -Wall -Wextra -Wpedantic -Werror -fsyntax-only'
${CC:-cc} -std=c11 $flags -x c include/mcsa.h || breach "include/mcsa.h is not C11"
for cxx in g++ clang++; do
    if command -v $cxx >/dev/null; then
        $cxx -std=c++11 $flags -x c++ include/mcsa.h || breach "include/mcsa.h is not C++ to $cxx"
    fi
done
exit $status
