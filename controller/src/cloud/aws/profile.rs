//! The instance profile of a node class: the one that it names, or one made for its role, path-scoped, kept while in use, then collected.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use karp_aws::error::both;
use karp_aws::instance_profiles::{self, Profile, Wanted};
use karp_aws::{Clients, Error, instances};
use karp_domain::api::{Ec2NodeClass, conditions, labels};
use kube::ResourceExt;
use moka::sync::Cache;
use sha2::{Digest, Sha256};

use super::class;
use crate::cloud::{CloudError, Problem};

/// How long a profile that was seen with its role is taken to be so (Karpenter: 15 min).
const TRUST: Duration = Duration::from_secs(900);
/// How often a class's profiles are listed for those that are no longer used (Karpenter: 30 min).
const INTERVAL: Duration = Duration::from_secs(1800);
/// A profile this young may be named by a launch that is not listed yet (Karpenter: 1 h).
const PROTECTION: SignedDuration = SignedDuration::from_hours(1);
/// Node classes of one cluster.
const CAPACITY: u64 = 1_000;

/// Remembers which profile each class has.
pub struct Profiles {
    /// Role and profile, by the class's uid.
    known: Cache<String, (String, String)>,
    /// When each class's profiles were last listed.
    listed: Mutex<HashMap<String, Instant>>,
}

impl Default for Profiles {
    fn default() -> Self {
        let known = Cache::builder().max_capacity(CAPACITY).time_to_live(TRUST).build();
        Self { known, listed: Mutex::default() }
    }
}

impl Profiles {
    /// Returns the profile of a class with a role, made when it is not there, or what stands in the way.
    pub async fn of_role(
        &self,
        clients: &Clients,
        cluster: &str,
        class: &Ec2NodeClass,
        role: &str,
    ) -> Result<Result<String, Problem>, CloudError> {
        let uid = class.uid().unwrap_or_default();
        if let Some((known, profile)) = self.known.get(&uid)
            && known == role
        {
            return Ok(Ok(profile));
        }
        let wanted = wanted(cluster, clients.region(), class, role);
        match settle(clients, class, &wanted).await {
            Ok(profile) => {
                self.known.insert(uid, (role.to_owned(), profile.clone()));
                Ok(Ok(profile))
            }
            Err(error) => match problem(role, &error) {
                Some(problem) => Ok(Err(problem)),
                None => Err(error.into()),
            },
        }
    }

    /// Looks at a class's profile again before it is used the next time.
    pub fn doubt(&self, class: &Ec2NodeClass) {
        self.known.invalidate(&class.uid().unwrap_or_default());
    }

    /// Deletes profiles that were made for a class, are not its current one, and that no instance uses; most calls only see that it is
    /// too early to look. Says whether it has seen that there are no such profiles.
    pub async fn collect(
        &self,
        clients: &Clients,
        cluster: &str,
        class: &Ec2NodeClass,
        current: &str,
        now: Timestamp,
    ) -> bool {
        let uid = class.uid().unwrap_or_default();
        if uid.is_empty() || !self.is_time(&uid, Instant::now()) {
            return false;
        }
        let found = match instance_profiles::list(clients, &path(cluster, clients.region(), &uid)).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, "instance profiles could not be listed");
                return false;
            }
        };
        if superseded(&found, current, &BTreeSet::new(), now).next().is_none() {
            return found.iter().all(|profile| profile.name == current);
        }
        let used = match instances::list(clients, &class::ownership(cluster, &class.name_any())).await {
            Ok(listed) => listed.into_iter().filter_map(|instance| instance.instance_profile).collect(),
            Err(error) => {
                tracing::warn!(%error, "instances could not be listed: no profile is deleted");
                return false;
            }
        };
        for profile in superseded(&found, current, &used, now) {
            match instance_profiles::delete(clients, &profile.name).await {
                Ok(()) => tracing::info!(name = profile.name, "deleted instance profile of a former role"),
                Err(error) => tracing::warn!(%error, name = profile.name, "instance profile could not be deleted"),
            }
        }
        // the next look tells
        false
    }

    /// Deletes all profiles that were made for a class that goes; returns how many.
    pub async fn release(&self, clients: &Clients, cluster: &str, class: &Ec2NodeClass) -> Result<usize, Error> {
        let uid = class.uid().unwrap_or_default();
        // A class that never had a role needs no right to look for what it never made.
        let named = class.spec.role.is_none() && last(class) == class.spec.instance_profile.as_deref();
        if uid.is_empty() || named && !may_have(class) {
            return Ok(0);
        }
        let found = instance_profiles::list(clients, &path(cluster, clients.region(), &uid)).await?;
        let mut deleted = Ok(());
        for profile in &found {
            let one = instance_profiles::delete(clients, &profile.name).await;
            deleted = both(deleted, one).map(drop);
        }
        deleted?;
        self.known.invalidate(&uid);
        self.listed.lock().unwrap_or_else(PoisonError::into_inner).remove(&uid);
        Ok(found.len())
    }

    fn is_time(&self, uid: &str, now: Instant) -> bool {
        let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        let early = listed.get(uid).is_some_and(|before| now.saturating_duration_since(*before) < INTERVAL);
        if !early {
            listed.insert(uid.to_owned(), now);
        }
        !early
    }
}

