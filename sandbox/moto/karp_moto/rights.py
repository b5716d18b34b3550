"""The log of rights: what AWS would have asked of each call that a role made, and the policies which the role had (`--rights-log FILE`).

Two kinds of JSON lines: `{"policy": DIGEST, "documents": [..]}` when a role's policies are new to the log, then `{"policy": DIGEST, "role":
NAME, "action": .., "requests": [{"action", "resource", "context"}]}` for each call. Callers without a role are not in it.
"""

import hashlib
import json
import threading
import traceback
from contextlib import nullcontext

from moto.sts.models import sts_backends

from . import asked
from .world import ACCOUNT, PARTITION

STATELESS = {"sqs", "ssm", "pricing", "eks"}  # what they ask is in the call itself, and some of them wait for long


class RightsLog:
    def __init__(self, path=None):
        self._file = open(path, "a", encoding="utf-8", buffering=1) if path else None
        self._lock, self._known = threading.Lock(), set()

    def add(self, world, call):
        """Notes a call that is about to be made: the tags that things have now are those that count."""
        if self._file is None:
            return
        stateless = call.service in STATELESS or str(call.action).startswith("Describe")
        try:
            if role := role_of(world, call.access_key):
                with nullcontext() if stateless else world.lock:
                    requests = asked.asked(world, call)
                self._write(role, call, requests)
        except Exception as error:  # the call goes on; who reads the log finds the line that is no right
            traceback.print_exc()
            self._line({"broken": f"{call.service}:{call.action}: {error!r}"})

    def _write(self, role, call, requests):
        documents = documents_of(role)
        digest = hashlib.sha256(json.dumps(documents, sort_keys=True).encode()).hexdigest()[:16]
        with self._lock:
            if digest not in self._known:
                self._known.add(digest)
                self._line({"policy": digest, "documents": documents})
            self._line({"policy": digest, "role": role.name, "action": f"{call.service}:{call.action}", "requests": requests})

    def _line(self, value):
        self._file.write(json.dumps(value) + "\n")


def role_of(world, access_key):
    """The role whose session a key belongs to, or None."""
    session = access_key and sts_backends[ACCOUNT][PARTITION].get_assumed_role_from_access_key(access_key)
    # a list of its own: others make roles while this one looks
    return next((r for r in list(world.iam.get_roles()) if r.arn == session.role_arn), None) if session else None


def documents_of(role):
    """The policies of a role, in an order that does not change."""
    attached = [version.document for policy in list(role.managed_policies.values()) for version in policy.versions if version.is_default]
    texts = [*list(role.policies.values()), *attached]
    return sorted((json.loads(text) if isinstance(text, str) else text for text in texts), key=lambda one: json.dumps(one, sort_keys=True))
