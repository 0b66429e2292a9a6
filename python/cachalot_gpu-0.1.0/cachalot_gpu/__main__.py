"""``python -m cachalot_gpu``: runs the ``cachalot`` command in place of this process."""

import os
import sys

from ._files import command_path
from .errors import CachalotError

try:
    _command = command_path()
except CachalotError as error:
    sys.exit(str(error))
os.execv(_command, ["cachalot", *sys.argv[1:]])
