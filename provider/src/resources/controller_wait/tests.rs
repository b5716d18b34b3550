use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::atomic::{AtomicI64, Ordering};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value as Json, json};
use tokio_util::sync::CancellationToken;

use super::*;

fn lease() -> Lease {
    Lease { namespace: "karp".to_owned(), name: "l".to_owned() }
}

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn held(by: &str, renewal: i64) -> LeaseSpec {
    let renew_time = Some(MicroTime(Timestamp::from_second(renewal).expect("a time")));
    LeaseSpec { holder_identity: Some(by.to_owned()), renew_time, ..LeaseSpec::default() }
}

/// What each look comes to, at its second, with these leases by namespace.
fn told(looks: &[(u64, &[(&str, LeaseSpec)])]) -> Vec<String> {
    let replicas = BTreeSet::from(["karpenter-a".to_owned(), "karpenter-b".to_owned()]);
    let mut watch = Watch::default();
    let mut told = Vec::new();
    for (at, leases) in looks {
        let leases = leases.iter().map(|(namespace, spec)| ((*namespace).to_owned(), spec.clone())).collect();
        told.push(match watch.look(&lease(), &leases, &replicas, s(*at)) {
            Look::Done(Lead::Own) => "leads".to_owned(),
            Look::Done(Lead::Taken(seen)) => format!("taken: {seen}"),
            Look::NotYet(seen) => seen,
        });
    }
    told
}

#[test]
fn a_replica_leads_once_it_is_seen_to_renew() {
    let mine = |renewal| ("karp", held("karpenter-b_1f", renewal));
    assert_eq!(
        told(&[(0, &[]), (1, &[mine(5)]), (2, &[mine(5)]), (3, &[mine(6)])]),
        [
            "Lease karp/l is held by nobody",
            "Lease karp/l is held by karpenter-b_1f, who was not seen to renew it yet",
            "Lease karp/l is held by karpenter-b_1f, who was not seen to renew it yet",
            "leads",
        ]
    );
}

#[test]
fn a_lease_that_nobody_renews_is_waited_for() {
    let old = [("karp", held("karpenter-gone_1f", 0))];
    let told = told(&[(0, &old), (15, &old), (600, &old)]);
    assert_eq!(told[1..], ["Lease karp/l is held by karpenter-gone_1f, who does not renew it"; 2]);
}

#[test]
fn who_else_leads_is_told_when_it_lasts() {
    // A replica that ends is none of those that stay, and lets go in time.
    let ending = |renewal| ("karp", held("karpenter-gone_1f", renewal));
    let mine = |renewal| ("karp", held("karpenter-a_2e", renewal));
    let seen = told(&[(0, &[ending(0)]), (2, &[ending(2)]), (40, &[ending(40)]), (41, &[mine(41)]), (43, &[mine(43)])]);
    assert_eq!((seen[2].as_str(), seen[4].as_str()), ("Lease karp/l is held by karpenter-gone_1f", "leads"));
    // A Karpenter elsewhere does not.
    let foreign = |renewal| ("kube-system", held("karpenter-a_3d", renewal));
    let seen = told(&[(0, &[foreign(0)]), (2, &[foreign(2)]), (46, &[foreign(46)]), (47, &[foreign(47)])]);
    assert_eq!(seen[0], "Lease karp/l is held by nobody");
    assert_eq!(seen[2], "Lease kube-system/l is held by karpenter-a_3d");
    assert_eq!(seen[3], "taken: Lease kube-system/l is held by karpenter-a_3d");
    // One that went away meanwhile, and came again, begins anew.
    let seen = told(&[(0, &[foreign(0)]), (2, &[foreign(2)]), (40, &[]), (46, &[foreign(46)]), (48, &[foreign(48)])]);
    assert_eq!(seen[4], "Lease kube-system/l is held by karpenter-a_3d");
    // One that is long gone says nothing, whatever its clock said.
    let dead = || ("kube-system", held("karpenter-a_3d", i64::from(u32::MAX)));
    let seen = told(&[(0, &[dead()]), (1, &[dead(), mine(1)]), (60, &[dead(), mine(3)])]);
    assert_eq!(seen[2], "leads");
}

