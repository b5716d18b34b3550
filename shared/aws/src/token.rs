//! EKS bearer tokens: a presigned `sts:GetCallerIdentity` that the API server's authenticator replays to learn who calls.

use crate::config::Clients;
use crate::error::Error;
use aws_credential_types::provider::ProvideCredentials;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SignatureLocation, SigningSettings, sign};
use aws_sigv4::sign::v4;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::fmt;
use std::time::{Duration, SystemTime};

const ACTION: &str = "eks:PresignToken";
/// Where services are in the partitions other than `aws` and `aws-us-gov`, by how their regions begin; of the SDK's own table.
const SUFFIXES: [(&str, &str); 6] = [
    ("cn-", "amazonaws.com.cn"),
    ("eusc-", "amazonaws.eu"),
    ("us-iso-", "c2s.ic.gov"),
    ("us-isob-", "sc2s.sgov.gov"),
    ("eu-isoe-", "cloud.adc-e.uk"),
    ("us-isof-", "csp.hci.ic.gov"),
];
/// The prefix by which the authenticator knows its tokens.
const PREFIX: &str = "k8s-aws-v1.";
/// The header that ties a token to one cluster.
const CLUSTER_HEADER: &str = "x-k8s-aws-id";
/// The presigned URL's own lifetime, as `aws eks get-token` sets it; the authenticator accepts the token for 15 minutes all the same.
const URL_LIFETIME: Duration = Duration::from_secs(60);
/// How long the authenticator accepts a token.
const TOKEN_LIFETIME: Duration = Duration::from_secs(15 * 60);

/// A bearer token for one cluster's API server.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The bearer value.
    pub value: String,
    /// When the API server stops to accept it; ask for another at least a minute before.
    pub expires_at: SystemTime,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("expires_at", &self.expires_at).finish_non_exhaustive()
    }
}

/// Makes a token for `cluster_name` with the clients' credentials; no request leaves the machine, except those of the credentials chain.
///
/// # Errors
/// [`Error::Credentials`] when there are none, [`Error::Configuration`] when the call cannot be signed.
pub async fn bearer(clients: &Clients, cluster_name: &str) -> Result<Token, Error> {
    let credentials = clients.credentials().provide_credentials().await.map_err(|error| Error::Credentials {
        action: ACTION,
        message: aws_smithy_types::error::display::DisplayErrorContext(&error).to_string(),
    })?;
    presign(&regional_sts(clients.region()), clients.region(), cluster_name, &credentials, SystemTime::now())
}

/// Gives the public address of a region's STS, wherever the own calls go: the authenticator calls it, and refuses a token for any other host, such
/// as that of a private endpoint.
fn regional_sts(region: &str) -> String {
    let other = SUFFIXES.iter().find(|(prefix, _)| region.starts_with(prefix));
    format!("https://sts.{region}.{}", other.map_or("amazonaws.com", |(_, suffix)| *suffix))
}

