//! Edits of a pool and its class on a live cluster of forty nodes, and of a thousand: the model of `src/preview/forty`, written to the API
//! server. What tofu shows of each edit are the words that were reviewed for the model (`src/preview/snapshots`).

use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::stream::iter;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karp_domain::api::{NodeClaim, labels};
use karp_kube::apply::dynamic;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::edits::{Edit, OF_CLASS, OF_POOL};
use crate::objects;
use crate::stand::{Cluster, Stand};
use crate::tofu::Run;
use crate::{CRDS, PROVIDER};

/// Pool and class as files, read by karp's own functions, so that an edit of the model is an edit of the configuration.
const OBJECTS: &str = r#"
locals {
  pool  = provider::karp::node_pool_from_provisioner(jsondecode(file("pool.json")))
  class = provider::karp::node_class_from_template(jsondecode(file("class.json")), {})
}
resource "karp_node_class" "it" {
  name                          = local.class.name
  role                          = local.class.role
  ami_selector_terms            = local.class.ami_selector_terms
  subnet_selector_terms         = local.class.subnet_selector_terms
  security_group_selector_terms = local.class.security_group_selector_terms
  kubelet                       = local.class.kubelet
  metadata_options              = local.class.metadata_options
  enclave_options               = local.class.enclave_options
  wait_for_ready                = false
  depends_on                    = [karp_crds.this]
}
resource "karp_node_pool" "it" {
  name           = local.pool.name
  template       = local.pool.template
  disruption     = local.pool.disruption
  limits         = local.pool.limits
  weight         = local.pool.weight
  wait_for_ready = false
  depends_on     = [karp_crds.this]
}
"#;
/// The names of the model; on a server that others use each of them gets a prefix.
const NAMES: [&str; 4] = ["default", "kube-system", "science", "shop"];
const NAMES_WITH_NUMBERS: [&str; 2] = ["default-", "node-"];
const NAMESPACES: [&str; 3] = ["kube-system", "science", "shop"];
/// So many requests are under way at a time.
const AT_ONCE: usize = 32;
/// How long the server's controllers may take to count pods for budgets.
const SETTLE: Duration = Duration::from_secs(120);
/// A plan waits no longer for a preview (`PATIENCE` in `src/preview/look.rs`).
const LIMIT_MS: u64 = 2_000;
/// The best of so many plans counts: other tests use the same processors.
const TRIES: usize = 5;

/// The model on a live API server.
struct Live {
    client: Client,
    prefix: String,
}

impl Live {
    /// Puts the prefix before all names of the model.
    fn named(&self, mut value: Value) -> Value {
        self.rename(&mut value);
        value
    }

    fn rename(&self, value: &mut Value) {
        match value {
            Value::String(text) if is_name(text) => *text = self.name(text),
            Value::Array(all) => all.iter_mut().for_each(|one| self.rename(one)),
            Value::Object(fields) => fields.values_mut().for_each(|one| self.rename(one)),
            _ => {}
        }
    }