/// Returns the profile that the status of a class names.
fn last(class: &Ec2NodeClass) -> Option<&str> {
    class.status.as_ref()?.instance_profile.as_deref()
}

/// Says whether there may be profiles that were made for a class: it has a role, or had one.
pub fn may_have(class: &Ec2NodeClass) -> bool {
    class.spec.role.is_some() || class.annotations().contains_key(labels::FORMER_INSTANCE_PROFILE)
}

/// Returns the profile that was made for the role of a class which names one itself now, as long as its status tells. Whoever may make no profiles
/// may not look for any either, so that only a name as it is made here, or by Karpenter, is taken for one.
pub fn former<'c>(cluster: &str, class: &'c Ec2NodeClass) -> Option<&'c str> {
    let last = last(class).filter(|_| class.spec.role.is_none())?;
    let digest = last.strip_prefix(cluster)?.strip_prefix('_')?;
    let made = !digest.is_empty() && digest.chars().all(|digit| digit.is_ascii_hexdigit());
    (made && class.spec.instance_profile.as_deref() != Some(last)).then_some(last)
}

/// Keeps the class's profile if it holds the role (it may be one that Karpenter made), else makes the one that is wanted.
async fn settle(clients: &Clients, class: &Ec2NodeClass, wanted: &Wanted) -> Result<String, Error> {
    let current = class.status.as_ref().and_then(|status| status.instance_profile.as_deref());
    if let Some(current) = current.filter(|current| *current != wanted.name)
        && let Some(found) = instance_profiles::find(clients, current).await?
        && found.path == wanted.path
        && found.role.as_deref() == Some(wanted.role_name())
    {
        return Ok(found.name);
    }
    instance_profiles::ensure(clients, wanted).await?;
    tracing::info!(
        EC2NodeClass.name = class.name_any(),
        name = wanted.name,
        role = wanted.role,
        "made instance profile"
    );
    Ok(wanted.name.clone())
}

/// Names a failure that only a change of the class or of rights cures, with Karpenter's reasons.
fn problem(role: &str, error: &Error) -> Option<Problem> {
    let reason = match error {
        Error::NotFound { .. } => "NodeRoleNotFound",
        Error::NotAuthorized { .. } => "NodeRoleAuthFailure",
        Error::LimitExceeded { .. } => "LimitExceeded",
        Error::InvalidRequest { .. } => "NodeRoleInvalid",
        _ => return None,
    };
    let message = format!("no instance profile could be made for spec.role {role:?}: {error}");
    Some(Problem { condition: conditions::INSTANCE_PROFILE_READY, reason: reason.to_owned(), message })
}

/// Picks the profiles that are neither current, nor used, nor too young to tell.
fn superseded<'a>(
    found: &'a [Profile],
    current: &'a str,
    used: &'a BTreeSet<String>,
    now: Timestamp,
) -> impl Iterator<Item = &'a Profile> {
    found.iter().filter(move |profile| {
        let old = profile.created_at.is_some_and(|made| now.duration_since(made) >= PROTECTION);
        old && profile.name != current && !used.contains(&profile.name)
    })
}

/// Returns the path of a class's profiles; the controller's policy is scoped by it.
fn path(cluster: &str, region: &str, uid: &str) -> String {
    format!("/karpenter/{region}/{cluster}/{uid}/")
}

/// Describes the profile for a class's role. Its name is made from what it is for, so that a repeated attempt finds it, and another role
/// gets another profile: instances keep the one that they were started with.
fn wanted(cluster: &str, region: &str, class: &Ec2NodeClass, role: &str) -> Wanted {
    let (name, uid) = (class.name_any(), class.uid().unwrap_or_default());
    let digest = Sha256::digest(format!("{region}\n{name}\n{uid}\n{role}"));
    let mut tags: BTreeMap<String, String> = class.spec.tags.to_map();
    tags.extend(class::ownership(cluster, &name));
    tags.insert("eks:eks-cluster-name".to_owned(), cluster.to_owned());
    tags.insert("topology.kubernetes.io/region".to_owned(), region.to_owned());
    Wanted {
        name: format!("{cluster}_{}", hex::encode(&digest[..10])),
        path: path(cluster, region, &uid),
        role: role.to_owned(),
        tags,
    }
}

