//! Orphans: what controllers made in AWS for a cluster's nodes and nothing in the cluster accounts for any more.
//!
//! Things are told by the cluster's tags. What accounts for a thing depends on its kind: a NodeClaim for an instance, a node that it was made
//! for in case of a network interface or volume that nothing uses, an EC2NodeClass for a launch template or instance profile.

use std::collections::BTreeSet;
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

/// What is younger may be on its way in or out: a launch has ended by then ([`crate::lifecycle::LAUNCH_TIMEOUT`]), and a controller that runs has
/// collected an unclaimed instance (two passes, 2 min apart).
pub const GRACE: SignedDuration = SignedDuration::from_mins(10);

/// A kind of what may be left, in the order in which it must go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum What {
    /// EC2 instances.
    Instances,
    /// Network interfaces that nothing uses.
    NetworkInterfaces,
    /// Volumes that nothing uses.
    Volumes,
    /// Launch templates.
    LaunchTemplates,
    /// Instance profiles on the controller's path.
    InstanceProfiles,
}

impl What {
    /// All kinds, in order.
    pub const ALL: [Self; 5] =
        [Self::Instances, Self::NetworkInterfaces, Self::Volumes, Self::LaunchTemplates, Self::InstanceProfiles];

    /// Returns the name in Terraform's configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Instances => "instances",
            Self::NetworkInterfaces => "network_interfaces",
            Self::Volumes => "volumes",
            Self::LaunchTemplates => "launch_templates",
            Self::InstanceProfiles => "instance_profiles",
        }
    }

    /// Reads the name in Terraform's configurations.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|what| what.name() == name)
    }
}

impl fmt::Display for What {
    /// Writes the kind of a single thing: `network-interface`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Instances => "instance",
            Self::NetworkInterfaces => "network-interface",
            Self::Volumes => "volume",
            Self::LaunchTemplates => "launch-template",
            Self::InstanceProfiles => "instance-profile",
        })
    }
}

/// One thing with the cluster's tags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Its kind.
    pub what: What,
    /// Its id; a profile's name.
    pub id: String,
    /// The node class that it was made for, where that is known: its name, or of a profile its uid.
    pub node_class: Option<String>,
    /// The NodeClaim that it was launched for, by its tag.
    pub claim: Option<String>,
    /// The instance that a network interface was made for, by its tag.
    pub instance: Option<String>,
    /// When it was made; EC2 does not say it of network interfaces.
    pub made: Option<Timestamp>,
}

/// What a live cluster knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Known {
    /// Names of NodeClaims.
    claims: BTreeSet<String>,
    /// Instances that NodeClaims stand for.
    claimed: BTreeSet<String>,
    /// Instances of Nodes, whoever made them.
    nodes: BTreeSet<String>,
    /// Names and uids of node classes.
    classes: BTreeSet<String>,
}

/// Says why a thing is thought to be an orphan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Why {
    /// There is no cluster any more that could account for anything.
    ClusterGone,
    /// No NodeClaim stands for the instance.
    #[serde(rename_all = "camelCase")]
    Unclaimed {
        /// The one that it was launched for, by its tag.
        node_claim: Option<String>,
    },
    /// Nothing uses it, and no node is there that it could be for.
    Unused {
        /// The instance that it was made for, by its tag.
        instance: Option<String>,
    },
    /// Its node class is gone.
    #[serde(rename_all = "camelCase")]
    Classless {
        /// The class, by name or uid.
        node_class: Option<String>,
    },
}

impl Known {
    /// Notes a NodeClaim, and the provider id of the instance that it stands for.
    pub fn note_claim(&mut self, name: Option<&str>, provider_id: Option<&str>) {
        self.claims.extend(name.map(str::to_owned));
        self.claimed.extend(provider_id.map(instance));
    }

    /// Notes a node class.
    pub fn note_class(&mut self, name: Option<&str>, uid: Option<&str>) {
        self.classes.extend([name, uid].into_iter().flatten().map(str::to_owned));
    }

    /// Notes a Node, whoever made it, by its provider id.
    pub fn note_node(&mut self, provider_id: &str) {
        self.nodes.insert(instance(provider_id));
    }

    /// Says whether the cluster has no NodeClaim at all.
    pub fn is_without_claims(&self) -> bool {
        self.claims.is_empty()
    }

    fn has_claim(&self, name: Option<&String>) -> bool {
        name.is_some_and(|name| self.claims.contains(name))
    }
}

impl Left {
    /// Makes a thing of which no more is known.
    pub fn new(what: What, id: impl Into<String>) -> Self {
        Self { what, id: id.into(), node_class: None, claim: None, instance: None, made: None }
    }

