"""The WSGI gate before moto: log, faults, held replies, cached catalogue answers, and the services that moto lacks."""

import http
import re
import socket
import time

from . import admin, eks, prices, sts
from .call import AwsError, Call

UNLOCKED = {"sqs", "events"}  # long polls wait inside moto; these backends guard themselves
CACHED = {"DescribeInstanceTypes", "DescribeInstanceTypeOfferings", "DescribeSpotPriceHistory"}
CACHE_SECONDS = 300  # spot prices carry the time of their answer
VOLATILE = re.compile(rb"(^|&)(StartTime|EndTime)=[^&]*")
ERROR_CODE = re.compile(rb"<Code>([^<]+)</Code>|\"__type\": ?\"(?:[^\"#]*#)?([^\"]+)\"")


class Gate:
    def __init__(self, world, moto):
        self.world, self.moto, self._cache = world, moto, {}

    def __call__(self, environ, start_response):
        if environ["PATH_INFO"].startswith("/_karp/"):
            return reply(start_response, *admin.answer(self.world, self, environ))
        call, started = Call.read(environ), time.monotonic()
        if call.service is None:
            return self.moto(environ, start_response)
        self.world.rights.add(self.world, call)
        self.world.faults.pause(call.action)
        if self.world.faults.is_cut(call, "before"):
            cut(environ)
        status, headers, body = self.answer(call, environ)
        self.world.log.add(call, status, error_code(status, headers, body), time.monotonic() - started)
        if self.world.faults.is_cut(call, "after"):
            cut(environ)
        if status < 400:
            self.world.faults.wait_if_held(call.action)
        return reply(start_response, status, headers, body)

    def answer(self, call, environ):
        try:
            if rule := self.world.faults.failure(call):
                raise AwsError(rule["code"], rule["message"], rule["status"])
            if call.action in CACHED and call.service == "ec2":
                return self.cached(call, environ)
            return self.ask(call, environ)
        except AwsError as error:
            return call.error(error)

    def ask(self, call, environ):
        if call.service in UNLOCKED:
            return run(self.moto, environ)
        with self.world.lock:
            if call.service == "sts":
                sts.check(self.world, call)
            own = {"eks": eks.answer, "pricing": prices.answer}.get(call.service)
            answer = own(self.world, call) if own else None
            return answer or run(self.moto, environ)

    def cached(self, call, environ):
        key = (call.region, VOLATILE.sub(b"", call.body))
        kept = self._cache.get(key)
        if kept and kept[0] > time.monotonic():
            return kept[1]
        answer = self.ask(call, environ)
        if answer[0] == 200:
            self._cache[key] = (time.monotonic() + CACHE_SECONDS, answer)
        return answer

    def forget(self):
        """Drops the cached answers: prices were changed."""
        self._cache.clear()


def cut(environ):
    """Ends the connection without a reply."""
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    raise ConnectionAbortedError("cut by a test")


def run(app, environ):
    """Calls a WSGI app and keeps its whole answer."""
    seen = {}

    def start(status, headers, exc_info=None):
        seen.update(status=int(status.split()[0]), headers=[h for h in headers if h[0].lower() != "content-length"])

    chunks = app(environ, start)
    try:
        body = b"".join(chunks)
    finally:
        if hasattr(chunks, "close"):
            chunks.close()
    return seen["status"], seen["headers"], body


def reply(start_response, status, headers, body):
    phrase = http.HTTPStatus(status).phrase if status in http.HTTPStatus._value2member_map_ else "Unknown"
    start_response(f"{status} {phrase}", [*headers, ("Content-Length", str(len(body)))])
    return [body]


def error_code(status, headers, body):
    if status < 400:
        return None
    named = next((v for k, v in headers if k.lower() == "x-amzn-errortype"), None)
    found = ERROR_CODE.search(body[:4000])
    return named or (next(g for g in found.groups() if g).decode() if found else str(status))
