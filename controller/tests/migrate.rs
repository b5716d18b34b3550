//! `karp migrate` on files, run as a user runs it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/migrate").join(name)
}

/// Runs `karp migrate -f` on fixtures.
fn migrate(files: &[&str], more: &[&str]) -> Output {
    let mut karp = Command::new(env!("CARGO_BIN_EXE_karp"));
    karp.args(["migrate", "-f"]).args(files.iter().map(|file| fixture(file))).args(more);
    karp.env("RUST_BACKTRACE", "0").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap().replace(fixture("").to_str().unwrap(), "")
}

/// Both streams and the code, as a person would review them.
fn seen(output: &Output) -> String {
    let code = output.status.code().unwrap();
    format!("exit code {code}\n--- stdout\n{}--- stderr\n{}", text(&output.stdout), text(&output.stderr))
}

#[test]
fn what_is_of_today_is_imported() {
    let output = migrate(&["today.yaml"], &["--cluster-name", "prod"]);
    insta::assert_snapshot!(seen(&output));
}

#[test]
fn older_apis_are_converted() {
    let output = migrate(&["older.yaml"], &["--role", "KarpenterNodeRole-prod"]);
    insta::assert_snapshot!(seen(&output));
}

#[test]
fn what_cannot_be_converted_is_told_with_its_place_and_the_rest_is_written() {
    let output = migrate(&["refused.yaml", "older.yaml"], &["--cluster-name", "prod"]);
    assert_eq!(output.status.code(), Some(2));
    insta::assert_snapshot!(text(&output.stderr));
    let output = migrate(&["refused.yaml"], &[]);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(1), ""));
    assert!(text(&output.stderr).contains("refused.yaml:2: NodePool default-np: spec."), "{}", text(&output.stderr));
}

#[test]
fn workloads_with_old_keys_are_listed_and_get_patches() {
    let output = migrate(&["workloads.yaml", "older.yaml"], &["--role", "r", "--patch"]);
    insta::assert_snapshot!(seen(&output));
    assert!(!seen(&output).contains("hunter2"));
}

/// What Karpenter's Deployment says of itself: the cluster's name need not be given, and what else there is to move is told.
#[test]
fn the_controller_names_its_cluster_and_what_it_goes_by() {
    let output = migrate(&["installed.yaml", "today.yaml"], &[]);
    assert!(text(&output.stdout).contains("cluster_name = \"prod\""), "{}", text(&output.stdout));
    let told = text(&output.stderr);
    let at = told.find("Deployment kube-system/karpenter").expect(&told);
    let lines: Vec<&str> = told[at..].lines().take(8).collect();
    assert_eq!(
        lines,
        [
            "Deployment kube-system/karpenter: the controller of cluster prod, which is not written (docs/guides/moving-to-karp.md):",
            "  scale it to 0 before karp_controller is applied: two controllers would fight over the nodes",
            "  queue Karpenter-prod: import it as karp_interruption_queue, with that name",
            "  role arn:aws:iam::111122223333:role/Karpenter-prod: import it as karp_controller_role, with its name and path, and as long as \
             this runs",
            "    with namespace = \"kube-system\" and service_account = \"karpenter\", or it loses the role",
            "  set otherwise than by default, for karp_controller:",
            "    settings.reserved_enis = 1",
            "    feature_gates = { SpotToSpotConsolidation = true }",
        ]
    );
    assert!(told.contains("\n  --controller FILE writes karp in its place, with its settings"), "{told}");
    assert!(!seen(&output).contains("hunter2"));
    let named = migrate(&["installed.yaml", "today.yaml"], &["--cluster-name", "other"]);
    assert!(text(&named.stdout).contains("cluster_name = \"other\""), "what is given counts");
}

/// A file of this process's own; nothing is there.
fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("karp-migrate-{}-{name}", std::process::id()))
}

/// The lines of some HCL without comments, however its columns lie.
fn lines(hcl: &str) -> Vec<String> {
    let all = hcl.lines().filter(|line| !line.starts_with('#'));
    all.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// What takes the controller's place is a file of its own, so that the pools can be imported while Karpenter runs. Beside it these name the
/// teardown that goes with it, and are written as ever otherwise.
#[test]
fn karp_in_karpenters_place_is_written_beside_the_pools() {
    let file = scratch("controller.tf");
    let named = file.to_str().unwrap();
    let output = migrate(&["installed.yaml", "today.yaml"], &["--controller", named]);
    let written = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let alone = text(&migrate(&["installed.yaml", "today.yaml"], &[]).stdout);
    let together = text(&output.stdout);
    let otherwise: Vec<String> = lines(&together).into_iter().filter(|line| !line.starts_with("teardown = ")).collect();
    assert_eq!(otherwise, lines(&alone));
    assert!(!alone.contains("teardown"), "{alone}");
    for resource in [
        "\"karp_node_class\" \"default\"",
        "\"karp_node_pool\" \"general_purpose\"",
        "\"karp_node_pool\" \"general_purpose_2\"",
    ] {
        let (_, block) = together.split_once(resource).unwrap();
        assert_eq!(lines(block)[2], "teardown = karp_teardown.this.id", "{resource}: {together}");
    }
    let plan = "# Its share of the plan is: 4 to import, 0 to add, 3 to change, 0 to destroy.";
    assert!(together.contains(plan), "{together}");
    let told = text(&output.stderr).replace(named, "FILE");
    let (at, end) = (told.find("Deployment").expect(&told), told.find("note: ").expect(&told));
    let seen = format!("{written}--- stderr\n{}", &told[at..end]);
    insta::assert_snapshot!(seen);
    assert!(!seen.contains("hunter2"));
}

#[test]
fn karp_takes_the_place_of_one_controller_in_a_file_of_its_own() {
    let file = scratch("nobody.tf");
    let named = file.to_str().unwrap();
    let folder = file.parent().unwrap();
    let again = folder.join("..").join(folder.file_name().unwrap()).join(file.file_name().unwrap());
    let again = again.to_str().unwrap();
    for (files, more, told) in [
        (&["today.yaml"][..], &["--controller", named][..], "there is no Deployment of Karpenter's"),
        (&["installed.yaml"], &["--controller", "-"], "--controller takes a file of its own"),
        (&["installed.yaml"], &["--controller", named, "-o", named], "--controller takes a file of its own"),
        (&["installed.yaml"], &["--controller", named, "-o", again], "--controller takes a file of its own"),
    ] {
        let output = migrate(files, more);
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(1), ""), "{more:?}");
        assert!(text(&output.stderr).contains(told) && !file.exists(), "{}", text(&output.stderr));
    }
    // the controller alone is something to migrate
    let output = migrate(&["installed.yaml"], &["--controller", named]);
    let written = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(written.contains("PLACEHOLDER: give it the ARNs of the roles of the nodes."), "{written}");
}

