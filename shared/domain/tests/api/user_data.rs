//! User data of every family: golden files, each read back by something that does not share code with the writer.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};

use karp_domain::api::AmiFamily;
use karp_domain::taint::{Taint, TaintEffect};
use karp_domain::user_data::{Bootstrap, ClusterFacts, Error, LIMIT_BYTES, render};
use mail_parser::{MessageParser, MimeHeaders};
use serde_json::{Value, json};

const NODE_CONFIG: &str = "application/node.eks.aws";
const SHELL: &str = "text/x-shellscript";

/// Every setting that a node class knows, in the kubelet's names.
const KUBELET: &str = r#"{
    "clusterDNS": ["10.100.0.53"], "maxPods": 42, "systemReserved": {"cpu": "100m", "memory": "128Mi"},
    "kubeReserved": {"cpu": "90m"}, "evictionHard": {"memory.available": "5%", "nodefs.available": "10%"},
    "evictionSoft": {"memory.available": "500Mi"}, "evictionSoftGracePeriod": {"memory.available": "1m"},
    "evictionMaxPodGracePeriod": 60, "imageGCHighThresholdPercent": 85, "imageGCLowThresholdPercent": 80, "cpuCFSQuota": true
}"#;

fn plain() -> Bootstrap {
    let label = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    Bootstrap {
        cluster: ClusterFacts {
            name: "alpha".into(),
            endpoint: "https://alpha.example".into(),
            certificate_authority: "Q0E=".into(),
            service_cidr: Some("10.100.0.0/16".into()),
        },
        labels: [
            ("karpenter.sh/nodepool", "default"),
            ("kubernetes.io/role", "forbidden"),
            ("node-restriction.kubernetes.io/x", "forbidden"),
            ("topology.kubernetes.io/zone", "us-east-1a"),
        ]
        .map(label)
        .into(),
        taints: vec![Taint::new("team", "a", TaintEffect::NoSchedule), Taint::new("team", "a", TaintEffect::NoExecute)],
        ..Bootstrap::default()
    }
}

fn merged(custom: &str) -> Bootstrap {
    Bootstrap { kubelet: serde_json::from_str(KUBELET).unwrap(), raid0: true, custom: Some(custom.into()), ..plain() }
}

/// Reads an archive the way an instance does.
fn parts(user_data: &str) -> Vec<(String, String)> {
    assert!(user_data.starts_with("MIME-Version: 1.0\n"), "cloud-init knows archives by their first line");
    let message = MessageParser::default().parse(user_data.as_bytes()).unwrap();
    let leaves = message.parts.iter().filter(|part| part.sub_parts().is_none());
    leaves
        .map(|part| {
            let kind = part.content_type().unwrap();
            let text = String::from_utf8(part.contents().to_vec()).unwrap();
            (format!("{}/{}", kind.ctype(), kind.subtype().unwrap()), text)
        })
        .collect()
}

/// Feeds a script to bash and returns what it prints.
fn bash(options: &[&str], script: &str) -> String {
    let mut child =
        Command::new("bash").args(options).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("bash");
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{script}");
    String::from_utf8(output.stdout).unwrap()
}

fn check_scripts(parts: &[(String, String)]) {
    for (_, script) in parts.iter().filter(|(kind, _)| kind == SHELL) {
        assert!(!script.contains('\r'), "{script:?}");
        bash(&["-n"], script);
    }
}

/// Runs the generated script with bootstrap.sh replaced by something that prints its words.
fn bootstrap_words(parts: &[(String, String)]) -> Vec<String> {
    let (kind, script) = parts.last().unwrap();
    assert_eq!(kind, SHELL);
    let printed = bash(&["-s"], &script.replace("/etc/eks/bootstrap.sh", "printf '%s\\n'"));
    printed.lines().map(str::to_owned).collect()
}

fn value_of<'a>(words: &'a [String], option: &str) -> Option<&'a str> {
    words.iter().position(|word| word == option).map(|at| words[at + 1].as_str())
}

