//! `cargo release-artifacts`: everything that a release publishes, made on one machine without Docker.
//!
//! | file | for |
//! |---|---|
//! | `terraform-provider-karp_VERSION_linux_ARCH.zip` | registries and mirrors: the provider, its licence, README and changelog |
//! | `terraform-provider-karp_VERSION_manifest.json` | registries: the protocol that the provider speaks |
//! | `terraform-provider-karp_VERSION_SHA256SUMS` | registries: what is signed |
//! | `karp-controller_VERSION_linux_ARCH_oci/`, `…_oci.tar` | the controller's image, as an OCI layout and as an archive of it |
//! | `…_sbom.cdx.json` | what is linked into each binary |
//! | `karp_VERSION_SHA256SUMS` | the sums of all that is not the registries' |
//!
//! The same commit, binaries and certificates give the same bytes: archives are sorted and carry the commit's time.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use comfy_table::Table;

use self::{archive::Entry, binaries::Binaries, checksums::Files, origin::Origin, sbom::Linked};
use crate::{layout::Layout, progress::Step};

pub use checksums::sha256;

mod archive;
mod binaries;
mod checksums;
mod elf;
mod image;
mod origin;
mod sbom;

/// The provider's package, and what its files are called.
const PROVIDER: &str = "terraform-provider-karp";
/// The controller's package.
const CONTROLLER: &str = "karp";
/// What the controller's files are called.
const IMAGE: &str = "karp-controller";
/// What lies beside the provider in its zip.
const PAPERS: [&str; 3] = ["CHANGELOG.md", "LICENSE", "README.md"];
/// Tells registries which protocol the provider speaks.
const MANIFEST: &str = "{\"version\":1,\"metadata\":{\"protocol_versions\":[\"6.0\"]}}\n";

/// What a release is made of, and where it goes.
#[derive(Debug, Clone, clap::Args)]
pub struct Request {
    /// Folder that the files go to; target/release-artifacts of the checkout when left out
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Build for this target, such as aarch64-unknown-linux-musl; may be repeated. Otherwise this machine's architecture
    #[arg(long, value_name = "TRIPLE")]
    target: Vec<String>,
    /// Take both binaries of a target from a folder instead of building them; may be repeated
    #[arg(long, value_name = "TRIPLE=FOLDER", value_parser = prebuilt)]
    binaries: Vec<Prebuilt>,
    /// PEM file of the authorities that the controller's image trusts
    #[arg(long, value_name = "FILE", default_value = image::SYSTEM_ROOTS)]
    ca_bundle: PathBuf,
}

#[derive(Debug, Clone)]
struct Prebuilt {
    target: String,
    folder: PathBuf,
}

fn prebuilt(text: &str) -> Result<Prebuilt, String> {
    match text.split_once('=') {
        Some((target, folder)) if !target.is_empty() && !folder.is_empty() => {
            Ok(Prebuilt { target: target.to_owned(), folder: PathBuf::from(folder) })
        }
        _ => Err("say which target they were built for: x86_64-unknown-linux-musl=FOLDER".to_owned()),
    }
}

/// Everything that the files are made from.
struct Release {
    root: PathBuf,
    origin: Origin,
    platforms: Vec<(Binaries, Linked)>,
    /// PEM.
    roots: Vec<u8>,
}

/// Builds what is not given, writes all files, and lists them.
///
/// # Errors
/// When something does not build, is not static, lacks a licence, or cannot be read or written; each names its fix.
pub async fn run(layout: &Layout, request: Request) -> Result<()> {
    let origin = Origin::of(&layout.root)?;
    let roots = image::roots(&request.ca_bundle)?;
    let out = request.out.unwrap_or_else(|| layout.root.join("target").join("release-artifacts"));
    let mut all = Vec::new();
    for prebuilt in &request.binaries {
        all.push(Binaries::read(&prebuilt.folder, &prebuilt.target)?);
    }
    let mut targets = request.target;
    if targets.is_empty() && all.is_empty() {
        targets.push(binaries::own_target(layout)?);
    }
    for target in &targets {
        all.push(binaries::build(layout, target, origin.revision.as_deref()).await?);
    }
    let mut platforms = Vec::new();
    for binaries in all {
        let linked = Linked::resolved(layout, &binaries.target)?;
        platforms.push((binaries, linked));
    }
    let release = Release { root: layout.root.clone(), origin, platforms, roots };
    let version = release.origin.version.clone();
    let step = Step::begin(format!("packaging {version}"));
    let files = tokio::task::spawn_blocking(move || release.write(&out)).await.context("packaging")??;
    step.end();
    tell(&version, &files);
    Ok(())
}

