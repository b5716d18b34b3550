//! No secret by which the controller calls AWS is in its log, whatever `RUST_LOG` asks for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex};

use karp_aws::config::{Clients, Service, Settings};
use karp_aws::credentials::{IdentityToken, WebIdentity};
use karp_aws::token;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber, span};
use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use super::discreet;

const IDENTITY: &str = "identity-token-8f3a";
const SECRET: &str = "secret-key-8f3a";
const SESSION: &str = "session-token-8f3a";

/// Everything that events and spans say.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<String>>);

impl Visit for &Told {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        *self.0.lock().expect("unpoisoned") += &format!("{field}={value:?}\n");
    }
}

impl<S: Subscriber> Layer<S> for Told {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, _: &span::Id, _: Context<'_, S>) {
        attributes.record(&mut &*self);
    }
    fn on_record(&self, _: &span::Id, values: &span::Record<'_>, _: Context<'_, S>) {
        values.record(&mut &*self);
    }
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        event.record(&mut &*self);
    }
}

/// Answers as STS does that gives credentials for a role, and any other call with nothing.
async fn issue(listener: TcpListener) {
    let issued = format!(
        "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><AssumeRoleWithWebIdentityResult><Credentials>\
         <AccessKeyId>AKIAEXAMPLE</AccessKeyId><SecretAccessKey>{SECRET}</SecretAccessKey><SessionToken>{SESSION}</SessionToken>\
         <Expiration>2100-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
    );
    let nothing = "<DescribeInstancesResponse><reservationSet/></DescribeInstancesResponse>";
    while let Ok((mut stream, _)) = listener.accept().await {
        let (mut asked, mut part) = (Vec::new(), vec![0; 16 * 1024]);
        // Each call ends with its body, which names the action.
        while !asked.windows(7).any(|text| text == b"Action=") {
            match stream.read(&mut part).await {
                Ok(read) if read > 0 => asked.extend_from_slice(&part[..read]),
                _ => break,
            }
        }
        let body = match String::from_utf8_lossy(&asked).contains("Action=AssumeRole") {
            true => issued.as_str(),
            false => nothing,
        };
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/xml\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        let _ = stream.write_all((head + body).as_bytes()).await;
        let _ = stream.shutdown().await;
    }
}

/// Takes a role by its service account, calls EC2 and the API server's authenticator as that; gives the token for the API server.
async fn call() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    let service = tokio::spawn(issue(listener));
    let role = WebIdentity {
        role_arn: "arn:aws:iam::123456789012:role/controller".into(),
        session_name: None,
        token: IdentityToken::Text(IDENTITY.into()),
        duration: None,
        policy: None,
        policy_arns: BTreeSet::new(),
    };
    let settings = Settings {
        region: Some("eu-west-1".into()),
        web_identity: Some(role),
        endpoints: Service::ALL.into_iter().map(|service| (service, endpoint.clone())).collect::<BTreeMap<_, _>>(),
        max_attempts: Some(1),
        ..Settings::default()
    };
    let clients = Clients::load(&settings).await.expect("clients");
    let token = token::bearer(&clients, "demo").await.expect("a token").value;
    clients.ec2().describe_instances().send().await.expect("an answer");
    service.abort();
    token
}

/// Gives the token, and all that is told of the calls where the log is asked for everything, the signer by name.
fn told(layer: impl FnOnce(Told) -> Box<dyn Layer<Filtered> + Send + Sync>) -> (String, String) {
    let told = Told::default();
    let everything = EnvFilter::new("trace,aws_sigv4::http_request=trace");
    let log = tracing_subscriber::registry().with(everything).with(layer(told.clone()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let token = tracing::subscriber::with_default(log, || runtime.block_on(call()));
    let all = told.0.lock().expect("unpoisoned").clone();
    (token, all)
}

type Filtered = tracing_subscriber::layer::Layered<EnvFilter, tracing_subscriber::Registry>;

#[test]
fn no_secret_is_logged_at_any_level() {
    // Otherwise nothing is shown here.
    let (_, indiscreet) = told(Layer::boxed);
    assert!(indiscreet.contains(SESSION), "the signer tells no secret any more: {indiscreet}");

    let (token, discreet) = told(|told| told.with_filter(discreet()).boxed());
    assert!(discreet.len() > 1000, "nothing was traced: {discreet}");
    for (name, secret) in
        [("identity token", IDENTITY), ("secret key", SECRET), ("session token", SESSION), ("token", token.as_str())]
    {
        let lines: Vec<&str> = discreet.lines().filter(|line| line.contains(secret)).collect();
        assert!(lines.is_empty(), "the log tells the {name}: {lines:#?}");
    }
    assert!(!discreet.contains("X-Amz-Signature="), "the log tells a signature");
}
