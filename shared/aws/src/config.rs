//! Where AWS is and as whom to call it: one loader for the provider and the controller.

use crate::change::Permit;
use crate::credentials::{Assumed, Federated, Named};
use crate::error::Error;
use crate::pace::Pace;
use aws_config::BehaviorVersion;
use aws_config::ecs::EcsCredentialsProvider;
use aws_config::imds::credentials::ImdsCredentialsProvider;
use aws_config::meta::credentials::CredentialsProviderChain;
use aws_config::profile::ProfileFileCredentialsProvider;
use aws_config::provider_config::ProviderConfig;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::web_identity_token::WebIdentityTokenCredentialsProvider;
use aws_credential_types::Credentials;
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_types::SdkConfig;
use aws_types::app_name::AppName;
use aws_types::origin::Origin;
use aws_types::region::Region;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use crate::credentials::{AccessKeys, AssumeRole, IdentityToken, WebIdentity};
pub use crate::transport::Transport;

/// Connecting takes longer than this only when the endpoint is not there (the AWS SDKs' own default is 3.1 s).
const CONNECT_TIMEOUT: Duration = Duration::from_millis(3_100);
/// One attempt: longer than an SQS long poll (20 s) and than the full page of instance types (some 6 MB).
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(40);
/// All attempts of one call together.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(150);
/// Attempts for each call when nothing is configured: enough for a throttle of some seconds, short enough to say what is wrong.
const DEFAULT_MAX_ATTEMPTS: u32 = 5;
/// The longest wait between two attempts.
pub(crate) const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// The AWS services that karp calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Service {
    /// Amazon EC2.
    Ec2,
    /// Amazon EKS.
    Eks,
    /// Amazon EventBridge.
    EventBridge,
    /// AWS Identity and Access Management.
    Iam,
    /// AWS Price List.
    Pricing,
    /// Amazon SQS.
    Sqs,
    /// AWS Systems Manager (public parameters of machine images).
    Ssm,
    /// AWS Security Token Service.
    Sts,
}

impl Service {
    /// Every service, in the order of its name.
    pub const ALL: [Self; 8] =
        [Self::Ec2, Self::Eks, Self::EventBridge, Self::Iam, Self::Pricing, Self::Sqs, Self::Ssm, Self::Sts];

    /// Returns the name that configuration uses, as in `endpoints = { ec2 = "…" }`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ec2 => "ec2",
            Self::Eks => "eks",
            Self::EventBridge => "eventbridge",
            Self::Iam => "iam",
            Self::Pricing => "pricing",
            Self::Sqs => "sqs",
            Self::Ssm => "ssm",
            Self::Sts => "sts",
        }
    }

    /// Finds the service called `name`; `events` is EventBridge's name in its own endpoints.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "events" => Some(Self::EventBridge),
            other => Self::ALL.into_iter().find(|service| service.name() == other),
        }
    }
}

/// How to reach AWS. `Settings::default()` follows the environment and the shared configuration files, as the AWS CLI does.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// The region; else `AWS_REGION`, `AWS_DEFAULT_REGION`, then the profile's. The instance metadata service is never asked.
    pub region: Option<String>,
    /// The profile in the shared configuration files, whose credentials then count before the environment's; else `AWS_PROFILE`, then `default`.
    pub profile: Option<String>,
    /// A key pair in place of the default chain (environment, profile, web identity, container, instance).
    pub access_keys: Option<AccessKeys>,
    /// A role that the token of an identity provider stands for, in place of the default chain.
    pub web_identity: Option<WebIdentity>,
    /// Roles to assume, in order.
    pub assume_roles: Vec<AssumeRole>,
    /// Endpoint overrides per service; they win over `AWS_ENDPOINT_URL_<SERVICE>` and `AWS_ENDPOINT_URL`.
    pub endpoints: BTreeMap<Service, String>,
    /// Whether to call the endpoints that keep to FIPS 140; else `AWS_USE_FIPS_ENDPOINT`, then the profile. An endpoint that is overridden is
    /// called as it is.
    pub use_fips: Option<bool>,
    /// Whether to call the endpoints that have IPv6 too; else `AWS_USE_DUALSTACK_ENDPOINT`, then the profile.
    pub use_dual_stack: Option<bool>,
    /// Through which proxies, and by whose certificates.
    pub transport: Transport,
    /// Attempts per call, the first included.
    pub max_attempts: Option<u32>,
    /// Whether EC2 may be asked to change anything: asked before each attempt.
    pub permit: Permit,
    /// What the user agent calls this program: letters, digits and dashes.
    pub program: Option<&'static str>,
}

