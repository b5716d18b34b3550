//! `karp_node_pool`: a NodePool; its destruction drains its nodes.

mod foresight;

use std::sync::Arc;
use std::time::Duration;

use karp_domain::api::{self, hash, labels, lint, validate as rules};
use karp_domain::cluster::Pool;
use karp_domain::cron::Cron;
use serde_json::{Value as Json, json};
use tfplugin::schema::validate;
use tfplugin::{
    Attribute, AttributePath, Context, Diagnostic, Diagnostics, Moved, PlannedChange, Resource, Schema, Timeouts, Type,
    Value, async_trait,
};

use super::custom_object::{
    CustomKind, CustomObject, adopt, changed, failure, force_conflicts, metadata, named, teardown, wait_for_ready,
};
use super::departure::End;
use super::node_claims::Ask;
use super::node_pool_drain::Drain;
use super::node_pool_schema::{disruption, same_amounts, template};
use super::{custom_object, moved, node_claims};
use crate::manifests::spec::Attributes;
use crate::preview::{self, Offer};
use crate::provider::Handle;

const KIND: CustomKind = CustomKind {
    api_version: "karpenter.sh/v1",
    kind: "NodePool",
    plural: "nodepools",
    crd: "nodepools.karpenter.sh",
    defaults,
    validate: |object| rules::node_pool(object),
    lint: lint::node_pool,
    to_spec,
    from_spec,
    observed,
    locate,
};

/// A node pool.
pub struct NodePool(CustomObject);

impl NodePool {
    /// Makes the kind on a handle.
    pub fn new(handle: &Arc<Handle>) -> Self {
        Self(CustomObject::new(KIND, handle, &schema()))
    }

    /// Adds the hash that nodes made by the pool are stamped with: it follows from the attributes; `otherwise` where these cannot be read.
    fn with_hash(&self, pool: Value, otherwise: Value) -> Value {
        let hash = self.0.typed::<api::NodePool>(&pool).map(|typed| hash::node_pool(&typed.spec));
        pool.with("hash", hash.map_or(otherwise, Value::from))
    }

    /// Returns the hash as though nothing empty were there; nothing where the attributes cannot be read.
    fn plain_hash(&self, pool: &Value) -> Option<String> {
        fn plain(value: &mut Json) {
            match value {
                Json::Object(fields) => {
                    fields.values_mut().for_each(plain);
                    fields.retain(|_, value| *value != json!({}) && *value != json!([]));
                }
                Json::Array(items) => items.iter_mut().for_each(plain),
                _ => {}
            }
        }
        let spec = self.0.typed::<api::NodePool>(pool)?.spec;
        let mut template = serde_json::to_value(&spec.template).ok()?;
        let requirements = template["spec"]["requirements"].take();
        plain(&mut template);
        template["spec"]["requirements"] = requirements;
        let template = serde_json::from_value(template).ok()?;
        Some(hash::node_pool(&api::NodePoolSpec { template, ..spec }))
    }
}

fn schema() -> Schema {
    let hour = Duration::from_secs(60 * 60);
    metadata(named(
Schema::new(
        "A NodePool: which nodes may be made, how many, and how they are disrupted. It is checked at plan by the API's own rules, \
         without a cluster. Destroying it drains its nodes first, as many at a time as its budgets allow.",
    )
    .timeouts(Timeouts { delete: hour, ..Timeouts::default() }),
"NodePool"), "`karp.sh/consolidation-floor` and `karp.sh/expiration-grace`")
    .attribute("template", template().required().describe("What the nodes of this pool look like."))
    .attribute("disruption", disruption().optional().describe("When and how nodes of this pool may be disrupted."))
    .attribute(
        "limits",
        Attribute::map(Type::String)
            .optional()
            .semantic_eq(same_amounts)
            .describe("The most resources that all nodes of this pool may have together; `nodes` counts nodes."),
    )
    .attribute(
        "weight",
        Attribute::number().optional().validate(validate::whole(1, 100)).describe("Pools with a higher weight are tried first."),
    )
    .attribute("replicas", Attribute::number().optional().describe("A fixed number of nodes; makes the pool static."))
    .attribute("wait_for_ready", wait_for_ready())
    .attribute("teardown", teardown())
    .attribute(
        "drain_on_destroy",
        Attribute::bool().default(true).describe(
            "Let the nodes of the pool leave at destroy as its budgets allow (one at a time at least; after half of `timeouts.delete` the rest \
             at once), and wait until all are drained and gone, for at most `timeouts.delete`. With `false` all are asked to leave at \
             once, and nothing waits for it.",
        ),
    )
    .attribute("adopt", adopt("NodePool"))
    .attribute("force_conflicts", force_conflicts())
    .attribute(
        "hash",
        Attribute::string().computed().describe(
            "The hash of the template that nodes are stamped with (`karpenter.sh/nodepool-hash`); a node with another one drifts. It is \
             known at plan, where the attributes are.",
        ),
    )
    .attribute(
        "node_count",
        Attribute::number()
            .computed()
            .use_state_for_unknown()
            .describe("How many nodes the pool had at the last refresh; null before the first one, and without a controller."),
    )
    .attribute(
        "resources_in_use",
        Attribute::map(Type::String).computed().use_state_for_unknown().describe(
            "What those nodes had together, to compare with `limits`.",
        ),
    )
}

