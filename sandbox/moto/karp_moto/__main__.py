"""`python -m karp_moto --port 5000 --cluster-name sandbox ...`: AWS on 127.0.0.1."""

import argparse
import os
import signal
import sys
from pathlib import Path


def arguments():
    parser = argparse.ArgumentParser(prog="karp_moto", description="karp's AWS for the sandbox: moto with what it lacks")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--region", default="us-east-1")
    parser.add_argument("--cluster-name", default="sandbox")
    parser.add_argument("--api-endpoint", default="https://127.0.0.1:6443", help="the API server that the EKS cluster names")
    parser.add_argument("--ca-file", type=Path, help="its CA, PEM")
    parser.add_argument("--issuer", help="the issuer of its service account tokens; default: the API endpoint")
    parser.add_argument("--issuer-key", type=Path, help="the key that signs them, public or private, PEM; without it signatures are not verified")
    parser.add_argument("--kubernetes-version", default="1.36")
    parser.add_argument("--log", type=Path, help="the file for the log of calls, one JSON line each")
    parser.add_argument("--rights-log", type=Path, help="the file for what AWS would ask of the calls that roles make, JSON lines")
    return parser.parse_args()


def environment(port):
    """moto reads these when it is imported."""
    os.environ.update(MOTO_IAM_LOAD_MANAGED_POLICIES="true", MOTO_EC2_ENABLE_INSTANCE_TYPE_VALIDATION="true",
                      MOTO_ENABLE_AMI_VALIDATION="true", MOTO_EC2_LOAD_DEFAULT_AMIS="false", MOTO_PORT=str(port))


def issuer_key(path):
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

    if path is None:
        return None
    pem = path.read_bytes()
    return load_pem_private_key(pem, None).public_key() if b"PRIVATE KEY" in pem else load_pem_public_key(pem)


def build(args):
    """The world with its seed, and the WSGI application."""
    environment(args.port)
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

    from . import eks, events, fleet, iam, instances, lag, placement, prices, reservations, seed, statuses
    from .gate import Gate
    from .log import CallLog
    from .rights import RightsLog
    from .world import World

    world = World(
        region=args.region, port=args.port, cluster_name=args.cluster_name, api_endpoint=args.api_endpoint,
        ca_pem=args.ca_file.read_bytes() if args.ca_file else b"", issuer=args.issuer or args.api_endpoint,
        issuer_key=issuer_key(args.issuer_key), log=CallLog(args.log), rights=RightsLog(args.rights_log), version=args.kubernetes_version, lag=lag.Lag())
    for part in (instances, events, prices, reservations, statuses, lag, placement, fleet, eks, iam):
        part.install(world)
    seed.seed(world)
    return world, Gate(world, DomainDispatcherApplication(create_backend_app))


def main():
    args = arguments()
    _, gate = build(args)
    from moto.moto_server.werkzeug_app import MotoRequestHandler  # noqa: PLC0415
    from werkzeug.serving import make_server

    class Quiet(MotoRequestHandler):
        def log_request(self, *_):
            """The call log says more."""

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = make_server("127.0.0.1", args.port, gate, threaded=True, request_handler=Quiet)
    server.daemon_threads = True
    print(f"karp_moto: serving on 127.0.0.1:{args.port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
