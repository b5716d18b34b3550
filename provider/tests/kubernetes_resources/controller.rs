//! The controller: one that does not become ready or does not lead is told of and stays, and one that is in no state is imported.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::drain::PATIENCE;
use crate::stand::Cluster;
use crate::tofu::Run;
use crate::{PROVIDER_OF_DEMO, controllers};

fn config(namespace: &str, more: &str) -> String {
    format!(
        "{PROVIDER_OF_DEMO}resource \"karp_controller\" \"this\" {{\n  namespace = {namespace:?}\n  image = \"karp:nowhere\"\n{more}}}\n"
    )
}

/// What was told of a controller that is not ready.
fn told(run: &Run) -> String {
    let warnings = run.warnings();
    let found = warnings.iter().find(|warning| warning["summary"] == "The controller is not ready yet");
    found.unwrap_or_else(|| panic!("{}", run.text))["detail"].as_str().unwrap().to_owned()
}

#[test]
fn one_that_does_not_start_is_told_of_and_stays() {
    let Some(cluster) = Cluster::find("one_that_does_not_start_is_told_of_and_stays") else { return };
    let _turn = controllers();
    let name = cluster.unique("unready");
    let _namespace = cluster.namespace(&name);
    let crds = cluster.stand(&format!("{PROVIDER_OF_DEMO}{}", crate::CRDS));
    crds.apply();
    let stand = cluster.stand(&config(&name, "  replicas = 1\n  timeouts = { create = \"9s\" }\n"));
    let detail = told(&stand.apply());
    assert!(detail.contains("0 of 1 replicas available") && detail.contains("pod karpenter-"), "{detail}");

    // As a kubelet does that finds no such image.
    let pods = cluster.get(&["-n", &name, "pods"]);
    let pod = pods["items"][0]["metadata"]["name"].as_str().unwrap().to_owned();
    let waiting =
        json!({ "waiting": { "reason": "ImagePullBackOff", "message": "Back-off pulling image \"karp:nowhere\"" } });
    let status = json!({ "status": { "containerStatuses": [{ "name": "controller", "image": "karp:nowhere", "imageID": "",
        "ready": false, "restartCount": 0, "state": waiting }] } });
    let pod = pod.as_str();
    cluster.kubectl(&[
        "-n",
        &name,
        "patch",
        "pod",
        pod,
        "--subresource=status",
        "--type=merge",
        "-p",
        &status.to_string(),
    ]);
    cluster.create(&json!({ "apiVersion": "v1", "kind": "Event", "metadata": { "name": name, "namespace": name }, "type": "Warning",
        "involvedObject": { "kind": "Pod", "namespace": name, "name": pod }, "reason": "Failed", "lastTimestamp": "2100-01-01T00:00:00Z",
        "message": "failed to resolve reference karp:nowhere" }));
    // A claim that only it can end: a replacement would be refused.
    cluster.create(&json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": { "name": name },
        "spec": { "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "none" }, "requirements": [] } }));

    let plan = stand.plan();
    assert_eq!((plan.code, plan.changes()), (0, vec![]), "{}", plan.text);
    let detail = told(&plan);
    for words in
        ["ImagePullBackOff Back-off pulling image", "last event: Failed failed to resolve reference karp:nowhere"]
    {
        assert!(detail.contains(words), "{words}: {detail}");
    }
    // The next apply of a change waits again, and changes it in place.
    stand.write(&config(&name, "  replicas = 1\n  log_level = \"debug\"\n  timeouts = { update = \"6s\" }\n"));
    assert_eq!(stand.plan().changes(), [("update".to_owned(), "karp_controller.this".to_owned())]);
    told(&stand.apply());
    stand.write(&config(&name, "  replicas = 0\n"));
    stand.apply();
    let run = stand.assert_empty_plan();
    assert!(!run.text.contains("not ready yet"), "{}", run.text);
    cluster.kubectl(&["delete", "nodeclaim", &name]);
    stand.destroy();
    assert_eq!(cluster.get(&["-n", &name, "deployment", "karpenter"]), Value::Null);
}

/// Waits for a pod that was not there before, and makes it ready, as a kubelet does; gives its name.
fn ready(cluster: &Cluster, namespace: &str, before: &str) -> String {
    let begin = Instant::now();
    let pod = loop {
        let pods = cluster.get(&["-n", namespace, "pods"]);
        let mut names =
            pods["items"].as_array().into_iter().flatten().filter_map(|pod| pod["metadata"]["name"].as_str());
        if let Some(name) = names.find(|name| *name != before) {
            break name.to_owned();
        }
        assert!(begin.elapsed() < PATIENCE, "no pod was made");
        std::thread::sleep(Duration::from_millis(100));
    };
    let status = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } }).to_string();
    cluster.kubectl(&["-n", namespace, "patch", "pod", &pod, "--subresource=status", "--type=merge", "-p", &status]);
    pod
}

