//! The controller's image, as an OCI image layout (<https://github.com/opencontainers/image-spec>): one static program, the certificates
//! of the authorities that AWS's are signed by, and a user. Nothing but files is needed to write it.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{
    IMAGE,
    archive::{self, Entry},
    checksums::sha256,
    origin::Origin,
};

/// Where Debian, Ubuntu and Alpine keep the authorities that they trust. The controller looks there, too: its TLS takes the system's.
pub const SYSTEM_ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";
/// The user that `karp_controller` runs it as.
const USER: u32 = 65532;

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// Certificates, as far as this module looks.
#[cfg(test)]
pub(super) const FIXTURE: &[u8] = b"-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";

/// Reads the certificates (PEM) that go into the image.
///
/// # Errors
/// When there are none: without, the controller could not call AWS.
pub fn roots(path: &Path) -> Result<Vec<u8>> {
    const FIX: &str =
        "give a PEM file of certificate authorities by --ca-bundle (Debian, Ubuntu: `apt-get install ca-certificates`)";
    let roots = std::fs::read(path).with_context(|| format!("reading {}: {FIX}", path.display()))?;
    let any = String::from_utf8_lossy(&roots).contains("-----BEGIN CERTIFICATE-----");
    ensure!(any, "{} has no certificate in PEM: {FIX}", path.display());
    Ok(roots)
}

/// Makes the files of a layout with one image, which is tagged with the version.
///
/// # Errors
/// None that writing to memory has.
pub fn layout(origin: &Origin, architecture: &str, controller: &[u8], roots: &[u8]) -> Result<Vec<Entry<'static>>> {
    let layer = archive::tarred(&files(controller, roots), origin.time)?;
    let diff_id = format!("sha256:{}", sha256(&layer));
    let labels = labels(origin);
    let mut entries = Vec::new();
    let mut blob = |media_type: &str, content: Vec<u8>| {
        let (sum, size) = (sha256(&content), content.len());
        entries.push(Entry::new(format!("blobs/sha256/{sum}"), 0o644, content));
        json!({ "mediaType": media_type, "digest": format!("sha256:{sum}"), "size": size })
    };
    let layer = blob(LAYER, archive::gzipped(&layer)?);
    let config = json!({
        "created": origin.time.to_string(),
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"),
            "Env": ["PATH=/"],
            "Entrypoint": ["/karp"],
            "WorkingDir": "/",
            "Labels": labels,
        },
        "rootfs": { "type": "layers", "diff_ids": [diff_id] },
        "history": [{ "created": origin.time.to_string(), "created_by": "cargo release-artifacts" }],
    });
    let config = blob(CONFIG, serde_json::to_vec(&config)?);
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config,
        "layers": [layer],
        "annotations": labels,
    });
    let mut manifest = blob(MANIFEST, serde_json::to_vec(&manifest)?);
    manifest["platform"] = json!({ "architecture": architecture, "os": "linux" });
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": origin.version });
    let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest] });
    entries.push(Entry::new("index.json".to_owned(), 0o644, serde_json::to_vec(&index)?));
    let about = json!({ "imageLayoutVersion": "1.0.0" });
    entries.push(Entry::new("oci-layout".to_owned(), 0o644, serde_json::to_vec(&about)?));
    Ok(entries)
}

/// What the image's only layer holds. The user has a name and a home, for whatever asks who it is.
fn files<'a>(controller: &'a [u8], roots: &'a [u8]) -> [Entry<'a>; 4] {
    let passwd = format!("root:x:0:0:root:/:/sbin/nologin\nnonroot:x:{USER}:{USER}:nonroot:/:/sbin/nologin\n");
    let group = format!("root:x:0:\nnonroot:x:{USER}:\n");
    [
        Entry::new("karp".to_owned(), 0o755, controller),
        Entry::new("etc/passwd".to_owned(), 0o644, passwd.into_bytes()),
        Entry::new("etc/group".to_owned(), 0o644, group.into_bytes()),
        Entry::new(SYSTEM_ROOTS.trim_start_matches('/').to_owned(), 0o644, roots),
    ]
}

