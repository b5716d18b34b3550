//! What other providers left in a state, written by hand. OpenTofu asks each provider in a state for its schemas, and those are not at
//! hand: karp's own binary stands in for them, which is enough, since nothing of theirs is read, planned or applied.

use std::path::Path;

use serde_json::{Value, json};

/// A resource of another provider.
pub struct Left {
    /// `namespace/name` in OpenTofu's registry, or `host/namespace/name` in another.
    pub provider: &'static str,
    /// Type and name.
    pub address: &'static str,
    /// The version of its schema.
    pub version: u64,
    /// Its attributes.
    pub attributes: Value,
    /// The version of its identity, and the identity, where it has one.
    pub identity: Option<(u64, Value)>,
}

/// Writes a state that holds these, and makes OpenTofu find a provider for each.
pub fn leave(folder: &Path, left: &[Left]) {
    let state = json!({
        "version": 4,
        "terraform_version": "1.12.6",
        "serial": 1,
        "lineage": "5a3ea0a5-5b52-4c1c-9a46-0a0a0a0a0a0a",
        "outputs": {},
        "resources": left.iter().map(resource).collect::<Vec<_>>(),
    });
    std::fs::write(folder.join("terraform.tfstate"), state.to_string()).unwrap();

    let stand_ins = folder.join("others");
    std::fs::create_dir_all(&stand_ins).unwrap();
    let mut overrides = String::from("dev_overrides {\n");
    for one in left {
        let name = one.provider.rsplit('/').next().unwrap();
        let link = stand_ins.join(format!("terraform-provider-{name}"));
        if !link.exists() {
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_terraform-provider-karp"), link).unwrap();
        }
        // OpenTofu asks its own registry's provider, too, for what a `moved` block names.
        let of_opentofu = one.provider.strip_prefix("registry.terraform.io/").map(in_opentofu);
        for address in of_opentofu.into_iter().chain([source(one)]) {
            let known = format!("    {address:?} = {stand_ins:?}\n");
            if !overrides.contains(&known) {
                overrides += &known;
            }
        }
    }
    let rc = folder.join("tofu.rc");
    let text = std::fs::read_to_string(&rc).unwrap();
    std::fs::write(rc, text.replace("dev_overrides {\n", &overrides)).unwrap();
}

/// The whole address of the provider.
fn source(left: &Left) -> String {
    match left.provider.split('/').count() {
        3 => left.provider.to_owned(),
        _ => in_opentofu(left.provider),
    }
}

fn in_opentofu(provider: &str) -> String {
    format!("registry.opentofu.org/{provider}")
}

fn resource(left: &Left) -> Value {
    let (kind, name) = left.address.split_once('.').unwrap();
    let mut instance = json!({
        "schema_version": left.version,
        "attributes": left.attributes,
        "sensitive_attributes": [],
        "private": "b3RoZXI=",
    });
    if let Some((version, identity)) = &left.identity {
        instance["identity_schema_version"] = json!(version);
        instance["identity"] = identity.clone();
    }
    json!({
        "mode": "managed",
        "type": kind,
        "name": name,
        "provider": format!("provider[{:?}]", source(left)),
        "instances": [instance],
    })
}
