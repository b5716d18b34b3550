//! Only the holder of the pinned certificate gets through, and nothing is left behind.

use rustls::ClientConfig;
use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_stream::StreamExt;

use super::*;

struct Client {
    pem: String,
    der: CertificateDer<'static>,
    key: rcgen::KeyPair,
}

/// Makes a certificate as go-plugin does: P-521, self-signed, marked as a CA.
fn client() -> Client {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P521_SHA512).unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_string()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).unwrap();
    Client { pem: certificate.pem(), der: certificate.der().clone(), key }
}

/// Trusts exactly the certificate of the handshake line; Go does the same with a pool of one.
#[derive(Debug)]
struct OnlyThisServer(CertificateDer<'static>);

impl ServerCertVerifier for OnlyThisServer {
    fn verify_server_cert(
        &self,
        presented: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        assert_eq!(presented.as_ref(), self.0.as_ref());
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            certificate,
            signature,
            &aws_lc_rs::default_provider().signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &aws_lc_rs::default_provider().signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

fn connector(own_base64: &str, client: Option<&Client>) -> TlsConnector {
    let own = base64::engine::general_purpose::STANDARD_NO_PAD.decode(own_base64).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(OnlyThisServer(CertificateDer::from(own))));
    let config = match client {
        Some(client) => config
            .with_client_auth_cert(vec![client.der.clone()], PrivateKeyDer::Pkcs8(client.key.serialize_der().into()))
            .unwrap(),
        None => config.with_no_client_auth(),
    };
    TlsConnector::from(Arc::new(config))
}

/// Says whether a client's connection reaches the service.
async fn gets_through(presented: Option<&Client>, pinned: &Client) -> bool {
    let (acceptor, own) = tls(&pinned.pem).unwrap();
    let listener = Listener::unix().unwrap();
    let address = listener.address.clone();
    let (mut connections, _guard) = listener.accept(Some(acceptor));
    let stream = UnixStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let handshake = connector(&own, presented).connect(name, stream);
    // a refusal may come after the client's own half of the handshake, so the listener's side counts
    let (_kept, served) = tokio::join!(handshake, tokio::time::timeout(Duration::from_millis(500), connections.next()));
    served.is_ok()
}

#[tokio::test]
async fn the_pinned_certificate_is_let_in() {
    let terraform = client();
    assert!(gets_through(Some(&terraform), &terraform).await);
}

#[tokio::test]
async fn others_are_refused() {
    let terraform = client();
    assert!(!gets_through(Some(&client()), &terraform).await, "another certificate");
    assert!(!gets_through(None, &terraform).await, "no certificate");
}

#[tokio::test]
async fn the_socket_is_private_and_removed() {
    let listener = Listener::unix().unwrap();
    let folder = std::path::Path::new(&listener.address).parent().unwrap().to_path_buf();
    assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    let (_connections, guard) = listener.accept(None);
    drop(guard);
    assert!(!folder.exists());
}

#[tokio::test]
async fn tcp_serves_without_delay() {
    let listener = Listener::tcp().await.unwrap();
    assert_eq!(listener.network, "tcp");
    let address = listener.address.clone();
    let (mut connections, _guard) = listener.accept(None);
    let _client = TcpStream::connect(address).await.unwrap();
    assert!(connections.next().await.unwrap().is_ok());
}

#[test]
fn a_broken_client_certificate_is_named() {
    assert!(matches!(tls("not PEM").err(), Some(TlsError::ClientCertificate)));
}
