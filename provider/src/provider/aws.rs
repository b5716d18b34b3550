//! The arguments that say where AWS is, as whom to call it, and how. Names, environment and precedence are those of hashicorp/aws.

use std::collections::{BTreeMap, BTreeSet};

use karp_aws::config::{AccessKeys, AssumeRole, IdentityToken, Service, Settings, Transport, WebIdentity};
use serde::Deserialize;
use tfplugin::schema::validate::{self, Validator};
use tfplugin::{Attribute, Diagnostics, Schema, Type, Value};

use super::{Environment, expand, given, is_url, may_say, proxy_url, says, text, without_nulls};

/// The arguments of this part.
pub const ARGUMENTS: [&str; 17] = [
    "region",
    "profile",
    "access_key",
    "secret_key",
    "token",
    "assume_role",
    "assume_role_with_web_identity",
    "endpoints",
    "max_retries",
    "use_fips_endpoint",
    "use_dualstack_endpoint",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "custom_ca_bundle",
    "allowed_account_ids",
    "forbidden_account_ids",
];
/// The services whose endpoint may be overridden, in the documentation's order.
const ENDPOINTS: [&str; 8] = ["ec2", "eks", "events", "iam", "pricing", "sqs", "ssm", "sts"];
/// hashicorp/aws retries a call 25 times unless told otherwise; more than four times as much is a slip of the keyboard.
const MOST_RETRIES: f64 = 100.0;

/// The accounts that may be worked in, and those that may not.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Accounts {
    allowed_account_ids: Option<BTreeSet<String>>,
    forbidden_account_ids: Option<BTreeSet<String>>,
}

impl Accounts {
    /// Says whether every account is as good as any other.
    pub fn is_open(&self) -> bool {
        self.allowed_account_ids.is_none() && self.forbidden_account_ids.is_none()
    }

    /// Gives the argument by which an account is refused.
    pub fn refuse(&self, account: &str) -> Option<&'static str> {
        if self.forbidden_account_ids.as_ref().is_some_and(|ids| ids.contains(account)) {
            return Some("forbidden_account_ids");
        }
        self.allowed_account_ids.as_ref().filter(|ids| !ids.contains(account)).map(|_| "allowed_account_ids")
    }
}

/// This part of a provider block.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Block {
    region: Option<String>,
    profile: Option<String>,
    access_key: Option<String>,
    secret_key: Option<String>,
    token: Option<String>,
    assume_role: Option<Vec<RoleBlock>>,
    assume_role_with_web_identity: Option<RoleBlock>,
    endpoints: Option<BTreeMap<String, Option<String>>>,
    max_retries: Option<u32>,
    use_fips_endpoint: Option<bool>,
    use_dualstack_endpoint: Option<bool>,
    http_proxy: Option<String>,
    https_proxy: Option<String>,
    no_proxy: Option<String>,
    custom_ca_bundle: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RoleBlock {
    role_arn: String,
    session_name: Option<String>,
    external_id: Option<String>,
    duration: Option<String>,
    policy: Option<String>,
    policy_arns: Option<BTreeSet<String>>,
    source_identity: Option<String>,
    #[serde(deserialize_with = "without_nulls")]
    tags: BTreeMap<String, String>,
    transitive_tag_keys: Option<BTreeSet<String>>,
    web_identity_token: Option<String>,
    web_identity_token_file: Option<String>,
}

impl Block {
    /// Gives the settings; what is left out comes from the environment, as far as the SDK does not look there itself.
    pub fn into_settings(self, environment: Environment<'_>) -> Settings {
        let attempts = |retries: u32| retries.saturating_add(1);
        let transport = self.transport(environment);
        Settings {
            region: given(self.region),
            profile: given(self.profile),
            access_keys: access_keys(given(self.access_key), given(self.secret_key), given(self.token)),
            web_identity: self.assume_role_with_web_identity.and_then(|role| role.into_web_identity(environment)),
            assume_roles: self.assume_role.unwrap_or_default().into_iter().map(RoleBlock::into_role).collect(),
            endpoints: endpoints(self.endpoints.unwrap_or_default()),
            use_fips: self.use_fips_endpoint,
            use_dual_stack: self.use_dualstack_endpoint,
            transport,
            max_attempts: self.max_retries.map(attempts).or_else(|| environment("AWS_MAX_ATTEMPTS")?.parse().ok()),
            program: Some("terraform-provider-karp"),
            ..Settings::default()
        }
    }

