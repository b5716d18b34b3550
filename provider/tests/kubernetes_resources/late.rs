//! Objects that nobody ends or makes ready within `timeouts`: a creation is a warning and stays, a deletion is an error that says what keeps
//! the object, and the next run goes on.

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::drain::DESTROY;
use crate::stand::{AwsAuth, Cluster};
use crate::{CRDS, PROVIDER, class, pool};

/// More than the limits that are set here, and much less than those that hold without.
const LIMIT: Duration = Duration::from_secs(30);

/// Applies an object for which no controller says a word, and destroys it while a finalizer keeps it.
fn ends_in_time(kind: &str, live: &str, text: impl Fn(&str) -> String) {
    let Some(cluster) = Cluster::find(&format!("late_{kind}")) else { return };
    let name = cluster.unique("late");
    cluster.stand(&format!("{PROVIDER}{CRDS}")).apply();
    let stand = cluster.stand(&format!("{PROVIDER}{CRDS}{}", text(&name)));
    let begin = Instant::now();
    let run = stand.apply();
    assert!(begin.elapsed() < LIMIT, "{:?}: {}", begin.elapsed(), run.text);
    let warnings = run.warnings().into_iter().map(ToString::to_string).filter(|told| told.contains("is not ready yet"));
    let warnings: Vec<_> = warnings.collect();
    assert!(warnings.len() == 1 && warnings[0].contains(&name), "{}", run.text);
    stand.assert_empty_plan();

    let hold = |finalizers: Value| cluster.hold(&[live, &name], &finalizers);
    hold(json!(["karp.test/hold"]));
    let begin = Instant::now();
    let late = stand.tofu(&DESTROY);
    assert!(begin.elapsed() < LIMIT, "{:?}: {}", begin.elapsed(), late.text);
    let error = late.one_error();
    for told in ["Gave up waiting", "karp.test/hold", "finalizer", name.as_str()] {
        assert!(error.contains(told), "{told}: {error}");
    }
    let state = stand.state().to_string();
    assert!(state.contains(&format!("\"karp_{kind}\"")), "it is still in state: {state}");
    hold(Value::Null);
    stand.destroy();
    assert_eq!(cluster.get(&[live, &name]), Value::Null);
}

/// A half of such short ones is waited for, whatever is kept of longer ones to report.
const LIMITS: &str = "  timeouts = { create = \"4s\", delete = \"2s\" }\n";

#[test]
fn a_node_class_ends_in_time() {
    ends_in_time("node_class", "ec2nodeclass", |name| class(name, LIMITS));
}

#[test]
fn a_node_overlay_ends_in_time() {
    ends_in_time("node_overlay", "nodeoverlay", |name| {
        format!(
            "resource \"karp_node_overlay\" \"it\" {{\n  name = {name:?}\n  price_adjustment = \"-30%\"\n  requirements = [{{ key = \
             \"karpenter.k8s.aws/instance-family\", operator = \"In\", values = [\"m7i\"] }}]\n  wait_for_ready = true\n{LIMITS}  \
             depends_on = [karp_crds.this]\n}}\n"
        )
    });
}

/// Nothing is at the address of one API server, and another one takes calls and answers none: a read and a change end in time as a creation does.
#[test]
fn an_entry_of_aws_auth_ends_in_time() {
    let Some(cluster) = Cluster::find("late_aws_auth") else { return };
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let mute = silent.local_addr().unwrap();
    let nobody = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    // enough for an API server that many tests ask at the same time
    let entry = |username: &str| {
        format!(
            "resource \"karp_aws_auth_entry\" \"it\" {{\n  role_arn = \"arn:aws:iam::111122223333:role/late\"\n  username = {username:?}\n  \
             timeouts = {{ create = \"8s\", read = \"8s\", update = \"8s\" }}\n}}\n"
        )
    };
    let at = |server: SocketAddr, username: &str| {
        let block = format!("provider \"karp\" {{\n  kubernetes = {{ host = \"https://{server}\" }}\n}}\n");
        block + &entry(username)
    };
    let stand = cluster.stand(&at(nobody, "one"));
    let ends = |arguments: &[&str]| {
        let begin = Instant::now();
        let error = stand.tofu(arguments).one_error();
        assert!((Duration::from_secs(8)..LIMIT).contains(&begin.elapsed()), "{:?}: {error}", begin.elapsed());
        assert!(error.contains("Timed out") && error.contains("8s") && error.contains("`timeouts`"), "{error}");
    };
    ends(&["apply", "-json", "-auto-approve"]);

    let aws_auth = AwsAuth::with(&cluster, "[]\n");
    stand.write(&format!("{PROVIDER}{}", entry("one")));
    stand.apply();
    stand.write(&at(mute, "one"));
    ends(&["plan", "-json"]);
    stand.write(&at(mute, "two"));
    ends(&["apply", "-json", "-auto-approve", "-refresh=false"]);
    assert!(!aws_auth.roles().contains("two"), "{}", aws_auth.roles());

    stand.write(&format!("{PROVIDER}{}", entry("two")));
    assert_eq!(stand.apply().changes(), [("update".to_owned(), "karp_aws_auth_entry.it".to_owned())]);
    stand.assert_empty_plan();
    stand.destroy();
}

#[test]
fn a_node_pool_ends_in_time() {
    ends_in_time("node_pool", "nodepool", |name| {
        pool(name, "{ cpu = \"100\" }").replace("  wait_for_ready = false\n", LIMITS)
    });
}