impl Release {
    /// Writes all files into a folder; of what is there already, files of the same names are replaced, and signatures of other sums go.
    fn write(&self, out: &Path) -> Result<Files> {
        let (version, time) = (&self.origin.version, self.origin.time);
        let mut architectures = BTreeSet::new();
        let mut files = Files::in_folder(out)?;
        let papers = self.papers()?;
        for (binaries, linked) in &self.platforms {
            let architecture = binaries.architecture;
            ensure!(architectures.insert(architecture), "two sets of binaries are for linux_{architecture}: give one");
            let provider = format!("{PROVIDER}_{version}_linux_{architecture}");
            let mut entries = papers.clone();
            entries.push(Entry::new(format!("{PROVIDER}_v{version}"), 0o755, &binaries.provider[..]));
            files.write(&format!("{provider}.zip"), &archive::zipped(&entries, time)?)?;
            let sbom = linked.sbom(&self.origin, PROVIDER, &binaries.provider)?;
            files.write(&format!("{provider}_sbom.cdx.json"), &sbom)?;

            let controller = format!("{IMAGE}_{version}_linux_{architecture}");
            let image = image::layout(&self.origin, architecture, &binaries.controller, &self.roots)?;
            files.write_folder(&format!("{controller}_oci"), &image)?;
            files.write(&format!("{controller}_oci.tar"), &archive::tarred(&image, time)?)?;
            let sbom = linked.sbom(&self.origin, CONTROLLER, &binaries.controller)?;
            files.write(&format!("{controller}_sbom.cdx.json"), &sbom)?;
        }
        files.write(&format!("{PROVIDER}_{version}_manifest.json"), MANIFEST.as_bytes())?;
        let (registries, others) = (files.sums(is_for_registries), files.sums(|name| !is_for_registries(name)));
        files.write_sums(&provider_sums(version), &registries)?;
        files.write_sums(&format!("{CONTROLLER}_{version}_SHA256SUMS"), &others)?;
        Ok(files)
    }

    fn papers(&self) -> Result<Vec<Entry<'static>>> {
        let read = |name: &str| -> Result<Entry<'static>> {
            let path = self.root.join(name);
            let content = std::fs::read(&path)
                .with_context(|| format!("reading {}: the provider is released with it", path.display()))?;
            Ok(Entry::new(name.to_owned(), 0o644, content))
        };
        PAPERS.into_iter().map(read).collect()
    }
}

/// Registries document that the provider's sums are of its zips and its manifest. What they do with further lines is not said, so those
/// are in a file of their own.
fn is_for_registries(name: &str) -> bool {
    name.starts_with(PROVIDER) && (name.ends_with(".zip") || name.ends_with("_manifest.json"))
}

fn provider_sums(version: &str) -> String {
    format!("{PROVIDER}_{version}_SHA256SUMS")
}

fn tell(version: &str, files: &Files) {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING).set_header(["file", "size"]);
    for file in files.written() {
        table.add_row([file.name.clone(), size(file.bytes)]);
    }
    println!("{table}");
    let sums = files.folder().join(provider_sums(version));
    println!("in {}", files.folder().display());
    println!("sign with an RSA or DSA key, then publish the .sig with the rest:");
    println!("  gpg --local-user KEY --detach-sign {}", sums.display());
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, io::Read as _};

    use super::*;

    const TREE: &str = "\
0 terraform-provider-karp v1.2.3 (/somewhere)\tApache-2.0
1 anyhow v1.0.0\tMIT OR Apache-2.0

