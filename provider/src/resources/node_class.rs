//! `karp_node_class`: an EC2NodeClass, which says how instances are made.

use std::sync::Arc;
use std::time::Duration;

use karp_domain::api::{Ec2NodeClass, labels, lint, validate as rules};
use kube::Client;
use serde_json::{Value as Json, json};
use tfplugin::{
    Context, Diagnostic, Diagnostics, Moved, PlannedChange, Resource, Schema, Timeouts, Value, async_trait,
};

use super::custom_object::{
    CustomKind, CustomObject, adopt, failure, force_conflicts, metadata, name_of, named, seen, teardown, wait_for_ready,
};
use super::{custom_object, kubelet, moved, node_class_schema};
use crate::manifests::spec::Attributes;
use crate::preview::{self, ClassPreview, Ending};
use crate::provider::Handle;
use crate::report::Failure;
use crate::session::Session;

const KIND: CustomKind = CustomKind {
    api_version: "karpenter.k8s.aws/v1",
    kind: "EC2NodeClass",
    plural: "ec2nodeclasses",
    crd: "ec2nodeclasses.karpenter.k8s.aws",
    defaults,
    validate: |object| rules::node_class(object),
    lint: lint::node_class,
    to_spec: kubelet::fold,
    from_spec: kubelet::unfold,
    observed: node_class_schema::observed,
    locate: |path| path.strip_prefix("spec").unwrap_or(path).trim_start_matches('.').to_owned(),
};

/// A node class.
pub struct NodeClass(CustomObject);

impl NodeClass {
    /// Makes the kind on a handle.
    pub fn new(handle: &Arc<Handle>) -> Self {
        Self(CustomObject::new(KIND, handle, &schema()))
    }

    /// Tells which nodes a change will replace; nothing at destroy, nothing where a class is made, and nothing while the cluster is not known.
    async fn preview(&self, ctx: &Context, change: &PlannedChange) -> Option<Diagnostic> {
        let session = self.0.session();
        if session.model().offline_plan {
            return None;
        }
        if self.0.adopts(change) {
            return self.adoption(ctx, change).await;
        }
        if !change.is_update() || !change.has_changes() {
            return None;
        }
        let name = name_of(change);
        if !change.requires_replace.is_empty() {
            let replaced = self.0.replaced(ctx, change, labels::EC2_NODE_CLASS, Ending::AwaitedBy, |_| None).await;
            return Some(replaced.warning(name, None));
        }
        let before = self.0.typed::<Ec2NodeClass>(&change.prior)?;
        let Some(after) = self.0.typed::<Ec2NodeClass>(&change.planned) else { return self.0.not_known(change) };
        if before.spec == after.spec {
            return None;
        }
        let look = async {
            let client = session.kube_ahead(ctx).await?;
            glance(&session, &client, [&before, &after]).await
        };
        Some(preview::class_warning(name, seen(look).await?))
    }

    /// Tells which nodes of a class a creation replaces that takes it over, as an update does; nothing where none is there.
    async fn adoption(&self, ctx: &Context, change: &PlannedChange) -> Option<Diagnostic> {
        let name = name_of(change);
        let look = async {
            let Some((client, live)) = self.0.adopted(ctx, &change.planned).await? else {
                return Ok::<_, Failure>(None);
            };
            if self.0.typed::<Ec2NodeClass>(&change.planned).is_none() {
                return Ok(self.0.not_known(change));
            }
            let [before, after] = self.0.taken_over::<Ec2NodeClass>(&live, &change.planned)?;
            if before.spec == after.spec {
                return Ok(None);
            }
            let looked = glance(&self.0.session(), &client, [&before, &after]).await?;
            Ok(Some(preview::class_warning(name, Ok(looked))))
        };
        let looked = seen(look).await?;
        looked.unwrap_or_else(|why| Some(preview::class_warning(name, Err(why))))
    }
}

async fn glance(session: &Session, client: &Client, change: [&Ec2NodeClass; 2]) -> Result<ClassPreview, Failure> {
    let looked = preview::glance_at_class(session, client, change).await;
    looked.map_err(|error| failure("look at the nodes of the class", error))
}

