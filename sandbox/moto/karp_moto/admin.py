"""The tests' door, `/_karp/...`. GET reads, POST sets; bodies and answers are JSON. README.md of this folder lists it."""

import dataclasses
import json
import traceback
from urllib.parse import parse_qs

from . import instances, inventory, placement, reservations, ssm, statuses, sts
from .call import json_answer


def answer(world, gate, environ):
    name, method = environ["PATH_INFO"].removeprefix("/_karp/"), environ["REQUEST_METHOD"]
    length = int(environ.get("CONTENT_LENGTH") or 0)
    query = {k: v[0] for k, v in parse_qs(environ.get("QUERY_STRING", "")).items()}
    action = (GET if method == "GET" else POST).get(name)
    if action is None:
        return json_answer({"error": f"no {method} /_karp/{name}", "get": sorted(GET), "post": sorted(POST)}, 404)
    try:
        body = json.loads(environ["wsgi.input"].read(length) or b"null")
        if name in UNLOCKED:
            return json_answer(action(world, gate, query if method == "GET" else body))
        with world.lock:
            return json_answer(action(world, gate, query if method == "GET" else body))
    except Exception as error:  # the caller is a test: say what was wrong
        traceback.print_exc()
        return json_answer({"error": f"{type(error).__name__}: {error}"}, 400)


def settings(world, gate, body):
    names = {f.name for f in dataclasses.fields(world.settings)}
    for key, value in (body or {}).items():
        if key not in names:
            raise ValueError(f"no setting {key}; there are {sorted(names)}")
        setattr(world.settings, key, value)
    return dataclasses.asdict(world.settings)


def set_prices(world, gate, body):
    world.prices = dict(body or {})
    gate.forget()
    return world.prices


def set_capacity(world, gate, body):
    world.faults.capacity = list(body or [])
    return world.faults.capacity


def throttle(world, gate, body):
    for action, times in body.items():
        world.faults.throttle(action, times)
    return {}


def delay(world, gate, body):
    world.faults.delay(body["action"], float(body["seconds"]))
    return {}


def hold(world, gate, body):
    world.faults.hold(body["action"], int(body.get("times", 1_000_000)))
    return {}


def release(world, gate, body):
    world.faults.release(body["action"])
    return {}


def reset_faults(world, gate, body):
    world.faults.reset()
    reservations.replace(world, [])
    statuses.replace(world, [])
    placement.replace(world, [])
    world.lag.reset()
    for name in ("profile_seconds", "instance_page", "authentication_mode"):
        setattr(world.settings, name, getattr(type(world.settings), name))
    return {}


def interrupt(world, gate, body):
    instances.interrupt(world, body["instance_id"], float(body.get("after_seconds", 120)))
    return {}


def calls(world, gate, query):
    return world.log.read(query.get("action"), query.get("service"), int(query.get("since", 0)))


UNLOCKED = {"ready", "calls", "held", "hold", "release"}
GET = {
    "ready": lambda world, gate, query: {"ready": True},
    "seed": lambda world, gate, query: world.seed,
    "calls": calls,
    "held": lambda world, gate, query: world.faults.held(),
    "instances": lambda world, gate, query: instances.describe(world),
    "instance": lambda world, gate, query: instances.one(world, world.ec2.get_instance(query["id"])),
    "instance-states": lambda world, gate, query: instances.states(world),
    "inventory": lambda world, gate, query: inventory.read(world),
    "fargate-profiles": lambda world, gate, query: inventory.fargate_profiles(world),
    "settings": lambda world, gate, query: settings(world, gate, {}),
    "prices": lambda world, gate, query: world.prices,
    "capacity": lambda world, gate, query: world.faults.capacity,
    "reservations": lambda world, gate, query: reservations.listed(world),
}
POST = {
    "settings": settings, "prices": set_prices, "capacity": set_capacity, "throttle": throttle, "delay": delay,
    "fail": lambda world, gate, body: world.faults.fail(body) or {},
    "cut": lambda world, gate, body: world.faults.cut(body) or {},
    "rates": lambda world, gate, body: world.faults.rates(body) or {},
    "silence": lambda world, gate, body: world.faults.silence(body) or {},
    "hide": lambda world, gate, body: world.lag.hide(body) or {},
    "hold": hold, "release": release, "reset-faults": reset_faults, "interrupt": interrupt,
    "reservations": lambda world, gate, body: reservations.replace(world, body),
    "statuses": lambda world, gate, body: statuses.replace(world, body),
    "placement-groups": lambda world, gate, body: placement.replace(world, body),
    "images": lambda world, gate, body: ssm.replace_images(world, body),
    "parameters": lambda world, gate, body: ssm.set_parameters(world, body),
    "token-review": lambda world, gate, body: sts.review(world, body),
}
