//! Answers of the API server, named by what to do next.

use kube::core::Status;

use crate::NoCredentials;

/// A field that another manager owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldConflict {
    pub manager: String,
    pub field: String,
}

/// A field that the API server refuses, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldCause {
    pub field: String,
    pub message: String,
}

/// Why a call to the API server did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The object is not there: a delete is done, an update must create.
    #[error("not found: {message}")]
    NotFound { message: String },
    /// The API server does not serve the kind: install its CRD first.
    #[error("the API server does not know this kind; is its CRD installed? ({message})")]
    UnknownKind { message: String },
    /// Other managers own fields: ask them, or force.
    #[error("other field managers own {}", conflicts.iter().map(|c| format!("{} ({})", c.field, c.manager)).collect::<Vec<_>>().join(", "))]
    FieldConflict { conflicts: Vec<FieldConflict>, message: String },
    /// The object exists, or changed since it was read: read again.
    #[error("the object exists or has changed: {message}")]
    Stale { message: String },
    /// The object is refused: correct the fields.
    #[error("refused: {message}")]
    Invalid { causes: Vec<FieldCause>, message: String },
    /// The credentials are not accepted: renew them.
    #[error("the API server does not accept the credentials: {message}")]
    Unauthenticated { message: String },
    /// The caller may not do this: extend its RBAC or access entry.
    #[error("not allowed: {message}")]
    Forbidden { message: String },
    /// The server is busy or starting: try again.
    #[error("the API server is busy: {message}")]
    Busy { message: String },
    /// A webhook that the server has to ask does not answer: look at its pods, then try again.
    #[error("a webhook of the cluster does not answer: {message}")]
    Webhook { message: String },
    /// No answer: check address and network, or try again.
    #[error("the API server cannot be reached: {source}")]
    Unreachable { source: Box<kube::Error> },
    /// Anything else.
    #[error("{source}")]
    Unexpected { source: Box<kube::Error> },
}

impl Error {
    /// Returns whether the object is gone.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    /// Returns whether the same call may work in a moment.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Busy { .. } | Self::Webhook { .. } | Self::Unreachable { .. } | Self::Stale { .. })
    }
}

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => from_status(*status),
            // a token that ran out is asked for anew before a call
            error if let Some(why) = NoCredentials::behind(&error) => {
                let why = format!("the command of `exec` {why}");
                Self::Unreachable { source: Box::new(kube::Error::Service(why.into())) }
            }
            kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_) => {
                Self::Unreachable { source: Box::new(error) }
            }
            other => Self::Unexpected { source: Box::new(other) },
        }
    }
}

fn from_status(status: Status) -> Error {
    let causes = status.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default();
    let conflicts: Vec<FieldConflict> = causes
        .iter()
        .filter(|cause| cause.reason == "FieldManagerConflict")
        .map(|cause| FieldConflict {
            manager: manager(&cause.message),
            field: cause.field.trim_start_matches('.').to_owned(),
        })
        .collect();
    let fields = || {
        let cause = |cause: &kube::core::response::StatusCause| FieldCause {
            field: cause.field.trim_start_matches('.').to_owned(),
            message: cause.message.clone(),
        };
        causes.iter().map(cause).collect()
    };
    let message = status.message.clone();
    match status.code {
        // A path that no API serves is answered without details of an object.
        404 if status.details.as_ref().is_none_or(|details| details.name.is_empty()) => Error::UnknownKind { message },
        404 | 410 => Error::NotFound { message },
        409 if !conflicts.is_empty() => Error::FieldConflict { conflicts, message },
        409 => Error::Stale { message },
        400 | 422 => Error::Invalid { causes: fields(), message },
        401 => Error::Unauthenticated { message },
        403 if is_admission(&message) => Error::Invalid { causes: Vec::new(), message },
        403 => Error::Forbidden { message },
        500 if is_webhook(&message) => Error::Webhook { message },
        429 | 500 | 502..=504 => Error::Busy { message },
        _ => Error::Unexpected { source: Box::new(kube::Error::Api(Box::new(status))) },
    }
}