impl Settings {
    fn max_attempts(&self) -> u32 {
        self.max_attempts.unwrap_or(DEFAULT_MAX_ATTEMPTS).max(1)
    }
}

/// The clients of the services, all built from one configuration; cheap to clone.
#[derive(Clone)]
pub struct Clients {
    inner: Arc<Inner>,
}

struct Inner {
    config: SdkConfig,
    endpoints: BTreeMap<Service, String>,
    region: String,
    credentials: SharedCredentialsProvider,
    ec2: aws_sdk_ec2::Client,
    ec2_once: aws_sdk_ec2::Client,
    eks: aws_sdk_eks::Client,
    iam: aws_sdk_iam::Client,
    sqs: aws_sdk_sqs::Client,
    ssm: aws_sdk_ssm::Client,
    pricing: aws_sdk_pricing::Client,
    sts: aws_sdk_sts::Client,
    pace: Pace,
    permit: Permit,
    max_attempts: u32,
}

impl Clients {
    /// Builds the clients. Reads the environment and the shared configuration files; contacts nothing.
    ///
    /// # Errors
    /// [`Error::Configuration`] when no region is given anywhere, or an endpoint, a proxy, the CA bundle or the program's name cannot be used.
    pub async fn load(settings: &Settings) -> Result<Self, Error> {
        for (service, url) in &settings.endpoints {
            check_endpoint(*service, url)?;
        }
        let config = base_config(settings).await?;
        let region = config.region().map(ToString::to_string).ok_or_else(|| {
            Error::configuration("no AWS region: set the region, AWS_REGION, or the profile's region")
        })?;
        let config = assume(config, settings);
        let credentials = config
            .credentials_provider()
            .ok_or_else(|| Error::configuration("the AWS SDK was built without a credentials provider"))?;
        let attempts = (settings.permit.clone(), settings.max_attempts());
        Ok(Self::build(config, settings.endpoints.clone(), region, credentials, attempts))
    }

    /// Returns clients that call another region with the same credentials. Contacts nothing.
    #[must_use]
    pub fn in_region(&self, region: &str) -> Self {
        let inner = &self.inner;
        let config = inner.config.to_builder().region(Region::new(region.to_owned())).build();
        let attempts = (inner.permit.clone(), inner.max_attempts);
        Self::build(config, inner.endpoints.clone(), region.to_owned(), inner.credentials.clone(), attempts)
    }

    fn build(
        config: SdkConfig,
        endpoints: BTreeMap<Service, String>,
        region: String,
        credentials: SharedCredentialsProvider,
        (permit, max_attempts): (Permit, u32),
    ) -> Self {
        let of = |service| for_service(&config, &endpoints, service);
        let ec2 = aws_sdk_ec2::Client::new(&of(Service::Ec2));
        let once = ec2.config().to_builder().retry_config(RetryConfig::disabled()).build();
        let pricing = of(Service::Pricing).into_builder().region(Region::new(pricing_region(&region))).build();
        Self {
            inner: Arc::new(Inner {
                ec2,
                ec2_once: aws_sdk_ec2::Client::from_conf(once),
                eks: aws_sdk_eks::Client::new(&of(Service::Eks)),
                iam: aws_sdk_iam::Client::new(&of(Service::Iam)),
                sqs: aws_sdk_sqs::Client::new(&of(Service::Sqs)),
                ssm: aws_sdk_ssm::Client::new(&of(Service::Ssm)),
                pricing: aws_sdk_pricing::Client::new(&pricing),
                sts: aws_sdk_sts::Client::new(&of(Service::Sts)),
                endpoints,
                region,
                credentials,
                config,
                pace: Pace::ec2(),
                permit,
                max_attempts,
            }),
        }
    }