/// An API server that answers each path by a status and a body.
fn api_server(answer: impl Fn(&str) -> (u16, Json) + Send + 'static) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut request = [0; 8192];
            let read = stream.read(&mut request).unwrap_or_default();
            let text = String::from_utf8_lossy(&request[..read]).into_owned();
            let (status, body) = answer(text.split(' ').nth(1).unwrap_or_default());
            let body = body.to_string();
            let _ = write!(
                stream,
                "HTTP/1.1 {status} Told\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
        }
    });
    Client::try_from(kube::Config::new(format!("http://{address}").parse().expect("an address"))).expect("a client")
}

fn refused(code: u16) -> (u16, Json) {
    (
        code,
        json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "message": "no", "code": code }),
    )
}

/// A Deployment with one pod, and leases: of all namespaces, and the controller's own, by the number of the look.
fn cluster(
    all: impl Fn(i64) -> (u16, Json) + Send + 'static,
    own: impl Fn(i64) -> (u16, Json) + Send + 'static,
) -> Client {
    let looks = AtomicI64::new(0);
    api_server(move |path| match path {
        _ if path.starts_with("/apis/coordination.k8s.io/v1/leases") => all(looks.fetch_add(1, Ordering::Relaxed)),
        "/apis/coordination.k8s.io/v1/namespaces/karp/leases/l" => own(looks.load(Ordering::Relaxed)),
        "/apis/apps/v1/namespaces/karp/deployments/karpenter" => (
            200,
            json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "karpenter" },
                "spec": { "selector": { "matchLabels": { "a": "b" } }, "template": {} } }),
        ),
        _ if path.starts_with("/api/v1/namespaces/karp/pods") => (
            200,
            json!({ "apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [{ "metadata": { "name": "karpenter-a" } }] }),
        ),
        other => panic!("{other}"),
    })
}

fn object(namespace: &str, by: &str, renewal: i64) -> Json {
    json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": "l", "namespace": namespace },
        "spec": held(by, renewal) })
}

fn listed(items: &[Json]) -> (u16, Json) {
    (200, json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "LeaseList", "metadata": {}, "items": items }))
}

async fn waited(client: &Client, milliseconds: u64) -> Result<Lead, Failure> {
    let ctx = Context::new(CancellationToken::new(), s(600));
    let limit = Until::after(Duration::from_millis(milliseconds), ctx.stop());
    leads(&ctx, || std::future::ready(Ok(client.clone())), "karp", &lease(), &limit).await
}

#[tokio::test]
async fn a_wait_ends_when_a_replica_renews_and_names_who_else_does() {
    let client = cluster(|look| listed(&[object("karp", "karpenter-a_1", look)]), |_| refused(404));
    assert_eq!(waited(&client, 30_000).await.expect("it leads"), Lead::Own);
    // Who may list none looks at the one.
    let client = cluster(|_| refused(403), |look| (200, object("karp", "karpenter-a_1", look)));
    assert_eq!(waited(&client, 30_000).await.expect("it leads"), Lead::Own);

    let client = cluster(|look| listed(&[object("kube-system", "karpenter-a_1", look)]), |_| refused(404));
    let late = waited(&client, 1_500).await.expect_err("it cannot lead");
    assert!(is_late(&late), "{late}");
    assert_eq!(late.message, "Lease kube-system/l is held by karpenter-a_1");
    let client = cluster(|_| refused(403), |_| refused(403));
    assert_eq!(waited(&client, 30_000).await.expect_err("it may not look").kind, Kind::Denied);
}

#[test]
fn each_end_says_what_to_do() {
    let seen = "Lease kube-system/l is held by karpenter-a_1";
    for (diagnostic, words) in [
        (taken(&lease(), seen), &[seen, "Scale it to zero", "kubectl get leases -A"][..]),
        (not_leading(&lease(), seen), &[seen, "Lease karp/l", "kubectl -n karp logs"]),
        (unseen(&lease(), "not allowed: no"), &["Lease karp/l", "not allowed: no", "`get` leases", "wait = false"]),
        (
            unlooked("karp", &Failure::new(Kind::Unreachable, "wait for the controller", "no route")),
            &["It is applied", "no route", "kubectl -n karp get deployment karpenter", "wait = false"],
        ),
    ] {
        for word in words {
            assert!(diagnostic.detail.contains(word), "{word}: {}", diagnostic.detail);
        }
    }
}
