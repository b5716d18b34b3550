use super::*;

fn settings() -> Settings {
    Settings {
        cluster_name: Some("demo".into()),
        image: Some("karp:1".into()),
        controller_role_arn: Some("arn:aws:iam::1:role/c".into()),
        interruption_queue: Some("karp-demo".into()),
        feature_gates: Some(BTreeMap::from([("SpotToSpotConsolidation".into(), true)])),
        extra_env: Some(BTreeMap::from([("LOG_LEVEL".into(), "debug".into())])),
        ..Settings::default()
    }
}

fn find(objects: &[Object], kind: &str) -> Value {
    objects.iter().find(|object| object.json["kind"] == kind).expect("the object").json.clone()
}

#[test]
fn the_container_gets_karpenters_environment() {
    let deployment = find(&settings().objects(), "Deployment");
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let env: BTreeMap<&str, &str> = container["env"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|entry| Some((entry["name"].as_str()?, entry["value"].as_str()?)))
        .collect();
    assert_eq!(env["CLUSTER_NAME"], "demo");
    assert_eq!(env["INTERRUPTION_QUEUE"], "karp-demo");
    assert_eq!(env["FEATURE_GATES"], "SpotToSpotConsolidation=true");
    assert_eq!(env["LEADER_ELECTION_NAMESPACE"], "karpenter");
    assert_eq!(env["LOG_LEVEL"], "debug");
    assert!(!env.contains_key("CLUSTER_ENDPOINT"));
    assert_eq!(container["args"], json!(["controller"]));
}

#[test]
fn settings_reach_the_environment_and_the_users_own_wins() {
    let told = BTreeMap::from([
        ("batch_idle_duration".to_owned(), json!("2s")),
        ("isolated_vpc".to_owned(), json!(true)),
        ("reserved_enis".to_owned(), json!(1)),
        ("price_tolerance".to_owned(), json!("20%")),
        ("max_pod_share".to_owned(), Value::Null),
    ]);
    let own = BTreeMap::from([("KARP_PRICE_TOLERANCE".to_owned(), "5%".to_owned())]);
    let all = Settings { settings: Some(told), extra_env: Some(own), ..settings() };
    let container = &find(&all.objects(), "Deployment")["spec"]["template"]["spec"]["containers"][0];
    let value = |name: &str| {
        let entry = container["env"].as_array().unwrap().iter().find(|entry| entry["name"] == name);
        entry.map(|entry| entry["value"].as_str().unwrap().to_owned())
    };
    assert_eq!(value("BATCH_IDLE_DURATION").as_deref(), Some("2s"));
    assert_eq!(value("ISOLATED_VPC").as_deref(), Some("true"));
    assert_eq!(value("RESERVED_ENIS").as_deref(), Some("1"));
    assert_eq!(value("KARP_PRICE_TOLERANCE").as_deref(), Some("5%"));
    assert_eq!(value("KARP_MAX_POD_SHARE"), None);
}

#[test]
fn more_is_merged_over_what_karp_writes() {
    let all = Settings {
        more_pod_spec_json: Some(json!({ "dnsPolicy": "None", "securityContext": { "fsGroup": 1 } }).to_string()),
        more_container_json: Some(json!({ "securityContext": { "privileged": false } }).to_string()),
        tolerations: Some(vec![Toleration {
            key: Some("a".into()),
            toleration_seconds: Some(5),
            ..Toleration::default()
        }]),
        image_pull_secrets: Some(BTreeSet::from(["s".to_owned()])),
        pod_annotations: Some(BTreeMap::from([("a".into(), "b".into())])),
        ..settings()
    };
    let template = &find(&all.objects(), "Deployment")["spec"]["template"];
    let (pod, context) = (&template["spec"], &template["spec"]["containers"][0]["securityContext"]);
    assert_eq!((&pod["dnsPolicy"], &pod["securityContext"]), (&json!("None"), &json!({ "fsGroup": 1 })));
    assert!(context["privileged"] == false && context["runAsNonRoot"] == true);
    assert_eq!(pod["tolerations"], json!([{ "key": "a", "tolerationSeconds": 5 }]));
    assert_eq!(
        (&pod["imagePullSecrets"], &template["metadata"]["annotations"]),
        (&json!([{ "name": "s" }]), &json!({ "a": "b" }))
    );
}

#[test]
fn prometheus_is_told_where_metrics_are_when_asked() {
    assert!(settings().objects().iter().all(|object| object.plural != SERVICE_MONITORS));
    let labels = Some(BTreeMap::from([("release".to_owned(), "prometheus".to_owned())]));
    let all = Settings {
        service_monitor: Some(ServiceMonitor { labels, interval: Some("30s".into()), ..ServiceMonitor::default() }),
        ..settings()
    };
    let objects = all.objects();
    let (monitor, service) = (find(&objects, "ServiceMonitor"), find(&objects, "Service"));
    assert_eq!(monitor["metadata"]["labels"]["release"], "prometheus");
    assert_eq!(monitor["spec"]["endpoints"][0]["port"], service["spec"]["ports"][0]["name"]);
    for (key, value) in monitor["spec"]["selector"]["matchLabels"].as_object().unwrap() {
        assert_eq!(&service["metadata"]["labels"][key], value, "the Service has no label {key}");
    }
}

