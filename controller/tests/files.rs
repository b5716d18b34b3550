//! The subcommands that answer from files, run as a user runs them.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

/// A directory of its own, gone at the end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("karp-files-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Dir(path)
    }

    fn put(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files").join(name)
}

fn karp<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    Command::new(env!("CARGO_BIN_EXE_karp")).args(args).env("RUST_BACKTRACE", "0").output().unwrap()
}

/// Simulates on the fixture's types at a fixed time.
fn simulate(files: &[&Path], more: &[&str]) -> Output {
    let types = fixture("types.json");
    let mut args: Vec<&std::ffi::OsStr> = vec!["simulate".as_ref(), "-f".as_ref()];
    args.extend(files.iter().map(|file| file.as_os_str()));
    args.extend(["--now".as_ref(), "2026-11-21T12:00:00Z".as_ref(), "--instance-types".as_ref(), types.as_os_str()]);
    args.extend(more.iter().map(AsRef::<std::ffi::OsStr>::as_ref));
    karp(args)
}

fn answer(files: &[&Path], more: &[&str]) -> Value {
    let more: Vec<&str> = ["-o", "json"].iter().chain(more).copied().collect();
    let output = simulate(files, &more);
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Takes out what differs from run to run: times, and where temporary files are.
fn steady(text: &[u8], dir: Option<&Dir>) -> String {
    let mut text = String::from_utf8(text.to_vec()).unwrap();
    if let Some(dir) = dir {
        text = text.replace(dir.0.to_str().unwrap(), "DIR");
    }
    let solved =
        |line: &str| if line.starts_with("Solved in ") { "Solved in TIME.".to_owned() } else { line.to_owned() };
    text.lines().map(|line| solved(line) + "\n").collect()
}

fn pod(name: &str, cpu: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}})
}

fn gz(text: &str) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(text.as_bytes()).unwrap();
    packed.finish().unwrap()
}

#[test]
fn people_read_a_table() {
    let output = simulate(&[&fixture("cluster.yaml")], &[]);
    assert_eq!(output.status.code(), Some(2));
    insta::assert_snapshot!(steady(&output.stdout, None));
}

#[test]
fn people_read_what_is_kept() {
    let dir = Dir::new("kept");
    let file = dir.put("kept.yaml", std::fs::read(fixture("kept.yaml")).unwrap());
    let output = simulate(&[&file], &[]);
    assert_eq!(output.status.code(), Some(0), "only pods decide the exit code");
    insta::assert_snapshot!(steady(&output.stdout, None) + &steady(&output.stderr, Some(&dir)));
}

#[test]
fn programs_read_json() {
    let answer = answer(&[&fixture("cluster.yaml")], &["--repeat", "3"]);
    let keys: Vec<&str> = answer.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["nodeClaims", "placements", "pricePerHour", "solveSeconds", "unschedulable"]);
    let (min, median) = (&answer["solveSeconds"]["min"], &answer["solveSeconds"]["median"]);
    assert!(min.as_f64().unwrap() > 0.0 && min.as_f64() <= median.as_f64());
    assert_eq!(answer["placements"], json!([{"pod": "default/small", "node": "by-hand"}]));
    let claims = answer["nodeClaims"].as_array().unwrap();
    let mut pods: Vec<&str> =
        claims.iter().flat_map(|c| c["pods"].as_array().unwrap()).map(|p| p.as_str().unwrap()).collect();
    pods.sort_unstable();
    assert_eq!(pods, ["default/wide-0", "default/wide-1"]);
    for claim in claims {
        assert_eq!(claim["nodePool"], "general");
        assert_eq!(claim["capacityType"], "on-demand");
        assert!(claim["instanceTypes"].as_array().is_some_and(|types| !types.is_empty()));
    }
    let price: f64 = claims.iter().map(|claim| claim["price"].as_f64().unwrap()).sum();
    assert!((price - answer["pricePerHour"].as_f64().unwrap()).abs() < 1e-9);
    let refused: Vec<&str> =
        answer["unschedulable"].as_array().unwrap().iter().map(|u| u["pod"].as_str().unwrap()).collect();
    assert_eq!(refused, ["default/huge", "default/legacy", "default/gated"]);
}