    /// Answers why the thing is thought to be an orphan, if it is; `known` is none where the cluster is gone. The cluster is to be asked
    /// after AWS: what is made in between is known to it by then.
    pub fn orphaned(&self, known: Option<&Known>) -> Option<Why> {
        let Some(known) = known else { return Some(Why::ClusterGone) };
        // Launched for a claim that still lives: its lifecycle adopts or ends it.
        let claimed = known.has_claim(self.claim.as_ref());
        match self.what {
            What::Instances => {
                let why = Why::Unclaimed { node_claim: self.claim.clone() };
                (!claimed && !known.claimed.contains(&self.id)).then_some(why)
            }
            What::NetworkInterfaces | What::Volumes => {
                // the network plugin collects what its nodes leave unused
                let of = |id: &String| known.claimed.contains(id) || known.nodes.contains(id);
                let why = Why::Unused { instance: self.instance.clone() };
                (!claimed && !self.instance.as_ref().is_some_and(of)).then_some(why)
            }
            What::LaunchTemplates | What::InstanceProfiles => {
                let why = Why::Classless { node_class: self.node_class.clone() };
                (!self.node_class.as_ref().is_some_and(|class| known.classes.contains(class))).then_some(why)
            }
        }
    }

    /// Says whether it has been there for so long. What does not tell its age counts as old: it is shown rather than hidden.
    pub fn is_older(&self, than: SignedDuration, now: Timestamp) -> bool {
        self.made.is_none_or(|made| now.duration_since(made) >= than)
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClusterGone => f.write_str("its cluster is gone"),
            Self::Unclaimed { node_claim: Some(claim) } => write!(f, "launched for NodeClaim {claim}, which is gone"),
            Self::Unclaimed { node_claim: None } => f.write_str("no NodeClaim stands for it"),
            Self::Unused { instance: Some(instance) } => {
                write!(f, "nothing uses it, and {instance}, which it was for, is no node")
            }
            Self::Unused { instance: None } => f.write_str("nothing uses it"),
            Self::Classless { node_class: Some(class) } => write!(f, "made for EC2NodeClass {class}, which is gone"),
            Self::Classless { node_class: None } => f.write_str("made for no EC2NodeClass that is known"),
        }
    }
}

/// Reads the instance id at the end of a provider id.
fn instance(provider_id: &str) -> String {
    provider_id.rsplit('/').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cluster with the claim `a` on `i-1`, the class `default` of uid `uid-1`, and a node of somebody else on `i-9`.
    fn known() -> Known {
        let mut known = Known::default();
        known.note_claim(Some("a"), Some("aws:///us-east-1a/i-1"));
        known.note_class(Some("default"), Some("uid-1"));
        for id in ["aws:///us-east-1a/i-1", "aws:///us-east-1b/i-9"] {
            known.note_node(id);
        }
        known
    }

    #[test]
    fn what_the_cluster_accounts_for_is_no_orphan_and_the_rest_says_why() {
        let known = known();
        let left = |what, id: &str| Left::new(what, id);
        let of = |claim: &str| Some(claim.to_owned());
        let cases = [
            (left(What::Instances, "i-1"), None),
            (Left { claim: of("a"), ..left(What::Instances, "i-2") }, None),
            (Left { claim: of("b"), ..left(What::Instances, "i-3") }, Some("launched for NodeClaim b, which is gone")),
            (left(What::Instances, "i-9"), Some("no NodeClaim stands for it")),
            (Left { instance: of("i-1"), ..left(What::NetworkInterfaces, "eni-1") }, None),
            (Left { instance: of("i-9"), ..left(What::NetworkInterfaces, "eni-2") }, None),
            (
                Left { instance: of("i-4"), ..left(What::NetworkInterfaces, "eni-3") },
                Some("nothing uses it, and i-4, which it was for, is no node"),
            ),
            (Left { claim: of("a"), ..left(What::Volumes, "vol-1") }, None),
            (Left { claim: of("b"), ..left(What::Volumes, "vol-2") }, Some("nothing uses it")),
            (Left { node_class: of("default"), ..left(What::LaunchTemplates, "lt-1") }, None),
            (
                Left { node_class: of("old"), ..left(What::LaunchTemplates, "lt-2") },
                Some("made for EC2NodeClass old, which is gone"),
            ),
            (Left { node_class: of("uid-1"), ..left(What::InstanceProfiles, "p-1") }, None),
            (left(What::InstanceProfiles, "p-2"), Some("made for no EC2NodeClass that is known")),
        ];
        for (left, why) in cases {
            assert_eq!(left.orphaned(Some(&known)).map(|why| why.to_string()).as_deref(), why, "{left:?}");
            assert_eq!(left.orphaned(None), Some(Why::ClusterGone), "{left:?}");
        }
    }

    #[test]
    fn what_does_not_tell_its_age_is_not_hidden() {
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(1);
        let made = |made| Left { made, ..Left::new(What::Volumes, "vol-1") };
        assert!(made(None).is_older(GRACE, now));
        assert!(made(Some(now - GRACE)).is_older(GRACE, now));
        assert!(!made(Some(now - SignedDuration::from_mins(9))).is_older(GRACE, now));
    }

    #[test]
    fn names_return_and_instances_go_first() {
        for what in What::ALL {
            assert_eq!(What::parse(what.name()), Some(what));
        }
        assert_eq!(BTreeSet::from(What::ALL).first(), Some(&What::Instances));
    }
}
