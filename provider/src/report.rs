//! Failures of the AWS and Kubernetes edges, each rendered as one clear diagnostic: what was being done to which object, what the
//! other side answered, and what to do about it.

use std::fmt;

use aws_sdk_iam::error::{ProvideErrorMetadata, SdkError};
use tfplugin::{Diagnostic, Diagnostics};

/// What a failure asks of the one who met it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The object does not exist: a read answers "gone", a delete is done.
    Missing,
    /// An object of that name exists already: adopt it or choose another name.
    Exists,
    /// No answer came from the endpoint: check the address and the network.
    Unreachable,
    /// No credentials, or credentials that AWS refuses.
    Credentials,
    /// The caller may not do this: extend its policy.
    Denied,
    /// Too many calls, even after the client's own retries, or something behind the API server that does not answer.
    Throttled,
    /// Something made a moment ago is not visible everywhere yet: try again for a while.
    Unsettled,
    /// Something else still uses the object.
    InUse,
    /// The request itself is wrong: fix the attribute.
    Invalid,
    /// Terraform asked to stop.
    Interrupted,
    /// The time allowed for waiting is over.
    TimedOut,
    /// The provider lacks something that it needs for this call (region, cluster name): complete the provider block.
    Unconfigured,
    /// The object belongs to another region or account than the one that the provider is configured for.
    Elsewhere,
    /// There is no cluster of that name where the provider looks: correct its name or the region.
    NoCluster,
    /// The API server is that of another cluster than the one in which the object lives: correct the provider block.
    OtherCluster,
    /// A part of the provider block that only apply will tell; the message is the argument's name.
    NotYetKnown,
    /// Anything else, reported as it came.
    Unexpected,
}

/// One failed step, ready to be shown to a user.
#[derive(Debug, Clone)]
pub struct Failure {
    pub kind: Kind,
    /// What was attempted, as in `create role "KarpNodeRole-prod"`.
    pub doing: String,
    /// The other side's own code, if it gave one.
    pub code: Option<String>,
    /// The other side's own words.
    pub message: String,
    /// The attribute that holds the cause.
    pub attribute: Option<&'static str>,
    /// What to do, where it is better known than from the kind alone.
    pub fix: Option<String>,
}