#[test]
fn every_form_of_input_gives_the_same_answer() {
    let dir = Dir::new("forms");
    let pods = [pod("a", "1"), pod("b", "2"), pod("c", "3")];
    let bare = json!(pods).to_string();
    let untyped: Vec<Value> =
        pods.iter().map(|pod| json!({"metadata": pod["metadata"], "spec": pod["spec"]})).collect();
    let yaml = |value: &Value| serde_saphyr::to_string(value).unwrap();
    let forms = [
        ("list.json", json!({"apiVersion": "v1", "kind": "List", "items": pods}).to_string()),
        ("pods.json", json!({"apiVersion": "v1", "kind": "PodList", "items": untyped}).to_string()),
        ("array.json", bare.clone()),
        ("untyped.json", json!(untyped).to_string()),
        ("stream.json", pods.iter().map(|pod| format!("{pod}\n")).collect()),
        ("list.yaml", yaml(&json!({"apiVersion": "v1", "kind": "List", "items": pods}))),
        ("pods.yaml", yaml(&json!({"apiVersion": "v1", "kind": "PodList", "items": untyped}))),
        ("array.yaml", yaml(&json!(pods))),
        ("documents.yaml", pods.iter().map(|pod| format!("# a pod\n---\n{}", yaml(pod))).collect()),
        ("flow.yml", format!("# braces\n{bare}\n...\n")),
    ];
    let wanted = {
        let mut answer = answer(&[&dir.put("plain.json", &bare)], &[]);
        answer["solveSeconds"] = Value::Null;
        answer
    };
    assert_eq!(wanted["unschedulable"], json!([]));
    let check = |path: &Path| {
        let mut answer = answer(&[path], &[]);
        answer["solveSeconds"] = Value::Null;
        assert_eq!(answer, wanted, "{}", path.display());
    };
    for (name, text) in &forms {
        check(&dir.put(name, text));
        check(&dir.put(&format!("{name}.gz"), gz(text)));
    }
    dir.put("tree/b/one.yaml", yaml(&pods[0]));
    dir.put("tree/a.json.gz", gz(&json!(pods[1..]).to_string()));
    dir.put("tree/.hidden.yaml", "not: [read");
    dir.put("tree/notes.txt", "not read either");
    check(&dir.0.join("tree"));
}

