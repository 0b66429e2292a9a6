/*
 * A KV cache over an elastic range, and a model that is parked for a while. Each sequence has addresses for its
 * longest length, and memory for its tokens only. Pages of sequences that have ended serve the others, and the pages of
 * the parked model serve the cache.
 *
 *   kv_cache [CONFIG]        CONFIG: such as "policy:stitched", the default
 */
#include "host.h"

#include <time.h>

enum { MIB = 1 << 20, SEQUENCES = 8, MODEL = 40 * MIB, LIMIT = 64 * MIB, LONGEST = 16 * MIB, MODEL_TAG = 1 };

/* The rows of all sequences: sequence i is at `range.base + i * LONGEST`. Its first `held[i]` bytes have memory. */
typedef struct kv_cache {
  cachalot_range range;
  size_t held[SEQUENCES];
} kv_cache;

/* Gives a sequence memory for `bytes` bytes, for work submitted to `stream` after the call. After a failure, the
 * sequence is as long as it was. */
static cachalot_status grow(kv_cache *cache, int sequence, size_t bytes, CUstream stream) {
  const size_t page = cache->range.page_bytes, held = cache->held[sequence];
  const size_t wanted = (bytes + page - 1) / page * page;
  cachalot_status status = CACHALOT_OK;
  if (wanted > held) {
    status = cachalot_range_commit(cache->range, (size_t)sequence * LONGEST + held, wanted - held, stream);
    if (status == CACHALOT_OK) {
      cache->held[sequence] = wanted;
    }
  }
  return status;
}

/* Ends a sequence: its pages serve others, after the work submitted to `stream`. */
static void end(kv_cache *cache, int sequence, CUstream stream) {
  CACHALOT(cachalot_range_decommit(cache->range, (size_t)sequence * LONGEST, cache->held[sequence], stream));
  cache->held[sequence] = 0;
}

static CUdeviceptr row(const kv_cache *cache, int sequence) {
  return address(cache->range.base) + (size_t)sequence * LONGEST;
}

/* The kernels, and where they write what they find. */
static CUmodule module;
static void *findings;

static void fill(CUdeviceptr at, size_t bytes, uint64_t block, CUstream stream) {
  cachalot_kernel_arguments arguments;
  cachalot_kernel_fill(&arguments, at, bytes, block, 1);
  CUDA(cachalot_kernel_launch(kernel(module, CACHALOT_KERNEL_FILL), stream, &arguments));
}

static void verify(CUdeviceptr at, size_t bytes, uint64_t block, CUstream stream) {
  cachalot_kernel_arguments arguments;
  cachalot_kernel_verify(&arguments, at, bytes, block, 1, address(findings));
  CUDA(cachalot_kernel_launch(kernel(module, CACHALOT_KERNEL_VERIFY), stream, &arguments));
}

/* Checks every sequence: the contents of one are those of its whole length. */
static void verify_all(const kv_cache *cache, const size_t *written, CUstream stream) {
  int sequence;
  for (sequence = 0; sequence < SEQUENCES; ++sequence) {
    verify(row(cache, sequence), written[sequence], (uint64_t)sequence, stream);
  }
}

