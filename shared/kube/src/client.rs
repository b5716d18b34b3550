//! Clients of the API server, from whatever the caller has to reach it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use http::Request;
use kube::client::{Body, ClientBuilder};
use kube::config::{
    AuthInfo, Cluster, Context, ExecConfig, KubeConfigOptions, Kubeconfig, KubeconfigError, NamedAuthInfo,
    NamedCluster, NamedContext, NoProxyError,
};
use kube::{Client, Config};
use tower::buffer::BufferLayer;

use crate::proxy::configured;
use crate::retries::retries;

const NAME: &str = "karp";
/// Long enough for a slow network, short enough that a wrong address is told soon.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// An answer comes by then: the API server gives up after a minute itself. One that goes away without a word would be waited for without end.
const SILENCE: Duration = Duration::from_secs(65);
/// Calls that may wait for their turn before who makes more waits as well.
const WAITING: usize = 1024;

/// Where the API server is, and as whom to call it. Nothing is ever taken from the environment unasked but a proxy, and never localhost.
#[derive(Clone, Debug)]
pub enum Connection {
    /// An address with credentials.
    Server(Box<Server>),
    /// Kubeconfig files, and what to take of them. The first file to say something wins, as with kubectl.
    Kubeconfig { paths: Vec<PathBuf>, choice: Choice },
}

/// What to take of kubeconfigs: the current context, and its cluster and user, where nothing else is named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    pub context: Option<String>,
    pub cluster: Option<String>,
    pub user: Option<String>,
}

/// An API server and credentials for it. Its `Debug` tells no secrets.
#[derive(Clone, Default)]
pub struct Server {
    pub host: String,
    /// PEM in base64, as EKS and kubeconfigs give it.
    pub certificate_authority_data: Option<String>,
    pub insecure: bool,
    pub tls_server_name: Option<String>,
    pub token: Option<String>,
    /// PEM in base64.
    pub client_certificate_data: Option<String>,
    /// PEM in base64.
    pub client_key_data: Option<String>,
    pub exec: Option<ExecConfig>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // a plugin's arguments and variables may be secret too
        let plugin = self.exec.as_ref().and_then(|exec| exec.command.as_ref());
        f.debug_struct("Server")
            .field("host", &self.host)
            .field("insecure", &self.insecure)
            .field("tls_server_name", &self.tls_server_name)
            .field("exec", &plugin)
            .finish_non_exhaustive()
    }
}

/// Why no client could be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("the address or credentials of the API server cannot be used: {0}")]
    Kubeconfig(KubeconfigError),
    #[error(
        "the variable NO_PROXY cannot be read: {0}; give host names, addresses and ranges with one comma between them"
    )]
    NoProxy(NoProxyError),
    #[error("no client can be made: {0}")]
    Client(#[from] kube::Error),
}

impl From<KubeconfigError> for ConnectError {
    fn from(error: KubeconfigError) -> Self {
        match error {
            KubeconfigError::ParseNoProxy(error) => Self::NoProxy(error),
            error => Self::Kubeconfig(error),
        }
    }
}

/// Makes a client. Contacts nothing but what an exec plugin does.
pub async fn connect(connection: &Connection) -> Result<Client, ConnectError> {
    let config = match connection {
        Connection::Server(server) => configured(kubeconfig(server), &KubeConfigOptions::default()).await?,
        Connection::Kubeconfig { paths, choice } => {
            let Choice { context, cluster, user } = choice.clone();
            let mut merged = Kubeconfig::default();
            for path in paths {
                merged = merged.merge(Kubeconfig::read_from(path)?)?;
            }
            configured(merged, &KubeConfigOptions { context, cluster, user }).await?
        }
    };
    Ok(client(config, SILENCE)?)
}