#[test]
fn bad_input_is_told_by_file_and_line() {
    let dir = Dir::new("bad");
    let broken = |cpu: &str| pod("sick", cpu).to_string();
    let cases: &[(&str, String)] = &[
        ("quantity.yaml", format!("---\n# one good, one bad\n{}\n---\n{}\n", pod("well", "1"), broken("one"))),
        ("type.yaml", "apiVersion: v1\nkind: Pod\nmetadata:\n  name: sick\nspec:\n  containers: many\n".to_owned()),
        ("syntax.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: sick\nspec: 1\n".to_owned()),
        ("syntax.json", "[{\"kind\": \"Pod\",\n  \"metadata\": {\"name\": \"sick\",}}]".to_owned()),
        ("type.json", format!("[{},\n{}]", pod("well", "1"), "{\"kind\": \"Pod\", \"metadata\": {\"name\": \"sick\"},\n\n \"spec\": 7}")),
        ("list.yaml", "kind: PodList\nitems:\n- metadata: {name: sick}\n  spec: {priority: high}\n".to_owned()),
        ("double.json", format!("[{},\n{}]", pod("twin", "1"), pod("twin", "2"))),
        ("nameless.yaml", "apiVersion: v1\nkind: Pod\nspec: {containers: []}\n".to_owned()),
        ("version.yaml", "apiVersion: karpenter.sh/v1beta1\nkind: NodePool\nmetadata: {name: old}\n".to_owned()),
        ("kindless.yaml", "\n\nmetadata: {name: what}\n".to_owned()),
        ("pool.yaml", concat!(
            "apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {name: wrong}\nspec:\n  weight: 101\n  template:\n    spec:\n",
            "      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}\n      requirements: []\n").to_owned()),
        ("buffer.yaml", concat!(
            "apiVersion: v1\nkind: PodTemplate\nmetadata: {name: t}\n---\n# says how many twice over\n",
            "apiVersion: autoscaling.x-k8s.io/v1beta1\nkind: CapacityBuffer\nmetadata: {name: room, namespace: shop}\n",
            "spec: {podTemplateRef: {name: t}, scalableRef: {kind: Deployment, name: web}, replicas: -1}\n").to_owned()),
        ("alpha.yaml", "apiVersion: autoscaling.x-k8s.io/v1alpha1\nkind: CapacityBuffer\nmetadata: {name: old}\n".to_owned()),
        ("template.yaml", "apiVersion: v1\nkind: PodTemplate\nmetadata: {name: t}\ntemplate:\n  spec:\n    containers: 1\n".to_owned()),
        ("empty.json", "3".to_owned()),
        ("twice.yaml", "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  name: b\n".to_owned()),
        ("tab.yaml", "apiVersion: v1\nkind: Pod\nmetadata:\n\tname: a\n".to_owned()),
        ("requirement.yaml", format!("{POOL}  template:\n    spec:\n      requirements:\n      - kubernetes.io/arch In amd64\n")),
        ("policy.yaml", format!("{POOL}  disruption:\n    budgets: []\n    consolidationPolicy: Never\n")),
        ("map.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: sick}\nspec:\n  containers:\n    name: c\n".to_owned()),
        ("path.json", "{\"kind\": \"Pod\", \"metadata\": {\"name\": \"sick\"}, \"spec\": {\"containers\": [{\"name\": \"c\", \"ports\": [{\"containerPort\": \"http\"}]}]}}".to_owned()),
        ("older.yaml", "apiVersion: karpenter.k8s.aws/v1beta1\nkind: EC2NodeClass\nmetadata: {name: old}\n".to_owned()),
        ("negative.yaml", format!("%YAML 1.2\n---\n{}\n", broken("-1"))),
    ];
    let mut report = String::new();
    for (name, text) in cases {
        let output = simulate(&[&dir.put(name, text)], &[]);
        assert_eq!(output.status.code(), Some(1), "{name}: {}", String::from_utf8_lossy(&output.stdout));
        assert!(output.stdout.is_empty(), "{name}");
        report += &steady(&output.stderr, Some(&dir));
    }
    report += &steady(&simulate(&[&dir.0.join("missing.yaml")], &[]).stderr, Some(&dir));
    let unzipped = [&gz("[]")[..12], &[0, 0]].concat();
    report += &steady(&simulate(&[&dir.put("cut.json.gz", unzipped)], &[]).stderr, Some(&dir));
    let types = dir.put("types.json", "[\n{\"name\": \"t\", \"offerings\": []}]");
    let bad_types = karp([
        "simulate",
        "-f",
        fixture("cluster.yaml").to_str().unwrap(),
        "--instance-types",
        types.to_str().unwrap(),
    ]);
    report += &steady(&bad_types.stderr, Some(&dir));
    insta::assert_snapshot!(report);
}

const POOL: &str = "apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {name: wrong}\nspec:\n";

/// The API server passes such fields over, and so does karp: not in silence.
#[test]
fn fields_that_the_api_does_not_have_are_told() {
    let dir = Dir::new("typos");
    let pool = format!(
        "{POOL}  limit:\n    cpu: 10\n  template:\n    spec:\n      nodeClassRef: {{group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}}\n      requirements: []\n  expireAfter: 10m\n  colour: red\n"
    );
    let old = "---\napiVersion: karpenter.sh/v1alpha5\nkind: Provisioner\nmetadata: {name: old}\n";
    let output = simulate(&[&dir.put("pool.yaml", pool + old)], &[]);
    assert_eq!(output.status.code(), Some(0));
    let says = [
        "warning: DIR/pool.yaml:14: Provisioner is not read: a NodePool (karpenter.sh/v1) takes its place; `karp migrate -f` writes it as Terraform",
        "warning: DIR/pool.yaml:12: NodePool wrong: spec.colour: is not a field of this API; it is passed over",
        "warning: DIR/pool.yaml:11: NodePool wrong: spec.expireAfter: is not a field of this API; did you mean spec.template.spec.expireAfter?; it is passed over",
        "warning: DIR/pool.yaml:6: NodePool wrong: spec.limit: is not a field of this API; did you mean spec.limits?; it is passed over",
    ];
    let told = steady(&output.stderr, Some(&dir));
    let mut told: Vec<&str> = told.lines().collect();
    told.sort_unstable();
    let mut says = says.to_vec();
    says.sort_unstable();
    assert_eq!(told, says);
}

