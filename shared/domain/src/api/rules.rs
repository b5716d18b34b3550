//! The rules of the CRDs: patterns and CEL expressions, in our own words, with Karpenter's verdicts.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use super::conditions::Condition;
use super::labels;
use super::shared::{NodeClassReference, RequirementSpec};
use crate::quantity;

/// A label or taint key, with or without a domain.
pub(super) const QUALIFIED_NAME: &str =
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*(\/))?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$";
pub(super) const DURATION: &str = r"^([0-9]+(s|m|h))+$";
pub(super) const DURATION_OR_NEVER: &str = r"^(([0-9]+(s|m|h))+|Never)$";
/// Whole minutes, as a budget's schedule has no finer steps.
pub(super) const BUDGET_DURATION: &str = r"^((([0-9]+(h|m))|([0-9]+h[0-9]+m))(0s)?)$";
pub(super) const BUDGET_NODES: &str = r"^((100|[0-9]{1,2})%|[0-9]+)$";
pub(super) const BUDGET_SCHEDULE: &str =
    r"^(@(annually|yearly|monthly|weekly|daily|midnight|hourly))|((.+)\s(.+)\s(.+)\s(.+)\s(.+))$";
pub(super) const GROUP: &str = r"^[^/]*$";
pub(super) const SUBNET_ID: &str = r"subnet-[0-9a-z]+";
pub(super) const SECURITY_GROUP_ID: &str = r"sg-[0-9a-z]+";
pub(super) const IMAGE_ID: &str = r"ami-[0-9a-z]+";
pub(super) const RESERVATION_ID: &str = r"^cr-[0-9a-z]+$";
pub(super) const PLACEMENT_GROUP_ID: &str = r"^pg-[0-9a-z]+$";
pub(super) const ACCOUNT_ID: &str = r"^[0-9]{12}$";
pub(super) const CONDITION_TYPE: &str =
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$";
pub(super) const CONDITION_REASON: &str = "^([A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?|)$";
pub(super) const PRICE: &str = r"^\d+(\.\d+)?$";
/// A volume size within EBS's bounds.
pub(super) const VOLUME_SIZE: &str = r"^((?:[1-9][0-9]{0,3}|[1-4][0-9]{4}|[5][0-8][0-9]{3}|59000)Gi|(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|[6][0-3][0-9]{3}|64000)G|([1-9]||[1-5][0-7]|58)Ti|([1-9]||[1-5][0-9]|6[0-3]|64)T)$";
/// An amount with its sign, or a share of at most all of the price off, or any share on top.
pub(super) const PRICE_ADJUSTMENT: &str = r"^(([+-]{1}(\d*\.?\d+))|(\+{1}\d*\.?\d+%)|(^(-\d{1,2}(\.\d+)?%)$)|(-100%))$";
pub(super) const LABEL_VALUE: &str = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$";
const SIGNALS: &str = "['memory.available','nodefs.available','nodefs.inodesFree','imagefs.available','imagefs.inodesFree','pid.available']";

fn rule(expression: impl Into<String>, message: &str) -> Value {
    json!({ "rule": expression.into(), "message": message })
}

pub(super) fn not_empty(field: &str) -> Value {
    json!([rule("self != ''", &format!("{field} may not be empty"))])
}

pub(super) fn at_least_one(fields: &[&str]) -> Value {
    let any = fields.iter().map(|field| format!("has(self.{field})")).collect::<Vec<_>>().join(" || ");
    json!([rule(any, &format!("at least one of {} must be set", fields.join(", ")))])
}

pub(super) fn date_time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}

pub(super) fn conditions(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = Vec::<Condition>::json_schema(generator);
    schema.insert("x-kubernetes-list-type".into(), json!("map"));
    schema.insert("x-kubernetes-list-map-keys".into(), json!(["type"]));
    schema
}

// --- NodePool and NodeClaim ---

