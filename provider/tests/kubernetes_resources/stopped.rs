//! Runs that are stopped, by Ctrl-C or by the death of the provider's process: the next apply comes to an empty plan, and the next destroy
//! leaves nothing. What a process that was killed had made and not told of is in no state: its mark tells the next run that it is its own.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::drain::{self, Controller, DESTROY, PATIENCE, claims_of, leaving, make_claim, with_claims};
use crate::gate::Gate;
use crate::outfitted::Monitors;
use crate::stand::{AwsAuth, Cluster, Stand};
use crate::tofu::{Run, Running};
use crate::{CRDS, claims, class, controllers, pool};

const APPLY: [&str; 3] = ["apply", "-json", "-auto-approve"];
const BLOCK: &str = "provider \"karp\" {\n  cluster_name = \"demo\"\n  kubernetes = { config_path = KUBECONFIG }\n}\n";
/// How soon OpenTofu ends after Ctrl-C when the provider waits for something.
const SOON: Duration = Duration::from_secs(10);

/// How a run is stopped.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stop {
    CtrlC,
    Kill,
}

/// Begins a run and stops it as soon as it changes something and something holds.
fn stopped(stand: &Stand<'_>, arguments: &[&str], stop: Stop, holds: impl Fn() -> bool) -> Run {
    let mut running: Running = stand.begin(arguments);
    let begin = Instant::now();
    while !(running.applies() && holds()) {
        assert!(
            begin.elapsed() < PATIENCE && !running.is_over(),
            "{stop:?}: it never came to that: {}",
            running.end().text
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let pressed = Instant::now();
    match stop {
        Stop::CtrlC => _ = running.interrupt(),
        Stop::Kill => running.kill_provider(),
    }
    let run = running.end();
    assert_eq!(run.code, 1, "{stop:?}: {}", run.text);
    assert!(pressed.elapsed() < SOON, "{stop:?}: it ended after {:?}", pressed.elapsed());
    run
}

fn exists(cluster: &Cluster, what: &[&str]) -> bool {
    cluster.get(what) != Value::Null
}

fn is_leaving(cluster: &Cluster, what: &[&str]) -> bool {
    !cluster.get(what)["metadata"]["deletionTimestamp"].is_null()
}

/// Says whether state has a resource, and untainted.
fn is_kept(stand: &Stand<'_>, kind: &str) -> bool {
    let state = stand.state();
    let found = state["resources"].as_array().into_iter().flatten().find(|one| one["type"] == kind);
    found.is_some_and(|one| {
        one["instances"][0]["attributes"]["id"].is_string() && one["instances"][0]["status"].is_null()
    })
}

#[test]
fn a_controller() {
    let Some(cluster) = Cluster::find("stopped_controller") else { return };
    let _turn = controllers();
    for stop in [Stop::CtrlC, Stop::Kill] {
        let name = cluster.unique(&format!("stopped-{stop:?}").to_lowercase());
        let found = (stop == Stop::Kill).then(|| cluster.namespace(&name));
        let text = |replicas: u32| {
            format!(
                "{BLOCK}resource \"karp_controller\" \"this\" {{\n  namespace = {name:?}\n  image = \"karp:nowhere\"\n  replicas = \
                 {replicas}\n}}\n"
            )
        };
        // It waits for pods that never come.
        let stand = cluster.stand(&text(1));
        stopped(&stand, &APPLY, stop, || exists(&cluster, &["-n", &name, "deployment", "karpenter"]));
        assert_eq!(is_kept(&stand, "karp_controller"), stop == Stop::CtrlC, "{stop:?}: {}", stand.state());
        stand.write(&text(0));
        stand.apply();
        stand.assert_empty_plan();

        // Something keeps the Deployment, as its pods do while they end.
        let hold = |finalizers: Value| cluster.hold(&["-n", &name, "deployment", "karpenter"], &finalizers);
        hold(json!(["karp.test/hold"]));
        stopped(&stand, &DESTROY, stop, || is_leaving(&cluster, &["-n", &name, "deployment", "karpenter"]));
        assert!(is_kept(&stand, "karp_controller"), "{stop:?}: {}", stand.state());
        hold(Value::Null);
        stand.destroy();
        let there = [&["namespace", &name][..], &["clusterrole", "karpenter"]].map(|what| exists(&cluster, what));
        assert_eq!(there, [found.is_some(), false], "{stop:?}");
    }
}

/// Stops the creation of an object while it waits for a controller's word that never comes, and its deletion while a finalizer keeps it.
fn stops(kind: &str, live: &str, finalizer: &str, text: impl Fn(&str, bool) -> String) {
    let Some(cluster) = Cluster::find(&format!("stopped_{kind}")) else { return };
    let resource = format!("karp_{kind}");
    for stop in [Stop::CtrlC, Stop::Kill] {
        let name = cluster.unique(&format!("stopped-{stop:?}").to_lowercase());
        let text = |waits: bool| format!("{BLOCK}{CRDS}{}", text(&name, waits));
        let stand = cluster.stand(&text(true));
        stopped(&stand, &APPLY, stop, || exists(&cluster, &[live, &name]));
        assert_eq!(is_kept(&stand, &resource), stop == Stop::CtrlC, "{stop:?}: {}", stand.state());
        stand.write(&text(false));
        stand.apply();
        stand.assert_empty_plan();

        let hold = |finalizers: Value| cluster.hold(&[live, &name], &finalizers);
        hold(json!([finalizer]));
        stopped(&stand, &DESTROY, stop, || is_leaving(&cluster, &[live, &name]));
        assert!(is_kept(&stand, &resource), "{stop:?}: {}", stand.state());
        hold(Value::Null);
        stand.destroy();
        assert!(!exists(&cluster, &[live, &name]), "{stop:?}");
    }
}

#[test]
fn a_node_class() {
    stops("node_class", "ec2nodeclass", "karpenter.k8s.aws/termination", |name, waits| {
        class(name, if waits { "" } else { "  wait_for_ready = false\n" })
    });
}

#[test]
fn a_node_pool() {
    stops("node_pool", "nodepool", "karp.test/hold", |name, waits| {
        let pool = pool(name, "{ cpu = \"100\" }");
        if waits { pool.replace("  wait_for_ready = false\n", "") } else { pool }
    });
}

#[test]
fn a_node_overlay() {
    stops("node_overlay", "nodeoverlay", "karp.test/hold", |name, waits| {
        format!(
            "resource \"karp_node_overlay\" \"it\" {{\n  name = {name:?}\n  price_adjustment = \"-30%\"\n  requirements = [{{ key = \
             \"karpenter.k8s.aws/instance-family\", operator = \"In\", values = [\"m7i\"] }}]\n  wait_for_ready = {waits}\n  \
             depends_on = [karp_crds.this]\n}}\n"
        )
    });
}

/// Begins an apply and stops it while the answers at a gate are held back. After Ctrl-C they still come.
fn cut(stand: &Stand<'_>, gate: &Gate, stop: Stop) {
    let mut running = stand.begin(&APPLY);
    gate.await_held(&mut running);
    match stop {
        Stop::CtrlC => assert!(running.interrupt()),
        Stop::Kill => running.kill_provider(),
    }
    let is_over = gate.release(&mut running);
    let released = Instant::now();
    let run = running.end();
    assert!(!is_over || stop == Stop::Kill, "it did not wait for the answers: {}", run.text);
    assert!(released.elapsed() < SOON, "{stop:?}: it ended after {:?}: {}", released.elapsed(), run.text);
    assert_eq!(run.code, 1, "{stop:?}: {}", run.text);
}

#[test]
fn the_crds() {
    let Some(cluster) = Cluster::find_alone("stopped_crds") else { return };
    let names = ["capacitybuffers.autoscaling.x-k8s.io", "nodeoverlays.karpenter.sh"];
    let columns = |name: &str| cluster.get(&["crd", name])["spec"]["versions"][0]["additionalPrinterColumns"].clone();
    let maker = cluster.stand(&format!("{BLOCK}{CRDS}"));
    maker.apply();
    let whole = names.map(columns);
    for stop in [Stop::CtrlC, Stop::Kill] {
        // Two have to be brought up to date; it is stopped while the answer about the first of them, the overlays', is on its way.
        for name in names {
            let patch = r#"[{"op":"replace","path":"/spec/versions/0/additionalPrinterColumns","value":[]}]"#;
            cluster.kubectl(&[
                "patch",
                "crd",
                name,
                "--type=json",
                "--field-manager=terraform-provider-karp",
                "-p",
                patch,
            ]);
        }
        let gate = Gate::before(&cluster, &["/nodeoverlays.karpenter.sh"]);
        let stand = cluster.stand(&format!("{}{CRDS}", at(&gate)));
        cut(&stand, &gate, stop);
        // What was begun is completed after Ctrl-C.
        let done = [columns(names[0]) == whole[0], columns(names[1]) == whole[1]];
        assert_eq!(done, [stop == Stop::CtrlC, true], "{stop:?}");
        stand.apply();
        stand.assert_empty_plan();
        assert_eq!(names.map(columns), whole, "{stop:?}");
        stand.destroy();
    }
}

/// A provider block that goes through a gate.
fn at(gate: &Gate) -> String {
    format!("provider \"karp\" {{\n  cluster_name = \"demo\"\n  kubernetes = {{ host = {:?} }}\n}}\n", gate.address)
}

/// Resources that are made side by side, each by a call of its own that comes first.
fn side_by_side(name: &str) -> String {
    let pool = pool(name, "{ cpu = \"100\" }");
    let class = class(name, "  wait_for_ready = false\n");
    let all = format!(
        "{class}{pool}resource \"karp_node_overlay\" \"it\" {{\n  name = {name:?}\n  price_adjustment = \"-30%\"\n  requirements = [{{ key \
         = \"karpenter.k8s.aws/instance-family\", operator = \"In\", values = [\"m7i\"] }}]\n}}\nresource \"karp_aws_auth_entry\" \"it\" \
         {{\n  role_arn = \"arn:aws:iam::111122223333:role/{name}\"\n}}\nresource \"karp_controller\" \"it\" {{\n  namespace = {name:?}\n  \
         image = \"karp:nowhere\"\n  replicas = 0\n}}\n"
    );
    all.replace("  depends_on     = [karp_crds.this]\n", "").replace("  depends_on = [karp_crds.this]\n", "")
}

/// Nothing is adopted here: what no state knew of, and no mark tells of, would be refused.
#[test]
fn what_a_call_in_flight_makes_is_kept() {
    let Some(cluster) = Cluster::find("in_flight") else { return };
    let _turn = controllers();
    cluster.stand(&format!("{BLOCK}{CRDS}")).apply();
    let aws_auth = AwsAuth::with(&cluster, "[]\n");
    let kinds = ["node_class", "node_pool", "node_overlay", "aws_auth_entry", "controller"];
    for stop in [Stop::CtrlC, Stop::Kill] {
        let name = cluster.unique(&format!("flight-{stop:?}").to_lowercase());
        // A namespace takes some seconds to go: one round makes its own, the other begins with what comes after it.
        let found = (stop == Stop::Kill).then(|| cluster.namespace(&name));
        let first =
            if found.is_some() { "/serviceaccounts/karpenter".to_owned() } else { format!("/namespaces/{name}") };
        let paths = ["ec2nodeclasses", "nodepools", "nodeoverlays"].map(|kind| format!("/{kind}/{name}"));
        let paths: Vec<&str> =
            paths.iter().chain([&first]).map(String::as_str).chain(["/configmaps/aws-auth"]).collect();
        let gate = Gate::before(&cluster, &paths);
        let stand = cluster.stand(&format!("{}{}", at(&gate), side_by_side(&name)));
        cut(&stand, &gate, stop);
        for kind in kinds {
            let is_kept = is_kept(&stand, &format!("karp_{kind}"));
            assert_eq!(is_kept, stop == Stop::CtrlC, "{kind}: {}", stand.state());
        }
        let run = stand.apply();
        assert!(stop == Stop::Kill || run.changes().is_empty(), "all of it was there: {}", run.text);
        stand.assert_empty_plan();
        stand.destroy();
        for live in [["ec2nodeclass", &name], ["nodepool", &name], ["nodeoverlay", &name], ["clusterrole", "karpenter"]]
        {
            assert!(!exists(&cluster, &live), "{stop:?}: {live:?} is left");
        }
        assert_eq!(exists(&cluster, &["namespace", &name]), found.is_some(), "{stop:?}");
        assert!(!aws_auth.roles().contains(&name), "{stop:?}: {}", aws_auth.roles());
    }
}

/// A change adds a ServiceMonitor, and is stopped while the answer about it is on its way. What it had made when its process died is in no state, and
/// goes with the controller.
#[test]
fn a_controller_amid_a_change() {
    let Some(cluster) = Cluster::find("stopped_controller_amid_a_change") else { return };
    let _turn = controllers();
    let _monitors = Monitors::define(&cluster);
    for stop in [Stop::CtrlC, Stop::Kill] {
        let name = cluster.unique(&format!("amid-{stop:?}").to_lowercase());
        let _namespace = cluster.namespace(&name);
        let gate = Gate::before(&cluster, &["/servicemonitors/karpenter"]);
        let text = |more: &str| {
            let block = at(&gate);
            format!(
                "{block}resource \"karp_controller\" \"it\" {{\n  namespace = {name:?}\n  image = \"karp:nowhere\"\n  replicas = 0\n{more}}}\n"
            )
        };
        let stand = cluster.stand(&text(""));
        stand.apply();
        stand.write(&text("  service_monitor = {}\n"));
        cut(&stand, &gate, stop);
        let there =
            || ["serviceaccount", "servicemonitor"].map(|kind| exists(&cluster, &["-n", &name, kind, "karpenter"]));
        assert_eq!(there(), [true, true], "{stop:?}");
        // What was begun is completed after Ctrl-C.
        if stop == Stop::CtrlC {
            stand.assert_empty_plan();
        }
        stand.destroy();
        assert_eq!(there(), [false, false], "{stop:?}");
    }
}

#[test]
fn a_teardown() {
    let Some(cluster) = Cluster::find_alone("stopped_teardown") else { return };
    let name = cluster.unique("teardown");
    let config = |more: &str| {
        format!(
            "{BLOCK}{CRDS}resource \"karp_teardown\" \"this\" {{\n  sweep = []\n{more}  depends_on = [karp_crds.this]\n}}\n"
        )
    };
    let stand = cluster.stand(&config(""));
    stand.apply();
    stand.assert_empty_plan();
    (0..2).for_each(|number| make_claim(&cluster, &name, number));
    // Its lease says that a controller is at work.
    let now = jiff::Timestamp::now().strftime("%FT%T.000000Z").to_string();
    cluster.create(&json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "karpenter-leader-election", "namespace": "default" }, "spec": { "holderIdentity": name, "renewTime": now } }));
    for stop in [Stop::CtrlC, Stop::Kill] {
        stopped(&stand, &DESTROY, stop, || leaving(&cluster, &name).len() == 2);
        assert!(is_kept(&stand, "karp_teardown"), "{stop:?}: {}", stand.state());
    }
    // The time that it has for it is over: what has not drained stays, as no sweep was asked for.
    stand.write(&config("  timeouts = { delete = \"6s\" }\n"));
    stand.apply();
    stand.assert_empty_plan();
    let late = stand.tofu(&DESTROY);
    assert!(late.code == 1 && late.text.contains("the nodes did not drain"), "{}", late.text);
    assert!(is_kept(&stand, "karp_teardown") && leaving(&cluster, &name).len() == 2, "{}", stand.state());
    stand.write(&config(""));
    stand.apply();
    let (run, _) = Controller::beside(&cluster, &name, Duration::ZERO, || stand.tofu(&DESTROY));
    cluster.kubectl(&["-n", "default", "delete", "lease", "karpenter-leader-election"]);
    assert_eq!(run.code, 0, "{}", run.text);
    assert_eq!(leaving(&cluster, &name), Vec::<String>::new());
}

/// The provider dies twice while nodes leave: the pool stays in state, the budgets hold across the runs, and the next destroy goes on.
#[test]
fn a_drain() {
    let Some(cluster) = Cluster::find("stopped_drain") else { return };
    let _turn = claims();
    let name = cluster.unique("stopped-drain");
    let stand = with_claims(&cluster, &name, &drain::config(&name, "2", ""), 6);
    let (run, most) = Controller::beside(&cluster, &name, Duration::from_millis(1500), || {
        for left in [6, 4] {
            let is_under_way = || claims_of(&cluster, &name).len() <= left && !leaving(&cluster, &name).is_empty();
            stopped(&stand, &DESTROY, Stop::Kill, is_under_way);
            assert!(is_kept(&stand, "karp_node_pool"), "{}", stand.state());
            assert!(!claims_of(&cluster, &name).is_empty(), "it was over when the provider died");
        }
        stand.tofu(&DESTROY)
    });
    assert_eq!(run.code, 0, "{}", run.text);
    assert!((1..=2).contains(&most), "{most} left at once");
    assert!(claims_of(&cluster, &name).is_empty() && !exists(&cluster, &["nodepool", &name]));
}
