"""The log of AWS calls: one JSON line each in a file, and the latest ones in memory for `GET /_karp/calls`."""

import json
import threading
import time
from collections import deque

KEPT = 20_000  # calls kept in memory: a demo makes some 2,000
LONGEST_VALUE = 300  # characters of one parameter; user data and policies are longer


def shorten(value):
    if isinstance(value, str) and len(value) > LONGEST_VALUE:
        return value[:LONGEST_VALUE] + f"... ({len(value)} characters)"
    if isinstance(value, dict):
        return {k: shorten(v) for k, v in value.items()}
    if isinstance(value, list):
        return [shorten(v) for v in value]
    return value


class CallLog:
    def __init__(self, path=None):
        self._calls, self._lock, self._number = deque(maxlen=KEPT), threading.Lock(), 0
        self._file = open(path, "a", encoding="utf-8", buffering=1) if path else None

    def add(self, call, status, error, seconds):
        entry = {
            "time": round(time.time(), 3), "service": call.service, "action": call.action, "region": call.region,
            "caller": call.access_key, "status": status, "error": error, "milliseconds": round(seconds * 1000),
            "params": shorten(call.params),
        }
        with self._lock:
            self._number += 1
            entry["number"] = self._number
            self._calls.append(entry)
            if self._file:
                self._file.write(json.dumps(entry, default=str) + "\n")

    def read(self, action=None, service=None, since=0):
        """The calls with a number above `since`, oldest first."""
        with self._lock:
            return [c for c in self._calls if c["number"] > since and action in (None, c["action"]) and service in (None, c["service"])]