0 karp v1.2.3 (/somewhere)\tApache-2.0
1 anyhow v1.0.0\tMIT OR Apache-2.0 (*)
";

    /// Two architectures, as binaries of nothing but a header.
    fn release() -> Release {
        let platform = |target: &str, machine| {
            let folder = tempfile::tempdir().unwrap();
            for name in [PROVIDER, CONTROLLER] {
                std::fs::write(folder.path().join(name), elf::fixture(machine, &[1])).unwrap();
            }
            (Binaries::read(folder.path(), target).unwrap(), Linked::parse(TREE, "", target).unwrap())
        };
        Release {
            root: Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf(),
            origin: origin::fixture(),
            platforms: vec![platform("x86_64-unknown-linux-musl", 62), platform("aarch64-unknown-linux-gnu", 183)],
            roots: image::FIXTURE.to_vec(),
        }
    }

    /// All files under a folder by their paths in it.
    fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
        let mut found = BTreeMap::new();
        let mut open = vec![folder.to_path_buf()];
        while let Some(next) = open.pop() {
            for entry in std::fs::read_dir(next).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    open.push(path);
                } else {
                    let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
                    found.insert(name, std::fs::read(&path).unwrap());
                }
            }
        }
        found
    }

    #[test]
    fn the_same_release_is_the_same_bytes_also_over_an_older_one() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let stale = other.path().join("karp-controller_1.2.3_linux_amd64_oci").join("blobs");
        std::fs::create_dir_all(&stale).unwrap();
        std::fs::write(stale.join("stale"), "of an older build").unwrap();
        release().write(one.path()).unwrap();
        release().write(other.path()).unwrap();
        let found = contents(one.path());
        assert!(found == contents(other.path()));
        let top: Vec<&str> = found.keys().map(String::as_str).filter(|name| !name.contains('/')).collect();
        let expected = [
            "karp-controller_1.2.3_linux_amd64_oci.tar",
            "karp-controller_1.2.3_linux_amd64_sbom.cdx.json",
            "karp-controller_1.2.3_linux_arm64_oci.tar",
            "karp-controller_1.2.3_linux_arm64_sbom.cdx.json",
            "karp_1.2.3_SHA256SUMS",
            "terraform-provider-karp_1.2.3_SHA256SUMS",
            "terraform-provider-karp_1.2.3_linux_amd64.zip",
            "terraform-provider-karp_1.2.3_linux_amd64_sbom.cdx.json",
            "terraform-provider-karp_1.2.3_linux_arm64.zip",
            "terraform-provider-karp_1.2.3_linux_arm64_sbom.cdx.json",
            "terraform-provider-karp_1.2.3_manifest.json",
        ];
        assert_eq!(top, expected);
    }

    #[test]
    fn a_signature_stays_beside_the_sums_that_it_is_of() {
        let out = tempfile::tempdir().unwrap();
        let signature = out.path().join("terraform-provider-karp_1.2.3_SHA256SUMS.sig");
        release().write(out.path()).unwrap();
        std::fs::write(&signature, "of these").unwrap();
        release().write(out.path()).unwrap();
        assert!(signature.exists(), "the same bytes have the same signature");
        let mut other = release();
        other.platforms.pop();
        other.write(out.path()).unwrap();
        assert!(!signature.exists());
    }

    #[test]
    fn sums_are_of_the_files_and_registries_get_only_theirs() {
        let out = tempfile::tempdir().unwrap();
        release().write(out.path()).unwrap();
        let found = contents(out.path());
        let summed = |sums: &str| -> Vec<String> {
            let lines = String::from_utf8(found[sums].clone()).unwrap();
            let line = |line: &str| {
                let (sum, name) = line.split_once("  ").expect("two spaces");
                assert_eq!(sum, checksums::sha256(&found[name]), "{name}");
                name.to_owned()
            };
            lines.lines().map(line).collect()
        };
        let registries = [
            "terraform-provider-karp_1.2.3_linux_amd64.zip",
            "terraform-provider-karp_1.2.3_linux_arm64.zip",
            "terraform-provider-karp_1.2.3_manifest.json",
        ];
        assert_eq!(summed("terraform-provider-karp_1.2.3_SHA256SUMS"), registries);
        let others = summed("karp_1.2.3_SHA256SUMS");
        assert!(others.len() == 6 && others.iter().all(|name| !registries.contains(&name.as_str())), "{others:?}");
        let manifest: serde_json::Value =
            serde_json::from_slice(&found["terraform-provider-karp_1.2.3_manifest.json"]).unwrap();
        assert_eq!(manifest, serde_json::json!({ "version": 1, "metadata": { "protocol_versions": ["6.0"] } }));
    }

    #[test]
    fn the_zip_holds_an_executable_that_tofu_finds_and_the_papers() {
        let out = tempfile::tempdir().unwrap();
        release().write(out.path()).unwrap();
        let file = std::fs::File::open(out.path().join("terraform-provider-karp_1.2.3_linux_arm64.zip")).unwrap();
        let mut zip = zip::ZipArchive::new(file).unwrap();
        let mut found = Vec::new();
        for index in 0..zip.len() {
            let mut entry = zip.by_index(index).unwrap();
            let mode = entry.unix_mode().unwrap() & 0o777;
            assert_eq!(entry.last_modified().unwrap().to_string(), "2026-01-02 03:04:04");
            let name = entry.name().unwrap().into_owned();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            if PAPERS.contains(&name.as_str()) {
                assert_eq!(content, std::fs::read(release().root.join(&name)).unwrap());
            } else {
                assert_eq!(content, elf::fixture(183, &[1]));
            }
            found.push((name, mode));
        }
        let expected = [
            ("CHANGELOG.md", 0o644),
            ("LICENSE", 0o644),
            ("README.md", 0o644),
            ("terraform-provider-karp_v1.2.3", 0o755),
        ];
        assert!(found.iter().map(|(name, mode)| (name.as_str(), *mode)).eq(expected), "{found:?}");
    }

    #[test]
    fn one_architecture_is_packaged_once() {
        let mut release = release();
        release.platforms.extend(self::release().platforms);
        let out = tempfile::tempdir().unwrap();
        let error = release.write(out.path()).unwrap_err();
        assert!(error.to_string().contains("two sets of binaries are for linux_amd64"), "{error}");
    }

    #[test]
    fn binaries_are_given_with_their_target() {
        let given = prebuilt("x86_64-unknown-linux-musl=some/folder=1").unwrap();
        assert_eq!(
            (given.target.as_str(), given.folder.as_path()),
            ("x86_64-unknown-linux-musl", Path::new("some/folder=1"))
        );
        for bad in ["some/folder", "=some/folder", "x86_64-unknown-linux-musl="] {
            assert!(prebuilt(bad).is_err(), "{bad}");
        }
        assert_eq!([size(5), size(2048), size(3 << 20)], ["5 B", "2.0 KiB", "3.0 MiB"]);
    }
}
