//! Plans a change from configuration, prior state and schema alone.
//!
//! Core's rules for what may be planned: an attribute that the user set equals the configuration, or the prior state where both
//! mean the same; only null attributes that are computed may be filled. So the plan is built from the configuration, and
//! what core proposes is not needed.

use std::collections::BTreeMap;

use crate::schema::{Attribute, Kind, Nesting, OnChange, Schema};
use crate::{AttributePath, Type, Value};

/// Plans the state that the configuration leads to. `prior` is null for a create.
pub(crate) fn plan(schema: &Schema, prior: &Value, config: &Value) -> Value {
    let attributes = &schema.attributes;
    if prior.is_null() {
        return Planner { computed: Computed::Unknown }.object(attributes, None, config);
    }
    // first with computed values as they are: if nothing else differs, nothing will change
    let still = Planner { computed: Computed::Prior }.object(attributes, Some(prior), config);
    if &still == prior {
        return still;
    }
    Planner { computed: Computed::Unknown }.object(attributes, Some(prior), config)
}

/// What becomes of a computed attribute that the user left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Computed {
    Prior,
    Unknown,
}

struct Planner {
    computed: Computed,
}

impl Planner {
    /// `prior` is `None` where there was no such object before.
    fn object(&self, attributes: &BTreeMap<String, Attribute>, prior: Option<&Value>, config: &Value) -> Value {
        let plan_one = |(name, attribute): (&String, &Attribute)| {
            let prior = prior.map(|prior| prior.get(name));
            (name.clone(), self.attribute(attribute, prior, config.get(name)))
        };
        Value::Map(attributes.iter().map(plan_one).collect())
    }

    fn attribute(&self, attribute: &Attribute, prior: Option<&Value>, config: &Value) -> Value {
        if attribute.write_only {
            return Value::Null;
        }
        if config.is_null() {
            return self.left_out(attribute, prior);
        }
        if !config.is_known() {
            return Value::Unknown;
        }
        let planned = match &attribute.kind {
            Kind::Value(Type::Set(_)) => Value::canonical_set(config.as_list().to_vec()),
            Kind::Value(_) => config.clone(),
            Kind::Nested(nesting, inner) => {
                self.nested(*nesting, inner, prior.filter(|prior| !prior.is_null()), config)
            }
        };
        match (attribute.semantic_eq, prior) {
            (Some(same), Some(prior)) if means_the_same(same, prior, &planned) => prior.clone(),
            _ => planned,
        }
    }

    fn left_out(&self, attribute: &Attribute, prior: Option<&Value>) -> Value {
        if let Some(default) = &attribute.default {
            return match (attribute.semantic_eq, prior) {
                (Some(same), Some(prior)) if means_the_same(same, prior, default) => prior.clone(),
                _ => default.clone(),
            };
        }
        if !attribute.is_computed() {
            return Value::Null;
        }
        match prior {
            Some(prior) if attribute.keeps_state || self.computed == Computed::Prior => prior.clone(),
            _ => Value::Unknown,
        }
    }

    fn nested(
        &self,
        nesting: Nesting,
        attributes: &BTreeMap<String, Attribute>,
        prior: Option<&Value>,
        config: &Value,
    ) -> Value {
        let element = |prior: Option<&Value>, config: &Value| match config {
            Value::Map(_) => self.object(attributes, prior, config),
            null_or_unknown => null_or_unknown.clone(),
        };
        match (nesting, config) {
            (Nesting::Single, config) => element(prior, config),
            (Nesting::List, Value::List(list)) => {
                let prior = prior.map_or(&[][..], Value::as_list);
                Value::List(list.iter().enumerate().map(|(at, config)| element(prior.get(at), config)).collect())
            }
            (Nesting::Set, Value::List(list)) => {
                let prior = prior.map_or(&[][..], Value::as_list);
                let counterpart = |config: &Value| prior.iter().find(|prior| same_element(attributes, prior, config));
                Value::canonical_set(list.iter().map(|config| element(counterpart(config), config)))
            }
            (Nesting::Map, Value::Map(map)) => {
                let of = |key: &String| prior.and_then(Value::as_map).and_then(|map| map.get(key));
                Value::Map(map.iter().map(|(key, config)| (key.clone(), element(of(key), config))).collect())
            }
            (_, other) => other.clone(),
        }
    }
}

/// Says whether a set's element is the one that the user wrote: equal in all that was written.
fn same_element(attributes: &BTreeMap<String, Attribute>, prior: &Value, config: &Value) -> bool {
    attributes.iter().all(|(name, attribute)| {
        let (prior, config) = (prior.get(name), config.get(name));
        prior == config
            || attribute.write_only
            || (config.is_null() && attribute.is_computed())
            || attribute.semantic_eq.is_some_and(|same| means_the_same(same, prior, config))
    })
}

pub(super) fn means_the_same(same: fn(&Value, &Value) -> bool, prior: &Value, planned: &Value) -> bool {
    !prior.is_null() && !planned.is_null() && prior.whole_known() && planned.whole_known() && same(prior, planned)
}

/// The attributes whose planned change replaces the resource. A computed attribute that merely became unknown does not.
pub(crate) fn replacements(schema: &Schema, prior: &Value, config: &Value, planned: &Value) -> Vec<AttributePath> {
    let mut paths = Vec::new();
    if !prior.is_null() && !planned.is_null() {
        collect(&schema.attributes, [prior, config, planned], &AttributePath::root(), &mut paths);
    }
    paths
}

fn collect(
    attributes: &BTreeMap<String, Attribute>,
    [prior, config, planned]: [&Value; 3],
    path: &AttributePath,
    paths: &mut Vec<AttributePath>,
) {
    for (name, attribute) in attributes {
        let [prior, config, planned] = [prior, config, planned].map(|object| object.get(name));
        let decided_later = config.is_null() && !planned.is_known();
        if prior == planned || decided_later {
            continue;
        }
        let path = path.clone().attribute(name);
        if attribute.on_change == OnChange::Replace {
            paths.push(path);
            continue;
        }
        match &attribute.kind {
            Kind::Nested(Nesting::Single, inner) if !prior.is_null() && !planned.is_null() => {
                collect(inner, [prior, config, planned], &path, paths);
            }
            Kind::Nested(Nesting::List, inner) => {
                let both = prior.as_list().iter().zip(planned.as_list()).enumerate();
                for (at, (prior, planned)) in both {
                    let config = config.as_list().get(at).unwrap_or(&Value::Null);
                    collect(inner, [prior, config, planned], &path.clone().index(at), paths);
                }
            }
            Kind::Nested(Nesting::Map, inner) => {
                for (key, planned) in planned.as_map().into_iter().flatten() {
                    if let Some(prior) = prior.as_map().and_then(|map| map.get(key)) {
                        collect(inner, [prior, config.get(key), planned], &path.clone().key(key), paths);
                    }
                }
            }
            Kind::Nested(..) | Kind::Value(_) => {}
        }
    }
}