    /// Returns the configuration for a client of `service`, with its endpoint override in place.
    #[must_use]
    pub fn config_for(&self, service: Service) -> SdkConfig {
        for_service(&self.inner.config, &self.inner.endpoints, service)
    }

    /// Returns the region of all calls (prices come from the nearest region that has them).
    #[must_use]
    pub fn region(&self) -> &str {
        &self.inner.region
    }

    /// Returns the credentials that sign the calls, after all roles were assumed.
    #[must_use]
    pub fn credentials(&self) -> &SharedCredentialsProvider {
        &self.inner.credentials
    }

    /// Returns the EC2 client.
    #[must_use]
    pub fn ec2(&self) -> &aws_sdk_ec2::Client {
        &self.inner.ec2
    }

    /// Returns an EC2 client that makes each call once, for [`Clients::change`].
    pub(crate) fn ec2_once(&self) -> &aws_sdk_ec2::Client {
        &self.inner.ec2_once
    }

    /// Returns the EKS client.
    #[must_use]
    pub fn eks(&self) -> &aws_sdk_eks::Client {
        &self.inner.eks
    }

    /// Returns the IAM client.
    #[must_use]
    pub fn iam(&self) -> &aws_sdk_iam::Client {
        &self.inner.iam
    }

    /// Returns the SQS client.
    #[must_use]
    pub fn sqs(&self) -> &aws_sdk_sqs::Client {
        &self.inner.sqs
    }

    /// Returns the Systems Manager client.
    #[must_use]
    pub fn ssm(&self) -> &aws_sdk_ssm::Client {
        &self.inner.ssm
    }

    /// Returns the Price List client; its region is one that serves prices.
    #[must_use]
    pub fn pricing(&self) -> &aws_sdk_pricing::Client {
        &self.inner.pricing
    }

    /// Returns the STS client.
    #[must_use]
    pub fn sts(&self) -> &aws_sdk_sts::Client {
        &self.inner.sts
    }

    /// Returns the rate keeper of the EC2 calls.
    #[must_use]
    pub fn pace(&self) -> &Pace {
        &self.inner.pace
    }

    /// Returns whether anything may be changed.
    pub(crate) fn permit(&self) -> &Permit {
        &self.inner.permit
    }

    /// Returns how often a call is attempted, the first time included.
    pub(crate) fn max_attempts(&self) -> u32 {
        self.inner.max_attempts
    }

    /// Asks STS who the caller is: the cheapest call that proves credentials and reachability.
    ///
    /// # Errors
    /// Any [`Error`] of the call; the credentials chain's own failure is [`Error::Credentials`].
    pub async fn caller_identity(&self) -> Result<CallerIdentity, Error> {
        let answer = self
            .sts()
            .get_caller_identity()
            .send()
            .await
            .map_err(|error| Error::from_sdk("sts:GetCallerIdentity", error))?;
        let arn = answer.arn.unwrap_or_default();
        let partition = arn.split(':').nth(1).filter(|part| !part.is_empty()).unwrap_or("aws").to_owned();
        Ok(CallerIdentity { account_id: answer.account.unwrap_or_default(), arn, partition })
    }
}

impl fmt::Debug for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clients")
            .field("region", &self.inner.region)
            .field("endpoints", &self.inner.endpoints)
            .finish_non_exhaustive()
    }
}

/// Who the calls are made as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallerIdentity {
    /// The twelve-digit account.
    pub account_id: String,
    /// The caller's ARN.
    pub arn: String,
    /// The partition: `aws`, `aws-cn`, `aws-us-gov`, …
    pub partition: String,
}

