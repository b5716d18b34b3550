"""One AWS call read from a WSGI request, and answers in the dialect of its service."""

import io
import json
import re
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape

EKS_ACTIONS = [
    (method, re.compile(path + "$"), action)
    for method, path, action in [
        ("GET", "/clusters", "ListClusters"), ("POST", "/clusters", "CreateCluster"),
        ("GET", "/clusters/(?P<name>[^/]+)", "DescribeCluster"), ("DELETE", "/clusters/(?P<name>[^/]+)", "DeleteCluster"),
        ("GET", "/cluster-versions", "DescribeClusterVersions"),
        ("GET", "/clusters/(?P<name>[^/]+)/fargate-profiles", "ListFargateProfiles"),
        ("POST", "/clusters/(?P<name>[^/]+)/fargate-profiles", "CreateFargateProfile"),
        ("GET", "/clusters/(?P<name>[^/]+)/fargate-profiles/(?P<profile>[^/]+)", "DescribeFargateProfile"),
        ("DELETE", "/clusters/(?P<name>[^/]+)/fargate-profiles/(?P<profile>[^/]+)", "DeleteFargateProfile"),
        ("GET", "/clusters/(?P<name>[^/]+)/access-entries", "ListAccessEntries"),
        ("POST", "/clusters/(?P<name>[^/]+)/access-entries", "CreateAccessEntry"),
        ("GET", "/clusters/(?P<name>[^/]+)/access-entries/(?P<principal>[^/]+)", "DescribeAccessEntry"),
        ("POST", "/clusters/(?P<name>[^/]+)/access-entries/(?P<principal>[^/]+)", "UpdateAccessEntry"),
        ("DELETE", "/clusters/(?P<name>[^/]+)/access-entries/(?P<principal>[^/]+)", "DeleteAccessEntry"),
        ("GET", "/clusters/(?P<name>[^/]+)/access-entries/(?P<principal>[^/]+)/access-policies", "ListAssociatedAccessPolicies"),
        ("POST", "/clusters/(?P<name>[^/]+)/access-entries/(?P<principal>[^/]+)/access-policies", "AssociateAccessPolicy"),
        ("DELETE", "/clusters/(?P<name>[^/]+)/access-entries/(?P<principal>[^/]+)/access-policies/(?P<policy>[^/]+)", "DisassociateAccessPolicy"),
        ("GET", "/clusters/(?P<name>[^/]+)/pod-identity-associations", "ListPodIdentityAssociations"),
        ("POST", "/clusters/(?P<name>[^/]+)/pod-identity-associations", "CreatePodIdentityAssociation"),
        ("GET", "/clusters/(?P<name>[^/]+)/pod-identity-associations/(?P<association>[^/]+)", "DescribePodIdentityAssociation"),
        ("POST", "/clusters/(?P<name>[^/]+)/pod-identity-associations/(?P<association>[^/]+)", "UpdatePodIdentityAssociation"),
        ("DELETE", "/clusters/(?P<name>[^/]+)/pod-identity-associations/(?P<association>[^/]+)", "DeletePodIdentityAssociation"),
        ("GET", "/tags/(?P<arn>.+)", "ListTagsForResource"), ("POST", "/tags/(?P<arn>.+)", "TagResource"),
        ("DELETE", "/tags/(?P<arn>.+)", "UntagResource"),
    ]
]
CREDENTIAL = re.compile(r"Credential=([^/]+)/\d+/([^/]+)/([^/]+)/aws4_request")
UNSIGNED = {"AssumeRoleWithWebIdentity": "sts"}  # moto's own table knows more; these the overlay must see


class AwsError(Exception):
    """An answer that refuses: `code` is the service's error code."""

    def __init__(self, code, message, status=400):
        super().__init__(message)
        self.code, self.message, self.status = code, message, status


class Refused(Exception):
    """An override of a fleet that cannot be launched: one of the answer's `Errors`."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code, self.message = code, message


@dataclass
class Call:
    service: str
    action: str
    region: str
    access_key: str
    params: dict
    body: bytes

    @staticmethod
    def read(environ):
        """Reads the call and puts the body back for moto."""
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        scope = CREDENTIAL.search(environ.get("HTTP_AUTHORIZATION", ""))
        access_key, region, service = scope.groups() if scope else (None, None, None)
        target = environ.get("HTTP_X_AMZ_TARGET", "")
        asked = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        # a key that is repeated is a list: UntagResource names each tag so
        query = {k: v[0] if len(v) == 1 else v for k, v in asked.items()}
        if target:
            action, params = target.rpartition(".")[2], parse_json(body)
        elif "x-www-form-urlencoded" in environ.get("CONTENT_TYPE", ""):
            params = {k: v[0] for k, v in parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True).items()}
            action = params.pop("Action", None)
            service = service or UNSIGNED.get(action)
        else:
            action, params = rest_action(service, environ, {**query, **parse_json(body)})
        return Call(service, action, region, access_key, params, body)

    @property
    def is_dry_run(self):
        return str(self.params.get("DryRun", "")).lower() == "true"

    def error(self, error):
        """`error` as this service would say it: status, headers, body."""
        code, message, status = error.code, error.message, error.status
        if code is None:  # throttled
            code, status = ("RequestLimitExceeded", 503) if self.service == "ec2" else ("ThrottlingException", 400)
        if self.service == "ec2":
            body = f"<Response><Errors><Error><Code>{code}</Code><Message>{escape(message)}</Message></Error></Errors><RequestID>karp</RequestID></Response>"
            return status, [("Content-Type", "text/xml")], body.encode()
        if self.service in ("iam", "sts"):
            body = f"<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code><Message>{escape(message)}</Message></Error><RequestId>karp</RequestId></ErrorResponse>"
            return status, [("Content-Type", "text/xml")], body.encode()
        body = json.dumps({"__type": code, "message": message}).encode()
        return status, [("Content-Type", "application/json"), ("x-amzn-ErrorType", code)], body


def parse_json(body):
    try:
        value = json.loads(body or b"{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def rest_action(service, environ, params):
    """The action of a REST call and its parameters, those of the path included (the path is read undecoded: ARNs hold slashes)."""
    path = environ.get("REQUEST_URI", environ.get("PATH_INFO", "")).partition("?")[0]
    if service == "eks":
        for method, pattern, action in EKS_ACTIONS:
            if method == environ["REQUEST_METHOD"] and (found := pattern.match(path)):
                return action, {**params, **{k: unquote(v) for k, v in found.groupdict().items()}}
    return f"{environ['REQUEST_METHOD']} {path}", params


def json_answer(value, status=200):
    return status, [("Content-Type", "application/json")], json.dumps(value, default=str).encode()
