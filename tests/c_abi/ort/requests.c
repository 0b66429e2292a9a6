/*
 * cachalot_ort.h: the table as ONNX Runtime calls it, and a whole session of the real library over it.
 *
 * Without an argument, simulated devices and an interface of the program's own. With the path of libonnxruntime.so, the
 * emulated driver: its device memory is the host's too under CACHALOT_EMU_HOST_ACCESS=1, so that the library's CPU
 * provider can compute in it.
 */
#define _GNU_SOURCE
#include "onnxruntime_c_api.h"

#include <cachalot_ort.h>

#include <dlfcn.h>
#include <stdlib.h>

#define EXPECT(condition)                                                              \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      fprintf(stderr, "%s:%d: %s does not hold (%s)\n", __FILE__, __LINE__, #condition, \
              cachalot_last_error());                                                  \
      exit(1);                                                                         \
    }                                                                                  \
  } while (0)

static cachalot_statistics statistics(const cachalot_allocator *allocator) {
  cachalot_statistics now = CACHALOT_STATISTICS_INIT;
  EXPECT(cachalot_get_statistics(allocator, 0, &now) == CACHALOT_OK);
  return now;
}

static cachalot_allocator *open(uint32_t flags) {
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  const int ordinal = 0;
  cachalot_allocator *allocator = NULL;
  options.flags = flags;
  options.device_count = 1;
  options.devices = &ordinal;
  options.simulated_bytes = 1 << 30;
  EXPECT(cachalot_create(&options, &allocator) == CACHALOT_OK);
  return allocator;
}

/* ---- An interface of the program's own ---- */

/* Pairs are a text, one "key=value" a line; a stream is a number, and a status its message. */
static char pairs[512];

static void create_pairs(OrtKeyValuePairs **out) {
  pairs[0] = 0;
  *out = (OrtKeyValuePairs *)pairs;
}

static void add_pair(OrtKeyValuePairs *to, const char *key, const char *value) {
  char *const text = (char *)to;
  (void)snprintf(text + strlen(text), sizeof pairs - strlen(text), "%s=%s\n", key, value);
}

static void *handle_of(OrtSyncStream *stream) {
  return stream;
}

static OrtStatusPtr create_status(OrtErrorCode code, const char *message) {
  static char said[256];
  EXPECT(code == ORT_FAIL);
  (void)snprintf(said, sizeof said, "%s", message);
  return (OrtStatusPtr)said;
}

/* The number of a live block's stream, which is the handle here. */
static uint64_t stream_of(const cachalot_allocator *allocator, const void *address) {
  cachalot_block block = CACHALOT_BLOCK_INIT;
  EXPECT(cachalot_get_block(allocator, address, &block) == CACHALOT_OK);
  return block.stream_id;
}

static void requests_on_simulated_devices(void) {
  const OrtMemoryInfo *const info = (const OrtMemoryInfo *)"a kind of memory";
  const uint64_t own = 0x1000;
  OrtApi api;
  cachalot_allocator *allocator = open(CACHALOT_SIMULATED);
  cachalot_ort_allocator memory;
  OrtAllocator *table;
  void *block, *again;
  memset(&api, 0, sizeof api);
  api.CreateStatus = create_status;
  api.CreateKeyValuePairs = create_pairs;
  api.AddKeyValuePair = add_pair;
  api.SyncStream_GetHandle = handle_of;
  table = cachalot_ort_init(&memory, allocator, 0, (cachalot_stream)(uintptr_t)own, &api, info);
  EXPECT(table == &memory.table && table->version == ORT_API_VERSION && table->Info(table) == info);

  block = table->Alloc(table, 5000);
  EXPECT(block != NULL && stream_of(allocator, block) == own);
  table->Free(table, block);
  EXPECT((again = table->Alloc(table, 5000)) == block);
  table->Free(table, again);
  table->Free(table, NULL);
  EXPECT(table->Alloc(table, 0) == NULL && statistics(allocator).allocations.current == 0);
  EXPECT(table->Alloc(table, (size_t)2 << 30) == NULL && strstr(cachalot_last_error(), "memory") != NULL);
  table->Free(table, &api);
  EXPECT(strlen(cachalot_last_error()) > 0 && cachalot_check_invariants(allocator) == CACHALOT_OK);

#if ORT_API_VERSION >= 18
  block = table->Reserve(table, 3 << 20);
  EXPECT(block != NULL && statistics(allocator).allocations.current == 1);
  table->Free(table, block);
#endif
#if ORT_API_VERSION >= 23
  block = table->AllocOnStream(table, 5000, (OrtSyncStream *)(uintptr_t)0x2000);
  again = table->AllocOnStream(table, 5000, NULL);
  EXPECT(stream_of(allocator, block) == 0x2000 && stream_of(allocator, again) == own);
  {
    OrtKeyValuePairs *read = NULL;
    char wanted[64];
    EXPECT(table->GetStats(table, &read) == NULL && read == (OrtKeyValuePairs *)pairs);
    (void)snprintf(wanted, sizeof wanted, "InUse=%lld\n", (long long)statistics(allocator).allocated_bytes.current);
    EXPECT(strncmp(pairs, wanted, strlen(wanted)) == 0);
    (void)snprintf(wanted, sizeof wanted, "\nTotalAllocated=%lld\n",
                   (long long)statistics(allocator).reserved_bytes.current);
    EXPECT(strstr(pairs, wanted) != NULL && strstr(pairs, "\nNumAllocs=") != NULL);
  }
  table->Free(table, block);
  table->Free(table, again);
#endif
#if ORT_API_VERSION >= 25
  EXPECT(statistics(allocator).reserved_bytes.current > 0);
  EXPECT(table->Shrink(table) == NULL && statistics(allocator).reserved_bytes.current == 0);
  memory.device = 7;
  EXPECT(strstr((const char *)table->Shrink(table), "device") != NULL);
#endif
  EXPECT(cachalot_destroy(allocator) == CACHALOT_OK);
}

