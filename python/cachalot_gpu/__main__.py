"""``python -m cachalot_gpu``: runs the ``cachalot`` command in place of this process, and
``python -m cachalot_gpu doctor`` looks at the installation."""

import os
import sys

if sys.argv[1:] == ["doctor"]:
    from . import _doctor

    sys.exit(_doctor.main())

from ._files import command_path
from .errors import CachalotError

try:
    _command = command_path()
except CachalotError as error:
    sys.exit(str(error))
os.execv(_command, ["cachalot", *sys.argv[1:]])