/// Lists the paths of an object: those that `known` names end a path, whatever lies below.
fn paths(value: &Value, path: &str, known: &BTreeSet<&str>, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) if !known.contains(path) => {
            for (key, value) in fields {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                paths(value, &path, known, found);
            }
        }
        Value::Array(items) if !known.contains(path) => items.iter().for_each(|item| paths(item, path, known, found)),
        _ => found.push(path.to_owned()),
    }
}

fn node_config(parts: &[(String, String)]) -> Value {
    let (kind, text) = parts.last().unwrap();
    assert_eq!(kind, NODE_CONFIG);
    let config: Value = serde_saphyr::from_str(text).unwrap();
    let list = include_str!("../data/nodeadm-node-config.txt");
    let known: BTreeSet<&str> = list.lines().filter(|line| !line.starts_with('#')).collect();
    let mut found = Vec::new();
    paths(&config, "", &known, &mut found);
    let strange: Vec<_> = found.iter().filter(|path| !known.contains(path.as_str())).collect();
    assert!(strange.is_empty(), "nodeadm has no such fields: {strange:?}");
    config
}

#[test]
fn al2() {
    let text = render(AmiFamily::Al2, &plain()).unwrap();
    insta::assert_snapshot!("al2", text);
    let read = parts(&text);
    check_scripts(&read);
    let words = bootstrap_words(&read);
    assert_eq!(words[0], "alpha");
    assert_eq!(value_of(&words, "--apiserver-endpoint"), Some("https://alpha.example"));
    assert_eq!(value_of(&words, "--b64-cluster-ca"), Some("Q0E="));
    assert_eq!(value_of(&words, "--dns-cluster-ip"), Some("10.100.0.10"));
    assert_eq!(value_of(&words, "--use-max-pods"), None);

    let text = render(AmiFamily::Al2, &merged("#!/bin/bash\r\necho \"it's mine\"\r\n")).unwrap();
    insta::assert_snapshot!("al2_merged", text);
    let read = parts(&text);
    check_scripts(&read);
    assert_eq!(bash(&["-s"], &read[0].1), "it's mine\n");
    let words = bootstrap_words(&read);
    assert_eq!(value_of(&words, "--dns-cluster-ip"), Some("10.100.0.53"));
    assert_eq!(value_of(&words, "--use-max-pods"), Some("false"));
    assert_eq!(value_of(&words, "--local-disks"), Some("raid0"));
    let flags = value_of(&words, "--kubelet-extra-args").unwrap();
    for flag in [
        "--node-labels=\"karpenter.sh/do-not-sync-taints=true,karpenter.sh/nodepool=default,topology.kubernetes.io/zone=us-east-1a\"",
        "--register-with-taints=\"team=a:NoSchedule,team=a:NoExecute,karpenter.sh/unregistered=:NoExecute\"",
        "--max-pods=42",
        "--system-reserved=\"cpu=100m,memory=128Mi\"",
        "--eviction-hard=\"memory.available<5%,nodefs.available<10%\"",
        "--cpu-cfs-quota=true",
    ] {
        assert!(flags.contains(flag), "{flag} is not in {flags}");
    }
}

