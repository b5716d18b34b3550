//! Clients of the API server, from whatever the caller has to reach it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Request;
use kube::client::{Body, ClientBuilder};
use kube::config::{
    AuthInfo, Cluster, Context, ExecConfig, KubeConfigOptions, Kubeconfig, KubeconfigError, NamedAuthInfo,
    NamedCluster, NamedContext, NoProxyError,
};
use kube::{Client, Config};
use tower::buffer::BufferLayer;

use crate::NoCredentials;
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

/// What to take of kubeconfigs: the current context, its cluster, user and proxy, where nothing else is named. Its `Debug` tells no secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Choice {
    pub context: Option<String>,
    pub cluster: Option<String>,
    pub user: Option<String>,
    /// The proxy, in place of the cluster's own and of the environment's.
    pub proxy_url: Option<String>,
}

impl fmt::Debug for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // a proxy's address may have a password
        f.debug_struct("Choice")
            .field("context", &self.context)
            .field("cluster", &self.cluster)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// An API server and credentials for it. Its `Debug` tells no secrets.
#[derive(Clone, Default)]
pub struct Server {
    pub host: String,
    /// PEM in base64, as EKS and kubeconfigs give it.
    pub certificate_authority_data: Option<String>,
    pub insecure: bool,
    pub tls_server_name: Option<String>,
    /// Through which proxy it is called; that of the environment where none is named.
    pub proxy_url: Option<String>,
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
    #[error("the kubeconfig {} cannot be read{}: it is no YAML, or a field has another type than it should", path.display(), place.map(|(line, column)| format!(" at line {line}, column {column}")).unwrap_or_default())]
    Malformed { path: PathBuf, place: Option<(u64, u64)> },
    #[error(
        "the proxy that the cluster or HTTPS_PROXY names is of no kind that can be used: give it as http:// or https://"
    )]
    Proxy,
    #[error("the command {command:?} of `exec` {why}")]
    Credentials { command: String, why: NoCredentials },
    #[error("no client can be made: {0}")]
    Client(kube::Error),
}

impl ConnectError {
    /// Takes kube's error about a kubeconfig. Its text shows the lines around what it cannot read, and a token may be there.
    fn of_file(path: &Path, error: KubeconfigError) -> Self {
        match error {
            KubeconfigError::Parse(error) => {
                let place = error.location().map(|place| (place.line(), place.column()));
                Self::Malformed { path: path.to_owned(), place }
            }
            error => error.into(),
        }
    }

