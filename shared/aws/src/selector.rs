//! Selector terms of a node class, turned into EC2 filters. Terms are alternatives; the parts of one term all hold together.

use aws_sdk_ec2::types::Filter;
use std::collections::BTreeMap;

/// The tag value that matches any value, as node classes write it.
const ANY: &str = "*";

/// One term: an id, or a name and tags.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Term {
    /// The resource's id; excludes the other parts.
    pub id: Option<String>,
    /// The resource's name; `*` and `?` are wildcards.
    pub name: Option<String>,
    /// Tags that the resource carries; the value `*` stands for any.
    pub tags: BTreeMap<String, String>,
}

impl Term {
    /// Makes the term that matches one id.
    #[must_use]
    pub fn id(id: impl Into<String>) -> Self {
        Self { id: Some(id.into()), ..Self::default() }
    }

    /// Makes the term that matches one tag.
    #[must_use]
    pub fn tag(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self { tags: BTreeMap::from([(key.into(), value.into())]), ..Self::default() }
    }
}

/// Names the filters that a kind of resource uses for ids and names.
pub(crate) struct FilterNames {
    pub id: &'static str,
    pub name: &'static str,
}

/// Turns terms into as few filter sets as possible: all ids go into one, every other term is one of its own.
pub(crate) fn filter_sets(terms: &[Term], names: &FilterNames) -> Vec<Vec<Filter>> {
    let ids: Vec<String> = terms.iter().filter_map(|term| term.id.clone()).collect();
    let mut sets = Vec::new();
    if !ids.is_empty() {
        sets.push(vec![filter(names.id, ids)]);
    }
    for term in terms.iter().filter(|term| term.id.is_none()) {
        let mut filters: Vec<Filter> = tag_filters(&term.tags);
        filters.extend(term.name.iter().map(|name| filter(names.name, [name.clone()])));
        if !filters.is_empty() {
            sets.push(filters);
        }
    }
    sets
}

/// Builds the filters that hold when a resource carries all of `tags`.
pub(crate) fn tag_filters(tags: &BTreeMap<String, String>) -> Vec<Filter> {
    tags.iter()
        .map(|(key, value)| match value.as_str() {
            ANY => filter("tag-key", [key.clone()]),
            value => filter(&format!("tag:{key}"), [value.to_owned()]),
        })
        .collect()
}

/// Says whether what a call listed carries all of `tags`. What is listed may be ended or deleted: the service's word is not enough.
pub(crate) fn carries(there: &BTreeMap<String, String>, tags: &BTreeMap<String, String>) -> bool {
    tags.iter().all(|(key, wanted)| there.get(key).is_some_and(|value| wanted == ANY || value == wanted))
}

/// Builds one filter; its values are alternatives.
pub(crate) fn filter(name: &str, values: impl IntoIterator<Item = String>) -> Filter {
    Filter::builder().name(name).set_values(Some(values.into_iter().collect())).build()
}

/// Reads EC2's tags into a map.
pub(crate) fn read_tags(tags: Option<Vec<aws_sdk_ec2::types::Tag>>) -> BTreeMap<String, String> {
    tags.into_iter().flatten().filter_map(|tag| Some((tag.key?, tag.value.unwrap_or_default()))).collect()
}

/// Writes a map as EC2's tags.
pub(crate) fn write_tags(tags: &BTreeMap<String, String>) -> Vec<aws_sdk_ec2::types::Tag> {
    tags.iter().map(|(key, value)| aws_sdk_ec2::types::Tag::builder().key(key).value(value).build()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: FilterNames = FilterNames { id: "subnet-id", name: "name" };

    fn shown(terms: &[Term]) -> Vec<Vec<(String, Vec<String>)>> {
        let show = |filter: Filter| (filter.name.unwrap_or_default(), filter.values.unwrap_or_default());
        filter_sets(terms, &NAMES).into_iter().map(|set| set.into_iter().map(show).collect()).collect()
    }

    #[test]
    fn ids_share_a_call_and_tags_of_a_term_hold_together() {
        let both =
            Term { tags: BTreeMap::from([("a".into(), "1".into()), ("b".into(), "*".into())]), ..Term::default() };
        assert_eq!(
            shown(&[Term::id("subnet-1"), both, Term::id("subnet-2")]),
            vec![
                vec![("subnet-id".to_owned(), vec!["subnet-1".to_owned(), "subnet-2".to_owned()])],
                vec![("tag:a".to_owned(), vec!["1".to_owned()]), ("tag-key".to_owned(), vec!["b".to_owned()])],
            ]
        );
    }

    #[test]
    fn what_is_listed_counts_only_with_every_tag_that_was_asked_for() {
        let tags = |all: &[(&str, &str)]| -> BTreeMap<String, String> {
            all.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let wanted = tags(&[("cluster", "owned"), ("pool", "*"), ("class", "*")]);
        assert!(carries(&tags(&[("cluster", "owned"), ("pool", "a"), ("class", ""), ("more", "b")]), &wanted));
        for lacking in [
            &[("cluster", "shared"), ("pool", "a"), ("class", "b")][..],
            &[("cluster", "owned"), ("pool", "a")],
            &[("pool", "a"), ("class", "b")],
            &[],
        ] {
            assert!(!carries(&tags(lacking), &wanted), "{lacking:?}");
        }
    }

    #[test]
    fn an_empty_term_selects_nothing_rather_than_everything() {
        assert_eq!(shown(&[Term::default()]), Vec::<Vec<_>>::new());
    }
}