impl Failure {
    /// Builds a failure that no service answered, but that karp itself found.
    pub fn new(kind: Kind, doing: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind, doing: doing.into(), code: None, message: message.into(), attribute: None, fix: None }
    }

    /// Translates an AWS SDK error met while `doing` something.
    pub fn aws<E>(doing: impl Into<String>, error: SdkError<E>) -> Self
    where
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        Self::from_aws(doing, karp_aws::Error::from_sdk("aws", error))
    }

    /// Translates an error of the AWS edge met while `doing` something.
    pub fn from_aws(doing: impl Into<String>, error: karp_aws::Error) -> Self {
        use karp_aws::Error as E;
        let code = error.code().map(str::to_owned);
        let (kind, message) = match error {
            E::NotFound { message, .. } => (Kind::Missing, message),
            E::AlreadyExists { message, .. } => (Kind::Exists, message),
            E::Unreachable { message, .. } => (Kind::Unreachable, message),
            E::Credentials { message, .. } => (Kind::Credentials, message),
            E::NotAuthorized { message, .. } => (Kind::Denied, message),
            E::Throttled { message, .. } => (Kind::Throttled, message),
            E::InUse { message, .. } if code.as_deref().is_some_and(is_unsettled) => (Kind::Unsettled, message),
            E::InUse { message, .. } => (Kind::InUse, message),
            E::InvalidRequest { message, .. } | E::LimitExceeded { message, .. } => (Kind::Invalid, message),
            E::Configuration { message } => (Kind::Unconfigured, message),
            E::Unexpected { message, .. } if code.as_deref().is_some_and(is_unsettled) => (Kind::Unsettled, message),
            E::Unexpected { message, .. } | E::Malformed { message, .. } => (Kind::Unexpected, message),
            other => (Kind::Unexpected, other.to_string()),
        };
        Self { kind, doing: doing.into(), code, message, attribute: None, fix: None }
    }

    /// Translates an error of the API server met while `doing` something.
    #[allow(clippy::needless_pass_by_value)] // as `map_err` hands it over
    pub fn kube(doing: impl Into<String>, error: karp_kube::Error) -> Self {
        use karp_kube::Error as E;
        let message = error.to_string();
        let (kind, fix) = match error {
            E::NotFound { .. } => (Kind::Missing, None),
            E::UnknownKind { .. } => (Kind::Unsettled, Some("Let this resource depend on `karp_crds`.")),
            E::FieldConflict { .. } => (
                Kind::InUse,
                Some("Let the other manager give the fields up, or set `force_conflicts = true` to take them over."),
            ),
            E::Stale { .. } => (
                Kind::InUse,
                Some("Somebody else changed it at the same time: look who does, then plan and apply again."),
            ),
            E::Invalid { .. } => (Kind::Invalid, None),
            E::Unauthenticated { .. } => (
                Kind::Credentials,
                Some(
                    "The API server does not know this identity: give it an access entry, or set `kubernetes` in the provider block.",
                ),
            ),
            E::Forbidden { .. } => {
                (Kind::Denied, Some("Allow this to the identity that runs Terraform, by an access policy or RBAC."))
            }
            E::Busy { .. } => (
                Kind::Throttled,
                Some(
                    "The API server has too much to do, or is just starting: wait until `kubectl get --raw /readyz` answers ok, then apply \
                     again, with a lower `-parallelism` where it was the number of calls.",
                ),
            ),
            E::Webhook { .. } => (
                Kind::Throttled,
                Some(
                    "Look whether the pods behind it run, and whether the control plane reaches them, then apply again.",
                ),
            ),
            E::Unreachable { .. } => (
                Kind::Unreachable,
                Some(
                    "Check `cluster_name` (or `kubernetes`) in the provider block and the network between here and the API server. To plan \
                     without it, set `offline_plan = true`; state was left as it was.",
                ),
            ),
            E::Unexpected { .. } => (Kind::Unexpected, None),
        };
        Self { kind, doing: doing.into(), code: None, message, attribute: None, fix: fix.map(str::to_owned) }
    }

    /// Points the diagnostic at an attribute.
    #[must_use]
    pub fn at(mut self, attribute: &'static str) -> Self {
        self.attribute = Some(attribute);
        self
    }

    /// Replaces the advice of the kind by better one.
    #[must_use]
    pub fn with_fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }

    /// Reads the failure as another kind.
    #[must_use]
    pub fn of_kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// Reads the failure as "not settled yet" when `test` says so: IAM and EKS use general codes for it.
    #[must_use]
    pub fn unsettled_if(mut self, test: impl FnOnce(&Self) -> bool) -> Self {
        if test(&self) {
            self.kind = Kind::Unsettled;
        }
        self
    }

    /// Tells whether the object is gone.
    pub fn is_missing(&self) -> bool {
        self.kind == Kind::Missing
    }

    /// Tells whether the failure lies in the way to AWS rather than in this resource, so that every resource would meet it.
    pub fn concerns_all(&self) -> bool {
        use Kind::{Credentials, Elsewhere, NoCluster, OtherCluster, Unreachable};
        matches!(self.kind, Unreachable | Credentials | Elsewhere | NoCluster | OtherCluster)
    }

    /// Tells whether the same may be answered a moment later.
    pub fn passes(&self) -> bool {
        matches!(self.kind, Kind::Unreachable | Kind::Throttled)
    }

    /// Gives the short line of the diagnostic.
    pub fn summary(&self) -> String {
        let what = match self.kind {
            Kind::Unreachable => "No answer from the endpoint",
            Kind::Credentials => "No usable credentials",
            Kind::Denied => "Not authorised",
            Kind::Exists => "The object exists already",
            Kind::Elsewhere => "Wrong region or account",
            Kind::NoCluster => "No such cluster",
            Kind::OtherCluster => "Another cluster",
            Kind::Interrupted => "Interrupted",
            Kind::TimedOut => "Gave up waiting",
            Kind::Unconfigured => "The provider is not configured for this",
            _ => return format!("Could not {}", self.doing),
        };
        format!("{what}: could not {}", self.doing)
    }

    /// Gives the explanation: what was answered, then what to do.
    pub fn detail(&self) -> String {
        let answer = match &self.code {
            Some(code) => format!("{code}: {}", self.message),
            None => self.message.clone(),
        };
        match self.fix.as_deref().or_else(|| self.kind.advice()) {
            Some(fix) => format!("{answer}\n\n{fix}"),
            None => answer,
        }
    }
}

