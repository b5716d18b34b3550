//! What is linked into a binary, as a CycloneDX 1.5 document (<https://cyclonedx.org/docs/1.5/json/>). `cargo tree` tells it, since it
//! knows which features and which target a build has; `cargo metadata` would name what other members of the workspace ask for, too.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{CONTROLLER, PROVIDER, checksums::sha256, origin::Origin};
use crate::{cargo, layout::Layout};

/// It makes features equal and has no code: what only it depends on is not linked.
const WORKSPACE_HACK: &str = "workspace-hack";
/// How `cargo tree` is to print a crate, after its depth.
const FORMAT: &str = " {p}\t{l}";

/// A crate that is linked.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Crate {
    name: String,
    version: String,
    /// As its author wrote it; empty where it names none.
    licence: String,
}

impl Crate {
    /// Reads a line of `cargo tree --prefix depth`: `2 serde v1.0.229<tab>MIT OR Apache-2.0`, with `(*)` at its end where it is told
    /// once more.
    fn read(line: &str) -> Option<(usize, Self)> {
        let (told, licence) = line.split_once('\t')?;
        let mut words = told.split_whitespace();
        let depth = words.next()?.parse().ok()?;
        let (name, version) = (words.next()?.to_owned(), words.next()?.strip_prefix('v')?.to_owned());
        let licence = licence.trim().trim_end_matches("(*)").trim().to_owned();
        Some((depth, Self { name, version, licence }))
    }

    fn key(&self) -> String {
        key(&self.name, &self.version)
    }

    /// The licences as an SPDX expression; `MIT/Apache-2.0` is what crates said before there were expressions.
    fn expression(&self) -> Result<String> {
        ensure!(!self.licence.is_empty(), "{} {} names no licence: find out, or do without", self.name, self.version);
        Ok(self.licence.split('/').map(str::trim).collect::<Vec<_>>().join(" OR "))
    }

    /// A crate of this workspace is on no registry: its address is the repository.
    fn purl(&self, published: bool) -> String {
        let purl = format!("pkg:cargo/{}@{}", self.name, self.version.replace('+', "%2B"));
        if published { purl } else { format!("{purl}?vcs_url=git%2B{}", env!("CARGO_PKG_REPOSITORY")) }
    }
}

fn key(name: &str, version: &str) -> String {
    format!("{name}@{version}")
}

/// The part of `Cargo.lock` that is needed.
#[derive(Deserialize)]
struct Lock {
    #[serde(default)]
    package: Vec<Locked>,
}

#[derive(Deserialize)]
struct Locked {
    name: String,
    version: String,
    checksum: Option<String>,
}

/// What a build of both binaries links, for one target.
#[derive(Debug)]
pub struct Linked {
    target: String,
    crates: BTreeMap<String, Crate>,
    needs: BTreeMap<String, BTreeSet<String>>,
    /// SHA-256 of the packed sources, of crates that come from a registry.
    checksums: BTreeMap<String, String>,
}

impl Linked {
    /// Asks cargo what the build of both binaries for a target links: normal dependencies without procedural macros, with the features
    /// that they have when both are built at once.
    ///
    /// # Errors
    /// When cargo fails, or `Cargo.lock` is not up to date.
    pub fn resolved(layout: &Layout, target: &str) -> Result<Self> {
        let mut tree =
            cargo::command(layout, &["tree", "--locked", "--color", "never", "-p", CONTROLLER, "-p", PROVIDER]);
        tree.args(["--edges", "normal,no-proc-macro", "--prefix", "depth", "--format", FORMAT, "--target", target]);
        let answer = tree.output().context("starting cargo tree")?;
        ensure!(answer.status.success(), "`cargo tree` failed: {}", String::from_utf8_lossy(&answer.stderr));
        let path = layout.root.join("Cargo.lock");
        let lock = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        Self::parse(&String::from_utf8_lossy(&answer.stdout), &lock, target)
    }

    /// Reads what `cargo tree` printed, and `Cargo.lock`.
    ///
    /// # Errors
    /// When one of them is not understood.
    pub fn parse(tree: &str, lock: &str, target: &str) -> Result<Self> {
        let lock: Lock = toml::from_str(lock).context("reading Cargo.lock")?;
        let checksums = lock.package.into_iter().filter_map(|one| Some((key(&one.name, &one.version), one.checksum?)));
        let (mut crates, mut needs) = (BTreeMap::new(), BTreeMap::<String, BTreeSet<String>>::new());
        let mut path: Vec<String> = Vec::new();
        for line in tree.lines().filter(|line| !line.is_empty()) {
            let Some((depth, one)) = Crate::read(line) else {
                bail!("`cargo tree` prints {line:?}, which is not understood")
            };
            path.truncate(depth);
            if let Some(parent) = path.last() {
                needs.entry(parent.clone()).or_default().insert(one.key());
            }
            path.push(one.key());
            crates.insert(one.key(), one);
        }
        Ok(Self { target: target.to_owned(), crates, needs, checksums: checksums.collect() })
    }