    fn transport(&self, environment: Environment<'_>) -> Transport {
        let found = |argument: &Option<String>, names: &[&str]| {
            given(argument.clone()).or_else(|| names.iter().copied().find_map(environment))
        };
        let bundle = found(&self.custom_ca_bundle, &["AWS_CA_BUNDLE"]);
        Transport {
            http_proxy: found(&self.http_proxy, &["HTTP_PROXY", "http_proxy"]),
            https_proxy: found(&self.https_proxy, &["HTTPS_PROXY", "https_proxy"]),
            no_proxy: found(&self.no_proxy, &["NO_PROXY", "no_proxy"]),
            ca_bundle: bundle.map(|path| expand(&path, environment)),
        }
    }
}

impl RoleBlock {
    fn duration(&self) -> Option<std::time::Duration> {
        self.duration.as_deref().and_then(validate::parse_duration)
    }

    fn into_role(self) -> AssumeRole {
        AssumeRole {
            duration: self.duration(),
            role_arn: self.role_arn,
            session_name: given(self.session_name),
            external_id: given(self.external_id),
            policy: given(self.policy),
            policy_arns: self.policy_arns.unwrap_or_default(),
            source_identity: given(self.source_identity),
            tags: self.tags,
            transitive_tag_keys: self.transitive_tag_keys.unwrap_or_default(),
        }
    }

    fn into_web_identity(self, environment: Environment<'_>) -> Option<WebIdentity> {
        let file = |path: String| IdentityToken::File(expand(&path, environment));
        let token = given(self.web_identity_token.clone()).map(IdentityToken::Text);
        let token = token.or_else(|| given(self.web_identity_token_file.clone()).map(file));
        Some(WebIdentity {
            duration: self.duration(),
            token: token.or_else(|| environment("AWS_WEB_IDENTITY_TOKEN_FILE").map(file))?,
            role_arn: self.role_arn,
            session_name: given(self.session_name),
            policy: given(self.policy),
            policy_arns: self.policy_arns.unwrap_or_default(),
        })
    }
}

fn endpoints(given: BTreeMap<String, Option<String>>) -> BTreeMap<Service, String> {
    let set = given.into_iter().filter_map(|(name, url)| Some((name, url.filter(|url| !url.is_empty())?)));
    set.filter_map(|(name, url)| Some((Service::parse(&name)?, url))).collect()
}

/// Adds the arguments that say as whom to call AWS.
pub fn identity(schema: Schema) -> Schema {
    let accounts = |what: &str| {
        let account = validate::text("must be twelve digits", |id| {
            id.len() == 12 && id.bytes().all(|digit| digit.is_ascii_digit())
        });
        Attribute::set(Type::String).optional().validate(validate::each(account)).describe(format!(
            "{what} STS is asked once whose the credentials are, before anything else of AWS is read or changed."
        ))
    };
    schema
        .attribute("region", text("The AWS region; else `AWS_REGION`, `AWS_DEFAULT_REGION`, or the profile's."))
        .attribute(
            "profile",
            text(
                "The profile in the shared AWS configuration files, which must have it; it counts before the access keys of the environment. \
                 Else `AWS_PROFILE`, which counts after them.",
            ),
        )
        .attribute(
            "access_key",
            text("An access key id; else the default credentials chain of the AWS SDKs.").sensitive(),
        )
        .attribute("secret_key", text("The secret that belongs to `access_key`.").sensitive())
        .attribute("token", text("The session token of temporary credentials.").sensitive())
        .required_together(["access_key", "secret_key"])
        .attribute("assume_role", assume_role())
        .attribute("assume_role_with_web_identity", web_identity())
        .attribute("allowed_account_ids", accounts("The only accounts to work in."))
        .attribute("forbidden_account_ids", accounts("Accounts never to work in."))
        .conflicts(["allowed_account_ids", "forbidden_account_ids"])
}

