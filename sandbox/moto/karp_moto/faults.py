"""Faults that a test asks for: capacity errors, failing or slow actions, replies that are held back, and connections that are cut.

A held call takes effect at once; only its reply waits. That is how a test loses the answer of CreateFleet; a connection that is cut `after`
loses it for good. Rules with `where` are for calls of which some parameter holds this text (a pool's name, say), so that tests may share an AWS.
"""

import fnmatch
import threading
import time

HOLD_LIMIT_SECONDS = 600  # a forgotten hold lets go by itself
WITHOUT_END = 1_000_000_000  # of rules that end by time


class Faults:
    def __init__(self):
        self._lock = threading.Condition()
        self.capacity = []  # {capacity_type, instance_type, zone, subnet: "*" is any, patterns go; code; message; available}
        self._failures = []  # {action, where, code, message, status, times, until; after: calls that still pass; dry_runs: they fail too}
        self._cuts = []  # {action, where, when: before or after the effect, times, until}
        self._silences = []  # {where, times, until}: fleets that launch nothing and say no reason
        self._delays = {}  # action -> seconds
        self._holds = {}  # action -> replies still to hold
        self._waiting = {}  # action -> replies held now
        self._rates = {}  # action -> {per_second, burst, left, since}: what EC2's token bucket of it has

    def reset(self):
        with self._lock:
            self.capacity, self._failures, self._cuts, self._silences, self._delays, self._holds, self._rates = [], [], [], [], {}, {}, {}
            self._lock.notify_all()

    def capacity_error(self, **pool):
        """The rule that limits this pool, given by capacity type, instance type, zone and subnet; or None."""
        def covers(rule):
            return all(fnmatch.fnmatchcase(str(value), rule.get(key, "*")) for key, value in pool.items())

        return next(filter(covers, self.capacity), None)

    def fail(self, rules):
        """Adds failures; one of no times takes back those before of its action and `where`."""
        usual = {"code": "InternalError", "message": "injected by a test", "status": 500, "after": 0, "dry_runs": True}
        with self._lock:
            for rule in rules:
                if rule.get("times") == 0:
                    self._failures = [r for r in self._failures if (r["action"], r.get("where")) != (rule["action"], rule.get("where"))]
                else:
                    self._failures.append({**usual, **timed(rule)})

    def throttle(self, action, times):
        """Throttles the next calls of an action, or all of them for a while: `times` is a number, or {"seconds"}."""
        span = times if isinstance(times, dict) else {"times": times}
        self.fail([{"action": action, "code": None, "status": None, "message": "Request limit exceeded.", **span}])

    def rates(self, wanted):
        """Counts calls by token buckets as EC2 does, full ones: {action: {"per_second", "burst"}}; all others are taken as they come."""
        with self._lock:
            self._rates = {a: {**rate, "left": float(rate["burst"]), "since": time.monotonic()} for a, rate in wanted.items()}

    def is_one_too_many(self, call):
        """Whether the bucket of this call's action is empty; else a token is taken."""
        rate = self._rates.get(call.action)
        if rate is None:
            return False
        now = time.monotonic()
        rate["left"] = min(rate["burst"], rate["left"] + (now - rate["since"]) * rate["per_second"])
        rate["since"] = now
        if rate["left"] < 1:
            return True
        rate["left"] -= 1
        return False

    def failure(self, call):
        """The failure that this call must answer with, used up once."""
        with self._lock:
            if self.is_one_too_many(call):
                return {"code": None, "status": None, "message": "Request limit exceeded."}
            for rule in self._failures:
                if covers_call(rule, call) and (rule["dry_runs"] or not call.is_dry_run):
                    if rule["after"] > 0:
                        rule["after"] -= 1
                        return None
                    rule["times"] -= 1
                    return rule
        return None

    def cut(self, rules):
        with self._lock:
            self._cuts.extend({"when": "after", **timed(rule)} for rule in rules)

    def is_cut(self, call, when):
        """Whether the connection of this call is cut now, used up once."""
        with self._lock:
            rule = next((r for r in self._cuts if r["when"] == when and covers_call(r, call)), None)
            if rule:
                rule["times"] -= 1
            return rule is not None

    def silence(self, rules):
        with self._lock:
            self._silences.extend(timed(rule) for rule in rules)

    def is_silent(self, params):
        """Whether this fleet launches nothing and says no reason, used up once."""
        with self._lock:
            def meant(rule):
                return rule["times"] > 0 and time.monotonic() < rule["until"] and holds(params, rule.get("where", ""))

            rule = next(filter(meant, self._silences), None)
            if rule:
                rule["times"] -= 1
            return rule is not None

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


def timed(rule):
    """A rule with how often it holds: once, as often as it says, or for `seconds` from now."""
    seconds = rule.get("seconds")
    return {"times": WITHOUT_END if seconds else 1, "until": time.monotonic() + float(seconds) if seconds else float("inf"), **rule}


def covers_call(rule, call):
    """Whether a rule holds for this call; the action `*` is any of EC2's."""
    named = rule["action"] == call.action or (rule["action"] == "*" and call.service == "ec2")
    return named and rule["times"] > 0 and time.monotonic() < rule["until"] and holds(call.params, rule.get("where", ""))


def holds(value, text):
    """Whether a text is part of any value in here."""
    if isinstance(value, dict):
        return not text or any(holds(inner, text) for inner in value.values())
    if isinstance(value, list):
        return any(holds(inner, text) for inner in value)
    return text in str(value)