#[test]
fn what_was_made_to_break_the_reader_is_refused() {
    let dir = Dir::new("nested");
    let lists = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let typed = format!("{}[]{}", r#"{"items":"#.repeat(100_000), "}".repeat(100_000));
    for (name, text) in [("lists.json", lists), ("typed.json", typed)] {
        let output = simulate(&[&dir.put(name, text)], &[]);
        assert_eq!(output.status.code(), Some(1), "{name}: {:?}", output.status);
        let told = steady(&output.stderr, Some(&dir));
        assert!(told.contains(&format!("{name}:1: lists are nested more than 64 deep")), "{told}");
    }
}

#[test]
fn pods_are_taken_as_the_api_server_would_admit_them() {
    let dir = Dir::new("admitted");
    let refused = |name: &str, objects: &Value, more: &[&str]| {
        let answer = answer(&[&dir.put(name, objects.to_string())], more);
        answer["unschedulable"].as_array().unwrap().len()
    };
    // its limit range asks for more than any type has
    let template = json!({"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "c"}]}});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"replicas": 2, "template": template}});
    let range = |namespace: &str| {
        json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "r", "namespace": namespace},
            "spec": {"limits": [{"type": "Container", "defaultRequest": {"cpu": "100000"}}]}})
    };
    assert_eq!(refused("own.json", &json!([deployment, range("shop")]), &["--expand"]), 2);
    assert_eq!(refused("other.json", &json!([deployment, range("else")]), &["--expand"]), 0);
    // a volume that a pod brings along is of the default class
    let mut scratch = pod("scratch", "1");
    let size = json!({"resources": {"requests": {"storage": "1Gi"}}, "accessModes": ["ReadWriteOnce"]});
    scratch["spec"]["volumes"] = json!([{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": size}}}]);
    let class = |default: &str| {
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "ebs.csi.aws.com",
            "volumeBindingMode": "WaitForFirstConsumer",
            "metadata": {"name": "gp3", "annotations": {"storageclass.kubernetes.io/is-default-class": default}}})
    };
    assert_eq!(refused("default.json", &json!([scratch, class("true")]), &[]), 0);
    assert_eq!(refused("none.json", &json!([scratch, class("false")]), &[]), 1);
}

/// An overlay on one instance type.
fn overlay(name: &str, kind: &str, spec: &[(&str, Value)]) -> Value {
    let mut object = json!({"apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": {"name": name},
        "spec": {"requirements": [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [kind]}]}});
    spec.iter().for_each(|(field, value)| object["spec"][field] = value.clone());
    object
}

#[test]
fn overlays_in_files_change_prices_and_capacities() {
    let dir = Dir::new("overlays");
    let put = |name: &str, objects: &[Value]| dir.put(name, Value::from(objects).to_string());
    let small = pod("small", "1");
    let first = |answer: &Value| answer["nodeClaims"][0]["instanceTypes"][0].clone();
    let plain = answer(&[&put("plain.json", std::slice::from_ref(&small))], &[]);
    assert_eq!((first(&plain), &plain["pricePerHour"]), (json!("m7i.xlarge"), &json!(0.2016)));
    let paid = overlay("paid", "m7i.2xlarge", &[("priceAdjustment", json!("-75%"))]);
    let cheaper = answer(&[&put("paid.json", &[small.clone(), paid.clone()])], &[]);
    assert_eq!((first(&cheaper), &cheaper["pricePerHour"]), (json!("m7i.2xlarge"), &json!(0.1008)));
    let mut devices = small.clone();
    devices["spec"]["containers"][0]["resources"]["limits"] = json!({"example.com/fuse": "1"});
    let fuse = overlay("fuse", "m7i.2xlarge", &[("capacity", json!({"example.com/fuse": "4"}))]);
    let held = answer(&[&put("fuse.json", &[devices, fuse])], &[]);
    assert_eq!((first(&held), &held["unschedulable"]), (json!("m7i.2xlarge"), &json!([])));
    // one that its cluster has left out is of no effect, one that is wrong is told
    let mut left_out = paid.clone();
    left_out["status"] = json!({"conditions": [{"type": "Ready", "status": "False", "reason": "Conflict", "message": "",
        "lastTransitionTime": "2026-11-21T12:00:00Z"}]});
    let without = answer(&[&put("left.json", &[small.clone(), left_out])], &[]);
    assert_eq!(without["pricePerHour"], plain["pricePerHour"]);
    let mut report = String::new();
    let at_odds = overlay("other", "m7i.2xlarge", &[("price", json!("1"))]);
    let signless = overlay("signless", "m7i.2xlarge", &[("priceAdjustment", json!("5"))]);
    for (name, more) in [("odds.json", vec![paid, at_odds]), ("wrong.json", vec![signless])] {
        let output = simulate(&[&put(name, &[vec![small.clone()], more].concat())], &[]);
        assert_eq!(output.status.code(), Some(1), "{name}");
        report += &steady(&output.stderr, Some(&dir));
    }
    let odds =
        "NodeOverlay other: has the weight of paid, and both speak of m7i.2xlarge; set spec.weight of one of them";
    assert!(report.contains(odds), "{report}");
    let signless = r#"NodeOverlay signless: spec.priceAdjustment: "5" is not an amount or a share with its sign"#;
    assert!(report.contains(signless), "{report}");
}