impl From<Failure> for Diagnostics {
    fn from(failure: Failure) -> Self {
        Diagnostic::error(failure.summary(), failure.detail()).at(failure.attribute.unwrap_or_default()).into()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.summary(), self.message)
    }
}

impl std::error::Error for Failure {}

impl Kind {
    fn advice(self) -> Option<&'static str> {
        match self {
            Self::Unreachable => Some(
                "Check `region` and `endpoints` of the provider block and the network between here and AWS. To plan without AWS, set \
                 `offline_plan = true`; state was left as it was.",
            ),
            Self::Credentials => Some(
                "Set `profile`, `assume_role`, or `access_key` and `secret_key` in the provider block, or AWS_PROFILE or \
                 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment. Temporary credentials that have expired are fetched anew by \
                 signing in again, such as with `aws sso login`. State was left as it was.",
            ),
            Self::Denied => Some("Allow this action in the policy of the identity that runs Terraform."),
            Self::Exists => Some(
                "Set `adopt = true` to take the existing object over, import it with `import { ... }`, or choose another name.",
            ),
            Self::Throttled => Some(
                "AWS limits how often this may be called: wait a minute, then apply again with a lower `-parallelism`.",
            ),
            Self::Unsettled => Some(
                "AWS still answers so after a minute, which is too long for something that is merely new: check that what the answer names \
                 exists and is right, then apply again. What exists by now is kept in the state.",
            ),
            Self::TimedOut => Some(
                "Look at what holds it up, then apply again; where it only needs longer, raise the limit in `timeouts`. What exists by now \
                 is kept in the state.",
            ),
            Self::Interrupted => {
                Some("Nothing is wrong with it: apply again to go on. What exists by now is kept in the state.")
            }
            Self::InUse => Some("Remove what still uses it first, then run this again."),
            Self::Unconfigured => Some("Set the missing argument in the provider block or on the resource."),
            Self::NotYetKnown => Some("It must be known when this is applied."),
            Self::Missing
            | Self::Invalid
            | Self::Elsewhere
            | Self::NoCluster
            | Self::OtherCluster
            | Self::Unexpected => None,
        }
    }
}

/// Codes that mean "again in a moment": another change of the same object is under way, or its name is not free yet.
fn is_unsettled(code: &str) -> bool {
    matches!(
        code,
        "QueueDeletedRecently"
            | "AWS.SimpleQueueService.QueueDeletedRecently"
            | "ConcurrentModification"
            | "ConcurrentModificationException"
            | "EntityTemporarilyUnmodifiable"
            | "EntityTemporarilyUnmodifiableException"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_of(code: &str) -> Kind {
        Failure::from_aws("x", karp_aws::Error::from_code("a:B", code, "m".into())).kind
    }

    #[test]
    fn a_code_says_what_to_do() {
        assert_eq!(kind_of("NoSuchEntity"), Kind::Missing);
        assert_eq!(kind_of("InvalidSubnetID.NotFound"), Kind::Missing);
        assert_eq!(kind_of("UnrecognizedClientException"), Kind::Credentials);
        assert_eq!(kind_of("DeleteConflict"), Kind::InUse);
        assert_eq!(kind_of("AWS.SimpleQueueService.QueueDeletedRecently"), Kind::Unsettled);
        assert_eq!(kind_of("SomethingNew"), Kind::Unexpected);
    }

    #[test]
    fn what_the_cluster_itself_lacks_is_not_laid_to_calls_or_rights() {
        let webhook = karp_kube::Error::Webhook { message: "failed calling webhook \"w\"".to_owned() };
        let detail = Failure::kube("apply Deployment \"d\"", webhook).detail();
        assert!(detail.contains("pods behind it run") && !detail.contains("-parallelism"), "{detail}");
        let quota = karp_kube::Error::Invalid { causes: Vec::new(), message: "exceeded quota: q".to_owned() };
        let failure = Failure::kube("apply Deployment \"d\"", quota);
        assert_eq!((failure.kind, failure.detail()), (Kind::Invalid, "refused: exceeded quota: q".to_owned()));
    }

    #[test]
    fn a_diagnostic_names_object_answer_and_fix() {
        let failure = Failure::new(Kind::Exists, "create role \"a\"", "Role with name a already exists.").at("name");
        assert_eq!(failure.summary(), "The object exists already: could not create role \"a\"");
        assert!(failure.detail().contains("adopt = true"), "{}", failure.detail());
    }
}
