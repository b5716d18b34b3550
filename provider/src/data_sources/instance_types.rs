//! `karp_instance_types`: which types some requirements leave, from the built-in table; offline.

use std::collections::BTreeSet;

use karp_domain::api::{RequirementSpec, requirements};
use karp_domain::catalogue::{
    Catalogue, InstanceFacts, Market, NodeSettings, Price, Zone, builtin, builtin_type, overhead,
};
use serde::{Deserialize, Serialize};
use tfplugin::schema::validate;
use tfplugin::{Attribute, Context, DataSource, Diagnostic, Diagnostics, Schema, Type, Value, async_trait};

use crate::resources::node_pool_requirements;

/// The zone of a catalogue whose user named none.
const ANY_ZONE: &str = "any";

/// The instance types that requirements leave.
pub struct InstanceTypes;

#[derive(Deserialize)]
struct Model {
    #[serde(default)]
    requirements: Vec<Requirement>,
    #[serde(default)]
    zones: BTreeSet<String>,
}

/// A requirement by the names of `karp_node_pool`.
#[derive(Deserialize)]
struct Requirement {
    key: String,
    operator: String,
    #[serde(default)]
    values: Vec<String>,
    min_values: Option<i64>,
}

#[derive(Serialize)]
struct Found {
    name: String,
    vcpus: u32,
    memory_mib: u64,
    architecture: &'static str,
    max_pods: u64,
    on_demand_price: Option<f64>,
    spot_price: Option<f64>,
    gpus: u32,
}

impl Requirement {
    fn spec(&self, at: usize) -> Result<RequirementSpec, Diagnostics> {
        let operator = self.operator.parse().map_err(|_| {
            let detail = format!("{:?} is no operator of a requirement.", self.operator);
            Diagnostic::error("Invalid requirement", detail).at(format!("requirements.{at}.operator").as_str())
        })?;
        let (key, values) = (self.key.clone(), self.values.clone());
        Ok(RequirementSpec { key, operator, values, min_values: self.min_values })
    }
}

fn specs(model: &Model) -> Result<Vec<RequirementSpec>, Diagnostics> {
    model.requirements.iter().enumerate().map(|(at, one)| one.spec(at)).collect()
}

#[async_trait]
impl DataSource for InstanceTypes {
    fn type_name(&self) -> &'static str {
        "karp_instance_types"
    }

    fn schema(&self) -> Schema {
        let number = |what: &str| Attribute::number().computed().describe(what);
        let text = |what: &str| Attribute::string().computed().describe(what);
        Schema::new(
            "The instance types that some requirements leave, cheapest first. It asks nobody: types come from karp's built-in table, and \
             prices are its estimates for us-east-1, good for comparing types and not for a bill.",
        )
        .attribute("requirements", node_pool_requirements().optional().describe("What the types must be, as in a node pool."))
        .attribute(
            "zones",
            Attribute::set(Type::String)
                .optional()
                .validate(validate::each(validate::length(1, 64)))
                .describe("The availability zones by name, where requirements name zones. Types and estimated prices are us-east-1's, whatever their names."),
        )
        .attribute("names", Attribute::list(Type::String).computed().describe("The types' names, cheapest first."))
        .attribute(
            "instance_types",
            Attribute::nested_list([
                ("name", text("The type's name.")),
                ("vcpus", number("Its vCPUs.")),
                ("memory_mib", number("Its memory in MiB.")),
                ("architecture", text("`amd64` or `arm64`.")),
                ("max_pods", number("How many pods a node of it takes by its network interfaces.")),
                ("on_demand_price", number("The estimated price per hour on demand, in dollars; null where the requirements leave none.")),
                ("spot_price", number("The estimated price per hour as spot, in dollars; null where the requirements leave none.")),
                ("gpus", number("Its GPUs.")),
            ])
            .computed()
            .describe("The types, cheapest first."),
        )
    }

    fn validate(&self, config: &Value) -> Diagnostics {
        if !config.get("requirements").whole_known() {
            return Diagnostics::new();
        }
        let read = || {
            let model: Model = tfplugin::from_value(config)?;
            requirements(&specs(&model)?).map_err(|error| {
                Diagnostics::from(Diagnostic::error("Invalid requirement", error.to_string()).at("requirements"))
            })
        };
        read().err().unwrap_or_default()
    }

    async fn read(&self, _ctx: &Context, config: Value) -> Result<Value, Diagnostics> {
        let model: Model = tfplugin::from_value(&config)?;
        let found = matching(&model)?;
        let names: Vec<&str> = found.iter().map(|one| one.name.as_str()).collect();
        let (names, types) = (tfplugin::to_value(&names)?, tfplugin::to_value(&found)?);
        Ok(config.with("names", names).with("instance_types", types))
    }
}

