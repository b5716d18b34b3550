//! What went wrong, named by what the caller does next.

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_sts::operation::assume_role::AssumeRoleError;
use aws_smithy_runtime_api::client::result::{DispatchFailure, SdkError};
use aws_smithy_types::error::display::DisplayErrorContext;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use karp_domain::fleet::{self, Lesson};
use karp_domain::pace::THROTTLED_WAIT;
use std::time::Duration;

/// How long to wait when the service could not be reached or answered nonsense.
const OUTAGE_WAIT: Duration = Duration::from_secs(15);

/// A failed call, or a failed reading of its answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// EC2 has no capacity of this kind here now: choose another offering.
    #[error("{action}: {code}: {message}")]
    InsufficientCapacity { action: &'static str, code: String, message: String },
    /// The call rate was exceeded: wait, then the same call again.
    #[error("{action}: {code}: {message}")]
    Throttled { action: &'static str, code: String, message: String },
    /// This process may not change anything now, since another may lead: nothing was sent.
    #[error("{action}: this process does not lead any more: nothing was asked of AWS")]
    Barred { action: &'static str },
    /// The named thing does not exist: create it, or take its absence as the answer.
    #[error("{action}: {code}: {message}")]
    NotFound { action: &'static str, code: String, message: String },
    /// The thing exists already: read and adopt it, or choose another name.
    #[error("{action}: {code}: {message}")]
    AlreadyExists { action: &'static str, code: String, message: String },
    /// Something else still uses the thing, or changes it at this moment: wait for that, then again.
    #[error("{action}: {code}: {message}")]
    InUse { action: &'static str, code: String, message: String },
    /// The client token was used with another request: list by tag and adopt what is there.
    #[error("{action}: {code}: {message}")]
    TokenReused { action: &'static str, code: String, message: String },
    /// An account limit was met: somebody must raise it or make room.
    #[error("{action}: {code}: {message}")]
    LimitExceeded { action: &'static str, code: String, message: String },
    /// The caller's policy does not allow the call: somebody must change IAM.
    #[error("{action}: {code}: {message}")]
    NotAuthorized { action: &'static str, code: String, message: String },
    /// The credentials are missing, expired or unknown to AWS: somebody must configure them.
    #[error("{action}: no usable AWS credentials: {message}")]
    Credentials { action: &'static str, message: String },
    /// AWS refused the request as it is: the spec must change.
    #[error("{action}: {code}: {message}")]
    InvalidRequest { action: &'static str, code: String, message: String },
    /// The endpoint could not be reached or did not answer in time: the call may or may not have happened.
    #[error("{action}: {message}")]
    Unreachable { action: &'static str, message: String },
    /// The endpoint answered with something that is no AWS error (an emulator or proxy that does not know the call).
    #[error("{action}: the endpoint answered HTTP {status} without an AWS error code: it may not implement this call")]
    NotImplemented { action: &'static str, status: u16 },
    /// An answer or value that cannot be read.
    #[error("{action}: {message}")]
    Malformed { action: &'static str, message: String },
    /// The settings do not make up a client.
    #[error("{message}")]
    Configuration { message: String },
    /// Any other error code of the service.
    #[error("{action}: {code}: {message}")]
    Unexpected { action: &'static str, code: String, message: String },
}

/// What makes another try worth while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// Decide again with what was learnt (the offering is unavailable, the thing exists or is gone).
    Resolve,
    /// The same call again after a wait.
    After(Duration),
    /// Nothing helps before the spec, the settings, or the account changes.
    OnSpecChange,
}

impl Error {
    /// Builds a [`Error::Configuration`].
    #[must_use]
    pub fn configuration(message: impl Into<String>) -> Self {
        Self::Configuration { message: message.into() }
    }

    /// Builds a [`Error::Malformed`].
    #[must_use]
    pub fn malformed(action: &'static str, message: impl Into<String>) -> Self {
        Self::Malformed { action, message: message.into() }
    }

    /// Says when the call is worth another try.
    #[must_use]
    pub const fn retry(&self) -> Retry {
        match self {
            Self::InsufficientCapacity { .. }
            | Self::NotFound { .. }
            | Self::AlreadyExists { .. }
            | Self::TokenReused { .. } => Retry::Resolve,
            Self::Throttled { .. } | Self::Barred { .. } | Self::InUse { .. } => Retry::After(THROTTLED_WAIT),
            Self::Unreachable { .. } | Self::Unexpected { .. } | Self::Malformed { .. } => Retry::After(OUTAGE_WAIT),
            // Something on the way answered in AWS's place: the call may have come through.
            Self::NotImplemented { status: 502..=504, .. } => Retry::After(OUTAGE_WAIT),
            Self::NotAuthorized { .. }
            | Self::Credentials { .. }
            | Self::InvalidRequest { .. }
            | Self::LimitExceeded { .. }
            | Self::NotImplemented { .. }
            | Self::Configuration { .. } => Retry::OnSpecChange,
        }
    }

    /// Returns AWS's own code, when the service gave one.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::InsufficientCapacity { code, .. }
            | Self::Throttled { code, .. }
            | Self::NotFound { code, .. }
            | Self::AlreadyExists { code, .. }
            | Self::InUse { code, .. }
            | Self::TokenReused { code, .. }
            | Self::LimitExceeded { code, .. }
            | Self::NotAuthorized { code, .. }
            | Self::InvalidRequest { code, .. }
            | Self::Unexpected { code, .. } => Some(code),
            Self::Barred { .. }
            | Self::Credentials { .. }
            | Self::Unreachable { .. }
            | Self::NotImplemented { .. }
            | Self::Malformed { .. }
            | Self::Configuration { .. } => None,
        }
    }

    /// Says whether the named thing does not exist.
    #[must_use]
    pub const fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    /// Says whether the call may have taken effect although it failed here.
    #[must_use]
    pub const fn outcome_unknown(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::Malformed { .. }
                | Self::Unexpected { .. }
                | Self::NotImplemented { status: 502..=504, .. }
        )
    }

    /// Says whether the same call may succeed in a moment: it was one too many, or EC2 or something on the way to it is not well.
    #[must_use]
    pub const fn may_pass(&self) -> bool {
        match self {
            Self::Throttled { .. } | Self::Unreachable { .. } | Self::Malformed { .. } => true,
            Self::NotImplemented { status, .. } => *status >= 500,
            _ => false,
        }
    }

    /// Classifies an SDK error of `action`, written as in IAM: `ec2:CreateFleet`.
    pub fn from_sdk<E, R>(action: &'static str, error: SdkError<E, R>) -> Self
    where
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
        R: std::fmt::Debug + Status + Send + Sync + 'static,
    {
        match error {
            SdkError::ServiceError(context) => match context.err().code() {
                Some(code) => {
                    let message = context.err().message().unwrap_or("no message").to_owned();
                    Self::from_code(action, code, message)
                }
                None => Self::NotImplemented { action, status: context.raw().status() },
            },
            SdkError::ResponseError(context) => {
                let status = context.raw().status();
                Self::Malformed { action, message: format!("HTTP {status} with an answer that cannot be read") }
            }
            SdkError::DispatchFailure(failure) => match credentials_error(&failure) {
                Some(error) => Self::Credentials { action, message: credentials_message(error) },
                None => Self::Unreachable { action, message: dispatch_message(&failure) },
            },
            SdkError::TimeoutError(_) => Self::Unreachable { action, message: "no answer in time".into() },
            SdkError::ConstructionFailure(failure) => {
                let message = format!("{failure:?}");
                Self::InvalidRequest { action, code: "RequestNotBuilt".into(), message }
            }
            other => Self::Unreachable { action, message: DisplayErrorContext(&other).to_string() },
        }
    }

    /// Classifies an error code of AWS.
    #[must_use]
    pub fn from_code(action: &'static str, code: &str, message: String) -> Self {
        let code = fleet::known_as(code, &message).to_owned();
        match Kind::of(&code, &message) {
            Kind::Capacity => Self::InsufficientCapacity { action, code, message },
            Kind::Throttle => Self::Throttled { action, code, message },
            Kind::Absent => Self::NotFound { action, code, message },
            Kind::Present => Self::AlreadyExists { action, code, message },
            Kind::InUse => Self::InUse { action, code, message },
            Kind::Token => Self::TokenReused { action, code, message },
            Kind::Limit => Self::LimitExceeded { action, code, message },
            Kind::Policy => Self::NotAuthorized { action, code, message },
            Kind::Credentials => Self::Credentials { action, message: format!("{code}: {message}") },
            Kind::Request => Self::InvalidRequest { action, code, message },
            Kind::Other => Self::Unexpected { action, code, message },
        }
    }
}

/// Gives the HTTP status of a raw answer.
pub trait Status {
    /// Returns the HTTP status.
    fn status(&self) -> u16;
}

impl Status for aws_smithy_runtime_api::http::Response {
    fn status(&self) -> u16 {
        self.status().as_u16()
    }
}

fn credentials_error(failure: &DispatchFailure) -> Option<&CredentialsError> {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(failure.as_connector_error()?);
    while let Some(current) = source {
        if let Some(error) = current.downcast_ref() {
            return Some(error);
        }
        source = current.source();
    }
    None
}

fn credentials_message(error: &CredentialsError) -> String {
    match error {
        // The SDK's own words are that its chain of providers provided none.
        CredentialsError::CredentialsNotLoaded(_) => {
            "none were found: not in the settings, the environment, the shared AWS files or a web identity token, and no container or \
             instance gives any"
                .to_owned()
        }
        other => with_causes(other),
    }
}

/// The connector's own word ("other", "io error") says nothing that its cause does not say better.
fn dispatch_message(failure: &DispatchFailure) -> String {
    let Some(error) = failure.as_connector_error() else { return "the request was not sent".into() };
    std::error::Error::source(error).map_or_else(|| error.to_string(), with_causes)
}

/// Writes an error with its causes, down to what STS answered where a role was refused.
fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut message = String::new();
    let mut source = Some(error);
    while let Some(current) = source {
        let refused = current.downcast_ref::<AssumeRoleError>().and_then(|refused| Some((refused.code()?, refused)));
        let text = match refused {
            Some((code, refused)) => format!("sts:AssumeRole: {code}: {}", refused.message().unwrap_or("no message")),
            None => current.to_string(),
        };
        if message.is_empty() {
            message = text;
        } else if !message.ends_with(&text) {
            message = format!("{message}: {text}");
        }
        source = current.source().filter(|_| refused.is_none());
    }
    message
}

enum Kind {
    Capacity,
    Throttle,
    Absent,
    Present,
    InUse,
    Token,
    Limit,
    Policy,
    Credentials,
    Request,
    Other,
}

impl Kind {
    /// The codes are those of the EC2 API reference's "Error codes" and of the other services' models; EC2 builds many by a rule
    /// (`InvalidSubnetID.NotFound`), so suffixes decide after the exact names.
    fn of(code: &str, message: &str) -> Self {
        match code {
            // the caller is known, the image is somebody else's and not shared
            "AuthFailure" if message.contains("Not authorized for images") => Self::Policy,
            "NoSuchEntity"
            | "NoSuchEntityException"
            | "ResourceNotFoundException"
            | "NotFoundException"
            | "ParameterNotFound"
            | "QueueDoesNotExist"
            | "AWS.SimpleQueueService.NonExistentQueue" => Self::Absent,
            "EntityAlreadyExists"
            | "EntityAlreadyExistsException"
            | "ResourceAlreadyExistsException"
            | "QueueNameExists"
            | "QueueAlreadyExists" => Self::Present,
            "DeleteConflict"
            | "DependencyViolation"
            | "ResourceInUseException"
            | "ConcurrentModification"
            | "ConcurrentModificationException"
            | "IncorrectState"
            | "IncorrectInstanceState"
            | "AWS.SimpleQueueService.QueueDeletedRecently"
            | "QueueDeletedRecently"
            | "VolumeInUse" => Self::InUse,
            "IdempotentParameterMismatch" | "IdempotencyTokenMismatch" => Self::Token,
            "InstanceLimitExceeded"
            | "LimitExceeded"
            | "LimitExceededException"
            | "ResourceLimitExceeded"
            | "VolumeLimitExceeded"
            | "LaunchTemplateVersionLimitExceeded" => Self::Limit,
            "AccessDenied"
            | "AccessDeniedException"
            | "UnauthorizedOperation"
            | "Client.UnauthorizedOperation"
            | "NotAuthorized"
            | fleet::NO_SPOT_ROLE
            | "OptInRequired"
            // of a queue whose key may not be used, or is off or gone: the queue itself is there
            | "KMS.AccessDeniedException"
            | "KmsAccessDenied"
            | "KMS.DisabledException"
            | "KmsDisabled"
            | "KMS.NotFoundException"
            | "KmsNotFound" => Self::Policy,
            "AuthFailure"
            | "InvalidClientTokenId"
            | "UnrecognizedClientException"
            | "ExpiredToken"
            | "ExpiredTokenException"
            | "RequestExpired"
            | "SignatureDoesNotMatch"
            | "InvalidSignatureException"
            | "MissingAuthenticationToken"
            | "IncompleteSignature" => Self::Credentials,
            "ValidationException"
            | "ValidationError"
            | "InvalidParameterException"
            | "InvalidInput"
            | "InvalidRequestException"
            | "MalformedPolicyDocument"
            | "MissingParameter"
            | "UnknownParameter"
            | "UserDataLimitExceeded"
            | "DryRunOperation" => Self::Request,
            other => match fleet::lesson(other) {
                Lesson::Missing(_) => Self::Capacity,
                Lesson::Wait => Self::Throttle,
                Lesson::Nothing => Self::of_shape(other),
            },
        }
    }

    fn of_shape(code: &str) -> Self {
        if code.ends_with(".NotFound") || code.ends_with(".NotFoundException") || code.ends_with(".Unknown") {
            Self::Absent
        } else if code.ends_with(".Duplicate") || code.ends_with(".AlreadyExistsException") {
            Self::Present
        } else if code.ends_with(".InUse") {
            Self::InUse
        } else if code.starts_with("Invalid") || code.ends_with(".Malformed") {
            Self::Request
        } else {
            Self::Other
        }
    }
}

/// Joins two answers. Of two failures the one tells that another try may cure: where one thing may not be done and the other fails for a moment,
/// the moment passes.
///
/// # Errors
/// The failure, or the one of both that passes.
pub fn both<A, B>(one: Result<A, Error>, other: Result<B, Error>) -> Result<(A, B), Error> {
    match (one, other) {
        (Ok(one), Ok(other)) => Ok((one, other)),
        (Err(one), Err(other)) if one.retry() == Retry::OnSpecChange => Err(other),
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_smithy_runtime_api::client::result::ConnectorError;
    use aws_smithy_runtime_api::http::Response;
    use aws_smithy_types::error::metadata::ErrorMetadata;

    #[test]
    fn of_two_failures_the_one_tells_that_passes() {
        let failed = |code: &str| Err::<u8, _>(Error::from_code("iam:Test", code, "m".to_owned()));
        let told = |one, other| both(one, other).map_err(|error| error.code().map(str::to_owned).unwrap_or_default());
        let (denied, throttled) = ("AccessDenied", "Throttling");
        assert_eq!(told(failed(denied), failed(throttled)), Err(throttled.to_owned()));
        assert_eq!(told(failed(throttled), failed(denied)), Err(throttled.to_owned()));
        assert_eq!(told(failed(denied), Ok(2)), Err(denied.to_owned()));
        assert_eq!(told(Ok(1), failed(throttled)), Err(throttled.to_owned()));
        assert_eq!(told(Ok(1), Ok(2)), Ok((1, 2)));
    }

    #[test]
    fn codes_lead_to_the_right_next_step() {
        let resolve = Retry::Resolve;
        let wait = Retry::After(THROTTLED_WAIT);
        let outage = Retry::After(OUTAGE_WAIT);
        let stop = Retry::OnSpecChange;
        for (code, expected) in [
            ("InsufficientInstanceCapacity", resolve),
            ("MaxSpotInstanceCountExceeded", resolve),
            ("InsufficientFreeAddressesInSubnet", resolve),
            ("InsufficientCidrBlocks", resolve),
            ("UnsupportedOperation", resolve),
            ("IdempotentParameterMismatch", resolve),
            ("InvalidInstanceID.NotFound", resolve),
            ("InvalidLaunchTemplateName.NotFoundException", resolve),
            ("InvalidLaunchTemplateName.AlreadyExistsException", resolve),
            ("NoSuchEntity", resolve),
            ("QueueDoesNotExist", resolve),
            ("RequestLimitExceeded", wait),
            ("DependencyViolation", wait),
            ("ResourceInUseException", wait),
            ("UnauthorizedOperation", stop),
            ("AccessDeniedException", stop),
            ("KMS.AccessDeniedException", stop),
            ("KMS.NotFoundException", stop),
            ("ExpiredToken", stop),
            ("InvalidParameterValue", stop),
            ("InvalidAMIID.Malformed", stop),
            ("LimitExceeded", stop),
            ("SomethingNobodyHasSeen", outage),
        ] {
            let error = Error::from_code("ec2:Test", code, "m".into());
            assert_eq!(error.retry(), expected, "{code}: {error:?}");
        }
    }

    #[test]
    fn an_image_that_is_not_shared_is_no_fault_of_the_credentials() {
        let told = |message: &str| Error::from_code("ec2:RunInstances", "AuthFailure", message.to_owned());
        let image = told("Not authorized for images: [ami-1]");
        assert!(matches!(&image, Error::NotAuthorized { code, .. } if code == "AuthFailure"), "{image:?}");
        let caller = told("AWS was not able to validate the provided access credentials");
        assert!(matches!(caller, Error::Credentials { .. }), "{caller:?}");
    }

    fn not_sent(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        let error = SdkError::<ErrorMetadata, Response>::dispatch_failure(ConnectorError::other(cause.into(), None));
        Error::from_sdk("sts:Test", error)
    }

    #[test]
    fn missing_credentials_are_told_in_words() {
        let none = not_sent(CredentialsError::not_loaded("no providers in chain provided credentials")).to_string();
        assert!(none.contains("no usable AWS credentials: none were found"), "{none}");
        let profile = CredentialsError::invalid_configuration("profile `nope` was not defined");
        let profile = not_sent(profile).to_string();
        assert!(profile.ends_with(": profile `nope` was not defined"), "{profile}");
        let refused = ErrorMetadata::builder().code("AccessDenied").message("not your role").build();
        let refused = not_sent(CredentialsError::provider_error(AssumeRoleError::generic(refused))).to_string();
        assert!(refused.ends_with(": sts:AssumeRole: AccessDenied: not your role"), "{refused}");
        let unreachable = not_sent("connection refused");
        assert!(
            matches!(&unreachable, Error::Unreachable { message, .. } if message == "connection refused"),
            "{unreachable}"
        );
        for told in [none, profile, refused] {
            assert!(!told.contains("other:"), "{told}");
        }
    }

    #[test]
    fn a_lost_answer_is_told_from_a_refusal() {
        assert!(Error::Unreachable { action: "ec2:CreateFleet", message: "reset".into() }.outcome_unknown());
        assert!(!Error::from_code("ec2:CreateFleet", "UnauthorizedOperation", String::new()).outcome_unknown());
        let answered = |status| Error::NotImplemented { action: "ec2:CreateFleet", status };
        assert!(
            answered(504).outcome_unknown() && matches!(answered(504).retry(), Retry::After(_)),
            "a gateway's answer"
        );
        assert!(!answered(501).outcome_unknown() && answered(501).retry() == Retry::OnSpecChange);
    }
}
