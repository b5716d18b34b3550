"""Faults that a test asks for: capacity errors, failing or slow actions, and replies that are held back.

A held call takes effect at once; only its reply waits. That is how a test loses the answer of CreateFleet.
"""

import threading
import time

HOLD_LIMIT_SECONDS = 600  # a forgotten hold lets go by itself


class Faults:
    def __init__(self):
        self._lock = threading.Condition()
        self.capacity = []  # {capacity_type, instance_type, zone: "*" is any; code; message; available}
        self._failures = []  # {action, code, message, status, times; after: calls that still pass; dry_runs: they fail too}
        self._delays = {}  # action -> seconds
        self._holds = {}  # action -> replies still to hold
        self._waiting = {}  # action -> replies held now

    def reset(self):
        with self._lock:
            self.capacity, self._failures, self._delays, self._holds = [], [], {}, {}
            self._lock.notify_all()

    def capacity_error(self, capacity_type, instance_type, zone):
        """The rule that limits this pool, or None."""
        def covers(rule, key, value):
            return rule.get(key, "*") in ("*", value)

        return next((r for r in self.capacity if covers(r, "capacity_type", capacity_type)
                     and covers(r, "instance_type", instance_type) and covers(r, "zone", zone)), None)

    def fail(self, rules):
        with self._lock:
            self._failures.extend({"times": 1, "code": "InternalError", "message": "injected by a test", "status": 500, "after": 0, "dry_runs": True, **r} for r in rules)

    def throttle(self, action, times):
        self.fail([{"action": action, "times": times, "code": None, "status": None, "message": "Request limit exceeded."}])

    def failure(self, action, dry_run=False):
        """The failure that this call of `action` must answer with, used up once."""
        with self._lock:
            for rule in self._failures:
                if rule["action"] == action and rule["times"] > 0 and (rule["dry_runs"] or not dry_run):
                    if rule["after"] > 0:
                        rule["after"] -= 1
                        return None
                    rule["times"] -= 1
                    return rule
        return None

    def delay(self, action, seconds):
        with self._lock:
            self._delays[action] = seconds

    def pause(self, action):
        time.sleep(self._delays.get(action, 0))

    def hold(self, action, times):
        with self._lock:
            self._holds[action] = times

    def release(self, action):
        with self._lock:
            self._holds.pop(action, None)
            self._lock.notify_all()

    def held(self):
        with self._lock:
            return {a: n for a, n in self._waiting.items() if n}

    def wait_if_held(self, action):
        deadline = time.monotonic() + HOLD_LIMIT_SECONDS
        with self._lock:
            if self._holds.get(action, 0) <= 0:
                return
            self._holds[action] -= 1
            self._waiting[action] = self._waiting.get(action, 0) + 1
            self._lock.wait_for(lambda: action not in self._holds, max(0, deadline - time.monotonic()))
            self._waiting[action] -= 1