fn schema() -> Schema {
    let schema = metadata(named(
Schema::new(
        "An EC2NodeClass: images, networks, disks and identity of instances. It is checked at plan by the API's own rules, without a \
         cluster. Destroying it waits until the controller has taken away what it made for it.",
    )
    .timeouts(Timeouts { delete: Duration::from_secs(30 * 60), ..Timeouts::default() }),
"node class"), "those that a policy of your own looks at")
    .attribute("wait_for_ready", wait_for_ready())
    .attribute("teardown", teardown())
    .attribute("adopt", adopt("EC2NodeClass"))
    .attribute("force_conflicts", force_conflicts())
    .attribute("status", node_class_schema::status());
    node_class_schema::attributes()
        .into_iter()
        .fold(schema, |schema, (name, attribute)| schema.attribute(name, attribute))
}

#[async_trait]
impl Resource for NodeClass {
    fn type_name(&self) -> &'static str {
        "karp_node_class"
    }

    fn schema(&self) -> Schema {
        schema()
    }

    fn validate(&self, config: &Value) -> Diagnostics {
        let mut found = self.0.check(config);
        found.extend(kubelet::check(config));
        found
    }

    async fn plan(&self, ctx: &Context, change: &mut PlannedChange) -> Diagnostics {
        let mut found = CustomKind::plan_id(change);
        if !found.has_errors() {
            found.extend(self.preview(ctx, change).await);
        }
        found
    }

    async fn create(&self, ctx: &Context, planned: Value) -> Result<Value, Diagnostics> {
        // The next refresh reads what the controller has found by then.
        self.0.create(ctx, planned.with("status", Value::Null)).await
    }

    async fn read(&self, ctx: &Context, state: Value) -> Result<Option<Value>, Diagnostics> {
        self.0.read(ctx, state, "subnet_selector_terms").await
    }

    async fn update(&self, ctx: &Context, prior: Value, planned: Value) -> Result<Value, Diagnostics> {
        self.0.update(ctx, &prior, planned).await
    }

    async fn delete(&self, ctx: &Context, prior: Value) -> Result<(), Diagnostics> {
        let fix = "The controller takes a node class away once no NodeClaim uses it: look at those with `kubectl get nodeclaims -o wide`, \
                   and at the controller's logs; then run this again.";
        Ok(self.0.delete(ctx, &prior, fix).await?)
    }

    async fn import(&self, _ctx: &Context, id: &str) -> Result<Value, Diagnostics> {
        Ok(custom_object::bare(id, true))
    }

    fn take_over(&self, source: &Moved) -> Result<Option<Value>, Diagnostics> {
        Ok(moved::object_name(source, &KIND, self.type_name())?.map(|name| custom_object::bare(&name, true)))
    }
}

/// Reads attributes as an EC2NodeClass; nothing while a part of them is not known.
pub fn typed(spec: &Attributes, value: &Value) -> Option<Ec2NodeClass> {
    KIND.typed(spec, value)
}