    /// Takes kube's error about a client whose credentials come of this `exec`, if any; nothing is kept of it that may be secret.
    #[must_use]
    pub fn of_client(exec: Option<&ExecConfig>, error: kube::Error) -> Self {
        match error {
            // kube tells the whole address, with the password in it
            kube::Error::ProxyProtocolUnsupported { .. } | kube::Error::ProxyProtocolDisabled { .. } => Self::Proxy,
            error => match NoCredentials::behind(&error) {
                Some(why) => {
                    let command = exec.and_then(|exec| exec.command.clone()).unwrap_or_default();
                    Self::Credentials { command, why }
                }
                None => Self::Client(error),
            },
        }
    }
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
            let Choice { context, cluster, user, proxy_url } = choice.clone();
            let mut merged = Kubeconfig::default();
            for path in paths {
                let read = Kubeconfig::read_from(path).map_err(|error| ConnectError::of_file(path, error))?;
                merged = merged.merge(read)?;
            }
            let mut config = configured(merged, &KubeConfigOptions { context, cluster, user }).await?;
            if let Some(proxy) = proxy_url {
                config.proxy_url = Some(proxy.parse().map_err(|_| ConnectError::Proxy)?);
            }
            config
        }
    };
    let exec = config.auth_info.exec.clone();
    client(config, SILENCE).map_err(|error| ConnectError::of_client(exec.as_ref(), error))
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
        proxy_url: server.proxy_url.clone(),
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
    use std::io::{BufRead as _, BufReader};
    use std::net::TcpListener;

    use kube::config::ExecInteractiveMode;
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
        let (token, client_key_data, proxy_url) = (secret(), secret(), secret());
        let host = "https://api".to_owned();
        let server = Server { host, token, client_key_data, proxy_url, exec: Some(exec), ..Server::default() };
        let told = format!("{:?}", Connection::Server(Box::new(server)));
        assert!(told.contains("https://api") && told.contains("aws") && !told.contains("hunter2"), "{told}");
    }

    fn command(script: &str) -> Server {
        let variable = [("name", "KEY"), ("value", "hunter2")].map(|(name, text)| (name.to_owned(), text.to_owned()));
        let exec = ExecConfig {
            api_version: Some("client.authentication.k8s.io/v1".to_owned()),
            command: Some("sh".to_owned()),
            args: Some(vec!["-c".to_owned(), script.to_owned(), "hunter2".to_owned()]),
            env: Some(vec![variable.into()]),
            interactive_mode: Some(ExecInteractiveMode::Never),
            ..ExecConfig::default()
        };
        Server { host: "https://api.invalid".to_owned(), exec: Some(exec), ..Server::default() }
    }

    async fn refused(connection: &Connection) -> String {
        let error = connect(connection).await.map(drop).expect_err("no credentials");
        let told = format!("{error}; {error:?}");
        assert!(!told.contains("hunter2"), "{told}");
        error.to_string()
    }

    #[tokio::test]
    async fn what_a_command_without_credentials_was_given_and_has_printed_is_not_told() {
        let mut missing = command("");
        missing.exec.as_mut().expect("a command").command = Some("not-there".to_owned());
        for (server, says) in [
            (command("echo $KEY; echo $KEY >&2; exit 3"), "exit status: 3"),
            (command("echo \"token: [$KEY\""), "no ExecCredential"),
            (missing, "\"not-there\" of `exec` cannot be started"),
        ] {
            let told = refused(&Connection::Server(Box::new(server))).await;
            assert!(told.contains(says), "{told}");
        }
    }

    #[tokio::test]
    async fn a_command_that_fails_when_a_token_has_run_out_is_not_told_either() {
        let folder = std::env::temp_dir().join(format!("karp-exec-{}", std::process::id()));
        let out = r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"t","expirationTimestamp":"2020-01-01T00:00:00Z"}}"#;
        let once = format!("mkdir {} || exit 4; echo '{out}'", folder.display());
        let client = connect(&Connection::Server(Box::new(command(&once)))).await.expect("the first token");
        let error = crate::Error::from(client.apiserver_version().await.expect_err("the second token"));
        std::fs::remove_dir(folder).expect("the command ran");
        let told = format!("{error}; {error:?}");
        assert!(told.contains("exit status: 4") && !told.contains("hunter2"), "{told}");
    }

    #[tokio::test]
    async fn a_kubeconfig_that_cannot_be_read_is_named_with_the_place_and_not_shown() {
        let path = std::env::temp_dir().join(format!("karp-kubeconfig-{}", std::process::id()));
        std::fs::write(&path, "users:\n- name: a\n  user: { token: hunter2 }\n  user: [ hunter2\n").expect("a file");
        let told = refused(&Connection::Kubeconfig { paths: vec![path.clone()], choice: Choice::default() }).await;
        std::fs::remove_file(&path).expect("the file");
        assert!(told.contains(&path.display().to_string()) && told.contains("at line "), "{told}");
    }

    #[tokio::test]
    async fn a_proxy_that_is_named_is_called_whatever_a_kubeconfig_says_and_its_password_is_not_told() {
        let path = std::env::temp_dir().join(format!("karp-proxied-{}", std::process::id()));
        let server = Server { host: "https://api.invalid".to_owned(), ..Server::default() };
        let its = Some("http://other.invalid".to_owned());
        let file = serde_json::to_string(&kubeconfig(&Server { proxy_url: its, ..server.clone() })).expect("a file");
        std::fs::write(&path, file).expect("a kubeconfig");
        let through = |proxy: &str| {
            let proxy_url = Some(proxy.to_owned());
            let choice = Choice { proxy_url: proxy_url.clone(), ..Choice::default() };
            let server = Server { proxy_url, ..server.clone() };
            [Connection::Server(Box::new(server)), Connection::Kubeconfig { paths: vec![path.clone()], choice }]
        };
        for connection in through("ftp://me:hunter2@proxy.invalid") {
            assert!(refused(&connection).await.contains("http://"));
            assert!(!format!("{connection:?}").contains("hunter2"), "{connection:?}");
        }
        for connection in through("http://me:hunter 2@proxy.invalid") {
            assert!(refused(&connection).await.contains("proxy"));
        }
        let proxy = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://me:hunter2@{}", proxy.local_addr().expect("an address"));
        let asked = tokio::task::spawn_blocking(move || {
            let line = |()| BufReader::new(proxy.accept().expect("a call").0).lines().next().expect("a line");
            [(), ()].map(line).map(|line| line.expect("text"))
        });
        for connection in through(&address) {
            let client = connect(&connection).await.expect("a client");
            let error = crate::Error::from(client.apiserver_version().await.expect_err("the proxy hangs up"));
            let told = format!("{error}; {error:?}");
            assert!(!told.contains("hunter2"), "{told}");
        }
        assert_eq!(asked.await.expect("both calls"), ["CONNECT api.invalid:443 HTTP/1.1"; 2]);
        std::fs::remove_file(&path).expect("the kubeconfig");
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
