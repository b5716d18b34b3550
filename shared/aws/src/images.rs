//! Machine images: by alias (AWS's public parameters), id, name, tags, owner or parameter.

use crate::config::Clients;
use crate::error::Error;
use crate::parameters::Parameters;
use crate::selector::{filter, tag_filters};
use aws_sdk_ec2::types as ec2;
use jiff::Timestamp;
use karp_domain::api::{AmiFamily, labels};
use karp_domain::catalogue::Arch;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

const PARAMETER: &str = "ssm:GetParameter";
const DESCRIBE: &str = "ec2:DescribeImages";
/// The version of an alias that follows AWS's newest images.
const LATEST: &str = "latest";
/// Who makes Neuron devices, as nodes name it; accelerators of others have no image of their own.
const NEURON_MAKER: &str = "aws";
/// Whose images a name may mean when no owner is given: a stranger's image of the same name must not become a node.
const DEFAULT_OWNERS: [&str; 2] = ["self", "amazon"];

/// The last Kubernetes minor version for which AWS published AL2 images.
const LAST_AL2: (u32, u32) = (1, 32);
/// The first Kubernetes minor version for which AWS published Windows Server 2025 images.
const FIRST_WINDOWS_2025: (u32, u32) = (1, 35);

/// Which hardware an image has drivers for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Variant {
    /// None: no GPU, and no Neuron device.
    Standard,
    /// NVIDIA GPUs.
    Nvidia,
    /// AWS Neuron devices.
    Neuron,
    /// Windows of this build, as nodes name it in `node.kubernetes.io/windows-build`.
    Windows(&'static str),
    /// Not known: an image that was not named by an alias may run anywhere.
    Any,
}

/// An image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// `ami-…`
    pub id: String,
    /// Its name.
    pub name: String,
    /// The architecture that it runs on.
    pub arch: Arch,
    /// The hardware that it has drivers for.
    pub variant: Variant,
    /// When it was made.
    pub created_at: Option<Timestamp>,
    /// Whether its owner has retired it.
    pub deprecated: bool,
}

/// A requirement of the nodes that an image fits: key, operator and values.
pub type NodeRequirement = (&'static str, &'static str, Vec<String>);

impl Image {
    /// Returns what a node must be to run the image.
    #[must_use]
    pub fn requirements(&self) -> Vec<NodeRequirement> {
        let mut all = vec![(labels::ARCH, "In", vec![self.arch.as_str().to_owned()])];
        match self.variant {
            Variant::Any => {}
            Variant::Standard => {
                all.push((labels::INSTANCE_GPU_COUNT, "DoesNotExist", Vec::new()));
                all.push((labels::INSTANCE_ACCELERATOR_MANUFACTURER, "NotIn", vec![NEURON_MAKER.to_owned()]));
            }
            Variant::Nvidia => all.push((labels::INSTANCE_GPU_COUNT, "Exists", Vec::new())),
            Variant::Neuron => {
                all.push((labels::INSTANCE_ACCELERATOR_MANUFACTURER, "In", vec![NEURON_MAKER.to_owned()]));
            }
            Variant::Windows(build) => {
                all.push((labels::OS, "In", vec!["windows".to_owned()]));
                all.push((labels::WINDOWS_BUILD, "In", vec![build.to_owned()]));
            }
        }
        all
    }
}

/// An alias such as `al2023@latest`: a family and a version of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alias {
    /// The family.
    pub family: AmiFamily,
    /// `latest`, or a version of the family as in `v20240807`.
    pub version: String,
}

fn refused(code: &str, message: String) -> Error {
    Error::InvalidRequest { action: PARAMETER, code: code.to_owned(), message }
}

/// Returns the year and build of Windows Server, for a family of Windows.
const fn windows(family: AmiFamily) -> Option<(&'static str, &'static str)> {
    match family {
        AmiFamily::Windows2019 => Some(("2019", "10.0.17763")),
        AmiFamily::Windows2022 => Some(("2022", "10.0.20348")),
        AmiFamily::Windows2025 => Some(("2025", "10.0.26100")),
        AmiFamily::Al2 | AmiFamily::Al2023 | AmiFamily::Bottlerocket | AmiFamily::Custom => None,
    }
}