pub(super) fn node_pool() -> Value {
    json!([
        rule(
            "has(self.replicas) == has(oldSelf.replicas)",
            "a pool cannot change between static (replicas set) and dynamic (replicas not set)"
        ),
        rule(
            "!has(self.replicas) || !has(self.limits) || size(self.limits) == ('nodes' in self.limits ? 1 : 0)",
            "a static pool (replicas set) supports only limits.nodes"
        ),
        rule("!has(self.replicas) || !has(self.weight)", "a static pool (replicas set) supports no weight"),
    ])
}

pub(super) fn immutable_spec() -> Value {
    json!([rule("self == oldSelf", "the spec of a NodeClaim cannot be changed")])
}

pub(super) fn budget() -> Value {
    json!([rule("has(self.schedule) == has(self.duration)", "schedule and duration must be set together")])
}

pub(super) fn requirement() -> Value {
    let number = "['Gt', 'Lt', 'Gte', 'Lte']";
    json!([
        rule(
            "self.operator != 'In' || (has(self.values) && size(self.values) > 0)",
            "operator In needs at least one value"
        ),
        rule(
            format!(
                "!(self.operator in {number}) || (has(self.values) && size(self.values) == 1 && int(self.values[0]) >= 0)"
            ),
            "operators Gt, Lt, Gte and Lte need exactly one whole number that is not negative"
        ),
        rule(
            "self.operator != 'In' || !has(self.minValues) || (has(self.values) && size(self.values) >= self.minValues)",
            "minValues is larger than the number of values"
        ),
    ])
}

/// Returns the rules of one label key, as `subject` in CEL.
fn label_key_rules(subject: &str, pool_allowed: bool) -> Vec<(String, &'static str)> {
    let domain = format!("{subject}.find('^[^/]+')");
    let own = if pool_allowed {
        format!("{subject} in ['{}', '{}']", labels::CAPACITY_TYPE, labels::NODE_POOL)
    } else {
        format!("{subject} == '{}'", labels::CAPACITY_TYPE)
    };
    let aws = labels::WELL_KNOWN
        .iter()
        .filter(|key| key.starts_with("karpenter.k8s.aws/"))
        .map(|key| format!("'{key}'"))
        .collect::<Vec<_>>()
        .join(", ");
    vec![
        (
            format!("{own} || !{domain}.endsWith('karpenter.sh')"),
            if pool_allowed {
                "of the domain karpenter.sh only capacity-type and nodepool may be used"
            } else {
                "of the domain karpenter.sh only capacity-type may be used"
            },
        ),
        (format!("{subject} != '{}'", labels::HOSTNAME), "label kubernetes.io/hostname is each node's own"),
        (
            format!("{subject} in [{aws}] || !{domain}.endsWith('karpenter.k8s.aws')"),
            "unknown label of the domain karpenter.k8s.aws",
        ),
    ]
}

// --- NodeOverlay and CapacityBuffer ---

pub(super) fn node_overlay() -> Value {
    json!([rule("!has(self.price) || !has(self.priceAdjustment)", "price and priceAdjustment exclude each other")])
}

pub(super) fn overlay_capacity() -> Value {
    json!([rule(
        "self.all(name, !(name in ['cpu', 'memory', 'ephemeral-storage', 'pods']))",
        "only extended resources can be added: not cpu, memory, ephemeral-storage or pods"
    )])
}

pub(super) fn node_overlay_requirements(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = requirements(generator, true).to_value();
    let item = &mut schema["items"];
    if let Some(properties) = item["properties"].as_object_mut() {
        properties.remove("minValues");
    }
    let rules = item["x-kubernetes-validations"].as_array_mut().expect("requirements have rules");
    rules.retain(|rule| !rule["rule"].as_str().is_some_and(|cel| cel.contains("minValues")));
    rules.push(rule(
        "self.operator != 'NotIn' || (has(self.values) && size(self.values) > 0)",
        "operator NotIn needs at least one value",
    ));
    Schema::try_from(schema).expect("an array schema is an object")
}