fn defaults() -> Json {
    json!({ "metadataOptions": {
        "httpEndpoint": "enabled", "httpProtocolIPv6": "disabled", "httpPutResponseHopLimit": 1, "httpTokens": "required",
    } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifests::coverage;
    use crate::manifests::spec::Scope;

    fn class() -> NodeClass {
        NodeClass::new(&Arc::default())
    }

    fn config() -> Value {
        Value::from(json!({
            "name": "default",
            "instance_profile": "profile",
            "ami_selector_terms": [{ "alias": "al2023@latest" }],
            "subnet_selector_terms": [{ "tags": { "karpenter.sh/discovery": "demo" } }],
            "security_group_selector_terms": [{ "tags": { "karpenter.sh/discovery": "demo" } }],
            "kubelet": { "cluster_dns": ["10.0.0.10"], "max_pods": 58 },
            "block_device_mappings": [{ "device_name": "/dev/xvda", "ebs": { "volume_size": "20Gi", "kms_key_id": "k" } }]
        }))
    }

    #[test]
    fn a_good_class_passes_and_becomes_the_apis_object() {
        let found = class().validate(&config());
        assert!(found.is_empty(), "{found}");
        let object = KIND.object(class().0.spec(), &config(), &mut Vec::new());
        assert_eq!(object["spec"]["kubelet"]["clusterDNS"][0], "10.0.0.10");
        assert_eq!(object["spec"]["blockDeviceMappings"][0]["ebs"]["kmsKeyID"], "k");
        let typed: Result<karp_domain::api::Ec2NodeClass, _> = serde_json::from_value(object);
        assert!(typed.is_ok(), "{typed:?}");
    }

    #[test]
    fn what_the_api_would_refuse_is_shown_at_its_attribute() {
        let refused = |config: Value, at: &str| {
            let found = class().validate(&config);
            let paths: Vec<String> = found.iter().map(|d| d.path.to_string()).collect();
            assert_eq!(paths, [at], "{found}");
        };
        refused(config().with("role", "both"), "");
        let terms = Value::from(json!([{ "alias": "al2023" }]));
        refused(config().with("ami_selector_terms", terms), "ami_selector_terms[0].alias");
        let disk = Value::from(json!([{ "device_name": "/dev/xvda", "ebs": { "volume_size": "20" } }]));
        refused(config().with("block_device_mappings", disk), "block_device_mappings[0].ebs.volume_size");
    }

    #[test]
    fn an_unknown_profile_or_tag_is_no_error() {
        let found = class().validate(&config().with("instance_profile", Value::Unknown));
        assert!(found.is_empty(), "{found}");
        let terms = Value::List(vec![Value::object([("tags", Value::object([("a", Value::Unknown)]))])]);
        let found = class().validate(&config().with("subnet_selector_terms", terms));
        assert!(found.is_empty(), "{found}");
    }

    #[test]
    fn every_field_of_the_api_can_be_set() {
        let schema = coverage::spec_schema(KIND.crd);
        assert_eq!(coverage::differences(&schema, class().0.spec()), ["kubelet.more_json is no field"]);
    }

    #[test]
    fn every_field_reaches_the_api_and_returns() {
        let mut full = coverage::sample(class().0.spec()).with("name", "full");
        let more = full.get("kubelet").clone().with("more_json", r#"{"registryBurst":20}"#);
        full.set("kubelet", more);
        let object = KIND.object(class().0.spec(), &full, &mut Vec::new());
        assert_eq!(object["spec"]["kubelet"]["registryBurst"], 20);
        let live: kube::core::DynamicObject = serde_json::from_value(object).expect("an object");
        assert_eq!(KIND.state(class().0.spec(), &Value::object([("name", "full")]), &live, Scope::All), full);
    }

    #[test]
    fn what_the_controller_has_found_is_read() {
        let mut object = KIND.object(class().0.spec(), &config(), &mut Vec::new());
        object["status"] = json!({
            "amis": [{ "id": "ami-1", "name": "al2023", "requirements": [] }],
            "subnets": [{ "id": "subnet-1", "zone": "eu-west-1a", "zoneID": "euw1-az1" }],
            "securityGroups": [{ "id": "sg-1", "name": "nodes" }],
            "instanceProfile": "profile",
            "conditions": [{ "type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }],
        });
        let live: kube::core::DynamicObject = serde_json::from_value(object).expect("an object");
        let status = KIND.state(class().0.spec(), &config(), &live, Scope::Known).get("status").clone();
        assert_eq!(status.get("amis").as_list()[0].get("id").as_str(), Some("ami-1"));
        assert_eq!(status.get("subnets").as_list()[0].get("zone_id").as_str(), Some("euw1-az1"));
        assert_eq!(status.get("security_groups").as_list()[0].get("name").as_str(), Some("nodes"));
        assert_eq!(status.get("instance_profile").as_str(), Some("profile"));
        let ready = &status.get("conditions").as_list()[0];
        assert_eq!((ready.get("type").as_str(), ready.get("status").as_str()), (Some("Ready"), Some("True")));
        assert_eq!(node_class_schema::observed(&Json::Null), []);
    }

    #[test]
    fn a_setting_of_the_kubelet_is_given_once() {
        let kubelet = json!({ "max_pods": 58, "more_json": r#"{"maxPods":"self.enis * 10"}"# });
        let found = class().validate(&config().with("kubelet", Value::from(kubelet)));
        let paths: Vec<String> = found.iter().map(|d| d.path.to_string()).collect();
        assert_eq!(paths, ["kubelet.more_json"], "{found}");
    }
}