/// Holds a lease and renews it while something else goes on.
fn renewing<T>(cluster: &Cluster, namespace: &str, holder: &str, act: impl FnOnce() -> T) -> T {
    let now = || jiff::Timestamp::now().strftime("%FT%T.000000Z").to_string();
    let lease = ["-n", namespace, "lease", "karpenter-leader-election"];
    cluster.create(&json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": lease[3], "namespace": namespace },
        "spec": { "holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": now() } }));
    let (begin, stop) = (Instant::now(), AtomicBool::new(false));
    let done = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) && begin.elapsed() < PATIENCE {
                let renewal = json!({ "spec": { "renewTime": now() } }).to_string();
                cluster.kubectl(&[&lease[..2], &["patch"], &lease[2..], &["--type=merge", "-p", &renewal]].concat());
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        let done = act();
        stop.store(true, Ordering::Relaxed);
        done
    });
    cluster.kubectl(&[&lease[..2], &["delete"], &lease[2..]].concat());
    done
}

#[test]
fn it_is_waited_for_until_a_replica_leads_and_told_who_else_does() {
    let Some(cluster) = Cluster::find("it_is_waited_for_until_a_replica_leads_and_told_who_else_does") else { return };
    let _turn = controllers();
    let (name, other) = (cluster.unique("leads"), cluster.unique("leads-before"));
    let _namespaces = [cluster.namespace(&name), cluster.namespace(&other)];
    let apply = ["apply", "-json", "-auto-approve"];
    let of_lead = |run: &Run| -> Vec<String> {
        assert_eq!(run.code, 0, "{}", run.text);
        let all = run.warnings().into_iter().filter(|one| one["summary"].as_str().unwrap().contains("lead"));
        all.map(|one| one["detail"].as_str().unwrap().to_owned()).collect()
    };
    let text = |more: &str| {
        config(&name, &format!("  replicas = 1\n  timeouts = {{ create = \"16s\", update = \"60s\" }}\n{more}"))
    };

    // A Karpenter leads in another namespace: it is ready, and cannot do anything.
    let stand = cluster.stand(&text(""));
    let holder = "karpenter-6d4cf8b7-x2x4z_3f";
    let (run, pod) = renewing(&cluster, &other, holder, || {
        let running = stand.begin(&apply);
        let pod = ready(&cluster, &name, "");
        (running.end(), pod)
    });
    let told = of_lead(&run);
    let [detail] = &told[..] else { panic!("{}", run.text) };
    let words = format!("Lease {other}/karpenter-leader-election is held by {holder}");
    assert!(detail.contains(&words) && detail.contains("scale it to zero"), "{detail}");
    stand.assert_empty_plan();

    // A replica leads.
    stand.write(&text("  log_level = \"debug\"\n"));
    let running = stand.begin(&apply);
    let pod = ready(&cluster, &name, &pod);
    let run = renewing(&cluster, &name, &format!("{pod}_4a"), || running.end());
    assert_eq!(of_lead(&run), Vec::<String>::new(), "{}", run.text);
    stand.assert_empty_plan();

    // Nobody is asked where nobody leads.
    stand.write(&text("  extra_env = { DISABLE_LEADER_ELECTION = \"1\" }\n"));
    let running = stand.begin(&apply);
    ready(&cluster, &name, &pod);
    let run = running.end();
    assert_eq!(of_lead(&run), Vec::<String>::new(), "{}", run.text);
    stand.destroy();
}