/// What the API server says where not the caller is refused, but what is written: by a webhook or policy, a quota, or a namespace that goes.
const ADMISSION: [&str; 6] = [
    "denied the request",
    "denied request",
    "exceeded quota",
    "failed quota",
    "violates PodSecurity",
    "is being terminated",
];

/// Says whether it is what was to be written that is forbidden, whoever asks.
fn is_admission(message: &str) -> bool {
    ADMISSION.iter().any(|words| message.contains(words))
}

/// Says whether the server could not ask a webhook: one of admission, or one that converts between versions of a kind.
fn is_webhook(message: &str) -> bool {
    let converts = message.contains("conversion webhook for ") && message.contains(" failed: Post ");
    converts || message.contains("failed calling webhook")
}

/// Takes the manager's name out of `conflict with "NAME" using v1`.
fn manager(message: &str) -> String {
    message.split('"').nth(1).unwrap_or(message).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(code: u16, message: &str) -> Error {
        let status = serde_json::json!({ "code": code, "message": message, "reason": "r", "details": { "name": "n" } });
        kube::Error::Api(serde_json::from_value(status).expect("a status")).into()
    }

    fn status(code: u16, causes: &[(&str, &str, &str)]) -> kube::Error {
        let causes: Vec<_> = causes
            .iter()
            .map(|(reason, message, field)| serde_json::json!({ "reason": reason, "message": message, "field": field }))
            .collect();
        let status = serde_json::json!({ "code": code, "message": "m", "reason": "r", "details": { "name": "n", "causes": causes } });
        kube::Error::Api(serde_json::from_value(status).expect("a status"))
    }

    #[test]
    fn conflicts_name_manager_and_field() {
        let cause = ("FieldManagerConflict", "conflict with \"helm\" using apps/v1", ".spec.replicas");
        let Error::FieldConflict { conflicts, .. } = Error::from(status(409, &[cause])) else { panic!("a conflict") };
        assert_eq!(conflicts, [FieldConflict { manager: "helm".into(), field: "spec.replicas".into() }]);
    }

    #[test]
    fn codes_say_what_to_do() {
        assert!(Error::from(status(404, &[])).is_not_found());
        assert!(matches!(Error::from(status(409, &[])), Error::Stale { .. }));
        assert!(matches!(Error::from(status(422, &[])), Error::Invalid { .. }));
        assert!(Error::from(status(503, &[])).is_transient());
        assert!(!Error::from(status(403, &[])).is_transient());
    }

    #[test]
    fn what_is_written_may_be_refused_whoever_writes_it() {
        for message in [
            "admission webhook \"validation.gatekeeper.sh\" denied the request: [owner] no label owner",
            "deployments.apps \"karpenter\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no label owner",
            "deployments.apps \"karpenter\" is forbidden: exceeded quota: q, requested: count/deployments.apps=1, used: count/deployments.apps=1",
            "pods \"p\" is forbidden: violates PodSecurity \"restricted:latest\": hostPort",
            "services \"s\" is forbidden: unable to create new content in namespace n because it is being terminated",
        ] {
            assert!(matches!(told(403, message), Error::Invalid { .. }), "{message}");
        }
        let roles = "deployments.apps \"karpenter\" is forbidden: User \"u\" cannot patch resource \"deployments\" in API group \"apps\"";
        assert!(matches!(told(403, roles), Error::Forbidden { .. }));
    }

    #[test]
    fn a_webhook_that_does_not_answer_is_not_a_busy_server() {
        for message in [
            "Internal error occurred: failed calling webhook \"w\": failed to call webhook: Post \"https://s.n.svc:443/v\": no endpoints \
             available for service \"s\"",
            "conversion webhook for karpenter.sh/v1beta1, Kind=NodePool failed: Post \"https://karpenter.kube-system.svc:8443/?timeout=30s\": \
             no endpoints available for service \"karpenter\"",
        ] {
            let error = told(500, message);
            assert!(matches!(error, Error::Webhook { .. }) && error.is_transient(), "{message}");
        }
        for message in ["etcdserver: request timed out", "conversion webhook for k failed: no such field"] {
            assert!(matches!(told(500, message), Error::Busy { .. }), "{message}");
        }
    }
}
