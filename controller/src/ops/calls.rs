//! How the API server is called: by which way, so many requests at a time, none that waits for ever, and those that write only while this process
//! leads.

use std::time::Duration;

use http::Request;
use karp_kube::client::ConnectError;
use karp_kube::proxy;
use karp_kube::retries::retries;
use kube::client::{Body, ClientBuilder};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tower::buffer::BufferLayer;
use tower::filter::FilterLayer;
use tower::limit::ConcurrencyLimitLayer;
use tower::timeout::TimeoutLayer;
use tower::util::option_layer;

use super::leader::Fence;

/// Requests under way at a time. Each has a connection to itself, with a TLS handshake and some 70 KiB: a thousand claims that are made at once
/// would have as many of them, for longer than they are of use.
const AT_ONCE: usize = 64;
/// Requests that may wait for their turn before who makes more waits as well.
const WAITING: usize = 1024;
/// An answer begins by then: the API server gives up after a minute itself. One that goes away without a word, as a load balancer's targets do,
/// would be waited for until the process ends.
const ANSWER: Duration = Duration::from_secs(65);
/// Within an answer there is silence for no longer. Watches are asked for a minute at a time, and what else takes so long the API server gives up.
const SILENCE: Duration = Duration::from_secs(95);

/// Says how the cluster is reached: by the kubeconfig, and its current context where none is named; in a pod without one by its service account. The
/// proxy is the one that kubectl would take.
///
/// # Errors
/// When there is no cluster to ask.
pub async fn way(context: Option<&str>) -> anyhow::Result<Config> {
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let mut config = match context {
        Some(_) => Config::from_kubeconfig(&options).await?,
        None => Config::infer().await?,
    };
    if let Ok(read) = Kubeconfig::read()
        && let Ok(chosen) = proxy::configured(read, &options).await
    {
        config.proxy_url = chosen.proxy_url;
    }
    Ok(config)
}

/// Makes a client whose writes are fenced, each time that they are tried. `config.default_retry` says whether refusals that pass (429, 503, 504)
/// are tried again.
///
/// # Errors
/// When the configuration makes no client.
pub fn client(config: Config, fence: &Fence) -> Result<Client, ConnectError> {
    answered(config, fence, ANSWER)
}

/// The same; answers begin within `limit`.
fn answered(mut config: Config, fence: &Fence, limit: Duration) -> Result<Client, ConnectError> {
    let again = std::mem::take(&mut config.default_retry).then(retries);
    let exec = config.auth_info.exec.clone();
    let refused = |error| ConnectError::of_client(exec.as_ref(), error);
    let builder = ClientBuilder::try_from(patient(config, SILENCE))
        .map_err(refused)?
        .with_layer(&BufferLayer::<Request<Body>>::new(WAITING))
        .with_layer(&FilterLayer::new(fence.clone()))
        .with_layer(&TimeoutLayer::new(limit))
        .with_layer(&ConcurrencyLimitLayer::new(AT_ONCE))
        .with_layer(&option_layer(again));
    Ok(builder.build())
}

/// Returns a configuration whose connections end when nothing comes for so long that is waited for.
pub fn patient(mut config: Config, silence: Duration) -> Config {
    config.read_timeout = Some(silence);
    config.reset_reader_on_write = true;
    config
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use k8s_openapi::api::core::v1::Node;
    use kube::Api;
    use kube::api::{DeleteParams, PostParams};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// Counts connections: now, at most, and requests.
    #[derive(Default)]
    struct Counts {
        open: AtomicUsize,
        most: AtomicUsize,
        asked: AtomicUsize,
    }

    /// Starts a server that reads requests and does something of each.
    async fn server<F>(answer: impl Fn(TcpStream, usize) -> F + Send + Sync + 'static) -> (Config, Arc<Counts>)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let counts = Arc::new(Counts::default());
        let shared = counts.clone();
        tokio::spawn(async move {
            let answer = Arc::new(answer);
            while let Ok((mut stream, _)) = listener.accept().await {
                let (counts, answer) = (shared.clone(), answer.clone());
                tokio::spawn(async move {
                    counts.most.fetch_max(counts.open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    // small enough to come at once
                    let read = stream.read(&mut [0; 4096]).await;
                    if read.is_ok_and(|bytes| bytes > 0) {
                        answer(stream, counts.asked.fetch_add(1, Ordering::SeqCst) + 1).await;
                    }
                    counts.open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        (Config::new(format!("http://{address}").parse().expect("a URL")), counts)
    }

    async fn say(mut stream: TcpStream, status: &str) {
        let body = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","code":404,"reason":"NotFound"}"#;
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
        stream.write_all(format!("{head}{body}").as_bytes()).await.expect("it is heard");
    }

    fn nodes(config: Config, fence: &Fence) -> Api<Node> {
        Api::all(client(config, fence).expect("a client"))
    }

    #[tokio::test]
    async fn many_requests_share_a_few_connections() {
        let (config, counts) = server(|stream, _| async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            say(stream, "404 Not Found").await;
        })
        .await;
        let nodes = nodes(config, &Fence::shut());
        let answers = futures::future::join_all((0..5 * AT_ONCE).map(|_| nodes.get_opt("n"))).await;
        assert!(answers.into_iter().all(|answer| answer.is_ok_and(|node| node.is_none())));
        assert_eq!(counts.asked.load(Ordering::SeqCst), 5 * AT_ONCE);
        let most = counts.most.load(Ordering::SeqCst);
        // one that is answered may be under way to its end when the next is made
        assert!((AT_ONCE / 2..=AT_ONCE + AT_ONCE / 4).contains(&most), "{most} at a time");
    }

    #[tokio::test]
    async fn nobody_waits_for_ever_for_a_server_that_has_gone_without_a_word() {
        let (config, counts) = server(|stream, _| async {
            std::future::pending::<()>().await;
            drop(stream);
        })
        .await;
        let client = answered(config, &Fence::shut(), Duration::from_millis(200)).expect("a client");
        let nodes: Api<Node> = Api::all(client);
        let answer = tokio::time::timeout(Duration::from_secs(20), nodes.get_opt("n")).await.expect("an end");
        assert!(answer.is_err_and(|error| crate::effect::may_be_done(&error)));
        assert_eq!(counts.asked.load(Ordering::SeqCst), 1, "whoever asked decides whether to ask again");
    }

    #[tokio::test]
    async fn what_is_tried_again_is_fenced_again() {
        let fence = Fence::shut();
        fence.open();
        let leads = fence.clone();
        let (config, counts) = server(move |stream, asked| {
            let leads = leads.clone();
            async move {
                if asked == 2 {
                    leads.close();
                }
                say(stream, "503 Service Unavailable").await;
            }
        })
        .await;
        let refused = nodes(config.clone(), &fence).delete("n", &DeleteParams::default()).await.expect_err("refused");
        assert!(refused.to_string().contains("does not lead"), "{refused}");
        assert_eq!(counts.asked.load(Ordering::SeqCst), 2);

        // without retries the refusal is the answer
        fence.open();
        let mut once = config;
        once.default_retry = false;
        let answer = nodes(once, &fence).create(&PostParams::default(), &Node::default()).await.expect_err("refused");
        assert!(matches!(answer, kube::Error::Api(_)), "{answer}");
        assert_eq!(counts.asked.load(Ordering::SeqCst), 3);
    }
}