/// Adds the arguments that say where AWS is, and how to call it.
pub fn reach(schema: Schema) -> Schema {
    let proxy = |text: Attribute| text.validate(proxy_url());
    schema
        .attribute("endpoints", endpoint_overrides())
        .attribute(
            "max_retries",
            Attribute::number().optional().validate(validate::between(0.0, MOST_RETRIES)).describe(
                "How often a call is repeated that AWS throttles or that fails on its way; else `AWS_MAX_ATTEMPTS` less one, else 4.",
            ),
        )
        .attribute(
            "use_fips_endpoint",
            Attribute::bool().optional().describe(
                "Call the endpoints that keep to FIPS 140; else `AWS_USE_FIPS_ENDPOINT`. What `endpoints` overrides is called as it is.",
            ),
        )
        .attribute(
            "use_dualstack_endpoint",
            Attribute::bool().optional().describe(
                "Call the endpoints that have IPv6 too; else `AWS_USE_DUALSTACK_ENDPOINT`. What `endpoints` overrides is called as it is.",
            ),
        )
        .attribute(
            "http_proxy",
            proxy(text(
                "The proxy of calls to AWS at `http://`, and at `https://` where `https_proxy` is not set; else `HTTP_PROXY`. The API \
                 server is called through the proxy that kubectl would take: the kubeconfig's `proxy-url`, else `HTTPS_PROXY` \
                 less `NO_PROXY`.",
            )),
        )
        .attribute("https_proxy", proxy(text("The proxy of calls to AWS at `https://`; else `HTTPS_PROXY`.")))
        .attribute(
            "no_proxy",
            text(
                "Hosts, domains, addresses and networks that are called straight, separated by commas; else `NO_PROXY`. This machine \
                 always is.",
            ),
        )
        .attribute(
            "custom_ca_bundle",
            text("A PEM file with certificates to trust besides this machine's, in calls to AWS; else `AWS_CA_BUNDLE`."),
        )
}

/// Gives the keys where one is given. One without the other is for AWS to refuse: the credentials of the environment may be another account's.
fn access_keys(id: Option<String>, secret: Option<String>, session_token: Option<String>) -> Option<AccessKeys> {
    (id.is_some() || secret.is_some()).then(|| AccessKeys {
        access_key_id: id.unwrap_or_default(),
        secret_access_key: secret.unwrap_or_default(),
        session_token,
    })
}

/// Checks what concerns several arguments of this part.
pub fn validate(config: &Value, environment: Environment<'_>) -> Diagnostics {
    let mut found = Diagnostics::new();
    for (one, other) in [("access_key", "secret_key"), ("secret_key", "access_key")] {
        if says(config.get(one)) && config.get(other).as_str() == Some("") {
            let detail = format!("`{one}` is set, and `{other}` is empty: set both, or neither.");
            found.error(other, "Half of a key", detail);
        }
    }
    let role = config.get("assume_role_with_web_identity");
    if let Value::Map(_) = role {
        let (token, file) = (role.get("web_identity_token"), role.get("web_identity_token_file"));
        if says(token) && says(file) {
            found.error(
                "assume_role_with_web_identity.web_identity_token",
                "Two tokens",
                "Set `web_identity_token` or `web_identity_token_file`, not both.",
            );
        }
        if !may_say(token) && !may_say(file) && environment("AWS_WEB_IDENTITY_TOKEN_FILE").is_none() {
            found.error(
                "assume_role_with_web_identity",
                "The token is missing",
                "Set `web_identity_token_file` to the file that holds the identity provider's token, or `web_identity_token`; or set \
                 `AWS_WEB_IDENTITY_TOKEN_FILE` in the environment.",
            );
        }
    }
    found
}

/// Checks how long a session may live, as STS does; a role's own limit may be less.
fn lifetime() -> Validator {
    validate::text("must be a duration from \"15m\" to \"12h\"", |text| {
        validate::parse_duration(text).is_some_and(|long| (900..=43_200).contains(&long.as_secs()))
    })
}

