#!/bin/sh
# The real command on the real model, small and few steps: every output, every exit code, a comparison and
# an interrupt.
# usage: e2e.sh MCSA MODEL_DIR SCRATCH_DIR
set -u
mcsa=$1 model=$2 scratch=$3
rm -rf "$scratch" && mkdir -p "$scratch" && cd "$scratch" || exit 1
failures=0

fail() {
    echo "FAIL: $*"
    [ -s err ] && sed 's/^/    /' err
    failures=$((failures + 1))
}

# expect CODE ARGS...: runs the command; standard output and error go to the files out and err.
expect() {
    code=$1
    shift
    "$mcsa" "$@" >out 2>err
    got=$?
    [ $got -eq "$code" ] || fail "exit $got instead of $code: mcsa $*"
}

says() { # says FILE TEXT
    grep -qF -- "$2" "$1" || fail "$1 lacks: $2"
}

small="--frames 4 --height 32 --width 32 --steps 3"
caption="a red star orbits over a blue checker background"

expect 0 --help && says out "generate"
expect 0 --version && says out "mcsa "
expect 0 info && says out "peak, measured now"
expect 0 generate --help && says out "EXIT STATUS"

# All four endings, dense and sparse, from one run; nothing on standard error when it is not a terminal.
expect 0 generate --model "$model" --prompt "$caption" $small --compare --report report.json \
    --out clip.mp4 --out clip.png --out clip.y4m --out clip.safetensors
[ $failures -eq 0 ] || exit 1 # the rest would only repeat why
[ -s err ] && fail "standard error is not silent when piped"
says out "speed-up"
says out "PSNR"
for name in clip clip-dense; do
    for ending in mp4 png y4m safetensors; do
        [ -s $name.$ending ] || fail "$name.$ending is missing or empty"
    done
    [ "$(dd if=$name.mp4 bs=1 skip=4 count=4 2>/dev/null)" = ftyp ] || fail "$name.mp4 is not an mp4"
    [ "$(dd if=$name.png bs=1 skip=1 count=3 2>/dev/null)" = PNG ] || fail "$name.png is not a png"
    head -n 1 $name.y4m | grep -q "^YUV4MPEG2 W32 H32 " || fail "$name.y4m is not a y4m"
    bytes=$(wc -c <$name.y4m)
    [ "$bytes" -eq $((36 + 4 * (6 + 3 * 32 * 32))) ] || fail "$name.y4m has $bytes bytes"
    grep -qa '"latent"' $name.safetensors || fail "$name.safetensors holds no latent"
done
cmp -s clip.y4m clip-dense.y4m && fail "the sparse clip is the dense clip to the bit"
for key in method backend isa threads steps tokens heads head_dim layers density_requested \
    density_executed density_run anchors calls time_s cache_bytes fidelity speedup psnr_db ssim rel_l2; do
    says report.json "\"$key\""
done
ls ./*.part >/dev/null 2>&1 && fail "a part was left"

# Calls that are captured on the way can be analysed.
expect 0 generate --model "$model" --prompt "$caption" $small --method dense --capture captured --at-steps 0,2 \
    --at-layers 1 --out captured.png
expect 0 analyze --tensors captured --densities 0.25 --sample 32 --methods bsa
says out "token oracle"
says out "Recommendation"

# The same order gives the same bits; another seed does not.
expect 0 generate --model "$model" --prompt "$caption" $small --quiet --out again.safetensors
[ -s out ] && fail "--quiet is not"
cmp -s clip.safetensors again.safetensors || fail "the same command gave another clip"
expect 0 generate --model "$model" --prompt "$caption" $small --quiet --seed 1 --out other.safetensors
cmp -s clip.safetensors other.safetensors && fail "another seed gave the same clip"
expect 0 generate --model "$model" --prompt "$caption" $small --quiet --method dense --out dense.safetensors
cmp -s clip-dense.safetensors dense.safetensors || fail "--method dense is not the dense clip of --compare"

# Keeping every key loses nothing: what remains is the order of sums in FP32, far below one of 255 levels.
expect 0 generate --model "$model" --prompt "$caption" $small --precision f32 --density 1 --compare --json \
    --out full.y4m
psnr=$(sed -n 's/.*"psnr_db":[^0-9n]*//p' out | tr -d ,)
case ${psnr%%.*} in
null) ;;
'' | [0-9] | [1-3][0-9]) fail "density 1 in FP32 gives PSNR '$psnr' dB; 40 or more was expected" ;;
esac