async fn base_config(settings: &Settings) -> Result<SdkConfig, Error> {
    let retry = RetryConfig::standard().with_max_attempts(settings.max_attempts()).with_max_backoff(MAX_BACKOFF);
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .operation_attempt_timeout(ATTEMPT_TIMEOUT)
        .operation_timeout(OPERATION_TIMEOUT)
        .build();
    let program = AppName::new(settings.program.unwrap_or("karp"))
        .map_err(|error| Error::configuration(format!("the program's name does not fit a user agent: {error}")))?;
    let mut loader = aws_config::defaults(BehaviorVersion::v2026_01_12())
        .retry_config(retry)
        .timeout_config(timeouts)
        .app_name(program)
        .region(region_chain(settings));
    if let Some(client) = settings.transport.client()? {
        loader = loader.http_client(client);
    }
    if let Some(fips) = settings.use_fips {
        loader = loader.use_fips(fips);
    }
    if let Some(dual_stack) = settings.use_dual_stack {
        loader = loader.use_dual_stack(dual_stack);
    }
    if let Some(profile) = &settings.profile {
        loader = loader.profile_name(profile);
    }
    if let Some(keys) = &settings.access_keys {
        loader = loader.credentials_provider(Credentials::new(
            &keys.access_key_id,
            &keys.secret_access_key,
            keys.session_token.clone(),
            None,
            "karp-settings",
        ));
    }
    let config = loader.load().await;
    let Some(profile) = settings.profile.as_ref().filter(|_| settings.access_keys.is_none()) else { return Ok(config) };
    let provider = Named { profile: profile.clone(), chain: of_profile(profile, &config) };
    let provider = SharedCredentialsProvider::new(provider);
    Ok(config.into_builder().credentials_provider(provider).build())
}

/// Gives the credentials of a profile that was named outright. The SDK's own chain would take the environment's keys first, which may be those of
/// another account; AWS's tools and hashicorp/aws do not. What is called for them is called as all else is: where, how long and how often.
fn of_profile(profile: &str, base: &SdkConfig) -> CredentialsProviderChain {
    let mut config = ProviderConfig::without_region()
        .with_region(base.region().cloned())
        .with_use_fips(base.use_fips())
        .with_use_dual_stack(base.use_dual_stack());
    if let Some(client) = base.http_client() {
        config = config.with_http_client(client);
    }
    if let Some(retry) = base.retry_config() {
        config = config.with_retry_config(retry.clone());
    }
    if let Some(timeouts) = base.timeout_config() {
        config = config.with_timeout_config(timeouts.clone());
    }
    let profile = ProfileFileCredentialsProvider::builder().configure(&config).profile_name(profile).build();
    CredentialsProviderChain::first_try("Profile", profile)
        .or_else("WebIdentityToken", WebIdentityTokenCredentialsProvider::builder().configure(&config).build())
        .or_else("EcsContainer", EcsCredentialsProvider::builder().configure(&config).build())
        .or_else("Ec2InstanceMetadata", ImdsCredentialsProvider::builder().configure(&config).build())
}

/// Region from settings, environment and profile: the SDK's own chain would end by asking the instance metadata service, which hangs where
/// there is none.
fn region_chain(settings: &Settings) -> impl aws_config::meta::region::ProvideRegion + 'static {
    let mut profile = aws_config::profile::region::Builder::default();
    if let Some(name) = &settings.profile {
        profile = profile.profile_name(name);
    }
    aws_config::meta::region::RegionProviderChain::first_try(settings.region.clone().map(Region::new))
        .or_else(aws_config::environment::EnvironmentVariableRegionProvider::new())
        .or_else(profile.build())
}

/// Takes the identities in place of the chain's that the settings name: that of the web first, then role after role.
fn assume(config: SdkConfig, settings: &Settings) -> SdkConfig {
    let mut config = config;
    let sts = |config: &SdkConfig| aws_sdk_sts::Client::new(&for_service(config, &settings.endpoints, Service::Sts));
    if let Some(role) = &settings.web_identity {
        let provider = Federated { sts: sts(&config), role: role.clone() };
        config = config.into_builder().credentials_provider(SharedCredentialsProvider::new(provider)).build();
    }
    for role in &settings.assume_roles {
        let provider = Assumed { sts: sts(&config), role: role.clone() };
        config = config.into_builder().credentials_provider(SharedCredentialsProvider::new(provider)).build();
    }
    config
}

