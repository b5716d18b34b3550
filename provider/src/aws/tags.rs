//! Tags as karp owns them: only the keys that it set. A key that something else put on the object is never touched.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use aws_sdk_iam::Client;
use aws_sdk_iam::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_iam::types::Tag;
use karp_domain::api::labels::UNFINISHED;
use serde::Deserialize;
use tfplugin::schema::validate::Validator;

use crate::report::Failure;
use crate::session::Aws;

/// Tag key and value, ordered by key.
pub type Tags = BTreeMap<String, String>;

/// Tags as a configuration gives them, where a value may be null.
pub type GivenTags = BTreeMap<String, Option<String>>;

/// Checks tags by what every service refuses.
pub fn valid_tags() -> Validator {
    Validator::new(|tags| {
        for (key, value) in tags.as_map().into_iter().flatten() {
            if key.is_empty() || key.chars().count() > 128 || key.to_ascii_lowercase().starts_with("aws:") {
                return Err(format!(
                    "must have keys of 1 to 128 characters that do not begin with \"aws:\", not {key:?}"
                ));
            }
            if value.as_str().is_some_and(|value| value.chars().count() > 256) {
                return Err(format!("must have values of up to 256 characters, as that of {key:?} has not"));
            }
        }
        Ok(())
    })
}

/// Names the cluster that an object serves; also the proof of ownership that adoption looks at.
pub const CLUSTER_KEY: &str = "karp.sh/cluster";

/// Names the role that a policy or an association was made for, on those that belong to a role.
pub const ROLE_KEY: &str = "karp.sh/controller-role";

/// Tags that belong to others although karp keeps the object: never read, planned, or removed.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Ignored {
    keys: Option<BTreeSet<String>>,
    key_prefixes: Option<BTreeSet<String>>,
}

impl Ignored {
    /// Says whether a key is ignored.
    pub fn covers(&self, key: &str) -> bool {
        self.keys.as_ref().is_some_and(|keys| keys.contains(key))
            || self.key_prefixes.iter().flatten().any(|prefix| key.starts_with(prefix.as_str()))
    }
}

/// What has to change so that the tags of an object become the wanted ones.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Change {
    pub put: Tags,
    pub remove: BTreeSet<String>,
}

impl Change {
    /// Compares what is `wanted` with what is `actual`; keys in `owned` that are wanted no more are removed, and so is a mark that stayed.
    pub fn between(wanted: &Tags, actual: &Tags, owned: &Tags) -> Self {
        let put = wanted.iter().filter(|(key, value)| actual.get(*key) != Some(value));
        let remove = owned.keys().filter(|key| !wanted.contains_key(*key) && actual.contains_key(*key));
        let stayed = actual.keys().filter(|key| *key == UNFINISHED && !wanted.contains_key(*key));
        Self {
            put: put.map(|(k, v)| (k.clone(), v.clone())).collect(),
            remove: remove.chain(stayed).cloned().collect(),
        }
    }
}

/// Gives the part of `actual` that karp owns: the keys in `owned`. An import owns everything but AWS's own keys and a mark that stayed; what is
/// ignored, nobody.
pub fn owned_part(actual: &Tags, owned: Option<&Tags>, ignored: &Ignored) -> Tags {
    let keep = |key: &String| match owned {
        _ if ignored.covers(key) => false,
        Some(owned) => owned.contains_key(key),
        None => !key.starts_with("aws:") && key != UNFINISHED,
    };
    actual.iter().filter(|(key, _)| keep(key)).map(|(k, v)| (k.clone(), v.clone())).collect()
}

/// Adds to tags for which role a policy or an association is made.
pub fn for_role(role: &str, tags: &Tags) -> Tags {
    let mut tags = tags.clone();
    // A role's name may have commas, a tag's value may not; a slash is in no name.
    tags.insert(ROLE_KEY.to_owned(), role.replace(',', "/"));
    tags
}

/// Says whether tags of a policy or an association tell that it was made for the same role of the same cluster as is wanted. Who has the
/// role has what was made for it, also what nobody finished or what others took off it.
pub fn is_same_role(actual: &Tags, wanted: &Tags) -> bool {
    wanted.contains_key(ROLE_KEY) && [ROLE_KEY, CLUSTER_KEY].iter().all(|key| actual.get(*key) == wanted.get(*key))
}