    fn name(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    fn of_pool(&self) -> ListParams {
        ListParams::default().labels(&format!("{}={}", labels::NODE_POOL, self.name("default")))
    }

    /// Creates one object of the model, with its status where no controller of the server writes it.
    async fn create(&self, plural: &str, object: Value) {
        // Nobody counts daemons: that they run is told of other pods.
        let is_daemon = object["metadata"]["namespace"] == "kube-system";
        let mut object = self.named(object);
        // Nobody made the owners, and what has none of its owners is collected.
        object["metadata"].as_object_mut().unwrap().remove("ownerReferences");
        if plural == "pods" {
            // No kubelet tells of the nodes, which are soon taken to be unreachable.
            let unreachable = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
            object["spec"]["tolerations"] = unreachable.map(|key| json!({ "key": key, "operator": "Exists" })).into();
        }
        let status = object.as_object_mut().unwrap().remove("status");
        let api = dynamic(&self.client, plural, &object);
        let made: DynamicObject = serde_json::from_value(object).unwrap();
        api.create(&PostParams::default(), &made).await.unwrap();
        if let (Some(status), "pods" | "nodeclaims", false) = (status, plural, is_daemon) {
            let patch = Patch::Merge(json!({ "status": status }));
            api.patch_status(&made.name_any(), &PatchParams::default(), &patch).await.unwrap();
        }
    }

    /// Creates all that a cluster of so many nodes has besides its pool and its class.
    async fn fill(&self, nodes: usize) {
        let namespace =
            |name| ("namespaces", json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }));
        self.create_all(NAMESPACES.map(namespace)).await;
        for name in NAMESPACES {
            let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), &self.name(name));
            until(|| async { accounts.get("default").await.is_ok() }).await;
        }
        let (stamps, joined) = (objects::stamps(), || (0..nodes).filter(|at| objects::joined(*at)));
        self.create_all(objects::budgets().map(|budget| ("poddisruptionbudgets", budget))).await;
        self.create_all((0..nodes).map(|at| ("nodeclaims", objects::claim(at, &stamps)))).await;
        self.create_all(joined().map(|at| ("nodes", objects::node(at)))).await;
        self.create_all(joined().flat_map(|at| objects::pods_of(at, 1)).map(|pod| ("pods", pod))).await;
        let budgets = Api::<PodDisruptionBudget>::namespaced(self.client.clone(), &self.name("shop"));
        let counted = |name: &'static str, allowed: bool| {
            let budgets = &budgets;
            until(move || async move {
                let status = budgets.get(name).await.unwrap().status.unwrap_or_default();
                status.current_healthy >= status.desired_healthy.max(1) && (status.disruptions_allowed > 0) == allowed
            })
        };
        counted("database", false).await;
        counted("web", true).await;
    }

    async fn create_all(&self, objects: impl IntoIterator<Item = (&'static str, Value)>) {
        iter(objects).for_each_concurrent(AT_ONCE, |(plural, object)| self.create(plural, object)).await;
    }

    /// Takes everything away again; the namespaces go when they can.
    async fn clear(&self) {
        let (now, all) =
            (DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() }, ListParams::default());
        for name in NAMESPACES {
            let pods = Api::<Pod>::namespaced(self.client.clone(), &self.name(name));
            pods.delete_collection(&now, &all).await.unwrap();
        }
        Api::<NodeClaim>::all(self.client.clone()).delete_collection(&now, &self.of_pool()).await.unwrap();
        Api::<Node>::all(self.client.clone()).delete_collection(&now, &self.of_pool()).await.unwrap();
        for name in NAMESPACES {
            Api::<Namespace>::all(self.client.clone()).delete(&self.name(name), &now).await.unwrap();
        }
    }

    /// The pool without the window in which nothing may drift: the test runs at any hour. At the hour of the model it changes nothing.
    fn pool(&self, change: impl Fn(&mut Value)) -> Value {
        let mut pool = objects::pool();
        pool["spec"]["disruption"]["budgets"].as_array_mut().unwrap().truncate(1);
        change(&mut pool);
        self.named(pool)
    }

    fn class(&self, change: impl Fn(&mut Value)) -> Value {
        let mut class = objects::class();
        change(&mut class);
        self.named(class)
    }

    /// What a plan says of pool and class, with the names of the model.
    fn told(&self, run: &Run) -> Vec<String> {
        let text = |warning: &&Value| {
            let part =
                |name: &str| warning[name].as_str().unwrap_or_default().replace(&format!("{}-", self.prefix), "");
            format!("Warning: {}\n\n{}", part("summary"), part("detail"))
        };
        let ours =
            |text: &String| ["Warning: NodePool", "Warning: EC2NodeClass"].iter().any(|start| text.starts_with(start));
        run.warnings().iter().map(text).filter(ours).collect()
    }
}

fn is_name(text: &str) -> bool {
    NAMES.contains(&text) || NAMES_WITH_NUMBERS.iter().any(|start| text.starts_with(start))
}

