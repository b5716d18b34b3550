//! What `cargo release-artifacts` makes is what its users can take: OpenTofu installs the provider's zip, and the image's program runs.
//!
//! Runs when `KARP_RELEASE` names the folder that it was written to; `cargo verify --deep` makes one. By hand: `cargo release-artifacts`, then
//! `KARP_RELEASE=target/release-artifacts cargo test -p sandbox --test released`.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::read::GzDecoder;
use sandbox::{
    layout::Layout,
    release::sha256,
    tofu::{self, Workspace},
    tools::Tools,
};
use serde_json::Value;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A configuration that asks the provider for something that it answers by itself.
const ASKS: &str = r#"
terraform {
  required_providers {
    karp = { source = "karp/karp" }
  }
}
output "cores" {
  value = provider::karp::quantity("1500m")
}
"#;

/// The folder of the release, and what files for this machine's platform have in their names.
fn release() -> Option<(PathBuf, String)> {
    let Some(folder) = std::env::var_os("KARP_RELEASE").filter(|value| !value.is_empty()) else {
        eprintln!("skipped: no release in KARP_RELEASE");
        return None;
    };
    // cargo runs tests in the package's folder, and people name it from the checkout's
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    Some((root.join(folder), tofu::platform().unwrap()))
}

#[tokio::test]
async fn tofu_installs_the_provider_from_its_zip_and_asks_it() {
    let Some((folder, platform)) = release() else { return };
    let Some(tools) = Tools::built(&Layout::here().unwrap()).unwrap() else {
        eprintln!("skipped: the sandbox's tools are not built");
        return;
    };
    let place = tempfile::tempdir().unwrap();
    let mirror = place.path().join("mirror");
    let packed = mirror.join("registry.opentofu.org/karp/karp");
    std::fs::create_dir_all(&packed).unwrap();
    let zip = format!("terraform-provider-karp_{VERSION}_{platform}.zip");
    std::fs::copy(folder.join(&zip), packed.join(&zip)).unwrap();
    let config = tofu::write_mirror_config(place.path(), &mirror).unwrap();
    let source = place.path().join("source");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("main.tf"), ASKS).unwrap();
    let env = BTreeMap::from([("TF_CLI_CONFIG_FILE".to_owned(), config.display().to_string())]);
    let run = Workspace::copy(tools.program("tofu"), &source, place.path().join("run"), env).unwrap();
    let installed = run.run(&["init", "-no-color"]).await.unwrap();
    assert!(installed.code == 0 && installed.output.contains(&format!("karp/karp v{VERSION}")), "{installed:?}");
    let planned = run.run(&["plan", "-no-color"]).await.unwrap();
    assert!(planned.code == 0 && planned.output.contains("+ cores = 1.5"), "{planned:?}");
}

#[test]
fn the_images_program_runs_with_nothing_around_it() {
    let Some((folder, platform)) = release() else { return };
    let layout = folder.join(format!("karp-controller_{VERSION}_{platform}_oci"));
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
        let content = std::fs::read(layout.join("blobs/sha256").join(digest)).unwrap();
        assert_eq!((sha256(&content).as_str(), content.len() as u64), (digest, descriptor["size"].as_u64().unwrap()));
        content
    };
    let json = |content: &[u8]| serde_json::from_slice::<Value>(content).unwrap();
    let index = json(&std::fs::read(layout.join("index.json")).unwrap());
    let manifest = json(&blob(&index["manifests"][0]));
    let config = json(&blob(&manifest["config"]));
    assert_eq!(config["config"]["Entrypoint"], serde_json::json!(["/karp"]));
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join("karp");
    let layer = blob(&manifest["layers"][0]);
    let mut layer = tar::Archive::new(GzDecoder::new(&layer[..]));
    for entry in layer.entries().unwrap() {
        let mut entry = entry.unwrap();
        if entry.path().unwrap() == Path::new("karp") {
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            std::fs::write(&program, content).unwrap();
        }
    }
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let said = Command::new(&program).arg("version").env_clear().current_dir("/").output().unwrap();
    let text = String::from_utf8_lossy(&said.stdout);
    // what lies outside a repository has no commit
    let commit = config["config"]["Labels"]["org.opencontainers.image.revision"].as_str().unwrap_or("unknown");
    assert!(said.status.success() && text == format!("karp {VERSION} ({commit})\n"), "{said:?}, built from {commit}");
}