const MUCH: &str = r#"
  replicas            = 0
  controller_role_arn = "arn:aws:iam::123456789012:role/c"
  interruption_queue  = "q"
  feature_gates       = { SpotToSpotConsolidation = true }
  resources           = { requests = { cpu = "1000m", memory = "1Gi" } }
  extra_env           = { A = "b" }
  extra_args          = ["--log-level=debug"]
  on_fargate          = false
  node_selector       = { a = "b" }
  labels              = { team = "a" }
  annotations         = { x = "y" }
  pod_annotations     = { p = "q" }
  image_pull_secrets  = ["s"]
  tolerations         = [{ key = "k", effect = "NoExecute", toleration_seconds = 5 }, { operator = "Exists" }]
  settings            = { batch_idle_duration = "2s", isolated_vpc = true, vm_memory_overhead_percent = 0.05 }
  host_network        = true
  more_pod_spec_json  = jsonencode({ dnsPolicy = "None", dnsConfig = { nameservers = ["10.0.0.2"] } })
  more_container_json = jsonencode({ envFrom = [{ secretRef = { name = "s" } }], securityContext = { runAsUser = 1 } })
  service_account_annotations = { s = "t" }
  affinity = {
    node_affinity = {
      required_during_scheduling_ignored_during_execution = {
        node_selector_terms = [{ match_expressions = [{ key = "kubernetes.io/arch", operator = "In", values = ["arm64"] }] }]
      }
    }
    pod_anti_affinity = {
      preferred_during_scheduling_ignored_during_execution = [{
        weight            = 100
        pod_affinity_term = { topology_key = "kubernetes.io/hostname", label_selector = { match_labels = { "a.b/aB" = "c" } } }
      }]
    }
  }
  pod_labels             = { "sidecar.example.com/inject" = "false" }
  service_annotations    = { "metrics.example.com/scheme" = "http" }
  pod_disruption_budget  = { min_available = "50%" }
  update_strategy        = { max_unavailable = "0", max_surge = "1" }
  revision_history_limit = 3
  topology_spread_constraints = [
    { max_skew = 1, topology_key = "topology.kubernetes.io/zone", when_unsatisfiable = "DoNotSchedule", min_domains = 2 },
    { max_skew = 2, topology_key = "kubernetes.io/hostname", when_unsatisfiable = "ScheduleAnyway", label_selector = { match_labels = { a = "b" } } },
  ]
"#;

#[test]
fn one_that_is_in_no_state_is_imported() {
    let Some(cluster) = Cluster::find("one_that_is_in_no_state_is_imported") else { return };
    let _turn = controllers();
    for (kind, more) in [("plain", "  replicas = 0\n"), ("much", MUCH)] {
        let name = cluster.unique(&format!("import-{kind}"));
        let found = (kind == "plain").then(|| cluster.namespace(&name));
        let text = config(&name, more);
        let maker = cluster.stand(&text);
        maker.apply();
        maker.assert_empty_plan();

        let by_id = cluster.stand(&text);
        let imported = by_id.tofu(&["import", "-no-color", "karp_controller.this", &format!("{name}/karpenter")]);
        assert_eq!(imported.code, 0, "{}", imported.text);
        by_id.assert_empty_plan();

        let block = format!("import {{\n  to = karp_controller.this\n  identity = {{ namespace = {name:?} }}\n}}\n");
        let by_identity = cluster.stand(&format!("{text}{block}"));
        by_identity.apply();
        by_identity.write(&text);
        by_identity.assert_empty_plan();
        by_identity.destroy();
        assert_eq!(cluster.get(&["namespace", &name]).is_object(), found.is_some(), "{kind}");
    }
    let nowhere = cluster.stand(&config("nowhere", ""));
    let missing = nowhere.tofu(&["import", "-no-color", "karp_controller.this", "nowhere/karpenter"]);
    assert!(missing.code == 1 && missing.text.contains("non-existent"), "{}", missing.text);
    let wrong = nowhere.tofu(&["import", "-no-color", "karp_controller.this", "nowhere/other"]);
    assert!(wrong.code == 1 && wrong.text.contains("NAMESPACE/karpenter"), "{}", wrong.text);
}

