//! How calls to AWS travel: through which proxies, and whose certificates are trusted besides the machine's.

use std::path::{Path, PathBuf};

use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore};
use aws_smithy_http_client::{Builder, Connector};
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpClient, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::error::Error;

/// What is on this machine is never looked for behind a proxy; Go's programs, hashicorp/aws among them, take the same exception.
const HERE: &str = "localhost,127.0.0.0/8,::1";

/// How calls travel. By default they go straight, and trust the machine's certificates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transport {
    /// The proxy of endpoints with `http://`, and of those with `https://` where these have none of their own.
    pub http_proxy: Option<String>,
    /// The proxy of endpoints with `https://`.
    pub https_proxy: Option<String>,
    /// Hosts that are called straight: names, domains, addresses and networks, separated by commas.
    pub no_proxy: Option<String>,
    /// A PEM file with certificates to trust besides the machine's.
    pub ca_bundle: Option<PathBuf>,
}

impl Transport {
    /// Makes the client that travels so; `None` where the SDK's own does. Reads the certificates; contacts nothing.
    ///
    /// # Errors
    /// [`Error::Configuration`] when a proxy's address is malformed, or the file holds no certificates that can be read.
    pub(crate) fn client(&self) -> Result<Option<SharedHttpClient>, Error> {
        let https = self.https_proxy.as_deref().or(self.http_proxy.as_deref());
        if https.is_none() && self.ca_bundle.is_none() {
            return Ok(None);
        }
        let trust = match &self.ca_bundle {
            Some(path) => TrustStore::default().with_pem_certificate(certificates(path)?),
            None => TrustStore::default(),
        };
        let tls = TlsContext::builder().with_trust_store(trust).build();
        let tls = tls.map_err(|error| Error::configuration(format!("TLS cannot be set up: {error}")))?;
        let client = |proxy| Ok(client(self.through(proxy)?, tls.clone()));
        if https == self.http_proxy.as_deref() {
            return client(https).map(Some);
        }
        let (plain, secure) = (client(self.http_proxy.as_deref())?, client(https)?);
        Ok(Some(SharedHttpClient::new(ByScheme { plain, secure })))
    }

    fn through(&self, proxy: Option<&str>) -> Result<ProxyConfig, Error> {
        let Some(url) = proxy else { return Ok(ProxyConfig::disabled()) };
        let config = ProxyConfig::all(url)
            .map_err(|error| Error::configuration(format!("the address of the proxy is not a URL: {error}")))?;
        Ok(config.no_proxy(match &self.no_proxy {
            Some(straight) => format!("{straight},{HERE}"),
            None => HERE.to_owned(),
        }))
    }
}

fn client(proxy: ProxyConfig, tls: TlsContext) -> SharedHttpClient {
    Builder::new().build_with_connector_fn(move |settings, components| {
        let builder = Connector::builder().proxy_config(proxy.clone());
        let builder = match settings {
            Some(settings) => builder.connector_settings(settings.clone()),
            None => builder,
        };
        let builder = match components.and_then(RuntimeComponents::sleep_impl) {
            Some(sleep) => builder.sleep_impl(sleep),
            None => builder,
        };
        builder.tls_provider(Provider::Rustls(CryptoMode::AwsLc)).tls_context(tls.clone()).build()
    })
}

/// Reads a PEM file and makes sure that it can be trusted: the SDK would panic on anything else.
fn certificates(path: &Path) -> Result<Vec<u8>, Error> {
    let unusable =
        |why: String| Error::configuration(format!("the CA bundle {} cannot be used: {why}", path.display()));
    let pem = std::fs::read(path).map_err(|error| unusable(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
        roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(unusable("it holds no certificate in PEM".to_owned()));
    }
    Ok(pem)
}

/// Clients with another proxy for each scheme: one proxy configuration of the SDK knows only one address.
#[derive(Debug)]
struct ByScheme<T> {
    plain: T,
    secure: T,
}

impl HttpClient for ByScheme<SharedHttpClient> {
    fn http_connector(&self, settings: &HttpConnectorSettings, components: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(ByScheme {
            plain: self.plain.http_connector(settings, components),
            secure: self.secure.http_connector(settings, components),
        })
    }
}

impl HttpConnector for ByScheme<SharedHttpConnector> {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let plain = request.uri().starts_with("http://");
        if plain { self.plain.call(request) } else { self.secure.call(request) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(transport: &Transport) -> String {
        transport.client().expect_err("it cannot be used").to_string()
    }

    #[test]
    fn nothing_set_leaves_the_sdks_own_client() {
        assert!(Transport::default().client().expect("nothing to refuse").is_none());
        let straight = Transport { no_proxy: Some("example.com".into()), ..Transport::default() };
        assert!(straight.client().expect("nothing to refuse").is_none());
    }

    #[test]
    fn what_cannot_be_trusted_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ca.pem");
        let transport = Transport { ca_bundle: Some(path.clone()), ..Transport::default() };
        assert!(refusal(&transport).contains("ca.pem"));
        for text in ["", "no certificate", "-----BEGIN CERTIFICATE-----\nbm9uZQ==\n-----END CERTIFICATE-----\n"] {
            std::fs::write(&path, text).expect("a file");
            let told = refusal(&transport);
            assert!(told.contains("ca.pem") && told.contains("cannot be used"), "{told}");
        }
        let proxy = Transport { https_proxy: Some("http://[".into()), ..Transport::default() };
        assert!(refusal(&proxy).contains("proxy"));
    }
}