#if ORT_API_VERSION >= 25

/* ---- The real library ---- */

#define ELEMENTS 256

/* A model in ONNX's format, version 13 of the operators: h = x + x, y = h · x, of 256 floats. */
static const char model[] =
    "\010\010\072\107\012\016\012\001\170\012\001\170\022\001\150\042\003\101\144\144\012\016\012\001"
    "\150\012\001\170\022\001\171\042\003\115\165\154\022\001\147\132\020\012\001\170\022\013\012\011"
    "\010\001\022\005\012\003\010\200\002\142\020\012\001\171\022\013\012\011\010\001\022\005\012\003"
    "\010\200\002\102\002\020\015";

static const OrtApi *ort;

static void done(OrtStatusPtr status) {
  if (status != NULL) {
    fprintf(stderr, "ONNX Runtime: %s\n", ort->GetErrorMessage(status));
    exit(1);
  }
}

/* The value of a key among the table's figures. */
static long long figure(const OrtAllocator *table, const char *key) {
  OrtKeyValuePairs *read = NULL;
  long long value;
  done(table->GetStats(table, &read));
  EXPECT(ort->GetKeyValue(read, key) != NULL);
  value = atoll(ort->GetKeyValue(read, key));
  ort->ReleaseKeyValuePairs(read);
  return value;
}

static void a_session(const char *library) {
  const char *const input[] = {"x"}, *const output[] = {"y"};
  const int64_t shape[] = {ELEMENTS};
  cachalot_allocator *allocator = open(0);
  cachalot_ort_allocator memory;
  const OrtApiBase *(*base)(void);
  OrtEnv *env;
  OrtMemoryInfo *info;
  OrtSessionOptions *options;
  OrtSession *session;
  OrtValue *x, *y = NULL;
  OrtAllocator *table;
  float *numbers, *results;
  long long requests;
  int index;
  void *const loaded = dlopen(library, RTLD_NOW);
  if (loaded == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
  *(void **)&base = dlsym(loaded, "OrtGetApiBase");
  EXPECT(base != NULL && (ort = base()->GetApi(ORT_API_VERSION)) != NULL);
  done(ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "cachalot", &env));
  done(ort->CreateMemoryInfo("Cpu", OrtDeviceAllocator, 0, OrtMemTypeDefault, &info));
  table = cachalot_ort_init(&memory, allocator, 0, NULL, ort, info);
  done(ort->RegisterAllocator(env, table));
  done(ort->CreateSessionOptions(&options));
  done(ort->AddSessionConfigEntry(options, "session.use_env_allocators", "1"));
  done(ort->CreateSessionFromArray(env, model, sizeof model - 1, options, &session));

  done(ort->CreateTensorAsOrtValue(table, shape, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &x));
  done(ort->GetTensorMutableData(x, (void **)&numbers));
  EXPECT(stream_of(allocator, numbers) == 0 && figure(table, "InUse") > 0);
  for (index = 0; index < ELEMENTS; ++index) {
    numbers[index] = (float)index;
  }
  requests = figure(table, "NumAllocs");
  done(ort->Run(session, NULL, input, (const OrtValue *const *)&x, 1, output, 1, &y));
  done(ort->GetTensorMutableData(y, (void **)&results));
  /* The library took the result's memory, at least, from the table. */
  EXPECT(figure(table, "NumAllocs") > requests && stream_of(allocator, results) == 0);
  for (index = 0; index < ELEMENTS; ++index) {
    EXPECT(results[index] == (float)(2 * index * index));
  }
  ort->ReleaseValue(y);
  ort->ReleaseValue(x);
  ort->ReleaseSession(session);
  ort->ReleaseSessionOptions(options);
  EXPECT(figure(table, "InUse") == 0);
  done(table->Shrink(table));
  EXPECT(statistics(allocator).reserved_bytes.current == 0);
  done(ort->UnregisterAllocator(env, info));
  ort->ReleaseMemoryInfo(info);
  ort->ReleaseEnv(env);
  EXPECT(cachalot_destroy(allocator) == CACHALOT_OK);
}

#else

static void a_session(const char *library) {
  EXPECT(library == NULL);
}

#endif

int main(int count, char **arguments) {
  if (count > 1) {
    a_session(arguments[1]);
  } else {
    requests_on_simulated_devices();
  }
  printf("requests: well\n");
  return 0;
}