/// Reads what the controller counts.
fn observed(status: &Json) -> Vec<(&'static str, Value)> {
    let Some(resources) = status["resources"].as_object() else { return Vec::new() };
    let text = |amount: &Json| amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
    let resources = resources.iter().map(|(name, amount)| (name.clone(), Value::from(text(amount))));
    vec![
        ("node_count", Value::from(status["nodes"].as_i64().unwrap_or_default())),
        ("resources_in_use", Value::object(resources)),
    ]
}

#[async_trait]
impl Resource for NodePool {
    fn type_name(&self) -> &'static str {
        "karp_node_pool"
    }

    fn schema(&self) -> Schema {
        schema()
    }

    fn validate(&self, config: &Value) -> Diagnostics {
        let mut found = self.0.check(config);
        if !found.has_errors() {
            found.extend(check_schedules(config));
        }
        found
    }

    async fn plan(&self, ctx: &Context, change: &mut PlannedChange) -> Diagnostics {
        let mut found = CustomKind::plan_id(change);
        if found.has_errors() {
            return found;
        }
        if !change.is_destroy() {
            let known = change.prior.get("hash").clone();
            let planned = self.with_hash(change.planned.clone(), Value::Unknown);
            // An empty map or list that somebody else wrote is as good as none and stays, though it makes another hash.
            let before = self.plain_hash(&change.prior).filter(|_| !known.is_null());
            let as_before = before.is_some() && before == self.plain_hash(&planned);
            change.planned = if as_before { planned.with("hash", known) } else { planned };
        }
        // The API keeps a pool static or dynamic for life.
        if change.is_update() && change.prior.get("replicas").is_null() != change.planned.get("replicas").is_null() {
            change.replace("replicas");
        }
        found.extend(self.preview(ctx, change).await);
        found
    }

    async fn create(&self, ctx: &Context, planned: Value) -> Result<Value, Diagnostics> {
        // The next refresh reads what the controller counts.
        let planned = planned.with("node_count", Value::Null).with("resources_in_use", Value::Null);
        self.0.create(ctx, self.with_hash(planned, Value::Null)).await
    }

    async fn read(&self, ctx: &Context, state: Value) -> Result<Option<Value>, Diagnostics> {
        let read = self.0.read(ctx, state, "template").await?;
        Ok(read.map(|state| self.with_hash(state, Value::Null)))
    }

    async fn update(&self, ctx: &Context, prior: Value, planned: Value) -> Result<Value, Diagnostics> {
        // One that is known was promised at plan: it may be that of an empty map or list that stays.
        let planned = if planned.get("hash").is_known() { planned } else { self.with_hash(planned, Value::Null) };
        self.0.update(ctx, &prior, planned).await
    }

    async fn delete(&self, ctx: &Context, prior: Value) -> Result<(), Diagnostics> {
        let client = self.0.session().kube_of(ctx).await?;
        let name = prior.get("name").as_str().unwrap_or_default();
        if prior.get("drain_on_destroy").as_bool() == Some(false) {
            KIND.delete(ctx, &client, name).await?;
            let selector = format!("{}={name}", labels::NODE_POOL);
            let doing = format!("end the NodeClaims of NodePool {name:?}");
            let end = async { node_claims::left(&client, &selector, Ask::All).await.map_err(|e| failure(&doing, e)) };
            changed(ctx, &doing, end).await?;
            return Ok(());
        }
        let drain = Drain::begin(&self.0, ctx, &prior, name).await?;
        drain.pace().await?;
        // its token may be over by now
        let client = self.0.session().kube_of(ctx).await?;
        // From here on the pool makes no node, whatever its limits are.
        let uid = KIND.delete(ctx, &client, name).await?;
        let end = drain.finish().await?;
        if let Some(uid) = uid {
            self.0.wait_gone(ctx, &prior, &uid, custom_object::STAYS).await?;
        }
        if end == End::Gone {
            drain.summarise().await;
        }
        Ok(())
    }

    async fn import(&self, _ctx: &Context, id: &str) -> Result<Value, Diagnostics> {
        Ok(bare(id))
    }

    fn take_over(&self, source: &Moved) -> Result<Option<Value>, Diagnostics> {
        Ok(moved::object_name(source, &KIND, self.type_name())?.map(|name| bare(&name)))
    }
}

