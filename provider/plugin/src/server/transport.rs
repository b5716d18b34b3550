//! Where the plugin listens: a unix socket in a private folder, or TCP on the loopback; with mutual TLS pinned to the one
//! certificate that Terraform passed in the environment.

use std::fmt;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;

/// Connections that wait to be served; Terraform opens one.
const BACKLOG: usize = 16;
/// A peer that opens a connection and says nothing holds a task no longer than this.
const TLS_PATIENCE: Duration = Duration::from_secs(60);
/// The longest path of a unix socket that every supported system takes.
const MAX_SOCKET_PATH: usize = 100;

/// A bidirectional byte stream.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// One connection, whatever carries it.
pub(super) struct Connection(Box<dyn Stream>);

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

impl tonic::transport::server::Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// An open listener. Dropping it removes the socket and its folder.
pub(super) struct Listener {
    socket: Socket,
    /// `unix` or `tcp`.
    pub(super) network: &'static str,
    /// The socket's path, or host and port.
    pub(super) address: String,
    folder: Option<TempDir>,
}

impl Listener {
    /// Listens on a unix socket in a folder that only this user can enter; on TCP where that cannot be.
    pub(super) async fn open() -> io::Result<Self> {
        match Self::unix() {
            Ok(listener) => Ok(listener),
            Err(error) => {
                tracing::debug!(%error, "no unix socket, listening on TCP");
                Self::tcp().await
            }
        }
    }

    fn unix() -> io::Result<Self> {
        let base = std::env::var_os("PLUGIN_UNIX_SOCKET_DIR").filter(|dir| !dir.is_empty());
        let base = base.map_or_else(std::env::temp_dir, PathBuf::from);
        let only_this_user = std::fs::Permissions::from_mode(0o700);
        let folder = tempfile::Builder::new().prefix("tfplugin-").permissions(only_this_user).tempdir_in(base)?;
        let path = folder.path().join("plugin.sock");
        let address = path.to_str().filter(|path| path.len() <= MAX_SOCKET_PATH).map(String::from);
        let address = address.ok_or_else(|| io::Error::other("the folder for temporary files has too long a path"))?;
        let socket = Socket::Unix(UnixListener::bind(&path)?);
        Ok(Self { socket, network: "unix", address, folder: Some(folder) })
    }

    async fn tcp() -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?.to_string();
        Ok(Self { socket: Socket::Tcp(listener), network: "tcp", address, folder: None })
    }

    /// Accepts connections for as long as the stream is held; the folder lives until the returned guard is dropped.
    pub(super) fn accept(self, tls: Option<TlsAcceptor>) -> (ReceiverStream<io::Result<Connection>>, SocketGuard) {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        let socket = self.socket;
        let task = tokio::spawn(async move {
            loop {
                let stream: Box<dyn Stream> = match &socket {
                    Socket::Unix(listener) => match listener.accept().await {
                        Ok((stream, _)) => Box::new(stream),
                        Err(error) => break tracing::error!(%error, "cannot accept connections any more"),
                    },
                    Socket::Tcp(listener) => match listener.accept().await {
                        // without nodelay each call waits some 40 ms for the other side's delayed acknowledgement
                        Ok((stream, _)) if stream.set_nodelay(true).is_ok() => Box::new(stream),
                        Ok(_) => continue,
                        Err(error) => break tracing::error!(%error, "cannot accept connections any more"),
                    },
                };
                let (sender, tls) = (sender.clone(), tls.clone());
                tokio::spawn(async move {
                    match secure(stream, tls).await {
                        Ok(connection) => drop(sender.send(Ok(connection)).await),
                        Err(error) => tracing::warn!(%error, "refused a connection"),
                    }
                });
            }
        });
        (ReceiverStream::new(receiver), SocketGuard { task, _folder: self.folder })
    }
}

async fn secure(stream: Box<dyn Stream>, tls: Option<TlsAcceptor>) -> io::Result<Connection> {
    let Some(tls) = tls else { return Ok(Connection(stream)) };
    let stream = tokio::time::timeout(TLS_PATIENCE, tls.accept(stream)).await??;
    Ok(Connection(Box::new(stream)))
}

/// Ends accepting and removes the socket's folder when dropped.
pub(super) struct SocketGuard {
    task: tokio::task::JoinHandle<()>,
    _folder: Option<TempDir>,
}

impl Drop for SocketGuard {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub(super) enum TlsError {
    #[error("PLUGIN_CLIENT_CERT holds no certificate")]
    ClientCertificate,
    #[error("the system gives no randomness: {0}")]
    Randomness(#[source] io::Error),
    #[error("no certificate could be made: {0}")]
    OwnCertificate(#[from] rcgen::Error),
    #[error("TLS cannot be configured: {0}")]
    Configuration(#[from] rustls::Error),
}

/// Makes the acceptor that lets in only the holder of that client certificate, and our own certificate for the handshake line.
pub(super) fn tls(client_pem: &str) -> Result<(TlsAcceptor, String), TlsError> {
    let client = CertificateDer::from_pem_slice(client_pem.as_bytes()).map_err(|_| TlsError::ClientCertificate)?;
    // named explicitly: the process may hold other TLS stacks, and Terraform signs with P-521, which ring cannot verify
    let crypto = Arc::new(rustls::crypto::aws_lc_rs::default_provider());

    // the crypto library takes some 25 ms to seed itself: that runs beside the handshake, and this key does without it
    let seeding = crypto.clone();
    std::thread::spawn(move || seeding.secure_random.fill(&mut [0; 32]));
    let key = own_key()?;
    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_string()])?;
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let own = params.self_signed(&key)?;
    let own_base64 = base64::engine::general_purpose::STANDARD_NO_PAD.encode(own.der());

    let verifier = Arc::new(OnlyThisClient { certificate: client, crypto: crypto.clone() });
    let mut config = ServerConfig::builder_with_provider(crypto)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![own.der().clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))?;
    config.alpn_protocols.push(b"h2".to_vec());
    Ok((TlsAcceptor::from(Arc::new(config)), own_base64))
}

/// Makes an Ed25519 key of the kernel's randomness; neither the key nor its signatures ask the crypto library for any.
fn own_key() -> Result<rcgen::KeyPair, TlsError> {
    const PKCS8_HEAD: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
    let mut der = PKCS8_HEAD.to_vec();
    der.resize(PKCS8_HEAD.len() + 32, 0);
    let mut kernel = std::fs::File::open("/dev/urandom").map_err(TlsError::Randomness)?;
    kernel.read_exact(&mut der[PKCS8_HEAD.len()..]).map_err(TlsError::Randomness)?;
    Ok(rcgen::KeyPair::try_from(&PrivatePkcs8KeyDer::from(der))?)
}

/// Accepts exactly one certificate. Chains and usages do not matter: Terraform's is self-signed and made for one run.
struct OnlyThisClient {
    certificate: CertificateDer<'static>,
    crypto: Arc<CryptoProvider>,
}

impl fmt::Debug for OnlyThisClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnlyThisClient").finish_non_exhaustive()
    }
}

impl ClientCertVerifier for OnlyThisClient {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        presented: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        if presented.as_ref() == self.certificate.as_ref() {
            return Ok(ClientCertVerified::assertion());
        }
        Err(rustls::Error::InvalidCertificate(rustls::CertificateError::ApplicationVerificationFailure))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.crypto.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.crypto.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.crypto.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;
