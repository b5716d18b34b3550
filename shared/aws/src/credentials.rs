//! As whom to call AWS: keys given outright, roles that are assumed one as the other, and identities of others that STS takes for a role.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use aws_config::meta::credentials::CredentialsProviderChain;
use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, future};
use aws_sdk_sts::Client;
use aws_sdk_sts::types::{Credentials as Issued, PolicyDescriptorType, Tag};
use aws_types::os_shim_internal::{Env, Fs};

/// The session's name where none is given.
const SESSION: &str = "karp";

/// A key pair given outright, in place of the default credentials chain.
#[derive(Clone)]
pub struct AccessKeys {
    /// The public half.
    pub access_key_id: String,
    /// The secret half; never shown by `Debug`.
    pub secret_access_key: String,
    /// The session token of temporary credentials.
    pub session_token: Option<String>,
}

impl fmt::Debug for AccessKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessKeys").field("access_key_id", &self.access_key_id).finish_non_exhaustive()
    }
}

/// A role to assume; several of them form a chain, each assumed as the one before.
#[derive(Debug, Clone, Default)]
pub struct AssumeRole {
    /// The role's ARN.
    pub role_arn: String,
    /// The session's name; `karp` when absent.
    pub session_name: Option<String>,
    /// The external id that the role's trust policy may demand.
    pub external_id: Option<String>,
    /// How long the credentials live; STS's default (an hour) when absent.
    pub duration: Option<Duration>,
    /// An inline session policy (JSON) that narrows the role.
    pub policy: Option<String>,
    /// Managed policies that narrow the role.
    pub policy_arns: BTreeSet<String>,
    /// Who stands behind the session: kept through the whole chain.
    pub source_identity: Option<String>,
    /// The session's tags.
    pub tags: BTreeMap<String, String>,
    /// The keys of those tags that the next roles of the chain inherit.
    pub transitive_tag_keys: BTreeSet<String>,
}

/// A role that is assumed by the token of an identity provider, as of a CI system.
#[derive(Debug, Clone)]
pub struct WebIdentity {
    /// The role's ARN.
    pub role_arn: String,
    /// The session's name; `karp` when absent.
    pub session_name: Option<String>,
    /// The identity provider's token.
    pub token: IdentityToken,
    /// How long the credentials live; STS's default (an hour) when absent.
    pub duration: Option<Duration>,
    /// An inline session policy (JSON) that narrows the role.
    pub policy: Option<String>,
    /// Managed policies that narrow the role.
    pub policy_arns: BTreeSet<String>,
}

/// Where the token of an identity provider is.
#[derive(Clone)]
pub enum IdentityToken {
    /// The token itself; never shown by `Debug`.
    Text(String),
    /// A file that holds it, read each time: its owner renews it.
    File(PathBuf),
}

impl fmt::Debug for IdentityToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("Text(..)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

/// Where the SDK looks for profiles.
const PROFILES: &str =
    "~/.aws/config and ~/.aws/credentials, or where AWS_CONFIG_FILE and AWS_SHARED_CREDENTIALS_FILE say";

/// Gives the credentials of a profile that was named outright, which must be there: those of the machine, which come after it, may be of another
/// account.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) profile: String,
    pub(crate) chain: CredentialsProviderChain,
}

impl ProvideCredentials for Named {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.find())
    }

    fn fallback_on_interrupt(&self) -> Option<Credentials> {
        self.chain.fallback_on_interrupt()
    }
}

impl Named {
    async fn find(&self) -> Result<Credentials, CredentialsError> {
        let profile = &self.profile;
        let known = aws_config::profile::load(&Fs::real(), &Env::real(), &Default::default(), None).await;
        if known.map_err(CredentialsError::invalid_configuration)?.get_profile(profile).is_none() {
            let missing = format!("there is no profile `{profile}` in {PROFILES}");
            return Err(CredentialsError::invalid_configuration(missing));
        }
        self.chain.provide_credentials().await.map_err(|error| none_of(profile, error))
    }
}

/// Says where no credentials were found for a profile that is there; the keys of the environment were not looked at.
fn none_of(profile: &str, error: CredentialsError) -> CredentialsError {
    match error {
        CredentialsError::CredentialsNotLoaded(_) => CredentialsError::invalid_configuration(format!(
            "profile `{profile}` has no credentials, and there is no web identity token, and no container or instance that gives any (access keys \
             in the environment do not count where a profile is named)"
        )),
        other => other,
    }
}

