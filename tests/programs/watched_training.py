"""Replaces student.worker, and records beside the events what the process opened and loaded.

Runs as ``labelwall.tests.programs.watched_training``. Rooms of the package are recorded by name.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from labelwall.tests.programs import watched

if __name__ == "__main__":
    sys.addaudithook(watched.listen)  # before anything of ours is loaded
    from labelwall.student import worker

    worker.main(sys.argv[1:])
    place = Path(sys.argv[1])
    found = {
        "opened": watched.within([str(place.parents[1])]),
        "all": len(watched.OPENED),
        "loaded": sorted({name.removeprefix("labelwall.").split(".")[0] for name in sys.modules}),
        "variables": [name for name in os.environ if "LABELWALL" in name],
    }
    (place / f"watched_{os.environ['LOCAL_RANK']}.json").write_text(json.dumps(found))
