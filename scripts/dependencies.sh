#!/bin/sh
# Looks for what the build needs, and installs what is missing with the system's package manager where it may: as
# root, or with a sudo that asks no password.  Otherwise prints the one line to type and exits 1.  Quick when all is
# there.
#
#     scripts/dependencies.sh [--sanitizers]      the option adds clang and its OpenMP runtime, for the tsan preset
#
# apt names are tested on Debian 12; the other columns are the same libraries by their names elsewhere.
set -eu

# item        looked for with          apt                    dnf / zypper capability     pacman      apk
table='
compiler      compiler                 gcc,libc6-dev          gcc                         gcc         gcc,musl-dev
cmake         command:cmake            cmake                  cmake                       cmake       cmake
make          command:make             make                   make                        make        make
pkg-config    command:pkg-config       pkg-config             pkgconf                     pkgconf     pkgconf
oneDNN        header:oneapi/dnnl/dnnl.h libdnnl-dev           onednn-devel                onednn      onednn-dev
cJSON         module:libcjson          libcjson-dev           pkgconfig(libcjson)         cjson       cjson-dev
cmocka        module:cmocka            libcmocka-dev          pkgconfig(cmocka)           cmocka      cmocka-dev
libavcodec    module:libavcodec        libavcodec-dev         pkgconfig(libavcodec)       ffmpeg      ffmpeg-dev
libavformat   module:libavformat       libavformat-dev        pkgconfig(libavformat)      ffmpeg      ffmpeg-dev
libavutil     module:libavutil         libavutil-dev          pkgconfig(libavutil)        ffmpeg      ffmpeg-dev
libswscale    module:libswscale        libswscale-dev         pkgconfig(libswscale)       ffmpeg      ffmpeg-dev
libpng        module:libpng            libpng-dev             pkgconfig(libpng)           libpng      libpng-dev'
sanitizers='
tsan          tsan                     clang,libomp-dev       clang,libomp-devel,compiler-rt clang,openmp,compiler-rt clang,openmp-dev,compiler-rt'

case ${1-} in
    '') ;;
    --sanitizers) table=$table$sanitizers ;;
    *) echo "usage: scripts/dependencies.sh [--sanitizers]" >&2; exit 2 ;;
esac

program='int main(void) { return 0; }'
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

present()
{
    case $1 in
        compiler) echo "$program" | ${CC:-cc} -fopenmp -x c - -o "$scratch/probe" ;;
        tsan) echo "$program" | clang -fopenmp -fsanitize=thread -x c - -o "$scratch/probe" ;;
        command:*) command -v "${1#*:}" ;;
        module:*) pkg-config --exists "${1#*:}" ;;
        header:*) echo "#include <${1#*:}>" | ${CC:-cc} -E -x c - ;;
    esac >/dev/null 2>&1
}

# Prints the missing items, or with a column number the packages that bring them.
missing()
{
    echo "$table" | while read -r item probe apt capability pacman apk; do
        if [ -z "$item" ] || present "$probe"; then continue; fi
        case $1 in
            item) printf '%s ' "$item" ;;
            apt) printf '%s ' "$apt" ;;
            capability) printf '%s ' "$capability" ;;
            pacman) printf '%s ' "$pacman" ;;
            apk) printf '%s ' "$apk" ;;
        esac
    done | tr ',' ' '
}

items=$(missing item)
[ -n "$items" ] || exit 0
echo "missing: $items"

if command -v apt-get >/dev/null; then
    refresh='apt-get update -q'
    recommends='--no-install-recommends '
    # Debian brings clang's sanitizer runtime as a recommendation.
    case $items in *tsan*) recommends= ;; esac
    install="apt-get install -q -y $recommends$(missing apt)"
elif command -v dnf >/dev/null; then
    refresh=true install="dnf install -y $(missing capability)"
elif command -v zypper >/dev/null; then
    refresh=true install="zypper --non-interactive install $(missing capability)"
elif command -v pacman >/dev/null; then
    refresh=true install="pacman -S --needed --noconfirm $(missing pacman | tr ' ' '\n' | sort -u | tr '\n' ' ')"
elif command -v apk >/dev/null; then
    refresh=true install="apk add $(missing apk | tr ' ' '\n' | sort -u | tr '\n' ' ')"
else
    echo "No package manager that this script knows (apt-get, dnf, zypper, pacman, apk); please install them by hand." >&2
    exit 1
fi

if [ "$(id -u)" = 0 ]; then
    as_root='env DEBIAN_FRONTEND=noninteractive'
elif sudo -n true 2>/dev/null; then
    as_root='sudo -n env DEBIAN_FRONTEND=noninteractive'
else
    echo "Installing needs root. Type this line, then try again:" >&2
    if [ "$refresh" = true ]; then refresh=; else refresh="sudo $refresh && "; fi
    echo "    ${refresh}sudo $(echo "$install" | sed 's/\([^ ]*([^ ]*)\)/"\1"/g')" >&2
    exit 1
fi

echo "+ $install"
$as_root $refresh >"$scratch/log" 2>&1 && $as_root $install >>"$scratch/log" 2>&1 </dev/null || {
    cat "$scratch/log" >&2
    echo "The package manager failed; its output is above." >&2
    exit 1
}
items=$(missing item)
if [ -n "$items" ]; then
    echo "Still missing after installing: $items" >&2
    exit 1
fi
