//! `karp migrate` on the manifests of five articles on Karpenter (`shared/domain/tests/articles`), and the commands of karp that the guide
//! for readers of such articles names.

use std::path::{Path, PathBuf};
use std::process::Command;

const GUIDE: &str = include_str!("../../docs/guides/from-a-tutorial.md");
const PROFILE: [&str; 2] = ["--instance-profile", "KarpenterNodeInstanceProfile-prod"];

fn article(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/domain/tests/articles").join(format!("{name}.yaml"))
}

/// Runs `karp`; answers its code and both streams.
fn karp(arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_karp"));
    let output = command.args(arguments).env("RUST_BACKTRACE", "0").output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn migrate(file: &Path, more: &[&str]) -> (i32, String, String) {
    karp(&[&["migrate", "-f", file.to_str().unwrap()], more].concat())
}

#[test]
fn each_manifest_is_written_or_refused_at_its_path() {
    let pool = "Provisioner v1alpha5 default: written as karp_node_pool";
    let inline = "Provisioner v1alpha5 default: written as karp_node_class";
    let template = "AWSNodeTemplate v1alpha1 default: written as karp_node_class";
    let cluster = "ClusterConfig prod: passed over, since it is eksctl's: `terraform/eks` makes such a cluster";
    let asked = "neither a role nor an instance profile is known";
    // The article, options, the exit code, and what is told.
    let cases: [(&str, &[&str], i32, &[&str]); 7] = [
        ("000", &[], 0, &[pool, "Provisioner v1alpha5 on-demand: written as karp_node_pool", "2 objects use old keys"]),
        (
            "001",
            &[],
            1,
            &[
                "NodePool default-np: spec.template.spec.expireAfter: \"720h | Never\"",
                "NodePool default-np: spec.disruption.consolidationPolicy: \"WhenEmptyOrUnderutilized | WhenEmpty\"",
                "NodePool default-np: spec.disruption.consolidateAfter: \"1m | Never\"",
                "(` | ` stands between alternatives: write one of them)",
                "EC2NodeClass mynodeclass: spec: exactly one of role and instanceProfile must be set",
                "EC2NodeClass mynodeclass: spec.amiSelectorTerms[0].alias: the alias' family must be one of al2, al2023",
            ],
        ),
        ("002", &[], 0, &[pool, inline, cluster]),
        (
            "003",
            &[],
            2,
            &[pool, "AWSNodeTemplate default: spec.instanceProfile: ", asked, "(--role or --instance-profile)"],
        ),
        ("003", &PROFILE, 0, &[pool, template]),
        ("004", &[], 2, &[pool, "Provisioner default: spec.provider.instanceProfile: ", asked]),
        ("004", &PROFILE, 0, &[pool, inline, cluster]),
    ];
    for (name, options, expected, told) in cases {
        let (code, written, stderr) = migrate(&article(name), options);
        assert_eq!(code, expected, "{name}: {stderr}");
        assert_eq!(written.is_empty(), code == 1, "{name}: {written}");
        for line in told {
            assert!(stderr.contains(line), "{name}: {line:?} is not told: {stderr}");
        }
    }
}

#[test]
fn workloads_keep_running_or_get_a_patch() {
    let (code, script, told) = migrate(&article("000"), &["--patch"]);
    assert_eq!(code, 0, "{told}");
    for (workload, pool) in [("one-off", "default"), ("steady", "on-demand")] {
        let command =
            script.lines().find(|line| line.starts_with(&format!("kubectl patch deployment {workload} -n shop")));
        let command = command.unwrap_or_else(|| panic!("no patch of {workload}: {script}"));
        assert!(command.contains(&format!("\"karpenter.sh/nodepool\":\"{pool}\"")), "{command}");
        assert!(command.contains("\"karpenter.sh/provisioner-name\":null"), "{command}");
    }
    for name in ["002", "004"] {
        let (_, _, told) = migrate(&article(name), &PROFILE);
        assert!(!told.contains("old keys"), "{name}: {told}");
    }
}

#[test]
fn the_invalid_manifest_is_written_once_it_is_mended() {
    let mut text = std::fs::read_to_string(article("001")).unwrap();
    for (from, to) in [
        ("720h | Never", "720h"),
        ("WhenEmptyOrUnderutilized | WhenEmpty", "WhenEmpty"),
        ("1m | Never", "1m"),
        ("  instanceProfile: KarpenterNodeInstanceProfile-prod\n", ""),
        ("AL2023@latest", "al2023@latest"),
    ] {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    let mended = std::env::temp_dir().join(format!("karp-article-{}.yaml", std::process::id()));
    std::fs::write(&mended, text).unwrap();
    let (code, written, told) = migrate(&mended, &["--no-import"]);
    std::fs::remove_file(&mended).unwrap();
    assert_eq!(code, 0, "{told}");
    for resource in ["resource \"karp_node_class\" \"mynodeclass\"", "resource \"karp_node_pool\" \"default_np\""] {
        assert!(written.contains(resource), "{written}");
    }
}

/// As 001 to 003 print them, for a shell or the reader to fill in.
const PRINTED: &str = r#"
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: { name: mynodeclass }
spec:
  role: "KarpenterNodeRole-${CLUSTER_NAME}"
  amiSelectorTerms: [{ alias: al2023@latest }]
  subnetSelectorTerms: [{ tags: { Name: my_private_subnet_1 } }]
  securityGroupSelectorTerms: [{ tags: { Name: my_secgroup } }]
---
apiVersion: karpenter.sh/v1alpha5
kind: Provisioner
metadata:
  name: ${CLUSTER_NAME}
spec:
  provider:
    subnetSelector: { tier: private }
    securityGroupSelector: { tier: private }
    instanceProfile: KarpenterNodeInstanceProfile-${CLUSTER_NAME}
---
apiVersion: karpenter.k8s.aws/v1alpha1
kind: AWSNodeTemplate
metadata: { name: default }
spec:
  instanceProfile: nodes
  securityGroupSelector:
    karpenter.sh/discovery: <CLUSTER_NAME>
  subnetSelector:
    karpenter.sh/discovery: <CLUSTER_NAME>
  tags:
    karpenter.sh/discovery: <CLUSTER_NAME>
"#;

#[test]
fn placeholders_that_nobody_filled_in_are_told_at_their_paths() {
    let file = std::env::temp_dir().join(format!("karp-printed-{}.yaml", std::process::id()));
    std::fs::write(&file, PRINTED).unwrap();
    let (code, written, told) = migrate(&file, &["--no-import"]);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(code, 0, "{told}");
    assert!(written.contains("KarpenterNodeRole-$${CLUSTER_NAME}"), "{written}");
    for (path, left, times) in [
        ("metadata.name", "${CLUSTER_NAME}", 2),
        ("spec.role", "${CLUSTER_NAME}", 1),
        ("spec.instanceProfile", "${CLUSTER_NAME}", 1),
        ("spec.template.spec.nodeClassRef.name", "${CLUSTER_NAME}", 1),
        ("spec.tags[karpenter.sh/discovery]", "<CLUSTER_NAME>", 1),
        ("spec.subnetSelectorTerms[0].tags[karpenter.sh/discovery]", "<CLUSTER_NAME>", 1),
        ("spec.securityGroupSelectorTerms[0].tags[karpenter.sh/discovery]", "<CLUSTER_NAME>", 1),
    ] {
        let line = format!("{path}: {left} is a placeholder that was not filled in: write what it stands for.");
        assert_eq!(told.matches(&line).count(), times, "{line}: {told}");
    }
}

#[test]
fn commands_that_the_guide_names_are_there() {
    let mut seen = 0;
    for span in GUIDE.split('`').skip(1).step_by(2).filter(|span| span.starts_with("karp ")) {
        let mut arguments = Vec::new();
        let mut flags = Vec::new();
        for word in span.split(' ').skip(1) {
            match word {
                flag if flag.starts_with('-') => flags.push(flag),
                _ if flags.is_empty() => arguments.push(word),
                // what a flag is given
                _ => {}
            }
        }
        let (code, help, told) = karp(&[arguments.as_slice(), &["--help"]].concat());
        assert_eq!(code, 0, "{span}: {told}");
        for flag in flags {
            assert!(help.contains(flag), "{span}: {flag} is no option: {help}");
        }
        seen += 1;
    }
    assert!(seen >= 8, "{seen}");
}