fn presign(
    endpoint: &str,
    region: &str,
    cluster_name: &str,
    credentials: &aws_credential_types::Credentials,
    now: SystemTime,
) -> Result<Token, Error> {
    let url = format!("{endpoint}/?Action=GetCallerIdentity&Version=2011-06-15");
    let identity = credentials.clone().into();
    let mut settings = SigningSettings::default();
    settings.signature_location = SignatureLocation::QueryParams;
    settings.expires_in = Some(URL_LIFETIME);
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region(region)
        .name("sts")
        .time(now)
        .settings(settings)
        .build()
        .map_err(|error| Error::configuration(format!("the EKS token cannot be signed: {error}")))?;
    let headers = [(CLUSTER_HEADER, cluster_name)];
    let request = SignableRequest::new("GET", &url, headers.into_iter(), SignableBody::empty())
        .map_err(|error| Error::configuration(format!("the STS endpoint {endpoint} is not a URL: {error}")))?;
    let (instructions, _signature) = sign(request, &params.into())
        .map_err(|error| Error::configuration(format!("the EKS token cannot be signed: {error}")))?
        .into_parts();
    let mut signed = http::Request::builder()
        .uri(&url)
        .body(())
        .map_err(|error| Error::configuration(format!("the STS endpoint {endpoint} is not a URL: {error}")))?;
    instructions.apply_to_request_http1x(&mut signed);
    let value = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(signed.uri().to_string()));
    let expires_at = credentials.expiry().map_or(now + TOKEN_LIFETIME, |expiry| expiry.min(now + TOKEN_LIFETIME));
    Ok(Token { value, expires_at })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{AccessKeys, Service, Settings};
    use aws_credential_types::Credentials;
    use std::collections::BTreeMap;

    fn decode(token: &Token) -> (String, BTreeMap<String, String>) {
        let encoded = token.value.strip_prefix(PREFIX).expect("prefix");
        assert!(!encoded.contains('='), "the authenticator wants no padding");
        let url = String::from_utf8(URL_SAFE_NO_PAD.decode(encoded).expect("base64url")).expect("utf-8");
        let (host, query) = url.split_once("/?").expect("a query");
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        (host.to_owned(), pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    #[test]
    fn the_token_is_a_presigned_identity_call_bound_to_its_cluster() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let credentials = Credentials::new("AKIDEXAMPLE", "secret", Some("session".into()), None, "test");
        let sign = |cluster| presign("https://sts.eu-west-1.amazonaws.com", "eu-west-1", cluster, &credentials, now);
        let token = sign("alpha").expect("signs");
        let (host, query) = decode(&token);
        assert_eq!(host, "https://sts.eu-west-1.amazonaws.com");
        assert_eq!(query["Action"], "GetCallerIdentity");
        assert_eq!(query["X-Amz-Expires"], "60");
        assert_eq!(query["X-Amz-SignedHeaders"], "host%3Bx-k8s-aws-id");
        assert!(query["X-Amz-Credential"].contains("%2Feu-west-1%2Fsts%2Faws4_request"), "{query:?}");
        assert_eq!(query["X-Amz-Security-Token"], "session");
        assert_eq!(token.expires_at, now + Duration::from_secs(900));
        assert_ne!(token, sign("beta").expect("signs"), "another cluster, another signature");
        assert_eq!(token, sign("alpha").expect("signs"), "same input, same token");
    }

    #[tokio::test]
    async fn a_private_endpoint_is_not_in_the_token() {
        let keys = AccessKeys { access_key_id: "a".into(), secret_access_key: "s".into(), session_token: None };
        let private = "https://vpce-0123-abcd.sts.eu-west-1.vpce.amazonaws.com".to_owned();
        let settings = Settings {
            region: Some("eu-west-1".into()),
            access_keys: Some(keys),
            endpoints: BTreeMap::from([(Service::Sts, private)]),
            ..Settings::default()
        };
        let clients = Clients::load(&settings).await.expect("settings are complete");
        let token = bearer(&clients, "alpha").await.expect("signs");
        assert_eq!(decode(&token).0, "https://sts.eu-west-1.amazonaws.com");
    }

    #[test]
    fn each_partition_has_its_own_sts() {
        for (region, host) in [
            ("us-gov-west-1", "sts.us-gov-west-1.amazonaws.com"),
            ("cn-north-1", "sts.cn-north-1.amazonaws.com.cn"),
            ("eusc-de-east-1", "sts.eusc-de-east-1.amazonaws.eu"),
            ("us-iso-east-1", "sts.us-iso-east-1.c2s.ic.gov"),
            ("us-isob-east-1", "sts.us-isob-east-1.sc2s.sgov.gov"),
            ("eu-isoe-west-1", "sts.eu-isoe-west-1.cloud.adc-e.uk"),
            ("us-isof-south-1", "sts.us-isof-south-1.csp.hci.ic.gov"),
        ] {
            assert_eq!(regional_sts(region), format!("https://{host}"));
        }
    }

    #[test]
    fn the_token_does_not_outlive_its_credentials() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let expiry = now + Duration::from_secs(120);
        let credentials = Credentials::new("AKIDEXAMPLE", "secret", None, Some(expiry), "test");
        let token = presign("http://127.0.0.1:5000", "us-east-1", "c", &credentials, now).expect("signs");
        assert_eq!(token.expires_at, expiry);
        assert!(!format!("{token:?}").contains(PREFIX), "debug output must not carry the bearer");
    }
}