#[test]
fn a_bad_command_line_is_bad_input_too() {
    assert_eq!(karp(["simulate"]).status.code(), Some(1));
    assert_eq!(simulate(&[&fixture("cluster.yaml")], &["--repeat", "0"]).status.code(), Some(1));
    assert_eq!(karp(["simulate", "--help"]).status.code(), Some(0));
}

#[test]
fn no_zone_is_no_zone_to_buy_in() {
    for command in [&["instance-types"][..], &["simulate", "-f", "-"]] {
        let output = karp(command.iter().chain(&["--zones", ""]));
        assert_eq!(output.status.code(), Some(1));
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.contains("'--zones <ZONE>'") && told.contains("a zone is wanted, such as us-east-1a"), "{told}");
    }
}

#[test]
fn a_reader_that_has_enough_is_no_failure() {
    for command in [&["instance-types"][..], &["instance-types", "-o", "json"], &["crds"]] {
        let mut karp = Command::new(env!("CARGO_BIN_EXE_karp"));
        let mut child = karp.args(command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // far less than all of it, so that karp still writes when nobody reads any more
        child.stdout.take().unwrap().read_exact(&mut [0; 64]).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{command:?}");
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn workloads_become_pods_when_asked() {
    let dir = Dir::new("expand");
    let template = json!({"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "100m"}}}]}});
    let workload = |version: &str, kind: &str, name: &str, spec: Value| {
        let mut spec = spec;
        spec["template"] = template.clone();
        json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "shop"}, "spec": spec})
    };
    let mut owned = pod("web-5f7c-abcde", "1");
    owned["metadata"] = json!({"name": "web-5f7c-abcde", "namespace": "shop", "ownerReferences": [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5f7c", "uid": "1", "controller": true}]});
    // an ended pod is no longer one of its workload's, and a job needs no more pods than are left to succeed
    let mut gone = with_name(&owned, "web-5f7c-gone");
    gone["status"] = json!({"phase": "Failed"});
    let job = |name: &str, status: Value| {
        let mut job = workload("batch/v1", "Job", name, json!({"parallelism": 3, "completions": 5}));
        job["status"] = status;
        job
    };
    let ended = |kind: &str| json!({"conditions": [{"type": kind, "status": "True"}]});
    let objects = json!([
        gone,
        job("done", ended("Complete")),
        job("failed", ended("Failed")),
        job("half", json!({"succeeded": 4})),
        workload("apps/v1", "StatefulSet", "late", json!({"replicas": 1, "ordinals": {"start": 5}})),
        workload("apps/v1", "Deployment", "web", json!({"replicas": 3})),
        workload("apps/v1", "StatefulSet", "db", json!({"replicas": 2})),
        workload("batch/v1", "Job", "once", json!({"parallelism": 4, "completions": 2})),
        workload("batch/v1", "Job", "held", json!({"parallelism": 4, "suspend": true})),
        owned,
    ]);
    let file = dir.put("objects.json", objects.to_string());
    let placed = |more: &[&str]| {
        let answer = answer(&[&file], more);
        assert_eq!(answer["unschedulable"], json!([]));
        let claims = answer["nodeClaims"].as_array().unwrap();
        let pods = claims.iter().flat_map(|c| c["pods"].as_array().unwrap()).map(|p| p.as_str().unwrap().to_owned());
        let mut pods: Vec<String> = pods.collect();
        pods.sort();
        pods
    };
    assert_eq!(placed(&[]), ["shop/web-5f7c-abcde"]);
    let all = ["db-0", "db-1", "half-0", "late-5", "once-0", "once-1", "web-1", "web-2", "web-5f7c-abcde"];
    assert_eq!(placed(&["--expand"]), all.map(|name| format!("shop/{name}")));
}

fn with_name(pod: &Value, name: &str) -> Value {
    let mut pod = pod.clone();
    pod["metadata"]["name"] = json!(name);
    pod
}

#[test]
fn instance_types_are_listed_and_read_back() {
    let wanted = ["-r", "karpenter.k8s.aws/instance-family In m7i,c7g", "-r", "karpenter.k8s.aws/instance-cpu Lt 9"];
    let output = karp(["instance-types", "-o", "json"].iter().chain(&wanted));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let types: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<&str> = types.iter().map(|kind| kind["name"].as_str().unwrap()).collect();
    let expected = ["c7g.2xlarge", "c7g.large", "c7g.medium", "c7g.xlarge", "m7i.2xlarge", "m7i.large", "m7i.xlarge"];
    assert_eq!(names, expected);
    let large = &types[5];
    assert_eq!(large["labels"]["karpenter.k8s.aws/instance-memory"], "8192");
    assert_eq!(large["allocatable"]["cpu"], "1930m");
    assert!(large["offerings"].as_array().unwrap().iter().all(|offering| offering["estimated"] == true));
    let dir = Dir::new("types");
    let file = dir.put("types.json", &output.stdout);
    let again = karp(["instance-types", "-o", "json", "--instance-types", file.to_str().unwrap()]);
    assert_eq!(again.stdout, output.stdout);
    let typo = karp(["instance-types", "-r", "karpenter.k8s.aws/instance-famly In m7i"]);
    assert_eq!(typo.status.code(), Some(1));
    let told = String::from_utf8_lossy(&typo.stderr).into_owned();
    assert!(told.contains("did you mean karpenter.k8s.aws/instance-family?"), "{told}");
    let table = karp(["instance-types"].iter().chain(&wanted));
    insta::assert_snapshot!(String::from_utf8(table.stdout).unwrap());
}

#[test]
fn a_pod_is_explained() {
    let (file, types) = (fixture("cluster.yaml"), fixture("types.json"));
    let explain = |pod: &str, more: &[&str]| {
        let args = ["explain", "pod", pod, "-f", file.to_str().unwrap(), "--instance-types", types.to_str().unwrap()];
        karp(args.iter().chain(more))
    };
    let mut report = String::new();
    for (pod, code) in [("default/huge", 2), ("legacy", 2), ("gated", 2), ("small", 0), ("default/wide-1", 0)] {
        let output = explain(pod, &[]);
        assert_eq!(output.status.code(), Some(code), "{pod}: {}", String::from_utf8_lossy(&output.stderr));
        report += &(String::from_utf8(output.stdout).unwrap() + "\n");
    }
    insta::assert_snapshot!(report);
    let data: Value = serde_json::from_slice(&explain("huge", &["-o", "json"]).stdout).unwrap();
    assert_eq!(data["outcome"]["kind"], "refused");
    let too_big = json!({"kind": "room", "resource": "cpu", "wanted": "500", "largest": "7910m"});
    let step = json!({"asked": "pod: cpu 500 (at most 7910m)", "why": too_big, "removed": 2,
        "types": ["m7i.2xlarge", "m7i.xlarge"], "left": 0});
    assert_eq!(data["pools"][0]["steps"][0], step);
    let why = json!({"kind": "pool", "pool": "general", "misfit":
        {"kind": "tooBig", "resource": "cpu", "wanted": "500", "largest": "7910m"}});
    assert_eq!(data["outcome"]["reasons"][0]["why"], why);
    assert_eq!(explain("nobody", &[]).status.code(), Some(1));
}

#[test]
fn commands_and_kept_nodes_are_told() {
    let fleet = fixture("fleet.yaml");
    let told = |more: &[&str]| -> Value {
        let output = simulate(&[&fleet], &[&["--disrupt", "-o", "json"], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let now = told(&[]);
    assert_eq!(names(&now), ["commands", "kept", "pricePerHourAfter", "pricePerHourBefore"]);
    let gone = json!([{"method": "emptiness", "reason": "Empty", "candidates": ["empty"], "replacements": [],
        "savingsPerHour": 0.2016, "evictions": 0}]);
    assert_eq!(now["commands"], gone);
    let kept: Vec<&str> = now["kept"].as_array().unwrap().iter().map(|kept| kept["node"].as_str().unwrap()).collect();
    assert_eq!(kept, ["by-hand", "guarded", "large", "small"]);
    let dollars = |answer: &Value, key: &str| answer[key].as_f64().unwrap();
    assert!((dollars(&now, "pricePerHourBefore") - 1.2096).abs() < 1e-9);
    assert!((dollars(&now, "pricePerHourAfter") - 1.008).abs() < 1e-9);

    let end = told(&["--until-stable"]);
    assert_eq!(end["commands"].as_array().unwrap().len(), 2);
    let replaced = &end["commands"][1];
    assert_eq!((&replaced["candidates"], &replaced["evictions"]), (&json!(["large"]), &json!(1)));
    assert_eq!(replaced["method"], "single-node-consolidation");
    let replacement = &replaced["replacements"][0];
    assert_eq!(names(replacement), ["capacityType", "instanceTypes", "price", "zone"]);
    assert_eq!(replacement["instanceTypes"], json!(["m7i.xlarge"]));
    assert_eq!((&end["passes"], &end["evictions"], &end["stable"]), (&json!(4), &json!(1), &json!(true)));
    assert_eq!(end["path"].as_array().unwrap().len(), 2);
    assert!((dollars(&end, "pricePerHourBefore") - 1.2096).abs() < 1e-9);
    assert!((dollars(&end, "pricePerHourAfter") - 0.8064).abs() < 1e-9);
    assert_eq!(end["path"][1]["pricePerHour"], end["pricePerHourAfter"]);
}

#[test]
fn people_read_what_would_be_taken_away() {
    let fleet = fixture("fleet.yaml");
    let mut report = String::new();
    for more in [&["--disrupt"][..], &["--disrupt", "--until-stable"]] {
        let output = simulate(&[&fleet], more);
        report += &steady(&output.stdout, None);
        report += &steady(&output.stderr, None);
        report += "\n";
    }
    insta::assert_snapshot!(report);
    assert_eq!(simulate(&[&fleet], &["--until-stable"]).status.code(), Some(1), "it needs --disrupt");
}

/// Prices of nodes and replacements are marked, not those of types that nothing is made of.
#[test]
fn only_estimates_that_are_told_are_marked() {
    let dir = Dir::new("estimates");
    let fleet = fixture("fleet.yaml");
    let told = |name: &str, types: &[Value], more: &[&str]| {
        let types = dir.put(name, json!(types).to_string());
        let (fleet, types) = (fleet.to_str().unwrap(), types.to_str().unwrap());
        let args = ["simulate", "--disrupt", "-f", fleet, "--now", "2026-11-21T12:00:00Z", "--instance-types", types];
        let output = karp(args.iter().chain(more));
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let mut types: Vec<Value> = serde_json::from_slice(&std::fs::read(fixture("types.json")).unwrap()).unwrap();
    let mut other = types[0].clone();
    other["name"] = json!("m7i.8xlarge");
    for offering in other["offerings"].as_array_mut().unwrap() {
        offering["price"] = json!(9.9);
        offering["estimated"] = json!(true);
    }
    types.push(other);
    assert!(!told("other.json", &types, &[]).contains('~'));
    for offering in types[0]["offerings"].as_array_mut().unwrap() {
        offering["estimated"] = json!(true);
    }
    assert!(told("own.json", &types, &[]).contains("~$1.2096 an hour now"));
    let answer: Value = serde_json::from_str(&told("json.json", &types, &["--until-stable", "-o", "json"])).unwrap();
    assert_eq!(answer["commands"][1]["replacements"][0]["estimated"], true);
    assert_eq!((&answer["commands"][1]["estimated"], &answer["estimated"]), (&json!(true), &json!(true)));
}

/// Nodes may come and go by no command: pods that wait, or that leave a node which drains.
#[test]
fn a_way_without_a_command_is_told() {
    let dir = Dir::new("draining");
    let labels = json!({"karpenter.sh/nodepool": "general", "karpenter.sh/capacity-type": "on-demand",
        "node.kubernetes.io/instance-type": "m7i.xlarge", "topology.kubernetes.io/zone": "us-east-1b"});
    let room = json!({"cpu": "3920m", "memory": "14Gi", "pods": "58"});
    let going = json!({"apiVersion": "v1", "kind": "Node", "status": {"allocatable": room, "capacity": room},
        "metadata": {"name": "going", "labels": labels, "deletionTimestamp": "2026-11-21T11:58:00Z",
            "finalizers": ["karpenter.sh/termination"]}});
    let on_demand = json!({"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]});
    let class = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"});
    let pool = json!({"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "general"},
        "spec": {"template": {"spec": {"nodeClassRef": class, "requirements": [on_demand]}}}});
    let mut moved = pod("moved", "3");
    moved["spec"]["nodeName"] = json!("going");
    moved["status"] = json!({"phase": "Running"});
    let file = dir.put("going.json", json!([pool, going, moved]).to_string());
    let told = |more: &[&str]| {
        let output = simulate(&[&file], &[&["--disrupt", "--until-stable"], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let table = told(&[]);
    assert!(!table.contains("Nothing to do"), "{table}");
    assert!(table.contains("1 node taken away, 1 launched."), "{table}");
    let answer: Value = serde_json::from_str(&told(&["-o", "json"])).unwrap();
    let first = &answer["path"][0];
    assert_eq!((&first["change"], &first["launched"], &first["removed"]), (&json!("provision"), &json!(1), &json!(1)));
}

#[test]
fn a_gate_that_there_is_not_is_told() {
    let output = simulate(&[&fixture("fleet.yaml")], &["--disrupt", "--feature-gates", "NodeRepear=true"]);
    assert_eq!(output.status.code(), Some(0));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("there is no feature gate \"NodeRepear\""), "{told}");
}

#[test]
fn a_node_is_explained() {
    let (file, types) = (fixture("fleet.yaml"), fixture("types.json"));
    let explain = |node: &str, more: &[&str]| {
        let args = ["explain", "node", node, "-f", file.to_str().unwrap(), "--instance-types", types.to_str().unwrap()];
        karp(args.iter().chain(&["--now", "2026-11-21T12:00:00Z"]).chain(more))
    };
    let mut report = String::new();
    for node in ["large", "guarded", "small", "empty", "general-x7f2k", "by-hand"] {
        let output = explain(node, &[]);
        assert_eq!(output.status.code(), Some(0), "{node}: {}", String::from_utf8_lossy(&output.stderr));
        report += &(String::from_utf8(output.stdout).unwrap() + "\n");
    }
    insta::assert_snapshot!(report);
    let data: Value = serde_json::from_slice(&explain("guarded", &["-o", "json"]).stdout).unwrap();
    let reason = "pod default/precious has karpenter.sh/do-not-disrupt";
    assert_eq!(data["outcome"], json!({"kind": "kept", "code": "pod_protected", "reason": reason}));
    assert_eq!((&data["nodePool"], &data["pods"]), (&json!("general"), &json!(1)));
    assert_eq!(explain("nobody", &[]).status.code(), Some(1));
}

#[test]
fn a_draining_node_says_what_holds_it() {
    let (file, types) = (fixture("draining.yaml"), fixture("types.json"));
    let explain = |node: &str, more: &[&str]| {
        let args = ["explain", "node", node, "-f", file.to_str().unwrap(), "--instance-types", types.to_str().unwrap()];
        karp(args.iter().chain(&["--now", "2026-11-21T12:00:00Z"]).chain(more))
    };
    let mut report = String::new();
    for node in ["held", "attached", "empty"] {
        let output = explain(node, &[]);
        assert_eq!(output.status.code(), Some(0), "{node}: {}", String::from_utf8_lossy(&output.stderr));
        report += &(String::from_utf8(output.stdout).unwrap() + "\n");
    }
    insta::assert_snapshot!(report);
    let told = |node: &str| -> Value { serde_json::from_slice(&explain(node, &["-o", "json"]).stdout).unwrap() };
    let outcome = &told("general-x7f2k")["outcome"];
    let forced = "2026-11-21T12:27:30Z";
    let limit =
        json!({"kind": "budget", "budget": {"namespace": "default", "name": "web"}, "healthy": 2, "desired": 2});
    let web = outcome["pods"].as_array().unwrap().iter().find(|pod| pod["pod"] == "default/web-0").unwrap();
    assert_eq!((&web["why"], &web["waitedFor"], &web["forcedAt"]), (&limit, &json!(true), &json!(forced)));
    let (kind, next) = (json!("draining"), json!("pods"));
    assert_eq!((&outcome["kind"], &outcome["waitsFor"]), (&kind, &next));
    assert_eq!(outcome["volumes"], json!([{"volume": "pv-data", "claim": "default/data"}]));
    assert_eq!(told("attached")["outcome"]["waitsFor"], "volumes");
}
