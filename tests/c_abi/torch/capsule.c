/*
 * Frees a block when a Python object dies, as a tensor does: also while an error is on its way. Loaded by stacks.py.
 */
#include <cachalot_torch.h>

extern void *PyCapsule_GetPointer(void *capsule, const char *name);

void free_block_of(void *capsule) {
  cachalot_torch_free(PyCapsule_GetPointer(capsule, NULL), 1000, 0, NULL);
}
