#!/usr/bin/env bash
# Runs the examples that examples/build.sh built, on the driver that there is.
#
#   examples/run.sh OUT [WRAPPER...]        WRAPPER: such as compute-sanitizer or valgrind, with its options
#
# Two hosts make driver calls that fail and are dealt with (a request larger than the GPU, an event on a stream of another one),
# so for the sanitizer: run.sh OUT compute-sanitizer --leak-check full --report-api-errors no --error-exitcode 9
set -euo pipefail
out=$(cd "${1:?usage: run.sh OUT [WRAPPER...]}" && pwd)
shift

# The emulated driver's kernels are a library of the host's.
export CACHALOT_KERNELS=${CACHALOT_KERNELS:-$out/kernels.fatbin}
failed=0
for host in vector_add two_streams graph_capture multi_gpu own_context kv_cache paged_attention plan resources thrust_vector cub_reduce runtime_streams thrust_system; do
  with=()
  if [[ $host =~ ^(thrust_|cub_|runtime_) ]] && [ -n "${CACHALOT_LIBCUDA:-}" ]; then
    if [ "${CUDA_RUNTIME:-}" != emulated ]; then
      echo "skipped: $host (NVIDIA's runtime needs NVIDIA's driver; CUDA_RUNTIME=emulated builds and runs what the emulated one can)"
      continue
    fi
    # The emulated runtime takes the kernels from a library of the host's; Thrust for the host reads device memory.
    with=(env "CACHALOT_HOST_KERNELS=$out/$host.kernels.so" CACHALOT_EMU_HOST_ACCESS="$([ "$host" = thrust_system ] && echo 1 || echo 0)")
  fi
  if [ ! -x "$out/$host" ]; then
    echo "skipped: $host (not built)"
  elif ! "${with[@]}" "$@" "$out/$host"; then
    echo "FAILED: $host"
    failed=1
  fi
done
exit $failed