#[test]
fn where_it_runs_comes_changes_heals_and_goes() {
    let Some(cluster) = Cluster::find("where_it_runs_comes_changes_heals_and_goes") else { return };
    let _turn = controllers();
    let name = cluster.unique("place");
    let _namespace = cluster.namespace(&name);
    let place = |weight: &str, more: &str| {
        let affinity = format!(
            "  affinity = {{\n    node_affinity = {{\n      preferred_during_scheduling_ignored_during_execution = [{{ weight = {weight}, preference = \
             {{ match_expressions = [{{ key = \"a\", operator = \"Exists\" }}] }} }}]\n    }}\n  }}\n"
        );
        config(&name, &format!("  replicas = 0\n  on_fargate = false\n{affinity}{more}"))
    };
    // Known after the apply, as a weight that another resource tells.
    let later = "resource \"terraform_data\" \"weight\" {\n  input = 7\n}\n";
    let stand = cluster.stand(&(place("terraform_data.weight.output", "  host_network = true\n") + later));
    stand.apply();
    stand.assert_empty_plan();
    let pod = || cluster.get(&["-n", &name, "deployment", "karpenter"])["spec"]["template"]["spec"].clone();
    let preferred = || pod()["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"].clone();
    assert_eq!(preferred()[0]["weight"], 7);
    // It is in place of karp's own.
    assert_eq!(pod()["affinity"]["podAntiAffinity"], Value::Null);
    assert_eq!((&pod()["hostNetwork"], &pod()["dnsPolicy"]), (&json!(true), &json!("ClusterFirstWithHostNet")));

    let changes = [("update".to_owned(), "karp_controller.this".to_owned())];
    let spread = "  topology_spread_constraints = [{ max_skew = 1, topology_key = \"topology.kubernetes.io/zone\", when_unsatisfiable = \
                  \"DoNotSchedule\" }]\n";
    stand.write(&(place("8", spread) + later));
    assert_eq!(stand.apply().changes(), changes);
    stand.assert_empty_plan();
    let counted = &pod()["topologySpreadConstraints"][0];
    assert_eq!((&preferred()[0]["weight"], &pod()["hostNetwork"]), (&json!(8), &Value::Null));
    assert_eq!(pod()["containers"][0]["ports"][0]["hostPort"], Value::Null);
    assert_eq!(counted["labelSelector"]["matchLabels"]["app.kubernetes.io/name"], "karpenter", "{counted}");

    let patch = r#"[{"op":"replace","path":"/spec/template/spec/topologySpreadConstraints/0/maxSkew","value":5}]"#;
    cluster.kubectl(&["-n", &name, "patch", "deployment", "karpenter", "--type=json", "-p", patch]);
    assert_eq!(stand.plan().changes(), changes);
    stand.write(&(place("8", &format!("{spread}  force_conflicts = true\n")) + later));
    stand.apply();
    stand.assert_empty_plan();
    assert_eq!(pod()["topologySpreadConstraints"][0]["maxSkew"], 1);

    stand.write(&config(&name, "  replicas = 0\n  on_fargate = false\n  image_pull_policy = \"Always\"\n"));
    stand.apply();
    stand.assert_empty_plan();
    assert!(pod()["affinity"]["podAntiAffinity"].is_object() && pod()["topologySpreadConstraints"].is_null());

    // The version follows the image, and tells of another one.
    let version = || {
        stand.state()["resources"].as_array().unwrap().iter().find(|one| one["type"] == "karp_controller").unwrap()["instances"][0]["attributes"]["version"].clone()
    };
    assert_eq!(version(), "nowhere");
    cluster.kubectl(&["-n", &name, "set", "image", "deployment/karpenter", "controller=karp:another"]);
    let told = stand.tofu(&["plan", "-no-color"]);
    assert!(told.text.contains(r#""another" -> "nowhere""#), "{}", told.text);
    cluster.kubectl(&["-n", &name, "set", "image", "deployment/karpenter", "controller=karp:nowhere"]);
    stand.destroy();
}

#[test]
fn what_others_left_in_a_deployment_goes_as_the_attributes_of_the_rest_do() {
    let Some(cluster) = Cluster::find("what_others_left_in_a_deployment_goes") else { return };
    let _turn = controllers();
    let name = cluster.unique("chart");
    let _namespace = cluster.namespace(&name);
    let labels = json!({ "app.kubernetes.io/name": "karpenter", "app.kubernetes.io/instance": "karpenter" });
    let env = json!([{ "name": "LOG_LEVEL", "value": "info" }, { "name": "THEIRS", "value": "1" }]);
    let containers = json!([
        { "name": "controller", "image": "karpenter:1", "env": env, "workingDir": "/tmp" },
        { "name": "beside", "image": "a", "ports": [{ "containerPort": 9000 }] },
    ]);
    let pods = json!({ "metadata": { "labels": labels, "annotations": { "own": "1", "theirs": "2" } }, "spec": { "containers": containers } });
    cluster.create(
        &json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "karpenter", "namespace": name },
        "spec": { "replicas": 0, "selector": { "matchLabels": labels }, "template": pods } }),
    );
    let text = |more: &str| config(&name, &format!("  replicas = 0\n{more}"));
    let pods = || cluster.get(&["-n", &name, "deployment", "karpenter"])["spec"]["template"].clone();
    let variables = || -> Vec<String> {
        let pods = pods();
        let env = pods["spec"]["containers"][0]["env"].as_array().unwrap();
        env.iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    };

    // A list is as the manifest has it; of the rest, what is not told stays.
    let stand = cluster.stand(&text("  force_conflicts = true\n  pod_annotations = { own = \"1\" }\n"));
    stand.apply();
    stand.assert_empty_plan();
    let containers = pods()["spec"]["containers"].clone();
    assert_eq!(containers.as_array().map(Vec::len), Some(1), "{containers}");
    assert_eq!(containers[0]["workingDir"], "/tmp");
    assert!(!variables().contains(&"THEIRS".to_owned()), "{containers}");
    assert_eq!(pods()["metadata"]["annotations"], json!({ "own": "1", "theirs": "2" }));

    // By then it is nobody else's: what leaves the configuration goes, also without force.
    stand.write(&text(""));
    stand.apply();
    stand.assert_empty_plan();
    assert_eq!(pods()["metadata"]["annotations"], json!({ "theirs": "2" }));

    cluster.kubectl(&["-n", &name, "set", "env", "deployment/karpenter", "MINE=1", "--field-manager=somebody"]);
    let changes = [("update".to_owned(), "karp_controller.this".to_owned())];
    assert_eq!(stand.plan().changes(), changes);
    // Without force it stays, as a difference that each plan shows, and stops no apply.
    assert_eq!(stand.apply().changes(), changes);
    assert!(variables().contains(&"MINE".to_owned()));
    assert_eq!(stand.plan().changes(), changes);
    stand.write(&text("  force_conflicts = true\n"));
    assert_eq!(stand.apply().changes(), changes);
    stand.assert_empty_plan();
    assert!(!variables().contains(&"MINE".to_owned()));
    stand.destroy();
}
