/*
 * What cachalot_ort.h and its tests use of ONNX Runtime's C interface, in the layout of the version that
 * ORT_API_VERSION names. It is not ONNX Runtime's header, which no index of packages has. New functions come behind
 * the old ones, so a gap stands for the functions between. `requests.c` and the example run over the real library,
 * where there is one: a wrong layout fails there.
 */
#ifndef ONNXRUNTIME_C_API_H
#define ONNXRUNTIME_C_API_H

#include <stddef.h>
#include <stdint.h>

#ifndef ORT_API_VERSION
#define ORT_API_VERSION 25
#endif

#define ORT_API_CALL
#ifdef __cplusplus
#define NO_EXCEPTION noexcept
extern "C" {
#else
#define NO_EXCEPTION
#endif

typedef struct OrtEnv OrtEnv;
typedef struct OrtStatus OrtStatus;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtSession OrtSession;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtRunOptions OrtRunOptions;
typedef struct OrtValue OrtValue;
typedef struct OrtKeyValuePairs OrtKeyValuePairs;
typedef struct OrtSyncStream OrtSyncStream;
typedef OrtStatus *OrtStatusPtr;

typedef enum { ORT_OK, ORT_FAIL } OrtErrorCode;
typedef enum { ORT_LOGGING_LEVEL_WARNING = 2 } OrtLoggingLevel;
typedef enum { OrtDeviceAllocator = 0 } OrtAllocatorType;
typedef enum { OrtMemTypeDefault = 0 } OrtMemType;
typedef enum { ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1 } ONNXTensorElementDataType;

/* The version in which each row came stands before it. */
typedef struct OrtAllocator {
  uint32_t version;
  void *(*Alloc)(struct OrtAllocator *, size_t);
  void (*Free)(struct OrtAllocator *, void *);
  const struct OrtMemoryInfo *(*Info)(const struct OrtAllocator *);
#if ORT_API_VERSION >= 18
  void *(*Reserve)(struct OrtAllocator *, size_t);
#endif
#if ORT_API_VERSION >= 23
  OrtStatusPtr (*GetStats)(const struct OrtAllocator *, OrtKeyValuePairs **) NO_EXCEPTION;
  void *(*AllocOnStream)(struct OrtAllocator *, size_t, OrtSyncStream *);
#endif
#if ORT_API_VERSION >= 25
  OrtStatusPtr (*Shrink)(struct OrtAllocator *) NO_EXCEPTION;
#endif
} OrtAllocator;

/* The functions between two numbers of OrtApi, which nothing here uses. */
#define ORT_BETWEEN(LAST, NEXT) void *between_##LAST##_and_##NEXT[NEXT - LAST - 1]

typedef struct OrtApi {
  OrtStatusPtr (*CreateStatus)(OrtErrorCode, const char *);
  ORT_BETWEEN(0, 2);
  const char *(*GetErrorMessage)(const OrtStatus *);
  OrtStatusPtr (*CreateEnv)(OrtLoggingLevel, const char *, OrtEnv **);
  ORT_BETWEEN(3, 8);
  OrtStatusPtr (*CreateSessionFromArray)(const OrtEnv *, const void *, size_t, const OrtSessionOptions *,
                                         OrtSession **);
  OrtStatusPtr (*Run)(OrtSession *, const OrtRunOptions *, const char *const *, const OrtValue *const *, size_t,
                      const char *const *, size_t, OrtValue **);
  OrtStatusPtr (*CreateSessionOptions)(OrtSessionOptions **);
  ORT_BETWEEN(10, 48);
  OrtStatusPtr (*CreateTensorAsOrtValue)(OrtAllocator *, const int64_t *, size_t, ONNXTensorElementDataType,
                                         OrtValue **);
  ORT_BETWEEN(48, 51);
  OrtStatusPtr (*GetTensorMutableData)(OrtValue *, void **);
  ORT_BETWEEN(51, 68);
  OrtStatusPtr (*CreateMemoryInfo)(const char *, OrtAllocatorType, int, OrtMemType, OrtMemoryInfo **);
  ORT_BETWEEN(68, 92);
  void (*ReleaseEnv)(OrtEnv *);
  void (*ReleaseStatus)(OrtStatus *);
  void (*ReleaseMemoryInfo)(OrtMemoryInfo *);
  void (*ReleaseSession)(OrtSession *);
  void (*ReleaseValue)(OrtValue *);
  ORT_BETWEEN(96, 100);
  void (*ReleaseSessionOptions)(OrtSessionOptions *);
  ORT_BETWEEN(100, 130);
  OrtStatusPtr (*AddSessionConfigEntry)(OrtSessionOptions *, const char *, const char *);
  ORT_BETWEEN(130, 176);
  OrtStatusPtr (*RegisterAllocator)(OrtEnv *, OrtAllocator *);
  OrtStatusPtr (*UnregisterAllocator)(OrtEnv *, const OrtMemoryInfo *);
  ORT_BETWEEN(177, 295);
  void (*CreateKeyValuePairs)(OrtKeyValuePairs **);
  void (*AddKeyValuePair)(OrtKeyValuePairs *, const char *, const char *);
  const char *(*GetKeyValue)(const OrtKeyValuePairs *, const char *);
  ORT_BETWEEN(297, 300);
  void (*ReleaseKeyValuePairs)(OrtKeyValuePairs *);
  ORT_BETWEEN(300, 384);
  void *(*SyncStream_GetHandle)(OrtSyncStream *);
} OrtApi;

typedef struct OrtApiBase {
  const OrtApi *(*GetApi)(uint32_t);
  const char *(*GetVersionString)(void);
} OrtApiBase;

extern const OrtApiBase *OrtGetApiBase(void);

#ifdef __cplusplus
}
#endif

#endif