#[cfg(test)]
mod tests {
    use karp_domain::api::Ec2NodeClassSpec;
    use serde_json::json;

    use super::*;

    fn class(uid: &str) -> Ec2NodeClass {
        let mut class = Ec2NodeClass::new("default", Ec2NodeClassSpec::default());
        class.metadata.uid = Some(uid.to_owned());
        class.spec.tags = BTreeMap::from([("team".to_owned(), "a".to_owned())]).into();
        class
    }

    #[test]
    fn a_profile_is_named_after_what_it_is_for() {
        let of = |uid: &str, role: &str| wanted(&"c".repeat(100), "us-east-1", &class(uid), role);
        let one = of("uid-1", "nodes");
        assert_eq!(one, of("uid-1", "nodes"));
        assert_ne!(one.name, of("uid-1", "other").name, "another role");
        assert_ne!(one.name, of("uid-2", "nodes").name, "a class of the same name, made again");
        assert!(one.name.len() <= 128, "IAM's bound: {}", one.name);
        assert_eq!(one.path, format!("/karpenter/us-east-1/{}/uid-1/", "c".repeat(100)));
        let tags = wanted("alpha", "us-east-1", &class("u"), "nodes").tags;
        let tag = |key: &str| tags.get(key).map(String::as_str);
        assert_eq!(tag("kubernetes.io/cluster/alpha"), Some("owned"));
        assert_eq!(tag("eks:eks-cluster-name"), Some("alpha"));
        assert_eq!(tag("karpenter.k8s.aws/ec2nodeclass"), Some("default"));
        assert_eq!(tag("topology.kubernetes.io/region"), Some("us-east-1"));
        assert_eq!(tag("team"), Some("a"));
    }

    #[test]
    fn a_class_that_names_a_profile_instead_of_a_role_is_known_to_have_had_one_made() {
        let made = wanted("alpha", "us-east-1", &class("u"), "nodes").name;
        let of = |role: Option<&str>, named: Option<&str>, last: &str| {
            let mut class = class("u");
            class.spec.role = role.map(str::to_owned);
            class.spec.instance_profile = named.map(str::to_owned);
            let status = json!({ "instanceProfile": last });
            class.status = Some(serde_json::from_value(status).expect("a status"));
            former("alpha", &class).map(str::to_owned)
        };
        assert_eq!(of(None, Some("own"), &made), Some(made.clone()));
        assert_eq!(of(None, Some("own"), "alpha_12345678901234567890").as_deref(), Some("alpha_12345678901234567890"));
        assert_eq!(of(Some("nodes"), None, &made), None, "it is in use");
        assert_eq!(of(None, Some(&made), &made), None, "it stays in use");
        for own in ["other", "alpha_nodes", "alpha_", "alpha-12", "beta_12"] {
            assert_eq!(of(None, Some("own"), own), None, "{own} was the user's");
        }
        let mut told = class("u");
        assert!(!may_have(&told), "no right is needed to look");
        told.metadata.annotations = Some([(labels::FORMER_INSTANCE_PROFILE.to_owned(), made)].into());
        assert!(may_have(&told));
    }

    #[test]
    fn only_old_unused_profiles_of_former_roles_are_collected() {
        let now: Timestamp = "2026-06-01T12:00:00Z".parse().expect("a time");
        let profile = |name: &str, created: &str| Profile {
            name: name.into(),
            path: String::new(),
            role: None,
            created_at: created.parse().ok(),
        };
        let old = "2026-06-01T10:00:00Z";
        let found = [
            profile("current", old),
            profile("used", old),
            profile("young", "2026-06-01T11:30:00Z"),
            profile("former", old),
            profile("undated", ""),
        ];
        let used = BTreeSet::from(["used".to_owned()]);
        let gone: Vec<&str> = superseded(&found, "current", &used, now).map(|one| one.name.as_str()).collect();
        assert_eq!(gone, ["former"]);
    }

    #[test]
    fn what_a_change_of_the_role_cures_is_a_condition() {
        let of =
            |code: &str| problem("nodes", &Error::from_code("iam:Test", code, String::new())).map(|one| one.reason);
        assert_eq!(of("NoSuchEntity").as_deref(), Some("NodeRoleNotFound"));
        assert_eq!(of("AccessDenied").as_deref(), Some("NodeRoleAuthFailure"));
        assert_eq!(of("Throttling"), None, "tried again");
    }
}