pub(super) fn capacity_buffer() -> Value {
    json!([
        rule(
            "!has(self.podTemplateRef) || has(self.replicas) || has(self.limits)",
            "with podTemplateRef, replicas or limits must be set too"
        ),
        rule(
            "!(has(self.podTemplateRef) && has(self.scalableRef))",
            "podTemplateRef and scalableRef exclude each other"
        ),
    ])
}

fn requirements(generator: &mut SchemaGenerator, pool_allowed: bool) -> Schema {
    let mut schema = Vec::<RequirementSpec>::json_schema(generator).to_value();
    let rules: Vec<Value> =
        label_key_rules("self", pool_allowed).into_iter().map(|(cel, message)| rule(cel, message)).collect();
    schema["maxItems"] = json!(100);
    schema["x-kubernetes-list-type"] = json!("atomic");
    schema["items"]["properties"]["key"]["x-kubernetes-validations"] = Value::Array(rules);
    Schema::try_from(schema).expect("an array schema is an object")
}

pub(super) fn node_pool_requirements(generator: &mut SchemaGenerator) -> Schema {
    requirements(generator, false)
}

pub(super) fn node_claim_requirements(generator: &mut SchemaGenerator) -> Schema {
    requirements(generator, true)
}

pub(super) fn node_pool_class_ref(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = NodeClassReference::json_schema(generator).to_value();
    schema["x-kubernetes-validations"] = json!([
        rule("self.group == oldSelf.group", "the group of a node class reference cannot be changed"),
        rule("self.kind == oldSelf.kind", "the kind of a node class reference cannot be changed"),
    ]);
    Schema::try_from(schema).expect("an object schema is an object")
}

pub(super) fn template_labels(_: &mut SchemaGenerator) -> Schema {
    let rules: Vec<Value> = label_key_rules("key", false)
        .into_iter()
        .map(|(cel, message)| rule(format!("self.all(key, {cel})"), message))
        .collect();
    json_schema!({
        "type": "object",
        "maxProperties": 100,
        "additionalProperties": { "type": "string", "maxLength": 63, "pattern": LABEL_VALUE },
        "x-kubernetes-validations": rules
    })
}

// --- EC2NodeClass ---

pub(super) fn node_class() -> Value {
    let mut rules = vec![rule(
        "has(self.role) != has(self.instanceProfile)",
        "exactly one of role and instanceProfile must be set",
    )];
    for (alias, family) in [
        ("al2", "AL2"),
        ("al2023", "AL2023"),
        ("bottlerocket", "Bottlerocket"),
        ("windows2019", "Windows2019"),
        ("windows2022", "Windows2022"),
        ("windows2025", "Windows2025"),
    ] {
        rules.push(rule(
            format!(
                "!has(self.amiFamily) || self.amiFamily in ['{family}', 'Custom'] || \
                 !self.amiSelectorTerms.exists(term, has(term.alias) && term.alias.find('^[^@]+') == '{alias}')"
            ),
            &format!("with an alias of {alias}, amiFamily must be {family} or Custom"),
        ));
    }
    rules.push(rule(
        "has(self.amiFamily) || self.amiSelectorTerms.exists(term, has(term.alias))",
        "amiFamily must be set where amiSelectorTerms hold no alias",
    ));
    Value::Array(rules)
}

pub(super) fn subnet_terms() -> Value {
    // As in Karpenter, a mixed list passes where one term at least is clean; manifests in the field rely on it.
    json!([
        rule("size(self) > 0", "at least one term is needed"),
        rule("size(self) == 0 || !self.all(term, has(term.id) && has(term.tags))", "id cannot be combined with tags"),
    ])
}

pub(super) fn security_group_terms() -> Value {
    json!([
        rule("size(self) > 0", "at least one term is needed"),
        rule(
            "size(self) == 0 || !self.all(term, has(term.id) && (has(term.tags) || has(term.name)))",
            "id cannot be combined with tags or name"
        ),
        rule(
            "size(self) == 0 || !self.all(term, has(term.name) && (has(term.tags) || has(term.id)))",
            "name cannot be combined with tags or id"
        ),
    ])
}