fn labels(origin: &Origin) -> BTreeMap<String, Value> {
    let created = origin.time.to_string();
    let told = [
        ("title", Some(IMAGE)),
        ("description", Some("karp's controller: just enough EC2 behind a Kubernetes cluster")),
        ("version", Some(origin.version.as_str())),
        ("revision", origin.revision.as_deref()),
        ("source", Some(env!("CARGO_PKG_REPOSITORY"))),
        ("licenses", Some(env!("CARGO_PKG_LICENSE"))),
        ("created", Some(created.as_str())),
    ];
    let named = told.into_iter().filter_map(|(name, value)| Some((name, value?)));
    named.map(|(name, value)| (format!("org.opencontainers.image.{name}"), json!(value))).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;
    use crate::release::{elf, origin};

    struct Layout(BTreeMap<String, Vec<u8>>);

    impl Layout {
        fn json(&self, path: &str) -> Value {
            serde_json::from_slice(&self.0[path]).unwrap()
        }

        /// The bytes that a descriptor is of, with its size and digest recomputed.
        fn blob(&self, descriptor: &Value, media_type: &str) -> &[u8] {
            assert_eq!(descriptor["mediaType"], media_type);
            let sum = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
            let content = &self.0[&format!("blobs/sha256/{sum}")];
            assert_eq!(sha256(content), sum);
            assert_eq!(descriptor["size"], content.len());
            content
        }
    }

    /// The layout as whoever gets the archive of it reads it.
    fn read() -> Layout {
        let entries = layout(&origin::fixture(), "arm64", &elf::fixture(183, &[1]), FIXTURE).unwrap();
        let tar = archive::tarred(&entries, origin::fixture().time).unwrap();
        Layout(unpacked(&tar).into_iter().map(|(path, (_, content))| (path, content)).collect())
    }

    /// Mode and content of each file by its path.
    fn unpacked(tar: &[u8]) -> BTreeMap<String, (u32, Vec<u8>)> {
        let mut files = BTreeMap::new();
        for entry in tar::Archive::new(tar).entries().unwrap() {
            let mut entry = entry.unwrap();
            if entry.header().entry_type().is_dir() {
                continue;
            }
            let path = entry.path().unwrap().to_str().unwrap().to_owned();
            let mode = entry.header().mode().unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            files.insert(path, (mode, content));
        }
        files
    }

    #[test]
    fn every_digest_from_the_index_to_the_layer_holds() {
        let layout = read();
        assert_eq!(layout.json("oci-layout"), json!({ "imageLayoutVersion": "1.0.0" }));
        let index = layout.json("index.json");
        assert_eq!((&index["schemaVersion"], &index["mediaType"]), (&json!(2), &json!(INDEX)));
        let [descriptor] = &index["manifests"].as_array().unwrap()[..] else { panic!("one image: {index}") };
        assert_eq!(descriptor["platform"], json!({ "architecture": "arm64", "os": "linux" }));
        assert_eq!(descriptor["annotations"], json!({ "org.opencontainers.image.ref.name": "1.2.3" }));
        let manifest: Value = serde_json::from_slice(layout.blob(descriptor, MANIFEST)).unwrap();
        assert_eq!((&manifest["schemaVersion"], &manifest["mediaType"]), (&json!(2), &json!(MANIFEST)));
        let config: Value = serde_json::from_slice(layout.blob(&manifest["config"], CONFIG)).unwrap();
        let [layer] = &manifest["layers"].as_array().unwrap()[..] else { panic!("one layer: {manifest}") };
        let mut tar = Vec::new();
        flate2::read::GzDecoder::new(layout.blob(layer, LAYER)).read_to_end(&mut tar).unwrap();
        assert_eq!(config["rootfs"], json!({ "type": "layers", "diff_ids": [format!("sha256:{}", sha256(&tar))] }));
        assert_eq!(layout.0.len(), 5, "two more files than blobs: {:?}", layout.0.keys());

        assert_eq!((&config["architecture"], &config["os"]), (&json!("arm64"), &json!("linux")));
        assert_eq!(config["created"], "2026-01-02T03:04:05Z");
        // The Deployment of `karp_controller` gives arguments alone, and this user.
        assert_eq!(config["config"]["Entrypoint"], json!(["/karp"]));
        assert_eq!(config["config"]["User"], "65532:65532");
        let labels = &config["config"]["Labels"];
        assert_eq!(labels["org.opencontainers.image.version"], "1.2.3");
        assert_eq!(labels["org.opencontainers.image.revision"], "0123456789abcdef");
        assert_eq!(labels["org.opencontainers.image.licenses"], "Apache-2.0");

        let files = unpacked(&tar);
        let modes: Vec<(&str, u32)> = files.iter().map(|(path, (mode, _))| (path.as_str(), *mode)).collect();
        let expected = [
            ("etc/group", 0o644),
            ("etc/passwd", 0o644),
            ("etc/ssl/certs/ca-certificates.crt", 0o644),
            ("karp", 0o755),
        ];
        assert_eq!(modes, expected);
        assert_eq!(files["karp"].1, elf::fixture(183, &[1]));
        assert_eq!(files["etc/ssl/certs/ca-certificates.crt"].1, FIXTURE);
        assert!(files["etc/passwd"].1.windows(21).any(|part| part == b"nonroot:x:65532:65532"));
    }

    #[test]
    fn an_image_without_authorities_is_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("roots.pem");
        assert!(format!("{:#}", roots(&path).unwrap_err()).contains("--ca-bundle"));
        std::fs::write(&path, "nothing").unwrap();
        assert!(roots(&path).unwrap_err().to_string().contains("has no certificate"));
        std::fs::write(&path, FIXTURE).unwrap();
        assert_eq!(roots(&path).unwrap(), FIXTURE);
    }
}
