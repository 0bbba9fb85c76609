#!/bin/sh
# Looks for what the build needs, and installs what is missing with the system's package manager where it may: as
# root, or with a sudo that asks no password.  Otherwise prints the one line to type and exits 1.  Quick when all is
# there.
#
#     scripts/dependencies.sh [--sanitizers] [--cuda]
#
# --sanitizers adds clang and its OpenMP runtime, for the tsan preset.  --cuda adds a C++ compiler and puts what is
# missing of CUDA into build/cuda, with pip and for this tree alone: compiler and cuBLAS of CUDA 13.0 where there is no
# nvcc 13.0 or newer, and cuobjdump, for scripts/check_cuda.sh.  Neither a GPU nor a driver is needed.
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
cuda='
c++           c++                      g++                    gcc-c++                     gcc         g++'
pip='
pip           pip                      python3-pip            python3-pip                 python-pip  py3-pip'
# What pip brings.  The disassembler was not published for 13.0; that of 13.2 reads the same code.
toolkit='nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96
nvidia-cuda-cccl==13.0.85 nvidia-cublas==13.1.0.3'
disassembler='nvidia-cuda-cuobjdump==13.2.78 nvidia-cuda-nvdisasm==13.2.78'
wheels_dir=$(cd "$(dirname "$0")/.." && pwd)/build/cuda
wheels=

# What is missing of CUDA: a tool counts when it is on PATH or in the usual place, nvcc from 13.0 on.
missing_wheels()
{
    usual=/usr/local/cuda/bin
    nvcc=$(command -v nvcc || echo $usual/nvcc)
    release=$("$nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\).*/\1/p')
    [ "${release:-0}" -ge 13 ] || echo "$toolkit"
    command -v cuobjdump >/dev/null || [ -x $usual/cuobjdump ] || echo "$disassembler"
}

for option; do
    case $option in
        --sanitizers) table=$table$sanitizers ;;
        --cuda)
            wheels=$(missing_wheels)
            table=$table$cuda${wheels:+$pip}
            ;;
        *) echo "usage: scripts/dependencies.sh [--sanitizers] [--cuda]" >&2; exit 2 ;;
    esac
done

program='int main(void) { return 0; }'
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

present()
{
    case $1 in
        compiler) echo "$program" | ${CC:-cc} -fopenmp -x c - -o "$scratch/probe" ;;
        tsan) echo "$program" | clang -fopenmp -fsanitize=thread -x c - -o "$scratch/probe" ;;
        c++) echo 'int main() { return 0; }' | c++ -x c++ - -o "$scratch/probe" ;;
        pip) python3 -m pip --version ;;
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

# The directory appears when it is complete.
# shellcheck disable=SC2086 # the wheels are words
fetch_cuda()
{
    [ -z "$wheels" ] || [ "$(cat "$wheels_dir/wheels" 2>/dev/null)" = "$wheels" ] || {
        echo "+ pip install --target $wheels_dir" $wheels
        rm -rf "$wheels_dir" "$wheels_dir.part"
        python3 -m pip install --quiet --no-deps --no-compile --disable-pip-version-check --root-user-action ignore \
            --target "$wheels_dir.part" $wheels
        echo "$wheels" >"$wheels_dir.part/wheels"
        mv "$wheels_dir.part" "$wheels_dir"
    }
}

items=$(missing item)
[ -n "$items" ] || { fetch_cuda; exit; }
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
fetch_cuda