fn matching(model: &Model) -> Result<Vec<Found>, Diagnostics> {
    let wanted = requirements(&specs(model)?)
        .map_err(|error| Diagnostic::error("Invalid requirement", error.to_string()).at("requirements"))?;
    let named: Vec<Zone> = model.zones.iter().map(|name| Zone::new(name, "")).collect();
    let zones = if named.is_empty() { vec![Zone::new(ANY_ZONE, "")] } else { named };
    let catalogue = Catalogue::estimated(builtin(), &zones, &NodeSettings::default());
    let (mut types, mut market) = catalogue.select(&wanted);
    if model.zones.is_empty() {
        // without zones, what is asked of them is left open
        market.zones = Market::ANY.zones;
    }
    types.intersect_with(&catalogue.offered(market));
    let mut found: Vec<(Option<Price>, Found)> = types
        .ones()
        .filter_map(|at| {
            let facts = builtin_type(&catalogue.types()[at].name)?;
            Some((catalogue.cheapest(at, market), describe(&catalogue, at, market, facts)))
        })
        .collect();
    found.sort_by(|(a, left), (b, right)| (a, &left.name).cmp(&(b, &right.name)));
    Ok(found.into_iter().map(|(_, found)| found).collect())
}

fn describe(catalogue: &Catalogue, at: usize, market: Market, facts: &InstanceFacts) -> Found {
    use karp_domain::catalogue::CapacityType::{OnDemand, Spot};
    let price = |capacity_type| {
        let offers = catalogue.offerings_in(at, market).filter(|offer| offer.capacity_type == capacity_type);
        offers.map(|offer| offer.price).min().map(Price::dollars)
    };
    Found {
        name: facts.name.clone(),
        vcpus: facts.vcpus,
        memory_mib: facts.memory_mib,
        architecture: facts.arch.as_str(),
        max_pods: overhead::max_pods(facts, &NodeSettings::default()),
        on_demand_price: price(OnDemand),
        spot_price: price(Spot),
        gpus: facts.gpu.as_ref().map_or(0, |gpu| gpu.count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(requirements: &[(&str, &str, &[&str])]) -> Model {
        let one = |(key, operator, values): &(&str, &str, &[&str])| Requirement {
            key: (*key).to_owned(),
            operator: (*operator).to_owned(),
            values: values.iter().map(|value| (*value).to_owned()).collect(),
            min_values: None,
        };
        Model { requirements: requirements.iter().map(one).collect(), zones: BTreeSet::new() }
    }

    #[test]
    fn requirements_narrow_and_prices_order() {
        let family: (&str, &str, &[&str]) = ("karpenter.k8s.aws/instance-family", "In", &["m7i"]);
        let all = matching(&model(&[family])).unwrap();
        assert!(all.len() > 5 && all.iter().all(|one| one.name.starts_with("m7i.")));
        assert_eq!((all[0].name.as_str(), all[0].vcpus, all[0].architecture), ("m7i.large", 2, "amd64"));
        assert!(all[0].spot_price < all[0].on_demand_price);

        let large: (&str, &str, &[&str]) = ("karpenter.k8s.aws/instance-cpu", "Gt", &["31"]);
        let on_demand: (&str, &str, &[&str]) = ("karpenter.sh/capacity-type", "In", &["on-demand"]);
        let some = matching(&model(&[family, large, on_demand])).unwrap();
        assert!(some.len() < all.len() && some.iter().all(|one| one.vcpus > 31 && one.spot_price.is_none()));
        let prices: Vec<Option<f64>> = some.iter().map(|one| one.on_demand_price).collect();
        assert!(prices.is_sorted(), "{prices:?}");
    }

    #[test]
    fn a_zone_without_zones_is_left_open_and_with_them_counts() {
        let mut model = model(&[
            ("karpenter.k8s.aws/instance-family", "In", &["m7i"]),
            ("topology.kubernetes.io/zone", "In", &["eu-west-1a"]),
        ]);
        assert!(!matching(&model).unwrap().is_empty());
        model.zones.insert("eu-west-1b".to_owned());
        assert!(matching(&model).unwrap().is_empty());
        model.zones.insert("eu-west-1a".to_owned());
        assert!(!matching(&model).unwrap().is_empty());
    }

    #[test]
    fn a_wrong_operator_is_told_where_it_stands() {
        let config =
            Value::object([("requirements", Value::List(vec![Value::object([("key", "a"), ("operator", "Is")])]))]);
        assert!(InstanceTypes.validate(&config).to_string().contains("requirements[0].operator"));
    }
}
