//! The documented examples of functions and offline data sources under real OpenTofu, without any cloud. Skipped, with a line that says
//! so, where the program is missing.

#[path = "support/rc.rs"]
mod rc;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

struct Stand {
    tofu: PathBuf,
    dir: tempfile::TempDir,
}

impl Stand {
    fn new() -> Option<Self> {
        let tofu = rc::program("offline")?;
        let dir = tempfile::tempdir().unwrap();
        rc::write(dir.path());
        Some(Self { tofu, dir })
    }

    fn write(&self, example: &Path) -> String {
        let text = std::fs::read_to_string(example).unwrap();
        let head = "terraform {\n  required_providers {\n    karp = {\n      source = \"karp/karp\"\n    }\n  }\n}\n\
                    provider \"karp\" {\n  cluster_name = \"prod\"\n}\n";
        std::fs::write(self.dir.path().join("main.tf"), format!("{head}{text}")).unwrap();
        let _ = std::fs::remove_file(self.dir.path().join("terraform.tfstate"));
        text
    }

    fn put(&self, text: &str) {
        let head = "terraform {\n  required_providers {\n    karp = {\n      source = \"karp/karp\"\n    }\n  }\n}\n";
        std::fs::write(self.dir.path().join("main.tf"), format!("{head}{text}")).unwrap();
        let _ = std::fs::remove_file(self.dir.path().join("terraform.tfstate"));
    }

    fn output(&self, args: &[&str]) -> Output {
        let mut command = Command::new(&self.tofu);
        command.args(args).arg("-no-color").current_dir(self.dir.path());
        command.env("TF_CLI_CONFIG_FILE", self.dir.path().join("tofu.rc")).env("TF_IN_AUTOMATION", "1");
        command.env_remove("TF_REATTACH_PROVIDERS").output().unwrap()
    }

    fn run(&self, args: &[&str], code: i32) -> String {
        let output = self.output(args);
        let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "tofu {args:?}: {told}");
        told
    }
}

fn examples(folder: &str, file: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(folder);
    let mut all: Vec<PathBuf> = std::fs::read_dir(root).unwrap().map(|one| one.unwrap().path().join(file)).collect();
    all.sort();
    all
}

#[test]
fn each_function_answers_in_a_plan() {
    let Some(stand) = Stand::new() else { return };
    let all = examples("functions", "function.tf");
    assert_eq!(all.len(), 9, "each function has an example");
    for example in all {
        let text = stand.write(&example);
        if text.contains("resource \"") {
            // what is converted is taken by the resource, offline; making it would need a cluster
            let plan = stand.run(&["plan"], 0);
            assert!(plan.contains("1 to add"), "{}: {plan}", example.display());
            continue;
        }
        stand.run(&["apply", "-auto-approve"], 0);
        stand.run(&["plan", "-detailed-exitcode"], 0);
    }
}

#[test]
fn instance_types_need_no_cloud() {
    let Some(stand) = Stand::new() else { return };
    let example =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/data-sources/karp_instance_types/data-source.tf");
    stand.write(&example);
    stand.run(&["apply", "-auto-approve"], 0);
    let cheapest = stand.run(&["output", "-raw", "cheapest"], 0);
    assert!(cheapest.contains('.'), "a type's name: {cheapest}");
    stand.run(&["plan", "-detailed-exitcode"], 0);
}

#[test]
fn a_new_pool_is_previewed_without_any_cluster() {
    let Some(stand) = Stand::new() else { return };
    let pool = "resource \"karp_node_pool\" \"it\" {\n  name = \"arm\"\n  template = {\n    node_class_ref = { name = \"default\" }\n    \
                requirements = [{ key = \"kubernetes.io/arch\", operator = \"In\", values = [\"arm64\"] }]\n  }\n}\n";
    let later = "resource \"terraform_data\" \"host\" {\n  input = \"https://cluster.example\"\n}\n";
    for block in [
        "provider \"karp\" {}\n".to_owned(),
        format!("{later}provider \"karp\" {{\n  kubernetes = {{ host = terraform_data.host.output }}\n}}\n"),
        format!("{later}provider \"karp\" {{\n  cluster_name = terraform_data.host.output\n}}\n"),
    ] {
        stand.put(&format!("{block}{pool}"));
        let plan = stand.run(&["plan"], 0);
        // OpenTofu breaks lines.
        let flat = plan.split_whitespace().collect::<Vec<_>>().join(" ");
        let summary = plan.lines().find(|line| line.contains("NodePool \"arm\": ")).unwrap_or_else(|| panic!("{plan}"));
        let types = summary.split("NodePool \"arm\": ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
        assert!(types > Some(50), "{block}: {summary}");
        assert!(flat.contains("the cheapest at $") && flat.contains("a typical one at $"), "{block}: {plan}");
    }
    stand.put(&format!("provider \"karp\" {{\n  offline_plan = true\n}}\n{pool}"));
    let plan = stand.run(&["plan"], 0);
    assert!(!plan.contains("NodePool \"arm\""), "silent: {plan}");
}