/// Adds what narrows a session of either kind.
fn session() -> [(&'static str, Attribute); 5] {
    [
        ("role_arn", Attribute::string().required().validate(validate::role_arn()).describe("The role.")),
        ("session_name", text("The session's name; `karp` when absent.")),
        ("duration", text("How long the credentials live, such as `1h`.").validate(lifetime())),
        ("policy", text("A session policy (JSON) that narrows the role.")),
        (
            "policy_arns",
            Attribute::set(Type::String)
                .optional()
                .validate(validate::each(validate::arn()))
                .describe("Managed policies that narrow the role."),
        ),
    ]
}

fn assume_role() -> Attribute {
    let more = [
        ("external_id", text("The external id that the role's trust policy demands.").sensitive()),
        ("source_identity", text("Who stands behind the session; it is kept through the whole chain.")),
        ("tags", Attribute::map(Type::String).optional().describe("The session's tags.")),
        (
            "transitive_tag_keys",
            Attribute::set(Type::String).optional().describe("The keys of those tags that the next roles inherit."),
        ),
    ];
    Attribute::nested_list(session().into_iter().chain(more))
        .optional()
        .describe("Roles to assume one after the other, each as the one before it.")
}

fn web_identity() -> Attribute {
    let token = [
        ("web_identity_token", text("The identity provider's token.").sensitive()),
        (
            "web_identity_token_file",
            text("A file that holds the token, read anew for each session; else `AWS_WEB_IDENTITY_TOKEN_FILE`."),
        ),
    ];
    Attribute::nested_single(session().into_iter().chain(token)).optional().describe(
        "A role that is assumed by the token of an identity provider, as CI systems give it, in place of the default credentials chain. \
         `assume_role` goes on from there.",
    )
}

fn endpoint_overrides() -> Attribute {
    let address = |service: &&'static str| {
        let url = validate::address("must be a URL with http:// or https://", |text| text.is_empty() || is_url(text));
        (*service, text(&format!("The endpoint of `{service}`.")).validate(url))
    };
    Attribute::nested_single(ENDPOINTS.iter().map(address)).optional().describe(
        "Endpoints in place of AWS's own, for private endpoints and emulators; else `AWS_ENDPOINT_URL_<SERVICE>` and \
         `AWS_ENDPOINT_URL`. There is never a silent fallback to localhost.",
    )
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn settings(config: &Value, environment: &[(&str, &str)]) -> Settings {
        let block: Block = tfplugin::from_value(config).unwrap();
        let found = |name: &str| environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        block.into_settings(&found)
    }

    #[test]
    fn the_block_wins_over_the_environment() {
        let environment = [
            ("AWS_MAX_ATTEMPTS", "9"),
            ("https_proxy", "http://env:1"),
            ("NO_PROXY", "internal"),
            ("AWS_CA_BUNDLE", "~/ca.pem"),
            ("HOME", "/home/me"),
        ];
        let told = settings(&Value::object([("region", "eu-west-1")]), &environment);
        assert_eq!(told.max_attempts, Some(9));
        assert_eq!(told.transport.https_proxy.as_deref(), Some("http://env:1"));
        assert_eq!(told.transport.ca_bundle, Some(PathBuf::from("/home/me/ca.pem")));
        let block = Value::object([("https_proxy", "http://block:1"), ("custom_ca_bundle", "/ca.pem")]);
        let told = settings(&block.with("max_retries", 2), &environment);
        assert_eq!(told.max_attempts, Some(3));
        assert_eq!(told.transport.https_proxy.as_deref(), Some("http://block:1"));
        assert_eq!(told.transport.no_proxy.as_deref(), Some("internal"));
        assert_eq!(told.transport.ca_bundle, Some(PathBuf::from("/ca.pem")));
        assert_eq!(settings(&Value::object([("region", "eu-west-1")]), &[]).transport, Transport::default());
    }

    #[test]
    fn a_web_identity_needs_one_token() {
        let block = |more: &[(&str, &str)]| {
            let role = [("role_arn", "arn:aws:iam::111122223333:role/ci")].into_iter().chain(more.iter().copied());
            Value::object([("assume_role_with_web_identity", Value::object(role))])
        };
        let (token, file) = (("web_identity_token", "t"), ("web_identity_token_file", "/t"));
        let none = |_: &str| None;
        assert!(validate(&block(&[token]), &none).is_empty() && validate(&block(&[file]), &none).is_empty());
        assert!(validate(&block(&[token, file]), &none).to_string().contains("Two tokens"));
        assert!(validate(&block(&[]), &none).to_string().contains("token is missing"));
        assert!(validate(&block(&[("web_identity_token", "")]), &none).to_string().contains("token is missing"));
        assert!(validate(&block(&[("web_identity_token", ""), file]), &none).is_empty());
        let there = |name: &str| (name == "AWS_WEB_IDENTITY_TOKEN_FILE").then(|| "/ci/token".to_owned());
        assert!(validate(&block(&[]), &there).is_empty());
        let told = settings(&block(&[]), &[("AWS_WEB_IDENTITY_TOKEN_FILE", "/ci/token")]).web_identity.unwrap();
        assert!(matches!(told.token, IdentityToken::File(path) if path.ends_with("token")));
    }

    #[test]
    fn what_is_empty_is_left_out() {
        let texts = ["region", "profile", "access_key", "secret_key", "token"].map(|name| (name, Value::from("")));
        let role =
            Value::object([("role_arn", "arn:aws:iam::111122223333:role/ci"), ("external_id", ""), ("policy", "")]);
        let role = role.with("tags", Value::object([("team", Value::from("a")), ("cost", Value::Null)]));
        let told = settings(&Value::object(texts).with("assume_role", vec![role]), &[]);
        assert!(told.region.is_none() && told.profile.is_none() && told.access_keys.is_none(), "{told:?}");
        let role = &told.assume_roles[0];
        assert!(role.external_id.is_none() && role.policy.is_none(), "{role:?}");
        assert_eq!(role.tags, BTreeMap::from([("team".to_owned(), "a".to_owned())]));
    }

    #[test]
    fn half_of_a_key_is_not_left_out() {
        let block = Value::object([("access_key", "AKIA"), ("secret_key", "")]);
        assert!(settings(&block, &[]).access_keys.is_some(), "the environment's credentials may be another account's");
        let told = validate(&block, &|_: &str| None).to_string();
        assert!(told.contains("`secret_key` is empty"), "{told}");
        assert!(validate(&block.with("secret_key", "s"), &|_: &str| None).is_empty());
    }

    #[test]
    fn a_refused_proxy_is_told_without_its_password() {
        for given in ["user:hunter2@proxy:3128", "http://user:hunter 2@proxy:3128", "socks5://hunter2@proxy:3128"] {
            let told = proxy_url().check(&Value::from(given)).unwrap_err().to_string();
            assert!(told.contains("***@proxy:3128\"") && !told.contains("hunter"), "{told}");
        }
        assert!(proxy_url().check(&Value::from("http://user:hunter2@proxy:3128")).is_ok());
        assert!(proxy_url().check(&Value::from("")).is_ok(), "it is left out");
    }

    #[test]
    fn a_session_lives_as_long_as_sts_lets_it() {
        let check = |text: &str| lifetime().check(&Value::from(text)).is_ok();
        assert!(check("15m") && check("1h") && check("12h"));
        assert!(!check("10m") && !check("13h") && !check("soon"));
    }

    #[test]
    fn accounts_are_refused_by_name() {
        let ids = |ids: &[&str]| Some(ids.iter().map(|id| (*id).to_owned()).collect());
        assert!(Accounts::default().is_open() && Accounts::default().refuse("1").is_none());
        let allowed = Accounts { allowed_account_ids: ids(&["1"]), ..Accounts::default() };
        assert_eq!((allowed.refuse("1"), allowed.refuse("2")), (None, Some("allowed_account_ids")));
        let forbidden = Accounts { forbidden_account_ids: ids(&["1"]), ..Accounts::default() };
        assert_eq!((forbidden.refuse("1"), forbidden.refuse("2")), (Some("forbidden_account_ids"), None));
    }
}