static double now_us(void) {
  struct timespec now;
  timespec_get(&now, TIME_UTC);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

int main(int count, char **texts) {
  const cachalot_findings nothing = {0, UINT64_MAX};
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_statistics before = CACHALOT_STATISTICS_INIT, after = CACHALOT_STATISTICS_INIT;
  cachalot_allocator *allocator = NULL;
  cachalot_findings found;
  cachalot_status status = CACHALOT_OK;
  cachalot_pool pool;
  kv_cache cache = {0};
  cachalot_park_target model_target = CACHALOT_PARK_TARGET_INIT;
  size_t written[SEQUENCES] = {0};
  void *model;
  CUstream stream;
  double began, us = 0;
  int sequence = 0, pages = 0, refused_at;

  enter_device(0);
  module = load_kernels();
  stream = new_stream();
  options.config = count > 1 ? texts[1] : "policy:stitched";
  options.limit_bytes = LIMIT;
  CACHALOT(cachalot_create(&options, &allocator));
  CACHALOT(cachalot_malloc(allocator, 0, sizeof nothing, stream, &findings));
  CUDA(cuMemcpyHtoD(address(findings), &nothing, sizeof nothing));

  /* The model is in a pool with a tag, so that it can be parked. */
  CACHALOT(cachalot_pool_create(allocator, 0, 0, &pool));
  CACHALOT(cachalot_pool_set_tag(allocator, 0, pool, MODEL_TAG));
  CACHALOT(cachalot_pool_begin(allocator, 0, pool, CACHALOT_ROUTE_STREAM, stream));
  CACHALOT(cachalot_malloc(allocator, 0, MODEL, stream, &model));
  CACHALOT(cachalot_pool_end(allocator, 0, pool));
  fill(address(model), MODEL, 100, stream);

  /* The sequences grow in turn, until the memory beside the model is in use. */
  CACHALOT(cachalot_range_reserve(allocator, 0, (size_t)SEQUENCES * LONGEST, &cache.range));
  for (; status == CACHALOT_OK; sequence = (sequence + 1) % SEQUENCES) {
    CACHALOT(cachalot_get_statistics(allocator, 0, &before));
    began = now_us();
    status = grow(&cache, sequence, written[sequence] + 2 * MIB, stream);
    if (status == CACHALOT_OK) {
      us += now_us() - began;
      ++pages;
      written[sequence] += 2 * MIB;
      fill(row(&cache, sequence), written[sequence], (uint64_t)sequence, stream);
    }
  }
  EXPECT(status == CACHALOT_ERROR_OUT_OF_MEMORY && pages > 0);
  refused_at = pages;
  /* The refused growth has changed nothing. */
  CACHALOT(cachalot_get_statistics(allocator, 0, &after));
  EXPECT(after.allocated_bytes.current == before.allocated_bytes.current);
  verify_all(&cache, written, stream);

  /* The model sleeps, and the cache has the model's pages. */
  model_target.kind = CACHALOT_PARK_TAG;
  model_target.tag = MODEL_TAG;
  CACHALOT(cachalot_park(allocator, 0, &model_target, NULL));
  for (sequence = 0; sequence < SEQUENCES; ++sequence) {
    began = now_us();
    CACHALOT(grow(&cache, sequence, 6 * MIB, stream));
    us += now_us() - began;
    pages += (int)((6 * MIB - written[sequence]) / (2 * MIB));
    written[sequence] = 6 * MIB;
    fill(row(&cache, sequence), written[sequence], (uint64_t)sequence, stream);
  }
  verify_all(&cache, written, stream);

  /* There is no room for both. A wake that fails leaves both as they are. */
  status = cachalot_wake(allocator, 0, &model_target);
  EXPECT(status == CACHALOT_ERROR_OUT_OF_MEMORY);
  verify_all(&cache, written, stream);

  /* The sequences end, and the model comes back with its contents. */
  for (sequence = 0; sequence < SEQUENCES; ++sequence) {
    end(&cache, sequence, stream);
  }
  CACHALOT(cachalot_wake(allocator, 0, &model_target));
  verify(address(model), MODEL, 100, stream);
  CUDA(cuStreamSynchronize(stream));
  CUDA(cuMemcpyDtoH(&found, address(findings), sizeof found));
  printf("kv_cache: %llu bytes wrong; %d MiB beside the model, %d MiB while the model is parked; %.1f us a page\n",
         (unsigned long long)found.wrong_bytes, refused_at * 2, SEQUENCES * 6, us / pages);
  EXPECT(found.wrong_bytes == 0);

  CACHALOT(cachalot_range_release(cache.range));
  CACHALOT(cachalot_free(allocator, model));
  CACHALOT(cachalot_free(allocator, findings));
  /* The pool has two users: cachalot_pool_create, and cachalot_pool_begin. */
  CACHALOT(cachalot_pool_release(allocator, 0, pool));
  CACHALOT(cachalot_pool_release(allocator, 0, pool));
  end_stream(allocator, 0, stream);
  CACHALOT(cachalot_check_invariants(allocator));
  CACHALOT(cachalot_destroy(allocator));
  CUDA(cuModuleUnload(module));
  leave_device(0);
  return 0;
}