    fn needed_by<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a Crate> {
        let keys = self.needs.get(key).into_iter().flatten();
        keys.filter_map(move |key| self.crates.get(key)).filter(|one| one.name != WORKSPACE_HACK)
    }

    /// The crates that a package links, itself among them.
    fn of(&self, package: &str) -> Result<BTreeMap<String, &Crate>> {
        let root = self.crates.values().find(|one| one.name == package);
        let mut open = vec![root.with_context(|| format!("`cargo tree` does not name {package}"))?];
        let mut found = BTreeMap::new();
        while let Some(one) = open.pop() {
            if found.insert(one.key(), one).is_none() {
                open.extend(self.needed_by(&one.key()));
            }
        }
        Ok(found)
    }

    /// Writes the document of one package's binary. Its serial number is made of its content, by SHA-256 in a UUID of version 8.
    ///
    /// # Errors
    /// When the package is not there, or a crate names no licence.
    pub fn sbom(&self, origin: &Origin, package: &str, binary: &[u8]) -> Result<Vec<u8>> {
        let linked = self.of(package)?;
        let (mut application, mut components, mut dependencies) = (Value::Null, Vec::new(), Vec::new());
        for (key, one) in &linked {
            let needs: Vec<String> = self.needed_by(key).map(Crate::key).collect();
            dependencies.push(json!({ "ref": key, "dependsOn": needs }));
            if one.name == package {
                application = self.component(one, "application", Some(sha256(binary)))?;
            } else {
                components.push(self.component(one, "library", self.checksums.get(key).cloned())?);
            }
        }
        let tool =
            json!({ "type": "application", "name": "cargo release-artifacts", "version": env!("CARGO_PKG_VERSION") });
        let mut document = json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": {
                "timestamp": origin.time.to_string(),
                "tools": { "components": [tool] },
                "component": application,
                "properties": [{ "name": "cargo:target", "value": self.target }],
            },
            "components": components,
            "dependencies": dependencies,
        });
        let digest: [u8; 32] = Sha256::digest(serde_json::to_vec(&document)?).into();
        let mut serial = [0; 16];
        serial.copy_from_slice(&digest[..16]);
        document["serialNumber"] = json!(format!("urn:uuid:{}", uuid::Builder::from_custom_bytes(serial).into_uuid()));
        let mut text = serde_json::to_vec_pretty(&document)?;
        text.push(b'\n');
        Ok(text)
    }

    fn component(&self, one: &Crate, kind: &str, sha256: Option<String>) -> Result<Value> {
        let mut component = json!({
            "type": kind,
            "bom-ref": one.key(),
            "name": one.name,
            "version": one.version,
            "licenses": [{ "expression": one.expression()? }],
            "purl": one.purl(self.checksums.contains_key(&one.key())),
        });
        if let Some(sum) = sha256 {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
        }
        Ok(component)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::release::origin;

    const TREE: &str = "\
0 karp v1.2.3 (/somewhere/controller)\tApache-2.0
1 only-karp v2.0.0\tMIT/Apache-2.0
2 shared v0.9.1+deprecated\tMIT
1 workspace-hack v0.1.0 (/somewhere)\t
2 only-hack v1.0.0\tMIT
2 shared v0.9.1+deprecated\tMIT

0 terraform-provider-karp v1.2.3 (/somewhere/provider)\tApache-2.0
1 shared v0.9.1+deprecated\tMIT
1 workspace-hack v0.1.0 (/somewhere)\t (*)
";
    const LOCK: &str = "\
version = 4
[[package]]
name = \"karp\"
version = \"1.2.3\"
dependencies = [\"only-karp\"]
[[package]]
name = \"shared\"
version = \"0.9.1+deprecated\"
source = \"registry\"
checksum = \"c0ffee\"
";

    fn sbom(linked: &Linked, package: &str) -> Value {
        serde_json::from_slice(&linked.sbom(&origin::fixture(), package, b"a binary").unwrap()).unwrap()
    }

    fn names(sbom: &Value) -> Vec<&str> {
        sbom["components"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect()
    }

    #[test]
    fn a_binary_has_what_it_needs_and_nothing_of_the_other() {
        let linked = Linked::parse(TREE, LOCK, "x86_64-unknown-linux-musl").unwrap();
        let (controller, provider) = (sbom(&linked, CONTROLLER), sbom(&linked, PROVIDER));
        assert_eq!((names(&controller), names(&provider)), (vec!["only-karp", "shared"], vec!["shared"]));
        let shared = json!({
            "type": "library",
            "bom-ref": "shared@0.9.1+deprecated",
            "name": "shared",
            "version": "0.9.1+deprecated",
            "licenses": [{ "expression": "MIT" }],
            "purl": "pkg:cargo/shared@0.9.1%2Bdeprecated",
            "hashes": [{ "alg": "SHA-256", "content": "c0ffee" }],
        });
        assert_eq!(provider["components"], json!([shared]));
        assert_eq!(controller["components"][0]["licenses"], json!([{ "expression": "MIT OR Apache-2.0" }]));
        let needs = json!([
            { "ref": "karp@1.2.3", "dependsOn": ["only-karp@2.0.0"] },
            { "ref": "only-karp@2.0.0", "dependsOn": ["shared@0.9.1+deprecated"] },
            { "ref": "shared@0.9.1+deprecated", "dependsOn": [] },
        ]);
        assert_eq!(controller["dependencies"], needs);
        let application = &controller["metadata"]["component"];
        assert_eq!((&application["type"], &application["name"]), (&json!("application"), &json!("karp")));
        assert_eq!(application["hashes"], json!([{ "alg": "SHA-256", "content": sha256(b"a binary") }]));
        assert!(application["purl"].as_str().unwrap().starts_with("pkg:cargo/karp@1.2.3?vcs_url=git%2Bhttps://"));
    }

    #[test]
    fn the_serial_number_is_of_the_content() {
        let linked = Linked::parse(TREE, LOCK, "x86_64-unknown-linux-musl").unwrap();
        let one = sbom(&linked, CONTROLLER);
        assert_eq!(one, sbom(&linked, CONTROLLER));
        assert_eq!(one["metadata"]["timestamp"], "2026-01-02T03:04:05Z");
        let serial = one["serialNumber"].as_str().unwrap().strip_prefix("urn:uuid:").unwrap();
        assert_eq!(uuid::Uuid::parse_str(serial).unwrap().get_version_num(), 8);
        assert_ne!(one["serialNumber"], sbom(&linked, PROVIDER)["serialNumber"]);
    }

    #[test]
    fn what_is_not_understood_or_not_licensed_is_refused() {
        assert!(Linked::parse("karp v1.2.3\n", "", "t").unwrap_err().to_string().contains("not understood"));
        assert!(Linked::parse("", "package = 1", "t").is_err());
        let bare = Linked::parse("0 karp v1.2.3\tMIT\n1 bare v1.0.0\t\n", "", "t").unwrap();
        let error = bare.sbom(&origin::fixture(), CONTROLLER, b"").unwrap_err().to_string();
        assert!(error.contains("bare 1.0.0 names no licence"), "{error}");
        let error = bare.sbom(&origin::fixture(), PROVIDER, b"").unwrap_err().to_string();
        assert!(error.contains("does not name terraform-provider-karp"), "{error}");
    }

    /// On the target that tests are built for, so that all of its crates are there already.
    #[test]
    fn this_workspaces_documents_are_complete_and_apart() {
        let layout = Layout::here().unwrap();
        let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let linked = Linked::resolved(&layout, &target).unwrap();
        let (controller, provider) = (sbom(&linked, CONTROLLER), sbom(&linked, PROVIDER));
        for document in [&controller, &provider] {
            let components = document["components"].as_array().unwrap();
            assert!(components.len() > 100, "{}", components.len());
            for one in components {
                for field in ["name", "version", "purl", "bom-ref"] {
                    assert!(one[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {one}");
                }
                let expression = one["licenses"][0]["expression"].as_str().unwrap();
                assert!(!expression.is_empty() && !expression.contains('/'), "{one}");
                let ours = one["purl"].as_str().unwrap().contains("vcs_url=");
                assert!(ours != one["hashes"].is_array(), "what comes from a registry has a checksum: {one}");
            }
            let names = names(document);
            assert!(names.contains(&"karp-domain") && names.contains(&"karp-aws") && names.contains(&"rustls"));
            for absent in
                ["insta", "proptest", "divan", "tonic-prost-build", "serde_derive", "syn", WORKSPACE_HACK, "sandbox"]
            {
                assert!(!names.contains(&absent), "{absent} is not linked");
            }
            let known: BTreeSet<&str> =
                document["dependencies"].as_array().unwrap().iter().map(|one| one["ref"].as_str().unwrap()).collect();
            assert_eq!(known.len(), components.len() + 1);
            for one in document["dependencies"].as_array().unwrap() {
                let needs = one["dependsOn"].as_array().unwrap();
                assert!(needs.iter().all(|need| known.contains(need.as_str().unwrap())), "{one}");
            }
        }
        let (controller, provider) = (names(&controller), names(&provider));
        for (name, has, has_not) in [
            ("prometheus-client", &controller, &provider),
            ("clap", &controller, &provider),
            ("tonic", &provider, &controller),
        ] {
            assert!(has.contains(&name) && !has_not.contains(&name), "{name}");
        }
    }
}