/// Makes a client whose calls end when no answer comes for so long, and are tried again when they are refused for now.
fn client(config: Config, silence: Duration) -> kube::Result<Client> {
    let mut config = patient(config, silence);
    // kube's own retries may sleep for minutes, without a word
    config.default_retry = false;
    let queue = BufferLayer::<Request<Body>>::new(WAITING);
    Ok(ClientBuilder::try_from(config)?.with_layer(&queue).with_layer(&retries()).build())
}

/// Returns a configuration whose calls end when no answer comes for so long.
fn patient(mut config: Config, silence: Duration) -> Config {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(silence);
    config.reset_reader_on_write = true;
    config
}

fn kubeconfig(server: &Server) -> Kubeconfig {
    let name = NAME.to_owned();
    let cluster = Cluster {
        server: Some(server.host.clone()),
        insecure_skip_tls_verify: Some(server.insecure),
        certificate_authority_data: server.certificate_authority_data.clone().filter(|data| !data.is_empty()),
        tls_server_name: server.tls_server_name.clone(),
        ..Cluster::default()
    };
    let user = AuthInfo {
        token: server.token.clone().map(Into::into),
        client_certificate_data: server.client_certificate_data.clone(),
        client_key_data: server.client_key_data.clone().map(Into::into),
        exec: server.exec.clone(),
        ..AuthInfo::default()
    };
    let context = Context { cluster: name.clone(), user: Some(name.clone()), ..Context::default() };
    Kubeconfig {
        clusters: vec![NamedCluster { name: name.clone(), cluster: Some(cluster), ..Default::default() }],
        auth_infos: vec![NamedAuthInfo { name: name.clone(), auth_info: Some(user), ..Default::default() }],
        contexts: vec![NamedContext { name: name.clone(), context: Some(context), ..Default::default() }],
        current_context: Some(name),
        ..Kubeconfig::default()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[test]
    fn what_is_told_of_a_server_has_no_secrets() {
        let secret = || Some("hunter2".to_owned());
        let exec = ExecConfig {
            command: Some("aws".to_owned()),
            args: Some(vec!["hunter2".to_owned()]),
            ..ExecConfig::default()
        };
        let (token, client_key_data) = (secret(), secret());
        let server =
            Server { host: "https://api".to_owned(), token, client_key_data, exec: Some(exec), ..Server::default() };
        let told = format!("{:?}", Connection::Server(Box::new(server)));
        assert!(told.contains("https://api") && told.contains("aws") && !told.contains("hunter2"), "{told}");
    }

    #[tokio::test]
    async fn an_api_server_that_takes_a_call_and_does_not_answer_is_not_waited_for_without_end() {
        let mute = TcpListener::bind("127.0.0.1:0").expect("a port");
        let host = format!("http://{}", mute.local_addr().expect("an address"));
        let config = Config::new(host.parse().expect("a URL"));
        let client = client(config, Duration::from_millis(200)).expect("a client");
        let answer = tokio::time::timeout(Duration::from_secs(30), client.apiserver_version()).await;
        let error = crate::Error::from(answer.expect("it ends").expect_err("nobody answers"));
        assert!(error.is_transient(), "{error}");
    }

    #[tokio::test]
    async fn a_call_that_is_refused_for_now_is_tried_again() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let host = format!("http://{}", listener.local_addr().expect("an address"));
        let server = tokio::spawn(async move {
            for status in ["503 Service Unavailable", "429 Too Many Requests", "200 OK"] {
                let (mut stream, _) = listener.accept().await.expect("a call");
                // small enough to come at once
                assert!(stream.read(&mut [0; 4096]).await.expect("a request") > 0);
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok");
                stream.write_all(answer.as_bytes()).await.expect("it is heard");
            }
        });
        let config = Config::new(host.parse().expect("a URL"));
        let client = client(config, Duration::from_secs(10)).expect("a client");
        let request = Request::get("/readyz").body(Vec::new()).expect("a request");
        assert_eq!(client.request_text(request).await.expect("the third answer"), "ok");
        server.await.expect("all were asked for");
    }
}
