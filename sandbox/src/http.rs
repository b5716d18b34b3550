//! Plain HTTP to the sandbox's own servers on loopback.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};

/// How long one request may take; a cold catalogue answer of the emulator takes a few seconds.
const LIMIT: Duration = Duration::from_secs(30);

/// Reads a page.
///
/// # Errors
/// When nothing answers in time, or with another status than 2xx.
pub async fn get(url: &str) -> Result<String> {
    send(Request::builder().method(Method::GET).uri(url).body(Full::default())?).await
}

/// Posts a JSON document with further headers and returns the answer's text.
///
/// # Errors
/// When nothing answers in time, or with another status than 2xx.
pub async fn post(url: &str, headers: &[(&str, &str)], body: &serde_json::Value) -> Result<String> {
    let mut request = Request::builder().method(Method::POST).uri(url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    send(request.body(Full::new(Bytes::from(serde_json::to_vec(body)?)))?).await
}

async fn send(request: Request<Full<Bytes>>) -> Result<String> {
    let target = format!("{} {}", request.method(), request.uri());
    let client = Client::builder(TokioExecutor::new()).build_http();
    let exchange = async {
        let answer = client.request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        anyhow::Ok((status, String::from_utf8_lossy(&body).into_owned()))
    };
    let (status, body) = tokio::time::timeout(LIMIT, exchange)
        .await
        .with_context(|| format!("{target}: no answer in {} s", LIMIT.as_secs()))?
        .with_context(|| target.clone())?;
    if !status.is_success() {
        bail!("{target}: {status}: {body}");
    }
    Ok(body)
}
