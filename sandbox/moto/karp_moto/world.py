"""What the whole overlay shares: the command line, one lock, one clock, the faults and the log."""

import heapq
import itertools
import threading
import time
from dataclasses import dataclass, field

from .faults import Faults
from .log import CallLog

ACCOUNT = "123456789012"
PARTITION = "aws"


class Clock:
    """Runs small functions later, one at a time, under the world's lock."""

    def __init__(self, lock):
        self._lock, self._due, self._order = lock, [], itertools.count()
        self._wake = threading.Condition()
        threading.Thread(target=self._run, name="clock", daemon=True).start()

    def after(self, seconds, action):
        with self._wake:
            heapq.heappush(self._due, (time.monotonic() + seconds, next(self._order), action))
            self._wake.notify()

    def _next(self):
        with self._wake:
            while True:
                wait = self._due[0][0] - time.monotonic() if self._due else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self._due)[2]
                self._wake.wait(wait)

    def _run(self):
        while True:
            action = self._next()
            with self._lock:
                try:
                    action()
                except Exception as error:  # one bad event must not stop the clock
                    print(f"karp_moto: clock: {error!r}", flush=True)


@dataclass
class Settings:
    """What a test may change while it runs: `POST /_karp/settings`. Times are in seconds."""

    boot_seconds: float = 0.3  # an instance is `pending` for so long
    shutdown_seconds: float = 0.3  # an instance is `shutting-down` for so long
    profile_seconds: float = 0  # a profile that gets its role now is known to EC2 after so long
    fargate_seconds: float = 0.5  # a Fargate profile is CREATING or DELETING for so long
    authentication_mode: str = "API_AND_CONFIG_MAP"  # how the sandbox's cluster knows its callers
    instance_page: int = 0  # reservations on a page of DescribeInstances; 0: as many as are asked for
    state_events: bool = True  # EC2 state changes are sent to EventBridge


@dataclass
class World:
    region: str
    port: int
    cluster_name: str
    api_endpoint: str
    ca_pem: bytes
    issuer: str
    issuer_key: object  # a public key, or None: web identity tokens are then not verified
    log: CallLog
    rights: object  # a RightsLog: it needs moto, which is imported late
    version: str = "1.36"
    lock: threading.RLock = field(default_factory=threading.RLock)
    faults: Faults = field(default_factory=Faults)
    settings: Settings = field(default_factory=Settings)
    prices: dict = field(default_factory=dict)  # "on-demand/TYPE", "spot/TYPE", "spot/TYPE/ZONE" -> $/h
    reservations: dict = field(default_factory=dict)  # id -> what /_karp/reservations says
    statuses: dict = field(default_factory=dict)  # instance id -> what /_karp/statuses says
    placement_groups: dict = field(default_factory=dict)  # id -> what /_karp/placement-groups says
    images: dict = field(default_factory=dict)  # id -> what /_karp/images says
    lag: object = None  # a Lag: it needs moto, which is imported late
    seed: dict = field(default_factory=dict)
    access_entries: dict = field(default_factory=dict)  # (cluster, principal ARN) -> entry
    pod_identities: dict = field(default_factory=dict)  # association id -> association
    clock: Clock = None

    def __post_init__(self):
        self.clock = Clock(self.lock)

    @property
    def ec2(self):
        from moto.ec2.models import ec2_backends

        return ec2_backends[ACCOUNT][self.region]

    @property
    def iam(self):
        from moto.iam.models import iam_backends

        return iam_backends[ACCOUNT][PARTITION]

    @property
    def eks(self):
        from moto.eks.models import eks_backends

        return eks_backends[ACCOUNT][self.region]