# Each sampler, schedule, residual and branch mode runs.
expect 0 generate --model "$model" --prompt "$caption" $small --quiet --sampler unipc --schedule every:2,1 \
    --residual int8 --branches apart --out a.png
expect 0 generate --model "$model" --prompt "$caption" $small --quiet --schedule list:0 --residual int4 \
    --guidance 1 --dense-layers list:1 --group 32 --threads 1 --isa scalar --out a.png
expect 0 generate --model "$model" --prompt "$caption" $small --quiet --schedule paper --residual off \
    --shift 5 --backend cpu --out a.png
expect 2 generate --model "$model" --prompt "$caption" $small --quiet --dense-layers list:0,99 --out a.png
says err 'dense-layers: layer 99 is named; there are'

# With means of what is not kept, it is another clip of the same noise.
for tail in means off; do
    expect 0 generate --model "$model" --prompt "$caption" $small --json --tail $tail --out $tail.safetensors
    says out '"tail":	"'$tail'"'
done
cmp -s means.safetensors off.safetensors && fail "--tail means made the clip of --tail off"
expect 2 generate --model "$model" --prompt "$caption" --tail mean && says err "means or off"

# Another method by the same schedule: of the same noise, and not the same clip.
expect 0 generate --method list && says out "bsa "
expect 0 generate --model "$model" --prompt "$caption" $small --quiet --method bsa --density 0.5 --out bsa.safetensors
cmp -s bsa.safetensors dense.safetensors && fail "bsa made the dense clip"
expect 0 generate --model "$model" --prompt "$caption" $small --json --method bsa --residual bf16 --density 0.5 \
    --schedule list:0 --out a.png
says out '"method":	"bsa"'
says out '"anchors":	[0]'

# What was typed wrong is 2, what went wrong is 1, and both say why.
expect 2 generate --model "$model" --prompt "a red elephant" && says err '"elephant"' && says err "star"
expect 2 generate --model "$model" --prompt "$caption" --height 62 && says err "60 and 64"
expect 2 generate --model "$model" --prompt "$caption" --schedule list:9,3
expect 2 generate --model "$model" --prompt "$caption" --out clip.gif && says err ".mp4"
expect 2 generate --model "$model/transformer" --prompt "$caption" && says err "--context"
expect 2 generate --prompt "$caption" && says err "--model"
expect 2 generate --model "$model" --prompt "$caption" --method bsa --residual int4 && says err "bf16 or off"
expect 2 generate --model "$model" --prompt "$caption" --method elephant && says err "--method list"
expect 2 generate --stepz 3 && says err "--steps"
expect 2 draw && says err "generate"
expect 1 generate --model nowhere --prompt "$caption" && says err "nowhere"
expect 1 generate --model "$model" --prompt "$caption" --out nowhere/clip.mp4 && says err "nowhere"
expect 1 generate --model "$model/transformer" --context clip.safetensors --guidance 1 --out l.safetensors &&
    says err '"context"'

# Where there is no GPU or its library, --backend cuda says so; where there is one it refuses F32.  Neither falls back.
expect 1 generate --model "$model" --prompt "$caption" $small --backend cuda --precision f32 --out gpu.png
grep -q "GPU\|libmcsa_dit_cuda" err || fail "the refusal does not say what is missing"
[ -e gpu.png ] && fail "the CPU made a clip that a GPU was asked for"
expect 1 bench attend --backend cuda --heads 1 --tokens 64 --dtype f32
grep -q "NVIDIA\|GPU\|libmcsa" err || fail "the refusal does not say what is missing"
expect 2 bench gemm --backend cuda && says err "gemm"
expect 2 bench model --shape wan9 --backend cuda && says err "wan9"
expect 2 bench model --shape wan2.1-1.3b-480p && says err "--backend cuda"

# An interrupted run ends with 1 and leaves nothing.  143: the signal came before the program had got around to watching
# for it, as on a busy machine; then it gets longer.
mkdir stopped
for patience in 1 2 4 8 16; do
    "$mcsa" generate --model "$model" --prompt "$caption" --frames 4 --height 32 --width 32 --steps 1000 \
        --compare --out stopped/clip.mp4 --report stopped/report.json >out 2>err &
    pid=$!
    sleep $patience
    kill -TERM $pid
    wait $pid
    got=$?
    [ $got -eq 143 ] || break
done
[ $got -eq 1 ] || fail "an interrupted run ended with $got"
says err "interrupted"
[ -z "$(ls stopped)" ] || fail "an interrupted run left $(ls stopped)"

[ $failures -eq 0 ] && echo "all passed"
exit $((failures > 0))