/// Returns the build of a family of Windows, as nodes name it in `node.kubernetes.io/windows-build`.
#[must_use]
pub const fn windows_build(family: AmiFamily) -> Option<&'static str> {
    match windows(family) {
        Some((_, build)) => Some(build),
        None => None,
    }
}

impl Alias {
    /// Reads an alias.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] for an unknown family, for a version of Windows other than `latest`, and for what is no alias.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let Some((name, version)) = text.split_once('@').filter(|(_, version)| !version.is_empty()) else {
            return Err(refused("UnsupportedAlias", format!("`{text}` is no alias: family@version")));
        };
        let family = match name.to_ascii_lowercase().as_str() {
            "al2" => AmiFamily::Al2,
            "al2023" => AmiFamily::Al2023,
            "bottlerocket" => AmiFamily::Bottlerocket,
            "windows2019" => AmiFamily::Windows2019,
            "windows2022" => AmiFamily::Windows2022,
            "windows2025" => AmiFamily::Windows2025,
            other => {
                let known = "al2, al2023, bottlerocket, windows2019, windows2022, windows2025";
                return Err(refused("UnsupportedAlias", format!("{other} is no image family: {known}")));
            }
        };
        let alias = Self { family, version: version.to_owned() };
        if windows(alias.family).is_some() && version != LATEST {
            let message =
                format!("`{text}`: AWS keeps only the latest images of Windows, so the version is `{LATEST}`");
            return Err(refused("UnsupportedAlias", message));
        }
        Ok(alias)
    }

    /// Says why AWS publishes no images of the family for a Kubernetes version such as `1.33`.
    fn check(&self, kubernetes: &str) -> Result<(), Error> {
        let number = |text: &str| text.trim_end_matches('+').parse::<u32>().ok();
        let version = kubernetes.split_once('.').and_then(|(major, minor)| Some((number(major)?, number(minor)?)));
        match (self.family, version) {
            (AmiFamily::Al2, Some(version)) if version > LAST_AL2 => Err(refused(
                "UnsupportedAlias",
                format!("AWS publishes no AL2 images for Kubernetes {kubernetes}: use al2023 or bottlerocket"),
            )),
            (AmiFamily::Windows2025, Some(version)) if version < FIRST_WINDOWS_2025 => Err(refused(
                "UnsupportedAlias",
                format!(
                    "AWS publishes no Windows Server 2025 images for Kubernetes {kubernetes}: they begin with 1.35"
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Returns the public parameters that may hold the alias's images; AWS publishes not every variant for every version.
    fn parameters(&self, kubernetes: &str) -> Vec<(String, Arch, Variant)> {
        let eks = format!("/aws/service/eks/optimized-ami/{kubernetes}");
        let latest = self.version == LATEST;
        let version = &self.version;
        let machines = [("x86_64", Arch::Amd64), ("arm64", Arch::Arm64)];
        let mut all = Vec::new();
        match self.family {
            AmiFamily::Al2 => {
                // One image has the drivers of both accelerators.
                for (suffix, name, arch, variant) in [
                    ("", "node", Arch::Amd64, Variant::Standard),
                    ("-gpu", "gpu-node", Arch::Amd64, Variant::Nvidia),
                    ("-gpu", "gpu-node", Arch::Amd64, Variant::Neuron),
                    ("-arm64", "arm64-node", Arch::Arm64, Variant::Standard),
                ] {
                    let image = match latest {
                        true => "recommended".to_owned(),
                        false => format!("amazon-eks-{name}-{kubernetes}-{version}"),
                    };
                    all.push((format!("{eks}/amazon-linux-2{suffix}/{image}/image_id"), arch, variant));
                }
            }
            AmiFamily::Al2023 => {
                for ((machine, arch), (name, variant)) in machines.into_iter().flat_map(|machine| {
                    let variants =
                        [("standard", Variant::Standard), ("nvidia", Variant::Nvidia), ("neuron", Variant::Neuron)];
                    variants.map(|variant| (machine, variant))
                }) {
                    let image = match latest {
                        true => "recommended".to_owned(),
                        false => format!("amazon-eks-node-al2023-{machine}-{name}-{kubernetes}-{version}"),
                    };
                    all.push((format!("{eks}/amazon-linux-2023/{machine}/{name}/{image}/image_id"), arch, variant));
                }
            }
            AmiFamily::Bottlerocket => {
                let version = version.strip_prefix('v').unwrap_or(version);
                let parameter = |suffix: &str, machine: &str| {
                    format!("/aws/service/bottlerocket/aws-k8s-{kubernetes}{suffix}/{machine}/{version}/image_id")
                };
                for (machine, arch) in machines {
                    all.push((parameter("", machine), arch, Variant::Standard));
                    all.push((parameter("-nvidia", machine), arch, Variant::Nvidia));
                }
                // The plain image has Neuron's drivers, too; AWS publishes none for Neuron alone.
                all.push((parameter("", "x86_64"), Arch::Amd64, Variant::Neuron));
            }
            AmiFamily::Windows2019 | AmiFamily::Windows2022 | AmiFamily::Windows2025 => {
                if let Some((year, build)) = windows(self.family) {
                    let image = format!("Windows_Server-{year}-English-Core-EKS_Optimized-{kubernetes}");
                    let path = format!("/aws/service/ami-windows-latest/{image}/image_id");
                    all.push((path, Arch::Amd64, Variant::Windows(build)));
                }
            }
            AmiFamily::Custom => {}
        }
        all
    }
}

/// One selector term that is not an alias.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Term {
    /// The image's id; excludes the other parts.
    pub id: Option<String>,
    /// The image's name; `*` and `?` are wildcards.
    pub name: Option<String>,
    /// Whose image it is: an account, `self` or `amazon`.
    pub owner: Option<String>,
    /// Tags that the image carries; the value `*` stands for any.
    pub tags: BTreeMap<String, String>,
    /// The parameter that holds the image's id.
    pub ssm_parameter: Option<String>,
}

/// Finds the images of `alias` for a Kubernetes version such as `1.33`, best first: one for each kind of node.
///
/// # Errors
/// [`Error::InvalidRequest`] when the family is not for this version, [`Error::NotFound`] when AWS publishes none of its images, and any
/// failure of a call.
pub async fn by_alias(
    clients: &Clients,
    parameters: &Parameters,
    alias: &Alias,
    kubernetes_version: &str,
) -> Result<Vec<Image>, Error> {
    alias.check(kubernetes_version)?;
    let wanted = alias.parameters(kubernetes_version);
    let names: Vec<String> = wanted.iter().map(|(name, ..)| name.clone()).collect();
    let ids = parameters.get(clients, &names).await?;
    let unique: BTreeSet<String> = ids.values().cloned().collect();
    let known = described(clients, unique.into_iter().collect()).await?;
    let mut images = Vec::new();
    for (name, arch, variant) in &wanted {
        let Some(id) = ids.get(name) else { continue };
        // The parameter decides what the image is for; its description only adds name and date.
        let mut image = known.get(id).cloned().unwrap_or_else(|| Image {
            id: id.clone(),
            name: String::new(),
            arch: *arch,
            variant: *variant,
            created_at: None,
            deprecated: false,
        });
        (image.arch, image.variant) = (*arch, *variant);
        images.push(image);
    }
    if images.is_empty() {
        let message = format!("AWS publishes no image for Kubernetes {kubernetes_version} under {}", names.join(", "));
        return Err(Error::NotFound { action: PARAMETER, code: "ParameterNotFound".into(), message });
    }
    Ok(best(images))
}

/// Finds the images that any of `terms` selects: the newest current one for each kind of node, else the newest deprecated one.
///
/// # Errors
/// Any failure of a call; no match is an empty answer, not an error.
pub async fn find(clients: &Clients, parameters: &Parameters, terms: &[Term]) -> Result<Vec<Image>, Error> {
    let mut found: BTreeMap<String, Image> = BTreeMap::new();
    let parameter_names: Vec<String> = terms.iter().filter_map(|term| term.ssm_parameter.clone()).collect();
    let mut ids: Vec<String> = terms.iter().filter_map(|term| term.id.clone()).collect();
    ids.extend(parameters.get(clients, &parameter_names).await?.into_values());
    found.extend(described(clients, ids).await?);
    for term in terms.iter().filter(|term| term.id.is_none() && term.ssm_parameter.is_none()) {
        let mut filters = tag_filters(&term.tags);
        filters.extend(term.name.iter().map(|name| filter("name", [name.clone()])));
        if filters.is_empty() {
            continue;
        }
        let images = describe(clients, filters, owners(term)).await?;
        found.extend(images.into_iter().map(|image| (image.id.clone(), image)));
    }
    Ok(best(found.into_values().collect()))
}

/// Gives the owners whose images a term without an id means; none stands for all. A name may be anybody's, and of tags an account sees only its own,
/// also on images that others share with it.
fn owners(term: &Term) -> Vec<String> {
    match (&term.owner, &term.name) {
        (Some(owner), _) => vec![owner.clone()],
        (None, Some(_)) => DEFAULT_OWNERS.map(str::to_owned).to_vec(),
        (None, None) => Vec::new(),
    }
}

/// Keeps one image for each kind of node: a current one before a deprecated one, then the newest, then the lowest id.
fn best(mut images: Vec<Image>) -> Vec<Image> {
    images.sort_by_key(rank);
    let mut kinds = BTreeSet::new();
    images.retain(|image| kinds.insert((image.arch, image.variant)));
    images
}

fn rank(image: &Image) -> (bool, Reverse<Option<Timestamp>>, String) {
    (image.deprecated, Reverse(image.created_at), image.id.clone())
}

async fn described(clients: &Clients, ids: Vec<String>) -> Result<BTreeMap<String, Image>, Error> {
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    // By filter: an unknown id among ImageIds makes the whole call fail.
    let images = describe(clients, vec![filter("image-id", ids)], Vec::new()).await?;
    Ok(images.into_iter().map(|image| (image.id.clone(), image)).collect())
}

async fn describe(clients: &Clients, filters: Vec<ec2::Filter>, owners: Vec<String>) -> Result<Vec<Image>, Error> {
    clients.pace().describe.take().await;
    let owners = Some(owners).filter(|owners| !owners.is_empty());
    let call = clients.ec2().describe_images().set_filters(Some(filters)).set_owners(owners).include_deprecated(true);
    let mut found = Vec::new();
    let mut pages = call.into_paginator().send();
    while let Some(page) = pages.next().await {
        let page = page.map_err(|error| Error::from_sdk(DESCRIBE, error))?;
        found.extend(page.images.unwrap_or_default().into_iter().filter_map(|image| read(image, Timestamp::now())));
    }
    Ok(found)
}

fn read(image: ec2::Image, now: Timestamp) -> Option<Image> {
    if image.state.is_some_and(|state| state != ec2::ImageState::Available) {
        return None;
    }
    let arch = match image.architecture? {
        ec2::ArchitectureValues::X8664 => Arch::Amd64,
        ec2::ArchitectureValues::Arm64 => Arch::Arm64,
        _ => return None,
    };
    let time = |text: Option<String>| text.and_then(|text| text.parse::<Timestamp>().ok());
    Some(Image {
        id: image.image_id?,
        name: image.name.unwrap_or_default(),
        arch,
        variant: Variant::Any,
        created_at: time(image.creation_date),
        deprecated: time(image.deprecation_time).is_some_and(|at| at <= now),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alias_names_its_public_parameters() {
        let names = |text: &str| -> Vec<String> {
            Alias::parse(text).expect("an alias").parameters("1.33").into_iter().map(|(name, ..)| name).collect()
        };
        let al2023 = names("al2023@latest");
        assert_eq!(al2023.len(), 6);
        assert!(al2023.contains(
            &"/aws/service/eks/optimized-ami/1.33/amazon-linux-2023/arm64/standard/recommended/image_id".to_owned()
        ));
        assert!(names("al2023@v20240807").contains(
            &"/aws/service/eks/optimized-ami/1.33/amazon-linux-2023/x86_64/nvidia/amazon-eks-node-al2023-x86_64-nvidia-1.33-v20240807/image_id".to_owned()
        ));
        assert!(
            names("bottlerocket@v1.20.0")
                .contains(&"/aws/service/bottlerocket/aws-k8s-1.33-nvidia/arm64/1.20.0/image_id".to_owned())
        );
    }

    #[test]
    fn a_name_means_images_of_few_owners_and_tags_those_of_any() {
        let term = |name: Option<&str>, owner: Option<&str>| Term {
            name: name.map(str::to_owned),
            owner: owner.map(str::to_owned),
            tags: BTreeMap::from([("team".to_owned(), "a".to_owned())]),
            ..Term::default()
        };
        assert_eq!(owners(&term(Some("mine-*"), None)), DEFAULT_OWNERS);
        assert_eq!(owners(&term(Some("mine-*"), Some("111122223333"))), ["111122223333"]);
        assert_eq!(owners(&term(None, Some("self"))), ["self"]);
        assert!(owners(&term(None, None)).is_empty(), "also such as another account shares");
    }

    #[test]
    fn every_family_has_its_own_parameters() {
        for (alias, kubernetes, expected) in [
            (
                "bottlerocket@latest",
                "1.33",
                vec![
                    "/aws/service/bottlerocket/aws-k8s-1.33/x86_64/latest/image_id",
                    "/aws/service/bottlerocket/aws-k8s-1.33-nvidia/x86_64/latest/image_id",
                    "/aws/service/bottlerocket/aws-k8s-1.33/arm64/latest/image_id",
                    "/aws/service/bottlerocket/aws-k8s-1.33-nvidia/arm64/latest/image_id",
                    "/aws/service/bottlerocket/aws-k8s-1.33/x86_64/latest/image_id",
                ],
            ),
            (
                "al2@latest",
                "1.32",
                vec![
                    "/aws/service/eks/optimized-ami/1.32/amazon-linux-2/recommended/image_id",
                    "/aws/service/eks/optimized-ami/1.32/amazon-linux-2-gpu/recommended/image_id",
                    "/aws/service/eks/optimized-ami/1.32/amazon-linux-2-gpu/recommended/image_id",
                    "/aws/service/eks/optimized-ami/1.32/amazon-linux-2-arm64/recommended/image_id",
                ],
            ),
            (
                "windows2022@latest",
                "1.33",
                vec!["/aws/service/ami-windows-latest/Windows_Server-2022-English-Core-EKS_Optimized-1.33/image_id"],
            ),
        ] {
            let alias = Alias::parse(alias).expect("an alias");
            assert!(alias.check(kubernetes).is_ok());
            let names: Vec<String> = alias.parameters(kubernetes).into_iter().map(|(name, ..)| name).collect();
            assert_eq!(names, expected);
        }
        let pinned = Alias::parse("al2@v20240807").expect("an alias").parameters("1.30");
        assert_eq!(
            pinned[1].0,
            "/aws/service/eks/optimized-ami/1.30/amazon-linux-2-gpu/amazon-eks-gpu-node-1.30-v20240807/image_id"
        );
    }

    #[test]
    fn what_aws_does_not_publish_is_refused_by_name() {
        for text in ["ubuntu@latest", "windows2022@v1", "al2023", "al2023@"] {
            let error = Alias::parse(text).expect_err(text);
            assert!(matches!(error, Error::InvalidRequest { .. }), "{error}");
        }
        for (text, kubernetes, published) in [
            ("al2@latest", "1.32", true),
            ("al2@latest", "1.33", false),
            ("windows2025@latest", "1.34", false),
            ("windows2025@latest", "1.35", true),
            ("al2023@latest", "1.40", true),
        ] {
            let alias = Alias::parse(text).expect("an alias");
            assert_eq!(alias.check(kubernetes).is_ok(), published, "{text} {kubernetes}");
        }
    }

    fn made(id: &str, arch: Arch, variant: Variant, created: &str, deprecated: bool) -> Image {
        let created_at = created.parse().ok();
        Image { id: id.into(), name: String::new(), arch, variant, created_at, deprecated }
    }

    #[test]
    fn each_kind_of_node_gets_its_newest_current_image() {
        let (amd, arm) = (Arch::Amd64, Arch::Arm64);
        let old = "2026-01-01T00:00:00Z";
        let new = "2026-06-01T00:00:00Z";
        let mut images = vec![
            made("ami-amd-old", amd, Variant::Any, old, false),
            made("ami-amd-new", amd, Variant::Any, new, false),
            made("ami-amd-retired", amd, Variant::Any, "2026-07-01T00:00:00Z", true),
            made("ami-arm-retired", arm, Variant::Any, new, true),
            made("ami-gpu", amd, Variant::Nvidia, old, false),
            made("ami-gpu", amd, Variant::Neuron, old, false),
        ];
        for _ in 0..images.len() {
            images.rotate_left(1);
            let kept = best(images.clone());
            let ids: Vec<&str> = kept.iter().map(|image| image.id.as_str()).collect();
            assert_eq!(ids.first(), Some(&"ami-amd-new"));
            assert_eq!(ids.last(), Some(&"ami-arm-retired"), "deprecated ones come last");
            assert_eq!(ids.len(), 4, "{ids:?}");
        }
    }

    #[test]
    fn windows_images_run_on_windows_nodes_only() {
        let image = made("ami-1", Arch::Amd64, Variant::Windows("10.0.20348"), "", false);
        let keys: Vec<&str> = image.requirements().iter().map(|(key, ..)| *key).collect();
        assert_eq!(keys, ["kubernetes.io/arch", "kubernetes.io/os", "node.kubernetes.io/windows-build"]);
    }

    #[test]
    fn current_images_come_first_and_newest_before_older() {
        let now: Timestamp = "2026-06-01T00:00:00Z".parse().expect("a time");
        let image = |id: &str, created: &str, deprecated: Option<&str>| {
            let built = ec2::Image::builder()
                .image_id(id)
                .architecture(ec2::ArchitectureValues::X8664)
                .creation_date(created)
                .set_deprecation_time(deprecated.map(str::to_owned))
                .build();
            read(built, now).expect("readable")
        };
        let mut images = [
            image("ami-retired", "2026-05-01T00:00:00.000Z", Some("2026-05-20T00:00:00.000Z")),
            image("ami-old", "2026-01-01T00:00:00.000Z", Some("2028-01-01T00:00:00.000Z")),
            image("ami-new", "2026-04-01T00:00:00.000Z", None),
        ];
        images.sort_by_key(rank);
        assert_eq!(images.map(|image| image.id), ["ami-new", "ami-old", "ami-retired"]);
    }

    #[test]
    fn an_image_says_which_nodes_it_fits() {
        let image = Image {
            id: "ami-1".into(),
            name: String::new(),
            arch: Arch::Arm64,
            variant: Variant::Nvidia,
            created_at: None,
            deprecated: false,
        };
        assert_eq!(
            image.requirements(),
            vec![
                ("kubernetes.io/arch", "In", vec!["arm64".to_owned()]),
                ("karpenter.k8s.aws/instance-gpu-count", "Exists", Vec::new())
            ]
        );
    }
}