/// An object of IAM that has tags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IamObject {
    /// A role, by name.
    Role(String),
    /// A managed policy, by ARN.
    Policy(String),
    /// An instance profile, by name.
    InstanceProfile(String),
    /// An OIDC provider, by ARN.
    OidcProvider(String),
}

impl fmt::Display for IamObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Role(name) => write!(f, "role {name:?}"),
            Self::Policy(arn) => write!(f, "policy {arn}"),
            Self::InstanceProfile(name) => write!(f, "instance profile {name:?}"),
            Self::OidcProvider(arn) => write!(f, "{arn}"),
        }
    }
}

impl IamObject {
    /// Changes its tags.
    pub async fn retag(&self, iam: &Client, change: &Change) -> Result<(), Failure> {
        if !change.put.is_empty() {
            let tags = Some(iam_tags(&change.put));
            let answer = match self {
                Self::Role(name) => sent(iam.tag_role().role_name(name).set_tags(tags).send().await),
                Self::Policy(arn) => sent(iam.tag_policy().policy_arn(arn).set_tags(tags).send().await),
                Self::InstanceProfile(name) => {
                    sent(iam.tag_instance_profile().instance_profile_name(name).set_tags(tags).send().await)
                }
                Self::OidcProvider(arn) => {
                    let call = iam.tag_open_id_connect_provider().open_id_connect_provider_arn(arn).set_tags(tags);
                    sent(call.send().await)
                }
            };
            answer.map_err(|error| Failure::from_aws(format!("tag {self}"), error).at("tags"))?;
        }
        if !change.remove.is_empty() {
            let keys = Some(change.remove.iter().cloned().collect());
            let answer = match self {
                Self::Role(name) => sent(iam.untag_role().role_name(name).set_tag_keys(keys).send().await),
                Self::Policy(arn) => sent(iam.untag_policy().policy_arn(arn).set_tag_keys(keys).send().await),
                Self::InstanceProfile(name) => {
                    sent(iam.untag_instance_profile().instance_profile_name(name).set_tag_keys(keys).send().await)
                }
                Self::OidcProvider(arn) => {
                    let call = iam.untag_open_id_connect_provider().open_id_connect_provider_arn(arn);
                    sent(call.set_tag_keys(keys).send().await)
                }
            };
            answer.map_err(|error| Failure::from_aws(format!("untag {self}"), error).at("tags"))?;
        }
        Ok(())
    }
}

fn sent<T, E>(answer: Result<T, SdkError<E>>) -> Result<(), karp_aws::Error>
where
    E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
{
    answer.map(drop).map_err(|error| karp_aws::Error::from_sdk("iam", error))
}

/// Converts tags into IAM's.
pub fn iam_tags(tags: &Tags) -> Vec<Tag> {
    // Both fields are given, so that the builder cannot fail.
    tags.iter().filter_map(|(key, value)| Tag::builder().key(key).value(value).build().ok()).collect()
}

/// Converts IAM's tags.
pub fn from_iam_tags(tags: &[Tag]) -> Tags {
    tags.iter().map(|tag| (tag.key().to_owned(), tag.value().to_owned())).collect()
}

/// Changes the tags of a queue.
pub async fn retag_queue(aws: &Aws, url: &str, change: &Change) -> Result<(), Failure> {
    if !change.put.is_empty() {
        let call = aws.sqs().tag_queue().queue_url(url).set_tags(Some(change.put.clone().into_iter().collect()));
        call.send().await.map_err(|e| Failure::aws(format!("tag queue {url}"), e).at("tags"))?;
    }
    if !change.remove.is_empty() {
        let call = aws.sqs().untag_queue().queue_url(url).set_tag_keys(Some(change.remove.iter().cloned().collect()));
        call.send().await.map_err(|e| Failure::aws(format!("untag queue {url}"), e).at("tags"))?;
    }
    Ok(())
}