/// Gives the state with which an import begins.
fn bare(name: &str) -> Value {
    custom_object::bare(name, true).with("drain_on_destroy", true)
}

/// Refuses a schedule that the API takes, and that nobody could follow: its budget would never let a node go.
fn check_schedules(config: &Value) -> Diagnostics {
    let mut found = Diagnostics::new();
    for (at, budget) in config.get("disruption").get("budgets").as_list().iter().enumerate() {
        if let Some(schedule) = budget.get("schedule").as_str()
            && let Err(error) = schedule.parse::<Cron>()
        {
            let path =
                AttributePath::root().attribute("disruption").attribute("budgets").index(at).attribute("schedule");
            let detail = format!("{path}: {error}");
            found.push(Diagnostic::error("The schedule cannot be read", detail).at(path));
        }
    }
    found
}

/// Reads attributes as a NodePool; nothing while a part of them is not known.
pub fn typed(spec: &Attributes, value: &Value) -> Option<api::NodePool> {
    KIND.typed(spec, value)
}

/// Tells what a pool may launch; nothing where its requirements cannot be read.
pub fn offer_of(pool: &api::NodePool) -> Option<Offer> {
    Some(preview::offer(&Pool::from_kube(pool).ok()?.requirements))
}

/// Moves labels and annotations to the template's metadata, and the rest to its spec.
fn to_spec(mut fields: Json) -> Json {
    if let Some(template) = fields.get_mut("template").and_then(Json::as_object_mut) {
        let mut inner = std::mem::take(template);
        let metadata: serde_json::Map<_, _> = ["labels", "annotations"]
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), inner.remove(name)?)))
            .collect();
        if !metadata.is_empty() {
            template.insert("metadata".to_owned(), metadata.into());
        }
        if let Some(reference) = inner.get_mut("nodeClassRef").and_then(Json::as_object_mut) {
            reference.entry("group").or_insert_with(|| json!(labels::AWS_GROUP));
            reference.entry("kind").or_insert_with(|| json!("EC2NodeClass"));
        }
        template.insert("spec".to_owned(), inner.into());
    }
    fields
}

fn from_spec(spec: &Json, _prior: &Value) -> Json {
    let mut fields = spec.clone();
    let template = &spec["template"];
    let mut merged = template["spec"].clone();
    for name in ["labels", "annotations"] {
        if let Some(value) = template["metadata"].get(name) {
            merged[name] = value.clone();
        }
    }
    fields["template"] = merged;
    fields
}

fn locate(path: &str) -> String {
    let path = path.strip_prefix("spec").unwrap_or(path).trim_start_matches('.');
    for part in ["template.spec", "template.metadata"] {
        if let Some(rest) = path.strip_prefix(part) {
            return format!("template{rest}");
        }
    }
    path.to_owned()
}

