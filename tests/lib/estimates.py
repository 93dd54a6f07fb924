"""What earlier runs took, in files of build/test-logs. They say only how long something may take, so one that a killed run left
half written counts as none."""

import json
import os


def load(file):
    try:
        seen = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return seen if isinstance(seen, dict) else {}


def save(file, seen):
    new = file.with_name(f"{file.name}.{os.getpid()}")
    new.write_text(json.dumps(seen))
    new.replace(file)
