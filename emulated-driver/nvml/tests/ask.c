/*
 * A program linked with -lnvidia-ml and -lcuda: what NVML answers, by the case that the argument names. The Rust tests
 * describe the machine and name the case. Declares the functions itself, as NVML's header is not installed everywhere.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *Device;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
typedef struct { const char *group; unsigned long long soft, hard; } SetLimits;
typedef struct { const char *group; unsigned long long soft, hard, used; } GetLimits;
typedef struct { unsigned gpu, memory; } Rates;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;
typedef struct { Device device; unsigned long long kind, data; unsigned gpu_instance, compute_instance; } Event;
typedef struct { unsigned id, scope; long long time, latency; unsigned type, code; unsigned long long value; } Field;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char place[32]; } Pci;

int nvmlInit_v2(void);
int nvmlShutdown(void);
const char *nvmlErrorString(int);
int nvmlSystemGetDriverVersion(char *, unsigned);
int nvmlSystemGetCudaDriverVersion(int *);
int nvmlSystemGetProcessName(unsigned, char *, unsigned);
int nvmlDeviceGetCount_v2(unsigned *);
int nvmlDeviceGetHandleByIndex_v2(unsigned, Device *);
int nvmlDeviceGetHandleByUUID(const char *, Device *);
int nvmlDeviceGetHandleByPciBusId_v2(const char *, Device *);
int nvmlDeviceGetName(Device, char *, unsigned);
int nvmlDeviceGetUUID(Device, char *, unsigned);
int nvmlDeviceGetPciInfo_v3(Device, Pci *);
int nvmlDeviceGetMemoryInfo(Device, Memory *);
int nvmlDeviceGetMemoryInfo_v2(Device, Memory2 *);
int nvmlDeviceSetMemoryLimits_v1(Device, SetLimits *);
int nvmlDeviceGetMemoryLimits_v1(Device, GetLimits *);
int nvmlDeviceGetUtilizationRates(Device, Rates *);
int nvmlDeviceGetTemperature(Device, unsigned, unsigned *);
int nvmlDeviceGetPowerUsage(Device, unsigned *);
int nvmlDeviceGetFanSpeed(Device, unsigned *);
int nvmlDeviceGetClockInfo(Device, unsigned, unsigned *);
int nvmlDeviceGetNvLinkState(Device, unsigned, unsigned *);
int nvmlDeviceGetCudaComputeCapability(Device, int *, int *);
int nvmlDeviceGetComputeRunningProcesses_v3(Device, unsigned *, Process *);
int nvmlDeviceGetGraphicsRunningProcesses_v3(Device, unsigned *, Process *);
int nvmlDeviceGetMigMode(Device, unsigned *, unsigned *);
int nvmlDeviceGetMigDeviceHandleByIndex(Device, unsigned, Device *);
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device, Device *);
int nvmlDeviceIsMigDeviceHandle(Device, unsigned *);
int nvmlDeviceGetGpuInstanceId(Device, unsigned *);
int nvmlDeviceGetFieldValues(Device, int, Field *);
int nvmlEventSetCreate(void **);
int nvmlEventSetFree(void *);
int nvmlEventSetWait_v2(void *, Event *, unsigned);
int nvmlDeviceRegisterEvents(Device, unsigned long long, void *);

int cuInit(unsigned);
int cuDeviceGet(int *, int);
int cuDeviceGetName(char *, int, int);
int cuDeviceGetUuid_v2(unsigned char *, int);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(uint64_t *, size_t);
int cuMemFree_v2(uint64_t);
int cuDeviceGetPCIBusId(char *, int, int);

enum { UNINITIALIZED = 1, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 6, INSUFFICIENT_SIZE, TIMEOUT = 10, GPU_IS_LOST = 15, OPERATING_SYSTEM = 17, VERSION_MISMATCH = 25, UNKNOWN = 999 };

/* Ends the program unless two numbers are equal. */
#define SAME(seen, wanted)                                                                        \
  do {                                                                                            \
    const long long found_ = (long long)(seen), asked_ = (long long)(wanted);                     \
    if (found_ != asked_) {                                                                       \
      fprintf(stderr, "line %d: %s is %lld, not %lld\n", __LINE__, #seen, found_, asked_);        \
      exit(1);                                                                                    \
    }                                                                                             \
  } while (0)
#define TEXT(seen, wanted)                                                                        \
  do {                                                                                            \
    if (strcmp(seen, wanted) != 0) {                                                              \
      fprintf(stderr, "line %d: %s is \"%s\", not \"%s\"\n", __LINE__, #seen, seen, wanted);      \
      exit(1);                                                                                    \
    }                                                                                             \
  } while (0)

static Device device(unsigned index) {
  Device found = NULL;
  SAME(nvmlDeviceGetHandleByIndex_v2(index, &found), 0);
  return found;
}

/* The conditions of every call: initialised, a handle, pointers, room. */
static void conditions(void) {
  unsigned number = 0;
  char text[96];
  SAME(nvmlDeviceGetCount_v2(&number), UNINITIALIZED);
  SAME(nvmlShutdown(), UNINITIALIZED);
  SAME(nvmlInit_v2(), 0);
  SAME(nvmlInit_v2(), 0);
  SAME(nvmlShutdown(), 0);
  SAME(nvmlDeviceGetCount_v2(&number), 0);
  SAME(number, 2);
  SAME(nvmlDeviceGetCount_v2(NULL), INVALID_ARGUMENT);
  Device first = device(0), none = NULL;
  SAME(nvmlDeviceGetHandleByIndex_v2(2, &none), INVALID_ARGUMENT);
  SAME(nvmlDeviceGetHandleByIndex_v2(0, NULL), INVALID_ARGUMENT);
  SAME(nvmlDeviceGetHandleByUUID("GPU-none", &none), NOT_FOUND);
  SAME(nvmlDeviceGetHandleByPciBusId_v2("0000:7f:00.0", &none), NOT_FOUND);
  SAME(nvmlDeviceGetHandleByPciBusId_v2("somewhere", &none), INVALID_ARGUMENT);
  SAME(nvmlDeviceGetName(NULL, text, sizeof text), INVALID_ARGUMENT);
  SAME(nvmlDeviceGetName((Device)(intptr_t)-8, text, sizeof text), INVALID_ARGUMENT);
  SAME(nvmlDeviceGetName(first, NULL, sizeof text), INVALID_ARGUMENT);
  SAME(nvmlDeviceGetName(first, text, 5), INSUFFICIENT_SIZE);
  Memory2 memory = {.version = 1};
  SAME(nvmlDeviceGetMemoryInfo_v2(first, &memory), VERSION_MISMATCH);
  SAME(nvmlDeviceGetTemperature(first, 7, &number), INVALID_ARGUMENT);
  SAME(nvmlDeviceGetClockInfo(first, 4, &number), INVALID_ARGUMENT);
  SAME(nvmlDeviceGetFanSpeed(first, &number), NOT_SUPPORTED);
  SAME(nvmlDeviceGetNvLinkState(first, 0, &number), NOT_SUPPORTED);
  SAME(nvmlDeviceGetNvLinkState(NULL, 0, &number), INVALID_ARGUMENT);
  SAME(nvmlDeviceGetGpuInstanceId(first, &number), INVALID_ARGUMENT);
  SAME(nvmlDeviceGetMigDeviceHandleByIndex(first, 0, &none), NOT_FOUND);
  SAME(nvmlSystemGetProcessName(0x7ffffff0, text, sizeof text), NOT_FOUND);
  SAME(nvmlSystemGetProcessName((unsigned)getpid(), text, 4), 0);
  SAME(strlen(text), 3);
  TEXT(nvmlErrorString(NOT_SUPPORTED), "NOT_SUPPORTED");
  Field fields[] = {{.id = 186}, {.id = 5000}};
  SAME(nvmlDeviceGetFieldValues(first, 2, fields), 0);
  SAME(fields[0].code, 0);
  SAME(fields[0].value, 70000);
  SAME(fields[1].code, NOT_SUPPORTED);
  SAME(nvmlDeviceGetFieldValues(first, 0, fields), INVALID_ARGUMENT);
  SAME(nvmlShutdown(), 0);
  SAME(nvmlDeviceGetCount_v2(&number), UNINITIALIZED);
}

/* One machine, told by two libraries: names, places, capability, and the memory that this process holds. */
static void driver(void) {
  char name[96], other[96], uuid[96], place[32];
  unsigned char bytes[16];
  SAME(cuInit(0), 0);
  SAME(nvmlInit_v2(), 0);
  for (int index = 0; index < 2; ++index) {
    Device handle = device((unsigned)index);
    SAME(cuDeviceGetName(name, sizeof name, index), 0);
    SAME(nvmlDeviceGetName(handle, other, sizeof other), 0);
    TEXT(other, name);
    SAME(cuDeviceGetUuid_v2(bytes, index), 0);
    char *end = uuid + sprintf(uuid, "GPU");
    for (int byte = 0; byte < 16; ++byte) {
      end += sprintf(end, byte == 0 || byte == 4 || byte == 6 || byte == 8 || byte == 10 ? "-%02x" : "%02x", bytes[byte]);
    }
    SAME(nvmlDeviceGetUUID(handle, other, sizeof other), 0);
    TEXT(other, uuid);
    Device same = NULL;
    SAME(nvmlDeviceGetHandleByUUID(uuid, &same), 0);
    SAME(same == handle, 1);
    SAME(cuDeviceGetPCIBusId(place, sizeof place, index), 0);
    SAME(nvmlDeviceGetHandleByPciBusId_v2(place, &same), 0);
    SAME(same == handle, 1);
    Pci pci;
    SAME(nvmlDeviceGetPciInfo_v3(handle, &pci), 0);
    TEXT(pci.legacy, place);
  }
  int major = 0, minor = 0;
  SAME(nvmlDeviceGetCudaComputeCapability(device(1), &major, &minor), 0);
  SAME(major * 10 + minor, 86);
  void *context = NULL;
  uint64_t address = 0;
  SAME(cuDevicePrimaryCtxRetain(&context, 1), 0);
  SAME(cuCtxSetCurrent(context), 0);
  SAME(cuMemAlloc_v2(&address, 64 << 20), 0);
  Memory memory;
  SAME(nvmlDeviceGetMemoryInfo(device(1), &memory), 0);
  SAME(memory.total, 1 << 30);
  SAME(memory.used, 64 << 20);
  SAME(memory.free, (1 << 30) - (64 << 20));
  Process list[4];
  unsigned count = 0;
  SAME(nvmlDeviceGetComputeRunningProcesses_v3(device(1), &count, NULL), INSUFFICIENT_SIZE);
  SAME(count, 1);
  SAME(nvmlDeviceGetComputeRunningProcesses_v3(device(1), &count, list), 0);
  SAME(list[0].pid, getpid());
  SAME(list[0].used, 64 << 20);
  SAME(list[0].gpu_instance, 0xffffffffu);
  SAME(nvmlDeviceGetComputeRunningProcesses_v3(device(0), &count, list), 0);
  SAME(count, 0);
  SAME(cuMemFree_v2(address), 0);
  SAME(nvmlDeviceGetMemoryInfo(device(1), &memory), 0);
  SAME(memory.used, 0);
}

/* What a file describes. */
static void described(void) {
  unsigned number = 0;
  int version = 0;
  char text[96];
  Rates rates;
  Memory2 memory = {.version = sizeof memory | 2u << 24};
  Process list[4];
  SAME(nvmlInit_v2(), 0);
  SAME(nvmlSystemGetDriverVersion(text, sizeof text), 0);
  TEXT(text, "535.104.05");
  SAME(nvmlSystemGetCudaDriverVersion(&version), 0);
  SAME(version, 12020);
  SAME(nvmlDeviceGetCount_v2(&number), 0);
  SAME(number, 8);
  SAME(nvmlDeviceGetName(device(7), text, sizeof text), 0);
  TEXT(text, "NVIDIA A100-SXM4-80GB");
  SAME(nvmlDeviceGetMemoryInfo_v2(device(0), &memory), 0);
  SAME(memory.total, 80ULL << 30);
  SAME(memory.reserved, 512 << 20);
  SAME(memory.used, 5ULL << 30);
  SAME(memory.free, (75ULL << 30) - (512 << 20));
  SAME(nvmlDeviceGetUtilizationRates(device(0), &rates), 0);
  SAME(rates.gpu, 97);
  SAME(nvmlDeviceGetTemperature(device(0), 0, &number), 0);
  SAME(number, 71);
  SAME(nvmlDeviceGetPowerUsage(device(0), &number), 0);
  SAME(number, 311000);
  SAME(nvmlDeviceGetFanSpeed(device(0), &number), 0);
  SAME(number, 40);
  SAME(nvmlDeviceGetClockInfo(device(0), 1, &number), 0);
  SAME(number, 1410);
  number = 4;
  SAME(nvmlDeviceGetComputeRunningProcesses_v3(device(0), &number, list), 0);
  SAME(number, 1);
  SAME(list[0].pid, 4711);
  SAME(list[0].used, 4ULL << 30);
  number = 4;
  SAME(nvmlDeviceGetGraphicsRunningProcesses_v3(device(0), &number, list), 0);
  SAME(number, 1);
  SAME(list[0].pid, 4712);
  SAME(nvmlSystemGetProcessName(4711, text, sizeof text), 0);
  TEXT(text, "python train.py");
}

/* A device that MIG divides. */
static void mig(void) {
  unsigned number = 0, pending = 0;
  char text[128];
  Rates rates;
  Memory memory;
  Process list[4];
  Device instance = NULL, parent = NULL;
  SAME(nvmlInit_v2(), 0);
  SAME(nvmlDeviceGetMigMode(device(0), &number, &pending), 0);
  SAME(number + pending, 2);
  SAME(nvmlDeviceGetMigDeviceHandleByIndex(device(0), 1, &instance), 0);
  SAME(nvmlDeviceGetMigDeviceHandleByIndex(device(0), 2, &parent), NOT_FOUND);
  SAME(nvmlDeviceGetMigDeviceHandleByIndex(device(0), 7, &parent), INVALID_ARGUMENT);
  SAME(nvmlDeviceIsMigDeviceHandle(instance, &number), 0);
  SAME(number, 1);
  SAME(nvmlDeviceGetName(instance, text, sizeof text), 0);
  TEXT(text, "A100 MIG 2g.20gb");
  SAME(nvmlDeviceGetUUID(instance, text, sizeof text), 0);
  TEXT(text, "MIG-63616368-616c-6f74-2d65-6d752d623000");
  SAME(nvmlDeviceGetHandleByUUID(text, &parent), 0);
  SAME(parent == instance, 1);
  SAME(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instance, &parent), 0);
  SAME(parent == device(0), 1);
  SAME(nvmlDeviceGetMemoryInfo(instance, &memory), 0);
  SAME(memory.total, 20ULL << 30);
  SAME(memory.used, 3ULL << 30);
  number = 4;
  SAME(nvmlDeviceGetComputeRunningProcesses_v3(instance, &number, list), 0);
  SAME(number, 1);
  SAME(list[0].gpu_instance, 5);
  SAME(nvmlDeviceGetUtilizationRates(instance, &rates), NOT_SUPPORTED);
  SAME(nvmlDeviceGetUtilizationRates(device(0), &rates), NOT_SUPPORTED);
}

/* Errors on demand: the second call for power, the lost device 1, and every version of a function. */
static void errors(void) {
  unsigned number = 0;
  Memory memory;
  Memory2 memory2 = {.version = sizeof memory2 | 2u << 24};
  SAME(nvmlInit_v2(), 0);
  SAME(nvmlDeviceGetPowerUsage(device(0), &number), 0);
  SAME(nvmlDeviceGetPowerUsage(device(0), &number), UNKNOWN);
  SAME(nvmlDeviceGetPowerUsage(device(0), &number), 0);
  SAME(nvmlDeviceGetFanSpeed(device(1), &number), GPU_IS_LOST);
  SAME(nvmlDeviceGetMemoryInfo(device(0), &memory), NOT_SUPPORTED);
  SAME(nvmlDeviceGetMemoryInfo_v2(device(0), &memory2), NOT_SUPPORTED);
}

/* Events, of which the file gets a second one while the program waits. */
static void events(const char *file) {
  void *set = NULL;
  Event event;
  SAME(nvmlInit_v2(), 0);
  SAME(nvmlEventSetWait_v2((void *)77, &event, 0), INVALID_ARGUMENT);
  SAME(nvmlEventSetCreate(&set), 0);
  SAME(nvmlEventSetWait_v2(set, &event, 20), TIMEOUT);
  SAME(nvmlDeviceRegisterEvents(device(1), 1 << 20, set), NOT_SUPPORTED);
  SAME(nvmlDeviceRegisterEvents(device(1), 8, set), 0);
  SAME(nvmlEventSetWait_v2(set, &event, 20), 0);
  SAME(event.device == device(1), 1);
  SAME(event.kind, 8);
  SAME(event.data, 79);
  SAME(nvmlEventSetWait_v2(set, &event, 20), TIMEOUT);
  FILE *again = fopen(file, "w");
  fputs("{\"events\":[{\"device\":1,\"kind\":\"xid\",\"data\":79},{\"device\":1,\"kind\":\"xid\",\"data\":48}]}", again);
  fclose(again);
  SAME(nvmlEventSetWait_v2(set, &event, 10000), 0);
  SAME(event.data, 48);
  SAME(nvmlEventSetFree(set), 0);
  SAME(nvmlEventSetFree(set), INVALID_ARGUMENT);
}

/* A file that gets a mistake: the machine stays. */
static void changed(const char *file) {
  unsigned number = 0;
  SAME(nvmlInit_v2(), 0);
  SAME(nvmlDeviceGetCount_v2(&number), 0);
  SAME(number, 3);
  FILE *again = fopen(file, "w");
  fputs("{\"count\":", again);
  fclose(again);
  SAME(nvmlDeviceGetCount_v2(&number), 0);
  SAME(number, 3);
}

/* Limits of the group in the folder that GROUP names, on a device of 1000 bytes. */
static void limits(void) {
  char path[4096], inner[5000];
  snprintf(path, sizeof path, "%s", getenv("GROUP"));
  snprintf(inner, sizeof inner, "%s/inner", path);
  SAME(nvmlInit_v2(), 0);
  GetLimits found = {.group = path};
  SAME(nvmlDeviceGetMemoryLimits_v1(device(0), NULL), INVALID_ARGUMENT);
  SAME(nvmlDeviceGetMemoryLimits_v1(device(0), &found), 0);
  SAME(found.soft, 0);
  SAME(found.hard, -1);
  SAME(found.used, 7);
  SetLimits wanted = {.group = path, .soft = 600, .hard = 800};
  SAME(nvmlDeviceSetMemoryLimits_v1(device(0), &wanted), 0);
  /* A group without files of its own has the limits around it. */
  found.group = inner;
  SAME(nvmlDeviceGetMemoryLimits_v1(device(0), &found), 0);
  SAME(found.soft, 600);
  SAME(found.hard, 800);
  wanted.group = inner;
  SAME(nvmlDeviceSetMemoryLimits_v1(device(0), &wanted), NOT_FOUND);
  wanted = (SetLimits){.group = path, .soft = 801, .hard = 800};
  SAME(nvmlDeviceSetMemoryLimits_v1(device(0), &wanted), INVALID_ARGUMENT);
  wanted = (SetLimits){.group = path, .soft = 0, .hard = 1001};
  SAME(nvmlDeviceSetMemoryLimits_v1(device(0), &wanted), INVALID_ARGUMENT);
  wanted.group = found.group = "/nowhere";
  wanted.hard = 1000;
  SAME(nvmlDeviceSetMemoryLimits_v1(device(0), &wanted), OPERATING_SYSTEM);
  SAME(nvmlDeviceGetMemoryLimits_v1(device(0), &found), OPERATING_SYSTEM);
  found.group = "/";
  SAME(nvmlDeviceGetMemoryLimits_v1(device(0), &found), NOT_FOUND);
}

int main(int count, char **arguments) {
  const char *name = count > 1 ? arguments[1] : "";
  const char *file = getenv("CACHALOT_EMU_NVML");
  if (strcmp(name, "conditions") == 0) conditions();
  if (strcmp(name, "driver") == 0) driver();
  if (strcmp(name, "described") == 0) described();
  if (strcmp(name, "mig") == 0) mig();
  if (strcmp(name, "errors") == 0) errors();
  if (strcmp(name, "limits") == 0) limits();
  if (strcmp(name, "events") == 0) events(file);
  if (strcmp(name, "changed") == 0) changed(file);
  if (strcmp(name, "init") == 0) return nvmlInit_v2() == UNKNOWN ? 0 : 1;
  puts("well");
  return 0;
}
