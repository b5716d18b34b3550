//! A gate before the API server, which carries changes out and holds their answers back: so a run is stopped amid a call and nowhere else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::client::Body;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::drain::PATIENCE;
use crate::stand::Cluster;
use crate::tofu::Running;

/// How long answers are held back after a run was stopped.
const HELD: Duration = Duration::from_millis(500);

/// What passes the gate.
struct Passage {
    client: kube::Client,
    /// Ends of the paths whose changes are held back.
    holds: Vec<String>,
    held: watch::Sender<BTreeSet<String>>,
    open: watch::Sender<bool>,
}

/// The gate, in plain HTTP on this machine.
pub struct Gate {
    pub address: String,
    passage: Arc<Passage>,
    _runtime: Runtime,
}

impl Gate {
    /// Opens one that holds back the answers to changes of the objects whose paths end so.
    pub fn before(cluster: &Cluster, holds: &[&str]) -> Self {
        let runtime = Runtime::new().unwrap();
        let (client, listener) =
            runtime.block_on(async { (cluster.client().await, TcpListener::bind(("127.0.0.1", 0)).await.unwrap()) });
        let address = format!("http://{}", listener.local_addr().unwrap());
        let holds = holds.iter().map(|end| (*end).to_owned()).collect();
        let passage =
            Arc::new(Passage { client, holds, held: watch::Sender::default(), open: watch::Sender::new(false) });
        let passes = Arc::clone(&passage);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(pass(Arc::clone(&passes), stream));
            }
        });
        Self { address, passage, _runtime: runtime }
    }

    /// Waits until all that is to be held back is.
    pub fn await_held(&self, running: &mut Running) {
        let begin = Instant::now();
        while self.passage.held.borrow().len() < self.passage.holds.len() {
            let held = self.passage.held.borrow().clone();
            assert!(begin.elapsed() < PATIENCE && !running.is_over(), "held back is only {held:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits a moment, and lets the answers go, these and all that come. Says whether the run was over before.
    pub fn release(&self, running: &mut Running) -> bool {
        std::thread::sleep(HELD);
        let is_over = running.is_over();
        self.passage.open.send_replace(true);
        is_over
    }
}

/// Passes one request on, and its answer back.
async fn pass(passage: Arc<Passage>, mut stream: TcpStream) -> Option<()> {
    let request = read(&mut stream).await?;
    let (change, path) = (request.method() != http::Method::GET, request.uri().path().to_owned());
    let answer = passage.client.send(request).await.ok()?;
    let status = answer.status();
    let body = answer.into_body().collect_bytes().await.ok()?;
    if let Some(end) = passage.holds.iter().find(|end| change && path.ends_with(*end)) {
        passage.held.send_modify(|held| _ = held.insert(end.clone()));
        passage.open.subscribe().wait_for(|open| *open).await.ok()?;
    }
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(&[head.as_bytes(), &body].concat()).await.ok()
}

/// Reads one request whole.
async fn read(stream: &mut TcpStream) -> Option<http::Request<Body>> {
    let mut bytes = Vec::new();
    loop {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        if let Some((head, length)) = end.and_then(|end| {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let length = fields(&head).get("content-length").map_or(0, |length| length.parse().unwrap());
            (bytes.len() >= end + 4 + length).then_some((head, length))
        }) {
            let body = bytes.split_off(bytes.len() - length);
            return Some(request(&head, body));
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

fn fields(head: &str) -> BTreeMap<String, String> {
    let pairs = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    pairs.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect()
}

fn request(head: &str, body: Vec<u8>) -> http::Request<Body> {
    let mut words = head.split_whitespace();
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let mut request = http::Request::builder().method(method).uri(path);
    for (name, value) in fields(head).into_iter().filter(|(name, _)| name == "accept" || name == "content-type") {
        request = request.header(name, value);
    }
    request.body(Body::from(body)).unwrap()
}