#[test]
fn on_fargate_the_host_resolves_names() {
    let pod = |settings: Settings| find(&settings.objects(), "Deployment")["spec"]["template"]["spec"].clone();
    assert_eq!(pod(settings())["dnsPolicy"], "Default");
    let on_nodes = pod(Settings { on_fargate: Some(false), ..settings() });
    assert_eq!(on_nodes["dnsPolicy"], "ClusterFirst");
    assert!(on_nodes["affinity"].is_object());
}

#[test]
fn the_version_is_the_images_tag() {
    for (image, tag) in [
        ("karp:1", Some("1")),
        ("ghcr.io/karp/karp:0.1.0@sha256:ab", Some("0.1.0")),
        ("localhost:5000/karp", None),
        ("localhost:5000/karp@sha256:ab", None),
        ("karp:", None),
    ] {
        assert_eq!(version(image), tag, "{image}");
    }
    let labels = |image: &str| {
        let deployment = find(&Settings { image: Some(image.into()), ..settings() }.objects(), "Deployment");
        let pods = &deployment["spec"]["template"]["metadata"]["labels"][VERSION_LABEL];
        assert_eq!(deployment["metadata"]["labels"][VERSION_LABEL], *pods);
        assert!(deployment["spec"]["selector"]["matchLabels"][VERSION_LABEL].is_null(), "a selector cannot change");
        pods.clone()
    };
    assert_eq!(labels("karp:0.1.0"), "0.1.0");
    assert_eq!(labels("karp:a_"), Value::Null);
    let own = Settings { labels: Some(BTreeMap::from([(VERSION_LABEL.into(), "x".into())])), ..settings() };
    assert_eq!(find(&own.objects(), "Deployment")["metadata"]["labels"][VERSION_LABEL], "x");
}

#[test]
fn where_pods_run_is_the_users_choice() {
    let pod = |settings: Settings| find(&settings.objects(), "Deployment")["spec"]["template"]["spec"].clone();
    let on_nodes = Settings { on_fargate: Some(false), ..settings() };
    let own = json!({ "pod_anti_affinity": null, "node_affinity": { "required_during_scheduling_ignored_during_execution":
        { "node_selector_terms": [{ "match_fields": null, "match_expressions": [{ "key": "a", "operator": "Exists", "values": null }] }] } } });
    let given = pod(Settings { affinity: Some(own), ..on_nodes.clone() });
    let term = json!({ "matchExpressions": [{ "key": "a", "operator": "Exists" }] });
    let required = json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [term] } });
    assert_eq!(given["affinity"], json!({ "nodeAffinity": required }));
    let none = pod(Settings { affinity: Some(json!({})), ..on_nodes.clone() });
    assert_eq!(none["affinity"], json!({}));

    let spread =
        json!({ "max_skew": 1, "topology_key": "topology.kubernetes.io/zone", "when_unsatisfiable": "DoNotSchedule" });
    let hosted = Settings { topology_spread_constraints: Some(vec![spread]), host_network: Some(true), ..on_nodes };
    let moved = Settings { metrics_port: Some(9080), health_probe_port: Some(9081), ..hosted.clone() };
    let service = find(&moved.objects(), "Service");
    assert_eq!(service["spec"]["ports"][0]["port"], json!(9080));
    let container = pod(moved)["containers"][0].clone();
    assert_eq!([0, 1].map(|at| container["ports"][at]["hostPort"].clone()), [json!(9080), json!(9081)]);
    let told =
        container["env"].as_array().unwrap().iter().filter(|one| one["name"].as_str().unwrap().ends_with("_PORT"));
    assert_eq!(told.map(|one| one["value"].clone()).collect::<Vec<_>>(), ["9081", "9080"]);
    let hosted = pod(hosted);
    assert_eq!((&hosted["hostNetwork"], &hosted["dnsPolicy"]), (&json!(true), &json!("ClusterFirstWithHostNet")));
    let counted = &hosted["topologySpreadConstraints"][0];
    assert_eq!((&counted["maxSkew"], &counted["labelSelector"]["matchLabels"]), (&json!(1), &json!(selector())));
    assert_eq!(hosted["containers"][0]["ports"][1]["hostPort"], json!(PROBE_PORT));
    let plain = pod(settings());
    assert!(plain["hostNetwork"].is_null() && plain["containers"][0]["ports"][1]["hostPort"].is_null());
}

#[test]
fn the_role_is_on_the_service_account_and_every_subject_is_it() {
    let objects = settings().objects();
    let account = find(&objects, "ServiceAccount");
    assert_eq!(account["metadata"]["annotations"]["eks.amazonaws.com/role-arn"], "arn:aws:iam::1:role/c");
    for object in objects.iter().filter(|object| object.json["subjects"].is_array()) {
        assert_eq!(object.json["subjects"][0]["name"], account["metadata"]["name"]);
    }
}
