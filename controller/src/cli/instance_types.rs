//! `karp instance-types`: the catalogue as the engine sees it.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use karp_domain::api::labels;
use karp_domain::catalogue::{CapacityType, Catalogue, InstanceType, Listing, Market};
use karp_domain::quantity::Quantity;
use karp_domain::requirement::{Operator, Requirement, Requirements, hint};

use super::text;
use super::world::{Output, zone};
use crate::cloud::aws::Hardware;
use crate::files::{Known, Objects, Offered, zones_for};

/// Holds the options of `karp instance-types`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Only types and offerings that meet this, as 'karpenter.k8s.aws/instance-cpu Gt 4'; may be repeated, all must hold.
    #[arg(short = 'r', long = "requirement", value_name = "KEY OP VALUES")]
    requirements: Vec<Wanted>,
    /// JSON list of instance types to show in place of the built-in ones.
    #[arg(long, value_name = "FILE")]
    instance_types: Option<PathBuf>,
    /// Zones in which the built-in types are offered.
    #[arg(long, value_name = "ZONE", value_delimiter = ',', value_parser = zone, conflicts_with = "instance_types")]
    zones: Vec<String>,
    /// File (YAML or JSON) that says what the account really pays: discounts, Savings Plans, another currency.
    #[arg(long, value_name = "FILE", conflicts_with = "instance_types")]
    price_file: Option<PathBuf>,
    /// How the answer is written.
    #[arg(short = 'o', long, value_enum, default_value = "table")]
    output: Output,
}

/// A requirement as people write it: `KEY In a,b`, `KEY Exists`, `KEY Gt 4`.
#[derive(Clone, Debug)]
struct Wanted(Requirement);

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let (Some(key), Some(operator)) = (words.next(), words.next()) else {
            return Err("a key, an operator and values are wanted, as 'kubernetes.io/arch In amd64,arm64'".to_owned());
        };
        let known = "In, NotIn, Exists, DoesNotExist, Gt, Lt, Gte or Lte";
        let operator: Operator = operator.parse().map_err(|_| format!("{operator:?} is no operator: {known}"))?;
        let values: Vec<&str> = words.flat_map(|word| word.split(',')).filter(|value| !value.is_empty()).collect();
        Requirement::new(key, operator, &values).map(Wanted).map_err(|error| error.to_string())
    }
}

/// Prints the types that meet the requirements.
///
/// # Errors
/// When the file cannot be read, or a requirement is on a label that no type has.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let offered = Offered::new(options.instance_types.as_deref(), &options.zones, options.price_file.as_deref())?;
    let zones = zones_for(None, &Objects::default());
    let catalogue = offered.catalogue(&Hardware::default(), &zones, (&Known::default(), &[]));
    let requirements: Requirements = options.requirements.iter().map(|wanted| wanted.0.clone()).collect();
    for requirement in requirements.iter() {
        let key = requirement.key();
        if !catalogue.defines(key) && !requirement.admits_absence() {
            let hint = hint::key(key, []).map(|known| format!("; did you mean {known}?")).unwrap_or_default();
            anyhow::bail!("no instance type has the label {key}{hint}");
        }
    }
    let types = choose(&catalogue, &requirements);
    let listed = || types.iter().map(Listing::from).collect::<Vec<_>>();
    text::print(options.output, listed, || render(&types))
}

/// The types that meet the requirements, with the offerings that do; by name.
fn choose(catalogue: &Catalogue, requirements: &Requirements) -> Vec<InstanceType> {
    let (types, market) = catalogue.select(requirements);
    let everywhere = catalogue.market(&Requirements::new());
    let mut chosen = Vec::new();
    for at in types.ones() {
        let mut kind = InstanceType::clone(&catalogue.types()[at]);
        kind.offerings.retain(|offering| {
            let zone = catalogue.zones().binary_search(&offering.zone);
            zone.is_ok_and(|zone| market.allows(zone, offering.capacity_type))
        });
        if market == everywhere || market == Market::ANY || !kind.offerings.is_empty() {
            chosen.push(kind);
        }
    }
    chosen
}

/// A table, cheapest first.
fn render(types: &[InstanceType]) -> String {
    let mut types: Vec<&InstanceType> = types.iter().collect();
    types.sort_by(|a, b| (a.cheapest(), &a.name).cmp(&(b.cheapest(), &b.name)));
    let mut table = text::table(&["TYPE", "ARCH", "CPU", "MEMORY", "PODS", "OTHER", "ON-DEMAND $/H", "SPOT $/H"]);
    for kind in &types {
        let room = kind.allocatable();
        let usual = ["cpu", "memory", "pods", "ephemeral-storage"];
        let other = room.iter().filter(|(name, amount)| !usual.contains(name) && !amount.is_zero());
        let other: Vec<String> = other.map(|(name, amount)| format!("{name} {amount}")).collect();
        let arch = kind.labels.get(labels::ARCH).map(|values| values.join("/"));
        table.add_row([
            kind.name.to_string(),
            arch.unwrap_or_default(),
            room.get("cpu").to_string(),
            gibibytes(room.get("memory")),
            room.get("pods").to_string(),
            other.join(", "),
            cheapest(kind, CapacityType::OnDemand),
            cheapest(kind, CapacityType::Spot),
        ]);
    }
    text::align(&mut table, &[2, 3, 4, 6, 7]);
    let mut out = String::new();
    for line in table.to_string().lines() {
        let _ = writeln!(out, "{}", line.trim_end().strip_prefix(' ').unwrap_or(line));
    }
    let _ = writeln!(
        out,
        "{}; CPU, memory and pods are what daemons and pods can use.",
        text::counted(types.len(), "type")
    );
    if types.iter().flat_map(|kind| &kind.offerings).any(|offering| offering.is_estimated()) {
        out.push_str("~ marks estimated prices.\n");
    }
    out
}

fn gibibytes(bytes: Quantity) -> String {
    format!("{:.1}Gi", bytes.as_f64() / f64::from(1 << 30))
}

fn cheapest(kind: &InstanceType, capacity_type: CapacityType) -> String {
    let sold = kind.offerings.iter().filter(|o| o.capacity_type == capacity_type && o.available);
    sold.min_by_key(|offering| offering.price).map_or_else(
        || "-".to_owned(),
        |offering| format!("{}{:.4}", if offering.is_estimated() { "~" } else { "" }, offering.price.dollars()),
    )
}
