"""STS as IRSA and EKS tokens need it: a web identity is checked against provider and trust policy; a token is reviewed for the API server."""

import base64
import calendar
import fnmatch
import json
import re
import time
from urllib.parse import parse_qs, unquote, urlparse

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.hashes import SHA256
from moto.sts.models import sts_backends

from .call import AwsError
from .world import ACCOUNT, PARTITION

CLUSTER_ADMIN = "arn:aws:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"


def check(world, call):
    """Refuses an AssumeRoleWithWebIdentity that AWS would refuse; moto lets everything pass."""
    if call.action != "AssumeRoleWithWebIdentity":
        return
    claims = read_token(world, call.params.get("WebIdentityToken", ""))
    issuer = claims.get("iss", "").removeprefix("https://")
    provider = next((p for p in world.iam.open_id_providers.values() if p.url.rstrip("/") == issuer.rstrip("/")), None)
    if provider is None:
        raise AwsError("InvalidIdentityToken", f"No OpenIDConnect provider found in your account for https://{issuer}")
    audiences = claims.get("aud") if isinstance(claims.get("aud"), list) else [claims.get("aud")]
    if not set(audiences) & set(provider.client_id_list):
        raise AwsError("InvalidIdentityToken", "Incorrect token audience")
    role = next((r for r in world.iam.get_roles() if r.arn == call.params.get("RoleArn")), None)
    if role is None or not trusts(role, provider, {f"{provider.url}:{k}": v for k, v in {**claims, "aud": audiences}.items()}):
        raise AwsError("AccessDenied", "Not authorized to perform sts:AssumeRoleWithWebIdentity", 403)


def read_token(world, token):
    """The claims of a service account's token; the signature is verified when the issuer's key is known."""
    try:
        header, payload, signature = token.split(".")
        claims = json.loads(decode(payload))
        if world.issuer_key is not None:
            world.issuer_key.verify(decode(signature), f"{header}.{payload}".encode(), padding.PKCS1v15(), SHA256())
    except InvalidSignature as error:
        raise AwsError("InvalidIdentityToken", "The token's signature is not the issuer's") from error
    except (ValueError, TypeError) as error:
        raise AwsError("InvalidIdentityToken", "The ID Token provided is not a valid JWT") from error
    if claims.get("exp", 0) < time.time():
        raise AwsError("ExpiredTokenException", f"Token expired: current date/time {time.time():.0f} must be before the expiration {claims.get('exp')}")
    return claims


def decode(part):
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def trusts(role, provider, claims):
    try:
        policy = json.loads(role.assume_role_policy_document)
    except ValueError:
        return False
    return any(allows(statement, provider, claims) for statement in listed(policy.get("Statement")))


def allows(statement, provider, claims):
    principal = statement.get("Principal")
    federated = listed(principal.get("Federated")) if isinstance(principal, dict) else []
    action = any(a in ("sts:AssumeRoleWithWebIdentity", "sts:*", "*") for a in listed(statement.get("Action")))
    conditions = statement.get("Condition") or {}
    return statement.get("Effect") == "Allow" and action and provider.arn in federated and all(
        holds(operator, claims.get(key), listed(wanted)) for operator, keys in conditions.items() for key, wanted in keys.items())


def holds(operator, value, wanted):
    """One condition; an operator that is not known here does not hold."""
    values = listed(value)
    match = {"StringEquals": str.__eq__, "StringLike": fnmatch.fnmatchcase}.get(operator.rpartition(":")[2])
    return bool(match and values and any(match(str(v), str(w)) for v in values for w in wanted))


def listed(value):
    return value if isinstance(value, list) else [] if value is None else [value]


def review(world, body):
    """Answers a TokenReview for a token of `aws eks get-token`'s kind, by the access entries: the API server's authentication webhook."""
    status = {"authenticated": False}
    try:
        arn = caller_of(world, body.get("spec", {}).get("token", ""))
        entry = next((e for (cluster, principal), e in world.access_entries.items() if cluster == world.cluster_name and principal == arn), None)
        if entry is None:
            status["error"] = f"{arn} has no access entry"
        else:
            groups = [*entry["kubernetesGroups"], *(["system:masters"] if CLUSTER_ADMIN in entry["policies"] else []), "system:authenticated"]
            status = {"authenticated": True, "user": {"username": entry["username"], "uid": arn, "groups": groups}}
    except AwsError as error:
        status["error"] = error.message
    return {"apiVersion": body.get("apiVersion", "authentication.k8s.io/v1"), "kind": "TokenReview", "status": status}


def caller_of(world, token):
    """The IAM principal behind a token: a presigned GetCallerIdentity with the cluster's name among the signed headers."""
    if not token.startswith("k8s-aws-v1."):
        raise AwsError("AccessDenied", "not a token of EKS")
    try:
        query = {k: v[0] for k, v in parse_qs(urlparse(decode(token.removeprefix("k8s-aws-v1.")).decode()).query).items()}
    except (ValueError, UnicodeDecodeError) as error:
        raise AwsError("AccessDenied", "the token holds no presigned URL") from error
    signed = unquote(query.get("X-Amz-SignedHeaders", "")).split(";")
    if query.get("Action") != "GetCallerIdentity" or "x-k8s-aws-id" not in signed:
        raise AwsError("AccessDenied", "the token must be GetCallerIdentity with x-k8s-aws-id signed")
    issued = time.strptime(query.get("X-Amz-Date", "19700101T000000Z"), "%Y%m%dT%H%M%SZ")
    if time.time() - calendar.timegm(issued) > 15 * 60:  # the authenticator's own limit
        raise AwsError("AccessDenied", "the token is older than 15 minutes")
    _, arn, account = sts_backends[ACCOUNT][PARTITION].get_caller_identity(query.get("X-Amz-Credential", "").split("/")[0], world.region)
    assumed = re.fullmatch(r"arn:aws:sts::\d+:assumed-role/([^/]+)/.+", arn)
    if not assumed:
        return arn
    return next((r.arn for r in world.iam.get_roles() if r.name == assumed[1]), f"arn:aws:iam::{account}:role/{assumed[1]}")