/// Changes the tags of any EKS object.
pub async fn retag_eks(aws: &Aws, arn: &str, change: &Change) -> Result<(), Failure> {
    if !change.put.is_empty() {
        let tags = change.put.clone().into_iter().collect();
        let call = aws.eks().tag_resource().resource_arn(arn).set_tags(Some(tags));
        call.send().await.map_err(|e| Failure::aws(format!("tag {arn}"), e).at("tags"))?;
    }
    if !change.remove.is_empty() {
        let keys = change.remove.iter().cloned().collect();
        let call = aws.eks().untag_resource().resource_arn(arn).set_tag_keys(Some(keys));
        call.send().await.map_err(|e| Failure::aws(format!("untag {arn}"), e).at("tags"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tfplugin::Value;

    use super::*;

    fn tags(pairs: &[(&str, &str)]) -> Tags {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn tags_that_no_service_takes_are_refused() {
        let check = |key: &str, value: &str| valid_tags().check(&Value::object([(key, value)]));
        assert_eq!(check("team", &"a".repeat(256)), Ok(()));
        for (key, value) in [("", "x"), ("AWS:x", "x"), (&*"k".repeat(129), "x"), ("k", &*"a".repeat(257))] {
            assert!(check(key, value).is_err(), "{key:?}");
        }
        assert_eq!(valid_tags().check(&Value::object([("none", Value::Null)])), Ok(()));
    }

    #[test]
    fn only_owned_keys_are_removed() {
        let change = Change::between(
            &tags(&[("a", "2"), ("b", "1")]),
            &tags(&[("a", "1"), ("b", "1"), ("old", "x"), ("foreign", "y")]),
            &tags(&[("a", "1"), ("old", "x"), ("gone", "z")]),
        );
        assert_eq!(change.put, tags(&[("a", "2")]));
        assert_eq!(change.remove, BTreeSet::from(["old".to_owned()]));
    }

    #[test]
    fn a_mark_that_stayed_goes_with_the_next_change() {
        let (plain, marked) = (tags(&[("a", "1")]), tags(&[("a", "1"), (UNFINISHED, "m")]));
        assert_eq!(Change::between(&plain, &marked, &plain).remove, BTreeSet::from([UNFINISHED.to_owned()]));
        assert_eq!(Change::between(&marked, &marked, &plain), Change::default(), "it is still being made");
    }

    #[test]
    fn a_policy_is_a_roles_by_its_name_and_its_cluster() {
        let of = |cluster: &str| Tags::from([(CLUSTER_KEY.to_owned(), cluster.to_owned())]);
        let wanted = for_role("a,b", &of("prod"));
        assert!(is_same_role(&for_role("a,b", &of("prod")), &wanted));
        for other in [for_role("ab", &of("prod")), for_role("a,b", &of("test")), of("prod"), Tags::new()] {
            assert!(!is_same_role(&other, &wanted), "{other:?}");
        }
        assert!(!is_same_role(&of("prod"), &of("prod")), "of no role");
    }

    #[test]
    fn reading_shows_owned_keys_only() {
        let actual = tags(&[("a", "1"), ("foreign", "y"), ("aws:x", "z"), (UNFINISHED, "m")]);
        let none = Ignored::default();
        assert_eq!(owned_part(&actual, Some(&tags(&[("a", "0"), ("b", "0")])), &none), tags(&[("a", "1")]));
        assert_eq!(owned_part(&actual, None, &none), tags(&[("a", "1"), ("foreign", "y")]));
    }

    #[test]
    fn what_is_ignored_is_nobodys() {
        let set = |text: &str| Some(BTreeSet::from([text.to_owned()]));
        let ignored = Ignored { keys: set("cost"), key_prefixes: set("kubernetes.io/") };
        for (key, covered) in [("cost", true), ("cost-centre", false), ("kubernetes.io/role/elb", true), ("io", false)]
        {
            assert_eq!(ignored.covers(key), covered, "{key}");
        }
        let actual = tags(&[("a", "1"), ("cost", "2"), ("kubernetes.io/x", "3")]);
        assert_eq!(owned_part(&actual, None, &ignored), tags(&[("a", "1")]));
        assert_eq!(owned_part(&actual, Some(&actual), &ignored), tags(&[("a", "1")]));
    }
}