fn for_service(config: &SdkConfig, endpoints: &BTreeMap<Service, String>, service: Service) -> SdkConfig {
    let Some(url) = endpoints.get(&service) else { return config.clone() };
    let mut builder = config.to_builder();
    // Marked as ours, so that AWS_ENDPOINT_URL_<SERVICE> of the environment does not win.
    builder.insert_origin("endpoint_url", Origin::shared_config());
    // An endpoint that was given is called as it is: AWS's rules refuse to vary it.
    builder.set_use_fips(Some(false)).set_use_dual_stack(Some(false));
    builder.endpoint_url(url).build()
}

fn check_endpoint(service: Service, url: &str) -> Result<(), Error> {
    let uri: http::Uri = url
        .parse()
        .map_err(|error| Error::configuration(format!("the endpoint of {} is not a URL: {error}", service.name())))?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http" | "https"), Some(_)) => Ok(()),
        _ => Err(Error::configuration(format!("the endpoint of {} must be http(s)://host", service.name()))),
    }
}

/// The region that serves the price list for `region`: it has four endpoints in the world.
fn pricing_region(region: &str) -> String {
    let home = match region.split('-').next().unwrap_or_default() {
        "cn" => "cn-northwest-1",
        "eu" | "il" | "me" | "af" => "eu-central-1",
        "ap" => "ap-south-1",
        _ => "us-east-1",
    };
    home.to_owned()
}

#[cfg(test)]
mod tests {
    use aws_credential_types::provider::ProvideCredentials as _;

    use super::*;

    #[test]
    fn prices_come_from_a_region_that_has_them() {
        for (region, home) in [
            ("us-west-2", "us-east-1"),
            ("sa-east-1", "us-east-1"),
            ("eu-north-1", "eu-central-1"),
            ("ap-southeast-2", "ap-south-1"),
            ("cn-north-1", "cn-northwest-1"),
        ] {
            assert_eq!(pricing_region(region), home, "{region}");
        }
    }

    #[test]
    fn services_are_found_by_their_names() {
        for service in Service::ALL {
            assert_eq!(Service::parse(service.name()), Some(service));
        }
        assert_eq!(Service::parse("events"), Some(Service::EventBridge));
        assert_eq!(Service::parse("s3"), None);
    }

    #[tokio::test]
    async fn a_malformed_endpoint_is_named() {
        let settings = Settings {
            region: Some("eu-west-1".into()),
            endpoints: BTreeMap::from([(Service::Sqs, "localhost:5555".into())]),
            ..Settings::default()
        };
        let error = Clients::load(&settings).await.expect_err("no scheme");
        assert!(matches!(&error, Error::Configuration { message } if message.contains("sqs")), "{error}");
    }

    #[tokio::test]
    async fn a_profile_that_is_not_there_is_named() {
        let settings = Settings {
            region: Some("eu-west-1".into()),
            profile: Some("karp-no-such-profile".into()),
            ..Settings::default()
        };
        let clients = Clients::load(&settings).await.expect("nothing is asked of it yet");
        for _ in 0..2 {
            let error = clients.credentials().provide_credentials().await.expect_err("nobody has it");
            assert!(format!("{error:?}").contains("there is no profile `karp-no-such-profile`"), "{error:?}");
        }
    }

    #[tokio::test]
    async fn an_endpoint_override_reaches_only_its_service() {
        let settings = Settings {
            region: Some("eu-west-1".into()),
            endpoints: BTreeMap::from([(Service::Iam, "http://127.0.0.1:9/".into())]),
            ..Settings::default()
        };
        let clients = Clients::load(&settings).await.expect("settings are complete");
        assert_eq!(clients.config_for(Service::Iam).endpoint_url(), Some("http://127.0.0.1:9/"));
        assert_ne!(clients.config_for(Service::Ec2).endpoint_url(), Some("http://127.0.0.1:9/"));
        assert_eq!(clients.region(), "eu-west-1");

        let there = clients.in_region("us-west-2");
        assert_eq!((there.region(), clients.region()), ("us-west-2", "eu-west-1"));
        let sqs = there.config_for(Service::Sqs);
        assert_eq!(sqs.region().map(ToString::to_string).as_deref(), Some("us-west-2"));
        assert_eq!(there.config_for(Service::Iam).endpoint_url(), Some("http://127.0.0.1:9/"));
    }
}
