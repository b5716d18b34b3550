//! The examples that the registry's pages show (`examples/`): each kind has one, and each import that they tell begins a state.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tfplugin::testing::Core;
use tfplugin::{Context, Provider as _, Value};
use tokio_util::sync::CancellationToken;

use crate::provider::Karp;

fn examples(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(folder)
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn each_kind_has_its_example_and_each_example_its_kind() {
    let karp = Karp::default();
    let resources = karp.resources().iter().map(|one| one.type_name().to_owned()).collect();
    let sources = karp.data_sources().iter().map(|one| one.type_name().to_owned()).collect();
    let ephemeral = karp.ephemeral_resources().iter().map(|one| one.type_name().to_owned()).collect();
    let functions = karp.functions().iter().map(|one| one.name().to_owned()).collect();
    // The folder, the file, the kinds, and what stands before a kind where it is used.
    let all: [(&str, &str, Vec<String>, &str); 4] = [
        ("resources", "resource.tf", resources, "resource \""),
        ("data-sources", "data-source.tf", sources, "data \""),
        ("ephemeral-resources", "ephemeral-resource.tf", ephemeral, "ephemeral \""),
        ("functions", "function.tf", functions, "provider::karp::"),
    ];
    for (folder, file, mut kinds, before) in all {
        let entries = std::fs::read_dir(examples(folder)).unwrap().map(|entry| entry.unwrap());
        let mut kept: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        kept.sort();
        kinds.sort();
        assert_eq!(kept, kinds, "{folder}");
        for kind in kinds {
            let text = read(&examples(folder).join(&kind).join(file));
            assert!(text.contains(&format!("{before}{kind}")), "{folder}/{kind}/{file} has no {kind}");
        }
    }
}

/// The addresses and ids of the imports in a script.
fn imports(script: &str) -> Vec<(&str, &str)> {
    let commands = script.lines().filter_map(|line| line.strip_prefix("tofu import "));
    commands.map(|command| command.split_once(' ').expect("an address and an id")).collect()
}

#[tokio::test]
async fn each_import_of_an_example_begins_a_state() {
    let (karp, core) = (Karp::default(), Core::new(Karp::default()));
    assert!(karp.configure(Value::object([("region", "eu-west-1")])).is_empty());
    for resource in karp.resources() {
        let (kind, ctx) = (resource.type_name(), Context::new(CancellationToken::new(), Duration::from_secs(1)));
        let folder = examples("resources").join(kind);
        let script = folder.join("import.sh");
        if !script.exists() {
            let told = resource.import(&ctx, "").await.expect_err("an import.sh is missing").to_string();
            assert!(told.contains("Import is not supported"), "{kind} can be imported: write {}", script.display());
            continue;
        }
        let example = read(&folder.join("resource.tf"));
        let script = read(&script);
        let told = imports(&script);
        assert!(!told.is_empty(), "{kind}");
        for (address, quoted) in told {
            let id = quoted.strip_prefix('\'').and_then(|id| id.strip_suffix('\'')).expect("an id in quotes");
            let declared = address.split_once('.').map(|(kind, label)| format!("resource \"{kind}\" \"{label}\""));
            assert!(address.starts_with(&format!("{kind}.")), "{kind}: {address}");
            assert!(declared.is_some_and(|block| example.contains(&block)), "{address} is not in the example");
            let state = resource.import(&ctx, id).await.unwrap_or_else(|errors| panic!("{kind} {id}: {errors}"));
            let state = core.config(kind, &state);
            assert!(state.get("id").as_str().is_some_and(|id| !id.is_empty()), "{kind} {id}: {state:?}");
            if let Some((_, region)) = id.rsplit_once('@') {
                assert_eq!(state.get("region").as_str(), Some(region), "{kind} {id}");
            }
        }
    }
}
