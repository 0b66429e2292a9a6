"""Out of memory under `set_per_process_memory_fraction`, on a card that is nearly empty."""

import torch
from common import dump, new_training, train_step

torch.cuda.memory._record_memory_history()
total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction(6 * 2**30 / total)
model, optimizer = new_training()
try:
    for batch in [4, 8, 12, 16, 24, 32]:
        train_step(model, optimizer, batch=batch)
except torch.cuda.OutOfMemoryError as error:
    print(str(error).splitlines()[0])
    dump()
else:
    raise SystemExit("no request failed")