pub(super) fn ami_terms() -> Value {
    let others = |fields: &[&str]| fields.iter().map(|f| format!("has(term.{f})")).collect::<Vec<_>>().join(" || ");
    json!([
        rule(
            format!("!self.exists(term, has(term.id) && ({}))", others(&["alias", "tags", "name", "owner"])),
            "id cannot be combined with other fields of a term"
        ),
        rule(
            format!("!self.exists(term, has(term.alias) && ({}))", others(&["id", "tags", "name", "owner"])),
            "alias cannot be combined with other fields of a term"
        ),
        rule("size(self) <= 1 || !self.exists(term, has(term.alias))", "a term with an alias must be the only one"),
    ])
}

pub(super) fn ami_alias() -> Value {
    let windows = "['windows2019', 'windows2022', 'windows2025']";
    json!([
        rule("self.matches('^[a-zA-Z0-9]+@.+$')", "an alias is written family@version, such as al2023@latest"),
        rule(
            "self.find('^[^@]+') in ['al2', 'al2023', 'bottlerocket', 'windows2019', 'windows2022', 'windows2025']",
            "the alias' family must be one of al2, al2023, bottlerocket, windows2019, windows2022, windows2025"
        ),
        rule(
            format!("!(self.find('^[^@]+') in {windows}) || self.endsWith('@latest')"),
            "Windows images have only the version latest"
        ),
    ])
}

pub(super) fn capacity_reservation_terms() -> Value {
    json!([rule(
        "size(self) == 0 || !self.all(term, has(term.id) && (has(term.tags) || has(term.ownerID) || has(term.instanceMatchCriteria)))",
        "id cannot be combined with other fields of a term"
    )])
}

pub(super) fn placement_group() -> Value {
    json!([
        rule("has(self.name) || has(self.id)", "at least one of name, id must be set"),
        rule("!(has(self.name) && has(self.id))", "name and id exclude each other"),
    ])
}

pub(super) fn selector_tags(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 20,
        "additionalProperties": { "type": "string" },
        "x-kubernetes-validations": [rule("self.all(key, key != '' && self[key] != '')", "tags need a key and a value")]
    })
}

pub(super) fn instance_tags() -> Value {
    let not = |key: &str| rule(format!("self.all(key, key != '{key}')"), &format!("tag {key} is karp's own"));
    json!([
        rule("self.all(key, key != '')", "tags need a key"),
        not("eks:eks-cluster-name"),
        rule(
            "self.all(key, !key.startsWith('kubernetes.io/cluster'))",
            "tags kubernetes.io/cluster/... are karp's own"
        ),
        not(labels::NODE_POOL),
        not("karpenter.sh/nodeclaim"),
        not(labels::EC2_NODE_CLASS),
    ])
}

pub(super) fn block_device_mappings() -> Value {
    json!([rule(
        "size(self.filter(disk, has(disk.rootVolume) && disk.rootVolume)) <= 1",
        "only one disk can be the rootVolume"
    )])
}

pub(super) fn block_device() -> Value {
    json!([
        rule("has(self.snapshotID) || has(self.volumeSize)", "snapshotID or volumeSize must be set"),
        rule(
            "!has(self.volumeInitializationRate) || (has(self.snapshotID) && self.snapshotID != '')",
            "volumeInitializationRate needs a snapshotID"
        ),
    ])
}

pub(super) fn network_interfaces() -> Value {
    json!([
        rule(
            "size(self) == 0 || self.exists(nic, nic.networkCardIndex == 0 && nic.deviceIndex == 0 && nic.interfaceType == 'interface')",
            "the first interface (card 0, device 0) must be there, with interfaceType interface"
        ),
        rule(
            "self.all(one, self.exists_one(two, one.networkCardIndex == two.networkCardIndex && one.deviceIndex == two.deviceIndex)) && \
             self.all(one, one.interfaceType != 'efa-only' || \
             self.exists_one(two, two.interfaceType == 'efa-only' && two.networkCardIndex == one.networkCardIndex))",
            "interfaces must differ in networkCardIndex and deviceIndex, with at most one efa-only for each card"
        ),
    ])
}

