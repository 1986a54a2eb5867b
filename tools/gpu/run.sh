#!/usr/bin/env bash
# What is measured and proved on a GPU, from a folder that `./dev gpu --bundle` made: programs, the library and scripts. The
# machine needs an NVIDIA driver, NVRTC (a toolkit, or the wheels that torch brings) and, for peers, python3 with torch.
set -uo pipefail

usage() {
  cat <<'TEXT'
usage: run.sh --out DIR [PART...] [-- ARGS]

  doctor      what is here and what is missing
  tests       ejkernel_device_tests: every kernel for a GPU, on the device (ARGS: --gtest_filter=…)
  check       ejk check of every operation on the device, and of flash_attention's dense problems (ARGS: more options)
  bench       ejk bench of the named problems, the device's own copy bandwidth, what launches and first plans cost
  peers       flash_attention beside cuDNN, FlashAttention-2 and Mosaic GPU, mean_pooling beside copies (ARGS:
              cuda_attention.py's, which alone runs then)
  table       the rows of the reliability table that need a GPU (ARGS: those rows only)
  sanitizer   the rows that compute-sanitizer produces
  cpu         the machine's own processor, whose vectors may be wider than those of the one that the tests ran on: every
              operation checked there, its matrix unit (AMX) where it has one, flash_attention's CPU kernels checked on
              bf16, and timed in each arithmetic (ARGS: more of ejk bench's)
  sweep       every config of the forward kernel in every cell, for its heuristic (ARGS: cuda_attention.py's)
  tune        the calls of grids/*.jsonl, on the device and on this machine's processor, and on that the named problems
              of other operations: what configs win, by how much (ARGS: more of ejk tune's, for the grids), and an archive
              of them for tables/

Without parts: doctor tests check bench peers table sanitizer. Every part writes DIR/PART.log and the records it makes to DIR; one that fails
does not keep the others from running, and the exit code says that one did. ARGS go to the only part that is named.
TEXT
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=''
parts=()
arguments=()
while (( $# )); do
  case $1 in
    --out) out=${2:-}; shift 2 || break ;;
    --) shift; arguments=("$@"); break ;;
    -h | --help) usage; exit 0 ;;
    doctor | tests | check | bench | peers | table | sanitizer | sweep | tune | cpu) parts+=("$1"); shift ;;
    *) printf "run.sh: '%s' is no part and no option\n" "$1" >&2; usage >&2; exit 2 ;;
  esac
done
[[ -n $out ]] || { usage >&2; exit 2; }
(( ${#arguments[@]} == 0 || ${#parts[@]} == 1 )) || { printf 'run.sh: arguments need one part that they are for\n' >&2; exit 2; }
(( ${#parts[@]} )) || parts=(doctor tests check bench peers table sanitizer)
mkdir -p "$out"
out=$(cd "$out" && pwd)

export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PATH=$PATH:/usr/local/cuda/bin
commit=$(<"$here/commit")
ejk=$here/bin/ejk

# table_rows ROW...: each record into DIR/benchmarks/results/reliability, where the program looks for a tree's records.
table_rows() {
  local row failed=0
  mkdir -p "$out/benchmarks/results/reliability"
  for row in "$@"; do
    (cd "$out" && "$here/bin/ejkernel_table" "$row" --commit "$commit") || failed=1
  done
  return $failed
}

part_doctor() { "$ejk" doctor --seconds 1; }

part_tests() { "$here/bin/ejkernel_device_tests" --gtest_brief=1 "$@"; }

part_check() {
  local failed=0
  "$ejk" check --device cuda --seconds 60 "$@" || failed=1
  "$ejk" check flash_attention --device cuda --dense --seconds 60 "$@" || failed=1
  return $failed
}

part_bench() {
  local operation failed=0 dense=(--dtype bf16 --q_len 4096 --num_q_heads 16 --head_dim 128)
  "$ejk" bench --peaks --device cuda || failed=1
  "$ejk" bench --overhead --device cuda --json >"$out/cuda_overhead.json" || failed=1
  cat "$out/cuda_overhead.json"
  "$ejk" bench flash_attention "${dense[@]}" --planning --device cuda || failed=1
  "$ejk" bench flash_attention "${dense[@]}" --causal --planning --device cuda || failed=1
  for operation in flash_attention mean_pooling mean_pooling_backward; do
    "$ejk" bench "$operation" --device cuda "$@" || failed=1
  done
  return $failed
}

peers() {
  python3 "$here/peers/cuda_attention.py" --library "$here/lib/libejkernel.so.0" --commit "$commit" "$@"
}
part_peers() {
  peers --sustained --json "$out/cuda_attention.json" "$@" || return
  (( $# )) || python3 "$here/peers/cuda_mean_pooling.py" --library "$here/lib/libejkernel.so.0" --commit "$commit" \
    --json "$out/cuda_mean_pooling.json"
}
part_sweep() {
  peers --json "$out/cuda_attention_sweep.json" --repeats 3 --peers cudnn --configs consumers=2,3,4 \
    block_k=64,80,112,128,144,160 stages=2,4,6 lazy_rescale=0,1 across_tiles=0,1 "$@"
}

# header COMMAND: what the lines after it were measured with, as a line of JSON.
header() {
  printf '{"date": "%s", "commit": "%s", "gpu": "%s", "processor": "%s", "threads": %d, "command": "%s"}\n' "$(date -u +%F)" \
    "$commit" "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1)" \
    "$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)" "$(nproc)" "$1"
}

# Into a store of its own, from which the archive is made.
part_tune() {
  local grid name failed=0
  local -x EJKERNEL_CACHE_DIR=$out/tuned_store EJKERNEL_CONFIG_PATH=none
  rm -rf "$EJKERNEL_CACHE_DIR" "$out"/tuned*
  for grid in "$here"/grids/*.jsonl; do
    name=$(basename "$grid" .jsonl)
    header "ejk tune --recorded grids/$name.jsonl --budget 10 --json $*" >"$out/tuned_$name.jsonl"
    "$ejk" tune --recorded "$grid" --budget 10 --json "$@" >>"$out/tuned_$name.jsonl" || failed=1
  done
  for name in page_attention ragged_decode_attention ragged_page_attention ragged_page_attention_v3 \
    {,transposed_}grouped_matmul grouped_matmul_backward {rnn,{recurrent,gla,lightning}_attention}{,_backward}; do
    header "ejk tune $name --budget 2 --json" >>"$out/tuned_cpu_named.jsonl"
    "$ejk" tune "$name" --budget 2 --json >>"$out/tuned_cpu_named.jsonl" || failed=1
  done
  for name in mean_pooling mean_pooling_backward; do
    header "ejk tune $name --device cuda --budget 10 --json" >>"$out/tuned_cuda_mean_pooling.jsonl"
    "$ejk" tune "$name" --device cuda --budget 10 --json >>"$out/tuned_cuda_mean_pooling.jsonl" || failed=1
  done
  "$ejk" cache export --configs "$out/tuned.ejk" || failed=1
  rm -rf "$EJKERNEL_CACHE_DIR"
  return $failed
}

part_table() {
  local rows=(T-01 T-02-cuda T-03-cuda T-16-cuda T-20-cuda T-25 T-27)
  (( $# )) && rows=("$@")
  table_rows "${rows[@]}"
}
part_sanitizer() {
  command -v compute-sanitizer >/dev/null || { printf 'compute-sanitizer is not installed (it comes with the CUDA toolkit)\n'; return 1; }
  table_rows T-11 T-12 T-13
}

# Each line is of the same problem; percentages are of the fastest peak for bf16 that the processor has.
part_cpu() {
  local operation config record failed=0 problem=(--dtype bf16 --q_len 2048 --num_q_heads 16 --head_dim 128)
  local configs=('bf16_dot=0' 'bf16_dot=1' 'bf16_dot=2' 'bf16_dot=2 block_q=256')
  if ! grep -qw amx_bf16 /proc/cpuinfo; then
    printf 'this processor has no AMX: its tests are skipped, and bf16_dot=2 is not timed\n'
    configs=("${configs[@]:0:2}")
  fi
  "$ejk" check --seconds 60 || failed=1
  "$here/bin/ejkernel_device_tests" --gtest_filter='Amx.*' || failed=1
  for operation in flash_attention flash_attention_backward; do
    "$ejk" check "$operation" --kernel cpu --dtype bf16 --seconds 30 || failed=1
    for config in "${configs[@]}"; do
      record=$out/cpu_${operation}_${config//[= ]/_}.json
      "$ejk" bench "$operation" "${problem[@]}" --platform cpu --config ${config// / --config } --json "$@" >"$record" ||
        failed=1
      printf '%s:\n' "${record##*/}"
      grep -E '"(peak_flops|peak_bf16_flops|config|seconds|percent_of_peak)"' "$record"
    done
  done
  return $failed
}

if ! "$here/bin/ejkernel_device_tests" --gtest_filter=-'*' >/dev/null; then exit 2; fi  # it says what is missing

status=0
for part in "${parts[@]}"; do
  began=$SECONDS
  printf '== %s\n' "$part"
  if "part_$part" ${arguments[@]+"${arguments[@]}"} 2>&1 | tee "$out/$part.log"; then
    printf '== %s: done in %d s\n' "$part" $((SECONDS - began))
  else
    printf '== %s: FAILED after %d s, see %s\n' "$part" $((SECONDS - began)) "$out/$part.log"
    status=1
  fi
done
exit $status
