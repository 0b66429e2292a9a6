/*
 * A memory checker for the tests, in the place of compute-sanitizer: a library that NVTX_INJECTION64_PATH names. It keeps
 * the heaps and the regions that it is told of, refuses what a checker would refuse, and hands its list out.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 4096

/* The interface, as nvToolsExtMem.h of NVTX 3 lays it out. */
typedef struct module_segment {
  size_t id, count;
  intptr_t *functions;
} module_segment;

typedef struct module_info {
  uint16_t version, size, module, compatible;
  size_t segment_count;
  module_segment *segments;
  void *get_export;
  const void *extra;
} module_info;

typedef struct span {
  size_t bytes;
  uintptr_t at;
} span;

typedef struct heap_description {
  uint16_t compatible, size;
  uint32_t reserved, usage, kind;
  size_t span_size;
  const span *place;
  uint32_t category, text_kind;
  const char *text;
} heap_description;

typedef struct register_batch {
  uint16_t compatible, size;
  uint32_t kind;
  uintptr_t heap;
  size_t count, element_size;
  const span *elements;
  uintptr_t *handles;
} register_batch;

typedef struct unregister_batch {
  uint16_t compatible, size;
  uint32_t kind;
  size_t count, element_size;
  const uintptr_t *elements;
} unregister_batch;

typedef struct named_region {
  uint32_t kind, text_kind;
  uintptr_t at;
  const char *text;
  uint32_t category, reserved;
} named_region;

typedef struct name_batch {
  uint16_t compatible, size;
  uint32_t reserved;
  size_t count, element_size;
  const named_region *elements;
  uintptr_t more;
} name_batch;

static span heaps[MOST], regions[MOST];
static char last_name[64];
static size_t named_count; /* the latest names in a row that are equal */
static uintptr_t owner[MOST]; /* the heap of each region */
static size_t heap_count, region_count, heaps_named;
static unsigned mistakes;

static void mistake(const char *what) {
  fprintf(stderr, "nvtx_tool: %s\n", what);
  ++mistakes;
}

static int lies_in(const span *inner, const span *outer) {
  return inner->at >= outer->at && inner->at + inner->bytes <= outer->at + outer->bytes;
}

static int overlaps(const span *one, const span *other) {
  return one->at < other->at + other->bytes && other->at < one->at + one->bytes;
}

/* Whether the calling thread has a context. */
static int has_context(void) {
  void *driver = dlopen(getenv("CACHALOT_LIBCUDA"), RTLD_LAZY | RTLD_NOLOAD);
  int (*get)(void **) = NULL;
  void *context = NULL;
  if (driver != NULL) {
    *(void **)&get = dlsym(driver, "cuCtxGetCurrent");
  }
  return get && get(&context) == 0 && context;
}

static uintptr_t heap_register(void *domain, const heap_description *of) {
  size_t at;
  (void)domain;
  if (!has_context()) {
    mistake("the thread has no context");
  }
  if (of->compatible != 0x0102 || of->size != sizeof *of || of->usage != 1 || of->kind != 1 || of->span_size != sizeof(span)) {
    mistake("a heap is described wrongly");
  }
  for (at = 0; at < heap_count; ++at) {
    if (overlaps(&heaps[at], of->place)) {
      mistake("two heaps overlap");
    }
  }
  /* A checker may refuse what it has no room for. */
  if (getenv("NVTX_TOOL_REFUSES") != NULL && ++heaps_named % 2 == 0) {
    return 0;
  }
  if (heap_count < MOST) {
    heaps[heap_count++] = *of->place;
  }
  return of->place->at;
}

static void region_forget(size_t at) {
  --region_count;
  regions[at] = regions[region_count];
  owner[at] = owner[region_count];
}

static void heap_unregister(void *domain, uintptr_t heap) {
  size_t at = 0, region = 0;
  (void)domain;
  while (at < heap_count && heaps[at].at != heap) {
    ++at;
  }
  if (at == heap_count) {
    mistake("an unknown heap is unregistered");
    return;
  }
  while (region < region_count) {
    if (owner[region] == heap) {
      mistake("a heap with a region is unregistered");
      region_forget(region);
    } else {
      ++region;
    }
  }
  heaps[at] = heaps[--heap_count];
}

static void regions_register(void *domain, const register_batch *batch) {
  size_t at, heap = 0;
  (void)domain;
  while (heap < heap_count && heaps[heap].at != batch->heap) {
    ++heap;
  }
  if (batch->compatible != 0x0102 || batch->size != sizeof *batch || batch->kind != 1 || batch->count != 1 ||
      batch->element_size != sizeof(span) || heap == heap_count || !lies_in(batch->elements, &heaps[heap])) {
    mistake("a region is described wrongly");
    return;
  }
  for (at = 0; at < region_count; ++at) {
    if (overlaps(&regions[at], batch->elements)) {
      mistake("two regions overlap");
    }
  }
  if (region_count < MOST) {
    owner[region_count] = batch->heap;
    regions[region_count++] = *batch->elements;
  }
}

static void regions_unregister(void *domain, const unregister_batch *batch) {
  size_t at = 0;
  (void)domain;
  if (batch->compatible != 0x0102 || batch->size != sizeof *batch || batch->kind != 1 || batch->count != 1 ||
      batch->element_size != sizeof(uintptr_t)) {
    mistake("a region is unregistered wrongly");
    return;
  }
  while (at < region_count && regions[at].at != batch->elements[0]) {
    ++at;
  }
  if (at == region_count) {
    mistake("an unknown region is unregistered");
    return;
  }
  region_forget(at);
}

static void regions_name(void *domain, const name_batch *batch) {
  (void)domain;
  if (batch->compatible != 0x0102 || batch->size != sizeof *batch || batch->count != 1 ||
      batch->element_size != sizeof(named_region) || strlen(batch->elements->text) >= sizeof last_name) {
    mistake("a region is named wrongly");
    return;
  }
  named_count = strcmp(last_name, batch->elements->text) == 0 ? named_count + 1 : 1;
  strcpy(last_name, batch->elements->text);
}

int InitializeInjectionNvtxExtension(module_info *module) {
  intptr_t *functions;
  if (module->module != 1 || module->version != 3 || module->size != sizeof *module || module->segment_count != 1) {
    return 0;
  }
  functions = module->segments[0].functions;
  functions[0] = (intptr_t)heap_register;
  functions[1] = (intptr_t)heap_unregister;
  functions[3] = (intptr_t)regions_register;
  functions[5] = (intptr_t)regions_unregister;
  functions[6] = (intptr_t)regions_name;
  return 1;
}

/* For the test: how many heaps and regions there are, the length of the region at an address or 0, and the mistakes. */
size_t nvtx_tool_heaps(void) {
  return heap_count;
}

size_t nvtx_tool_regions(void) {
  return region_count;
}

size_t nvtx_tool_region(uintptr_t address) {
  size_t at;
  for (at = 0; at < region_count; ++at) {
    if (regions[at].at == address) {
      return regions[at].bytes;
    }
  }
  return 0;
}

/* How often a region was named so, since one got another name. */
size_t nvtx_tool_named(const char *name) {
  return strcmp(name, last_name) == 0 ? named_count : 0;
}

unsigned nvtx_tool_mistakes(void) {
  return mistakes;
}