/// Assumes a role by a client that calls as the identity before it.
#[derive(Debug)]
pub(crate) struct Assumed {
    pub(crate) sts: Client,
    pub(crate) role: AssumeRole,
}

impl ProvideCredentials for Assumed {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.assume())
    }
}

impl Assumed {
    async fn assume(&self) -> Result<Credentials, CredentialsError> {
        let role = &self.role;
        let tags = role.tags.iter().filter_map(|(key, value)| Tag::builder().key(key).value(value).build().ok());
        let transitive = role.transitive_tag_keys.iter().cloned().collect();
        let call = self
            .sts
            .assume_role()
            .role_arn(&role.role_arn)
            .role_session_name(role.session_name.as_deref().unwrap_or(SESSION))
            .set_external_id(role.external_id.clone())
            .set_duration_seconds(seconds(role.duration))
            .set_policy(role.policy.clone())
            .set_policy_arns(policies(&role.policy_arns))
            .set_source_identity(role.source_identity.clone())
            .set_tags(Some(tags.collect()).filter(|tags: &Vec<Tag>| !tags.is_empty()))
            .set_transitive_tag_keys(Some(transitive).filter(|keys: &Vec<String>| !keys.is_empty()));
        let answer = call.send().await.map_err(CredentialsError::provider_error)?;
        issued(answer.credentials, "karp-assume-role")
    }
}

/// Assumes a role by the token of an identity provider.
#[derive(Debug)]
pub(crate) struct Federated {
    pub(crate) sts: Client,
    pub(crate) role: WebIdentity,
}

impl ProvideCredentials for Federated {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.assume())
    }
}

impl Federated {
    async fn assume(&self) -> Result<Credentials, CredentialsError> {
        let role = &self.role;
        let token = match &role.token {
            IdentityToken::Text(token) => token.clone(),
            IdentityToken::File(path) => tokio::fs::read_to_string(path).await.map_err(|error| {
                CredentialsError::provider_error(format!("the token file {} cannot be read: {error}", path.display()))
            })?,
        };
        let call = self
            .sts
            .assume_role_with_web_identity()
            .role_arn(&role.role_arn)
            .role_session_name(role.session_name.as_deref().unwrap_or(SESSION))
            .web_identity_token(token.trim())
            .set_duration_seconds(seconds(role.duration))
            .set_policy(role.policy.clone())
            .set_policy_arns(policies(&role.policy_arns));
        let answer = call.send().await.map_err(CredentialsError::provider_error)?;
        issued(answer.credentials, "karp-web-identity")
    }
}

fn seconds(duration: Option<Duration>) -> Option<i32> {
    duration.and_then(|duration| i32::try_from(duration.as_secs()).ok())
}

fn policies(arns: &BTreeSet<String>) -> Option<Vec<PolicyDescriptorType>> {
    let arns: Vec<_> = arns.iter().map(|arn| PolicyDescriptorType::builder().arn(arn).build()).collect();
    Some(arns).filter(|arns| !arns.is_empty())
}

fn issued(answer: Option<Issued>, source: &'static str) -> Result<Credentials, CredentialsError> {
    let issued = answer.ok_or_else(|| CredentialsError::unhandled("STS answered without credentials"))?;
    let until = SystemTime::try_from(issued.expiration).map_err(CredentialsError::unhandled)?;
    Ok(Credentials::new(
        issued.access_key_id,
        issued.secret_access_key,
        Some(issued.session_token),
        Some(until),
        source,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_without_credentials_is_named() {
        let none = none_of("ci", CredentialsError::not_loaded("no providers in chain provided credentials"));
        assert!(format!("{none:?}").contains("profile `ci` has no credentials"), "{none:?}");
        let refused = none_of("ci", CredentialsError::provider_error("not your role"));
        assert!(matches!(refused, CredentialsError::ProviderError(_)), "{refused:?}");
    }

    #[test]
    fn debug_shows_no_secret() {
        let keys = AccessKeys {
            access_key_id: "AKIDEXAMPLE".into(),
            secret_access_key: "canary-secret".into(),
            session_token: Some("canary-token".into()),
        };
        let shown = format!("{keys:?} {:?}", IdentityToken::Text("canary-identity".into()));
        assert!(shown.contains("AKIDEXAMPLE") && !shown.contains("canary"), "{shown}");
    }
}
