"""Every bound of a transform run. Seconds and bytes."""

from __future__ import annotations

from typing import Final

DEFAULT_TIMEOUT_S: Final = 600.0
"""What the provider has, from its process's start to its end. Hashing inputs and outputs is outside of it: that ends by itself."""
GRACE_S: Final = 2.0
"""Between TERM and KILL for the provider's processes."""
END_S: Final = 5.0
"""How long killed processes may take to disappear before the run is given up as E-JOB-048."""
POLL_S: Final = 0.02
MAX_REQUEST_BYTES: Final = 1 << 20
MAX_RESULT_BYTES: Final = 32 << 20
MAX_FILES: Final = 100_000
MAX_DEPTH: Final = 32
"""Folders in folders below the output."""
CHUNK: Final = 1 << 20