#[test]
fn what_no_cluster_has_is_not_imported() {
    let output = migrate(&["today.yaml"], &["--no-import"]);
    assert!(text(&output.stdout).contains("variable \"cluster_name\""));
    assert!(!text(&output.stdout).contains("import {"), "{}", text(&output.stdout));
    let annotations = "\n  annotations = { \"karp.sh/price-tolerance\" = \"20%\" }\n";
    assert!(text(&output.stdout).contains(annotations), "{}", text(&output.stdout));
    assert!(!seen(&output).contains("The annotation"), "{}", text(&output.stderr));
}

#[test]
fn the_file_that_is_asked_for_is_written() {
    let path = std::env::temp_dir().join(format!("karp-migrate-{}.tf", std::process::id()));
    let output = migrate(&["today.yaml"], &["-o", path.to_str().unwrap()]);
    let written = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), ""));
    assert_eq!(written, text(&migrate(&["today.yaml"], &[]).stdout));
}

#[test]
fn input_that_cannot_be_used_is_told_by_file_and_line() {
    for (content, expected) in [
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\nmetadata: {name: b}\n", ":5: kind is missing"),
        ("apiVersion: v1\nkind: [\n", ":2: "),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {}\n", "nothing to migrate"),
    ] {
        let path = std::env::temp_dir().join(format!("karp-migrate-bad-{}.yaml", std::process::id()));
        std::fs::write(&path, content).unwrap();
        let mut karp = Command::new(env!("CARGO_BIN_EXE_karp"));
        let output = karp.args(["migrate", "-f"]).arg(&path).env("RUST_BACKTRACE", "0").output().unwrap();
        std::fs::remove_file(&path).unwrap();
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains(expected), "{told}");
    }
}

/// A cluster whose pools are all Auto Mode's is told so before it is told that nothing is left to do.
#[test]
fn what_is_passed_over_is_told_where_it_is_all_that_there_is() {
    let path = std::env::temp_dir().join(format!("karp-migrate-passed-{}.yaml", std::process::id()));
    std::fs::write(&path, PASSED).unwrap();
    let output = migrate(&[path.to_str().unwrap()], &[]);
    std::fs::remove_file(&path).unwrap();
    let told = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(1), ""), "{told}");
    let pool =
        "NodePool general-purpose: left out, since spec.template.spec.nodeClassRef.group is \"eks.amazonaws.com\"";
    let cluster = "ClusterConfig prod: passed over, since it is eksctl's";
    let end = told.find("nothing to migrate").expect(&told);
    for note in [pool, cluster] {
        assert!(told.find(note).is_some_and(|at| at < end), "{told}");
    }
}

const PASSED: &str = "apiVersion: eksctl.io/v1alpha5
kind: ClusterConfig
metadata: {name: prod, region: eu-west-1}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: general-purpose}
spec:
  template:
    spec:
      nodeClassRef: {group: eks.amazonaws.com, kind: NodeClass, name: default}
      requirements: []
";

/// Standard output is called - as standard input is: no file of that name is made.
#[test]
fn a_dash_is_standard_output() {
    let output = migrate(&["today.yaml"], &["-o", "-"]);
    assert_eq!(text(&output.stdout), text(&migrate(&["today.yaml"], &[]).stdout));
    assert!(!Path::new("-").exists());
}

/// What is written needs no `tofu fmt`; skipped where `KARP_TEST_TOOLS` names no folder with `tofu`.
#[test]
fn what_is_written_is_laid_out_as_tofu_would() {
    let tofu = PathBuf::from(std::env::var("KARP_TEST_TOOLS").unwrap_or_default()).join("tofu");
    if !tofu.is_file() {
        eprintln!("skipped: KARP_TEST_TOOLS names no folder with tofu");
        return;
    }
    let dir = std::env::temp_dir().join(format!("karp-migrate-fmt-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    for (file, more) in [("today.yaml", &[][..]), ("older.yaml", &["--role", "r"])] {
        std::fs::write(dir.join("main.tf"), migrate(&[file], more).stdout).unwrap();
        let output = Command::new(&tofu).args(["fmt", "-check", "-diff"]).current_dir(&dir).output().unwrap();
        assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    }
    let controller = dir.join("controller.tf");
    for files in [&["installed.yaml", "today.yaml"][..], &["installed.yaml"]] {
        let written = migrate(files, &["--controller", controller.to_str().unwrap()]).stdout;
        std::fs::write(dir.join("main.tf"), written).unwrap();
        let output = Command::new(&tofu).args(["fmt", "-check", "-diff"]).current_dir(&dir).output().unwrap();
        assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    }
    std::fs::remove_dir_all(&dir).unwrap();
}
