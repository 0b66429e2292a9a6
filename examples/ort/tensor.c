/*
 * ONNX Runtime over cachalot: a tensor in device memory, from the pool that the rest of the program uses.
 *
 * A session takes the memory of its tensors and weights from the same table if its options say
 * "session.use_env_allocators", and its CUDA provider computes on the table's stream (`user_compute_stream`).
 */
#include <onnxruntime_c_api.h>

#include <cachalot_ort.h>

#include <stdlib.h>

static const OrtApi *ort;

static void done(OrtStatusPtr status) {
  if (status != NULL) {
    fprintf(stderr, "ONNX Runtime: %s\n", ort->GetErrorMessage(status));
    exit(1);
  }
}

static void well(cachalot_status status) {
  if (status != CACHALOT_OK) {
    fprintf(stderr, "cachalot: %s\n", cachalot_last_error());
    exit(1);
  }
}

int main(void) {
  const int64_t shape[] = {1024, 1024};
  const int ordinal = 0;
  cachalot_options options = CACHALOT_OPTIONS_INIT;
  cachalot_allocator *allocator = NULL;
  cachalot_statistics now = CACHALOT_STATISTICS_INIT;
  cachalot_ort_allocator memory;
  OrtEnv *env = NULL;
  OrtMemoryInfo *info = NULL;
  OrtSessionOptions *session = NULL;
  OrtValue *tensor = NULL;
  void *first = NULL, *second = NULL;

  options.device_count = 1;
  options.devices = &ordinal;
  well(cachalot_create(&options, &allocator));
  ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
  if (ort == NULL) {
    fprintf(stderr, "this ONNX Runtime is older than its header\n");
    return 1;
  }
  done(ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "example", &env));
  done(ort->CreateMemoryInfo("Cuda", OrtDeviceAllocator, ordinal, OrtMemTypeDefault, &info));
  OrtAllocator *table = cachalot_ort_init(&memory, allocator, ordinal, NULL, ort, info);
  done(ort->RegisterAllocator(env, table));
  done(ort->CreateSessionOptions(&session));
  done(ort->AddSessionConfigEntry(session, "session.use_env_allocators", "1"));

  /* 4 MiB for ONNX Runtime, and then the same memory for the program itself. */
  done(ort->CreateTensorAsOrtValue(table, shape, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &tensor));
  done(ort->GetTensorMutableData(tensor, &first));
  ort->ReleaseValue(tensor);
  well(cachalot_malloc(allocator, 0, sizeof(float) * 1024 * 1024, NULL, &second));
  well(cachalot_get_statistics(allocator, 0, &now));
  printf("tensor: %s memory for the tensor and the block, %lld MiB from the driver\n",
         first == second ? "the same" : "other", (long long)(now.reserved_bytes.current >> 20));
  well(cachalot_free(allocator, second));

  ort->ReleaseSessionOptions(session);
  done(ort->UnregisterAllocator(env, info));
  ort->ReleaseMemoryInfo(info);
  ort->ReleaseEnv(env);
  well(cachalot_destroy(allocator));
  return first == second ? 0 : 1;
}
