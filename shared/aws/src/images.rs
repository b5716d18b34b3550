//! Machine images: by alias (AWS's public parameters), id, name, tags, owner or parameter.

use crate::config::Clients;
use crate::error::Error;
use crate::selector::{filter, tag_filters};
use crate::user_data::Family;
use aws_sdk_ec2::types as ec2;
use jiff::Timestamp;
use karp_domain::api::labels;
use karp_domain::catalogue::Arch;
use std::cmp::Reverse;
use std::collections::BTreeMap;

const PARAMETER: &str = "ssm:GetParameter";
const DESCRIBE: &str = "ec2:DescribeImages";
/// Whose images a name may mean when no owner is given: a stranger's image of the same name must not become a node.
const DEFAULT_OWNERS: [&str; 2] = ["self", "amazon"];

/// Which hardware an image has drivers for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Variant {
    /// No accelerator.
    Standard,
    /// NVIDIA GPUs.
    Nvidia,
    /// AWS Neuron devices.
    Neuron,
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
                all.push((labels::INSTANCE_ACCELERATOR_COUNT, "DoesNotExist", Vec::new()));
            }
            Variant::Nvidia => all.push((labels::INSTANCE_GPU_COUNT, "Exists", Vec::new())),
            Variant::Neuron => all.push((labels::INSTANCE_ACCELERATOR_COUNT, "Exists", Vec::new())),
        }
        all
    }
}

/// An alias such as `al2023@latest`: a family and a version of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alias {
    /// The family.
    pub family: Family,
    /// `latest`, or a version of the family as in `v20240807`.
    pub version: String,
}

impl Alias {
    /// Reads an alias.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] for a family that karp does not bootstrap yet (AL2, Windows) and for what is no alias.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let refused =
            |message: String| Error::InvalidRequest { action: PARAMETER, code: "UnsupportedAlias".into(), message };
        let Some((family, version)) = text.split_once('@').filter(|(_, version)| !version.is_empty()) else {
            return Err(refused(format!("`{text}` is no alias: family@version")));
        };
        let family = match family.to_ascii_lowercase().as_str() {
            "al2023" => Family::Al2023,
            "bottlerocket" => Family::Bottlerocket,
            other => {
                return Err(refused(format!(
                    "karp does not support the image family {other} yet: al2023, bottlerocket"
                )));
            }
        };
        Ok(Self { family, version: version.to_owned() })
    }

    /// Returns the public parameters that may hold the alias's images; AWS publishes not every variant for every version.
    fn parameters(&self, kubernetes: &str) -> Vec<(String, Arch, Variant)> {
        let latest = self.version == "latest";
        let arches = [("x86_64", Arch::Amd64), ("arm64", Arch::Arm64)];
        let mut all = Vec::new();
        for (arch_name, arch) in arches {
            match self.family {
                Family::Al2023 => {
                    for (name, variant) in
                        [("standard", Variant::Standard), ("nvidia", Variant::Nvidia), ("neuron", Variant::Neuron)]
                    {
                        let image = if latest {
                            "recommended".to_owned()
                        } else {
                            format!("amazon-eks-node-al2023-{arch_name}-{name}-{kubernetes}-{}", self.version)
                        };
                        let root = format!("/aws/service/eks/optimized-ami/{kubernetes}/amazon-linux-2023");
                        all.push((format!("{root}/{arch_name}/{name}/{image}/image_id"), arch, variant));
                    }
                }
                Family::Bottlerocket => {
                    let version = self.version.strip_prefix('v').unwrap_or(&self.version);
                    for (suffix, variant) in [("", Variant::Standard), ("-nvidia", Variant::Nvidia)] {
                        let root = format!("/aws/service/bottlerocket/aws-k8s-{kubernetes}{suffix}");
                        all.push((format!("{root}/{arch_name}/{version}/image_id"), arch, variant));
                    }
                }
                Family::Custom => {}
            }
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

/// Finds the images of `alias` for a Kubernetes version such as `1.33`, best first.
///
/// # Errors
/// [`Error::NotFound`] when AWS publishes none of them, and any failure of a call.
pub async fn by_alias(clients: &Clients, alias: &Alias, kubernetes_version: &str) -> Result<Vec<Image>, Error> {
    let wanted = alias.parameters(kubernetes_version);
    let names: Vec<String> = wanted.iter().map(|(name, ..)| name.clone()).collect();
    let ids = parameters(clients, &names).await?;
    let mut known = described(clients, ids.values().cloned().collect()).await?;
    let mut images = Vec::new();
    for (name, arch, variant) in &wanted {
        let Some(id) = ids.get(name) else { continue };
        // The parameter decides what the image is for; its description only adds name and date.
        let mut image = known.remove(id).unwrap_or_else(|| Image {
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
    images.sort_by_key(rank);
    Ok(images)
}

/// Finds the images that any of `terms` selects: current before deprecated, newest first.
///
/// # Errors
/// Any failure of a call; no match is an empty answer, not an error.
pub async fn find(clients: &Clients, terms: &[Term]) -> Result<Vec<Image>, Error> {
    let mut found: BTreeMap<String, Image> = BTreeMap::new();
    let parameter_names: Vec<String> = terms.iter().filter_map(|term| term.ssm_parameter.clone()).collect();
    let mut ids: Vec<String> = terms.iter().filter_map(|term| term.id.clone()).collect();
    ids.extend(parameters(clients, &parameter_names).await?.into_values());
    found.extend(described(clients, ids).await?);
    for term in terms.iter().filter(|term| term.id.is_none() && term.ssm_parameter.is_none()) {
        let mut filters = tag_filters(&term.tags);
        filters.extend(term.name.iter().map(|name| filter("name", [name.clone()])));
        if filters.is_empty() {
            continue;
        }
        let owners = match &term.owner {
            Some(owner) => vec![owner.clone()],
            None => DEFAULT_OWNERS.map(str::to_owned).to_vec(),
        };
        let images = describe(clients, filters, owners).await?;
        found.extend(images.into_iter().map(|image| (image.id.clone(), image)));
    }
    let mut images: Vec<Image> = found.into_values().collect();
    images.sort_by_key(rank);
    Ok(images)
}

fn rank(image: &Image) -> (bool, Reverse<Option<Timestamp>>, String) {
    (image.deprecated, Reverse(image.created_at), image.id.clone())
}

/// Reads the parameters that exist, by name. One call for each: the policies that Karpenter's users have allow no more.
async fn parameters(clients: &Clients, names: &[String]) -> Result<BTreeMap<String, String>, Error> {
    let read = |name: &String| {
        let (call, name) = (clients.ssm().get_parameter().name(name), name.clone());
        async move {
            match call.send().await.map_err(|error| Error::from_sdk(PARAMETER, error)) {
                Ok(answer) => Ok(answer.parameter.and_then(|parameter| parameter.value).map(|value| (name, value))),
                Err(error) if error.is_not_found() => Ok(None),
                Err(error) => Err(error),
            }
        }
    };
    let values = futures::future::try_join_all(names.iter().map(read)).await?;
    Ok(values.into_iter().flatten().collect())
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
    fn unsupported_families_are_refused_by_name() {
        for text in ["al2@latest", "windows2022@latest", "al2023", "al2023@"] {
            let error = Alias::parse(text).expect_err(text);
            assert!(matches!(error, Error::InvalidRequest { .. }), "{error}");
        }
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