pub(super) fn connection_tracking() -> Value {
    at_least_one(&["tcpEstablishedTimeout", "udpStreamTimeout", "udpTimeout"])
}

/// Returns the schema of the kubelet's settings: open, with types and rules for what Karpenter 1.14 knew, as far as 1.15 would take the
/// settings too. What 1.15 refuses only in its controller is refused here at once.
pub(super) fn kubelet() -> Schema {
    let whole = |bounds: Value| {
        let mut schema = json!({ "type": "integer", "format": "int32" });
        schema.as_object_mut().expect("an object").extend(bounds.as_object().cloned().unwrap_or_default());
        schema
    };
    json_schema!({
        "type": "object",
        "description": "Settings of the kubelet, with the kubelet's own names.",
        "x-kubernetes-preserve-unknown-fields": true,
        "properties": {
            "clusterDNS": { "type": "array", "items": { "type": "string" } },
            // A number, or a CEL expression.
            "maxPods": { "x-kubernetes-int-or-string": true, "minimum": 0 },
            "podsPerCore": whole(json!({ "minimum": 0 })),
            "systemReserved": reserved(),
            "kubeReserved": reserved(),
            "evictionHard": eviction_thresholds(),
            "evictionSoft": eviction_thresholds(),
            "evictionSoftGracePeriod": {
                "type": "object", "additionalProperties": { "type": "string" }, "x-kubernetes-validations": signals()
            },
            "evictionMaxPodGracePeriod": whole(json!({})),
            "imageGCHighThresholdPercent": whole(json!({ "minimum": 0, "maximum": 100 })),
            "imageGCLowThresholdPercent": whole(json!({ "minimum": 0, "maximum": 100 })),
            "cpuCFSQuota": { "type": "boolean" }
        },
        "x-kubernetes-validations": [
            rule(
                "!has(self.imageGCHighThresholdPercent) || !has(self.imageGCLowThresholdPercent) || \
                 self.imageGCHighThresholdPercent > self.imageGCLowThresholdPercent",
                "imageGCHighThresholdPercent must be larger than imageGCLowThresholdPercent"
            ),
            rule(
                "!has(self.evictionSoft) || self.evictionSoft.all(key, has(self.evictionSoftGracePeriod) && key in self.evictionSoftGracePeriod)",
                "each signal of evictionSoft needs an evictionSoftGracePeriod"
            ),
            rule(
                "!has(self.evictionSoftGracePeriod) || self.evictionSoftGracePeriod.all(key, has(self.evictionSoft) && key in self.evictionSoft)",
                "each signal of evictionSoftGracePeriod needs an evictionSoft"
            )
        ]
    })
}

/// Amounts, or CEL expressions.
fn reserved() -> Value {
    json!({
        "type": "object",
        "additionalProperties": { "type": "string" },
        "x-kubernetes-validations": [
            rule("self.all(key, key in ['cpu', 'memory', 'ephemeral-storage', 'pid'])", "the keys are cpu, memory, ephemeral-storage and pid"),
            rule("self.all(key, !self[key].startsWith('-'))", "an amount cannot be negative")
        ]
    })
}

fn signals() -> Value {
    json!([rule(format!("self.all(key, key in {SIGNALS})"), "the keys are the kubelet's eviction signals")])
}

/// Returns the pattern of a quantity or a share.
pub(super) fn eviction_threshold() -> String {
    let quantity = quantity::PATTERN.trim_start_matches('^').trim_end_matches('$');
    format!(r"^((\d{{1,2}}(\.\d+)?|100(\.0+)?)%||{quantity})$")
}

fn eviction_thresholds() -> Value {
    json!({
        "type": "object",
        "additionalProperties": { "type": "string", "pattern": eviction_threshold() },
        "x-kubernetes-validations": signals()
    })
}