#[test]
fn what_a_shell_would_split_stays_one_word() {
    let mut odd = plain();
    odd.cluster.name = "it's $(touch x); `y`".into();
    odd.taints = vec![Taint::new("team", "a \"b\" 'c' $d", TaintEffect::NoSchedule)];
    let words = bootstrap_words(&parts(&render(AmiFamily::Al2, &odd).unwrap()));
    assert_eq!(words[0], odd.cluster.name);
    assert!(
        value_of(&words, "--kubelet-extra-args").unwrap().contains(r#"team=a \"b\" 'c' $d:NoSchedule"#),
        "{words:?}"
    );
    odd.cluster.name = "two\nlines".into();
    assert!(matches!(render(AmiFamily::Al2, &odd), Err(Error::Unquotable { .. })));
}

#[test]
fn al2023() {
    let text = render(AmiFamily::Al2023, &plain()).unwrap();
    insta::assert_snapshot!("al2023", text);
    let config = node_config(&parts(&text));
    let cluster = json!({
        "name": "alpha", "apiServerEndpoint": "https://alpha.example", "certificateAuthority": "Q0E=", "cidr": "10.100.0.0/16"
    });
    assert_eq!(config["spec"]["cluster"], cluster);
    let taints = json!([
        { "key": "team", "value": "a", "effect": "NoSchedule" },
        { "key": "team", "value": "a", "effect": "NoExecute" },
        { "key": "karpenter.sh/unregistered", "effect": "NoExecute" }
    ]);
    assert_eq!(config["spec"]["kubelet"]["config"]["registerWithTaints"], taints);
    let labels = "--node-labels=karpenter.sh/do-not-sync-taints=true,karpenter.sh/nodepool=default,\
                  topology.kubernetes.io/zone=us-east-1a";
    assert_eq!(config["spec"]["kubelet"]["flags"], json!([labels]));

    let text = render(AmiFamily::Al2023, &merged("#!/bin/bash\necho hello\n")).unwrap();
    insta::assert_snapshot!("al2023_merged", text);
    let read = parts(&text);
    check_scripts(&read);
    let config = node_config(&read);
    assert_eq!(config["spec"]["instance"]["localStorage"]["strategy"], "RAID0");
    let settings: Value = serde_json::from_str(KUBELET).unwrap();
    for (key, value) in settings.as_object().unwrap() {
        assert_eq!(config["spec"]["kubelet"]["config"][key], *value, "{key}");
    }
}

#[test]
fn scripts_node_configs_and_archives_come_before_ours() {
    let archive = "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"BOUNDARY\"\n\n--BOUNDARY\n\
                   Content-Type: text/x-shellscript; charset=\"us-ascii\"\n\n#!/bin/bash\necho one\n\n--BOUNDARY\n\
                   Content-Type: application/node.eks.aws\n\napiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\n\n--BOUNDARY--\n";
    let node = "apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\n";
    for (custom, expected) in [
        ("#!/bin/bash\necho hello\n", vec![(SHELL, "echo hello")]),
        (node, vec![(NODE_CONFIG, "kind: NodeConfig")]),
        (archive, vec![(SHELL, "echo one"), (NODE_CONFIG, "kind: NodeConfig")]),
        ("  \n", vec![]),
        ("#!/bin/sh\ncat <<E\n--//\nE\necho kept\n", vec![(SHELL, "echo kept")]),
        ("#!/bin/sh\necho grüße\n", vec![(SHELL, "grüße")]),
        ("#cloud-config\npackages: [htop]\n", vec![("text/cloud-config", "packages: [htop]")]),
    ] {
        let bootstrap = Bootstrap { custom: Some(custom.into()), ..plain() };
        let read = parts(&render(AmiFamily::Al2023, &bootstrap).unwrap());
        assert_eq!(read.len(), expected.len() + 1, "{custom:?}: {read:?}");
        for ((kind, text), (expected_kind, expected_text)) in read.iter().zip(&expected) {
            assert_eq!(kind, expected_kind, "{custom:?}");
            assert!(text.contains(expected_text), "{custom:?}: {text:?}");
        }
        assert_eq!(node_config(&read)["spec"]["cluster"]["name"], "alpha");
    }
    let broken = Bootstrap { custom: Some("MIME-Version: 1.0\n\nno archive".into()), ..plain() };
    assert!(matches!(render(AmiFamily::Al2023, &broken), Err(Error::NotMime)));
}

#[test]
fn what_cloud_init_knows_by_its_beginning_is_no_script() {
    for (custom, expected) in [
        ("echo hello\n", SHELL),
        ("\n#cloud-config\npackages: [htop]\n", "text/cloud-config"),
        ("#cloud-config-archive\n- content: x\n", "text/cloud-config-archive"),
        ("#Cloud-Config\npackages: [htop]\n", "text/cloud-config"),
        ("#cloud-boothook\necho hello\n", "text/cloud-boothook"),
        ("#include-once https://alpha.example/x\n", "text/x-include-once-url"),
        ("## template: jinja\n#cloud-config\n", "text/jinja2"),
    ] {
        for family in [AmiFamily::Al2, AmiFamily::Al2023] {
            let with = Bootstrap { custom: Some(custom.into()), ..plain() };
            assert_eq!(parts(&render(family, &with).unwrap())[0].0, expected, "{family:?}: {custom:?}");
        }
    }
}

#[test]
fn parts_of_an_archive_keep_their_headers() {
    let archive = "Content-Type: multipart/mixed; boundary=\"B\"\nMIME-Version: 1.0\n\n--B\n\
                   Content-Type: text/cloud-config; charset=\"us-ascii\"; name=\"one\"\nMIME-Version: 1.0\n\
                   Content-Transfer-Encoding: base64\nContent-Disposition: attachment;\n filename=\"10-swap.cfg\"\n\
                   Merge-Type: list(append)+dict(recurse_list)+str()\n\nI2Nsb3VkLWNvbmZpZwo=\n\n--B\n\
                   Content-Type: application/gzip\nContent-Transfer-Encoding: base64\n\n/wD/\n\n--B--\n";
    for family in [AmiFamily::Al2, AmiFamily::Al2023] {
        let text = render(family, &Bootstrap { custom: Some(archive.into()), ..plain() }).unwrap();
        let first = "--//\nContent-Type: text/cloud-config; name=\"one\"\nContent-Transfer-Encoding: 7bit\n\
                     Content-Disposition: attachment; filename=\"10-swap.cfg\"\n\
                     Merge-Type: list(append)+dict(recurse_list)+str()\n\n#cloud-config\n";
        assert!(text.contains(first), "{family:?}: {text}");
        let second = "--//\nContent-Type: application/gzip\nContent-Transfer-Encoding: base64\n\n/wD/";
        assert!(text.contains(second), "what is no text stays in base64: {family:?}: {text}");
    }
}

#[test]
fn bottlerocket() {
    let text = render(AmiFamily::Bottlerocket, &plain()).unwrap();
    insta::assert_snapshot!("bottlerocket", text);
    let root: toml::Table = toml::from_str(&text).unwrap();
    assert_eq!(root["settings"]["kubernetes"]["cluster-dns-ip"].as_str(), Some("10.100.0.10"));

    let custom = "[settings.kubernetes]\ncluster-name = \"theirs\"\nallowed-unsafe-sysctls = [\"net.core.somaxconn\"]\n\
                  [settings.kubernetes.node-labels]\nmine = \"kept\"\n[settings.kubernetes.node-taints]\ntheirs = [\":NoExecute\"]\n\
                  [settings.autoscaling]\nshould-wait = true\n[settings.motd]\nx = 1\n";
    let text = render(AmiFamily::Bottlerocket, &merged(custom)).unwrap();
    insta::assert_snapshot!("bottlerocket_merged", text);
    let root: toml::Table = toml::from_str(&text).unwrap();
    let settings = &root["settings"];
    let kubernetes = &settings["kubernetes"];
    for (key, expected) in [
        ("cluster-name", "alpha"),
        ("api-server", "https://alpha.example"),
        ("cluster-certificate", "Q0E="),
        ("cluster-dns-ip", "10.100.0.53"),
        ("image-gc-high-threshold-percent", "85"),
    ] {
        assert_eq!(kubernetes[key].as_str(), Some(expected), "{key}");
    }
    assert_eq!(kubernetes["max-pods"].as_integer(), Some(42));
    assert_eq!(kubernetes["system-reserved"]["cpu"].as_str(), Some("100m"));
    assert_eq!(kubernetes["allowed-unsafe-sysctls"].as_array().map(Vec::len), Some(1));
    assert_eq!(kubernetes["node-labels"]["mine"].as_str(), Some("kept"));
    assert_eq!(kubernetes["node-labels"]["karpenter.sh/nodepool"].as_str(), Some("default"));
    assert_eq!(kubernetes["node-labels"].get("kubernetes.io/role"), None);
    assert_eq!(kubernetes["node-taints"]["team"].as_array().map(Vec::len), Some(2));
    assert_eq!(kubernetes["node-taints"]["karpenter.sh/unregistered"][0].as_str(), Some(":NoExecute"));
    assert_eq!(kubernetes["node-taints"].get("theirs"), None, "the plan would not know of it");
    assert_eq!(settings["autoscaling"]["should-wait"].as_bool(), Some(false));
    assert_eq!(settings["motd"]["x"].as_integer(), Some(1));
    let step = &settings["bootstrap-commands"]["000-mount-instance-storage"];
    assert_eq!((step["essential"].as_bool(), step["commands"].as_array().map(Vec::len)), (Some(true), Some(2)));
}

#[test]
fn bottlerocket_takes_several_resolvers_and_keeps_layers_of_soci_on_the_disks() {
    let kubelet = serde_json::from_str(r#"{"clusterDNS": ["169.254.20.10", "10.100.0.10"]}"#).unwrap();
    let two = render(AmiFamily::Bottlerocket, &Bootstrap { kubelet, ..plain() }).unwrap();
    let root: toml::Table = toml::from_str(&two).unwrap();
    let addresses = root["settings"]["kubernetes"]["cluster-dns-ip"].as_array().unwrap();
    assert_eq!(addresses.iter().filter_map(toml::Value::as_str).collect::<Vec<_>>(), ["169.254.20.10", "10.100.0.10"]);

    let binds = |custom: &str| {
        let with = Bootstrap { raid0: true, custom: Some(custom.into()), ..plain() };
        render(AmiFamily::Bottlerocket, &with).unwrap().contains("/var/lib/soci-snapshotter")
    };
    assert!(binds("[settings.container-runtime]\nsnapshotter = \"soci\"\n"));
    assert!(!binds("[settings.container-runtime]\nsnapshotter = \"overlayfs\"\n") && !binds(""));
}

#[test]
fn what_is_no_toml_or_no_table_is_named() {
    let with = |custom: &str| render(AmiFamily::Bottlerocket, &Bootstrap { custom: Some(custom.into()), ..plain() });
    assert!(matches!(with("#!/bin/sh\necho"), Err(Error::NotToml(_))));
    assert!(matches!(with("settings = 3"), Err(Error::Shape { path, .. }) if path == "settings"));
}

#[test]
fn windows() {
    let text = render(AmiFamily::Windows2022, &plain()).unwrap();
    insta::assert_snapshot!("windows", text);
    let merged = merged("Write-Host \"mine\"\r\n");
    let text = render(AmiFamily::Windows2022, &merged).unwrap();
    insta::assert_snapshot!("windows_merged", text);
    let own = text.find("Write-Host \"mine\"").unwrap();
    let call = text.find("& $EKSBootstrapScriptFile -EKSClusterName 'alpha'").unwrap();
    assert!(text.starts_with("<powershell>\n") && own < call && text.ends_with("\n</powershell>"));
    for family in [AmiFamily::Windows2019, AmiFamily::Windows2025] {
        assert_eq!(render(family, &merged).unwrap(), text, "{family:?}");
    }
    let mut odd = plain();
    odd.cluster.name = "it's".into();
    assert!(render(AmiFamily::Windows2019, &odd).unwrap().contains("-EKSClusterName 'it''s'"));
}

#[test]
fn custom_user_data_is_left_alone() {
    let own = "#!/bin/sh\r\necho \"x\"\n";
    let custom = Bootstrap { custom: Some(own.into()), ..Bootstrap::default() };
    assert_eq!(render(AmiFamily::Custom, &custom).unwrap(), own);
    assert_eq!(render(AmiFamily::Custom, &Bootstrap::default()).unwrap(), "");
}

#[test]
fn an_ipv6_cluster_gives_ipv6_addresses() {
    let mut bootstrap = plain();
    bootstrap.cluster.service_cidr = Some("fd30:1c53:5f8a::/108".into());
    let words = bootstrap_words(&parts(&render(AmiFamily::Al2, &bootstrap).unwrap()));
    assert_eq!(value_of(&words, "--ip-family"), Some("ipv6"));
    assert_eq!(value_of(&words, "--dns-cluster-ip"), Some("fd30:1c53:5f8a::a"));
    let kubelet = serde_json::from_str(r#"{"clusterDNS": ["169.254.20.10"]}"#).unwrap();
    let cached = Bootstrap { kubelet, ..bootstrap.clone() };
    let words = bootstrap_words(&parts(&render(AmiFamily::Al2, &cached).unwrap()));
    assert_eq!(value_of(&words, "--ip-family"), Some("ipv6"), "whatever the address of its resolver");
    assert_eq!(value_of(&words, "--dns-cluster-ip"), Some("169.254.20.10"));
    let config = node_config(&parts(&render(AmiFamily::Al2023, &bootstrap).unwrap()));
    assert_eq!(config["spec"]["cluster"]["cidr"], "fd30:1c53:5f8a::/108");
}

#[test]
fn what_cannot_be_rendered_says_why_in_karpenters_words() {
    let mut no_ca = plain();
    no_ca.cluster.certificate_authority.clear();
    let mut no_cidr = plain();
    no_cidr.cluster.service_cidr = None;
    let setting = |text: &str| Bootstrap { kubelet: serde_json::from_str(text).unwrap(), ..plain() };
    let long = Bootstrap { custom: Some("x".repeat(LIMIT_BYTES + 1)), ..plain() };
    let motd = format!("[settings]\nmotd = \"{}\"\n", "x".repeat(LIMIT_BYTES));
    let long_toml = Bootstrap { custom: Some(motd), ..plain() };
    for (family, bootstrap, expected) in [
        (AmiFamily::Al2023, &no_ca, "DependenciesNotReady"),
        (AmiFamily::Bottlerocket, &no_ca, "DependenciesNotReady"),
        (AmiFamily::Windows2025, &no_ca, "DependenciesNotReady"),
        (AmiFamily::Al2023, &no_cidr, "ClusterCIDRResolutionFailed"),
        (AmiFamily::Al2, &setting(r#"{"memoryManagerPolicy": "Static"}"#), "UnsupportedKubeletConfiguration"),
        (AmiFamily::Bottlerocket, &setting(r#"{"podsPerCore": 2}"#), "UnsupportedKubeletConfiguration"),
        (AmiFamily::Windows2022, &setting(r#"{"clusterDNS": ["a", "b"]}"#), "UnsupportedKubeletConfiguration"),
        (AmiFamily::Al2023, &setting(r#"{"registerWithTaints": []}"#), "UnsupportedKubeletConfiguration"),
        (AmiFamily::Al2023, &setting(r#"{"maxPods": "max_pods - 2"}"#), "UnsupportedKubeletConfiguration"),
        (AmiFamily::Al2023, &setting(r#"{"maxPod": 5}"#), "UnsupportedKubeletConfiguration"),
        (AmiFamily::Al2, &setting(r#"{"kubeReserved": {"cpu": "vcpus * 10"}}"#), "UnsupportedKubeletConfiguration"),
        (AmiFamily::Al2, &long, "UserDataSizeLimitExceeded"),
        (AmiFamily::Al2023, &long, "UserDataSizeLimitExceeded"),
        (AmiFamily::Bottlerocket, &long_toml, "UserDataSizeLimitExceeded"),
        (AmiFamily::Windows2019, &long, "UserDataSizeLimitExceeded"),
        (AmiFamily::Custom, &long, "UserDataSizeLimitExceeded"),
    ] {
        let error = render(family, bootstrap).unwrap_err();
        assert_eq!(error.reason(), expected, "{family:?}: {error}");
    }
    for (family, bootstrap) in [
        (AmiFamily::Al2023, setting(r#"{"memoryManagerPolicy": "Static", "clusterDNS": ["10.0.0.1", "10.0.0.2"]}"#)),
        (AmiFamily::Al2, no_cidr.clone()),
        (AmiFamily::Bottlerocket, no_cidr),
    ] {
        assert!(render(family, &bootstrap).is_ok(), "{family:?}");
    }
}
