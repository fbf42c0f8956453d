"""Exit codes of the command line and of the job's own processes."""

from __future__ import annotations

from typing import Final

DONE: Final = 0
REFUSED: Final = 1
TAMPERED: Final = 2
USAGE: Final = 64
BUG: Final = 70
TRY_LATER: Final = 75

# Inside the job. 2 is what the documents call a launch failure: nothing of the user's code ran.
LAUNCH_FAILED: Final = 2
PREEMPTED: Final = 85
"""Every rank saved after the warning signal and asks to be requeued."""
CLAIMED: Final = 86
"""Another job has this attempt already; this copy did nothing."""
PEER_LOST: Final = 87
"""A rank or node disappeared; this one stopped within the bound."""