fn defaults() -> Json {
    json!({
        "disruption": {
            "budgets": [{ "nodes": "10%" }],
            "consolidateAfter": "0s",
            "consolidationPolicy": "WhenEmptyOrUnderutilized",
        },
        "template": { "spec": { "expireAfter": "720h" } },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifests::coverage;
    use crate::manifests::spec::Scope;

    fn pool() -> NodePool {
        NodePool::new(&Arc::default())
    }

    fn config() -> Value {
        serde_json::from_value::<Json>(json!({
            "name": "default",
            "template": {
                "node_class_ref": { "name": "default" },
                "labels": { "team": "a" },
                "requirements": [
                    { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot", "on-demand"] },
                    { "key": "karpenter.k8s.aws/instance-generation", "operator": "Gt", "values": ["4"] }
                ],
                "expire_after": "720h"
            },
            "disruption": { "consolidate_after": "5s", "budgets": [{ "nodes": "100%" }] },
            "limits": { "cpu": "100" }
        }))
        .map(Value::from)
        .expect("plain data")
    }

    fn with(path: &[&str], value: Value) -> Value {
        fn set(at: Value, path: &[&str], value: Value) -> Value {
            match (path, at) {
                ([], _) => value,
                ([index, rest @ ..], Value::List(mut list)) => {
                    let index: usize = index.parse().expect("an index");
                    list[index] = set(std::mem::take(&mut list[index]), rest, value);
                    Value::List(list)
                }
                ([name, rest @ ..], at) => {
                    let inner = set(at.get(name).clone(), rest, value);
                    at.with(*name, inner)
                }
            }
        }
        set(config(), path, value)
    }

    #[test]
    fn a_good_pool_passes_and_becomes_the_apis_object() {
        assert!(pool().validate(&config()).is_empty(), "{}", pool().validate(&config()));
        let object = KIND.object(pool().0.spec(), &config(), &mut Vec::new());
        assert_eq!(object["spec"]["template"]["metadata"]["labels"]["team"], "a");
        assert_eq!(object["spec"]["template"]["spec"]["nodeClassRef"]["kind"], "EC2NodeClass");
        assert_eq!(object["spec"]["disruption"]["consolidateAfter"], "5s");
    }

    #[test]
    fn what_the_api_would_refuse_is_shown_at_its_attribute() {
        let refused = |path: &[&str], value: Value, at: &str| {
            let found = pool().validate(&with(path, value));
            let paths: Vec<String> = found.iter().map(|d| d.path.to_string()).collect();
            assert_eq!(paths, [at], "{found}");
        };
        refused(&["template", "expire_after"], "30d".into(), "template.expire_after");
        refused(&["template", "requirements", "0", "key"], "karpenter.sh/x".into(), "template.requirements[0].key");
        refused(&["template", "requirements", "1", "values"], Value::List(vec![]), "template.requirements[1]");
        refused(&["template", "labels"], Value::object([("kubernetes.io/hostname", "a")]), "template.labels");
        refused(&["limits"], Value::object([("cpu", "many")]), "limits[\"cpu\"]");
        refused(&["disruption", "budgets", "0", "nodes"], "200%".into(), "disruption.budgets[0].nodes");
    }

    #[test]
    fn what_nobody_can_have_meant_is_refused_or_warned_of() {
        let told = |path: &[&str], value: Value| {
            let found = pool().validate(&with(path, value));
            let told: Vec<(bool, String)> = found.iter().map(|d| (found.has_errors(), d.path.to_string())).collect();
            told
        };
        let values = ["template", "requirements", "0", "values"];
        let at = "template.requirements[0].values".to_owned();
        assert_eq!(told(&values, Value::List(vec!["ondemand".into()])), [(true, at.clone())]);
        assert_eq!(told(&values, Value::List(vec!["ondemand".into(), "spot".into()])), [(false, at)]);
        assert_eq!(told(&values, Value::List(vec!["ondemand".into(), Value::Unknown])), []);
        let labels = Value::object([("kubernetes.io/arch", "x86_64")]);
        assert_eq!(
            told(&["template", "labels"], labels),
            [(true, "template.labels[\"kubernetes.io/arch\"]".to_owned())]
        );
        let limits = Value::object([("cpu", "-1")]);
        assert_eq!(told(&["limits"], limits), [(true, "limits[\"cpu\"]".to_owned())]);
    }

    #[test]
    fn unknown_values_are_given_the_benefit_of_the_doubt() {
        for path in
            [&["template", "requirements", "0", "values"][..], &["template", "node_class_ref", "name"], &["limits"]]
        {
            let found = pool().validate(&with(path, Value::Unknown));
            assert!(found.is_empty(), "{path:?}: {found}");
        }
        let found = pool().validate(
            &with(&["template", "requirements", "0", "values"], Value::Unknown)
                .with("weight", 1)
                .with("limits", Value::object([("cpu", Value::from("many"))])),
        );
        assert_eq!(found.iter().count(), 1, "{found}");
    }

    /// The template's metadata and spec are one object here.
    fn merged(mut schema: Json) -> Json {
        let template = &mut schema["properties"]["template"]["properties"];
        let (metadata, spec) = (template["metadata"].take(), template["spec"].take());
        let mut properties = spec["properties"].as_object().cloned().expect("fields of the spec");
        properties.extend(metadata["properties"].as_object().cloned().expect("fields of the metadata"));
        *template = properties.into();
        schema
    }

    #[test]
    fn every_field_of_the_api_is_a_typed_attribute() {
        let schema = merged(coverage::spec_schema(KIND.crd));
        assert_eq!(coverage::differences(&schema, pool().0.spec()), Vec::<String>::new());
    }

    #[test]
    fn what_a_pool_that_is_taken_over_has_besides_is_told() {
        let class = [("name", "default"), ("group", labels::AWS_GROUP), ("kind", "EC2NodeClass")];
        let planned = with(&["template", "node_class_ref"], Value::object(class)).with("disruption", Value::Null);
        let mut live = KIND.object(pool().0.spec(), &planned, &mut Vec::new());
        let told = |live: &Json| {
            let live: kube::core::DynamicObject = serde_json::from_value(live.clone()).expect("an object");
            KIND.beyond(pool().0.spec(), &planned, &live).map(|warning| warning.detail)
        };
        // The API's defaults are nobody's.
        live["spec"]["disruption"] = defaults()["disruption"].clone();
        assert_eq!(told(&live), None);
        live["spec"]["weight"] = json!(7);
        live["spec"]["template"]["spec"]["taints"] = json!([{ "key": "theirs", "effect": "NoSchedule" }]);
        let detail = told(&live).expect("a warning");
        assert!(detail.contains("Others set template.taints, weight."), "{detail}");
    }

    #[test]
    fn every_field_reaches_the_api_and_returns() {
        let full = coverage::sample(pool().0.spec()).with("name", "full");
        let object = KIND.object(pool().0.spec(), &full, &mut Vec::new());
        let live: kube::core::DynamicObject = serde_json::from_value(object).expect("an object");
        assert_eq!(KIND.state(pool().0.spec(), &Value::object([("name", "full")]), &live, Scope::All), full);
    }

    #[test]
    fn hash_and_counts_are_told() {
        let hash = |config: &Value| pool().with_hash(config.clone(), Value::Unknown).get("hash").clone();
        let (one, other) = (hash(&config()), hash(&with(&["template", "labels"], Value::object([("team", "b")]))));
        assert!(one.as_str().is_some() && one != other, "{one:?} {other:?}");
        assert_eq!(hash(&config().with("weight", 10)), one, "nodes are not made by the weight");
        assert_eq!(hash(&with(&["template", "labels"], Value::Unknown)), Value::Unknown);
        let mut object = KIND.object(pool().0.spec(), &config(), &mut Vec::new());
        object["status"] = json!({ "nodes": 3, "resources": { "cpu": "12", "nodes": "3" } });
        let live: kube::core::DynamicObject = serde_json::from_value(object).expect("an object");
        let state = KIND.state(pool().0.spec(), &config(), &live, Scope::Known);
        assert_eq!(state.get("node_count").as_i64(), Some(3));
        assert_eq!(state.get("resources_in_use").get("cpu").as_str(), Some("12"));
    }

    #[test]
    fn an_import_of_a_plain_pool_leaves_defaults_out() {
        let mut live = KIND.object(pool().0.spec(), &config(), &mut Vec::new());
        live["spec"]["template"]["spec"]["expireAfter"] = json!("720h");
        live["spec"]["disruption"]["consolidationPolicy"] = json!("WhenEmptyOrUnderutilized");
        let live: kube::core::DynamicObject = serde_json::from_value(live).expect("an object");
        let state = KIND.state(pool().0.spec(), &Value::object([("name", "default")]), &live, Scope::All);
        assert_eq!(state.get("template").get("expire_after"), &Value::Null);
        assert_eq!(state.get("disruption").get("consolidation_policy"), &Value::Null);
        assert_eq!(state.get("disruption").get("consolidate_after"), &Value::from("5s"));
        assert_eq!(state.get("limits"), config().get("limits"));
    }
}
