/*
 * A context ends under an allocator, on the emulated driver: by a reset of the device, by its destruction, and by the last
 * release. The library finds out where it calls the driver anyway, says that the context is lost, never uses a handle of
 * the lost context, and can be destroyed and made anew.
 */
#include "../misuse/misuse.h"

typedef struct CUctx_st *context_handle;

static int (*retain)(context_handle *, int);
static int (*release)(int);
static int (*reset)(int);
static int (*set_current)(context_handle);
static int (*create)(context_handle *, unsigned, int);
static int (*destroy)(context_handle);
static int (*synchronize)(void);
static int (*clear)(unsigned long long, unsigned char, size_t);
static int (*state_of)(int, unsigned *, int *);

/* How a context ends, and is there again. */
enum end { RESET, DESTROYED, ENDS };

/* Makes a context, and makes it current. */
static context_handle begin_context(enum end end) {
  context_handle context = NULL;
  if (end == RESET) {
    CHECK(retain(&context, 0) == 0);
    CHECK(set_current(context) == 0);
  } else {
    CHECK(create(&context, 0, 0) == 0);
  }
  return context;
}

static void end_context(enum end end, context_handle context) {
  CHECK((end == RESET ? reset(0) : destroy(context)) == 0);
}

/* What the library does first after the end. */
enum first { HEALTH, REQUEST, EVENTS, EMPTY, TRIM, DESTROY, FIRSTS };

static void lose(enum end end, enum first first, const char *config) {
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_allocator *allocator = NULL, *anew = NULL;
  void *cached = NULL, *live = NULL, *used = NULL, *more = NULL;
  int device = 0;
  void *contexts[1];
  context_handle context = begin_context(end), next;
  cachalot_stream other = (cachalot_stream)2; /* the thread's own */
  contexts[0] = context;
  options.config = config;
  options.device_count = 1;
  options.devices = &device;
  options.contexts = end == RESET ? NULL : contexts;
  NEEDED(cachalot_create(&options, &allocator));
  NEEDED(cachalot_malloc(allocator, 0, 30 << 20, NULL, &cached));
  NEEDED(cachalot_malloc(allocator, 0, 3 << 20, NULL, &live));
  NEEDED(cachalot_malloc(allocator, 0, 5 << 20, NULL, &used));
  NEEDED(cachalot_record_stream(allocator, used, other));
  NEEDED(cachalot_free(allocator, used));
  NEEDED(cachalot_free(allocator, cached));
  end_context(end, context);
  /* The primary context has the same handle when it is made anew. */
  next = begin_context(end);

  switch (first) {
    case HEALTH:
      CHECK(cachalot_check_health(allocator, 0) == CACHALOT_ERROR_CONTEXT_LOST);
      CHECK(cachalot_last_driver_code() == 709);
      break;
    case REQUEST:
      CHECK(cachalot_malloc(allocator, 0, 200 << 20, NULL, &more) == CACHALOT_ERROR_CONTEXT_LOST);
      break;
    case EVENTS:
      CHECK(cachalot_process_events(allocator, 0) == CACHALOT_ERROR_CONTEXT_LOST);
      break;
    case EMPTY:
      CHECK(cachalot_empty_cache(allocator, 0) == CACHALOT_ERROR_CONTEXT_LOST);
      break;
    case TRIM:
      CHECK(cachalot_trim(allocator, 0, 0) == CACHALOT_ERROR_CONTEXT_LOST);
      break;
    default:
      break;
  }
  if (first != DESTROY) {
    unsigned long long calls = driver_calls();
    CHECK(cachalot_check_health(allocator, 0) == CACHALOT_ERROR_CONTEXT_LOST);
    /* Not from the cache either, which is gone. */
    CHECK(cachalot_malloc(allocator, 0, 30 << 20, NULL, &more) == CACHALOT_ERROR_CONTEXT_LOST && more == NULL);
    CHECK(cachalot_free(allocator, live) == CACHALOT_OK);
    CHECK(driver_calls() == calls);
  }
  CHECK(cachalot_destroy(allocator) == CACHALOT_ERROR_CONTEXT_LOST);
  CHECK(cachalot_destroy(allocator) == CACHALOT_ERROR_INVALID_HANDLE);

  /* What comes after works, and with the same addresses. */
  contexts[0] = next;
  NEEDED(cachalot_create(&options, &anew));
  NEEDED(cachalot_malloc(anew, 0, 30 << 20, NULL, &more));
  CHECK(clear((unsigned long long)(size_t)more, 1, 30 << 20) == 0 && synchronize() == 0);
  NEEDED(cachalot_check_health(anew, 0));
  NEEDED(cachalot_free(anew, more));
  NEEDED(cachalot_destroy(anew));
  if (end == RESET) {
    unsigned flags = 0;
    int active = 1;
    /* The program retained twice, and no allocator retains any longer. */
    CHECK(release(0) == 0 && release(0) == 0);
    CHECK(state_of(0, &flags, &active) == 0 && !active);
  } else {
    CHECK(destroy(next) == 0);
  }
}

int main(int argc, char **argv) {
  void *library = dlopen(getenv("CACHALOT_LIBCUDA"), RTLD_LAZY);
  int (*init)(unsigned) = NULL;
  int end, first;
  const char *config = argc > 1 ? argv[1] : "";
  CHECK(library != NULL);
  FIND(library, init, "cuInit");
  FIND(library, retain, "cuDevicePrimaryCtxRetain");
  FIND(library, release, "cuDevicePrimaryCtxRelease_v2");
  FIND(library, reset, "cuDevicePrimaryCtxReset_v2");
  FIND(library, set_current, "cuCtxSetCurrent");
  FIND(library, create, "cuCtxCreate_v2");
  FIND(library, destroy, "cuCtxDestroy_v2");
  FIND(library, synchronize, "cuCtxSynchronize");
  FIND(library, clear, "cuMemsetD8_v2");
  FIND(library, state_of, "cuDevicePrimaryCtxGetState");
  CHECK(init(0) == 0);
  for (end = 0; end < ENDS; ++end) {
    for (first = 0; first < FIRSTS && failures == 0; ++first) {
      lose((enum end)end, (enum first)first, config);
    }
  }
  return failures != 0;
}
