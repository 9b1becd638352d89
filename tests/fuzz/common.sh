# tests/fuzz/common.sh -- what run, coverage and planted share.  Sourced by them.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The targets given as arguments, or all of them.
targets() {
    if [ $# -gt 0 ]; then printf '%s\n' "$@"; return; fi
    local file
    for file in "$here"/fuzz_*.c; do basename "$file" .c | sed 's/^fuzz_//'; done
}

# The parser that a target is for.
parser_of() {
    case $1 in
    chat) echo src/text/chat_request.c src/text/chat_said.c src/text/prompt.c ;;
    config) (cd "$root" && ls src/format/config*.c src/format/json.c) ;;
    grammar) (cd "$root" && ls src/text/grammar*.c src/text/constraint.c) ;;
    http) echo src/app/server/http.c ;;
    index) echo src/format/index.c ;;
    safetensors) echo src/format/safetensors.c ;;
    reply) (cd "$root" && ls src/text/reply*.c src/text/json_follow.c) ;;
    request) (cd "$root/src/app/server" && ls anthropic*.c ask.c fields.c openai*.c problem.c prompt.c put.c responses*.c structure.c | sed s,^,src/app/server/,) ;;
    split) echo src/text/scan.c ;;
    state) echo src/runtime/state_file.c ;;
    template) (cd "$root" && ls src/text/template*.c src/text/region.c) ;;
    tokenizer) echo src/text/tokenizer_file.c src/text/tokenizer_steps.c src/base/json_reader.c ;;
    *) echo "no parser is known for target $1" >&2; return 1 ;;
    esac
}

# What libFuzzer is told for a target alone.  A search for leaks after some inputs stops all threads, and may hang in that
# or take what a thread is just about to free for lost: where others run, there is only the search at the end.
flags_of() {
    if [ "$1" = http ]; then echo -detect_leaks=0; fi
}

# build FOLDER C_ARGS: a fuzz build in FOLDER, targets only.
build() {
    local folder=$1 args=$2 goals=() name
    if [ ! -f "$folder/build.ninja" ]; then
        # From $work: the compiler check of a coverage build leaves its profile where it runs.
        (cd "$work" && CC=clang meson setup "$folder" "$root" -Dfuzz=true -Db_lundef=false \
            "-Dc_args=$args" "-Dc_link_args=$args" >setup) || { cat "$work/setup"; return 1; }
    fi
    for name in $(targets); do goals+=("tests/fuzz/fuzz_$name"); done
    ninja -C "$folder" "${goals[@]}" >"$work/ninja" || { cat "$work/ninja"; return 1; }
}

# fuzz FOLDER TARGET SECONDS [FLAG...]: from a copy of the corpus, so that the tree stays clean; an input that
# breaks something becomes $work/TARGET-*.  One that hangs is ended, with status 124 or 137.
fuzz() {
    local corpus=$work/corpus-$2
    mkdir -p "$corpus"
    cp "$here/corpus/$2"/* "$corpus/"
    (cd "$work" && timeout -k 5 $(($3 + 30)) "$1/tests/fuzz/fuzz_$2" -max_total_time="$3" -max_len=4096 -timeout=25 -rss_limit_mb=2048 \
        -dict="$here/json.dict" -print_final_stats=1 -artifact_prefix="$work/$2-" $(flags_of "$2") "${@:4}" "$corpus")
}

# clean FOLDER TARGET SECONDS: fuzzes and finds nothing.  What it said is in $work/TARGET.log; a finding is shown, and its
# input left in FOLDER.
clean() {
    local log=$work/$2.log
    if fuzz "$@" >"$log" 2>&1; then return 0; fi
    tail -60 "$log"
    find "$work" -maxdepth 1 -name "$2-*" -exec cp {} "$1/" \;
    echo "$2: FAILED; the input is in $1"
    return 1
}

# each FUNCTION TARGET...: FUNCTION NAME for every target, as many at a time as there are processors, for a fuzzer
# uses one; then what each said, in order.  Fails when one did.
each() {
    local function=$1 name failed=0
    shift
    for name; do
        while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n || true; done
        { "$function" "$name" >"$work/$name.said" 2>&1 || touch "$work/$name.failed"; } &
    done
    wait
    for name; do
        cat "$work/$name.said"
        if [ -e "$work/$name.failed" ]; then failed=1; fi
    done
    return $failed
}