/// Waits until something holds.
async fn until<F: Future<Output = bool>>(holds: impl Fn() -> F) {
    let begin = Instant::now();
    while !holds().await {
        assert!(begin.elapsed() < SETTLE, "it does not come true");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Plans of one edit at most.
const PLANS: usize = 3;

/// What was reviewed for an edit, without the data below.
fn reviewed(edit: &Edit) -> String {
    let path = format!("{}/src/preview/snapshots/{}.snap", env!("CARGO_MANIFEST_DIR"), edit.name);
    let kept = std::fs::read_to_string(path).unwrap();
    let text = kept.splitn(3, "---\n").nth(2).unwrap();
    text.split_once("\n\nat_once = ").unwrap().0.to_owned()
}

/// Applies pool and class, makes the nodes, runs a test, and takes all away before it is judged.
fn on_nodes<T>(cluster: &Cluster, what: &str, nodes: usize, test: impl FnOnce(&Live, &Stand<'_>) -> T) -> T {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let live = Live { client: runtime.block_on(cluster.client()), prefix: cluster.unique(what) };
    let stand = cluster.stand(&format!("{PROVIDER}{CRDS}{OBJECTS}"));
    stand.put("pool.json", &live.pool(|_| {}));
    stand.put("class.json", &live.class(|_| {}));
    stand.apply();
    let began = Instant::now();
    runtime.block_on(live.fill(nodes));
    eprintln!("{nodes} nodes were made in {:.1} s", began.elapsed().as_secs_f64());
    let answer = test(&live, &stand);
    runtime.block_on(live.clear());
    stand.destroy();
    answer
}

/// What a plan of an edited class says where nothing is to be said: without the cluster, and of a class that goes.
fn unwanted(live: &Live, stand: &Stand<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    let offline = PROVIDER.replace("{\n  kube", "{\n  offline_plan = true\n  kube");
    stand.write(&format!("{offline}{CRDS}{OBJECTS}"));
    let quiet = stand.plan();
    let edited = ("update".to_owned(), "karp_node_class.it".to_owned());
    if !quiet.changes().contains(&edited) || !live.told(&quiet).is_empty() {
        wrong.push(format!("without the cluster: {}", quiet.text));
    }
    stand.write(&format!("{PROVIDER}{CRDS}{OBJECTS}"));
    let going = stand.tofu(&["plan", "-destroy", "-json"]);
    if going.code != 0 || !live.told(&going).is_empty() {
        wrong.push(format!("a destroy: {}", going.text));
    }
    wrong
}

#[test]
fn edits_on_forty_live_nodes_are_told_as_reviewed() {
    let Some(cluster) = Cluster::find("edits_on_forty_live_nodes_are_told_as_reviewed") else { return };
    let _turn = crate::claims();
    let wrong = on_nodes(&cluster, "forty", objects::NODES, |live, stand| {
        let still = stand.plan();
        let mut wrong = match still.code {
            0 => vec![],
            _ => vec![format!("something changes by itself: {}", still.text)],
        };
        let mut check = |edit: &Edit| {
            let (mut run, mut told);
            let mut tries = 0;
            loop {
                run = stand.plan();
                told = live.told(&run);
                tries += 1;
                // a busy machine may have kept the API server from answering in time, which the plan says
                if tries == PLANS || !told.iter().any(|text| text.contains("the API server took too long")) {
                    break;
                }
            }
            if told != [reviewed(edit)] {
                let (name, about, reviewed) = (edit.name, edit.about, reviewed(edit));
                wrong.push(format!("{name} ({about})\nreviewed: {reviewed}\ntold: {}\n{}", told.join("\n"), run.text));
            }
        };
        for edit in &OF_POOL {
            stand.put("pool.json", &live.pool(edit.change));
            check(edit);
        }
        stand.put("pool.json", &live.pool(|_| {}));
        for edit in &OF_CLASS {
            stand.put("class.json", &live.class(edit.change));
            check(edit);
        }
        wrong.extend(unwanted(live, stand));
        stand.put("class.json", &live.class(|_| {}));
        wrong
    });
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n\n"));
}

/// How long the provider says that it looked at the nodes.
fn took_ms(log: &str) -> Option<u64> {
    let line = log.lines().rfind(|line| line.contains("looked at the nodes of a change"))?;
    let digits = line.split("took_ms=").nth(1)?;
    digits.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

#[test]
fn a_change_of_a_thousand_live_nodes_is_told_in_two_seconds() {
    let Some(cluster) = Cluster::find("a_change_of_a_thousand_live_nodes_is_told_in_two_seconds") else { return };
    let _turn = crate::claims();
    let wrong = on_nodes(&cluster, "thousand", 1_000, |live, stand| {
        let label = live.pool(|pool| pool["spec"]["template"]["metadata"]["labels"]["team"] = json!("b"));
        let kubelet = live.class(|class| class["spec"]["kubelet"]["maxPods"] = json!(110));
        let mut wrong = Vec::new();
        for (file, edited, before) in
            [("pool.json", label, live.pool(|_| {})), ("class.json", kubelet, live.class(|_| {}))]
        {
            stand.put(file, &edited);
            let plan = || {
                let (run, log) = stand.plan_with_log();
                let told = live.told(&run).join("\n");
                let whole = told.contains("1000 of 1000 nodes will be replaced")
                    && told.contains("\n4 cannot be disrupted now: ");
                match took_ms(&log) {
                    Some(took) if whole && took <= LIMIT_MS => Ok(took),
                    took => Err(format!("{file}: {took:?} ms: {told}\n{}", run.text)),
                }
            };
            let mut seen = plan();
            for _ in 1..TRIES {
                if seen.is_err() {
                    seen = plan();
                }
            }
            match seen {
                Ok(took) => eprintln!("{file}: a change of 1,000 live nodes was previewed in {took} ms"),
                Err(late) => wrong.push(late),
            }
            stand.put(file, &before);
        }
        wrong
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
