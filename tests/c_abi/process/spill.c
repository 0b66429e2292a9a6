/*
 * Blocks on pages of the host: a program that needs more than the device has runs on, and finds in every page of every
 * block what it wrote there, also after blocks have moved to the host and back. The configuration is the last argument.
 */
#include "../misuse/misuse.h"

typedef unsigned long long address;

unsigned cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuDevicePrimaryCtxRelease_v2(int);
unsigned cuCtxSetCurrent(void *), cuMemcpyHtoD_v2(address, const void *, size_t), cuMemcpyDtoH_v2(void *, address, size_t);
unsigned cuMemGetInfo_v2(size_t *, size_t *);

#define DRIVER(call) CHECK((call) == 0)

enum { MEBIBYTE = 1 << 20, SLOTS = 24, STEPS = 1500 };
/* One mark a page of the driver, so that every page of a block has some. */
#define APART (2 * (size_t)MEBIBYTE)

typedef struct slot {
  void *block;
  size_t bytes;
  uint64_t seed;
} slot;

static uint64_t next_random(uint64_t *state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

/* Writes the marks of a block, or checks them. */
static void marks(const slot *it, int writes) {
  size_t at;
  for (at = 0; at + sizeof(uint64_t) <= it->bytes; at += APART) {
    const address place = (address)(uintptr_t)it->block + at;
    const uint64_t wanted = it->seed + at;
    uint64_t found = 0;
    if (writes) {
      DRIVER(cuMemcpyHtoD_v2(place, &wanted, sizeof wanted));
    } else {
      DRIVER(cuMemcpyDtoH_v2(&found, place, sizeof found));
      CHECK(found == wanted);
    }
  }
}

static int64_t spilled_most = 0;

static int find_spilled(void *userdata, const char *name, int64_t value) {
  if (strcmp(name, "pages.spilled_bytes") == 0) {
    *(int64_t *)userdata = value;
  }
  return 0;
}

static int64_t spilled(cachalot_allocator *allocator) {
  int64_t bytes = -1;
  NEEDED(cachalot_visit_statistics(allocator, 0, find_spilled, &bytes));
  CHECK(bytes >= 0);
  return bytes;
}

/* Names a block cold or hot. Returns the bytes that have moved. */
static uint64_t advise(cachalot_allocator *allocator, const slot *it, cachalot_advice advice) {
  const int64_t before = spilled(allocator);
  uint64_t moved = 0;
  NEEDED(cachalot_advise(allocator, it->block, advice, &moved));
  CHECK(spilled(allocator) == before + (advice == CACHALOT_COLD ? (int64_t)moved : -(int64_t)moved));
  marks(it, 0);
  return moved;
}

/* A pool on the host, from the start and until it is no more. */
static void pool_on_the_host(cachalot_allocator *allocator) {
  cachalot_pool pool = {0, 0};
  slot it = {NULL, 40 * (size_t)MEBIBYTE, 77};
  int64_t before;
  NEEDED(cachalot_empty_cache(allocator, 0));
  before = spilled(allocator);
  NEEDED(cachalot_pool_create(allocator, 0, 0, &pool));
  NEEDED(cachalot_pool_spill(allocator, 0, pool, 1));
  NEEDED(cachalot_pool_begin(allocator, 0, pool, CACHALOT_ROUTE_ALL, NULL));
  NEEDED(cachalot_malloc(allocator, 0, it.bytes, NULL, &it.block));
  NEEDED(cachalot_pool_end(allocator, 0, pool));
  CHECK(spilled(allocator) == before + (int64_t)it.bytes);
  marks(&it, 1);
  CHECK(advise(allocator, &it, CACHALOT_HOT) == it.bytes);
  CHECK(advise(allocator, &it, CACHALOT_COLD) == it.bytes);
  NEEDED(cachalot_free(allocator, it.block));
  NEEDED(cachalot_pool_release(allocator, 0, pool));
  NEEDED(cachalot_pool_release(allocator, 0, pool));
  CHECK(cachalot_pool_spill(allocator, 0, (cachalot_pool){9, 9}, 1) == CACHALOT_ERROR_UNKNOWN_POOL);
}

int main(int argc, char **argv) {
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_allocator *allocator = NULL;
  slot slots[SLOTS] = {{NULL, 0, 0}};
  uint64_t state = 88172645463325252ull, live = 0, moved[3] = {0, 0, 0};
  size_t free_bytes = 0, total = 0;
  void *context = NULL;
  int step;
  options.config = argv[argc - 1];
  NEEDED(cachalot_create(&options, &allocator));
  DRIVER(cuInit(0));
  DRIVER(cuDevicePrimaryCtxRetain(&context, 0));
  DRIVER(cuCtxSetCurrent(context));
  DRIVER(cuMemGetInfo_v2(&free_bytes, &total));
  pool_on_the_host(allocator);
  for (step = 0; step < STEPS; ++step) {
    slot *it = &slots[next_random(&state) % SLOTS];
    if (it->block != NULL && step % 5 == 0) {
      const cachalot_advice advice = step % 2 == 0 ? CACHALOT_COLD : CACHALOT_HOT;
      moved[advice] += advise(allocator, it, advice);
    } else if (it->block != NULL) {
      marks(it, 0);
      NEEDED(cachalot_free(allocator, it->block));
      live -= it->bytes;
      it->block = NULL;
    } else {
      it->bytes = 1 + next_random(&state) % (next_random(&state) % 4 == 0 ? MEBIBYTE : 40 * (size_t)MEBIBYTE);
      it->seed = next_random(&state);
      if (live + it->bytes <= total + total / 2) {
        NEEDED(cachalot_malloc(allocator, 0, it->bytes, NULL, &it->block));
        marks(it, 1);
        live += it->bytes;
      }
    }
    if (step % 100 == 0) {
      const int64_t now = spilled(allocator);
      spilled_most = now > spilled_most ? now : spilled_most;
      NEEDED(cachalot_check_invariants(allocator));
    }
    if (step == STEPS / 2) {
      NEEDED(cachalot_empty_cache(allocator, 0));
    }
  }
  CHECK(spilled_most >= (int64_t)total / 8);
  CHECK(moved[CACHALOT_COLD] > 0 && moved[CACHALOT_HOT] > 0);
  for (step = 0; step < SLOTS; ++step) {
    if (slots[step].block != NULL) {
      marks(&slots[step], 0);
      NEEDED(cachalot_free(allocator, slots[step].block));
    }
  }
  NEEDED(cachalot_empty_cache(allocator, 0));
  CHECK(spilled(allocator) == 0);
  NEEDED(cachalot_destroy(allocator));
  DRIVER(cuDevicePrimaryCtxRelease_v2(0));
  return failures != 0;
}
